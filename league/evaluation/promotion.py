"""Promotions to elite, and regressions below a baseline: pure functions of the state.

A version with a new high score is a *candidate*: after its gatekeeper matches it is rated above every other checkpoint.
Under ``promotion.rule = "high_score"`` that is enough. Under ``"sprt"`` it also has to win a sequential test against
the *incumbent*, pairs of games until the stronger agent is known within stated error rates. Tests run one at a time, so
that the next candidate meets the one that has just been promoted.

A pair is two games on the same seed with the seats exchanged, so that luck and the seats' advantages cancel within it;
its score is the candidate's mean share of the points, 0 to 1. For two-seat games that is the pentanomial model (0, ¼,
½, ¾, 1); with more seats any share is possible. The test is Wald's (1945) with the generalised likelihood ratio for a
mean of unknown variance (Van den Bergh, *Comments on normalized Elo*, 2020; used by Fishtest):
LLR = n/2 · log((σ² + (x̄ − s₀)²) / (σ² + (x̄ − s₁)²)), with s₀ and s₁ the scores that the two Elo differences expect.
It is a fold over the pairs in their order. Another machine's ``log`` and ``10 ** x`` may differ in their last bits:
compare ratios with a tolerance, counts and sums exactly.

Evaluators request the matches (``league.evaluation.plan``); the rater appends ``due_decisions``: verdicts, promotions
and alarms. Each has a key of its own, so a repeated call, after a restart or by a second rater, adds nothing.
"""

from collections.abc import Iterable, Iterator
from functools import partial, reduce
from math import log
from typing import Literal

import msgspec

from league.matchmaking.schedule import ELITE, make_checkpoint_added
from league.ratings.elo import expected_share
from league.state import LeagueState
from league.state.evaluation_table import Evaluation
from schemas.config import PromotionConfig
from schemas.errors import UsageError
from schemas.events import CheckpointAdded, CheckpointPromoted, PromotionDecided, RegressionNoticed
from schemas.events.rating import SprtConfig
from schemas.ids import policy_of, split_agent

Decision = PromotionDecided | CheckpointAdded | CheckpointPromoted | RegressionNoticed


class Candidate(msgspec.Struct, frozen=True):
    """A version with a new high score that is not elite."""

    agent: str
    rating: float
    """Rating after its gatekeeper matches."""
    best_other: float | None
    """Best rating of any other checkpoint at that time."""


SprtVerdict = Literal["undecided", "promote", "keep"]
# Elo differences beyond ±4,000 count as ±4,000.
_MAX_EXPONENT = 10.0
_PRIOR_SQUARES = 0.25
"""A pair's largest possible squared deviation, counted once: equal first pairs must not look like certainty."""


class SprtState(msgspec.Struct, frozen=True):
    """State of a test after some pairs: sufficient to continue, and with the configuration a certificate."""

    pairs: int = 0
    total: float = 0.0
    """Sum of the pairs' scores."""
    squares: float = 0.0
    """Sum of their squares."""
    llr: float = 0.0
    """Log-likelihood ratio, H1 over H0."""
    lower: float = 0.0
    """At or below this ratio the incumbent is kept."""
    upper: float = 0.0
    """At or above this ratio the candidate is promoted."""
    verdict: SprtVerdict = "undecided"


def initial_state(config: SprtConfig) -> SprtState:
    """The state before any pair."""
    lower, upper = log(config.beta / (1 - config.alpha)), log((1 - config.beta) / config.alpha)
    return SprtState(lower=lower, upper=upper)


def pair_score(first: float, second: float) -> float:
    """The score of a pair, from the candidate's share of the points in each of its two games."""
    for share in (first, second):
        if not 0 <= share <= 1:
            raise UsageError(f"sprt: a game's share is {share}; expected 0 to 1")
    return 0.5 * (first + second)


