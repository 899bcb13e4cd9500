"""The learner of a policy, made or restored from the history: each way to one is the fallback of another."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from league.matchmaking.roles import select_parents
from models.adapter_bundle import pack_folder
from models.adapter_checks import has_effect
from models.adapters import decode_config
from schemas.config import Plugin
from schemas.errors import ArtifactError, ConflictError, DiskError, WorkerConflictError
from schemas.events import Event, GradientStepTaken, ParentAdapter, PolicyPublished, PolicyReset
from schemas.ids import agent_name, derive_seed
from schemas.loggers import get_logger
from schemas.subjects import event_subject
from trainer.backends import LearnerBackend, make_adapter_spec
from trainer.learner import Learner
from trainer.learner_config import resolve_trainer
from trainer.operators import OPERATORS, Operator, make_offspring
from trainer.ranks import SINGLE_RANK, RankComm
from workers.policy_weights import unpack_blob
from workers.runtime import Context

log = get_logger()


async def store_folder(context: Context, write: Callable[[Path], object]) -> str:
    """Pack what ``write`` writes to a path, store it as a blob and return its digest; raises as ``pack_written``."""
    data = await asyncio.to_thread(pack_written, write)
    return await context.persistently(lambda: context.blobs.put(data))


def pack_written(write: Callable[[Path], object]) -> bytes:
    """Pack what ``write`` writes to a path; ``DiskError`` if the disk is full or read-only.

    Earlier blobs are intact then: a state is deleted only once the next step is recorded.
    """
    try:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / "part")
            return pack_folder(Path(folder) / "part")
    except OSError as error:
        if disk := DiskError.of(error, tempfile.gettempdir()):
            raise disk from error
        raise


@contextlib.asynccontextmanager
async def _unpacked(context: Context, name: str) -> AsyncIterator[Path]:
    with tempfile.TemporaryDirectory() as draft:
        await unpack_blob(context, name, Path(draft) / "part")
        yield Path(draft) / "part"


class LearnerFactory:
    """Factory of one policy's learners."""

    def __init__(self, context: Context, backend: LearnerBackend, policy: str, ranks: RankComm = SINGLE_RANK) -> None:
        self._context = context
        self._backend = backend
        self._policy = policy
        self._ranks = ranks

    async def resume(self) -> Learner:
        """Restore the learner after the last recorded step, or else from the newest version or a new adapter.

        Raises:
            ArtifactError: a published adapter is missing or damaged.
            ModelError: an adapter does not fit the base model.
        """
        step = self._context.state.last_step(self._policy)
        if step is None:
            return await self._make_first()
        first = self._context.state.training_start(self._policy)
        if first > step.step:
            # The policy was reset at that step.
            learner = self._make_untrained(first)
            await self._load_adapter(learner, first, first)
        else:
            learner = self._make_untrained(0)
            await self._load_state(learner, step)
        return learner

    async def make_reset(self, version: int, reason: str) -> tuple[Learner, PolicyReset, PolicyPublished]:
        """Make a learner that starts over as ``version``, and the events that record it; its adapter is stored.

        It begins with an offspring of checkpoints where an operator is configured and has parents, else untrained.

        Raises:
            ArtifactError: a parent's adapter is missing or damaged.
            ModelError: the parents' adapters do not fit each other.
        """
        learner = self._make_untrained(version)
        reset = await self._choose_offspring(PolicyReset(policy=self._policy, version=version - 1, reason=reason))
        if reset.parents:
            await self._load_blob(learner, reset.adapter, version)
            adapter, parent = reset.adapter, reset.parents[0].agent
        else:
            await self._warm_start(learner)
            adapter = await store_folder(self._context, learner.save_adapter)
            parent = self._context.config.base_agent
        log.info("policy reset", after=reset.version, reason=reason, operator=reset.operator, parent=parent)
        return learner, reset, PolicyPublished(policy=self._policy, version=version, adapter=adapter, parent=parent)

    async def _choose_offspring(self, reset: PolicyReset) -> PolicyReset:
        """Select parents and store their offspring; returns the event with all that its adapter was computed from.

        The event stays as it is where no operator is configured, or the league has too few checkpoints.
        """
        context, policy = self._context, self._policy
        plugin = context.config.policies[policy].reset_operator
        if plugin is None:
            return reset
        operator: Operator = OPERATORS.build(plugin)
        seed = derive_seed(context.config.seed, "offspring", policy, reset.version + 1)
        chosen = select_parents(context.state.standings(), context.config, policy, operator.parents, seed)
        if not chosen:
            log.info("too few checkpoints for an offspring", operator=plugin.name)
            return reset
        reset = msgspec.structs.replace(
            reset,
            operator=plugin.name,
            settings=msgspec.to_builtins(OPERATORS.settings(plugin)),
            parents=[ParentAdapter(agent.name, agent.adapter or "") for agent in chosen],
            seed=seed,
        )
        data = await compute_offspring(context, reset)
        return msgspec.structs.replace(reset, adapter=await context.persistently(lambda: context.blobs.put(data)))

    def _make_untrained(self, version: int) -> Learner:
        config = self._context.config
        # Each reset has another seed, so that training does not repeat itself.
        seed = derive_seed(config.seed, "trainer", self._policy, *([version] if version else []))
        adapter = self._backend.new_adapter(make_adapter_spec(config.model), seed)
        learner = Learner(adapter, resolve_trainer(config), seed, self._ranks)
        learner.steps = version
        return learner

    async def _make_first(self) -> Learner:
        """Publish the first version to train from, unless it exists: a new adapter, or an imported one.

        Version numbers are not reused: after checkpoints that were imported without an adapter, they continue above.
        """
        state = self._context.state
        learner = self._make_untrained(0)
        live = state.live_version(self._policy)
        versions = [agent.version for agent in state.checkpoints if agent.policy == self._policy]
        newest = max([*versions, -1 if live is None else live.version], default=-1)
        version = newest if live is not None and live.version == newest else newest + 1
        if live is not None:
            await self._load_adapter(learner, live.version, version)
        else:
            await self._warm_start(learner)
        learner.steps = version
        if live is None or live.version != version:
            adapter = await store_folder(self._context, learner.save_adapter)
            parent = self._context.config.base_agent if live is None else agent_name(self._policy, live.version)
            published = PolicyPublished(policy=self._policy, version=version, adapter=adapter, parent=parent)
            await append_published(self._context, [published])
        return learner

    async def _warm_start(self, learner: Learner) -> None:
        """Load the configured adapter, if any; after a reset, the policy's first one."""
        source = self._context.config.model.adapter
        if not source:
            return
        if versions := self._context.state.published.get(self._policy):
            await self._load_blob(learner, versions[min(versions)].adapter, learner.steps)
        elif (folder := _find_local_folder(source)) is not None:
            learner.load_adapter(folder, learner.steps)
            _log_oddities(folder)
        else:
            await self._load_blob(learner, source, learner.steps)
        log.info("begins with an adapter", source=source, version=learner.steps)

    async def _load_state(self, learner: Learner, step: GradientStepTaken) -> None:
        try:
            async with _unpacked(self._context, step.state) as folder:
                learner.load_state(folder)
        except ArtifactError as error:
            # A branch can start at any step, and most steps' states are deleted; published adapters are kept.
            what = "the trainer's state is gone, going on from the adapter alone"
            log.warning(what, step=step.step, error=str(error))
            await self._load_adapter(learner, step.step, step.step)

    async def _load_adapter(self, learner: Learner, version: int, steps: int) -> None:
        await self._load_blob(learner, self._context.state.published[self._policy][version].adapter, steps)
        log.info("adapter loaded, optimiser moments are fresh", version=version, steps=steps)

    async def _load_blob(self, learner: Learner, adapter: str, steps: int) -> None:
        async with _unpacked(self._context, adapter) as folder:
            learner.load_adapter(folder, steps)


