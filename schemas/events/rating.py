"""Events of ratings and evaluations, and the settings of the sequential test."""

from math import isfinite
from typing import Any, ClassVar

import msgspec

from schemas.errors import ConfigError
from schemas.events.base import MAX_EVENT_BYTES, Event
from schemas.numbers import Count, Int64


class SprtConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hypotheses and error rates of the test (``league.evaluation.promotion``)."""

    elo0: float = 0.0
    """Maximum Elo lead of the candidate under H0."""
    elo1: float = 20.0
    """Minimum Elo lead of the candidate under H1."""
    alpha: float = 0.05
    """Probability of promoting under H0."""
    beta: float = 0.05
    """Probability of keeping under H1."""
    least_pairs: Int64 = 8
    """Minimum pairs before a decision, since the variance is unknown until then."""
    most_pairs: Int64 = 0
    """Pairs after which the incumbent stays; 0 for no limit."""

    def __post_init__(self) -> None:
        if not (isfinite(self.elo0) and isfinite(self.elo1) and self.elo0 < self.elo1):
            raise ConfigError(
                f"sequential test: elo0 is {self.elo0} and elo1 {self.elo1}; expected finite numbers, elo0 below elo1"
            )
        for name, value in {"alpha": self.alpha, "beta": self.beta}.items():
            if not 0 < value < 0.5:
                raise ConfigError(f"sequential test: {name} is {value}; expected a probability above 0 and below 0.5")
        if self.least_pairs < 2 or self.most_pairs < 0 or 0 < self.most_pairs < self.least_pairs:
            raise ConfigError(
                f"sequential test: between {self.least_pairs} and {self.most_pairs} pairs; expected 2 or more, "
                "the first no larger (most_pairs 0: no limit)"
            )


class RatingChange(msgspec.Struct, frozen=True):
    """One agent's rating before and after a match."""

    agent: str
    before: float
    after: float
    rest: list[float] = []
    """Other numbers of the rating system for the agent after the match; the deviation first."""


class RatingUpdated(Event, frozen=True, tag=True):
    """A match moved ratings under one rating system."""

    KEY: ClassVar[str] = "rated:{e.system}:{e.match_id}"
    """One update per match, game and system."""
    match_id: str
    match_sequence: Count
    """Sequence of the match; ratings are folded in that order."""
    game: str
    system: str
    changes: list[RatingChange]


class AgentRating(msgspec.Struct, frozen=True):
    """Rating of one agent."""

    agent: str
    rating: float
    games: Count
    """Number of rated matches."""
    rest: list[float] = []
    """Other numbers of the rating system, as in ``RatingChange``."""


class RatingsCorrected(Event, frozen=True, tag=True):
    """Ratings of one game were recomputed without voided matches, and replace the old ones."""

    MAX_BYTES: ClassVar[int] = MAX_EVENT_BYTES
    KEY: ClassVar[str] = "corrected:{e.system}:{e.game}:{e.through}"
    """One correction per game, system and newest void."""
    game: str
    system: str
    through: Count
    """Sequence of the newest ``MatchVoided`` taken into account; later matches are rated on top of it."""
    waited: list[str]
    """Matches rated by this correction itself; they have no ``RatingUpdated``."""
    ratings: list[AgentRating]
    """Rating of every agent ever rated, in the order of first rated matches."""


class EvaluationRequested(Event, frozen=True, tag=True):
    """An evaluation of an agent was requested; its matches are jobs on the work queue."""

    MAX_BYTES: ClassVar[int] = MAX_EVENT_BYTES
    KEY: ClassVar[str] = "evaluation:{e.evaluation_id}"
    """One request per evaluation."""
    evaluation_id: str
    agent: str
    suite: str
    """Suite: ``gatekeepers`` (bots and checkpoints in the other seats), ``benchmark`` (one opponent in all of them),
    ``newest`` (the newest version throughout training) or ``promotion`` (pairs of matches against the incumbent, seats
    exchanged)."""
    opponents: list[str]
    matches: list[str]
    indices: list[Count] = []
    """Index of each match in the sequence of rounds or pairs of its suite; empty for 0, 1, 2 …"""


class EvaluationFinished(Event, frozen=True, tag=True):
    """All matches of an evaluation have ended."""

    KEY: ClassVar[str] = "evaluated:{e.evaluation_id}"
    """One result per evaluation."""
    evaluation_id: str
    agent: str
    suite: str
    opponents: list[str]
    games: Count
    """Finished matches."""
    failed: Count
    wins: Count
    """Matches won outright."""
    mean_score: float
    mean_rank: float
    decided: str = ""
    """Reason for ending before all matches were played; else empty."""


class BenchmarkRequested(Event, frozen=True, tag=True):
    """A benchmark was requested: the agent has one seat of each match, the opponent all others.

    Its matches have the purpose ``benchmark`` and this event's id as ``evaluation_id``.
    """

    MAX_BYTES: ClassVar[int] = MAX_EVENT_BYTES
    KEY: ClassVar[str] = "benchmark:{e.benchmark_id}"
    """One request per benchmark."""
    benchmark_id: str
    """Unique id; requests for the rest of a benchmark differ in the number at the end."""
    agent: str
    opponent: str
    """Opponent in all other seats: an agent, or a bot of the game."""
    seed: Int64
    """Seed of the matches, independent of the agents: benchmarks of one seed play the same games."""
    settings: dict[str, Any]
    """Game settings in place of the league's: in Diplomacy ``max_year``."""
    matches: list[str]
    """Ids of the matches to play."""
    seats: list[Count]
    """Seat of the agent in each match."""
    seeds: list[Int64]
    """Seed of each match, constant within a round of all seats."""


class PromotionDecided(Event, frozen=True, tag=True):
    """A sequential test between a candidate and the incumbent ended with this verdict."""

    MAX_BYTES: ClassVar[int] = MAX_EVENT_BYTES
    KEY: ClassVar[str] = "decided:{e.evaluation_id}"
    """One verdict per evaluation."""
    evaluation_id: str
    candidate: str
    incumbent: str
    test: SprtConfig
    pairs: list[list[str]]
    """Ids of the two matches of each pair, in the order of the test."""
    scores: list[float]
    """Score of the candidate in each pair, 0 to 1."""
    llr: float
    """Log-likelihood ratio after the last pair."""
    lower: float
    upper: float
    """Bounds of the log-likelihood ratio within which the test continues."""
    verdict: str
    """``promote`` or ``keep``."""
