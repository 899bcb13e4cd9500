"""The protocol and registry of rating systems, and tables of ratings.

A system represents an agent by a *state*: a few numbers, of which the first is the rating and the second, if any, the
rating's standard deviation. All are in rating points of Elo's scale, so that a difference of 100 means about the same
to a sampler under any system.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from schemas.config import Plugin
from schemas.events import AgentRating, AgentRegistered, CheckpointAdded, PolicyReset, RatingChange
from schemas.ids import agent_name, split_agent
from schemas.plugins import Registry

State = tuple[float, ...]
"""An agent's rating, deviation, and further numbers of the system."""


class Side(NamedTuple):
    """The seats of a match that share its outcome: a team's, or a single one."""

    agents: tuple[str, ...]
    """Agent in each seat. An agent may have several seats, and be on several sides."""
    score: float


class RatingSystem(Protocol):
    """A rating system: its settings, and the effect of a match."""

    name: str

    def start(self, rating: float) -> State:
        """The state of a new agent with this rating, which is its first number."""

    def inherit(self, state: State) -> State:
        """The state of an unrated version whose predecessor has this state."""

    def update(self, ratings: Mapping[str, State], sides: Sequence[Side]) -> dict[str, State]:
        """Rate one match: the states of its agents after it.

        ``ratings`` has the agents' states before the match. ``sides`` are two at least, with two different agents at
        least, and finite scores, of which more is better and equal is a draw. Equal arguments give equal bits, so sums
        are formed in the order of the sides or ranks; the order of a side's seats has no effect.

        An agent on several sides plays each of them against the other agents' seats; comparisons between its own seats
        are left out. An agent takes the sum of its seats' changes.
        """


SYSTEMS: Registry[RatingSystem] = Registry("ratings.system", "league.ratings")


def make_rating_system(plugin: Plugin) -> RatingSystem:
    """Build the configured rating system; ConfigError for an unknown name or a bad setting."""
    return SYSTEMS.build(plugin)


class UnknownSystem:
    """Stand-in for a system unknown to this version: its ratings can be read, not updated."""

    def __init__(self, name: str) -> None:
        self.name = name

    def start(self, rating: float) -> State:
        """The rating alone."""
        return (rating,)

    def inherit(self, state: State) -> State:
        """The same state."""
        return state

    def update(self, ratings: Mapping[str, State], sides: Sequence[Side]) -> dict[str, State]:
        """Raise ``NotImplementedError``."""
        raise NotImplementedError(f"rating system {self.name!r}: unknown to this version")


DEFAULT_RATING = 1000.0
"""Rating of unregistered agents in a league without a base agent; the specification's rating of the base model."""


class StartRatings(msgspec.Struct):
    """Starting ratings of registered agents; shared by the tables of all games."""

    ratings: dict[str, float] = {}
    base: str | None = None
    resets: dict[str, list[int]] = {}
    """Versions after which each policy was reset, ascending."""

    def register(self, event: AgentRegistered | CheckpointAdded) -> None:
        """Record an agent's starting rating, if it has one; the first registration of a name holds."""
        if event.rating is None or event.agent in self.ratings:
            return
        self.ratings[event.agent] = event.rating
        if isinstance(event, AgentRegistered) and event.kind == "base" and self.base is None:
            self.base = event.agent

    def record_reset(self, event: PolicyReset) -> bool:
        """Record a reset of a policy; False for a duplicate."""
        versions = self.resets.setdefault(event.policy, [])
        if event.version in versions:
            return False
        insort(versions, event.version)
        return True

    def training_start(self, policy: str, version: int) -> int:
        """The first version of the training that made ``version``: 0, or the first after a reset."""
        versions = self.resets.get(policy, [])
        earlier = bisect_left(versions, version)
        return versions[earlier - 1] + 1 if earlier else 0


class RatingTable:
    """Current states of agents and their numbers of rated matches.

    Later changes to ``starts`` apply; ``system`` may be replaced by one of the same name with other settings.
    """

    def __init__(self, starts: StartRatings, system: RatingSystem) -> None:
        self._starts = starts
        self.system = system
        self._width = len(system.start(DEFAULT_RATING))
        self.states: dict[str, State] = {}
        self.games: dict[str, int] = {}
        self._versions: dict[str, list[int]] = {}

    def rating(self, agent: str) -> float:
        """An agent's rating: the first number of its state."""
        return self.state(agent)[0]

    def deviation(self, agent: str) -> float:
        """Standard deviation of the rating; 0 for a system without one."""
        state = self.state(agent)
        return state[1] if len(state) > 1 else 0.0

    def state(self, agent: str) -> State:
        """An agent's state.

        Without rated matches it follows from, in this order: the agent's registered rating; for a version of a policy,
        the inherited state of the nearest lower rated version since the policy's last reset; the base agent's state.
        """
        rated = self.states.get(agent)
        if rated is not None:
            # A recorded state of another length, which no rater of this version writes, must not stop the fold.
            return rated if len(rated) == self._width else self.system.start(rated[0])
        start = self._starts.ratings.get(agent)
        return self.system.start(start) if start is not None else self._inherit_state(agent)

    def update(self, changes: list[RatingChange]) -> None:
        """Set the states that resulted from one match."""
        for change in changes:
            if change.agent not in self.states:
                self._remember_version(change.agent)
            self.states[change.agent] = (change.after, *change.rest)
            self.games[change.agent] = self.games.get(change.agent, 0) + 1

    def rated_agents(self) -> list[AgentRating]:
        """All agents ever rated, in the order of their first rated match."""
        return [AgentRating(agent, state[0], self.games[agent], [*state[1:]]) for agent, state in self.states.items()]

    def replace(self, standings: Iterable[AgentRating]) -> None:
        """Replace all ratings by these."""
        self.states, self.games, self._versions = {}, {}, {}
        for rated in standings:
            self._remember_version(rated.agent)
            self.states[rated.agent] = (rated.rating, *rated.rest)
            self.games[rated.agent] = rated.games

    def newest_versions(self) -> dict[str, int]:
        """Newest rated version of each policy."""
        return {policy: versions[-1] for policy, versions in self._versions.items()}

    def _remember_version(self, agent: str) -> None:
        named = split_agent(agent)
        if named is not None:
            insort(self._versions.setdefault(named[0], []), named[1])

    def _inherit_state(self, agent: str) -> State:
        named = split_agent(agent)
        if named is not None:
            policy, version = named
            versions = self._versions.get(policy, [])
            earlier = bisect_left(versions, version)
            if earlier and versions[earlier - 1] >= self._starts.training_start(policy, version):
                return self.system.inherit(self.state(agent_name(policy, versions[earlier - 1])))
        base = self._starts.base
        if base is not None and base in self.states:
            return self.system.inherit(self.state(base))
        return self.system.start(DEFAULT_RATING if base is None else self._starts.ratings[base])