def _log_oddities(folder: Path) -> None:
    """Log what is odd about the first adapter: no name of its base model, no effect."""
    if not decode_config(folder).get("base_model_name_or_path"):
        log.info("the adapter names no base model; taken as one of model.base", source=str(folder))
    if not has_effect(folder):
        log.warning("the adapter has no effect: all its B are zero", source=str(folder))


async def compute_offspring(context: Context, reset: PolicyReset) -> bytes:
    """Compute the adapter bundle of an offspring from what its event records: equal events give equal bytes.

    Raises:
        ArtifactError: a parent's adapter is missing or damaged.
        ConfigError: the operator is not installed here, or has other settings.
        ModelError: the parents' adapters do not fit each other.
        DiskError: the disk is full or read-only.
    """
    with tempfile.TemporaryDirectory() as draft:
        # Error messages tell the parents apart by these names.
        folders = [Path(draft) / f"parent-{index}" for index in range(len(reset.parents))]
        for parent, folder in zip(reset.parents, folders, strict=True):
            await unpack_blob(context, parent.adapter, folder)
        plugin = Plugin(name=reset.operator, settings=reset.settings)
        return await asyncio.to_thread(pack_written, partial(make_offspring, plugin, folders, reset.seed))


async def append_published(context: Context, events: Sequence[Event]) -> None:
    """Append events that begin with a ``PolicyPublished`` as one batch, and fold them.

    The batch is appended on the condition that nothing was published since the history was checked for this version,
    so of two trainers one publishes it; the other gets ``WorkerConflictError``.
    """
    first = events[0]
    assert isinstance(first, PolicyPublished)
    is_retry = False
    while True:
        newest = await context.fold_newest(event_subject(context.log.league, first))
        if first.version in context.state.published.get(first.policy, {}):
            publisher = await _find_publisher(context, first)
            if is_retry and publisher == context.log.producer:
                # The broker's reply was lost.
                return
            raise WorkerConflictError(
                f"{context.name}: version {first.version} of {first.policy} was published by {publisher} already, so "
                "this trainer's is discarded; expected one trainer per policy: stop one of them"
            )
        is_retry = True
        # A conflict may be with the trainer of another policy.
        with contextlib.suppress(ConflictError):
            await context.fold_through(max(await context.log.append_batch(events, expected=newest)))
            return


async def _find_publisher(context: Context, published: PolicyPublished) -> str:
    async for recorded in context.log.read(only=PolicyPublished):
        if recorded.event is not None and recorded.event.key == published.key:
            return recorded.producer
    return "another trainer"


def _find_local_folder(source: str) -> Path | None:
    path = Path(source).expanduser()
    return path if path.is_dir() else None
