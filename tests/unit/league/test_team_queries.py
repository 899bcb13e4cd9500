"""Teams in SQL and on the leaderboard, and one board over several games."""

from collections.abc import Sequence

import pytest

from league.analysis.bradley_terry import MatchResults, fit_strengths
from league.analysis.leaderboard import leaderboard
from league.matchmaking.schedule import initial_agent_events
from league.projections.projection import Projection
from schemas import events as e
from schemas.config import LeagueConfig, Plugin, to_builtins
from schemas.errors import UsageError
from schemas.events import SeatResult
from tests.simulated_history import Simulation

SEATS = [("main@1", "NS"), ("random_bot", "EW"), ("base_model", "NS"), ("random_bot", "EW")]


def finished(
    match_id: str, seats: Sequence[tuple[str, str]], winners: set[int], environment: str = ""
) -> e.MatchFinished:
    results = [
        SeatResult(
            *(seat, f"P{seat}", agent, 1.0 if seat in winners else -1.0, 1 if seat in winners else 2),
            team=team,
            drawn_role="Doctor" if team and seat == 0 else "",
        )
        for seat, (agent, team) in enumerate(seats)
    ]
    return e.MatchFinished(
        *(match_id, "textarena", "evaluation", "evaluator-0", 1, results, min(winners), "over", 3, 0.1),
        environment=environment,
    )


def projection_of(matches: Sequence[e.MatchFinished]) -> Projection:
    simulation = Simulation(LeagueConfig(game=Plugin(name="textarena", settings={})))
    config = simulation.config
    opened = e.LeagueOpened(league=config.name, config=to_builtins(config), model="none")
    for event in (opened, *initial_agent_events(config), *matches):
        simulation.append(event)
    projection = Projection()
    projection.apply(simulation.history)
    return projection


def test_a_teams_members_won_together_and_are_no_opponents_of_each_other() -> None:
    with projection_of([finished("m1", SEATS, {0, 2})]) as league:
        seats = league.query("SELECT agent, role, team, side, won FROM match_seats ORDER BY seat")
        assert seats == [
            ("main@1", "Doctor", "NS", 0, True),
            ("random_bot", "P1", "EW", 1, False),
            ("base_model", "P2", "NS", 0, True),
            ("random_bot", "P3", "EW", 1, False),
        ]
        met = league.query("SELECT opponent, wins, losses, share FROM payoff WHERE agent = 'main@1'")
        assert met == [("random_bot", 2, 0, 1.0)]
        rows = {row.agent: row for row in leaderboard(league.connection).rows}
        assert (rows["base_model"].wins, rows["random_bot"].wins) == (1, 0)
        assert rows["base_model"].online > 1000.0
        assert rows["base_model"].rating is not None
        assert rows["random_bot"].rating is not None
        assert rows["base_model"].rating > rows["random_bot"].rating


def teams_of(matches: Sequence[tuple[str, str, int]]) -> MatchResults:
    """Matches between a winning and a losing team, each a string of agents, so many times."""
    import numpy as np

    names = sorted({agent for won, lost, _ in matches for agent in won + lost})
    rows = [
        (match, side, names.index(agent), 1.0 - side)
        for match, (won, lost) in enumerate((won, lost) for won, lost, count in matches for _ in range(count))
        for side, team in enumerate((won, lost))
        for agent in team
    ]
    match, side, agent, score = (np.array(column) for column in zip(*rows, strict=True))
    return MatchResults(match, side, agent, score.astype(float), np.ones(len(rows)), names)


def test_the_mean_of_a_teams_strengths_explains_its_results() -> None:
    found = fit_strengths(teams_of([("ab", "cd", 30), ("cd", "ab", 10), ("ac", "bd", 30), ("bd", "ac", 10)]))
    assert found["b"].rating == pytest.approx(found["c"].rating)
    assert found["a"].rating > found["b"].rating > found["d"].rating
    # 3 to 1 are 191 points between the means of the teams.
    assert (found["a"].rating - found["d"].rating) / 2 == pytest.approx(191, abs=4)
    assert all(each.low < each.rating < each.high for each in found.values())


def test_the_order_of_a_teams_seats_does_not_matter_to_the_board() -> None:
    found = fit_strengths(teams_of([("aab", "c", 7), ("c", "baa", 5), ("b", "c", 4)]))
    moved = fit_strengths(teams_of([("aba", "c", 7), ("c", "aab", 5), ("b", "c", 4)]))
    assert {name: each.rating for name, each in moved.items()} == pytest.approx(
        {name: each.rating for name, each in found.items()}
    )


def duel(number: int, winner: str, loser: str, environment: str) -> e.MatchFinished:
    return finished(f"{environment}-{number}", [(winner, ""), (loser, "")], {0}, environment)


def test_all_games_count_alike_on_one_board_however_many_matches_each_has() -> None:
    often = [duel(number, *("base_model", "random_bot")[:: 1 if number % 4 else -1], "Nim") for number in range(80)]
    seldom = [duel(number, *("random_bot", "base_model")[:: 1 if number % 4 else -1], "Tak") for number in range(8)]
    with projection_of([*often, *seldom]) as league:
        board = leaderboard(league.connection, all_games=True)
        assert (board.game, board.matches) == ("2 games with equal weight", 88)
        rated = {row.agent: row.rating for row in board.rows if row.rating is not None}
        assert rated["base_model"] == pytest.approx(rated["random_bot"], abs=1e-6)
        one = {row.agent: row.rating for row in leaderboard(league.connection).rows if row.rating is not None}
        assert one["base_model"] > one["random_bot"] + 50
        weights = league.query("SELECT environment, sum(weight) FROM rated_games_at(1000) GROUP BY ALL ORDER BY ALL")
        assert [weight for _, weight in weights] == pytest.approx([44.0, 44.0])
        with pytest.raises(UsageError, match=r"all games: .* expected neither a game nor a rating system"):
            leaderboard(league.connection, system="elo", all_games=True)
