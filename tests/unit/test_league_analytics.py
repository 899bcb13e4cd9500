"""Figures for people."""

from math import nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from league.analysis.summary import RatingCurve, benchmark_rows, leaderboard_rows, rating_curve, wilson_interval
from league.plots.braille import training_chart
from league.plots.render import draw_rating_curve
from league.state import LeagueState
from schemas.config import EvaluationConfig, LeagueConfig
from tests.simulated_history import Simulation

SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=21))


@pytest.fixture(scope="module")
def state() -> LeagueState:
    simulation = Simulation(SMALL)
    simulation.run(30, 0)
    return simulation.state


@pytest.mark.parametrize(
    ("wins", "n", "low", "high"),
    [
        (0, 0, 0.0, 1.0),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (8, 10, 0.4902, 0.9433),
        (178, 210, 0.7929, 0.8899),
    ],
)
def test_wilson_gives_the_textbook_intervals(wins: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(wins, n) == pytest.approx((low, high), abs=1e-3)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_share(counts: tuple[int, int]) -> None:
    low, high = wilson_interval(*counts)
    assert 0.0 <= low <= counts[0] / counts[1] + 1e-12
    assert counts[0] / counts[1] - 1e-12 <= high <= 1.0


def test_the_leaderboard_is_sorted_by_rating(state: LeagueState) -> None:
    rows = leaderboard_rows(state)
    assert [row.rank for row in rows] == list(range(1, len(rows) + 1))
    assert [row.rating for row in rows] == sorted((row.rating for row in rows), reverse=True)
    assert {row.agent for row in rows} == set(state.agents)


def test_benchmarks_show_before_and_after(state: LeagueState) -> None:
    before, after = benchmark_rows(state)
    assert (before.agent, after.agent) == ("base_model", "main@30")
    assert before.opponent == after.opponent == "random_bot"
    assert before.low <= before.share == before.wins / before.games <= before.high
    assert after.share > before.share


def test_the_curve_has_a_point_per_evaluated_version(state: LeagueState) -> None:
    curve = rating_curve(state, "main")
    assert curve.steps == [1, 5, 10, 15, 20, 25, 30]
    assert len(curve.hero) == len(curve.past_best) == 7
    assert all(best >= rating for best, rating in zip(curve.past_best, curve.hero, strict=True))
    assert curve.past_best == sorted(curve.past_best)
    assert set(curve.baselines) == {"base_model", "random_bot", "chaos_bot"}


@pytest.mark.parametrize("policy", ["main", "nobody"])
def test_the_curve_is_drawn_without_a_display(state: LeagueState, policy: str, tmp_path: Path) -> None:
    path = tmp_path / "elo.png"
    draw_rating_curve(rating_curve(state, policy), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_baseline_that_joined_late_is_drawn_from_its_first_rating() -> None:
    hero = [1000.0, 1010.0, 990.0]
    curve = RatingCurve("main", [1, 2, 5], hero, hero, {"late_bot": [nan, 1100.0, 1120.0]})
    legend, top, *_ = [line.plain for line in training_chart(curve, 60, 8)]
    assert "b late_bot" in legend
    assert top.strip().startswith("1120 ")
    assert top.endswith("b")
