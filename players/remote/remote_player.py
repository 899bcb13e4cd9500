"""Remote agents: models behind a server with OpenAI's chat interface, in the seats of fixed opponents.

At its turn a remote agent gets the rules and the position in plain language and answers in kind; nothing is remembered
between turns. For a reply that makes no sense the game's default is played, and counted. A server that gives no reply
fails the match, after all tries. Usage is recorded from time to time and when a match ends, failed or not.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from math import inf
from typing import Any, TypeVar

import msgspec

from arena.clients import InferenceClient
from arena.games.base import Action, Game
from arena.games.texts import Words
from arena.match import SeatPlayer
from players.remote.model import RemoteModel, RemoteUsage, resolve_api_key
from schemas.config import AgentConfig, LeagueConfig, RemoteAgentConfig
from schemas.episodes import Message, ModelResponse
from schemas.errors import RemoteError, UsageError, format_choices
from schemas.metrics import REMOTE_METRICS


class RemoteUsageMeter:
    """Meters the requests, tokens and cost of a seat: base of a seat's player, or of its client.

    ``counted`` names further totals in ``_counts``.
    """

    def __init__(self, *counted: str) -> None:
        self._counts = dict.fromkeys(("seconds", *counted), 0.0)
        self._total = RemoteUsage()
        self._unreported = RemoteUsage()

    @asynccontextmanager
    async def _measure(self) -> AsyncIterator[RemoteUsage]:
        """Totals for one request, added to the seat's also when it fails."""
        tally = RemoteUsage()
        try:
            yield tally
        finally:
            self._total.add(tally)
            self._unreported.add(tally)

    def drain_usage(self) -> RemoteUsage:
        """The usage since the last call."""
        usage, self._unreported = self._unreported, RemoteUsage()
        return usage

    def metrics(self) -> dict[str, float]:
        """Totals, as ``SeatResult.metrics`` has them.

        ``remote_requests`` sent, ``remote_tokens`` as the server counts them, ``remote_prompt_tokens`` and
        ``remote_completion_tokens`` as far as it breaks them down, ``remote_cost`` and ``remote_uncounted`` as in
        ``RemoteAsked``, ``remote_seconds`` of waiting, and the further counts.
        """
        counted = {name: round(count, 3) for name, count in self._counts.items()}
        totals = msgspec.structs.asdict(self._total) | counted
        return {REMOTE_METRICS + name: float(value) for name, value in totals.items()}


class RemoteAgentClient(RemoteUsageMeter, InferenceClient):
    """A remote agent as the client of one seat of one match, by its own temperature and limit, with texts only."""

    def __init__(self, model: RemoteModel) -> None:
        super().__init__()
        self._model = model
        self.failure: RemoteError | None = None
        """Its last failure, if any."""

    async def complete(self, messages: Sequence[Message], *_: Any, **__: Any) -> ModelResponse:
        """Request a reply; ``RemoteError`` if the server gave none, or the budget is spent."""
        async with self._measure() as tally:
            try:
                reply = await self._model.chat(messages, tally)
            except RemoteError as error:
                self.failure = error
                raise
        self._counts["seconds"] += reply.seconds
        return ModelResponse(reply.text, finish_reason=reply.finish_reason)


_OVER_BUDGET_DELAY_S = 0.5
"""Before a match without budget fails: the matchmaker makes the next one at once, and may not know of it yet."""
_SeatT = TypeVar("_SeatT", bound=RemoteUsageMeter)


class RemotePlayer(RemoteUsageMeter, SeatPlayer):
    """A remote agent in one seat of one match.

    Its metrics add ``remote_choices`` that the agent had to make and ``remote_illegal`` that the game's default made.
    """

    def __init__(self, model: RemoteModel, words: Words) -> None:
        super().__init__("choices", "illegal")
        self._model = model
        self._words = words

    async def act(self, game: Game, seat: int, seed: int) -> Action:
        """The model's action, or the game's default where its reply has none; ``RemoteError`` without a reply."""
        async with self._measure() as tally:
            reply = await self._model.ask(self._words.rules(), self._words.question(game, seat), tally)
        understood = self._words.understand(game, seat, reply.text, random.Random(seed))
        self._counts["seconds"] += reply.seconds
        self._counts["choices"] += understood.choices
        self._counts["illegal"] += understood.illegal
        return understood.action


