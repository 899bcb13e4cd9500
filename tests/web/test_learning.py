"""The answers behind the first page's question: is it learning?"""

from collections.abc import Callable
from typing import Any

import pytest

from schemas import events as e
from schemas.numbers import wilson_interval
from tests.simulated_history import Simulation
from tests.web.conftest import Site


def _benchmark(agent: str, opponent: str, wins: int, games: int = 40) -> list[e.Event]:
    name = f"{agent}-{opponent}"
    return [
        e.EvaluationRequested(evaluation_id=name, agent=agent, suite="benchmark", opponents=[opponent], matches=[]),
        e.EvaluationFinished(
            evaluation_id=name,
            agent=agent,
            suite="benchmark",
            opponents=[opponent],
            games=games,
            failed=0,
            wins=wins,
            mean_score=wins / games,
            mean_rank=1.5,
        ),
    ]


def _append(simulation: Simulation, events: list[e.Event]) -> int:
    for event in events:
        simulation.append(event)
    return len(simulation.history)


def test_the_leaderboards_ratings_by_version_beside_baselines_and_the_best_checkpoint(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    async def body(site: Site) -> None:
        found = await site.get("/learning")
        board = (await site.get("/leaderboard"))["rows"]
        rated = {
            row["agent"]: row["rating"] for row in board if row["agent"].startswith("main@") and row["rated_games"]
        }
        (policy,) = found["policies"]
        assert {f"main@{point[0]}": point[1] for point in policy["points"]} == pytest.approx(rated)
        assert [point[0] for point in policy["points"]] == sorted(point[0] for point in policy["points"])
        assert all(low < rating < high for _, rating, low, high in policy["points"])
        assert {row["agent"] for row in found["baselines"]} >= {"base_model", "random_bot"}
        assert found["best"]["agent"].startswith("main@")
        assert found["verdicts"]["main"]["verdict"] in ("better", "open", "worse", "unmeasured")
        past = await site.get("/learning?at=3")
        assert past["verdicts"]["main"]["verdict"] == "unmeasured"
        assert (past["policies"], past["best"], past["benchmarks"]) == ([], None, [])

    on_site(simulated.history, body)


@pytest.mark.parametrize(("wins", "verdict"), [(39, "better"), (20, "open"), (1, "worse")])
def test_a_benchmark_is_compared_with_the_base_models(
    simulated: Simulation, on_site: Callable[..., None], wins: int, verdict: str
) -> None:
    between = _append(simulated, _benchmark("base_model", "greedy", 18))
    _append(simulated, _benchmark("main@1", "greedy", 40) + _benchmark("main@5", "greedy", wins))
    _append(simulated, _benchmark("main@5", "mover", 7))

    async def body(site: Site) -> None:
        found = {row["opponent"]: row for row in (await site.get("/learning"))["benchmarks"]}
        greedy, mover = found["greedy"], found["mover"]
        assert (greedy["before"]["agent"], greedy["after"]["agent"]) == ("base_model", "main@5")
        assert greedy["verdict"] == verdict
        assert (greedy["after"]["low"], greedy["after"]["high"]) == pytest.approx(wilson_interval(wins, 40))
        assert (mover["before"], mover["verdict"]) == (None, "open")
        past = (await site.get(f"/learning?at={between}"))["benchmarks"]
        assert "greedy" not in {row["opponent"] for row in past}

    on_site(simulated.history, body)


def test_histories_over_gradient_steps(simulated: Simulation, on_site: Callable[..., None]) -> None:
    steps = [
        (recorded.sequence, recorded.event.step)
        for recorded in simulated.history
        if isinstance(recorded.event, e.GradientStepTaken)
    ]

    async def points(site: Site, **given: Any) -> list[list[float]]:
        query = "&".join(f"{name}={value}" for name, value in {"agents": "random_bot", **given}.items())
        (series,) = (await site.get(f"/ratings?{query}"))["series"]
        found: list[list[float]] = series["points"]
        return found

    async def body(site: Site) -> None:
        by_event, by_step = await points(site, by="event"), await points(site, by="step")
        expected = [max((step for at, step in steps if at <= place), default=0) for place, *_ in by_event]
        assert [place for place, *_ in by_step] == expected
        assert [rating for _, rating, *_ in by_step] == [rating for _, rating, *_ in by_event]
        part = await points(site, by="step", **{"from": 2, "to": 3})
        assert {place for place, *_ in part} <= {2, 3}

    on_site(simulated.history, body)
