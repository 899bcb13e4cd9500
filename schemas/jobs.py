"""Requests on the work queue: imperative, gone once acknowledged, not part of the history."""

from itertools import count
from typing import Annotated, Any, NamedTuple

import msgspec

from schemas.ids import derive_seed
from schemas.numbers import Count, Int64

SubjectToken = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,64}\Z")]
"""A token of a subject (``schemas.subjects.check_name``)."""

MatchId = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x20\x7f]{1,256}\Z")]
"""Match id without blanks and control characters, since message headers contain it."""


BENCHMARK_PURPOSE = "benchmark"
"""Purpose of the matches of requested benchmarks: they change neither ratings nor the records that samplers use."""

SESSION_PURPOSE = "session"
"""Purpose of matches that external agents play elsewhere against an opponent of the pool."""

EXTERNAL_PURPOSE = "external"
"""Purpose of imported results: matches that another system played, without any part of this league."""


class PlayMatch(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """A match between named agents, to be played and reported."""

    match_id: MatchId
    purpose: SubjectToken
    seats: list[str]
    """Agent per seat."""
    seed: Int64
    evaluation_id: str = ""
    """Evaluation or benchmark of the match."""
    settings: dict[str, Any] = {}
    """Game settings of this match in place of the league's."""
    group: str = ""
    """Training matches with which this one is compared (``rollout.group_size``); empty if there are none."""
    group_size: Count = 0
    """Matches of the group; 0 without one."""

    @property
    def key(self) -> str:
        """Deterministic identity of the request."""
        return f"play:{self.match_id}"


class EnvironmentSeats(NamedTuple):
    """An environment of a game that has several, and its number of seats."""

    name: str
    """Name of the environment; empty for a game that is one environment."""
    seats: int


class SeatCounts(msgspec.Struct, frozen=True):
    """The environments of a game. The seed of a match chooses among them, and so decides its number of seats."""

    environments: tuple[EnvironmentSeats, ...]
    """One environment or more."""

    @property
    def most(self) -> int:
        """Number of seats of the largest environment."""
        return max(environment.seats for environment in self.environments)

    @classmethod
    def constant(cls, seats: int) -> "SeatCounts":
        """Counts of a game that has as many seats in all matches."""
        return cls((EnvironmentSeats("", seats),))

    def choose(self, seed: int) -> EnvironmentSeats:
        """The environment of a match with this seed."""
        several = len(self.environments) > 1
        return self.environments[derive_seed(seed, "env") % len(self.environments) if several else 0]

    def fitting_seed(self, seed: int, seats: int) -> int | None:
        """The first of ``seed`` and seeds derived from it whose match has this number of seats; None if none has."""
        if all(environment.seats != seats for environment in self.environments):
            return None
        seeds = (derive_seed(seed, "seats", number) if number else seed for number in count())
        return next(each for each in seeds if self.choose(each).seats == seats)
