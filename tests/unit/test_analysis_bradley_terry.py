"""Maximum-likelihood boards against closed forms, a slow reference, and leagues whose truth is known."""

from dataclasses import replace
from itertools import combinations, pairwise, permutations
from math import exp, inf, log, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.synthetic_matches import make_match_arrays, simulate_ranked_matches
from league.analysis.bradley_terry import ELO_PER_LOG_UNIT, FitOptions, FittedStrengths, fit_strengths
from league.ratings.arrays import MatchArrays
from schemas.errors import UsageError

POINT = FitOptions(draws=0)


def duel(wins: int, ties: int, losses: int) -> MatchArrays:
    scores = [[1, 0]] * wins + [[1, 1]] * ties + [[0, 1]] * losses
    return make_match_arrays(np.array([[0, 1]] * len(scores)), np.array(scores, float), ["left", "right"])


def ratings(board: FittedStrengths) -> dict[str, float]:
    return {row.name: row.rating for row in board.agents}


def lead(board: FittedStrengths) -> float:
    """Log-odds of ``left`` over ``right``."""
    found = ratings(board)
    return (found["left"] - found["right"]) / ELO_PER_LOG_UNIT


def logs(matches: MatchArrays, board: FittedStrengths, model: str, roles: list[str] | None = None) -> float:
    """The log-likelihood, from its definition."""
    strength = {row.name: row.rating / ELO_PER_LOG_UNIT for row in board.agents}
    role = {row.name: row.rating / ELO_PER_LOG_UNIT for row in board.roles}
    total = 0.0
    for begin, end in zip(matches.begin_M, matches.end_M, strict=True):
        worth = [
            exp(
                strength[matches.agents[matches.agent_S[s]]]
                - 1000 / ELO_PER_LOG_UNIT
                + (role[roles[s]] if roles else 0)
            )
            for s in range(begin, end)
        ]
        score = matches.score_S[begin:end]
        total += ranks_log(worth, score) if model == "ranks" else pairs_log(worth, score, board.tie)
    return total


def pairs_log(worth: list[float], score: list[float], tie: float | None) -> float:
    total = 0.0
    for i, j in combinations(range(len(worth)), 2):
        even = (tie or 0) * (worth[i] * worth[j]) ** 0.5
        whole = worth[i] + worth[j] + even
        if score[i] == score[j]:
            total += log(even / whole) if tie else 0.5 * log(worth[i] * worth[j] / whole**2)
        else:
            total += log(worth[i if score[i] > score[j] else j] / whole)
    return total


def ranks_log(worth: list[float], score: list[float]) -> float:
    allowed = [
        order for order in permutations(range(len(worth))) if all(score[a] >= score[b] for a, b in pairwise(order))
    ]
    found = [sum(log(worth[a] / sum(worth[b] for b in order[k:])) for k, a in enumerate(order)) for order in allowed]
    return sum(found) / len(found)


@pytest.mark.parametrize("model", ["pairs", "ranks"])
def test_two_agents_differ_by_the_log_odds_of_their_wins(model: str) -> None:
    board = fit_strengths(duel(30, 0, 10), options=FitOptions(model=model, draws=0, prior_sd=1e7))
    assert lead(board) == pytest.approx(log(3), abs=1e-6)


@pytest.mark.parametrize("options", [FitOptions(model="ranks", draws=0), FitOptions(ties="half", draws=0)])
def test_a_tie_of_two_is_half_a_win_for_each(options: FitOptions) -> None:
    board = fit_strengths(
        duel(20, 10, 5), options=FitOptions(model=options.model, ties=options.ties, draws=0, prior_sd=1e7)
    )
    assert lead(board) == pytest.approx(log(25 / 10), abs=1e-6)


def test_davidsons_ties_have_their_closed_form_for_two_agents() -> None:
    board = fit_strengths(duel(20, 10, 5), options=FitOptions(draws=0, prior_sd=1e7))
    assert lead(board) == pytest.approx(log(4), abs=1e-6)
    # ν = ties / sqrt(wins · losses); its own weak prior moves the third digit.
    assert board.tie == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("model", ["pairs", "ranks"])
def test_the_naive_interval_of_two_agents_is_the_textbook_one(model: str) -> None:
    board = fit_strengths(duel(30, 0, 10), options=FitOptions(model=model, draws=0, prior_sd=1e7))
    # Var(log-odds) = 1/wins + 1/losses, of which each of the two bears half of the deviation.
    expected = 1.959964 * ELO_PER_LOG_UNIT * (1 / 30 + 1 / 10) ** 0.5 / 2
    assert board.agents[0].naive_high - board.agents[0].rating == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("model", ["pairs", "ranks"])
