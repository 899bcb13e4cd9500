"""Finding the worker whose results are not like the others'."""

from random import Random

import pytest

from league.queries.reports import MIN_MATCHES, worker_residuals
from schemas.events import MatchFinished
from tests.builders import match_finished

RATINGS = {"strong": 1200.0, "middle": 1000.0, "weak": 800.0}


def played(worker: str, number: int, order: list[str]) -> MatchFinished:
    seats = [(agent, float(-at)) for at, agent in enumerate(order)]
    return match_finished(*seats, match_id=f"{worker}-{number}", worker=worker, winner=0)


def honest(worker: str, matches: int, random: Random) -> list[MatchFinished]:
    """Orders drawn by the ratings: agents are picked for the next rank with odds of 10^(rating / 400)."""
    found = []
    for number in range(matches):
        left, order = dict(RATINGS), list[str]()
        while left:
            [picked] = random.choices(list(left), [10 ** (rating / 400) for rating in left.values()])
            order.append(picked)
            del left[picked]
        found.append(played(worker, number, order))
    return found


def test_a_worker_that_makes_an_agent_win_stands_out_and_honest_ones_do_not() -> None:
    random = Random(5)
    matches = [match for worker in ("a", "b", "c") for match in honest(worker, 100, random)]
    matches += [played("liar", number, ["weak", "middle", "strong"]) for number in range(15)]
    matches += honest("liar", 15, random)
    rows = worker_residuals(matches, RATINGS)
    assert rows[0].worker == "liar"
    assert rows[0].z > 4 > max(row.z for row in rows[1:])
    assert (rows[0].matches, rows[0].surprise > 0) == (30, True)
    assert (rows[0].favours, (rows[0].favours_z or 0) > 4) == ("weak", True) or (rows[0].favours_z or 0) < -4


def test_a_small_lie_in_favour_of_one_agent_shows_in_what_the_worker_favours() -> None:
    random = Random(6)
    matches = [match for worker in ("a", "b") for match in honest(worker, 300, random)]
    matches += [played("liar", n, sorted(RATINGS, key=lambda agent: (agent != "middle", n % 2))) for n in range(60)]
    found = {row.worker: row for row in worker_residuals(matches, RATINGS)}
    assert found["liar"].favours == "middle"
    assert (found["liar"].favours_z or 0) > 4


def test_too_few_matches_and_nobody_to_compare_with_give_no_verdict() -> None:
    random = Random(7)
    few = honest("few", MIN_MATCHES - 1, random)
    rows = {row.worker: row for row in worker_residuals([*honest("many", 50, random), *few], RATINGS)}
    assert (rows["few"].surprise_z, rows["few"].favours, rows["few"].z) == (None, "", 0.0)
    assert rows["many"].surprise_z is None
    [alone] = worker_residuals(honest("alone", 50, random), RATINGS)
    assert alone.surprise_z is None


def test_unrated_agents_and_an_agent_against_itself_say_nothing() -> None:
    assert worker_residuals([played("a", 1, ["weak", "weak", "unknown"])], RATINGS) == []
    [row] = worker_residuals([played("a", 1, ["strong", "weak", "weak"])], RATINGS)
    expected = 1 / (1 + 10 ** (-400 / 400))
    assert row.surprise == pytest.approx(2 * ((1 - expected) ** 2 - expected * (1 - expected)))


def test_ratings_however_far_apart_break_nothing() -> None:
    [row] = worker_residuals([played("a", 1, ["low", "high"])], {"low": -1e300, "high": 1e300})
    assert row.surprise == pytest.approx(1.0)
