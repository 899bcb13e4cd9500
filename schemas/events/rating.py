"""Events of ratings and evaluations, and the settings of the sequential test."""

from math import isfinite
from typing import Any, ClassVar

import msgspec

from schemas.errors import ConfigError
from schemas.events.base import Event
from schemas.numbers import Count, Int64


class SprtConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hypotheses and error rates of the test (``league.evaluation.promotion``)."""

    elo0: float = 0.0
    """H0: the candidate is no more than this above the incumbent."""
    elo1: float = 20.0
    """H1: it is at least this above."""
    alpha: float = 0.05
    """Probability of promoting under H0."""
    beta: float = 0.05
    """Probability of keeping under H1."""
    least_pairs: Int64 = 8
    """Before these nothing is decided: the variance is not known yet."""
    most_pairs: Int64 = 0
    """After these the incumbent stays; 0 for no limit."""

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
    """Further state of the system for the agent after the match: first the deviation, then its other numbers."""


class RatingUpdated(Event, frozen=True, tag=True):
    """A match moved ratings under one rating system."""

    KEY: ClassVar[str] = "rated:{e.system}:{e.match_id}"
    """One update per match, game and system."""
    match_id: str
    match_sequence: Count
    """Place of the match in the history; ratings are folded in that order."""
    game: str
    system: str
    changes: list[RatingChange]


class AgentRating(msgspec.Struct, frozen=True):
    """Rating of one agent."""

    agent: str
    rating: float
    games: Count
    """Rated matches."""
    rest: list[float] = []
    """As ``RatingChange.rest``."""


class RatingsCorrected(Event, frozen=True, tag=True):
    """Ratings of one game were recomputed without voided matches; these standings replace the old."""

    KEY: ClassVar[str] = "corrected:{e.system}:{e.game}:{e.through}"
    """One correction per game, system and newest void."""
    game: str
    system: str
    through: Count
    """Sequence of the newest ``MatchVoided`` taken into account. The standings hold all matches before it; later ones
    are rated from here on."""
    waited: list[str]
    """Matches that waited for this correction and are in its standings; they have no ``RatingUpdated``."""
    ratings: list[AgentRating]
    """Every agent that was ever rated, in the order of first rated matches."""


class EvaluationRequested(Event, frozen=True, tag=True):
    """An agent is to be measured; its matches are jobs on the work queue."""

    KEY: ClassVar[str] = "evaluation:{e.evaluation_id}"
    """One request per evaluation."""
    evaluation_id: str
    agent: str
    suite: str
    """``gatekeepers`` (bots and checkpoints in the other seats), ``benchmark`` (one opponent in all of them),
    ``newest`` (matches of the newest version throughout training) or ``promotion`` (pairs of matches against the
    incumbent, seats exchanged)."""
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
    """Matches played to their end."""
    failed: Count
    wins: Count
    """Matches in which the agent was strictly first."""
    mean_score: float
    mean_rank: float
    decided: str = ""
    """Why it ended before all of its matches were played; empty otherwise."""


class BenchmarkRequested(Event, frozen=True, tag=True):
    """An agent is to be measured on request: it has one seat of each match, the opponent all others.

    Its matches have the purpose ``benchmark`` and this event's id as ``evaluation_id``.
    """

    KEY: ClassVar[str] = "benchmark:{e.benchmark_id}"
    """One request per benchmark."""
    benchmark_id: str
    """Unique in the league; requests for the rest of the same benchmark differ in the number at its end."""
    agent: str
    opponent: str
    """An agent, or a bot of the game that need not be one."""
    seed: Int64
    """The seeds of the matches follow from it, not from the agents: benchmarks of one seed meet the same luck."""
    settings: dict[str, Any]
    """Game settings of these matches that the league's do not decide: in Diplomacy ``max_year``."""
    matches: list[str]
    """Ids of the matches to play."""
    seats: list[Count]
    """The agent's seat in each match."""
    seeds: list[Int64]
    """Seed of each match: one for a round, in which the agent goes through all seats."""


class PromotionDecided(Event, frozen=True, tag=True):
    """Verdict of a sequential test between a candidate and the incumbent, with the scores that it follows from."""

    KEY: ClassVar[str] = "decided:{e.evaluation_id}"
    """One verdict per evaluation."""
    evaluation_id: str
    candidate: str
    incumbent: str
    test: SprtConfig
    pairs: list[list[str]]
    """Ids of the two matches of each pair, in the order in which the test took them."""
    scores: list[float]
    """The candidate's score in each pair, 0 to 1."""
    llr: float
    """Log-likelihood ratio after the last pair."""
    lower: float
    upper: float
    """The bounds between which the test goes on."""
    verdict: str
    """``promote`` or ``keep``."""
