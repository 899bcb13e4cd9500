"""Check a backend's log-probabilities against the learner's, on this machine."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import msgspec
import torch

from arena.games import make_game
from inference import make_backend
from league.run import Run
from lifecycle.parity import ParityReport, RecomputeLogprobs, measure_parity, resolve_tolerance, sample_prompts
from models import make_base
from models.adapters import LoraConfig, create, save
from models.model_config import read_shape
from models.tokenizer import Tokenizer
from schemas.config import InferenceConfig, Plugin
from schemas.trajectories import ModelCall
from trainer.backends import AdapterSpec, LearnerBackend, load_backend, read_adapter_spec
from trainer.backends.native import resolve_backend
from trainer.batch import Floats
from trainer.learner_config import LearnerConfig
from trainer.loss_inputs import recompute_choices
from workers.policy_weights import fetch_base_model, unpack_blob
from workers.runtime import follow_league


class ParitySubject(msgspec.Struct, frozen=True):
    """A base model, adapters by name, and a game to take prompts from."""

    base: Path
    adapters: Mapping[str, Path]
    game: Plugin
    bot: str
    inference: InferenceConfig
    learner: Plugin = Plugin(name="native")


async def check_parity(run: Run, backend_name: str | None, dtype: str, places: int) -> ParityReport:
    """Compare the log-probabilities of backend and learner.

    Without a league in the run, a small random model of Nim is made. ``backend_name`` is by default the configured one,
    ``dtype`` the data type of both sides, ``places`` the number of sampled decisions.
    """
    bounds = resolve_tolerance(dtype)
    async with _open_subject(run) as subject:
        inference = subject.inference
        name = backend_name or inference.backend
        backend = make_backend(name, subject.base, device=inference.device, dtype=dtype)
        learner = load_backend(subject.learner, subject.base, inference.device, dtype)
        learners: dict[str | None, RecomputeLogprobs] = {None: _recomputing(learner, None)}
        for digest, folder in subject.adapters.items():
            backend.load_adapter(digest, folder)
            learners[digest] = _recomputing(learner, folder)
        game = make_game(subject.game.name, subject.game.settings)
        prompts = list(islice(sample_prompts(game, Tokenizer(subject.base), subject.bot, seed=0), places))
        try:
            cells = await measure_parity(backend, learners, learner.shape.vocab_size, prompts, bounds)
        finally:
            await backend.close()
        return ParityReport(name, dtype, bounds, len(subject.adapters), cells)


def _recomputing(learner: LearnerBackend, folder: Path | None) -> RecomputeLogprobs:
    """The learner's log-probabilities with the adapter in a folder, or without one."""
    spec = AdapterSpec(1, 1.0, ()) if folder is None else read_adapter_spec(folder)
    adapter = learner.new_adapter(spec, seed=0)
    if folder is not None:
        adapter.load(folder)

    def recompute(calls: Sequence[ModelCall]) -> tuple[Floats, Floats]:
        with torch.no_grad():
            # Begun anew each time: adapters on one base are active in turn.
            evaluate = adapter.begin(LearnerConfig(), enabled=folder is not None).loss_inputs
        return recompute_choices(evaluate, learner.shape, adapter.device, calls)

    return recompute


@contextlib.asynccontextmanager
async def _open_subject(run: Run) -> AsyncIterator[ParitySubject]:
    """The league's base model and the newest adapter of each policy; a random model without a league."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if run.nats is None and not run.exists():
            yield await asyncio.to_thread(_random_subject, folder)
            return
        async with run.open_log("parity") as history:
            async with follow_league(run, history) as context:
                live, config = context.state.standings().live, context.config
                adapters = {each.adapter: folder / each.adapter for each in live.values() if each.adapter is not None}
                for digest, target in adapters.items():
                    await unpack_blob(context, digest, target)
                base = await fetch_base_model(context)
            learner = resolve_backend(config, base)[0].backend
            yield ParitySubject(base, adapters, config.game, config.model.clone_bot, config.inference, learner)


def _random_subject(folder: Path) -> ParitySubject:
    """A small random model of Nim, with adapters that change its probabilities."""
    game = Plugin("nim", {"seats": 3, "heaps": [3, 4, 5]})
    base = make_base(folder / "base", make_game(game.name, game.settings).text().vocabulary())
    adapters = {}
    for rank in (4, 16):
        lora = create(read_shape(base), LoraConfig(rank=rank), seed=rank)
        with torch.no_grad():
            lora.flat_P.add_(0.02 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(rank)))
        adapters[f"rank {rank}"] = folder / f"rank-{rank}"
        save(lora, adapters[f"rank {rank}"])
    return ParitySubject(base, adapters, game, "random_bot", InferenceConfig())
