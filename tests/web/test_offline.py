"""Pages in files: they load nothing from elsewhere, take no text for markup, and show what the server's pages show."""

import asyncio
import base64
import hashlib
import json
import re
import time
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from aiohttp.test_utils import TestClient, TestServer
from typer.testing import CliRunner

from league.queries.live_league import open_live_league
from league.queries.matches import share_lines
from league.run import Run
from schemas.errors import UsageError
from schemas.events import OpponentsSampled
from tests.web import story
from tests.web.chromium import Browser, missing_reason, open_browser
from ui.cli import app
from ui.web.bundle import bundle_scripts
from ui.web.server import RequestGuard, make_application
from ui.web.site import SiteFile, SiteFolder

needs_browser = pytest.mark.skipif(missing_reason() is not None, reason=str(missing_reason()))


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the texts inside styles and scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.inner: dict[str, list[str]] = {"style": [], "script": []}
        self._open = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in self.inner:
            self.inner[self._open].append(data)


def assert_loads_nothing(page: str) -> None:
    """No address outside the page; its policy permits the styles and scripts inside it, and no others."""
    elements = Elements(page)
    addresses = {given[name] for _, given in elements.found for name in ("src", "href") if name in given}
    assert addresses == {"#main", "data:,"}
    policy = next(given["content"] for _, given in elements.found if given.get("http-equiv"))
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "'self'" not in policy
    for tag, count in (("style", 1), ("script", 2)):
        assert len(elements.inner[tag]) == count
        for text in elements.inner[tag]:
            assert f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy


