"""Sequential test for promotion: pairs of games until the stronger agent is known within stated error rates.

The unit is a pair: two games on the same seed with the seats exchanged, so that luck and the seats' advantages cancel
within it; its score is the candidate's mean share of the points, 0 to 1. For two-seat games that is the pentanomial
model (0, ¼, ½, ¾, 1); with more seats any share is possible. The test is Wald's (1945) with the generalised likelihood
ratio for a mean of unknown variance (Van den Bergh, *Comments on normalized Elo*, 2020; used by Fishtest):
LLR = n/2 · log((σ² + (x̄ − s₀)²) / (σ² + (x̄ − s₁)²)), with s₀ and s₁ the scores that the two Elo differences expect.

A fold, independent of clocks and random draws: the pairs in their order determine the verdict. (Another machine's
``log`` and ``10 ** x`` may differ in their last bits: compare ratios with a tolerance, counts and sums exactly.)
"""

from collections.abc import Iterable, Sequence
from functools import partial, reduce
from math import isfinite, log
from typing import Literal

import msgspec

from league.ratings.elo import expected_share
from schemas.errors import UsageError
from schemas.events.rating import SprtConfig

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


def match_share(own: Sequence[float], others: Sequence[float]) -> float | None:
    """The candidate's share of the points of one match, from the final scores of its seats and of the incumbent's.

    The mean over all pairs of a seat of each: 1 for a higher score, ½ for an equal one, 0 for a lower one. Elo is based
    on the same comparison, so Elo differences give its expectation. None where one of them has no seat, or a score is
    not finite.
    """
    if not (own and others and all(map(isfinite, [*own, *others]))):
        return None
    points = sum(1.0 if mine > theirs else 0.5 if mine == theirs else 0.0 for mine in own for theirs in others)
    return points / (len(own) * len(others))


def pair_score(first: float, second: float) -> float:
    """The score of a pair, from the candidate's share of the points in each of its two games.

    Raises:
        UsageError: a share that is not between 0 and 1.
    """
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
    if pairs >= config.least_pairs:
        verdict = "promote" if llr >= state.upper else "keep" if llr <= state.lower else "undecided"
    if verdict == "undecided" and config.most_pairs and pairs >= config.most_pairs:
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