@pytest.mark.parametrize("seats", [2, 3, 5])
def test_the_maximum_agrees_with_the_definition(model: str, seats: int) -> None:
    matches = simulate_ranked_matches([1100, 1000, 1000, 900, 950, 1050], 60, seats, seats, levels=1.0)
    roles = [str(seat) for _ in range(60) for seat in range(seats)]
    board = fit_strengths(matches, roles, FitOptions(model=model, draws=0))
    assert board.converged

    def posterior(rows: FittedStrengths) -> float:
        squares = sum(((row.rating - 1000) / 800) ** 2 for row in rows.agents)
        squares += sum((row.rating / 800) ** 2 for row in rows.roles)
        return logs(matches, rows, model, roles) - 0.5 * squares

    best = posterior(board)
    for rows in ("agents", "roles"):
        for place, row in enumerate(getattr(board, rows)):
            for step in (-0.5, 0.5):
                moved = list(getattr(board, rows))
                moved[place] = type(row)(**{**_fields(row), "rating": row.rating + step})
                assert posterior(type(board)(**{**_fields(board), rows: moved})) < best


def _fields(struct: object) -> dict[str, object]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 8), st.integers(0, 10**6), st.sampled_from(["pairs", "ranks"]))
def test_names_and_order_of_matches_do_not_matter(seats: int, seed: int, model: str) -> None:
    options = FitOptions(model=model, draws=0)
    matches = simulate_ranked_matches([1000 + 60 * k for k in range(9)], 80, seats, seed, levels=0.7)
    rng = np.random.default_rng(seed)
    name, order = rng.permutation(9), rng.permutation(80)
    renamed = replace(
        matches,
        agents=[matches.agents[k] for k in np.argsort(name)],
        agent_S=name[matches.agent_S].astype(np.int32),
        begin_M=matches.begin_M[order],
        end_M=matches.end_M[order],
    )
    assert ratings(fit_strengths(renamed, options=options)) == pytest.approx(
        ratings(fit_strengths(matches, options=options)), abs=1e-6
    )


@pytest.mark.parametrize("model", ["pairs", "ranks"])
def test_a_planted_order_and_planted_seats_are_recovered(model: str) -> None:
    truth = [700.0, 850.0, 1000.0, 1150.0, 1300.0]
    seats = [60.0, 0.0, -20.0, -40.0]
    matches = simulate_ranked_matches(truth, 6000, 4, 1, role_elo=seats)
    board = fit_strengths(matches, ["first", "second", "third", "fourth"] * 6000, FitOptions(model=model, draws=0))
    assert [row.name for row in board.agents] == [f"agent{k}" for k in (4, 3, 2, 1, 0)]
    assert [row.rating for row in board.agents] == pytest.approx(truth[::-1], abs=20)
    found = {row.name: row.rating for row in board.roles}
    assert [found[name] for name in ("first", "second", "third", "fourth")] == pytest.approx(seats, abs=15)
    assert sum(found.values()) == pytest.approx(0, abs=1e-9)


def test_a_win_more_raises_the_winner() -> None:
    before, after = fit_strengths(duel(10, 2, 5), options=POINT), fit_strengths(duel(11, 2, 5), options=POINT)
    assert lead(after) > lead(before)


def test_the_mean_of_the_agents_is_the_centre() -> None:
    matches = simulate_ranked_matches([1000, 1200, 1400], 3000, 3, 5)
    found = ratings(fit_strengths(matches, options=FitOptions(draws=0, centre=500.0)))
    assert np.mean(list(found.values())) == pytest.approx(500)
    assert found["agent2"] == pytest.approx(700, abs=30)


@pytest.mark.parametrize("model", ["pairs", "ranks"])
def test_who_never_lost_stays_finite_and_is_marked(model: str) -> None:
    board = fit_strengths(duel(12, 0, 0), options=FitOptions(model=model, draws=20))
    assert all(np.isfinite([row.rating, row.low, row.high]).all() and row.one_sided for row in board.agents)
    assert 200 < board.agents[0].rating - board.agents[1].rating < 2000
    own = make_match_arrays(
        np.array([[0, 0, 1]] * 3), np.array([[2.0, 1.0, 0.0], [1, 1, 0], [1, 2, 0]]), ["left", "right"]
    )
    assert all(row.one_sided for row in fit_strengths(own, options=POINT).agents)
    assert not any(row.one_sided for row in fit_strengths(duel(3, 0, 1), options=POINT).agents)
    assert not any(row.one_sided for row in fit_strengths(duel(3, 1, 0), options=POINT).agents)


def test_only_ties_are_even() -> None:
    assert lead(fit_strengths(duel(0, 9, 0), options=FitOptions(draws=10))) == pytest.approx(0)


def test_an_agent_in_several_seats_plays_each_but_not_itself() -> None:
    both = make_match_arrays(
        np.array([[0, 0, 1]] * 8), np.array([[2, 0, 1]] * 5 + [[2, 3, 1]] * 3, float), ["left", "right"]
    )
    pairs = make_match_arrays(np.array([[0, 1]] * 16), np.array([[1, 0]] * 11 + [[0, 1]] * 5, float), ["left", "right"])
    assert lead(fit_strengths(both, options=POINT)) == pytest.approx(lead(fit_strengths(pairs, options=POINT)))
    assert {row.matches for row in fit_strengths(both, options=POINT).agents} == {8}


