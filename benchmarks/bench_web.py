"""``league web`` over 100,000 matches between 500 agents.

The first page, every answer, events as they happen, 100 viewers, and an hour's worth of events played back at once.

The server is the command that people start, in a process of its own; viewers are clients of its live stream that ask
again whenever they are told to, as an open page does. Where there is a Chromium, it opens the pages too. Beside the
time by the clock stands the server's processor time, which says the same on a machine that others use too.
"""

import argparse
import asyncio
import contextlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import psutil

from benchmarks import web_history
from benchmarks.chromium import Browser, chromium, missing
from benchmarks.web_served import Served, served
from league.log.base import Recorded
from league.log.jetstream import JetStreamLog
from workers.run import Run

PAGE = ("/systems", "/overview", "/timeline", "/leaderboard?system=elo", "/events?limit=30")
"""What the first page asks when it is opened; the leaderboard is asked again whenever the league moves on."""
ANSWERS = (
    *PAGE,
    "/leaderboard?at={middle}",
    "/leaderboard?system=glicko2",
    "/leaderboard?system=bradley_terry",
    "/leaderboard?intervals=affordable",
    "/events?limit=100&type=GradientStepTaken",
    "/agents?search=9",
    "/agent?name={agent}",
    "/agent/opponents?name={agent}",
    "/agent/matches?name={agent}",
    "/agent/steps?name={agent}",
    "/ratings?agents={agent},random_bot,base_model",
    "/ratings?agents={agent},random_bot&system=trueskill",
    "/payoff",
    "/payoff?most=50",
    "/payoff?who=rated",
    "/matches",
    "/matches?agent={agent}&outcome=won",
    "/matches?agent={agent}&at={middle}",
    "/matches?outcome=failed",
    "/matches/options",
    "/match/{match}",
    "/match/{match}/explain",
    "/training",
    "/training/curves?names=accepted,wall_s&policy=main",
    "/training/steps?policy=main",
    "/training/ledger",
    "/matchmaking",
    "/matchmaking/audit",
    "/lineage",
    "/workers",
    "/problems",
    "/sql/tables",
)
TIMES = 3
EVENTS = 40
VIEWERS = 100
VIEWING_S = 20.0
AGAIN_S = 0.5
"""A page asks again so often, at most; and for at most a tenth of the time."""
RATE = 10.0
"""Events a second while others look on, and in the hour that is played back."""
ROUNDS = 6


class Parts(NamedTuple):
    """Of many durations, in milliseconds."""

    p50: float
    p99: float
    most: float


def parts(seconds: Sequence[float]) -> Parts:
    """The middle, the 99th part of a hundred, and the longest."""
    ordered = sorted(1000 * one for one in seconds)
    return Parts(statistics.median(ordered), ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)], ordered[-1])


def line(what: str, found: Sequence[float], server_s: float | None = None, more: str = "") -> None:
    """One row of the table; ``server_s`` is the server's processor time for all of it."""
    p = parts(found)
    each = "" if server_s is None else f"{1000 * server_s / len(found):,.0f}"
    print(f"{what:<58}{p.p50:>9,.0f}{p.p99:>9,.0f}{p.most:>9,.0f}{each:>9}  {more}", flush=True)


def worked(pid: int) -> float:
    """Processor time of a process so far, in seconds."""
    return float(sum(psutil.Process(pid).cpu_times()[:2]))


def resident(pid: int) -> float:
    """Memory of a process, in MB."""
    return float(psutil.Process(pid).memory_info().rss) / 1e6


@contextlib.asynccontextmanager
async def pages_of(site: Served) -> AsyncIterator[aiohttp.ClientSession]:
    """A client with as many connections as it likes."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(site.url, connector=connector, timeout=aiohttp.ClientTimeout(300)) as session:
        yield session


async def answer(session: aiohttp.ClientSession, path: str) -> tuple[float, int]:
    """Seconds until the whole answer is there, and its bytes."""
    began = time.perf_counter()
    async with session.get(f"/api{path}") as response:
        body = await response.read()
        assert response.status == 200, f"{path}: {response.status} {body[:300]!r}"
    return time.perf_counter() - began, len(body)


async def about_answers(site: Served, known: dict[str, Any]) -> None:
    """Each answer as it is made for the first who asks, alone."""
    async with pages_of(site) as session:
        for path in ANSWERS:
            found, size, before = [], 0, worked(site.pid)
            for number in range(TIMES):
                # Another address each time, else what was made for the last one is given again.
                took, size = await answer(session, f"{path.format(**known)}{'&' if '?' in path else '?'}time={number}")
                found.append(took)
            line(path, found, worked(site.pid) - before, f"{size / 1e3:,.0f} kB")


async def first_page(site: Served) -> None:
    """All that the first page asks, at once, as a browser does."""
    async with pages_of(site) as session:
        found, before = [], worked(site.pid)
        for number in range(2 * TIMES):
            began = time.perf_counter()
            await asyncio.gather(*(answer(session, f"{p}{'&' if '?' in p else '?'}page={number}") for p in PAGE))
            found.append(time.perf_counter() - began)
    line("all that the first page asks, nothing kept", found, worked(site.pid) - before)


class Watch:
    """An open page: listens, and asks for the leaderboard again when it is told that the league moved on.

    Args:
        session: Client.
        number: Of the viewer.
    """

    def __init__(self, session: aiohttp.ClientSession, number: int) -> None:
        self._session = session
        self._query = f"/leaderboard?system=elo&viewer={number % 4}"
        self.late: list[float] = []
        """From an event's recording to its arrival here."""
        self.asked: list[float] = []
        self._moved = asyncio.Event()

    async def listen(self) -> None:
        """Take in the stream, for ever."""
        async with self._session.get("/api/live", timeout=aiohttp.ClientTimeout(None)) as response:
            kind = b""
            async for row in response.content:
                if row.startswith(b"event: "):
                    kind = row[7:].strip()
                elif row.startswith(b"data: ") and kind == b"events":
                    self._take(msgspec.json.decode(row[6:]))
                elif row.startswith(b"data: "):
                    self._moved.set()

    def _take(self, events: list[dict[str, Any]]) -> None:
        now = time.time()
        said = [e["text"].partition("sent=")[2].split() for e in events]
        self.late += [now - float(words[0]) for words in said if words]

    async def ask(self) -> None:
        """Bring the page up to date, for ever."""
        while True:
            await self._moved.wait()
            self._moved.clear()
            took, _ = await answer(self._session, self._query)
            self.asked.append(took)
            await asyncio.sleep(max(AGAIN_S, 9 * took))


