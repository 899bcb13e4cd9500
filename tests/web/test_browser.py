"""What people do with the pages, in a real browser: watch, look back, look through a match, ask, all by keyboard."""

import asyncio
import csv
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest

from league.log.jetstream import JetStreamLog
from league.log.metrics import MetricsStream
from league.run import Run
from schemas.events import AgentRegistered, Event
from schemas.metrics import Heartbeat, MatchMetrics
from tests.web import story
from tests.web.chromium import DESKTOP_SIZE, Browser, missing_reason, open_browser
from tests.web.served import start_page_server

pytestmark = pytest.mark.skipif(missing_reason() is not None, reason=str(missing_reason()))

PATIENCE_S = 300.0
T = TypeVar("T")


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("told") / "run"
    story.make(folder, "a bad engine", double=False)
    return folder


@pytest.fixture(scope="module")
def site(run_folder: Path) -> Iterator[str]:
    with start_page_server(run_folder, run_folder.parent / "web.log") as pages:
        yield pages.url


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def append(folder: Path, event: Event) -> int:
    """Record an event, as any worker would."""

    async def main() -> int:
        async with Run(folder, name="league").connect("test") as client:
            return await JetStreamLog(client, "league", "test").append(event)

    return asyncio.run(main())


def until(look: Callable[[], T], what: str) -> T:
    """What a look at the page gives, once it gives anything."""
    end = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < end, what
        time.sleep(0.02)
    return found


def opened(browser: Browser, address: str, shows: str) -> None:
    """Open a page, and wait until something is there."""
    browser.driver.get(address)
    until(lambda: browser.run_script("return !!document.querySelector(arguments[0])", shows), f"{address}: no {shows}")


def texts(browser: Browser, selector: str) -> list[str]:
    """What stands in every element of a kind."""
    found: list[str] = browser.run_script(
        "return [...document.querySelectorAll(arguments[0])].map(n => n.innerText)", selector
    )
    return found


def press(browser: Browser, *keys: str) -> None:
    """Press keys, one after the other, wherever the focus is."""
    from selenium.webdriver import ActionChains

    for key in keys:
        ActionChains(browser.driver, duration=0).send_keys(key).perform()


def key(name: str) -> str:
    """A key that writes nothing."""
    from selenium.webdriver import Keys

    return str(getattr(Keys, name))


def asked(browser: Browser, path: str) -> Any:
    """What the server answers the page."""
    return browser.run_script("return fetch(arguments[0]).then(r => r.json())", path)


def test_what_happens_is_seen_without_a_reload(site: str, run_folder: Path, browser: Browser) -> None:
    opened(browser, site, "#alive.on")
    browser.run_script("window.here = true")
    sequence = append(run_folder, AgentRegistered(agent="late_bot", kind="bot", baseline=False, rating=900.0))
    row = until(
        lambda: [
            row
            for row in texts(browser, "main tr")
            if row.startswith("AgentRegistered\t") and f"\t{sequence:,}\t" in row
        ],
        "the event is not seen",
    )
    assert "late_bot" in row[0]
    until(lambda: f"event {sequence:,}" in texts(browser, "#counts")[0], "the header is behind")
    until(lambda: [r for r in texts(browser, "main tr") if "\tlate_bot\t" in r], "the leaderboard is behind")
    assert browser.run_script("return window.here") is True, "the page was loaded again"


