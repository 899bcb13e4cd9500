"""Pages in files: they load nothing, take no text for markup, and show a match by keyboard."""

import asyncio
import base64
import csv
import hashlib
import json
import math
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from typer.testing import CliRunner

from arena.games import make_game
from arena.match import BotPlayer, play
from league.plots.series import RatingCurve
from league.queries.live_league import open_live_league
from league.queries.matches import layered_maps, match_replay
from league.queries.pages.matches import WholeMatch
from league.run import Run
from schemas.errors import UsageError
from schemas.events import MatchFinished, SeatResult
from tests.web import story
from tests.web.chromium import missing_reason, open_browser
from ui.cli import app
from ui.web.offline import SiteFolder
from ui.web.offline.elements import Markup, encode_csv, h, render_table
from ui.web.offline.league_site import SiteFile, _ratings_table
from ui.web.offline.match_page import match_file_name, render_match
from ui.web.server import RequestGuard, make_application

ADDRESSES = {"href", "xlink:href", "src", "srcset", "action", "formaction", "data", "poster", "ping", "background"}


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the text inside styles and scripts."""

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

    def addresses(self) -> set[str]:
        return {value for _, given in self.found for name, value in given.items() if name in ADDRESSES}


def assert_loads_nothing(page: str) -> Elements:
    """No address outside the page or its neighbours; styles and scripts are those that the policy names."""
    elements = Elements(page)
    outside = {a for a in elements.addresses() if a != "data:," and re.match(r"[a-z][a-z0-9+.-]*:|//|/", a, re.I)}
    assert outside == set()
    assert {name for _, given in elements.found for name in given if name.startswith("on") or name == "style"} == set()
    assert not {"img", "iframe", "object", "embed", "form", "base"} & {tag for tag, _ in elements.found}
    policy = next(given["content"] for _, given in elements.found if given.get("http-equiv"))
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (text,) = elements.inner[tag]
        assert f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" in policy
    inner = "".join(text for texts in elements.inner.values() for text in texts)
    assert not re.search(r"url\((?!#)|@import|fetch\(|XMLHttp|import\(", inner)
    return elements


def bots_match(year: int) -> WholeMatch:
    """A match of Diplomacy between bots, as a league would give it."""
    pytest.importorskip("diplomacy")
    spec = make_game("diplomacy", {"max_year": year})
    game, bot = spec.new(7), spec.bot("mover")
    outcome = asyncio.run(play(game, [BotPlayer(bot) for _ in spec.seats], 7))
    seats = [
        SeatResult(seat=seat, role=role, agent="mover", score=outcome.scores[seat], rank=outcome.ranks[seat])
        for seat, role in enumerate(spec.seats)
    ]
    about = {"purpose": "training", "worker": "w", "seed": 7, "reason": "year_cap", "seconds": 1.0}
    event = MatchFinished("dip", "diplomacy", seats=seats, winner=None, length=outcome.length, **about)
    finished = {**msgspec.to_builtins(event), "sequence": 5, "time": "now"}
    details = {"match_id": "dip", "finished": finished, "failed": None, "sampled": None, "voided": None}
    record = game.record()
    return WholeMatch(
        {**details, "used": [], "ratings": []}, match_replay(record, "diplomacy"), None, layered_maps(record), {}
    )


def test_a_game_of_diplomacy_to_1905_is_one_small_file_with_a_map_and_orders_for_every_phase() -> None:
    match = bots_match(1905)
    page = render_match(match, "league")
    assert len(page.encode()) < 500_000
    elements = assert_loads_nothing(page)
    maps = [given for tag, given in elements.found if tag == "svg" and given.get("role") == "img"]
    phases = [given["id"] for tag, given in elements.found if given.get("class") == "phase"]
    assert phases == [f"phase-{n}" for n in range(len(match.replay.turns) + 1)]
    assert [given["aria-label"] for given in maps] == [f"Map of {p.words}" for p in match.replay.pictures]
    assert page.count("<h3>Spring 1905, moves</h3>") == 1
    for turn in match.replay.turns:
        assert all(f"<li>{move}</li>" in page for moves in turn.moves.values() for move in moves)
    ids = [given["id"] for _, given in elements.found if "id" in given]
    assert len(ids) == len(set(ids))
    assert {address[1:] for address in elements.addresses() if address.startswith("#")} <= set(ids)
    unexplained = render_match(msgspec.structs.replace(match, decision_problem="<no settings>"), "league")
    assert "No prompts and replies: &lt;no settings&gt;" in unexplained
    assert "&lt;iframe src=&quot;dip.html&quot; title=&quot;Match dip&quot; sandbox=&quot;allow-scripts&quot;" in page
    script = elements.inner["script"][0]
    assert all(key in script for key in ("keydown", "ArrowLeft", "ArrowRight", "Home", "End"))


def test_texts_are_escaped_and_file_names_are_plain() -> None:
    assert h("p", {"title": '"><b>'}, "<b>\u202e\ud800") == (
        '<p title="&quot;&gt;&lt;b&gt;">&lt;b&gt;\\u202e\\ud800</p>'
    )
    assert h("p", None, [Markup("<b>"), 1, None, ["&"]]) == "<p><b>1&amp;</p>"
    assert match_file_name("eval-main@40-3") == "eval-main@40-3.html"
    for name in ("../x", "a/b", ".x", story.HOSTILE, "x" * 200, ""):
        assert re.fullmatch(r"match-[0-9a-f]{16}\.html", match_file_name(name))


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("offline") / "run"
    story.make(folder, story.HOSTILE, double=True)
    return folder


def league(*words: str) -> Any:
    return CliRunner().invoke(app, [*words], env={"COLUMNS": "200"})


def test_matches_with_hostile_names_and_replies_are_files_that_load_and_run_nothing(
    hostile_run: Path, tmp_path: Path
) -> None:
    run = ("--run", str(hostile_run), "--league", "league")
    for match_id in ("dip-1", "nim-1", "debate-1", "failed-1"):
        to = tmp_path / f"{match_id}.html"
        shown = league("match", "show", match_id, *run, "-o", str(to))
        assert shown.exit_code == 0, shown.output
        page = to.read_text(encoding="utf-8")
        assert_loads_nothing(page)
        assert not re.search("[\u202e\u2066\x1b\x07]", page)
    assert "No moves to show: " in page, "the file of a match without a record says so"
    debate = (tmp_path / "debate-1.html").read_text(encoding="utf-8")
    assert debate.count("&lt;script&gt;pwned=1&lt;/script&gt;") > 5
    assert "prompt and reply" in (tmp_path / "dip-1.html").read_text(encoding="utf-8"), "of main@1"

    near = league("match", "show", "dip-2", *run, "-o", str(tmp_path / "x.html"))
    assert "did you mean" in str(near.exception)
    assert "'dip-1'" in str(near.exception)
    for to, why in ((tmp_path / "missing" / "x.html", "cannot be written"), (tmp_path / "x.txt", "ends in '.html'")):
        assert why in str(league("match", "show", "dip-1", *run, "-o", str(to)).exception)
    assert not (tmp_path / "x.html").exists()


def test_the_match_page_offers_the_same_file(hostile_run: Path, tmp_path: Path) -> None:
    to = tmp_path / "dip.html"
    league("match", "show", "dip-1", "--run", str(hostile_run), "--league", "league", "-o", str(to))

    async def main() -> bytes:
        run = Run(hostile_run, name="league")
        async with (
            run.open_log("web") as history,
            open_live_league(run, history) as opened,
            TestClient(TestServer(make_application({"run": opened}, RequestGuard("127.0.0.1")))) as client,
        ):
            response = await client.get("/api/match/dip-1/file")
            assert (response.status, response.content_type) == (200, "text/html")
            return await response.read()

    assert asyncio.run(main()) == to.read_bytes()


def csv_rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_site_of_a_hostile_league_links_only_to_its_own_files_and_has_the_tables_as_csv(
    hostile_run: Path, tmp_path: Path
) -> None:
    to, run = tmp_path / "site", ("--run", str(hostile_run), "--league", "league")
    made = league("site", *run, "--to", str(to), "--matches", "12")
    assert made.exit_code == 0, made.output
    files = {str(path.relative_to(to)) for path in to.rglob("*") if path.is_file()}
    assert files == {*json.loads((to / "site.json").read_text())["files"], "site.json"}
    assert sum(name.startswith("matches/") for name in files) == 12
    linked = {"site.json", "index.html"}
    for path in to.rglob("*.html"):
        elements = assert_loads_nothing(path.read_text(encoding="utf-8"))
        for address in elements.addresses() - {"data:,"}:
            name, _, anchor = address.partition("#")
            target = (path.parent / unquote(name)).resolve() if name else path
            linked.add(str(target.relative_to(to.resolve())))
            assert not anchor or f'id="{anchor}"' in target.read_text(encoding="utf-8")
    assert linked == files, "everything can be reached, and nothing is linked that is not there"
    assert {row["type"]: row["events"] for row in csv_rows(to / "events.csv")}["MatchVoided"] == "1"
    rated = [row["agent"] for row in csv_rows(to / "leaderboard.csv")]
    assert f"random_bot{story.HOSTILE}" in rated, "CSV holds the names as they are"
    shown = [row["match"] for row in csv_rows(to / "matches.csv")]
    assert any("bench" in name for name in shown), "older than the newest matches"

    (to / "mine.txt").write_text("kept")
    assert league("site", *run, "--to", str(to), "--matches", "2").exit_code == 0
    kept = {str(path.relative_to(to)) for path in to.rglob("*") if path.is_file()}
    assert kept < files | {"mine.txt"}
    assert sum(name.startswith("matches/") for name in kept) == 2
    assert (to / "mine.txt").read_text() == "kept"


def test_a_site_goes_into_no_folder_with_other_files_and_removes_only_its_own(tmp_path: Path) -> None:
    async def one_file() -> AsyncIterator[SiteFile]:
        yield SiteFile("index.html", b"new")

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "letter.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"a: is not empty and holds no site\.json of an earlier site"):
        SiteFolder(tmp_path / "a")
    with pytest.raises(UsageError, match="is not empty"):
        SiteFolder(tmp_path / "a" / "letter.txt")
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        asyncio.run(SiteFolder(tmp_path / "a" / "letter.txt" / "x").write(one_file()))
    forged = tmp_path / "b"
    forged.mkdir()
    (forged / "old.html").touch()
    (forged / "site.json").write_text(
        '{"league_site": 1, "files": ["../a/letter.txt", "old.html", "gone.csv", "x.py"]}'
    )
    assert asyncio.run(SiteFolder(forged).write(one_file())) == (1, 3)
    assert (tmp_path / "a" / "letter.txt").exists()
    assert sorted(path.name for path in forged.iterdir()) == ["index.html", "matches", "site.json"]


def downloaded(file: Path) -> bytes:
    """A file that the browser writes, once it is there."""
    deadline = time.monotonic() + 300
    while not (file.exists() and file.stat().st_size):
        assert time.monotonic() < deadline, f"no {file.name}; there are {sorted(p.name for p in file.parent.iterdir())}"
        time.sleep(0.05)
    return file.read_bytes()


@pytest.mark.skipif(missing_reason() is not None, reason=str(missing_reason()))
def test_a_browser_pages_through_a_match_by_keyboard_without_a_request(tmp_path: Path) -> None:
    from selenium.webdriver import ActionChains

    to, match = tmp_path / "dip.html", bots_match(1901)
    assert match.maps is not None
    variable = re.findall(r"--land\w+", match.maps.styles)[0]
    to.write_text(render_match(match, "league"), encoding="utf-8")
    with open_browser() as browser:

        def press(key: str) -> str:
            ActionChains(browser.driver).send_keys(key).perform()
            said: str = browser.run_script("return document.querySelector('output').textContent")
            return said

        browser.driver.get(to.as_uri())
        count = browser.run_script("return document.querySelectorAll('.phase').length")
        assert press("\ue014").startswith("Autumn 1901, moves, 2 of"), "the right arrow"
        assert press("\ue010") == f"The end, {count} of {count}"
        assert press("\ue011") == f"Spring 1901, moves, 1 of {count}"
        visible = "return [...document.querySelectorAll('.phase')].filter(n => n.offsetHeight).length"
        assert browser.run_script(visible) == 1
        assert browser.run_script("return performance.getEntriesByType('resource').length") == 0
        style = "return getComputedStyle(document.querySelector('.phase-0')).getPropertyValue(arguments[0])"
        assert browser.run_script(style, variable), "each phase colours the one map"
        kinds = "return [...document.querySelectorAll('.menu button')].map(n => n.textContent)"
        offered = Counter(browser.run_script(kinds))
        assert offered == {"CSV": 1, "SVG": 1 + count, "PNG": 1 + count}, "the table of seats, and each map"
        browser.run_command("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
        for kind in ("SVG", "PNG"):
            menu = browser.driver.find_element("css selector", ".phase.current .menu")
            menu.find_element("tag name", "summary").click()
            menu.find_element("xpath", f".//button[.='{kind}']").click()
        picture, pixels = (downloaded(tmp_path / f"map-of-spring-1901-moves.{kind}") for kind in ("svg", "png"))
        drawn = ElementTree.fromstring(picture)
        names = {node.get("id") for node in drawn.iter()}
        assert {node.get("href") for node in drawn.iter("{http://www.w3.org/2000/svg}use")} <= {f"#{n}" for n in names}
        assert b"var(" not in picture, "the file has the colours themselves"
        assert pixels.startswith(b"\x89PNG")
        frame = tmp_path / "page.html"
        frame.write_text('<title>x</title><iframe src="dip.html#phase-1" sandbox="allow-scripts"></iframe>')
        browser.driver.get(frame.as_uri())
        browser.driver.switch_to.frame(0)
        browser.driver.implicitly_wait(300)
        assert browser.driver.find_element("xpath", "//output[starts-with(., 'Autumn 1901, moves, 2 of')]")


def test_a_baseline_that_joined_late_has_no_rating_before() -> None:
    curve = RatingCurve("main", [1, 5], [1000.0, 1010.0], [1000.0, 1010.0], {"late_bot": [math.nan, 990.0]})
    table = _ratings_table(curve)
    assert encode_csv(table).decode().splitlines()[1:] == ["1,1000.0,1000.0,", "5,1010.0,1010.0,990.0"]
    assert "nan" not in render_table(table)
