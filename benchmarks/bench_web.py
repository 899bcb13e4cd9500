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
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from benchmarks import web_history
from benchmarks.chromium import Browser, missing_reason, open_browser
from benchmarks.sizes import size
from benchmarks.web_figures import open_client, print_row, process_cpu_s, process_memory_mb, time_request
from benchmarks.web_served import PageServer, start_page_server
from benchmarks.web_viewers import VIEWERS, append_timestamps, measure_viewers
from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.run import Run

FIRST_PAGE_QUERIES = (
    "/systems",
    "/overview",
    "/timeline",
    "/learning",
    "/leaderboard?system=elo",
    "/workers",
    "/events?limit=200",
)
"""What the first page asks when it is opened; the leaderboard is asked again whenever the league moves on."""
QUERIES = (
    *FIRST_PAGE_QUERIES,
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
PARTS = ["start", "page", "answers", "viewers", "browser", "flood"]
REPEATS = size(3, 1)
EVENTS = size(40, 4)
ROUNDS = size(6, 1)
HOUR_EVENTS = size(36_000, 100)
"""Events of an hour, at 10 a second."""


async def measure_queries(site: PageServer, known: dict[str, Any]) -> None:
    """Each answer as it is made for the first who asks, alone."""
    async with open_client(site) as session:
        for path in QUERIES:
            found, size, before = [], 0, process_cpu_s(site.pid)
            for number in range(REPEATS):
                # Another address each time, else what was made for the last one is given again.
                took, size = await time_request(
                    session, f"{path.format(**known)}{'&' if '?' in path else '?'}time={number}"
                )
                found.append(took)
            print_row(path, found, process_cpu_s(site.pid) - before, f"{size / 1e3:,.0f} kB")


async def measure_first_page(site: PageServer) -> None:
    """All that the first page asks, at once, as a browser does."""
    async with open_client(site) as session:
        found, before = [], process_cpu_s(site.pid)
        for number in range(2 * REPEATS):
            began = time.perf_counter()
            await asyncio.gather(
                *(time_request(session, f"{p}{'&' if '?' in p else '?'}page={number}") for p in FIRST_PAGE_QUERIES)
            )
            found.append(time.perf_counter() - began)
    print_row("all that the first page asks, nothing kept", found, process_cpu_s(site.pid) - before)


async def replay_events(folder: Path, records: list[RecordedEvent]) -> float:
    """Append events as fast as the broker takes them; seconds."""
    async with Run(folder, name="league").connect("replay") as client:
        log = JetStreamLog(client, "league", "replay")
        began = time.perf_counter()
        for start in range(0, len(records), 500):
            await log.append_batch([r.event for r in records[start : start + 500] if r.event is not None])
    return time.perf_counter() - began


async def wait_for_sequence(site: PageServer, sequence: int) -> float:
    """Wait until the tables hold an event; seconds."""
    began = time.perf_counter()
    async with open_client(site) as session:
        while True:
            async with session.get("/api/overview") as response:
                if (await response.json())["sequence"] >= sequence:
                    return time.perf_counter() - began
            await asyncio.sleep(0.1)


FIRST_PAINT_SCRIPT = """
    const looking = ["main tbody tr", "main h1"];
    window.stands = {};
    new MutationObserver((_, observer) => {
      for (const what of looking) if (document.querySelector(what)) stands[what] ??= performance.now();
      if (looking.every((what) => what in stands)) observer.disconnect();
    }).observe(document, { childList: true, subtree: true });
"""
"""Run in every page before its own scripts: whoever asked from outside all the time would hold it up."""


def time_page_open(browser: Browser, url: str, what: str = "main tbody tr") -> float:
    """Seconds from going there until something stands on the page."""
    browser.driver.get("about:blank")
    browser.driver.get(url)
    while (found := browser.run_script("return (window.stands ?? {})[arguments[0]]", what)) is None:
        time.sleep(0.2)
    return float(found) / 1000


ROW_LATENCY_SCRIPT = """
    window.late = [];
    const main = document.querySelector("main");
    const sentOf = (node) => Number(/sent=(\\d+\\.\\d+)/.exec(node?.textContent ?? "")?.[1] ?? 0);
    let newest = sentOf(main);
    new MutationObserver((records) => {
      const now = Date.now();
      for (const { target, addedNodes } of records) for (const node of [target, ...addedNodes]) {
        const sent = sentOf((node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement)?.closest("tr"));
        if (sent <= newest) continue;
        newest = sent;
        late.push(now - 1000 * sent);
      }
    }).observe(main, { childList: true, subtree: true, characterData: true });
"""
"""Events of a type share one row, whose text changes with each of them."""

ROW_TIMEOUT_S = 60.0


def measure_row_latencies(browser: Browser, site: PageServer, folder: Path) -> None:
    """How long after its recording an event stands in a row of the first page.

    Raises:
        RuntimeError: No event came to stand there.
    """
    time_page_open(browser, site.url)
    browser.run_script(ROW_LATENCY_SCRIPT)
    asyncio.run(append_timestamps(folder, EVENTS, 0.25))
    deadline = time.monotonic() + ROW_TIMEOUT_S
    while not (late := browser.run_script("return late")) and time.monotonic() < deadline:
        time.sleep(0.2)
    if not late:
        raise RuntimeError(
            f"the first page: expected a row of {EVENTS} recorded events, found none in {ROW_TIMEOUT_S:.0f} s"
        )
    time.sleep(1.5)
    print_row("Chromium: from an event's recording to its row", [ms / 1000 for ms in browser.run_script("return late")])


def measure_browser(site: PageServer, folder: Path, hour: list[RecordedEvent], only: Sequence[str]) -> None:
    """What a person sees."""
    with open_browser() as browser:
        browser.run_command("Page.addScriptToEvaluateOnNewDocument", source=FIRST_PAINT_SCRIPT)
        print_row(
            "Chromium: the first page, until its first row",
            [time_page_open(browser, site.url) for _ in range(2 * REPEATS)],
        )
        for page in ("ratings", "payoff", "matches", "training", "matchmaking", "lineage", "problems"):
            took = [time_page_open(browser, f"{site.url}/{page}", "main h1") for _ in range(REPEATS)]
            print_row(f"Chromium: /{page}, until it stands there", took)
        measure_row_latencies(browser, site, folder)
        if "flood" in only:
            measure_flood(site, folder, hour, browser)


def measure_flood(site: PageServer, folder: Path, hour: list[RecordedEvent], browser: Browser | None) -> None:
    """An hour's worth of events, played back as fast as they can be recorded; memory before and after each part."""
    size = len(hour) // ROUNDS
    print(f"\n{len(hour):,} events, an hour's worth at 10 a second, as fast as they can be recorded:")
    print(
        f"{'':<26}{'recorded in':>12}{'shown after':>12}{'server MB':>11}{'page kB':>10}{'nodes':>8}{'listeners':>11}"
    )
    page = browser.memory() if browser is not None else {}
    _print_memory("before", 0.0, 0.0, site.pid, page)
    for number in range(ROUNDS):
        part = hour[number * size : (number + 1) * size]
        took = asyncio.run(replay_events(folder, part))
        shown = asyncio.run(wait_for_sequence(site, part[-1].sequence))
        time.sleep(1.0)
        page = browser.memory() if browser is not None else {}
        _print_memory(f"after {(number + 1) * size:,}", took, shown, site.pid, page)


def _print_memory(what: str, took: float, shown: float, pid: int, page: dict[str, float]) -> None:
    printed = (
        f"{page['JSHeapUsedSize'] / 1e3:>10,.0f}{page['Nodes']:>8,.0f}{page['JSEventListeners']:>11,.0f}"
        if page
        else ""
    )
    print(f"{what:<26}{took:>10.1f} s{shown:>10.1f} s{process_memory_mb(pid):>11,.0f}{printed}", flush=True)


async def read_parameters(site: PageServer) -> dict[str, Any]:
    """What the answers are asked about: the middle of the history, an agent of then, and the newest match."""
    async with open_client(site) as session:

        async def get(path: str) -> Any:
            async with session.get(f"/api{path}") as response:
                return await response.json()

        agents = [row["agent"] for row in await get("/agents?search=main@&limit=500") if row["joined_sequence"]]
        (match,) = (await get("/matches?limit=1&purpose=training"))["rows"]
        middle = (await get("/overview"))["sequence"] // 2
        return {"middle": middle, "agent": quote(agents[len(agents) // 2], safe=""), "match": match["match_id"]}


@contextlib.contextmanager
def copy_run(folder: Path) -> Iterator[Path]:
    """A copy to which events may be appended."""
    with tempfile.TemporaryDirectory() as place:
        yield Path(shutil.copytree(folder, Path(place) / "run", ignore=shutil.ignore_patterns("*.lock", "*.pid")))


def measure(folder: Path, only: Sequence[str], viewers: int) -> None:
    """Print the tables."""
    hour = web_history.read_later_events(folder)
    with copy_run(folder) as run, tempfile.TemporaryDirectory() as logs:
        for what in ("from nothing", "again") if "start" in only else ():
            began = time.perf_counter()
            with start_page_server(run, Path(logs) / "web.log") as site:
                took = time.perf_counter() - began
                more = f"{process_cpu_s(site.pid):.1f} s of work; {process_memory_mb(site.pid):,.0f} MB"
                print(f"answers after {took:.1f} s, {what}, {more}")
        with start_page_server(run, Path(logs) / "web.log") as site:
            counts = asyncio.run(_counts_text(site))
            print(f"{counts}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
            print(f"{'milliseconds':<58}{'p50':>9}{'p99':>9}{'most':>9}{'server':>9}")
            if "page" in only:
                asyncio.run(measure_first_page(site))
            if "answers" in only:
                asyncio.run(measure_queries(site, asyncio.run(read_parameters(site))))
            if "viewers" in only:
                asyncio.run(measure_viewers(site, run, viewers))
            if "browser" in only and missing_reason() is None:
                measure_browser(site, run, hour, only)
            elif "browser" in only:
                print(f"no browser: {missing_reason()}")
            if "flood" in only and (missing_reason() is not None or "browser" not in only):
                measure_flood(site, run, hour, None)


async def _counts_text(site: PageServer) -> str:
    async with open_client(site) as session, session.get("/api/overview") as response:
        found = await response.json()
        matches = found["training_matches"] + found["evaluation_matches"]
    async with open_client(site) as session, session.get("/api/leaderboard") as response:
        agents = len((await response.json())["rows"])
    return f"{found['sequence']:,} events, {matches:,} matches, {agents:,} agents"


def main() -> None:
    """Measure on a history that is made if it is not there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="where the history is kept between measurements")
    parser.add_argument("--matches", type=int, default=size(100_000, 200))
    parser.add_argument("--agents", type=int, default=size(500, 4))
    parser.add_argument("--viewers", type=int, default=VIEWERS)
    parser.add_argument("--hour", type=int, default=HOUR_EVENTS, help="events that are played back")
    parser.add_argument("--only", nargs="+", default=size(PARTS, PARTS[1:]), choices=PARTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = options.run or Path(place) / "run"
        if not (folder / "nats").exists():
            web_history.make_history(folder, options.agents, options.matches, options.hour)
        measure(folder, options.only, options.viewers)


if __name__ == "__main__":
    main()
