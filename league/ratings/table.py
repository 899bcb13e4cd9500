"""Ratings of one game under one system, including those of agents that were never rated."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

import msgspec

from league.ratings.base import RatingSystem, State, inherit_state
from schemas.events import AgentRating, AgentRegistered, CheckpointAdded, PolicyReset, RatingChange
from schemas.ids import agent_name, split_agent

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
        """Record a reset of a policy; returns False for a duplicate."""
        known = self.resets.setdefault(event.policy, [])
        if event.version in known:
            return False
        insort(known, event.version)
        return True

    def training_start(self, policy: str, version: int) -> int:
        """The first version of the training that made ``version``: 0, or the first after a reset."""
        known = self.resets.get(policy, [])
        place = bisect_left(known, version)
        return known[place - 1] + 1 if place else 0


class RatingTable:
    """Current states of agents and their numbers of rated matches.

    Later changes to ``starts`` apply; ``system`` may be replaced by one of the same name with other settings.
    """

    def __init__(self, starts: StartRatings, system: RatingSystem) -> None:
        self._starts = starts
        self.system = system
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
        """Returns an agent's state.

        Without rated matches it follows from, in this order: the agent's registered rating; for a version of a policy,
        the current state of the nearest lower rated version since the policy's last reset, as the system has it
        inherited; the base agent's state.
        """
        rated = self.states.get(agent)
        if rated is not None:
            # Another version of the system may have kept other numbers beside the rating.
            return rated if len(rated) == len(self.system.inheritance) else self.system.start(rated[0])
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

    def next_version(self, policy: str, version: int) -> int | None:
        """The first rated version of a policy after this one."""
        versions = self._versions.get(policy, [])
        place = bisect_right(versions, version)
        return versions[place] if place < len(versions) else None

    def _remember_version(self, agent: str) -> None:
        named = split_agent(agent)
        if named is not None:
            insort(self._versions.setdefault(named[0], []), named[1])

    def _inherit_state(self, agent: str) -> State:
        named = split_agent(agent)
        if named is not None:
            policy, version = named
            versions = self._versions.get(policy, [])
            place = bisect_left(versions, version)
            if place and versions[place - 1] >= self._starts.training_start(policy, version):
                return inherit_state(self.system, self.state(agent_name(policy, versions[place - 1])))
        base = self._starts.base
        if base is not None and base in self.states:
            return inherit_state(self.system, self.state(base))
        return self.system.start(DEFAULT_RATING if base is None else self._starts.ratings[base])
