"""The documentation is built as a site: strictly, whole, and asking for nothing from elsewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from schemas.config import LeagueConfig
from schemas.events import EVENT_TYPES
from ui.cli import COMMANDS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    # The plugin of the command line calls `typer`.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    built = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PATH": path},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr[-3_000:]
    return folder


class Loaded(HTMLParser):
    """Addresses that a page loads by itself: of scripts, styles, pictures and frames, not of links."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        named = given.get("href") if tag == "link" and given.get("rel") != "canonical" else given.get("src")
        if named and tag != "a":
            self.addresses.append(named)


def test_every_page_is_built_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {str(path.parent.relative_to(site)) for path in site.rglob("index.html")}
    written = {str(path.relative_to(ROOT / "docs").with_suffix("")) for path in (ROOT / "docs").rglob("*.md")}
    assert pages == {".", *written - {"index"}}
    for path in site.rglob("*.html"):
        loaded = Loaded()
        loaded.feed(path.read_text(encoding="utf-8"))
        assert loaded.addresses
        assert not [address for address in loaded.addresses if re.match(r"(https?:)?//", address)], path


def test_the_reference_has_every_event_key_and_command(site: Path) -> None:
    events, settings, commands = (
        (site / "reference" / page / "index.html").read_text(encoding="utf-8")
        for page in ("events", "configuration", "commands")
    )
    assert not [name for name in EVENT_TYPES if f'id="schemas.events.{name}"' not in events]
    fields = [field.name for field in msgspec.structs.fields(LeagueConfig)]
    assert not [name for name in fields if f'id="schemas.config.LeagueConfig.{name}"' not in settings]
    assert not [words for words in COMMANDS if f"<code>league {words}</code>" not in commands]
    assert "<code>--until" in commands, "options of `league benchmark`"


def test_a_broken_link_ends_the_build(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A\n\n[gone](gone.md)\n")
    settings = (ROOT / "mkdocs.yml").read_text().partition("validation:")[2].partition("exclude_docs")[0]
    (tmp_path / "mkdocs.yml").write_text(f"site_name: A\nvalidation:{settings}")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"], cwd=tmp_path, capture_output=True, text=True
    )
    assert built.returncode == 1
    assert "contains a link 'gone.md'" in built.stderr
