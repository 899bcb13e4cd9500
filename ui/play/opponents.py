"""Runners of matches between people and agents: bots, models and remote agents act as in any other match."""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping

from arena.clients import InferenceClient
from arena.environments import ArenaSpec
from arena.games.base import Game, GameSpec
from arena.games.texts import evaluation_spec, words_of
from arena.match import BotPlayer, SeatPlayer, play
from league.state.saved_state import PublishedVersion
from players.human import HumanClient, HumanPlayer, HumanSeat
from players.prompt_builder import make_prompter
from players.remote.remote_player import RemoteAgents
from schemas.errors import describe_error
from schemas.jobs import PlayMatch
from schemas.trajectories import Trajectory
from workers.match_runner.completed import CompletedMatch
from workers.match_runner.episodes import EpisodeRunner
from workers.match_runner.games import CompletedGame
from workers.policy_weights import ModelManager
from workers.runtime import Context

HumanSeats = Mapping[str, Mapping[int, HumanSeat]]
"""Human players by match and seat."""

MAX_TURNS = 2_000
"""Number of turns after which an endless game is abandoned."""


class HumanRunner(ABC):
    """Plays matches between people and a league's agents. The model is loaded for the first match that needs it."""

    def __init__(self, context: Context, people: HumanSeats) -> None:
        self.failures: dict[str, str] = {}
        """Errors by match id; the reader removes them."""
        self._context = context
        self._people = people
        self._models: ModelManager | None = None
        self._loading = asyncio.Lock()

    async def play(self, job: PlayMatch, live: Collection[int], remotes: RemoteAgents) -> CompletedMatch:
        """Play a match; an error is recorded in ``failures`` too."""
        try:
            return await self._play(job, live, remotes)
        except Exception as error:  # raised again; the page shows the reason
            self.failures[job.match_id] = describe_error(error)
            raise

    def make_tombstone(self, job: PlayMatch, seat: int, policy: str) -> Trajectory | None:
        """Make no tombstone: no trainer waits for these matches."""
        return None

    async def close(self) -> None:
        """Unload the model."""
        if self._models is not None:
            await self._models.close()

    @abstractmethod
    async def _play(self, job: PlayMatch, live: Collection[int], remotes: RemoteAgents) -> CompletedMatch: ...

    async def _load_models(self) -> ModelManager:
        async with self._loading:
            self._models = self._models or await ModelManager.load(self._context, routed=True)
        return self._models

    def _seated(self, job: PlayMatch) -> Mapping[int, HumanSeat]:
        return self._people.get(job.match_id, {})

    async def _show_stage(self, job: PlayMatch, stage: str, game: Game | None = None) -> None:
        for person in self._seated(job).values():
            await person.show_stage(stage, game)


class HumanGameRunner(HumanRunner):
    """Plays games.

    Raises:
        GameError: people cannot play the game.
    """

    def __init__(self, context: Context, spec: GameSpec, people: HumanSeats) -> None:
        super().__init__(context, people)
        self.environment = spec
        self._words = words_of(spec)
        self._evaluation_game = evaluation_spec(spec)

    async def _play(self, job: PlayMatch, live: Collection[int], remotes: RemoteAgents) -> CompletedGame:
        started = time.monotonic()
        game = await asyncio.to_thread(self._evaluation_game.new, job.seed)
        people = self._seated(job)
        others = (agent for seat, agent in enumerate(job.seats) if seat not in people)
        models = [agent for agent in others if self._agent_kind(agent) not in ("bot", "remote")]
        async with contextlib.AsyncExitStack() as leases:
            versions: Mapping[int, PublishedVersion] = {}
            if models:
                if self._models is None:
                    await self._show_stage(job, f"Loading the model of {models[0]} …", game)
                manager = await self._load_models()
                versions = await leases.enter_async_context(manager.hold_versions(job, live, people))
            await self._show_stage(job, "Seating the players …", game)
            seats = range(len(job.seats))
            players = [await self._make_player(job, seat, versions.get(seat), remotes) for seat in seats]
            await self._show_stage(job, "", game)
            outcome = await play(game, players, job.seed, MAX_TURNS)
        seconds, tokenizer = time.monotonic() - started, self._models.tokenizer if self._models is not None else None
        return CompletedGame.from_game(self.environment, job, game, players, outcome, seconds, tokenizer)

    def _agent_kind(self, agent: str) -> str:
        registered = self._context.state.agents.get(agent)
        return "checkpoint" if registered is None else registered.kind

    async def _make_player(
        self, job: PlayMatch, seat: int, version: PublishedVersion | None, remotes: RemoteAgents
    ) -> SeatPlayer:
        person = self._seated(job).get(seat)
        if person is not None:
            return HumanPlayer(person, self._words)
        agent = job.seats[seat]
        kind = self._agent_kind(agent)
        if kind == "bot":
            return BotPlayer(self.environment.bot(agent))
        if kind == "remote":
            return await remotes.make_player(agent, self._words, job.match_id)
        models = await self._load_models()
        prompter = make_prompter(models.tokenizer, self.environment, self._context.config.prompts)
        return models.make_player(agent, version, prompter, self._evaluation_game)


class HumanEpisodeRunner(HumanRunner):
    """Plays episodes of an environment."""

    def __init__(self, context: Context, spec: ArenaSpec, people: HumanSeats) -> None:
        super().__init__(context, people)
        self.environment = spec
        self._episode_runner: EpisodeRunner | None = None

    async def _play(self, job: PlayMatch, live: Collection[int], remotes: RemoteAgents) -> CompletedMatch:
        await self._show_stage(job, "Loading the model …")
        models = await self._load_models()

        def make_human_client(job: PlayMatch, seat: int) -> InferenceClient | None:
            person = self._seated(job).get(seat)
            return None if person is None else HumanClient(person)

        if self._episode_runner is None:
            self._episode_runner = EpisodeRunner(self._context, models, self.environment, make_human_client)
        await self._show_stage(job, "")
        return await self._episode_runner.play(job, live, remotes)
