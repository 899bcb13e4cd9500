"""Draws ``docs/images/web-*.png``: the pages of a run, light and dark, in the system's Chromium.

python docs/images/web.py --run copy-of-a-run [--only match ratings]
"""

import argparse
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.web.chromium import Browser, open_browser
from tests.web.served import start_page_server

SIZE = (1200, 800)
COLOURS = 256
"""Colours of a picture: text and lines need no more, and the file is half as large."""
PATIENCE_S = 60.0
NEXT = "document.querySelector(\"button[aria-label='Next phase']\").click()"
TOP = "map.getBoundingClientRect().top + scrollY - document.querySelector('header').offsetHeight - 50"


def pages(match: str, agent: str) -> dict[str, str]:
    """What is drawn, by the picture's name."""
    question = (
        "SELECT agent, avg(score) AS score, count(*) AS games FROM match_seats GROUP BY agent ORDER BY score DESC"
    )
    named = quote(agent, safe="")
    return {
        "league": "/",
        "ratings": f"/ratings?agents={named},random_bot,base_model&system=trueskill",
        "payoff": "/payoff",
        "agent": f"/agent/{named}",
        "matches": "/matches",
        "match": f"/match/{quote(match, safe='')}",
        "training": "/training",
        "matchmaking": "/matchmaking",
        "lineage": "/lineage",
        "workers": "/workers",
        "problems": "/problems",
        "sql": f"/sql?q={quote(question)}",
        "play": "/play",
    }


def wait(browser: Browser) -> None:
    """Until nothing more arrives."""
    before, until = "", time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        time.sleep(1.5)
        now = browser.run_script("return document.querySelector('main').innerText")
        if now and now == before and not any(word in now for word in ("Computing…", "reading …", "asking …")):
            return
        before = now


def draw(browser: Browser, address: str, to: Path, dark: bool) -> None:
    """One picture."""
    browser.set_viewport(SIZE, dark)
    browser.driver.get(address)
    wait(browser)
    # Of a match the map is what there is to see, with orders of armies that have met.
    browser.run_script(f"if (document.querySelector('img.map')) {NEXT}")
    browser.run_script(f"const map = document.querySelector('img.map'); if (map) scrollTo(0, {TOP})")
    while browser.run_script("return !!document.querySelector('.mapped.waiting')"):
        time.sleep(0.1)
    time.sleep(0.5)
    picture = Image.open(io.BytesIO(browser.driver.get_screenshot_as_png())).convert("RGB")
    picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(to, optimize=True)


def shown(site: str) -> tuple[str, str]:
    """The newest match that was trained on, and the newest checkpoint."""
    with urlopen(f"{site}/api/matches?limit=1&purpose=training") as found:
        match = json.load(found)["rows"][0]["match_id"]
    with urlopen(f"{site}/api/agents?search=main@&limit=500") as found:
        joined = [row for row in json.load(found) if row["joined_sequence"] is not None]
    return match, max(joined, key=lambda row: row["joined_sequence"])["agent"]


def main() -> None:
    """Draw all of them, or some."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--only", nargs="*")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as place,
        open_browser() as browser,
        start_page_server(asked.run, Path(place) / "log") as site,
    ):
        for name, path in pages(*shown(site.url)).items():
            for dark in (False, True) if not asked.only or name in asked.only else ():
                to = Path(__file__).with_name(f"web-{name}{'-dark' if dark else ''}.png")
                draw(browser, site.url + path, to, dark)
                print(to.name, f"{to.stat().st_size / 1e3:.0f} kB", *browser.console_messages(), flush=True)


if __name__ == "__main__":
    main()