class RemoteAgents:
    """The remote agents of a league, for one process; each is connected when it first plays.

    ``left`` returns what is left of an agent's budget according to the history. ``make_player`` and ``make_client``
    raise ``UsageError`` if the configuration does not say where the agent is, ``ConfigError`` if the variable that
    should hold its key does not, and ``RemoteError`` if its budget is spent.
    """

    def __init__(self, agents: Mapping[str, AgentConfig], left: Callable[[str], float] = lambda _: inf) -> None:
        self._configs: dict[str, RemoteAgentConfig] = {}
        self._budget_left = left
        self.add_agents(agents)
        self._models: dict[str, RemoteModel] = {}
        self._by_match: dict[str, list[tuple[str, RemoteUsageMeter]]] = {}

    def add_agents(self, agents: Mapping[str, AgentConfig]) -> None:
        """Add the agents of the current configuration; known ones stay as they are."""
        for name, agent in agents.items():
            if agent.remote is not None:
                self._configs.setdefault(name, agent.remote)

    async def make_player(self, agent: str, words: Words, match_id: str) -> RemotePlayer:
        """The agent, for one seat of one match."""
        return self._register(match_id, agent, RemotePlayer(await self._model(agent), words))

    async def make_client(self, agent: str, match_id: str) -> RemoteAgentClient:
        """The agent, for the roles of one seat of a match that is an episode."""
        return self._register(match_id, agent, RemoteAgentClient(await self._model(agent)))

    def _register(self, match_id: str, agent: str, seated: _SeatT) -> _SeatT:
        self._by_match.setdefault(match_id, []).append((agent, seated))
        return seated

    async def _model(self, agent: str) -> RemoteModel:
        if agent not in self._configs:
            raise UsageError(f"agents.{agent}: no remote agent of that name; expected {format_choices(self._configs)}")
        if agent not in self._models:
            self._models[agent] = RemoteModel(agent, self._configs[agent], left=partial(self._budget_left, agent))
        model = self._models[agent]
        if model.is_over_budget:
            await asyncio.sleep(_OVER_BUDGET_DELAY_S)
            model.check_budget()
        return model

    @property
    def active_matches(self) -> list[str]:
        """Ids of the matches under way that they play in."""
        return list(self._by_match)

    def drain_usage(self, match_id: str) -> dict[str, RemoteUsage]:
        """Usage of a match since the last call, by agent; agents without requests are left out."""
        tallies: dict[str, RemoteUsage] = {}
        for agent, player in self._by_match.get(match_id, []):
            tallies.setdefault(agent, RemoteUsage()).add(player.drain_usage())
        return {agent: tally for agent, tally in tallies.items() if tally.requests}

    def finish_match(self, match_id: str) -> dict[str, RemoteUsage]:
        """Forget a match; returns the rest of its usage, by agent."""
        usage = self.drain_usage(match_id)
        self._by_match.pop(match_id, None)
        return usage

    def mark_recorded(self, agent: str, cost: float) -> None:
        """Mark a cost as contained in the history, and with it in the rest of an agent's budget."""
        self._models[agent].mark_recorded(cost)

    async def close(self) -> None:
        """Close all connections."""
        for model in self._models.values():
            await model.close()


def remote_agents_in_training(config: LeagueConfig) -> list[str]:
    """Names of remote agents that samplers may draw."""
    return [name for name, agent in config.agents.items() if agent.remote is not None and agent.remote.training]


def remote_agents_in_evaluation(config: LeagueConfig) -> list[str]:
    """Names of remote agents that evaluations use as opponents."""
    named = {*config.evaluation.gatekeepers, *config.evaluation.benchmark_opponents}
    if config.stop.criterion is not None:
        named.add(config.stop.criterion.opponent)
    return [name for name, agent in config.agents.items() if agent.remote is not None and name in named]


def check_api_keys(config: LeagueConfig, agents: Collection[str]) -> None:
    """Check before the first matches that the keys of agents are set; ``ConfigError`` names the one that is not."""
    for name in agents:
        remote = config.agents[name].remote
        if remote is not None:
            resolve_api_key(name, remote)