def advance(config: SprtConfig, state: SprtState, score: float) -> SprtState:
    """The state after one more pair. A verdict is final: pairs still being played do not change it.

    Raises:
        UsageError: a score that is not between 0 and 1.
    """
    if not 0 <= score <= 1:
        raise UsageError(f"sprt: pair {state.pairs + 1} has the score {score}; expected 0 to 1")
    if state.verdict != "undecided":
        return state
    pairs, total, squares = state.pairs + 1, state.total + score, state.squares + score * score
    llr = log_likelihood_ratio(config, pairs, total, squares)
    verdict: SprtVerdict = "undecided"
    if pairs >= config.least_pairs and llr >= state.upper:
        verdict = "promote"
    elif pairs >= config.least_pairs and (llr <= state.lower or 0 < config.most_pairs <= pairs):
        verdict = "keep"
    return SprtState(pairs, total, squares, llr, state.lower, state.upper, verdict)


def recompute(config: SprtConfig, scores: Iterable[float]) -> SprtState:
    """Recompute the state from the pairs' scores in order, to check a certificate; raises as ``advance`` does."""
    return reduce(partial(advance, config), scores, initial_state(config))


def log_likelihood_ratio(config: SprtConfig, pairs: int, total: float, squares: float) -> float:
    """H1 over H0, from the number, the sum and the sum of squares of the pairs' scores."""
    mean = total / pairs
    variance = (max(squares - total * mean, 0.0) + _PRIOR_SQUARES) / pairs
    far = variance + (mean - expected_share(config.elo0, max_exponent=_MAX_EXPONENT)) ** 2
    return 0.5 * pairs * log(far / (variance + (mean - expected_share(config.elo1, max_exponent=_MAX_EXPONENT)) ** 2))


class SprtProgress(msgspec.Struct, frozen=True):
    """Progress of a promotion test."""

    pairs: list[list[str]]
    """Match ids of the pairs that count, in order."""
    scores: list[float]
    """The candidate's score in each pair."""
    passed_over: int
    """Pairs before the last one counted that do not count: a match failed or was voided."""
    sprt: SprtState
    verdict: SprtVerdict
    """Verdict of the test; ``keep`` when every match has ended without one."""


def candidates(state: LeagueState) -> list[Candidate]:
    """Versions with a new high score that are neither elite nor rejected by a test, older ones first.

    The high score is judged once, when the last gatekeeper match has been rated: later ratings don't change it.
    """
    if state.config is None or not state.config.schedule.elite:
        return []
    tests, elite = state.evaluation_table.tests.values(), set(state.elite)
    rejected = {test.agent for test in tests if test.decision is not None and test.decision.verdict == "keep"}
    return [
        Candidate(agent, evaluation.verdict.rating, evaluation.verdict.best_other)
        for agent, evaluation in sorted(state.evaluation_table.high_scores.items(), key=_version_order)
        if evaluation.verdict is not None and agent not in elite and agent not in rejected and _can_join(state, agent)
    ]


def incumbent(state: LeagueState, candidate: str) -> str | None:
    """The opponent of a candidate's test: the newest elite checkpoint, else the best rated other one, else None."""
    for name in reversed(state.elite):
        if name != candidate:
            return name
    others = [agent for agent in state.checkpoints if agent.games and agent.name != candidate]
    best = max(others, key=lambda agent: (agent.rating, agent.version, agent.name), default=None)
    return best.name if best is not None else None


def candidates_to_test(state: LeagueState) -> list[tuple[str, str]]:
    """Candidates whose test may be requested now, each with its incumbent.

    Empty during a test or while a promotion is due, as the next incumbent is not known then.
    """
    tests = state.evaluation_table.tests
    if (
        state.config_or_default.promotion.rule != "sprt"
        or any(test.decision is None for test in tests.values())
        or due_promotions(state)
    ):
        return []
    waiting = [candidate.agent for candidate in candidates(state) if candidate.agent not in tests]
    pairs = [(agent, incumbent(state, agent)) for agent in waiting]
    return [(agent, other) for agent, other in pairs if other is not None]


