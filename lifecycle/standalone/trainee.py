"""A model in this process that plays, and the adapter that is trained on its episodes."""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from inference import backend_settings, make_backend
from models import Tokenizer
from players.policy import BackendClient
from schemas.batches import TrainingBatch
from schemas.config import LeagueConfig, Plugin
from schemas.ids import derive_seed
from trainer.backends import load_backend, make_adapter_spec
from trainer.learner import Learner
from trainer.learner_config import LearnerConfig, resolve_trainer
from trainer.report import StepReport
from workers.runtime import run_in


class TrainablePolicy:
    """A base model with an adapter that is replaced after each training step; later calls use the new one."""

    def __init__(self, folder: Path, config: LeagueConfig, seed: int, trains: bool = True) -> None:
        """Load the base model of a folder; settings of the learner have the defaults for the kind of ``model.base``.

        ``seed`` is that of the fresh adapter and of the order of minibatches. Unless it ``trains``, no second copy of
        the weights is held.
        """
        self._folder = folder
        self._backend = make_backend("local", folder, **backend_settings(config))
        self._live: tuple[int, str | None] = (0, None)
        self.base_client = BackendClient(
            self._backend, Tokenizer(folder), config=config.prompts, top_p=config.inference.top_p
        )
        """Client of the model before any training."""
        self.client = self.base_client.with_policy(lambda: self._live)
        """Client of the model's current version."""
        self._learner: Learner | None = None
        self._thread = ThreadPoolExecutor(1, "learner")
        """Computes all steps, as in ``workers.trainer``."""
        if trains:
            trainer = resolve_trainer(config)
            seed = derive_seed(seed, "trainer")
            backend = load_backend(trainer.backend, folder, trainer.device, trainer.dtype)
            adapter = backend.new_adapter(make_adapter_spec(config.model), seed)
            # Credit is assigned by the arena.
            credited = msgspec.structs.replace(trainer, reward=Plugin("outcome"), advantage=Plugin("episodic"))
            self._learner = Learner(adapter, credited, seed)

    @property
    def learner_config(self) -> LearnerConfig | None:
        """Settings of the learner; None without training."""
        return None if self._learner is None else self._learner.config

    @property
    def sampled_tokens(self) -> int:
        """Number of tokens sampled so far."""
        return self._backend.stats().sampled_tokens

    async def train(self, batch: TrainingBatch, progress: float) -> StepReport:
        """Take a training step on a batch; later calls use the new weights.

        ``progress`` is the share of the training that is over, 0 to 1.
        """
        learner = self._learner
        assert learner is not None, "opened without training"
        # In a thread: connections to a judge stay alive while the cores compute.
        report = await run_in(self._thread, partial(learner.step, batch.to_trajectories("main"), progress))
        _, before = self._live
        name = before if report.skipped else f"step-{learner.steps}"
        if not report.skipped and name is not None:
            with tempfile.TemporaryDirectory() as draft:
                self._backend.load_adapter(name, learner.save_adapter(Path(draft)))
        self._live = (learner.steps, name)
        if before is not None and before != name:
            self._backend.drop_adapter(before)
        return report

    def save(self, folder: Path) -> None:
        """Write the adapter in PEFT's format."""
        if self._learner is not None:
            self._learner.save_adapter(folder, str(self._folder))

    async def close(self) -> None:
        """Release the memory."""
        self._thread.shutdown()
        await self._backend.close()
