"""What every page rests on: who may ask, answers, the live stream, the place in time."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp.test_utils import TestClient, TestServer

from league.log.base import RecordedEvent
from league.queries.live_league import summarise_event
from league.state import LeagueState
from schemas.codec import encode_event
from schemas.errors import UsageError
from schemas.events import AgentRegistered, Event, MatchFailed
from tests.simulated_history import Simulation, leaderboard_rows
from tests.web.conftest import CONFIG, Site, site_of
from ui.web.server import RequestGuard, make_application, run_names

HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b[31m"


def test_answers_are_what_the_history_says(simulated: Simulation, on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        overview, board = await site.get("/overview"), await site.get("/leaderboard")
        assert overview["sequence"] == len(simulated.history) == board["sequence"]
        ratings = {row.agent: row.rating for row in leaderboard_rows(simulated.state)}
        assert {row["agent"]: row["online"] for row in board["rows"]} == ratings

    on_site(simulated.history, body)


def test_the_past_is_shown_as_it_was(simulated: Simulation, on_site: Callable[..., None]) -> None:
    at = len(simulated.history) // 2
    then = LeagueState()
    for recorded in simulated.history[:at]:
        then.apply(recorded.sequence, recorded.event)

    async def body(site: Site) -> None:
        board = await site.get(f"/leaderboard?at={at}")
        # Beside those that had joined stands each policy's newest rated version.
        joined = {row["agent"]: row["online"] for row in board["rows"] if row["kind"] != "version"}
        assert joined == {name: agent.rating for name, agent in then.standings().agents.items()}
        newest = await site.get(f"/events?before={at + 1}&limit=3")
        assert [event["sequence"] for event in newest] == [at, at - 1, at - 2]
        places = await site.get("/timeline")
        assert places[0]["sequence"] == 1
        assert places[-1]["sequence"] == len(simulated.history)

    on_site(simulated.history, body)


def test_agents_and_matches_are_found_by_parts_of_their_names(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    async def body(site: Site) -> None:
        found = await site.get("/search?search=MAIN@&limit=5")
        assert found["agents"][0]["agent"].startswith("main@")
        newest = (await site.get("/matches?limit=1"))["rows"][0]["match_id"]
        found = await site.get(f"/search?search={quote(newest.upper())}")
        assert newest in [row["match_id"] for row in found["matches"]]
        assert found["agents"] == []
        earlier = await site.get(f"/search?search={quote(newest)}&at=10")
        assert newest not in [row["match_id"] for row in earlier["matches"]], "as of an earlier event"
        assert (await site.get("/running"))["processes"] == 0, "the league is not live"

    on_site(simulated.history, body)


def test_several_runs_are_asked_by_name(simulated: Simulation, tmp_path: Path) -> None:
    other = Simulation(CONFIG, seats=3)
    other.run(1, 1)

    async def main() -> None:
        async with (
            site_of(tmp_path / "a" / "run", simulated.history) as first,
            site_of(tmp_path / "b" / "run", other.history) as second,
        ):
            leagues = {"a/run": first.league, "b/run": second.league}
            server = TestServer(make_application(leagues, RequestGuard("127.0.0.1")))
            async with TestClient(server) as client:
                site = Site(first.league, first.log, client)
                assert [row["run"] for row in await site.get("/runs")] == list(leagues)
                for query, history in (("", simulated), ("?run=a/run", simulated), ("?run=b/run", other)):
                    assert (await site.get(f"/overview{query}"))["sequence"] == len(history.history)
                    body = {"statement": "SELECT count(*) FROM events", "page": "p"}
                    async with client.post(f"/api/sql{query}", json=body) as response:
                        assert (await response.json())["rows"] == [[len(history.history)]]
                refused = await site.get("/overview?run=c", 400)
                assert refused["error"] == "run 'c': not among the runs shown; expected 'a/run' or 'b/run'"

    asyncio.run(main())


def test_runs_are_named_by_as_much_of_their_paths_as_tells_them_apart() -> None:
    assert run_names([Path("/x/.league")]) == [".league"]
    assert run_names([Path("/x/a"), Path("/x/b")]) == ["a", "b"]
    assert run_names([Path("/x/a/run"), Path("/x/b/run"), Path("/x/c")]) == ["a/run", "b/run", "x/c"]
    with pytest.raises(UsageError, match="given twice"):
        run_names([Path("/x/a"), Path("/x/a")])


def test_an_event_reaches_an_open_page_and_the_tables(simulated: Simulation, on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        async with site.client.get("/api/live") as stream:
            event = AgentRegistered(agent=HOSTILE, kind="bot", baseline=False, rating=900.0)
            sequence = await site.log.append(event)
            async with asyncio.timeout(300):
                while (told := await _until(stream, "events"))[-1]["sequence"] < sequence:
                    pass
        assert told[-1]["agent"] == HOSTILE
        await site.league.wait_for_sequence(sequence)
        assert HOSTILE in [row["agent"] for row in (await site.get("/leaderboard"))["rows"]]

    on_site(simulated.history, body)


async def _until(stream: Any, kind: str) -> Any:
    """The data of the next message of a kind."""
    said = ""
    async for raw in stream.content:
        line = raw.decode().rstrip("\n")
        if line.startswith("event: "):
            said = line.removeprefix("event: ")
        elif line.startswith("data: ") and said == kind:
            return json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream ended")


def test_a_wrong_question_is_answered_with_what_was_expected(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    async def body(site: Site) -> None:
        assert "whole number" in (await site.get("/leaderboard?at=yesterday", 400))["error"]
        assert "expected 'bradley_terry'" in (await site.get("/leaderboard?system=chess", 400))["error"]
        assert "from 1 to 500" in (await site.get("/events?limit=0", 400))["error"]
        async with site.client.get("/api/nothing") as response:
            assert response.status == 404

    on_site(simulated.history, body)


def test_foreign_names_and_pages_are_refused(simulated: Simulation, on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        async with site.client.get("/api/overview", headers={"Host": "evil.example"}) as response:
            assert response.status == 403
        async with site.client.post("/api/sql", headers={"Origin": "http://evil.example"}) as response:
            assert response.status == 403
        async with site.client.post("/api/sql", data="x=1") as response:
            assert response.status == 415
        async with site.client.get("/") as response:
            assert "default-src 'self'" in response.headers["Content-Security-Policy"]
            assert "unsafe-inline" not in response.headers["Content-Security-Policy"]

    on_site(simulated.history, body)


def test_with_a_token_only_who_has_it_gets_in(simulated: Simulation, on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        for path in ("/", "/api/overview", "/api/live", "/static/app.js", "/?token=wrong"):
            async with site.client.get(path) as response:
                assert response.status == 401, path
        async with site.client.get("/?token=right&at=5", allow_redirects=False) as response:
            assert response.status == 303
            assert response.headers["Location"] == "/?at=5"
        async with site.client.get("/api/overview") as response:
            assert response.status == 200, "the cookie lets in"

    on_site(simulated.history, body, token="right")


def test_what_happened_is_told_in_a_line_that_people_can_read() -> None:
    def line(event: Event) -> str:
        return summarise_event(RecordedEvent(1, 0, "subject", "web", encode_event(event))).text

    failed = MatchFailed(match_id="m", purpose="exhibition", worker="web", error="GameError: the person left")
    assert line(failed) == "exhibition: failed at web: GameError: the person left"
    assert line(AgentRegistered(agent="new", kind="bot", baseline=False, rating=1.0)) == "agent new, kind bot"
    assert line(AgentRegistered(agent="new", kind="bot", baseline=True, rating=1.0)) == "agent new, kind bot, baseline"
    assert len(line(MatchFailed(match_id="m", purpose="training", worker="w", error="x" * 500))) == 160


def test_a_league_can_be_closed_while_its_tables_are_read(simulated: Simulation, on_site: Callable[..., None]) -> None:
    asked: list[asyncio.Task[Any]] = []

    async def body(site: Site) -> None:
        endless = "SELECT count(*) FROM range(10000000000) a, range(10000000000) b"
        began = threading.Event()

        def read(connection: Any) -> Any:
            began.set()
            return connection.execute(endless).fetchall()

        asked.append(asyncio.create_task(site.league.read(read)))
        await asyncio.to_thread(began.wait)
        # So that the query runs when the league is closed, in all likelihood; it has to end either way.
        await asyncio.sleep(0.2)

    on_site(simulated.history, body)
    assert asked[0].done()