def sprt_progress(evaluation: Evaluation) -> SprtProgress:
    """Compute a promotion test's progress: a fold over its pairs in the order of their numbers.

    A pair counts once both of its matches and all pairs before it have ended, so the speed of matches has no influence.
    A pair with a match that failed or was voided is skipped.
    """
    terms = evaluation.test or PromotionConfig().test
    sprt = initial_state(terms)
    pairs: list[list[str]] = []
    scores: list[float] = []
    passed_over = 0
    for first, second in pairs_of(evaluation.requested.matches):
        if sprt.verdict != "undecided" or first in evaluation.waiting or second in evaluation.waiting:
            return SprtProgress(pairs, scores, passed_over, sprt, sprt.verdict)
        if first in evaluation.shares and second in evaluation.shares:
            scores.append(pair_score(evaluation.shares[first], evaluation.shares[second]))
            pairs.append([first, second])
            sprt = advance(terms, sprt, scores[-1])
        else:
            passed_over += 1
    return SprtProgress(pairs, scores, passed_over, sprt, "promote" if sprt.verdict == "promote" else "keep")


def pairs_of(matches: list[str]) -> Iterator[tuple[str, str]]:
    """The pairs of a promotion test's matches."""
    return zip(matches[::2], matches[1::2], strict=False)


def due_decisions(state: LeagueState) -> list[Decision]:
    """Decisions that are not recorded yet: verdicts, then promotions, then alarms."""
    return [*due_verdicts(state), *due_promotions(state), *due_regressions(state)]


def due_verdicts(state: LeagueState) -> list[PromotionDecided]:
    """Certificates of the tests that have reached a verdict."""
    verdicts = [(test, sprt_progress(test)) for test in state.evaluation_table.tests.values() if test.decision is None]
    return [
        PromotionDecided(
            evaluation_id=test.requested.evaluation_id,
            candidate=test.agent,
            incumbent=test.requested.opponents[0] if test.requested.opponents else "",
            test=test.test or PromotionConfig().test,
            pairs=done.pairs,
            scores=done.scores,
            llr=done.sprt.llr,
            lower=done.sprt.lower,
            upper=done.sprt.upper,
            verdict=done.verdict,
        )
        for test, done in verdicts
        if done.verdict != "undecided"
    ]


def due_promotions(state: LeagueState) -> list[CheckpointAdded | CheckpointPromoted]:
    """Candidates that become elite: admitted to the league, or promoted if they are in it.

    Under ``sprt``: those whose test promotes them, and those without an incumbent.
    """
    due: list[CheckpointAdded | CheckpointPromoted] = []
    for candidate in candidates(state):
        agent, test = candidate.agent, state.evaluation_table.tests.get(candidate.agent)
        if state.config_or_default.promotion.rule == "high_score":
            has_won = True
        elif test is not None:
            # Its verdict is recorded first: the promotion follows from it.
            has_won = test.decision is not None
        else:
            # Ratings since then are ignored: due decisions must not depend on the time of the call.
            has_won = (candidate.best_other is None and not state.elite) or incumbent(state, agent) is None
        if has_won and agent in state.agents:
            due.append(CheckpointPromoted(agent=agent, rating=candidate.rating))
        elif has_won:
            policy, version = split_agent(agent) or ("", 0)
            due.append(make_checkpoint_added(state, policy, version, state.published[policy][version].adapter, ELITE))
    return due


def due_regressions(state: LeagueState) -> list[RegressionNoticed]:
    """Evaluated versions of trained policies that were rated below a baseline; each is reported once.

    Excludes exploiters: they target one opponent, and start again at the base model's strength.
    """
    trained = state.config_or_default.trained_policies
    exploiters = {policy for policy, role in trained.items() if role.is_exploiter}
    return [
        RegressionNoticed(
            evaluation_id=evaluation.requested.evaluation_id,
            agent=agent,
            rating=evaluation.verdict.rating,
            below=evaluation.verdict.below,
        )
        for agent, evaluation in sorted(state.evaluation_table.regressions.items(), key=_version_order)
        if evaluation.verdict is not None
        and not evaluation.alarmed
        and policy_of(agent) in state.published.keys() - exploiters
    ]


def _version_order(scored: tuple[str, Evaluation]) -> tuple[int, str]:
    named = split_agent(scored[0])
    return (named[1] if named is not None else 0, scored[0])


def _can_join(state: LeagueState, agent: str) -> bool:
    member, named = state.agents.get(agent), split_agent(agent)
    if member is not None:
        return member.kind == "checkpoint"
    return named is not None and named[1] in state.published.get(named[0], {})
