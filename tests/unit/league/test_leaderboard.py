"""The leaderboard: Bradley–Terry ratings beside the recorded ones, as of any event; payoffs and curves by SQL."""

import re
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from league.analysis.leaderboard import Leaderboard, leaderboard
from league.plots.terminal import training_chart
from league.projections.projection import Projection
from league.queries.leaderboard import leaderboard_text
from league.queries.learning import learning_verdict, paired_benchmarks
from league.state import LeagueState
from schemas import events as e
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, RatingsConfig
from schemas.errors import UsageError
from schemas.numbers import wilson_interval
from tests.simulated_history import Simulation, leaderboard_rows

CONFIG = LeagueConfig(
    seed=4,
    evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=21),
    ratings=RatingsConfig(also=(Plugin(name="trueskill", settings={}),)),
)
HISTORY = Simulation(CONFIG).run_with_voids(16)
END = len(HISTORY)


@pytest.fixture(scope="module")
def league() -> Iterator[Projection]:
    with Projection() as projection:
        projection.apply(HISTORY)
        yield projection


def board(league: Projection, at: int | None = None, **wanted: str) -> Leaderboard:
    return leaderboard(league.connection, at=at, **wanted)


def state_at(upto: int) -> LeagueState:
    state = LeagueState()
    for recorded in HISTORY[:upto]:
        state.apply(recorded.sequence, recorded.event)
    return state