async def about_viewers(site: Served, folder: Path, viewers: int) -> None:
    """Many open pages while a league goes on."""
    before = resident(site.pid)
    async with pages_of(site) as session, asyncio.TaskGroup() as group:
        watches = [Watch(session, number) for number in range(viewers)]
        running = [group.create_task(work()) for watch in watches for work in (watch.listen, watch.ask)]
        await asyncio.sleep(2.0)
        busy = worked(site.pid)
        sent = await asyncio.to_thread(asyncio.run, pulse(folder, int(VIEWING_S * RATE), 1 / RATE))
        await asyncio.sleep(3.0)
        busy = worked(site.pid) - busy
        for task in running:
            task.cancel()
    heard = [len(watch.late) for watch in watches]
    line(f"{viewers} viewers: from an event's recording to each of them", [s for w in watches for s in w.late])
    line(f"{viewers} viewers: the leaderboard, asked again", [s for w in watches for s in w.asked])
    print(
        f"    {min(heard)} to {max(heard)} of {sent} events heard by each; "
        f"the server took {busy / VIEWING_S:.2f} cores, {before:,.0f} → {resident(site.pid):,.0f} MB"
    )


async def pulse(folder: Path, count: int, every_s: float) -> int:
    """Append so many events that say when they were sent; they change nothing."""
    from schemas.events import MatchFailed

    async with Run(folder, name="league").connected("pulse") as client:
        log = JetStreamLog(client, "league", "pulse")
        for number in range(count):
            say = f"sent={time.time():.6f}"
            await log.append(
                MatchFailed(match_id=f"{time.time_ns()}-{number}", purpose="exhibition", worker="pulse", error=say)
            )
            await asyncio.sleep(every_s)
    return count


async def replayed(folder: Path, records: list[Recorded]) -> float:
    """Append events as fast as the broker takes them; seconds."""
    async with Run(folder, name="league").connected("replay") as client:
        log = JetStreamLog(client, "league", "replay")
        began = time.perf_counter()
        for start in range(0, len(records), 500):
            await log.append_batch([r.event for r in records[start : start + 500] if r.event is not None])
    return time.perf_counter() - began


async def reached(site: Served, sequence: int) -> float:
    """Wait until the tables hold an event; seconds."""
    began = time.perf_counter()
    async with pages_of(site) as session:
        while True:
            async with session.get("/api/overview") as response:
                if (await response.json())["sequence"] >= sequence:
                    return time.perf_counter() - began
            await asyncio.sleep(0.1)


def opened(browser: Browser, url: str, row: str = "main tbody tr") -> float:
    """Seconds from going there until the first row stands on the page."""
    browser.driver.get("about:blank")
    began = time.perf_counter()
    browser.driver.get(url)
    while not browser.run("return !!document.querySelector(arguments[0])", row):
        time.sleep(0.005)
    return time.perf_counter() - began


SEEN = """
    window.late = [];
    new MutationObserver((records) => {
      const now = Date.now();
      for (const { addedNodes } of records) for (const node of addedNodes) {
        const said = /sent=(\\d+\\.\\d+)/.exec(node.textContent ?? "");
        if (said && node.nodeName === "TR") late.push(now - 1000 * said[1]);
      }
    }).observe(document.querySelector("main"), { childList: true, subtree: true });
"""


