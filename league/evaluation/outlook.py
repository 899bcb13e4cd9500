"""Forecast of the rules for promotion, retirement and the active pool, with reasons for display."""

from math import ceil

import msgspec

from league.evaluation import promotion
from league.evaluation.plan import CappedEvaluation, capped_evaluations, plan_evaluations
from league.evaluation.promotion import Candidate, SprtProgress
from league.matchmaking import pool, schedule
from league.state import LeagueState, LeagueStateSnapshot
from league.state.evaluation_table import PROMOTION, Evaluation
from schemas.config import PromotionConfig
from schemas.events import EvaluationRequested, Event, RegressionNoticed
from schemas.events.rating import SprtConfig
from schemas.jobs import SeatCounts


class PromotionTest(msgspec.Struct, frozen=True):
    """Progress of a candidate's test against the incumbent."""

    candidate: str
    incumbent: str
    evaluation_id: str
    test: SprtConfig
    pairs: int
    """Number of pairs that count so far."""
    passed_over: int
    """Pairs with a match that failed or was voided."""
    mean_score: float | None
    """The candidate's mean score over the pairs; None before the first."""
    llr: float
    lower: float
    upper: float
    verdict: str
    """``undecided``, ``promote`` or ``keep``."""
    recorded: bool
    """Whether the verdict is in the history."""
    pairs_left: int | None
    """Approximate number of further pairs at the current pace; None when it cannot be estimated."""


class WaitingCandidate(Candidate, frozen=True):
    """A candidate without a test so far."""

    incumbent: str | None
    """The agent that it would have to beat now."""
    why: str


class EvaluationOutlook(msgspec.Struct, frozen=True):
    """Recorded and pending decisions."""

    sequence: int
    """Sequence of the history's last event."""
    rule: str
    """``high_score``, ``sprt``, or ``off`` for no promotions."""
    elite: list[str]
    """In the order of promotion; the last one is the incumbent."""
    contests: list[PromotionTest]
    waiting: list[WaitingCandidate]
    due: list[Event]
    """Events that a rater would append now, each followed by its consequences: verdicts, promotions, alarms,
    retirements, changes of the active pool, remote agents that pause or come back.
    """
    requests: list[EvaluationRequested]
    """Promotion tests that an evaluator would request now."""
    cuts: list[CappedEvaluation]
    """Evaluations reduced or prevented by a cap of the table ``evaluation``."""
    alarms: dict[str, RegressionNoticed]
    """By policy: its newest version rated below a baseline."""


def make_outlook(state: LeagueState, seats: int | SeatCounts) -> EvaluationOutlook:
    """Forecast the decisions that follow from a state, which is not changed; ``seats`` as of ``plan_evaluations``."""
    config = state.config_or_default
    less = capped_evaluations(state, seats)
    capped = [cut.agent for cut in less if cut.suite == PROMOTION and not cut.matches]
    due = [event.agent for event in promotion.due_promotions(state)]
    reasons = dict.fromkeys(capped, "a cap of evaluations leaves no test")
    reasons |= dict.fromkeys(due, "is to be promoted without a test")
    return EvaluationOutlook(
        sequence=state.sequence,
        rule=config.promotion.rule if config.schedule.elite else "off",
        elite=list(state.elite),
        contests=[_promotion_test(test) for test in state.evaluation_table.tests.values()],
        waiting=[
            WaitingCandidate(
                agent=candidate.agent,
                rating=candidate.rating,
                best_other=candidate.best_other,
                incumbent=promotion.incumbent(state, candidate.agent),
                why=reasons.get(candidate.agent, "waits for its test"),
            )
            for candidate in promotion.candidates(state)
            if candidate.agent not in state.evaluation_table.tests
        ],
        due=_forecast_events(state),
        requests=[request for request in plan_evaluations(state, seats) if request.suite == PROMOTION],
        cuts=less,
        alarms=dict(state.alarms),
    )


def rater_decisions(state: LeagueState) -> list[Event]:
    """Events that a rater would append now; more may follow from them."""
    retirements = [event for policy in state.policies for event in schedule.retirements(state, policy)]
    return [*promotion.due_decisions(state), *retirements, *pool.pool_changes(state), *pool.budget_changes(state)]


def _forecast_events(state: LeagueState) -> list[Event]:
    # On a deep copy: the state itself must not change.
    saved = msgspec.msgpack.decode(msgspec.msgpack.encode(state.to_snapshot()), type=LeagueStateSnapshot)
    ahead, forecast = LeagueState.from_snapshot(saved), dict[str, Event]()
    while events := [event for event in rater_decisions(ahead) if event.key not in forecast]:
        for event in events:
            forecast[event.key] = event
            ahead.apply(ahead.sequence + 1, event)
    return list(forecast.values())


def _promotion_test(test: Evaluation) -> PromotionTest:
    done, terms = promotion.sprt_progress(test), test.test or PromotionConfig().test
    recorded = test.decision
    scores = done.scores if recorded is None else recorded.scores
    return PromotionTest(
        candidate=test.agent,
        incumbent=", ".join(test.requested.opponents),
        evaluation_id=test.requested.evaluation_id,
        test=terms,
        pairs=len(scores),
        passed_over=done.passed_over if recorded is None else 0,
        mean_score=sum(scores) / len(scores) if scores else None,
        llr=done.sprt.llr if recorded is None else recorded.llr,
        lower=done.sprt.lower,
        upper=done.sprt.upper,
        verdict=done.verdict if recorded is None else recorded.verdict,
        recorded=recorded is not None,
        pairs_left=_pairs_left(test, done) if recorded is None else 0,
    )


def _pairs_left(test: Evaluation, done: SprtProgress) -> int | None:
    """Estimate the pairs to the bound that the ratio moves towards, at its average pace; at most as many as remain."""
    if done.verdict != "undecided":
        return 0
    most = len(test.requested.matches) // 2 - done.passed_over - len(done.scores)
    if not done.scores or done.sprt.llr == 0:
        return None
    bound = done.sprt.upper if done.sprt.llr > 0 else done.sprt.lower
    pace = done.sprt.llr / len(done.scores)
    least = (test.test or PromotionConfig().test).least_pairs - len(done.scores)
    return min(max(ceil((bound - done.sprt.llr) / pace), least), most)
