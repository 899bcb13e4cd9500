"""Many viewers, slow ones, floods of events, long tables: nobody waits for others, and nothing grows."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from league.log.base import append_in_batches
from league.log.jetstream import JetStreamLog
from league.queries import stored
from league.queries.live_league import Viewer
from league.queries.pages import Route
from league.queries.pages import training as opponents
from league.run import Run
from schemas.events import AgentRegistered, Event, MatchFailed
from tests.simulated_history import Simulation
from tests.web import story
from tests.web.chromium import Browser, missing_reason, open_browser
from tests.web.conftest import Site
from tests.web.served import start_page_server
from tests.web.test_browser import opened, texts, until
from ui.web.server import ResponseCache

VIEWERS = 100


def failures(count: int, begin: int = 0) -> list[Event]:
    """Events of no consequence, each with a text of its own."""
    return [
        MatchFailed(match_id=f"lost-{n}", purpose="training", worker="rollout-0", error=f"engine {n} died" * 8)
        for n in range(begin, begin + count)
    ]


def test_a_hundred_who_ask_the_same_are_given_one_answer(simulated: Simulation, on_site: Callable[..., None]) -> None:
    made = 0

    async def work(*_: Any) -> Any:
        nonlocal made
        made += 1
        await asyncio.sleep(0.05)
        return {"made": made}

    async def body(site: Site) -> None:
        app = web.Application()
        app.router.add_get("/x", ResponseCache(lambda _: site.league).handler(Route("/x", work, None)))
        async with TestClient(TestServer(app)) as client:

            async def ask() -> Any:
                async with client.get("/x") as response:
                    return await response.json()

            assert await asyncio.gather(*(ask() for _ in range(VIEWERS))) == [{"made": 1}] * VIEWERS
            await site.league.wait_for_sequence(await site.log.append(failures(1)[0]))
            assert await ask() == {"made": 2}, "the league has moved on"

    on_site(simulated.history, body)


def test_every_viewer_of_a_hundred_hears_of_an_event_and_leaves_nothing_behind(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    async def hear(site: Site, said: str) -> None:
        async with site.client.get("/api/live") as stream:
            async for row in stream.content:
                if said in row.decode():
                    return

    async def body(site: Site) -> None:
        hearing = [asyncio.create_task(hear(site, "engine 7 died")) for _ in range(VIEWERS)]
        async with asyncio.timeout(300):
            while len(site.league._viewers) < VIEWERS:  # noqa: ASYNC110 - the server tells nobody who comes
                await asyncio.sleep(0.01)
            await site.log.append(failures(1, 7)[0])
            await asyncio.gather(*hearing)
            # The server notices at its next message that they have gone.
            while site.league._viewers:
                await site.log.append(failures(1, 8 + site.league.position)[0])
                await asyncio.sleep(0.05)

    on_site(simulated.history, body)


def test_a_viewer_who_reads_nothing_holds_up_nobody(simulated: Simulation, on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        url = site.client.make_url("/api/live")
        reader, writer = await asyncio.open_connection(url.host, url.port, limit=1024)
        writer.write(f"GET /api/live HTTP/1.1\r\nHost: {url.host}:{url.port}\r\n\r\n".encode())
        await writer.drain()
        async with site.client.get("/api/live") as stream, asyncio.timeout(300):
            # More than fits into the buffers of both ends: 300 batches of 30 events of 200 bytes each.
            for begin in range(0, 9000, 1500):
                sequences = await append_in_batches(site.log, failures(1500, begin))
                await site.league.wait_for_sequence(sequences[-1])
            newest = (await site.get("/overview"))["sequence"]
            async for row in stream.content:
                if f'"sequence":{newest},'.encode() in row:
                    break
        writer.close()
        assert newest == len(simulated.history) + 9000
        del reader

    on_site(simulated.history, body)


def test_an_audit_that_took_long_is_given_again_and_not_made_for_every_event(
    simulated: Simulation, on_site: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(site: Site) -> None:
        auditor = opponents._Auditor()
        first = await auditor.latest(site.league, 1, None)
        monkeypatch.setattr(stored, "_REUSE_FACTOR", 1e9)
        await site.league.wait_for_sequence(await site.log.append(failures(1)[0]))
        second = await auditor.latest(site.league, 1, "main")
        assert await auditor.latest(site.league, 1, "main") is second, "asked for once"
        assert second.whole == first.whole

    on_site(simulated.history, body)


def test_what_waits_for_a_viewer_is_bounded_and_the_newest_is_kept() -> None:
    async def main() -> bytes:
        viewer = Viewer()
        for number in range(10_000):
            viewer.push(b"%d " % number)
        return await viewer.next_messages(1.0)

    waited = asyncio.run(main()).split()
    assert len(waited) < 100
    assert waited[-1] == b"9999"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if missing_reason() is not None:
        pytest.skip(str(missing_reason()))
    with open_browser() as found:
        yield found


def test_a_page_does_not_grow_while_events_pass_and_draws_long_tables_in_parts(
    tmp_path: Path, browser: Browser
) -> None:
    simulation = story.simulated()
    asyncio.run(story.store(tmp_path / "run", simulation.history, [], "x"))
    agents = [AgentRegistered(agent=f"bot-{n}", kind="bot", baseline=False, rating=900.0) for n in range(300)]

    async def append(events: list[Event]) -> int:
        async with Run(tmp_path / "run", name="league").connect("test") as client:
            return (await JetStreamLog(client, "league", "test").append_batch(events))[-1]

    def pass_by(events: list[Event]) -> None:
        last = asyncio.run(append(events))
        until(lambda: f"event {last:,} " in f"{texts(browser, '#counts')[0]} ", "the page is behind")
        until(lambda: [row for row in texts(browser, "main tr") if f"\t{last:,}\t" in row], "so is its list")

    with start_page_server(tmp_path / "run", tmp_path / "web.log") as site:
        opened(browser, site.url, "#alive.on")
        pass_by(list(agents))
        more = ".scroll > button:not([hidden])"
        until(lambda: [text for text in texts(browser, more) if text.startswith("100 more of 3")], "all rows are drawn")
        assert browser.run_script("return document.querySelectorAll('table:first-of-type tbody tr').length") <= 100 + 30
        pass_by(failures(200))
        before = browser.memory()
        for begin in range(200, 2200, 500):
            pass_by(failures(500, begin))
        after = browser.memory()
        assert after["Nodes"] <= before["Nodes"] * 1.1 + 100, (before, after)
        assert after["JSEventListeners"] <= before["JSEventListeners"] + 20, (before, after)
        assert after["JSHeapUsedSize"] <= before["JSHeapUsedSize"] * 1.5 + 1e6, (before, after)
