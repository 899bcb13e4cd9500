"""Learning curves against simulated walks and against the board that stands still."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.synthetic_matches import make_match_arrays, simulate_ranked_matches
from league.analysis.bradley_terry import FitOptions, fit_strengths
from league.analysis.history_rating import WalkOptions, fit_learning_curves
from league.ratings.arrays import MatchArrays
from schemas.errors import UsageError

STEPS = [0, 10, 20, 40, 60, 80, 100, 150]


def walk(seed: int) -> tuple[list[str], np.ndarray]:
    """Names and strengths of a walking policy and of four bots, drawn from what is believed before any match."""
    rng = np.random.default_rng(seed)
    moves = rng.normal(0, 15 * np.sqrt(np.diff(STEPS)))
    main = rng.normal(1000, 400) + np.concatenate([[0], np.cumsum(moves)])
    bots = rng.normal(1000, 400, 4)
    truth = np.concatenate([main, bots])
    names = [f"main@{step}" for step in STEPS] + [f"bot{k}" for k in range(4)]
    begin = np.mean([main[0], *bots])
    return names, truth - begin + 1000


def test_intervals_cover_curves_that_were_drawn_from_the_walk() -> None:
    covered = []
    for seed in range(60):
        names, truth = walk(seed)
        board = fit_learning_curves(simulate_ranked_matches(truth.tolist(), 120, 5, seed, names=names))
        true = dict(zip(names, truth, strict=True))
        for curve in board.curves:
            for point in curve.points:
                name = f"main@{point.step}" if curve.policy == "main" else curve.policy
                covered.append(point.low <= true[name] <= point.high)
        assert board.converged
    assert 0.93 <= np.mean(covered) <= 0.97


def test_a_rising_policy_has_a_rising_curve_and_neighbours_lend_evidence() -> None:
    names = [f"main@{step}" for step in STEPS] + ["bot"]
    truth = [800.0 + 4 * step for step in STEPS] + [1000.0]
    board = fit_learning_curves(
        simulate_ranked_matches(truth, 3000, 4, 2, names=names), options=WalkOptions(anchors={"bot": 1000.0})
    )
    main = next(curve for curve in board.curves if curve.policy == "main")
    assert [point.step for point in main.points] == STEPS
    assert [point.rating for point in main.points] == pytest.approx(truth[:-1], abs=45)
    bot = next(curve for curve in board.curves if curve.policy == "bot")
    assert (bot.points[0].low, bot.points[0].high) == (1000.0, 1000.0)

    alone = simulate_ranked_matches(truth, 60, 4, 2, names=names)
    tight = fit_learning_curves(alone, options=WalkOptions(walk=2.0)).curves
    loose = fit_learning_curves(alone, options=WalkOptions(walk=200.0)).curves
    width = [sum(p.high - p.low for c in curves for p in c.points) for curves in (tight, loose)]
    assert width[0] < width[1]


def test_a_walk_without_bound_is_the_board_that_knows_no_order() -> None:
    names = [f"main@{step}" for step in STEPS] + ["bot"]
    matches = simulate_ranked_matches([900.0 + 2 * step for step in STEPS] + [1000.0], 400, 4, 4, names=names)
    curves = fit_learning_curves(matches, options=WalkOptions(walk=1e5, start=1e5, anchors={"bot": 1000.0})).curves
    board = fit_strengths(matches, None, FitOptions("ranks", draws=0, prior_sd=1e5))
    free = {row.name: row.rating for row in board.agents}
    main = next(curve for curve in curves if curve.policy == "main")
    expected = [1000 + free[f"main@{point.step}"] - free["bot"] for point in main.points]
    assert [point.rating for point in main.points] == pytest.approx(expected, abs=0.01)


def test_versions_that_never_met_are_joined_by_the_walk_and_policies_are_not() -> None:
    score = np.array([[1.0, 0.0], [0.0, 1.0]] * 2)
    joined = make_match_arrays(np.array([[0, 1]] * 2 + [[2, 3]] * 2), score, ["main@0", "a", "main@9", "b"])
    assert {curve.policy for curve in fit_learning_curves(joined).curves} == {"main", "a", "b"}
    apart = make_match_arrays(np.array([[0, 1]] * 2 + [[2, 3]] * 2), score, ["main@0", "a", "other@9", "b"])
    with pytest.raises(UsageError, match="2 groups that never met"):
        fit_learning_curves(apart)


def test_an_agent_that_is_called_as_a_policy_is_no_version_of_it() -> None:
    matches = simulate_ranked_matches([1000, 1100, 1200], 50, 2, 0, names=["main", "main@0", "main@5"])
    curves = fit_learning_curves(matches).curves
    assert sorted((curve.policy, [point.step for point in curve.points]) for curve in curves) == [
        ("main", [0]),
        ("main", [0, 5]),
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (WalkOptions(walk=0.0), "walk is 0.0; expected Elo above 0"),
        (WalkOptions(start=float("nan")), "start is nan"),
        (WalkOptions(centre=float("inf")), "finite Elo"),
        (WalkOptions(anchors={"x": 1.0}), "'x' was in no match"),
    ],
)
def test_bad_options_say_what_was_expected(options: WalkOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit_learning_curves(simulate_ranked_matches([1000, 1000], 4, 2, 0), options=options)


def widths(matches: MatchArrays, clusters: Sequence[int] | None = None) -> list[float]:
    board = fit_learning_curves(matches, options=WalkOptions(anchors={"bot": 1000.0}), cluster_M=clusters)
    return [p.high - p.low for curve in board.curves if curve.policy == "main" for p in curve.points]


def copied(matches: MatchArrays, copies: int) -> MatchArrays:
    """Every match so many times, each with seats of its own."""
    again = matches.select(np.repeat(np.arange(len(matches)), copies))
    seats = np.concatenate([np.arange(begin, end) for begin, end in zip(again.begin_M, again.end_M, strict=True)])
    size_M = again.end_M - again.begin_M
    end_M = np.cumsum(size_M)
    own = {"agent_S": matches.agent_S[seats], "score_S": matches.score_S[seats]}
    return replace(again, begin_M=end_M - size_M, end_M=end_M, **own)


def test_matches_that_share_their_luck_count_as_the_one_that_they_are() -> None:
    names = [f"main@{step}" for step in STEPS] + ["bot"]
    once = simulate_ranked_matches([900.0 + 2 * step for step in STEPS] + [1000.0], 300, 4, 5, names=names)
    copies = 9
    nine = copied(once, copies)
    told = [place // copies for place in range(len(nine))]
    for clustered, naive, alone in zip(widths(nine, told), widths(nine), widths(once, range(len(once))), strict=True):
        assert clustered > 1.8 * naive
        assert clustered == pytest.approx(alone, rel=0.35)


def test_clusters_never_make_an_interval_narrower() -> None:
    names = [f"main@{step}" for step in STEPS] + ["bot"]
    matches = simulate_ranked_matches([900.0 + 2 * step for step in STEPS] + [1000.0], 300, 4, 6, names=names)
    for clusters in (range(len(matches)), [0] * len(matches), [place % 2 for place in range(len(matches))]):
        pairs = zip(widths(matches, clusters), widths(matches), strict=True)
        assert all(clustered >= naive for clustered, naive in pairs)
    with pytest.raises(UsageError, match="300 matches have 2 clusters"):
        widths(matches, [1, 2])
