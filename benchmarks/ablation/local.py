"""A league in one process without a broker: the real workers, over a history, rollouts and adapters in memory."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from league.log.queues import ReceivedTrajectory
from league.matchmaking.schedule import initial_agent_events
from league.run import Run
from league.state import LeagueState
from models.adapter_bundle import pack_folder
from schemas.codec import decode_trajectory, encode_trajectory
from schemas.config import LeagueConfig, to_builtins
from schemas.errors import ArtifactError
from schemas.events import LeagueOpened, PolicyPublished
from schemas.ids import digest
from schemas.trajectories import Trajectory
from tests.memory_log import MemoryLog
from workers.runtime import Context


class InMemoryBlobStore:
    """Artifacts by digest."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    async def put(self, data: bytes, note: str = "") -> str:
        """Keep bytes; return their digest."""
        name = digest(data)
        self.blobs[name] = data
        return name

    async def get(self, name: str) -> bytes:
        """The bytes of a digest.

        Raises:
            ArtifactError: there are none.
        """
        if name not in self.blobs:
            raise ArtifactError(f"artifact {name}: not in memory")
        return self.blobs[name]

    async def delete(self, name: str) -> None:
        """Let go of bytes."""
        self.blobs.pop(name, None)


class InMemoryExperience:
    """The stream between playing and training, as ``league.log.queues.ExperienceStream`` has it on a broker."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[str, bytes]] = {}
        self._published: set[str] = set()
        self._newest = 0
        self._appended = asyncio.Condition()

    async def publish(self, rollout: Trajectory) -> str:
        """Hand on a rollout, once however often it is published; return the digest of its bytes."""
        data = encode_trajectory(rollout)
        name = digest(data)
        if name in self._published:
            return name
        self._published.add(name)
        self._newest += 1
        self._pending[self._newest] = rollout.policy, data
        async with self._appended:
            self._appended.notify_all()
        return name

    async def follow(self, policy: str, first: int) -> AsyncIterator[ReceivedTrajectory]:
        """A policy's rollouts from a sequence on, for ever."""
        at = first
        while True:
            async with self._appended:
                while at > self._newest:
                    await self._appended.wait()
            owner, data = self._pending.get(at, ("", b""))
            if owner == policy:
                yield ReceivedTrajectory(at, decode_trajectory(data))
            at += 1

    async def purge_foreign_subjects(self) -> int:
        """Nobody else publishes here."""
        return 0

    async def purge_through(self, policy: str, sequence: int) -> None:
        """Drop a policy's rollouts up to a sequence."""
        await self.delete([at for at, (owner, _) in self._pending.items() if owner == policy and at <= sequence])

    async def delete(self, sequences: Iterable[int]) -> None:
        """Drop single rollouts."""
        for sequence in list(sequences):
            self._pending.pop(sequence, None)


class _InMemoryRun(Run):
    def __init__(self, folder: Path, shelf: InMemoryBlobStore) -> None:
        super().__init__(folder)
        self._blobs = shelf

    def open_blob_store(self, client: Any, league: str | None = None, area: str = "") -> Any:
        return self._blobs


class _NoBroker:
    max_payload = 2**30
    options: Mapping[str, Any] = {}
    is_closed = False

    def jetstream(self, **_: Any) -> None:
        return None

    async def subscribe(self, *_: Any, **__: Any) -> "_NoBroker":
        """A subscription to which nothing comes: one process sends no heartbeats."""
        return self

    async def unsubscribe(self) -> None:
        """Nothing to end."""


class FrozenPolicy(msgspec.Struct, frozen=True):
    """A version of a policy that was trained elsewhere, from the same base model."""

    policy: str
    version: int
    adapter: bytes
    """Packed."""


class LocalLeague:
    """One league: what its workers' contexts share.

    Args:
        config: Of the league.
        folder: Where the base model is unpacked.
    """

    def __init__(self, config: LeagueConfig, folder: Path) -> None:
        self.config = config
        self.log = MemoryLog(config.name, "local")
        self.blobs = InMemoryBlobStore()
        self.state = LeagueState()
        self._run = _InMemoryRun(folder, self.blobs)
        self._experience = InMemoryExperience()
        self._contexts: list[Context] = []

    async def open(self, model: Path, frozen: FrozenPolicy | None = None) -> None:
        """Record the league's first events.

        Args:
            model: Folder of its base model.
            frozen: A policy that is there to be met and is not trained.
        """
        name = await self.blobs.put(pack_folder(model))
        opened = LeagueOpened(league=self.config.name, config=to_builtins(self.config), model=f"artifact:{name}")
        met = [] if frozen is None else [await self._publish_frozen(frozen)]
        await self.log.append_batch([opened, *initial_agent_events(self.config), *met], expected=0)
        async for recorded in self.log.read():
            self._apply(recorded)

    async def _publish_frozen(self, frozen: FrozenPolicy) -> PolicyPublished:
        adapter = await self.blobs.put(frozen.adapter)
        base = self.config.base_agent
        return PolicyPublished(policy=frozen.policy, version=frozen.version, adapter=adapter, parent=base)

    def context(self, worker: str) -> Context:
        """What a worker of this name works with; all share one fold of the history."""
        context = Context(self._run, cast(Any, _NoBroker()), cast(Any, self.log), worker)
        context.experience, context.state = cast(Any, self._experience), self.state
        self._contexts.append(context)
        return context

    async def follow(self) -> None:
        """Fold what is recorded, for ever."""
        async for recorded in self.log.follow(self.state.sequence + 1):
            self._apply(recorded)
            for context in self._contexts:
                context.wake()

    def _apply(self, recorded: Any) -> None:
        assert recorded.event is not None, recorded.error
        self.state.apply(recorded.sequence, recorded.event)
