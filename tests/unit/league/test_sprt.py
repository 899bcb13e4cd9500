"""The promotion test: its ratio, and its error rates by simulation."""

from itertools import product
from math import log

import numpy as np
import pytest

from league.evaluation.promotion import sequential_test
from league.ratings.elo import expected_share
from league.state.evaluation_table import match_share
from league.state.evaluation_table import share_of as match_points
from schemas.errors import ConfigError
from schemas.events import MatchFinished, SeatResult
from schemas.events.rating import SprtConfig

CONFIG = SprtConfig(elo0=0.0, elo1=50.0)


def pairs(elo: float, rng: np.random.Generator, count: int, seats_elo: float = 80.0) -> np.ndarray:
    """Scores of pairs: one game from each side, a third of them drawn; the seat's advantage cancels."""
    games = []
    for side in (1, -1):
        share = 1 / (1 + 10 ** (-(elo + side * seats_elo) / 400))
        draws = rng.random(count) < 1 / 3
        # Draws are even, so decisions carry the whole of the expected share.
        won = rng.random(count) < np.clip((share - 1 / 6) / (2 / 3), 0, 1)
        games.append(np.where(draws, 0.5, won.astype(float)))
    return 0.5 * (games[0] + games[1])


def share_of(verdict: str, elo: float, runs: int = 400) -> tuple[float, float]:
    """How often the test ends so, and after how many pairs in the mean."""
    rng = np.random.default_rng(int(elo) + 1000)
    states = [sequential_test(CONFIG, pairs(elo, rng, 2500).tolist()) for _ in range(runs)]
    assert all(state.verdict != "undecided" for state in states)
    return float(np.mean([state.verdict == verdict for state in states])), float(np.mean([s.pairs for s in states]))


def test_error_rates_stay_within_what_was_stated() -> None:
    wrongly_promoted, at_h0 = share_of("promote", 0.0)
    wrongly_kept, at_h1 = share_of("keep", 50.0)
    # 0.05 each, and twice the standard error of 400 runs.
    assert wrongly_promoted <= 0.05 + 2 * (0.05 * 0.95 / 400) ** 0.5
    assert wrongly_kept <= 0.05 + 2 * (0.05 * 0.95 / 400) ** 0.5
    right, far = share_of("promote", 150.0, 100)
    assert right == 1
    assert far < min(at_h0, at_h1) / 2
    wrong, worse = share_of("promote", -100.0, 100)
    assert wrong == 0
    assert worse < at_h0 / 2


def test_between_the_hypotheses_it_takes_longest() -> None:
    assert share_of("promote", 25.0, 100)[1] > max(share_of("promote", 0.0, 100)[1], share_of("promote", 50.0, 100)[1])


def test_the_ratio_is_that_of_the_best_normal_fits() -> None:
    scores = np.random.default_rng(0).choice([0, 0.25, 0.5, 0.75, 1], 5000)
    endless = SprtConfig(elo0=0.0, elo1=50.0, least_pairs=10_000)
    found = sequential_test(endless, scores.tolist()).llr

    def best_fit(mean: float) -> float:
        variance = np.mean((scores - mean) ** 2)
        return float(-0.5 * len(scores) * (np.log(variance) + 1))

    assert found == pytest.approx(best_fit(expected_share(50.0)) - best_fit(expected_share(0.0)), abs=0.1)


def test_bounds_are_walds() -> None:
    state = sequential_test(SprtConfig(alpha=0.01, beta=0.1), [])
    assert (state.lower, state.upper) == (pytest.approx(log(0.1 / 0.99)), pytest.approx(log(0.9 / 0.01)))


def test_the_order_of_hypotheses_mirrors() -> None:
    terms, scores = SprtConfig(elo0=-20, elo1=20), [0.5, 0.75, 0.5, 1.0]
    up = sequential_test(terms, scores).llr
    down = sequential_test(terms, [1.0 - score for score in scores]).llr
    assert up == pytest.approx(-down)
    assert up > 0


def test_a_verdict_is_final() -> None:
    state = sequential_test(CONFIG, [1.0] * 100)
    assert state.verdict == "promote"
    assert sequential_test(CONFIG, [1.0] * 100 + [0.0] * 500) == state


def test_equal_first_pairs_are_not_certainty() -> None:
    assert sequential_test(CONFIG, [1.0] * 7).verdict == "undecided"
    assert sequential_test(CONFIG, [0.5] * 8).verdict == "undecided"


def test_a_limit_keeps_the_incumbent() -> None:
    config = SprtConfig(elo0=0, elo1=2, most_pairs=20)
    assert sequential_test(config, [0.5, 0.75] * 9 + [0.5]).verdict == "undecided"
    assert sequential_test(config, [0.5, 0.75] * 10).verdict == "keep"


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"elo0": 5.0, "elo1": 5.0}, "elo0 below elo1"),
        ({"elo1": float("nan")}, "elo1 nan"),
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"beta": 0.7}, "beta is 0.7"),
        ({"least_pairs": 1}, "between 1 and 0 pairs"),
        ({"most_pairs": 4}, "between 8 and 4 pairs"),
        ({"most_pairs": -1}, "between 8 and -1 pairs"),
    ],
)
def test_terms_that_make_no_test_are_refused(terms: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SprtConfig(**terms)  # type: ignore[arg-type]


def test_a_match_is_shared_out_by_comparing_seats() -> None:
    assert match_share([(3.0, 1.0)]) == 1.0
    assert match_share([(3.0, 2.0), (1.0, 2.0)]) == 0.5
    assert match_share(list(product([5.0, 5.0, 0.0, 2.0], [5.0, 1.0, 2.0]))) == (2.5 + 2.5 + 0.0 + 1.5) / 12
    compared = list(product([4.0, 1.0, 1.0, 7.5], [1.0, 0.0, 9.0]))
    share = match_share(compared)
    assert share is not None
    assert share + (match_share([(theirs, mine) for mine, theirs in compared]) or 0.0) == 1.0


@pytest.mark.parametrize("pairs", [[], [(float("nan"), 1.0)], [(1.0, 1e400)]])
def test_matches_without_a_comparison_have_no_share(pairs: list[tuple[float, float]]) -> None:
    assert match_share(pairs) is None


def test_a_partner_is_no_opponent() -> None:
    won, lost = (1.0, 1, "NS"), (-1.0, 2, "EW")
    agents = [("main@10", *won), ("main@1", *lost), ("main@1", *won), ("main@1", *lost)]
    seats = [
        SeatResult(seat, f"P{seat}", agent, score, rank, team=team)
        for seat, (agent, score, rank, team) in enumerate(agents)
    ]
    match = MatchFinished("m", "bridge", "evaluation", "w", 0, seats, 0, "over", 1, 0.0)
    assert match_points(match, "main@10", ["main@1"]) == 1.0
    assert [match.has_won(seat) for seat in seats] == [True, False, True, False]
