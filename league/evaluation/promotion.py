"""Promotions to elite: pure functions of the state.

A version with a new high score is a *candidate*: after its gatekeeper matches it is rated above every other checkpoint.
Under ``promotion.rule = "high_score"`` that is enough. Under ``"sprt"`` it also has to win a sequential test against
the *incumbent*. Tests run one at a time, so that the next candidate meets the one that has just been promoted.

A pair is two matches on the same seed with the seats exchanged, so that luck and the seats' advantages cancel within
it; its score is the candidate's mean share of the points, 0 to 1. The test is Wald's (1945) with the generalised
likelihood ratio for a mean of unknown variance (Van den Bergh, *Comments on normalized Elo*, 2020; used by Fishtest):
LLR = n/2 · log((σ² + (x̄ − s₀)²) / (σ² + (x̄ − s₁)²)), with s₀ and s₁ the scores that the two Elo differences expect.

Evaluators request the matches (``league.evaluation.plan``); the rater appends ``due_decisions``. Each has its own key,
so a repeated call, after a restart or by a second rater, adds nothing.
"""

from collections.abc import Iterable
from math import log
from typing import Literal, NamedTuple

from league.matchmaking.schedule import ELITE, make_checkpoint_added
from league.ratings.elo import expected_share
from league.state import LeagueState
from league.state.evaluation_table import Evaluation
from schemas.config import PromotionConfig
from schemas.events import CheckpointAdded, CheckpointPromoted, PromotionDecided
from schemas.events.rating import SprtConfig
from schemas.ids import split_agent

# Elo differences beyond ±4,000 count as ±4,000.
_MAX_EXPONENT = 10.0
_PRIOR_SQUARES = 0.25
"""A pair's largest possible squared deviation, counted once: equal first pairs must not look like certainty."""


class Sprt(NamedTuple):
    """A sequential test after some pairs."""

    pairs: int
    """Number of pairs up to the verdict."""
    llr: float
    """Log-likelihood ratio, H1 over H0, after the last of them."""
    lower: float
    """Ratio at or below which the incumbent is kept."""
    upper: float
    """Ratio at or above which the candidate is promoted."""
    verdict: Literal["undecided", "promote", "keep"]


def sequential_test(terms: SprtConfig, scores: Iterable[float]) -> Sprt:
    """Test the candidate's scores of pairs in their order, up to the first verdict."""
    lower, upper = log(terms.beta / (1 - terms.alpha)), log((1 - terms.beta) / terms.alpha)
    s0, s1 = (expected_share(elo, max_exponent=_MAX_EXPONENT) for elo in (terms.elo0, terms.elo1))
    pairs, total, squares, llr = 0, 0.0, 0.0, 0.0
    for score in scores:
        pairs, total, squares = pairs + 1, total + score, squares + score * score
        mean = total / pairs
        variance = (max(squares - total * mean, 0.0) + _PRIOR_SQUARES) / pairs
        llr = 0.5 * pairs * log((variance + (mean - s0) ** 2) / (variance + (mean - s1) ** 2))
        if pairs >= terms.least_pairs and llr >= upper:
            return Sprt(pairs, llr, lower, upper, "promote")
        if pairs >= terms.least_pairs and (llr <= lower or 0 < terms.most_pairs <= pairs):
            return Sprt(pairs, llr, lower, upper, "keep")
    return Sprt(pairs, llr, lower, upper, "undecided")


def decide(test: Evaluation) -> PromotionDecided | None:
    """The verdict of a promotion test; None while it has none.

    A pair counts once both of its matches and all pairs before it have ended, so the speed of matches has no influence.
    A pair with a match that failed or was voided is skipped. If every match has ended undecided, the incumbent stays.
    """
    terms = test.test or PromotionConfig().test
    matches = test.requested.matches
    pairs: list[list[str]] = []
    has_ended = True
    for pair in zip(matches[::2], matches[1::2], strict=False):
        if not test.waiting.isdisjoint(pair):
            has_ended = False
            break
        if all(match_id in test.shares for match_id in pair):
            pairs.append([*pair])
    scores = [0.5 * (test.shares[first] + test.shares[second]) for first, second in pairs]
    found = sequential_test(terms, scores)
    if found.verdict == "undecided" and not has_ended:
        return None
    return PromotionDecided(
        evaluation_id=test.requested.evaluation_id,
        candidate=test.agent,
        incumbent=test.requested.opponents[0] if test.requested.opponents else "",
        test=terms,
        pairs=pairs[: found.pairs],
        scores=scores[: found.pairs],
        llr=found.llr,
        lower=found.lower,
        upper=found.upper,
        verdict="promote" if found.verdict == "promote" else "keep",
    )


def candidates(state: LeagueState) -> list[str]:
    """Versions with a new high score that are neither elite nor rejected by a test, older ones first.

    The high score is judged once, when the last gatekeeper match has been rated: later ratings don't change it.
    """
    if state.config is None or not state.config.schedule.elite:
        return []
    tests, elite = state.evaluation_table.tests.values(), set(state.elite)
    rejected = {test.agent for test in tests if test.decision is not None and test.decision.verdict == "keep"}
    scored = sorted(state.evaluation_table.high_scores, key=lambda agent: ((split_agent(agent) or ("", 0))[1], agent))
    return [agent for agent in scored if agent not in elite | rejected and _can_join(state, agent)]


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
    under_way = any(test.decision is None for test in tests.values())
    if state.config_or_default.promotion.rule != "sprt" or under_way or due_promotions(state):
        return []
    pairs = [(agent, incumbent(state, agent)) for agent in candidates(state) if agent not in tests]
    return [(agent, other) for agent, other in pairs if other is not None]


def due_decisions(state: LeagueState) -> list[PromotionDecided | CheckpointAdded | CheckpointPromoted]:
    """Decisions that are not recorded yet: verdicts, then promotions."""
    return [*due_verdicts(state), *due_promotions(state)]


def due_verdicts(state: LeagueState) -> list[PromotionDecided]:
    """Verdicts of the tests that have reached one."""
    tests = [test for test in state.evaluation_table.tests.values() if test.decision is None]
    return [verdict for test in tests if (verdict := decide(test)) is not None]


def due_promotions(state: LeagueState) -> list[CheckpointAdded | CheckpointPromoted]:
    """Candidates that become elite: admitted to the league, or promoted if they are in it.

    Under ``sprt``: those whose test promotes them, and those without an incumbent.
    """
    due: list[CheckpointAdded | CheckpointPromoted] = []
    for agent in candidates(state):
        test, verdict = state.evaluation_table.tests.get(agent), state.evaluation_table.high_scores[agent].verdict
        assert verdict is not None
        if state.config_or_default.promotion.rule == "high_score":
            has_won = True
        elif test is not None:
            # Its verdict is recorded first: the promotion follows from it.
            has_won = test.decision is not None
        else:
            # Ratings since then are ignored: due decisions must not depend on the time of the call.
            has_won = (verdict.best_other is None and not state.elite) or incumbent(state, agent) is None
        if has_won and agent in state.agents:
            due.append(CheckpointPromoted(agent=agent, rating=verdict.rating))
        elif has_won:
            policy, version = split_agent(agent) or ("", 0)
            due.append(make_checkpoint_added(state, policy, version, state.published[policy][version].adapter, ELITE))
    return due


def _can_join(state: LeagueState, agent: str) -> bool:
    member, named = state.agents.get(agent), split_agent(agent)
    if member is not None:
        return member.kind == "checkpoint"
    return named is not None and named[1] in state.published.get(named[0], {})
