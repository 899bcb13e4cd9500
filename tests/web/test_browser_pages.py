"""Every page in a real browser, over a history that names everything so that it would harm whoever took it for markup.

Each page is opened once, and looked at on a desk and on a phone, light and dark.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import ui.web
from tests.web import story
from tests.web.chromium import DESKTOP_SIZE, PHONE_SIZE, Browser, missing_reason, open_browser
from tests.web.served import LEAGUE, PageServer, start_page_server

pytestmark = pytest.mark.skipif(missing_reason() is not None, reason=str(missing_reason()))

STATIC = Path(ui.web.__file__).parent / "static"
LOOKS = Path(__file__).with_name("looks.js").read_text()
AXE = importlib.util.find_spec("axe_core_python")
RUN_AXE = """
const done = arguments[0];
axe.run(document, {resultTypes: ["violations"]}).then(
  (found) => done(found.violations.map((one) => `${one.id} ${one.nodes.map((node) => node.html)}`.slice(0, 300))));
"""
PATIENCE_S = 300.0
NAMED = quote(f"random_bot{story.HOSTILE}", safe="")
ADDRESSES = {
    "": "/",
    "ratings": f"/ratings?agents={quote(quote(f'random_bot{story.HOSTILE}', safe=''))},main%404",
    "payoff": "/payoff",
    "agent": f"/agent/{NAMED}",
    "matches": f"/matches?agent={NAMED}",
    "match": "/match/debate-1",
    "criteria": "/criteria",
    "training": f"/training?smooth=0.6&sql={quote('SELECT step, accepted FROM gradient_steps')}",
    "compare": "/compare",
    "sql": f"/sql?q={quote('SELECT agent, count(*) AS games FROM match_seats GROUP BY agent')}",
    "matchmaking": "/matchmaking",
    "lineage": "/lineage",
    "workers": "/workers",
    "problems": "/problems",
    "play": "/play",
}
"""An address for every page that there is, by its first part."""
MORE = [
    "/match/dip-1",
    "/match/nim-1",
    f"/match/{quote(f'rollout-0-0{story.HOSTILE}', safe='')}",
    "/agent/main%404?at=200",
    f"/match/{NAMED}",
    f"/{NAMED}",
    "/?at=100",
]
"""Others that show what these do not: other games, the past, what is not there."""
REFUSED = (f"/match/{NAMED}",)
"""Of these the server says that there is nothing, which the console is told."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    folder = tmp_path_factory.mktemp("hostile")
    story.make(folder / "run", story.HOSTILE, double=True)
    with start_page_server(folder / "run", folder / "web.log") as pages:
        yield pages


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def opened(browser: Browser, address: str) -> None:
    """Open a page, and wait until it shows what it has."""
    browser.set_viewport(DESKTOP_SIZE)
    browser.driver.get(address)
    until = time.monotonic() + PATIENCE_S
    # The header's counts come by the live stream, a page's content when its answers are there.
    ready = (
        "return !!document.querySelector('main h1, main .problem') && !!document.querySelector('#counts').textContent "
        "&& !/(reading|asking|Computing|looking) ?…/.test(document.querySelector('main').innerText)"
    )
    while not browser.run_script(ready) or not _is_still(browser):
        assert time.monotonic() < until, f"{address}: {browser.run_script('return document.body.innerText')}"
        time.sleep(0.02)


def _is_still(browser: Browser) -> bool:
    """Whether nothing more arrives: parts of some pages come later, each by itself."""
    before = browser.run_script("return document.querySelector('main').innerText")
    time.sleep(0.1)
    return bool(before == browser.run_script("return document.querySelector('main').innerText"))


def unnamed(browser: Browser) -> list[Any]:
    """Pictures and controls that say nothing to those who cannot see them, as the browser tells their helpers."""
    roles = {"button", "link", "image", "textbox", "searchbox", "combobox", "slider", "checkbox", "radio", "spinbutton"}
    nodes = browser.run_command("Accessibility.getFullAXTree")["nodes"]
    return [
        (node["role"]["value"], node.get("properties"))
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in roles and not node.get("name", {}).get("value", "").strip()
    ]


def violations(browser: Browser) -> list[str]:
    """What axe-core finds; nothing where it is not installed (`make test-web` installs it)."""
    if AXE is None or AXE.origin is None:
        return []
    browser.run_script(Path(AXE.origin).with_name("axe.min.js").read_text())
    found: list[str] = browser.driver.execute_async_script(RUN_AXE)
    return found