def league(*words: str) -> Any:
    return CliRunner().invoke(app, [*words], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("offline") / "run"
    story.make(folder, story.HOSTILE, double=True)
    return folder


@pytest.fixture(scope="module")
def site(hostile_run: Path) -> Path:
    to = hostile_run.parent / "site"
    made = league("web", "--run", str(hostile_run), "--league", "league", "--to", str(to), "--matches", "12")
    assert made.exit_code == 0, made.output
    return to


@pytest.fixture(scope="module")
def match_file(hostile_run: Path) -> Path:
    to = hostile_run.parent / "dip.html"
    shown = league("match", "show", "dip-1", "--run", str(hostile_run), "--league", "league", "-o", str(to))
    assert shown.exit_code == 0, shown.output
    return to


def test_scripts_are_bundled_without_imports() -> None:
    script = bundle_scripts()
    assert not re.search(r"^(import|export)\b|\bimport\(", script, re.MULTILINE)
    assert script.index('modules["dom.js"] =') < script.index('modules["app.js"] =')


def test_texts_share_their_lines() -> None:
    texts = ["a\nb\nc", "a\nx\nc", ""]
    lines, runs = share_lines(texts)
    assert len(lines) == 5
    assert ["\n".join(line for first, n in own for line in lines[first : first + n]) for own in runs] == texts


def test_matches_with_hostile_names_and_replies_are_files_that_load_nothing(hostile_run: Path, tmp_path: Path) -> None:
    run = ("--run", str(hostile_run), "--league", "league")
    for match_id in ("dip-1", "nim-1", "debate-1", "failed-1"):
        to = tmp_path / f"{match_id}.html"
        shown = league("match", "show", match_id, *run, "-o", str(to))
        assert shown.exit_code == 0, shown.output
        page = to.read_text(encoding="utf-8")
        assert_loads_nothing(page)
        assert not re.search("[\u202e\u2066\x1b\x07]|<script>pwned|<img src=x", page)
    sampled = next(r.event.match_id for r in story.simulated().history if isinstance(r.event, OpponentsSampled))
    to, name = tmp_path / "named.html", f"{sampled}{story.HOSTILE}"
    assert league("match", "show", name, *run, "-o", str(to)).exit_code == 0
    assert f'"home":"/match/{quote(name, safe="")}"' in to.read_text(encoding="utf-8"), (
        "a name is one part of an address"
    )
    near = league("match", "show", "dip-2", *run, "-o", str(tmp_path / "x.html"))
    assert "did you mean" in str(near.exception)
    assert "'dip-1'" in str(near.exception)
    for to, why in ((tmp_path / "missing" / "x.html", "cannot be written"), (tmp_path / "x.txt", "ends in '.html'")):
        assert why in str(league("match", "show", "dip-1", *run, "-o", str(to)).exception)
    assert not (tmp_path / "x.html").exists()


def test_the_match_page_offers_the_same_file(hostile_run: Path, match_file: Path) -> None:
    async def main() -> tuple[str, str]:
        run = Run(hostile_run, name="league")
        async with (
            run.open_log("web") as history,
            open_live_league(run, history) as opened,
            TestClient(TestServer(make_application({"run": opened}, RequestGuard("127.0.0.1")))) as client,
        ):
            response = await client.get("/api/match/dip-1/file")
            assert (response.status, response.content_type) == (200, "text/html")
            return await response.text(), response.headers["Content-Security-Policy"]

    page, policy = asyncio.run(main())
    assert_loads_nothing(page)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert policy.endswith("frame-ancestors 'none'")
    assert len(page) == pytest.approx(len(match_file.read_text(encoding="utf-8")), abs=100)


def test_a_site_is_brought_up_to_date_and_keeps_other_files(hostile_run: Path, tmp_path: Path) -> None:
    to, run = tmp_path / "site", ("--run", str(hostile_run), "--league", "league")
    for matches in (3, 1):
        assert league("web", *run, "--to", str(to), "--matches", str(matches)).exit_code == 0
        files = {str(path.relative_to(to)) for path in to.rglob("*") if path.is_file()} - {"mine.txt"}
        assert files == {*json.loads((to / "site.json").read_text())["files"], "site.json"}
        assert sum(name.startswith("answers/match-") for name in files) == matches
        (to / "mine.txt").write_text("kept")
    assert (to / "mine.txt").read_text() == "kept"


def test_a_site_goes_into_no_folder_with_other_files_and_removes_only_its_own(tmp_path: Path) -> None:
    async def one_file() -> AsyncIterator[SiteFile]:
        yield SiteFile("index.html", b"new")

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "letter.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"a: is not empty and holds no site\.json of an earlier site"):
        SiteFolder(tmp_path / "a")
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        asyncio.run(SiteFolder(tmp_path / "a" / "letter.txt" / "x").write(one_file()))
    forged = tmp_path / "b"
    (forged / "answers").mkdir(parents=True)
    (forged / "answers" / "match-0.js").touch()
    (forged / "site.json").write_text(
        '{"league_site": 1, "files": ["../a/letter.txt", "answers/match-0.js", "gone.csv", "x.py"]}'
    )
    assert asyncio.run(SiteFolder(forged).write(one_file())) == (1, 3)
    assert (tmp_path / "a" / "letter.txt").exists()
    assert sorted(path.name for path in forged.rglob("*")) == ["answers", "index.html", "site.json"]


def wait_for(browser: Browser, script: str) -> Any:
    """The first true value of a script."""
    deadline = time.monotonic() + 60
    while not (value := browser.run_script(f"return {script}")):
        assert time.monotonic() < deadline, f"{script}; {browser.run_script('return document.body.innerText')}"
        time.sleep(0.1)
    return value


@needs_browser
def test_a_site_opened_from_disk_shows_its_pages_and_runs_no_name(site: Path) -> None:
    with open_browser() as browser:
        browser.driver.get((site / "index.html").as_uri())
        wait_for(browser, "document.querySelectorAll('main tbody tr').length > 5")
        pages = browser.run_script("return [...document.querySelectorAll('#nav a')].map((a) => a.textContent)")
        assert {"League", "Ratings", "Matches", "Training"} < set(pages)
        assert not {"SQL", "Play", "Workers", "Compare"} & set(pages), "these need a server"
        for name in pages:
            browser.driver.find_element("link text", name).click()
            wait_for(browser, "document.querySelector('nav [aria-current]').textContent === " + json.dumps(name))
            wait_for(browser, "document.querySelector('main h1')")
            wrong = "[...document.querySelectorAll('main .problem')].filter((n) => n.innerText.includes('this file'))"
            assert browser.run_script(f"return {wrong}.length") == 0, name
        addresses = browser.run_script("return Object.keys(FROZEN[0].manifest.pages)")
        agent = next(address for address in addresses if address.startswith("/agent/") and "pwned" in address)
        agent = f"/agent/{quote(agent.removeprefix('/agent/'), safe='')}"
        for address, selector in (
            (agent, "main table"),
            ("/match/dip-1", "main img.map"),
            ("/match/debate-1", ".card"),
        ):
            browser.run_script(f"location.hash = {json.dumps(address)}")
            wait_for(browser, f"document.querySelector({json.dumps(selector)})")
        assert wait_for(browser, "document.querySelectorAll('details[data-seat], .card details').length")
        assert browser.run_script("return [window.pwned ?? null, document.getElementById('pwned')]") == [None, None]
        assert browser.console_messages() == []


@needs_browser
def test_a_browser_pages_through_a_match_by_keyboard_without_a_request(match_file: Path, tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains

    with open_browser() as browser:

        def press(key: str) -> str:
            ActionChains(browser.driver).send_keys(key).perform()
            said: str = browser.run_script("return document.querySelector('.player output').textContent")
            return said

        browser.driver.get(match_file.as_uri())
        wait_for(browser, "document.querySelector('img.map')?.naturalWidth")
        assert press("\ue014").startswith("Autumn 1901, moves, 2 of"), "the right arrow"
        assert press("\ue010").startswith("the end, "), "the end key"
        assert press("\ue011").startswith("Spring 1901, moves, 1 of"), "the home key"
        browser.driver.find_element("css selector", "details[data-seat] summary").click()
        assert wait_for(browser, "document.querySelector('details[data-seat] pre')?.textContent")
        assert browser.run_script("return performance.getEntriesByType('resource').length") == 0
        assert (
            browser.run_script("return getComputedStyle(document.querySelector('.titled .online')).display") == "none"
        )
        assert browser.console_messages() == []
        (tmp_path / "dip.html").write_bytes(match_file.read_bytes())
        frame = tmp_path / "page.html"
        frame.write_text('<title>x</title><iframe src="dip.html#?phase=1" sandbox="allow-scripts"></iframe>')
        browser.driver.get(frame.as_uri())
        browser.driver.switch_to.frame(0)
        browser.driver.implicitly_wait(60)
        assert browser.driver.find_element("xpath", "//output[starts-with(., 'Autumn 1901, moves, 2 of')]")