def test_the_bootstrap_depends_on_its_seed_and_not_on_threads() -> None:
    matches = simulate_ranked_matches([900, 1000, 1100, 1200], 200, 4, 3, levels=1.0)
    one, two, other = (
        fit_strengths(matches, options=FitOptions(draws=60, threads=threads, seed=seed))
        for threads, seed in ((1, 7), (3, 7), (1, 8))
    )
    assert one == two
    assert one.agents[0].low != other.agents[0].low
    assert [row.rating for row in one.agents] == [row.rating for row in other.agents]


@pytest.mark.parametrize("model", ["pairs", "ranks"])
def test_clustered_intervals_cover_the_truth_and_naive_ones_of_pairs_do_not(model: str) -> None:
    truth = np.array([1000.0 + 40 * (k - 5.5) for k in range(12)])
    clustered, naive = [], []
    for league in range(40):
        board = fit_strengths(
            simulate_ranked_matches(truth.tolist(), 250, 7, league),
            options=FitOptions(model=model, draws=150, seed=league),
        )
        for row in board.agents:
            true = truth[int(row.name.removeprefix("agent"))]
            clustered.append(row.low <= true <= row.high)
            naive.append(row.naive_low <= true <= row.naive_high)
    assert 0.93 <= np.mean(clustered) <= 0.97
    assert (np.mean(naive) < 0.91) == (model == "pairs")


def test_matches_that_compare_nobody_are_passed_over_and_counted() -> None:
    matches = duel(4, 0, 2)
    broken = replace(
        matches, score_S=matches.score_S.copy(), end_M=matches.end_M.copy(), agent_S=matches.agent_S.copy()
    )
    broken.score_S[0], broken.score_S[3] = nan, inf
    broken.end_M[2] -= 1
    broken.agent_S[7] = 0
    board = fit_strengths(broken, options=POINT)
    assert (board.matches, board.passed_over) == (2, 4)
    assert lead(board) == pytest.approx(lead(fit_strengths(duel(0, 0, 2), options=POINT)))


def test_disconnected_groups_are_refused() -> None:
    agents = np.array([[0, 1], [1, 0], [2, 3], [3, 2]])
    matches = make_match_arrays(agents, np.array([[1.0, 0.0]] * 4), ["a", "b", "c", "d"])
    with pytest.raises(UsageError, match="2 groups that never met"):
        fit_strengths(matches, options=POINT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"begin_M": np.array([0, 1]), "end_M": np.array([2, 3])}, "listed twice, at sequences 1 and 2"),
        ({"begin_M": np.array([0, 2]), "end_M": np.array([2, 9])}, "sequence 2 has seats outside"),
        ({"agent_S": np.array([0, 1, 5, 0], np.int32)}, "outside the 2 agents"),
        ({"score_S": np.zeros(3)}, "4 seats have 3 scores"),
        ({"score_S": np.full(4, nan)}, "none of 2 matches compares"),
        ({"game_M": np.array([0, 1], np.int32), "games": ["nim", "go"]}, r"several games \(nim, go\)"),
    ],
)
def test_bad_histories_say_where(change: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit_strengths(replace(duel(1, 0, 1), **change), options=POINT)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (FitOptions(prior_sd=0.0), "prior_sd is 0.0"),
        (FitOptions(draws=-1), "-1 draws"),
        (FitOptions(model="elo"), "no model is called 'elo'; expected 'pairs' or 'ranks'"),
        (FitOptions(ties="loss"), "'loss'; expected 'davidson' or 'half'"),
    ],
)
def test_bad_options_say_what_was_expected(options: FitOptions, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fit_strengths(duel(2, 0, 1), options=options)


def test_no_matches_missing_roles_and_too_many_ties_are_refused() -> None:
    with pytest.raises(UsageError, match="none of 0 matches"):
        fit_strengths(duel(1, 0, 0).select(np.array([False])), options=POINT)
    with pytest.raises(UsageError, match="2 scores and 1 roles"):
        fit_strengths(duel(1, 0, 0), ["only"], POINT)
    many = make_match_arrays(np.arange(4002).reshape(-1, 2), np.zeros((2001, 2)), [str(k) for k in range(4002)])
    with pytest.raises(UsageError, match="4002 agents were compared; expected at most 4000"):
        fit_strengths(many, options=POINT)
    crowd = make_match_arrays(np.array([list(range(9))] * 2), np.zeros((2, 9)), [str(k) for k in range(9)])
    with pytest.raises(UsageError, match="9 seats tie"):
        fit_strengths(crowd, options=FitOptions(model="ranks", draws=0))