def test_every_page_has_an_address_here() -> None:
    known = re.findall(r'\bpath: "([^"]*)"', (STATIC / "pages.js").read_text())
    assert known
    assert set(known) == set(ADDRESSES)


def test_what_is_loaded_beforehand_is_there() -> None:
    page = (STATIC / "index.html").read_text()
    early = re.findall(r'<link rel="modulepreload" href="/static/([^"]+)">', page)
    shell = re.findall(r'^import .* from "\./([^"]+)";', (STATIC / "app.js").read_text(), re.MULTILINE)
    assert set(shell) <= set(early), "one round trip for all that every page needs"
    assert [name for name in early if not (STATIC / name).is_file()] == []


def check(browser: Browser, address: str, refused: bool = False) -> None:
    """Look at a page in every way."""
    opened(browser, address)
    assert browser.run_script("return document.querySelectorAll('h1').length") == (0 if refused else 1)
    assert browser.run_script(LOOKS, "made", story.MARK) == []
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", browser.driver.title)
    assert unnamed(browser) == []
    for size, dark in ((DESKTOP_SIZE, False), (DESKTOP_SIZE, True), (PHONE_SIZE, True), (PHONE_SIZE, False)):
        browser.set_viewport(size, dark)
        assert browser.run_script(LOOKS, "faint", 4.5) == [], f"{size}, {'dark' if dark else 'light'}"
        assert browser.run_script(LOOKS, "wide") == [], f"{size}"
        # Of a page that is refused no more than the shell is there.
        if not dark and not refused:
            assert violations(browser) == [], f"{size}"
    assert [said for said in browser.console_messages() if not (refused and "Bad Request" in said)] == []


@pytest.mark.parametrize("address", [*ADDRESSES.values(), *MORE])
def test_a_page_is_sound(site: PageServer, browser: Browser, address: str) -> None:
    check(browser, site.url + address, address in REFUSED)


@pytest.mark.slow
def test_every_page_of_a_real_league_is_sound(tmp_path: Path, browser: Browser) -> None:
    """Of the run that ``LEAGUE_WEB_RUN`` names, which is copied and left alone, or of one that is trained for it."""
    named = os.environ.get("LEAGUE_WEB_RUN")
    if named:
        shutil.copytree(named, tmp_path / "run", ignore=shutil.ignore_patterns("*.lock"))
    else:
        up = [str(LEAGUE), "up", "--config", "configs/nim-tiny.toml", "--run", str(tmp_path / "run")]
        with (tmp_path / "up.log").open("wb") as log:
            subprocess.run(up, check=True, stdout=log, stderr=log, cwd=STATIC.parents[2])
    with start_page_server(tmp_path / "run", tmp_path / "web.log") as site:
        opened(browser, f"{site.url}/matches")
        matches = browser.run_script("return [...document.querySelectorAll('main tbody a')].map(a => a.pathname)")
        paths = [next(path for path in matches if path.startswith(start)) for start in ("/match/", "/agent/")]
        for address in [f"/{path}" for path in ADDRESSES if path not in ("match", "agent")] + paths:
            check(browser, site.url + address)
        opened(browser, f"{site.url}/matches?purpose=training")
        trained = browser.run_script(
            "return [...document.querySelectorAll('tbody td.line a')].map(a => a.pathname).at(-1)"
        )
        check(browser, site.url + trained)
        told = browser.run_script("return [...document.querySelectorAll('.turns .credit')].map(p => p.textContent)")
        assert told
        assert all(re.fullmatch(r"reward \S+, advantage \S+, trained on in step 1", one) for one in told), told


def test_the_looks_see_what_they_look_for(site: PageServer, browser: Browser) -> None:
    opened(browser, site.url + "/workers")
    browser.run_script(
        """
        const bad = document.createElement("div");
        bad.innerHTML = `<p id="${arguments[0]}" style="color: red"><img src="data:,"> faint \\u202e</p>`;
        bad.style.setProperty("width", "3000px");
        bad.style.setProperty("color", "#999");
        bad.append("faint");
        document.querySelector("main").append(bad);
        """,
        story.MARK,
    )
    assert any(f"p#{story.MARK}" in one or "faint" in one for one in browser.run_script(LOOKS, "made", story.MARK))
    assert any("control character" in one for one in browser.run_script(LOOKS, "made", story.MARK))
    assert any("faint" in one for one in browser.run_script(LOOKS, "faint", 4.5))
    assert browser.run_script(LOOKS, "wide")[0].startswith("3")
    assert [role for role, _ in unnamed(browser)] == ["image"]
    assert any("Content Security Policy" in said for said in browser.console_messages()), "inline styles are refused"
