"""The protocol and registry of rating systems, tables of ratings, and shared parts of systems with Gaussian skills.

A system represents an agent by a *state*: a few numbers, of which the first is the rating and the second, if any, the
rating's standard deviation. All are in rating points of Elo's scale, so that a difference of 100 means about the same
to a sampler under any system.

The effect of a match on states is one plain function, ``RatingSystem.update``: called directly for a single match, and
compiled for millions of them (``arrays``), so that both give the same bits.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from schemas.config import Plugin
from schemas.events import AgentRating, AgentRegistered, CheckpointAdded, MatchFinished, PolicyReset, RatingChange
from schemas.ids import agent_name, split_agent
from schemas.plugins import Registry

State = tuple[float, ...]
"""An agent's rating, deviation, and further numbers of the system."""

Z = Any
"""A number, or a flat sequence of numbers, in functions that numba compiles."""


class Inheritance(msgspec.Struct, frozen=True):
    """Inheritance of one number of a predecessor's state by an unrated version: ``min(x * factor, most)``."""

    factor: float = 1.0
    most: float = float("inf")


class RatingSystem(Protocol):
    """A rating system: its settings as numbers, and the effect of a match."""

    name: str
    work_per_seat: int
    """Floats of scratch space per seat that ``update`` needs, at least one."""

    def start(self, rating: float) -> State:
        """Returns the state of a new agent with this rating, which is its first number."""

    @property
    def inheritance(self) -> tuple[Inheritance, ...]:
        """Inheritance of each number of a state from the preceding version of the policy."""

    @property
    def constants(self) -> tuple[float, ...]:
        """The settings as numbers for ``update``."""

    @property
    def update(self) -> Callable[..., None]:
        """The effect of one match: a plain module-level function that numba can compile.

        It is called with, in this order (N seats, A different agents in the order of their first seats, W numbers of a
        state; all sequences flat, lists of floats or arrays of float64, integers for ``agent_N`` and ``games_A``):

        - ``seats``, ``agents``: N and A; sequences may be longer than that
        - ``agent_N``: the agent in each seat, 0 to A - 1
        - ``score_N``: the seats' scores, finite; more is better, equal is a draw
        - ``before``: the agents' states, ``before[agent * W + number]``
        - ``after``: a copy of ``before``; to be changed in place, to finite numbers
        - ``games_A``: rated matches of each agent before this one
        - ``constants``
        - ``work``: N * ``work_per_seat`` floats of scratch space with undefined content

        It may use ``math``'s functions, module-level numbers, and call plain functions of this package that keep to the
        same rules; no NumPy, no allocation, no Python objects but numbers. Sums are formed in the order of the seats or
        ranks, so that equal arguments give equal bits. A constant base of a power belongs to ``constants``: compilers
        replace ``10 ** x`` by another function with other bits.

        An agent in several seats plays each of them against the other agents' seats; comparisons between its own seats
        are left out, and it takes the sum of its seats' changes.
        """


SYSTEMS: Registry[RatingSystem] = Registry("ratings.system", "league.ratings")


def make_rating_system(plugin: Plugin) -> RatingSystem:
    """Builds the configured rating system; ConfigError for an unknown name or a bad setting."""
    return SYSTEMS.build(plugin)


def rate_match(
    system: RatingSystem, match: MatchFinished, states: Mapping[str, State], games: Mapping[str, int]
) -> list[RatingChange]:
    """One match's changes of ratings, one per different agent, in the order of their first seats.

    The match has at least two different agents, and all its scores are finite. ``states`` and ``games`` (numbers of
    rated matches) are the agents' before the match. Equal arguments give equal bits.
    """
    seats = match.seats
    places = {agent: place for place, agent in enumerate(dict.fromkeys(seat.agent for seat in seats))}
    before = [number for agent in places for number in states[agent]]
    after = before.copy()
    system.update(
        len(seats),
        len(places),
        [places[seat.agent] for seat in seats],
        [seat.score for seat in seats],
        before,
        after,
        [games.get(agent, 0) for agent in places],
        system.constants,
        [0.0] * (len(seats) * system.work_per_seat),
    )
    width = len(before) // len(places)
    updated = {agent: after[place * width : (place + 1) * width] for agent, place in places.items()}
    return [RatingChange(agent, states[agent][0], state[0], state[1:]) for agent, state in updated.items()]


def inherit_state(system: RatingSystem, state: Sequence[float]) -> State:
    """Returns the state of a version at its first rated match, from its predecessor's."""
    return tuple(min(x * rule.factor, rule.most) for x, rule in zip(state, system.inheritance, strict=True))


class UnknownSystem:
    """Stand-in for a system unknown to this version: its ratings can be read, not updated."""

    work_per_seat = 1
    inheritance = (Inheritance(),)
    constants: tuple[float, ...] = ()
    update: Any = None

    def __init__(self, name: str) -> None:
        self.name = name

    def start(self, rating: float) -> State:
        """The rating alone."""
        return (rating,)


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


_MOST_APART = 1e7
"""Largest distance of two ratings, in units of beta."""
_LEAST_DEVIATION = 1e-6
_MOST_DEVIATION = 1e6


def has_other_seat(seat: Z, seats: Z, agents: Z, agent_N: Z) -> Z:
    """Whether the agent of a seat has another seat."""
    if agents == seats:
        return False
    count = 0
    for other in range(seats):
        if agent_N[other] == agent_N[seat]:
            count += 1
    return count > 1


def scaled_distance(rating: Z, reference: Z, constants: Z) -> Z:
    """Distance of a rating from a reference, in units of beta."""
    x = (rating - reference) / constants[0]
    x = x if x < _MOST_APART else _MOST_APART
    return x if x > -_MOST_APART else -_MOST_APART


def performance_skill_variance(deviation: Z, constants: Z) -> Z:
    """Variance of an agent's skill in a match, in units of beta squared: its deviation's plus tau's."""
    x = deviation / constants[0]
    x = x if x < _MOST_DEVIATION else _MOST_DEVIATION
    x = x if x > _LEAST_DEVIATION else _LEAST_DEVIATION
    return x * x + constants[1] * constants[1]
