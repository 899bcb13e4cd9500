"""Evaluations in the history: requests, matches played, results."""

from collections.abc import Sequence
from itertools import chain
from math import isfinite

import msgspec

from schemas.events import EvaluationFinished, EvaluationRequested, MatchFinished, PromotionDecided
from schemas.events.rating import SprtConfig

GATEKEEPERS, BENCHMARK, NEWEST, PROMOTION = "gatekeepers", "benchmark", "newest", "promotion"


class EvaluationVerdict(msgspec.Struct, frozen=True):
    """Ratings at the moment when the last match of an evaluation was rated."""

    rating: float
    best_other: float | None
    """Best rating of all other checkpoints ever rated; None without any."""
    baselines: dict[str, float]
    rated: bool = True
    """Whether the agent was ever rated; an agent without opponents is not, and ``rating`` is then another agent's."""

    @property
    def is_high_score(self) -> bool:
        """Whether the rating is above every other checkpoint's."""
        return self.rated and (self.best_other is None or self.rating > self.best_other)

    @property
    def below(self) -> dict[str, float]:
        """Baselines with a higher rating."""
        return {name: rating for name, rating in sorted(self.baselines.items()) if self.rated and rating > self.rating}


class Evaluation(msgspec.Struct):
    """One evaluation, running or finished."""

    requested: EvaluationRequested
    waiting: set[str]
    """Matches that have not ended."""
    unrated: dict[str, str]
    """The official system of matches that ended, count for ratings, and have not been rated yet."""
    games: int = 0
    failed: int = 0
    wins: int = 0
    """Matches in which the agent was strictly first."""
    score_sum: float = 0.0
    rank_sum: float = 0.0
    finished: EvaluationFinished | None = None
    verdict: EvaluationVerdict | None = None
    """Comparison with the other ratings; None until the evaluation is finished and all its matches are rated."""
    test: SprtConfig | None = None
    """Terms of a promotion test as of its request; later configurations do not change them."""
    shares: dict[str, float] = {}
    """Candidate's share of the points in each finished match of a promotion test."""
    decision: PromotionDecided | None = None
    dropped: int = 0
    """Matches made unnecessary by the decision."""

    @property
    def agent(self) -> str:
        """The evaluated agent."""
        return self.requested.agent

    @property
    def suite(self) -> str:
        """``gatekeepers``, ``benchmark``, ``newest`` or ``promotion``."""
        return self.requested.suite

    @property
    def is_complete(self) -> bool:
        """Whether nothing is pending: all matches have ended, and a test has its verdict."""
        return not self.waiting and (self.test is None or self.decision is not None)

    def to_snapshot(self) -> "Evaluation":
        """The same, with a fixed order of the waiting matches: equal states have equal bytes in every process."""
        return msgspec.structs.replace(self, waiting=sorted(self.waiting))

    def mean_score(self) -> float:
        """Mean final score of the agent's seats; 0 without games."""
        return self.score_sum / self.games if self.games else 0.0

    def mean_rank(self) -> float:
        """Mean rank of the agent's seats; 0 without games."""
        return self.rank_sum / self.games if self.games else 0.0

    def count(self, match: MatchFinished, matches: int = 1) -> None:
        """Count a finished match, or take one back with -1; an agent in several seats counts with their mean."""
        seats = [seat for seat in match.seats if seat.agent == self.agent]
        self.waiting.discard(match.match_id)
        self.games += matches
        self.wins += matches * any(match.has_won(seat) for seat in seats)
        if seats:
            self.score_sum += matches * sum(seat.score for seat in seats) / len(seats)
            self.rank_sum += matches * sum(seat.rank for seat in seats) / len(seats)
        if self.test is not None:
            self.shares.pop(match.match_id, None)
            share = share_of(match, self.agent, self.requested.opponents) if matches > 0 else None
            self.shares |= {} if share is None else {match.match_id: share}


def share_of(match: MatchFinished, candidate: str, opponents: list[str]) -> float | None:
    """The candidate's share of the points of a match against the incumbent; None when the scores cannot be compared."""
    own = [seat for seat in match.seats if seat.agent == candidate]
    others = [seat for seat in match.seats if seat.agent in opponents]
    return match_share([(mine.score, other.score) for mine in own for other in others if mine.is_opponent(other)])