def in_browser(site: Served, folder: Path, hour: list[Recorded]) -> None:
    """What a person sees."""
    with chromium() as browser:
        line("Chromium: the first page, until its first row", [opened(browser, site.url) for _ in range(2 * TIMES)])
        for page in ("ratings", "payoff", "matches", "training", "matchmaking", "lineage", "problems"):
            took = [opened(browser, f"{site.url}/{page}", "main h1") for _ in range(TIMES)]
            line(f"Chromium: /{page}, until it stands there", took)
        opened(browser, site.url)
        browser.run(SEEN)
        asyncio.run(pulse(folder, EVENTS, 0.25))
        time.sleep(1.5)
        line("Chromium: from an event's recording to its row", [ms / 1000 for ms in browser.run("return late")])
        flood(site, folder, hour, browser)


def flood(site: Served, folder: Path, hour: list[Recorded], browser: Browser | None) -> None:
    """An hour's worth of events, played back as fast as they can be recorded; memory before and after each part."""
    size = len(hour) // ROUNDS
    print(f"\n{len(hour):,} events, an hour's worth at {RATE:g} a second, as fast as they can be recorded:")
    print(
        f"{'':<26}{'recorded in':>12}{'shown after':>12}{'server MB':>11}{'page kB':>10}{'nodes':>8}{'listeners':>11}"
    )
    page = browser.memory() if browser is not None else {}
    _memory("before", 0.0, 0.0, site.pid, page)
    for number in range(ROUNDS):
        part = hour[number * size : (number + 1) * size]
        took = asyncio.run(replayed(folder, part))
        shown = asyncio.run(reached(site, part[-1].sequence))
        time.sleep(1.0)
        page = browser.memory() if browser is not None else {}
        _memory(f"after {(number + 1) * size:,}", took, shown, site.pid, page)


def _memory(what: str, took: float, shown: float, pid: int, page: dict[str, float]) -> None:
    told = (
        f"{page['JSHeapUsedSize'] / 1e3:>10,.0f}{page['Nodes']:>8,.0f}{page['JSEventListeners']:>11,.0f}"
        if page
        else ""
    )
    print(f"{what:<26}{took:>10.1f} s{shown:>10.1f} s{resident(pid):>11,.0f}{told}", flush=True)


def known_of(folder: Path) -> dict[str, Any]:
    """What the answers are asked about: an agent and a match of the middle of the history."""
    hour = web_history.later(folder)
    last = hour[0].sequence - 1
    match = next(web_history.matches_of(hour))
    return {"middle": last // 2, "agent": "main%40250", "match": match.match_id, "last": last}


@contextlib.contextmanager
def copied(folder: Path) -> Iterator[Path]:
    """A copy to which events may be appended."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(shutil.copytree(folder, Path(place) / "run", ignore=shutil.ignore_patterns("*.lock", "*.pid")))


def measure(folder: Path, only: Sequence[str]) -> None:
    """Print the tables."""
    hour, known = web_history.later(folder), known_of(folder)
    with copied(folder) as run, tempfile.TemporaryDirectory() as logs:
        for what in ("from nothing", "again") if "start" in only else ():
            began = time.perf_counter()
            with served(run, Path(logs) / "web.log") as site:
                took = time.perf_counter() - began
                more = f"{worked(site.pid):.1f} s of work; {resident(site.pid):,.0f} MB"
                print(f"answers after {took:.1f} s, {what}, {more}")
        with served(run, Path(logs) / "web.log") as site:
            counts = asyncio.run(_counts(site))
            print(f"{counts}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
            print(f"{'milliseconds':<58}{'p50':>9}{'p99':>9}{'most':>9}{'server':>9}")
            if "page" in only:
                asyncio.run(first_page(site))
            if "answers" in only:
                asyncio.run(about_answers(site, known | {"match": asyncio.run(_newest_match(site))}))
            if "viewers" in only:
                asyncio.run(about_viewers(site, run, VIEWERS))
            if "browser" in only and missing() is None:
                in_browser(site, run, hour)
            elif "browser" in only:
                print(f"no browser: {missing()}")
                flood(site, run, hour, None)


async def _counts(site: Served) -> str:
    async with pages_of(site) as session, session.get("/api/overview") as response:
        found = await response.json()
        matches = found["training_matches"] + found["evaluation_matches"]
    async with pages_of(site) as session, session.get("/api/leaderboard") as response:
        agents = len((await response.json())["rows"])
    return f"{found['sequence']:,} events, {matches:,} matches, {agents:,} agents"


async def _newest_match(site: Served) -> str:
    async with pages_of(site) as session, session.get("/api/matches?limit=1&purpose=training") as response:
        return str((await response.json())["rows"][0]["match_id"])


def main() -> None:
    """Measure on a history that is made if it is not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="where the history is kept between measurements")
    parser.add_argument("--matches", type=int, default=100_000)
    parser.add_argument("--agents", type=int, default=500)
    parser.add_argument("--hour", type=int, default=36_000, help="events that are played back")
    parser.add_argument("--only", nargs="+", default=["start", "page", "answers", "viewers", "browser"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = options.run or Path(place) / "run"
        if not (folder / "nats").exists():
            web_history.make(folder, options.agents, options.matches, options.hour)
        measure(folder, options.only)


if __name__ == "__main__":
    main()