@pytest.mark.parametrize("at", [END, END // 2, END // 3, 4])
def test_by_the_official_system_it_is_that_of_the_state_then(league: Projection, at: int) -> None:
    found = board(league, at, system="elo")
    assert (found.official, found.system, found.order, found.sequence) == (True, "elo", "elo", at)
    assert [(r.rank, r.agent, r.kind, r.online, r.rated_games, r.active, r.reason) for r in found.rows] == [
        (r.rank, r.agent, r.kind, r.rating, r.games, r.active, r.reason) for r in leaderboard_rows(state_at(at))
    ]
    assert found.matches == len(league.query(f"FROM rated_matches_at({at})"))


def test_by_default_it_ranks_by_bradley_terry_with_intervals(league: Projection) -> None:
    found = board(league)
    assert (found.system, found.order, found.sequence) == ("elo", "bradley_terry", END)
    rated = [row for row in found.rows if row.rating is not None]
    assert [row.rank for row in rated] == list(range(1, len(rated) + 1))
    assert [row.rating for row in rated] == sorted((row.rating or 0.0 for row in rated), reverse=True)
    assert all(
        row.low is not None and row.high is not None and row.low < row.rating < row.high for row in rated if row.rating
    )
    assert {row.agent for row in rated} == {row.agent for row in found.rows if row.rated_games}
    assert all(row.rank is None for row in found.rows if row.rating is None)


def test_another_recorded_system_takes_the_place_of_the_official_one(league: Projection) -> None:
    found = board(league, system="trueskill")
    assert (found.official, found.system) == (False, "trueskill")
    assert [row.online for row in found.rows] == sorted((row.online for row in found.rows), reverse=True)
    assert all(row.deviation for row in found.rows if row.rated_games)
    assert "trueskill" in leaderboard_text(found, 200)


def test_an_unknown_system_or_game_is_refused_with_those_that_exist(league: Projection) -> None:
    with pytest.raises(UsageError, match=r"system 'glico': not recorded.*'bradley_terry'.*'elo'"):
        board(league, system="glico")
    with pytest.raises(UsageError, match=r"game 'go': no match of it was played; expected 'diplomacy'"):
        board(league, game="go")


def test_the_table_says_what_it_shows_and_fits_the_terminal(league: Projection) -> None:
    text = leaderboard_text(board(league), 80)
    assert text.startswith("diplomacy, by Bradley–Terry rating: ")
    assert "95 % interval" in text
    assert "Bradley–Terry over all rated matches" in text
    assert max(map(len, text.splitlines()[1:-2])) <= 80
    empty = leaderboard_text(board(league, 4), 80)
    assert "Ratings:" not in empty


@pytest.mark.parametrize(
    ("wins", "games", "low", "high"),
    [
        (0, 0, 0.0, 1.0),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (8, 10, 0.4902, 0.9433),
        (178, 210, 0.7929, 0.8899),
    ],
)
def test_wilson_gives_the_textbook_intervals(
    league: Projection, wins: int, games: int, low: float, high: float
) -> None:
    assert wilson_interval(wins, games) == pytest.approx((low, high), abs=1e-3)
    [ends] = league.query("SELECT unnest(wilson(?, ?))", [wins, games])
    assert ends == pytest.approx(wilson_interval(wins, games), abs=1e-12)


@given(st.integers(1, 10_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_share(counts: tuple[int, int]) -> None:
    low, high = wilson_interval(*counts)
    assert 0.0 <= low <= counts[0] / counts[1] + 1e-12
    assert counts[0] / counts[1] - 1e-12 <= high <= 1.0


def test_payoffs_count_each_match_once_and_leave_out_voided_ones(league: Projection) -> None:
    voided = {r.event.match.match_id for r in HISTORY if isinstance(r.event, e.MatchVoided)}
    points: dict[tuple[str, str], list[float]] = {}
    for recorded in HISTORY:
        match = recorded.event
        if not isinstance(match, e.MatchFinished) or match.match_id in voided:
            continue
        pairs: dict[tuple[str, str], list[float]] = {}
        for seat in match.seats:
            for other in match.seats:
                if seat.agent != other.agent:
                    taken = 0.5 + 0.5 * ((seat.score > other.score) - (seat.score < other.score))
                    pairs.setdefault((seat.agent, other.agent), []).append(taken)
        for pair, shares in pairs.items():
            points.setdefault(pair, []).append(sum(shares) / len(shares))
    rows = league.query("SELECT agent, opponent, games, share, low, high FROM payoff")
    assert {(agent, opponent): games for agent, opponent, games, *_ in rows} == {
        pair: len(shares) for pair, shares in points.items()
    }
    for agent, opponent, games, share, low, high in rows:
        total = sum(points[agent, opponent])
        assert share == pytest.approx(total / games)
        assert (low, high) == pytest.approx(wilson_interval(total, games))


def test_payoffs_are_as_of_an_event_and_for_a_purpose(league: Projection) -> None:
    counted = "SELECT coalesce(sum(games), 0) FROM"
    [(early,)], [(late,)] = (league.query(f"{counted} payoff_at({at})") for at in (END // 2, END))
    [(training,)] = league.query(f"{counted} payoff_at({END}, purposes := ['training'])")
    assert early < late
    assert training < late


@pytest.fixture(scope="module")
def trained() -> Iterator[Projection]:
    small = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=21))
    with Projection() as projection:
        projection.apply(Simulation(small).run(30, 0))
        yield projection


def test_benchmarks_show_before_and_after(trained: Projection) -> None:
    before, after = trained.query("SELECT agent, opponent, wins, games, share, low, high FROM benchmark_results")
    assert (before[:2], after[:2]) == (("base_model", "random_bot"), ("main@30", "random_bot"))
    assert before[5] <= before[4] == before[2] / before[3] <= before[6]
    assert after[4] > before[4]


@pytest.mark.parametrize(
    ("before", "after", "verdict", "text"),
    [
        (
            (48, 120),
            (96, 120),
            "better",
            r"It learned: main@30 wins 80 % of games against random_bot, base_model 40 %\. "
            r"It loses to no benchmark opponent\.\Z",
        ),
        (
            (60, 120),
            (66, 120),
            "open",
            "No difference is certain yet: main@30 wins 55 % of games against random_bot, .* "
            "Undecided against random_bot \\(55 % won\\): equals win 50 %\\.\\Z",
        ),
        (
            (96, 120),
            (10, 120),
            "worse",
            "It got worse: main@30 wins 8 % .* It still loses to random_bot \\(8 % won\\).",
        ),
    ],
)
def test_the_verdict_names_what_was_learned_and_who_still_wins(
    before: tuple[int, int], after: tuple[int, int], verdict: str, text: str
) -> None:
    first, last = (
        {"agent": agent, "opponent": "random_bot", "share": wins / games, "low": low, "high": high}
        for agent, (wins, games) in (("base_model", before), ("main@30", after))
        for low, high in [wilson_interval(wins, games)]
    )
    compared = "better" if last["low"] > first["high"] else "worse" if last["high"] < first["low"] else "open"
    pair = {"policy": "main", "opponent": "random_bot", "before": first, "after": last, "verdict": compared}
    found = learning_verdict([pair], 2)
    assert (found["verdict"], found["pair"]) == (verdict, pair)
    assert re.match(text, f"{found['headline']}: {found['text']}")
    assert learning_verdict([pair | {"before": None}], 2)["verdict"] == "unmeasured"
    assert "of games" not in learning_verdict([pair], 1)["text"]


def test_benchmarks_of_a_policy_are_paired_with_the_base_models(trained: Projection) -> None:
    (pair,) = paired_benchmarks(trained.connection, 10**9)
    assert (pair["before"]["agent"], pair["after"]["agent"]) == ("base_model", "main@30")
    assert pair["opponent"] == "random_bot"
    assert learning_verdict([pair], 7)["text"].startswith("main@30 wins ")


def test_version_ratings_are_those_at_the_end_of_each_evaluation(trained: Projection) -> None:
    history = Simulation(
        LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=21))
    ).run(30, 0)
    state, verdicts = LeagueState(), dict[int, float]()
    for recorded in history:
        state.apply(recorded.sequence, recorded.event)
        for evaluation in state.evaluations.values():
            if evaluation.suite == "gatekeepers" and evaluation.verdict is not None:
                verdicts.setdefault(int(evaluation.agent.partition("@")[2]), evaluation.verdict.rating)
    rows = trained.query("SELECT version, rating FROM version_ratings WHERE policy = 'main' AND NOT baseline")
    assert dict(rows) == verdicts


def test_a_version_below_a_baseline_is_a_regression_with_both_ratings() -> None:
    small = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
    weak = Simulation(small, skill=lambda agent: -5.0 if agent.startswith("main@") else 0.0).run(10, 0)
    with Projection() as projection:
        projection.apply(weak)
        rows = projection.query("SELECT version, rating, below FROM regressions")
        evaluated = projection.query("SELECT version, agent, baseline, rating FROM version_ratings")
    assert [version for version, _, _ in rows] == [5, 10], "nothing was before the first"
    for version, rating, below in rows:
        beside = {agent: other for at, agent, baseline, other in evaluated if at == version and baseline}
        assert (version, f"main@{version}", False, rating) in evaluated
        assert below == {name: other for name, other in beside.items() if other > rating}


def test_the_chart_in_a_terminal_has_a_legend_and_fits(trained: Projection) -> None:
    board = leaderboard(trained.connection)
    legend, *lines = [line.plain for line in training_chart(board, "main", ["random_bot"], 60, 8)]
    assert "━ main" in legend
    assert "━ random_bot" in legend
    assert len(lines) == 8
    assert all(len(line) <= 60 for line in lines)
    assert training_chart(board, "nobody", [], 60, 8) == []