def match_share(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The candidate's share of the points of one match, from the final scores of its seats and of the incumbent's.

    The mean over all pairs of a seat of each on different sides: 1 for a higher score, ½ for an equal one, 0 for a
    lower one. Elo is based on the same comparison, so Elo differences give its expectation. None without a pair, or if
    a score is not finite.
    """
    if not pairs or not all(map(isfinite, chain.from_iterable(pairs))):
        return None
    return sum(1.0 if mine > theirs else 0.5 if mine == theirs else 0.0 for mine, theirs in pairs) / len(pairs)


class EvaluationTable:
    """All evaluations, indexed by match."""

    def __init__(self) -> None:
        self.by_id: dict[str, Evaluation] = {}
        # Indices for decisions, which would otherwise search all evaluations after every event.
        self.tests: dict[str, Evaluation] = {}
        """Promotion tests by candidate, in the order of their requests."""
        self.high_scores: dict[str, Evaluation] = {}
        """Gatekeeper evaluations that gave a new high score, by agent."""
        self._owner: dict[str, str] = {}

    def add_request(self, event: EvaluationRequested, terms: SprtConfig) -> None:
        """Begin an evaluation; a repeated id does nothing. A promotion test keeps these terms to its end."""
        if event.evaluation_id not in self.by_id:
            test = terms if event.suite == PROMOTION else None
            self.by_id[event.evaluation_id] = Evaluation(event, set(event.matches), {}, test=test)
            self._owner.update(dict.fromkeys(event.matches, event.evaluation_id))
            self.index(self.by_id[event.evaluation_id])

    def finish_match(self, match: MatchFinished, system: str | None) -> None:
        """Count a match that an evaluation waits for; ``system`` will rate it, None if it does not count."""
        evaluation = self._waiting_for(match.match_id)
        if evaluation is not None:
            evaluation.count(match)
            if system is not None:
                evaluation.unrated[match.match_id] = system
            else:
                del self._owner[match.match_id]

    def void_match(self, match: MatchFinished) -> Evaluation | None:
        """Turn a counted match into a failed one; returns the evaluation if it was still waiting for its rating.

        A recorded result stays, since decisions may have been made from it.
        """
        evaluation = self.by_id.get(match.evaluation_id)
        if evaluation is None or match.match_id not in {*evaluation.requested.matches} - evaluation.waiting:
            return None
        if evaluation.finished is None:
            evaluation.count(match, -1)
            evaluation.failed += 1
        system = evaluation.unrated.get(match.match_id)
        return self.rate_match(match.match_id, system) if system is not None else None

    def fail_match(self, match_id: str) -> None:
        """Count a match that could not be completed."""
        evaluation = self._waiting_for(match_id)
        if evaluation is not None:
            evaluation.waiting.discard(match_id)
            evaluation.failed += 1
            del self._owner[match_id]

    def rate_match(self, match_id: str, system: str) -> Evaluation | None:
        """Mark a match as rated; returns the evaluation that waited for it."""
        evaluation = self.by_id.get(self._owner.get(match_id, ""))
        if evaluation is None or evaluation.unrated.get(match_id) != system:
            return None
        del evaluation.unrated[match_id], self._owner[match_id]
        return evaluation

    def index(self, evaluation: Evaluation) -> None:
        """Enter an evaluation that has just begun or got its verdict."""
        if evaluation.test is not None:
            self.tests[evaluation.agent] = evaluation
        verdict = evaluation.verdict
        if verdict is not None and evaluation.suite == GATEKEEPERS and verdict.is_high_score:
            self.high_scores[evaluation.agent] = evaluation

    def record_decision(self, event: PromotionDecided) -> None:
        """Record a test's verdict, the first one only; matches that have not ended are no longer waited for."""
        evaluation = self.by_id.get(event.evaluation_id)
        if evaluation is None or evaluation.test is None or evaluation.decision is not None:
            return
        evaluation.decision = event
        evaluation.dropped = len(evaluation.waiting)
        for name in evaluation.waiting:
            self._owner.pop(name, None)
        evaluation.waiting.clear()

    def record_result(self, event: EvaluationFinished) -> Evaluation | None:
        """Record a result; returns the evaluation unless it is unknown or already has one."""
        evaluation = self.by_id.get(event.evaluation_id)
        if evaluation is None or evaluation.finished is not None:
            return None
        evaluation.finished = event
        return evaluation

    @classmethod
    def from_evaluations(cls, evaluations: list[Evaluation]) -> "EvaluationTable":
        """Build the table from evaluations in the order of their requests."""
        table = cls()
        for evaluation in evaluations:
            name = evaluation.requested.evaluation_id
            table.by_id[name] = evaluation
            table._owner.update(dict.fromkeys([*evaluation.waiting, *evaluation.unrated], name))
            table.index(evaluation)
        return table

    def _waiting_for(self, match_id: str) -> Evaluation | None:
        evaluation = self.by_id.get(self._owner.get(match_id, ""))
        return evaluation if evaluation is not None and match_id in evaluation.waiting else None
