"""Rating histories, agents and payoffs as the pages are told them."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any
from urllib.parse import quote, urlencode

import msgspec
import pytest

from league.queries.pages import ratings as answer
from league.queries.pages import run_single_flight
from schemas.config import Plugin, RatingsConfig
from schemas.events import AgentRegistered, MatchFinished, RatingUpdated, SeatResult
from tests.simulated_history import Simulation
from tests.web.conftest import CONFIG, Site, site_of

HOSTILE = "a,b%<img src=x onerror=alert(1)>\u202e\x1b[31m"


class Shared:
    """One site for the tests that only read.

    Args:
        runner: Of its event loop.
        simulation: Whose history.
        site: Of it.
    """

    def __init__(self, runner: asyncio.Runner, simulation: Simulation, site: Site) -> None:
        self._runner = runner
        self.simulation = simulation
        self._site = site

    def visit(self, body: Callable[[Site], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine function with the site."""
        self._runner.run(body(self._site))


@pytest.fixture(scope="module")
def league(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    """A league that records Elo and TrueSkill, and has trained for some steps."""
    ratings = RatingsConfig(also=(Plugin(name="trueskill"),))
    simulation = Simulation(msgspec.structs.replace(CONFIG, ratings=ratings), seats=3)
    simulation.run(6, 4)
    with asyncio.Runner() as runner:
        opened = site_of(tmp_path_factory.mktemp("shared") / "run", simulation.history)
        site = runner.run(opened.__aenter__())
        yield Shared(runner, simulation, site)
        runner.run(opened.__aexit__(None, None, None))


def asked(path: str, **given: Any) -> str:
    return f"{path}?{urlencode(given)}"


def joined(names: list[str]) -> str:
    """As ``choices.js`` makes them."""
    return ",".join(name.replace("%", "%25").replace(",", "%2C") for name in names)


async def rows_of(site: Site, **given: Any) -> dict[str, Any]:
    return {row["agent"]: row for row in (await site.get(asked("/leaderboard", **given)))["rows"]}


async def series_of(site: Site, names: list[str], **given: Any) -> dict[str, list[list[float]]]:
    found = await site.get(asked("/ratings", agents=joined(names), **given))
    return {one["agent"]: one["points"] for one in found["series"]}


def test_a_recorded_history_is_every_update_of_an_agent(league: Shared) -> None:
    updates = [
        [recorded.sequence, recorded.time_ns // 1_000_000, change.after]
        for recorded in league.simulation.history
        if isinstance(recorded.event, RatingUpdated) and recorded.event.system == "elo"
        for change in recorded.event.changes
        if change.agent == "random_bot"
    ]

    async def body(site: Site) -> None:
        for by, place in (("event", 0), ("time", 1)):
            points = (await series_of(site, ["random_bot"], by=by))["random_bot"]
            assert points == [[update[place], update[2]] for update in updates], by
        points = (await series_of(site, ["random_bot"], by="games"))["random_bot"]
        assert points == [[number, update[2]] for number, update in enumerate(updates, start=1)]

    league.visit(body)


@pytest.mark.parametrize("system", ["elo", "trueskill"])
def test_long_histories_are_thinned_and_a_part_of_them_shows_what_lies_between(
    league: Shared, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    async def body(site: Site) -> None:
        whole = (await series_of(site, ["random_bot"], system=system))["random_bot"]
        monkeypatch.setattr(answer, "MAX_POINTS", 8)
        # Another question than before: equal ones are answered from what is kept.
        thin = (await series_of(site, ["random_bot"], system=system, by="event"))["random_bot"]
        assert len(whole) > 20
        assert len(thin) == 8
        assert (thin[0], thin[-1]) == (whole[0], whole[-1])
        assert all(point in whole for point in thin)
        first, last = thin[2][0], thin[4][0]
        part = {"by": "event", "from": first, "to": last}
        fine = (await series_of(site, ["random_bot"], system=system, **part))["random_bot"]
        assert fine == [point for point in whole if first <= point[0] <= last]
        assert len(fine) > 3
        of_games = {"by": "games", "from": 11, "to": 15}
        fine = (await series_of(site, ["random_bot"], system=system, **of_games))["random_bot"]
        assert [point[1:] for point in fine] == [point[1:] for point in whole[10:15]]

    league.visit(body)


def test_corrections_are_in_the_history(on_site: Callable[..., None]) -> None:
    simulation = Simulation(CONFIG, seats=3)
    simulation.run_with_voids(8)

    async def body(site: Site) -> None:
        rated = [name for name, row in (await rows_of(site)).items() if row["rated_games"]]
        found = await series_of(site, rated)
        assert {name: points[-1][1] for name, points in found.items()} == {
            name: row["online"] for name, row in (await rows_of(site)).items() if name in rated
        }

    on_site(simulation.history, body)


def test_wrong_questions_about_ratings_say_what_is_expected(league: Shared) -> None:
    async def body(site: Site) -> None:
        many = joined([f"a{number}" for number in range(21)])
        assert "at most 20" in (await site.get(asked("/ratings", agents=many), 400))["error"]
        for system in ("chess", "bradley_terry"):
            assert "expected 'elo'" in (await site.get(f"/ratings?agents=a&system={system}", 400))["error"]
        assert "expected" in (await site.get("/ratings?agents=a&by=moon", 400))["error"]
        assert (await series_of(site, ["nobody", HOSTILE])) == {"nobody": [], HOSTILE: []}

    league.visit(body)


def test_names_with_commas_and_markup_are_found_and_shown_as_they_are(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    async def body(site: Site) -> None:
        await site.log.append(AgentRegistered(agent=HOSTILE, kind="bot", baseline=False, rating=900.0))
        seats = [SeatResult(0, "A", HOSTILE, 1.0, 1), SeatResult(1, "B", "random_bot", 0.0, 2)]
        game = simulated.config.game.name
        match = MatchFinished("odd", game, "evaluation", "w", 1, seats, 0, "won", 3, 0.1)
        await site.league.wait_for_sequence(await site.log.append(match))
        assert [one["agent"] for one in await site.get(asked("/agents", search="ONERROR"))] == [HOSTILE]
        points = (await series_of(site, [HOSTILE]))[HOSTILE]
        assert points == []
        found = await site.get(asked("/agent", name=HOSTILE))
        assert (found["agent"], found["joined"]["kind"]) == (HOSTILE, "bot")
        assert [one["opponent"] for one in await site.get(asked("/agent/opponents", name=HOSTILE))] == ["random_bot"]
        async with site.client.get(f"/agent/{quote(HOSTILE, safe='')}") as page:
            assert page.status == 200

    on_site(simulated.history, body)


def test_an_agent_is_told_with_its_results_and_its_training(league: Shared) -> None:
    steps = [r.event for r in league.simulation.history if type(r.event).__name__ == "GradientStepTaken"]

    async def body(site: Site) -> None:
        joined_at = await rows_of(site)
        name = max((n for n in joined_at if n.startswith("main@")), key=lambda n: int(n.partition("@")[2]))
        found = await site.get(asked("/agent", name=name))
        assert found["joined"]["kind"] == "checkpoint"
        assert found["ratings"][0]["rating"] == joined_at[name]["online"]
        newest = await site.get(asked("/agent/matches", name=name, limit=3))
        assert len(newest) == 3
        assert sum(row["matches"] for row in found["played"]) >= 3
        made = await site.get(asked("/agent/steps", name=name))
        assert made["way"][0] == "base_model"
        assert made["way"][-1] == name
        told = {step["step"] for step in made["steps"]}
        accepted = sum(step.accepted for step in steps if step.step in told)
        assert made["accepted"] == accepted > 0
        assert sum(one["seats"] for one in made["opponents"]) == 2 * made["matches"]
        assert (await site.get(asked("/agent/steps", name="random_bot")))["steps"] == []
        assert "nobody" in (await site.get("/agent?name=nobody", 404))["error"]
        assert "missing" in (await site.get("/agent", 400))["error"]

    league.visit(body)


def test_head_to_head_is_what_the_payoff_matrix_says_then_and_now(league: Shared) -> None:
    end = len(league.simulation.history)

    async def body(site: Site) -> None:
        for at in (end, end // 2):
            pairs = (await site.get(asked("/payoff", at=at)))["pairs"]
            table = {pair["opponent"]: pair for pair in pairs if pair["agent"] == "random_bot"}
            met = await site.get(asked("/agent/opponents", name="random_bot", at=at))
            assert {row["opponent"] for row in met} == set(table)
            for row in met:
                for part in ("games", "share", "low", "high"):
                    assert row[part] == pytest.approx(table[row["opponent"]][part])

    league.visit(body)


def test_payoffs_can_be_of_the_best(league: Shared) -> None:
    async def body(site: Site) -> None:
        best = await site.get("/payoff?who=rated&most=3")
        rated = sorted(
            ((row["online"], name) for name, row in (await rows_of(site)).items() if row["rated_games"]), reverse=True
        )
        assert rated[0][1] in best["shown"]
        assert len(best["shown"]) == 3 < best["agents"]
        assert {pair["agent"] for pair in best["pairs"]} <= {*best["shown"]}
        assert await site.get("/payoff") == await site.get("/payoff?most=12"), "asked again, it is the same"
        assert "from 2 to 100" in (await site.get("/payoff?most=500", 400))["error"]

    league.visit(body)


def test_the_criteria_are_told_with_their_figures(league: Shared) -> None:
    async def body(site: Site) -> None:
        found = await site.get("/criteria")
        assert [one["name"] for one in found["criteria"]] == [
            "baseline_beat",
            "no_regression",
            "diversity",
            "stability",
        ]
        assert all(one["figures"] for one in found["criteria"])

    league.visit(body)


def test_systems_are_told_apart_by_where_their_ratings_come_from(league: Shared) -> None:
    async def body(site: Site) -> None:
        systems = await site.get("/systems")
        assert (systems["official"], systems["recorded"]) == ("elo", ["elo", "trueskill"])
        found = await site.get("/ratings?agents=random_bot&system=trueskill")
        assert all(len(point) == 4 for point in found["series"][0]["points"])

    league.visit(body)


def test_who_waits_for_a_slow_answer_shares_the_next_one_and_errors_hold_up_nobody() -> None:
    class Anything:
        pass

    async def main() -> None:
        league: Any = Anything()
        begun: list[int] = []
        first_may_end = asyncio.Event()

        async def work() -> int:
            begun.append(len(begun))
            if len(begun) == 1:
                await first_may_end.wait()
            return begun[-1]

        async def broken() -> int:
            raise ValueError("no")

        first = asyncio.create_task(run_single_flight(league, "q", work))
        await asyncio.sleep(0)
        wrong = asyncio.create_task(run_single_flight(league, "wrong", broken))
        others = [asyncio.create_task(run_single_flight(league, "q", work)) for _ in range(5)]
        await asyncio.sleep(0)
        first_may_end.set()
        assert await first == 0
        with pytest.raises(ValueError, match="no"):
            await wrong
        assert [await other for other in others] == [1] * 5, "what began before they asked is too old for them"

    asyncio.run(main())