def test_the_slider_shows_the_leaderboard_as_it_was_and_the_address_keeps_the_place(
    site: str, browser: Browser
) -> None:
    opened(browser, site, "#time")
    until(lambda: browser.run_script("return Number(document.querySelector('#time').max)"), "no places")
    browser.run_script("document.querySelector('#time').focus()")
    press(browser, *[key("ARROW_LEFT")] * 3)
    until(lambda: texts(browser, ".slider output")[0].startswith("event "), "the slider does not say where it is")
    at = int(texts(browser, ".slider output")[0].split()[1].rstrip(",").replace(",", ""))
    until(lambda: browser.driver.current_url.endswith(f"at={at}"), "the address does not say it")
    until(lambda: "past" in browser.run_script("return document.body.className"), "nothing says that it is the past")
    then = asked(browser, f"/api/leaderboard?at={at}")
    assert then["sequence"] == at

    def ratings() -> dict[str, str]:
        rows = [row.split("\t") for row in texts(browser, "main table:first-of-type tbody tr")]
        return {row[1]: row[3] for row in rows if len(row) > 6}

    def recorded(board: Any) -> dict[str, str]:
        return {row["agent"]: "–" if row["rating"] is None else f"{row['rating']:.0f}" for row in board["rows"]}

    wanted = recorded(then)
    until(lambda: ratings() == wanted, f"the leaderboard is not that of event {at}")
    assert texts(browser, ".slider output")[0].startswith(f"event {at:,}")
    browser.driver.refresh()
    until(lambda: ratings() == wanted, "the address does not bring it back")
    opened(browser, f"{site}/?at=40", "main tbody tr")
    earlier = asked(browser, "/api/leaderboard?at=40")
    assert ratings() == recorded(earlier) != wanted
    browser.driver.find_element("css selector", ".slider button").click()
    until(lambda: "at=" not in browser.driver.current_url and ratings().get("late_bot", True), "there is no way back")


def test_a_match_of_diplomacy_is_looked_through_phase_by_phase(site: str, browser: Browser) -> None:
    pytest.importorskip("diplomacy")
    opened(browser, f"{site}/match/dip-1", "img.map")

    def drawn(phase: str) -> bool:
        script = "const i = document.querySelector('img.map'); return i.complete && i.naturalWidth > 500 ? i.alt : ''"
        return str(browser.run_script(script)).startswith(f"Map of {phase}")

    until(lambda: drawn("S1901M"), "no map")
    assert "France: 3 supply centres, A MAR, A PAR, F BRE" in browser.run_script(
        "return document.querySelector('img.map').alt"
    )
    assert len([card for card in texts(browser, ".cards .card") if card.strip()]) == 7
    assert "Supply centres" in " ".join(texts(browser, "figcaption"))
    press(browser, key("ARROW_RIGHT"))
    until(lambda: drawn("F1901M") and "2 of" in texts(browser, ".player output")[0], "the arrow does not lead on")
    press(browser, key("HOME"))
    until(lambda: drawn("S1901M"), "no way back")
    browser.driver.find_element("css selector", "details[data-seat='2'] summary").click()
    until(lambda: "<france>" in " ".join(texts(browser, "details[data-seat='2'] pre")), "nothing was asked")
    button = next(b for b in browser.driver.find_elements("css selector", "button") if b.text == "play it again")
    button.click()
    until(lambda: "Identical" in texts(browser, "p.good"), "it was not played again")
    assert browser.console_messages() == []


def test_a_statement_that_would_write_is_refused_in_words_and_the_next_one_is_answered(
    site: str, browser: Browser
) -> None:
    opened(browser, f"{site}/sql", "#statement")

    def ask(statement: str) -> None:
        browser.run_script("const t = document.querySelector('#statement'); t.value = ''; t.focus()")
        press(browser, statement)
        browser.driver.find_element("css selector", "main form button[type=submit]").click()
        # Until then the answer to an earlier statement is seen, and no other is taken.
        until(lambda: texts(browser, "main [aria-busy=false]"), f"{statement} is not answered")

    def counted() -> str:
        ask("SELECT count(*) AS matches FROM matches")
        return texts(browser, "main tbody td.number")[0]

    before = counted()
    for statement in ("DELETE FROM matches", "CREATE TABLE mine AS SELECT 1", "COPY matches TO 'mine.csv'"):
        ask(statement)
        refusal = texts(browser, "main .problem")
        assert refusal, f"{statement} is not refused"
        assert "read" in refusal[0] or "SELECT" in refusal[0], refusal
    assert counted() == before != "0"


