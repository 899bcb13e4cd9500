"""The base model and adapters of a playing process: fetched by digest, swapped as versions are published."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from pathlib import Path

from arena.bots import bot_names
from arena.games.base import GameSpec
from arena.match import SeatPlayer
from inference import backend_settings, make_backend
from inference.adapter_cache import AdapterCache
from inference.base import BackendStats, Generation, InferenceBackend, RemoteBackend, Request, SamplingParameters
from inference.canary import AdapterCanary
from inference.statistics import SwapTimer, TimedBackend
from league.state.saved_state import PublishedVersion
from models import Tokenizer, find_base
from models.adapter_bundle import unpack_atomically, unpack_folder
from players.policy import AdapterProvider, PolicyPlayer
from players.reply_formats import Prompter
from players.search import SearchPlayer
from schemas.config import LeagueConfig, SearchConfig
from schemas.errors import LeagueError, ModelError, NoServerError, UsageError
from schemas.events import AdapterSlotsReduced
from schemas.ids import split_agent
from schemas.jobs import PlayMatch
from schemas.loggers import get_logger
from workers.discover_servers import connect_servers, uses_inference_servers
from workers.monitoring.metrics import BackendGauge
from workers.progress import ProgressReporter
from workers.runtime import Context

log = get_logger()


async def fetch_base_model(context: Context, report: ProgressReporter | None = None) -> Path:
    """Folder of the league's base model, fetched first if it is a blob or was not downloaded yet.

    Raises:
        ModelError: the model cannot be used.
        ArtifactError: its blob is missing or damaged.
    """
    source = context.state.model
    if not source:
        raise ModelError("this league has no base model yet; run `league up` first, which makes it")
    kind, _, digest = source.partition(":")
    if kind != "artifact":
        return await asyncio.to_thread(find_base, source, report)
    folder = context.run.folder / "models" / digest[:16]
    if not folder.exists():
        await unpack_blob(context, digest, folder)
    return folder


async def unpack_blob(context: Context, digest: str, folder: Path) -> None:
    """Fetch a blob and unpack it into a folder, atomically for other processes of this machine."""
    unpack_atomically(await context.blobs.get(digest), folder)


def search_config(config: LeagueConfig, agent: str) -> SearchConfig | None:
    """Settings of an agent that searches at decision time; None for all others."""
    settings = config.agents.get(agent)
    return settings.search if settings is not None else None


def find_searched_version(context: Context, search: SearchConfig) -> PublishedVersion | None:
    """The newest version of the policy that is searched with; None before the first, when the base model is."""
    live = context.state.live_version(search.policy or context.config.trainer.policy)
    return None if live is None else context.state.published[live.policy][live.version]


def provide_base_model() -> tuple[int, str | None]:
    """The base model, at version 0."""
    return 0, None


class _AbsentBackend:
    """Stand-in where only bots and remote agents play: it holds no model, and loads no tensor library."""

    def load_adapter(self, digest: str, folder: Path) -> None:
        raise ModelError(f"adapter {digest}: this process has no base model to load it on")

    def drop_adapter(self, digest: str) -> None:
        pass

    def stats(self) -> BackendStats:
        return BackendStats()

    async def generate(self, request: Request) -> Generation:
        raise ModelError("a model was asked to play; this process has only bots and remote agents")

    async def close(self) -> None:
        pass


class ModelManager:
    """A backend with the adapters that its matches need; it alone knows which may be evicted.

    With ``follow`` in the background, the newest version of the served policy is loaded as it is published; running
    matches look it up at each decision, so a new version acts from the next decision on. Versions of other policies
    take a slot only when a match seats them. Without a ``policy`` every policy is served.
    """

    def __init__(
        self, context: Context, backend: InferenceBackend, tokenizer: Tokenizer, policy: str | None = None
    ) -> None:
        self.swaps = SwapTimer()
        self.backend: InferenceBackend = TimedBackend(backend, self.swaps)
        self.untimed_backend = backend
        self.tokenizer = tokenizer
        self._remote = backend if isinstance(backend, RemoteBackend) else None
        self._context = context
        self._policy = policy
        self._live: dict[str, tuple[int, str | None]] = {}
        self._attempted: dict[str, int] = {}
        self.adapter_cache = AdapterCache(
            backend,
            lambda: context.config.inference.max_adapters,
            lambda: {adapter for _, adapter in self._live.values() if adapter is not None},
            self._fetch,
            self._record_slots_reduced,
            AdapterCanary(backend, len(tokenizer)).check,
        )
        name = context.config.inference.backend if self._remote is None else "servers"
        self._gauge = BackendGauge(name, self.backend, self.swaps)
        device = backend_settings(context.config).get("device", "cpu")
        context.gauges.uses_gpus = self._remote is None and device != "cpu"
        context.gauges.inference = lambda: self._gauge.read(self.adapter_cache.capacity)

    @classmethod
    async def load(
        cls, context: Context, policy: str | None = None, routed: bool = False, modelled: bool = True
    ) -> "ModelManager":
        """Load the base model, to serve one policy or (None) all of them.

        With ``routed``, the league's inference servers are used, where it has any, and only the tokenizer is loaded.
        Without ``modelled`` no model plays, and none is loaded.
        """
        folder = await fetch_base_model(context)
        if not modelled:
            return cls(context, _AbsentBackend(), Tokenizer(folder), policy)
        if routed and uses_inference_servers(context.config):
            return cls(context, await connect_servers(context), Tokenizer(folder), policy)
        name = context.config.inference.backend
        # In a thread, since a large model takes minutes: meanwhile the process must follow events and answer requests.
        backend = await asyncio.to_thread(make_backend, name, folder, **backend_settings(context.config))
        return cls(context, backend, Tokenizer(folder), policy)

    async def follow(self) -> None:
        """Load new versions of the served policies as they are published; runs until cancelled."""
        while True:
            await self.load_newest()
            # A short timeout: a version published while another was being loaded set no wake-up.
            await self._context.wait_for_event(timeout_s=0.5)

    async def load_newest(self) -> None:
        """Load the newest version of each served policy, unless it is loaded."""
        for policy, live in self._context.state.standings().live.items():
            if self._policy not in (None, policy):
                continue
            if self._attempted.get(policy) == live.version or live.adapter is None:
                continue
            try:
                await self._preload(live.adapter, self._live.get(policy, (0, None))[1])
                self._live[policy] = (live.version, live.adapter)
                version, recorded_ns = self._context.published_ns.get(policy, (-1, 0))
                if version == live.version:
                    self.swaps.expect(policy, live.adapter, recorded_ns)
            except NoServerError as error:
                # The version may be valid: it is tried again.
                log.warning("no server to load a published adapter", policy=policy, error=str(error))
                continue
            except LeagueError as error:
                # The previous version goes on acting; the next one may be valid.
                log.error("a published adapter cannot be used", policy=policy, version=live.version, error=str(error))
            self._attempted[policy] = live.version
            self._context.wake()

    async def _preload(self, adapter: str, before: str | None) -> None:
        """Load a version before it is requested, so that no request waits for the swap."""
        if self._remote is not None:
            await self._remote.prepare(adapter)
            return
        try:
            await self.adapter_cache.ensure([adapter], instead=before)
        except LeagueError:
            # Where memory is short, the previous version was unloaded first.
            if before is not None:
                await self.adapter_cache.ensure([before])
            raise

    def is_current(self, policy: str) -> bool:
        """Whether the newest published version of a policy has been loaded, or found to be unusable."""
        live = self._context.state.live_version(policy)
        return live is None or self._attempted.get(policy) == live.version

    async def ensure(self, adapter: str, leases: contextlib.ExitStack | None = None) -> None:
        """Load an adapter unless it is loaded; it is not evicted until ``leases`` are closed.

        Raises:
            ArtifactError: the adapter is missing or damaged.
            ModelError: it does not fit the base model, or there is no memory for it.
        """
        if self._remote is None:
            await self.adapter_cache.ensure([adapter], leases)

    async def _fetch(self, adapter: str, folder: Path) -> None:
        unpack_folder(await self._context.blobs.get(adapter), folder)

    async def _record_slots_reduced(self, slots: int, reason: str) -> None:
        log.warning("memory for fewer adapters than configured", slots=slots, reason=reason)
        context = self._context
        reduced = AdapterSlotsReduced(context.name, context.incarnation, slots, reason)
        # Before the next match is made, which must not need more adapters.
        await context.wait_for_sequence(await context.announce(reduced))

    def agent_kind(self, agent: str) -> str:
        """The kind of an agent. One that is not in the league is a bot of the game or, by default, a checkpoint.

        ``UsageError`` for an external agent, which nothing here can play.
        """
        entrant = self._context.state.standings().agents.get(agent)
        if entrant is not None and entrant.kind == "external":
            raise UsageError(f"agent {agent!r}: it plays outside the league; expected an agent that the league can run")
        if entrant is not None:
            return entrant.kind
        return "bot" if agent in bot_names(self._context.config.game.name) else "checkpoint"

    @contextlib.asynccontextmanager
    async def hold_versions(
        self, job: PlayMatch, live: Collection[int], people: Collection[int] = ()
    ) -> AsyncIterator[dict[int, PublishedVersion]]:
        """Yield the versions, by seat, that play a whole match; their adapters are not evicted during the block.

        None of them is loaded if there is not enough memory for all. Servers load adapters by digest, and hold them
        for the length of each request. Seats of ``people`` have none, nor do those in ``live``, in which a policy's
        newest version acts.

        Raises:
            UsageError: a seat's agent is neither registered nor a published version.
            ArtifactError: an adapter is missing or damaged.
            ModelError: an adapter does not fit the base model, or there is not enough memory for all.
        """
        seats = ((seat, agent) for seat, agent in enumerate(job.seats) if seat not in people)
        fixed = {seat: self._fixed_version(agent, seat in live) for seat, agent in seats}
        versions = {seat: version for seat, version in fixed.items() if version is not None}
        with contextlib.ExitStack() as leases:
            if self._remote is None:
                await self.adapter_cache.ensure([version.adapter for version in versions.values()], leases)
            yield versions

    def _fixed_version(self, agent: str, is_live: bool) -> PublishedVersion | None:
        version = split_agent(agent)
        if version is not None and is_live:
            return None
        if (search := search_config(self._context.config, agent)) is not None:
            return find_searched_version(self._context, search)
        if self.agent_kind(agent) != "checkpoint":
            return None
        policy, number = version or ("", 0)
        published = self._context.state.published.get(policy, {}).get(number)
        if published is None:
            raise UsageError(f"seat of {agent!r}: no such agent; expected a registered one or a published version")
        return published

    def make_adapter_provider(self, agent: str, fixed: PublishedVersion | None) -> AdapterProvider:
        """Provide the fixed version; without one, the base model or the newest version of the agent's policy."""
        if fixed is not None:
            return lambda: (fixed.version, fixed.adapter)
        if self.agent_kind(agent) in ("base", "search"):
            return provide_base_model
        return self.adapter_provider((split_agent(agent) or ("", 0))[0])

    def make_player(
        self,
        agent: str,
        version: PublishedVersion | None,
        prompter: Prompter,
        game: GameSpec,
        temperature: float | None = None,
    ) -> SeatPlayer:
        """The player of an agent that is a model, with search where the agent searches; by default as in evaluation."""
        if temperature is None:
            temperature = self._context.config.inference.evaluation_temperature
        player = self._make_policy_player(agent, version, prompter, temperature)
        search = search_config(self._context.config, agent)
        return player if search is None else SearchPlayer(player, game, search)

    def _make_policy_player(
        self, agent: str, version: PublishedVersion | None, prompter: Prompter, temperature: float
    ) -> PolicyPlayer:
        sampling = SamplingParameters(temperature=temperature, top_p=self._context.config.inference.top_p)
        return PolicyPlayer(self.backend, prompter, self.make_adapter_provider(agent, version), sampling)

    def adapter_provider(self, policy: str) -> AdapterProvider:
        """Provide a policy's current version and adapter at each call."""
        return lambda: self._live.get(policy, (0, None))

    async def close(self) -> None:
        """Release the backend."""
        await self.backend.close()