def focused(browser: Browser) -> dict[str, Any]:
    """Where the focus is, and whether that can be seen."""
    found: dict[str, Any] = browser.run_script(
        """
        const node = document.activeElement, box = node.getBoundingClientRect(), style = getComputedStyle(node);
        return {tag: node.tagName, id: node.id, text: node.innerText || node.ariaLabel || "", path: node.pathname,
                seen: box.width > 0 && box.left >= 0 && box.top >= 0 && box.top < innerHeight,
                marked: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2};
        """
    )
    return found


def tab_to(browser: Browser, is_there: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Press Tab until the focus is there; on the way it is always seen."""
    for _ in range(60):
        press(browser, key("TAB"))
        if (place := focused(browser))["tag"] != "BODY":
            assert (place["seen"], place["marked"]) == (True, True), place
        if is_there(place):
            return place
    raise AssertionError(f"no such place: {place}")


def test_the_keyboard_alone_leads_everywhere(site: str, browser: Browser) -> None:
    opened(browser, site, "main tbody a")
    press(browser, key("TAB"))
    first = focused(browser)
    assert (first["text"], first["seen"], first["marked"]) == ("Skip to the content", True, True)
    press(browser, key("ENTER"))
    assert focused(browser)["id"] == "main"
    assert tab_to(browser, lambda place: place["tag"] != "MAIN")["tag"] == "SUMMARY", "what comes first in the page"

    opened(browser, site, "nav a")
    press(browser, key("TAB"))
    names = texts(browser, "nav a")
    met = [tab_to(browser, lambda place: place["tag"] == "A")["text"] for _ in names]
    assert met == names, "in the order in which they stand"

    opened(browser, site, "nav a")
    tab_to(browser, lambda place: place["text"] == "Matches")
    press(browser, key("ENTER"))
    until(lambda: texts(browser, "h1") == ["Matches"] and focused(browser)["id"] == "main", "the page is not there")
    until(lambda: browser.run_script("return !!document.querySelector('tbody a[href^=\"/match/\"]')"), "no matches")
    link = tab_to(browser, lambda place: str(place["path"]).startswith("/match/"))
    press(browser, key("ENTER"))
    until(lambda: texts(browser, "h1") == [f"Match {link['path'].removeprefix('/match/')}"], "the match is not there")
    browser.driver.back()
    until(lambda: texts(browser, "h1") == ["Matches"], "there is no way back")


def test_the_slider_reaches_now_and_pages_keep_its_place(site: str, browser: Browser) -> None:
    opened(browser, f"{site}/?at=40", "main tbody tr")
    until(lambda: browser.run_script("return Number(document.querySelector('#time').max)"), "no places")
    edges = "const s = getComputedStyle(document.querySelector('#time')); return s.paddingRight + s.borderRightWidth"
    assert browser.run_script(edges) == "0px0px", "the thumb would stop before the end of the line"
    browser.driver.find_element("link text", "Payoff").click()
    until(lambda: texts(browser, "h1") == ["Payoff"] and "at=40" in browser.driver.current_url, "the time is lost")
    browser.run_script("document.querySelector('#time').focus()")
    press(browser, key("END"))
    until(lambda: "at=" not in browser.driver.current_url, "the end of the slider is not now")
    assert texts(browser, ".slider output") == ["now"]


def test_everything_is_found_from_the_keyboard(site: str, browser: Browser) -> None:
    opened(browser, f"{site}/workers", "#search input")
    until(lambda: texts(browser, "h1") == ["Workers"], "no page")

    def look_up(text: str, found: str) -> None:
        press(browser, "/")
        assert focused(browser)["tag"] == "INPUT"
        press(browser, text)
        until(lambda: [line for line in texts(browser, "#hits li") if line.startswith(found)], f"{text}: no {found}")
        press(browser, key("ENTER"))

    look_up("dip-1", "dip-1 match")
    until(lambda: texts(browser, "h1") == ["Match dip-1"], "the match is not there")
    look_up("main@4", "main@4 ")
    until(lambda: texts(browser, "h1") == ["main@4"], "the agent is not there")
    look_up("line", "Lineage page")
    until(lambda: texts(browser, "h1") == ["Lineage"], "the page is not there")
    look_up("40", "As of event 40 time")
    until(lambda: browser.driver.current_url.endswith("/lineage?at=40"), "the event is not there")
    press(browser, "/", "x", key("ESCAPE"))
    assert texts(browser, "#hits:not([hidden])") == []
    assert focused(browser)["tag"] != "INPUT"


def test_a_match_begins_with_its_map_in_the_colours_of_its_chart_and_can_be_embedded(
    site: str, browser: Browser
) -> None:
    pytest.importorskip("diplomacy")
    opened(browser, f"{site}/match/dip-1?phase=2", ".player output")
    until(lambda: "3 of" in texts(browser, ".player output")[0], "the address does not name the phase")
    bottom = "return document.querySelector('.player').getBoundingClientRect().bottom + scrollY"
    assert browser.run_script(bottom) <= DESKTOP_SIZE[1], "map and controls are seen without scrolling"
    press(browser, key("ARROW_LEFT"))
    until(lambda: browser.driver.current_url.endswith("?phase=1"), "the address is behind")
    colour = "return document.querySelector('figure path[stroke=\"' + arguments[0] + '\"]') !== null"
    replay = asked(browser, "/api/match/dip-1/replay")
    assert [browser.run_script(colour, value) for value in replay["colors"].values()] == [True] * 7
    svg = browser.run_script("return fetch('/api/match/dip-1/map/1').then(r => r.text())")
    assert f".unitfrance {{fill:{replay['colors']['FRANCE']};" in svg
    browser.driver.find_element("css selector", ".titled summary").click()
    snippet = "return document.querySelector('.titled textarea').value"
    until(lambda: browser.run_script(snippet), "no markup")
    assert browser.run_script(snippet).startswith('<iframe src="dip-1.html#?phase=1" title="Match dip-1" sandbox=')


def test_a_reply_shows_its_thoughts_once_they_are_unfolded(site: str, browser: Browser) -> None:
    opened(browser, f"{site}/match/nim-1", ".turns .thoughts")
    (thoughts,) = browser.driver.find_elements("css selector", ".turns .thoughts")
    assert thoughts.text == "thoughts"
    thoughts.find_element("tag name", "summary").click()
    until(lambda: thoughts.text == "thoughts\na bad engine", "they stay folded")


def test_tables_and_charts_are_downloaded_as_what_they_show(site: str, browser: Browser, tmp_path: Path) -> None:
    browser.console_messages()  # Those of other pages.
    browser.run_command("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    opened(browser, site, "main figure path")
    until(lambda: "Leaderboard" in " ".join(texts(browser, "main caption")), "no leaderboard")

    def download(name: str, kind: str) -> bytes:
        menu = next(
            each
            for each in browser.driver.find_elements("css selector", ".menu")
            if name in each.find_element("tag name", "summary").get_attribute("aria-label")
        )
        menu.find_element("tag name", "summary").click()
        next(b for b in menu.find_elements("tag name", "button") if b.text == kind).click()
        files = lambda: [f for f in tmp_path.iterdir() if f.suffix == f".{kind.lower()}" and f.stat().st_size]  # noqa: E731
        (file,) = until(files, f"{name}: no {kind}")
        content = file.read_bytes()
        file.unlink()
        return content

    board = asked(browser, "/api/leaderboard")["rows"]
    rows = list(csv.DictReader(io.StringIO(download("Leaderboard", "CSV").decode())))
    assert [(row["agent"], float(row["rating"] or "nan")) for row in rows] == [
        (row["agent"], pytest.approx(row["rating"] or float("nan"), nan_ok=True)) for row in board
    ]
    points = list(csv.DictReader(io.StringIO(download("Rating of each version", "CSV").decode())))
    learned = asked(browser, "/api/learning")["policies"][0]["points"]
    assert [float(p["rating"]) for p in points if p["series"] == "main"] == [p[1] for p in learned]
    for name in ("Leaderboard", "Rating of each version"):
        drawn = ElementTree.fromstring(download(name, "SVG"))
        words = " ".join(each.text or "" for each in drawn.iter("{http://www.w3.org/2000/svg}text"))
        assert "main" in words
        assert "var(" not in ElementTree.tostring(drawn, "unicode"), "it has the colours themselves"
        assert download(name, "PNG").startswith(b"\x89PNG")
    assert browser.console_messages() == []


def test_curves_are_smoothed_and_statements_are_curves_beside_another_run(
    run_folder: Path, tmp_path: Path, browser: Browser
) -> None:
    other = tmp_path / "other"
    story.make(other, "another", double=False)
    with start_page_server(run_folder, tmp_path / "web.log", other) as pages:
        query = urlencode({"smooth": "0.8", "names": "stale", "sql": "SELECT step, accepted FROM gradient_steps"})
        opened(browser, f"{pages.url}/compare?{query}", "main figure path")
        label = lambda: texts(browser, "main section[aria-label=Curves] figcaption")  # noqa: E731
        until(
            lambda: [text.strip() for text in label()] == ["From SQL", "stale trajectories"], "the curves are not there"
        )
        legends = until(lambda: texts(browser, "main section[aria-label=Curves] .legend"), "no legend")
        assert [text.split() for text in legends] == [["run", "other"]] * 2
        faint = "return document.querySelectorAll('section[aria-label=Curves] path[opacity=\"0.25\"]').length"
        assert browser.run_script(faint) == 4, "the values stay, faint, under the smoothed lines"
        mean = "return (await import('/static/charts.js')).smoothed([[0, 1], [1, 3]], 0.5)"
        assert browser.run_script(mean) == [[0, 1], [1, pytest.approx(7 / 3)]]
        browser.driver.find_element("link text", "other").click()
        until(lambda: browser.driver.current_url.endswith("/?run=other"), "the other run is not there")
        until(lambda: texts(browser, "h1") == ["League"], "its first page is not there")
        assert browser.run_script("return document.querySelector('#runs').value") == "other"
        browser.driver.find_element("link text", "Training").click()
        until(lambda: browser.driver.current_url.endswith("/training?run=other"), "the run is lost")


def test_only_a_league_with_processes_is_live(site: str, run_folder: Path, browser: Browser) -> None:
    async def beat() -> None:
        async with Run(run_folder, name="league").connect("test") as client:
            metrics = MatchMetrics(3, 9, 1, 1.5)
            await MetricsStream(client, "league").publish(
                Heartbeat("rollout-0", "rollout", "1", "host", 7, 60.0, 2**20, 0.5, 3, 1, 2, play=metrics)
            )

    opened(browser, site, "#alive.on")
    asyncio.run(beat())
    until(lambda: texts(browser, "#alive") == ["● live"], "a process that runs is not noticed")


def test_errors_of_sql_keep_their_lines(site: str, browser: Browser) -> None:
    opened(browser, f"{site}/sql?{urlencode({'q': 'SELECT nothing FROM matches'})}", "main .problem")
    assert "\nLINE 1: SELECT nothing" in texts(browser, "main .problem")[0]
    assert browser.run_script("return getComputedStyle(document.querySelector('.problem')).whiteSpace") == "pre"
    code = (
        "const m = await import('/static/dom.js'); return m.problem(new Error('see `league sql` for more')).innerHTML"
    )
    assert browser.run_script(code) == "see <code>league sql</code> for more"
