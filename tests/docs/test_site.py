"""The documentation is built as a site: strictly, whole, and asking for nothing from elsewhere."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from docs_site import hook
from schemas import core

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
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
    written = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index"}
    assert pages == {".", *written, *(f"reference/{name}" for name in hook.PAGES)}
    for path in site.rglob("*.html"):
        loaded = Loaded()
        loaded.feed(path.read_text(encoding="utf-8"))
        assert loaded.addresses
        assert not [address for address in loaded.addresses if re.match(r"(https?:)?//", address)], path


def test_pages_that_are_named_as_files_are_links(site: Path) -> None:
    said = (site / "1-architecture" / "index.html").read_text(encoding="utf-8")
    assert re.search(r'<a href="\.\./8-training/">Training</a>', said)


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


def test_files_that_the_readme_and_the_pages_name_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = {ROOT / name for name in re.findall(r"`(docs/[\w-]+\.md)`", readme)}
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        named |= {ROOT / "docs" / name for name in re.findall(r"`(\d+-[\w-]+\.md)`", text)}
        named |= {ROOT / name for name in re.findall(r"`(configs/[\w/-]+\.toml)`", text)}
    assert len(named) > 10
    assert not [str(path) for path in named if not path.exists()]


@pytest.mark.parametrize("name", ["README.md", "AGENTS.md", "CONTRIBUTING.md", "SECURITY.md", "llms.txt"])
def test_links_of_the_top_level_pages_lead_to_files(name: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", (ROOT / name).read_text(encoding="utf-8"))
    assert not [link for link in links if not (ROOT / link).exists()]


def test_llms_txt_begins_as_its_format_wants() -> None:
    """Title, summary and sections of links: https://llmstxt.org/#format."""
    title, _, summary, *rest = (ROOT / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert title.startswith("# ")
    assert summary.startswith("> ")
    sections = [line for line in rest if line.startswith("## ")]
    assert sections[-1] == "## Optional"
    assert all(line.startswith("- [") for line in rest[rest.index(sections[0]) :] if line and line not in sections)


def test_the_page_of_core_types_lists_what_the_module_exports() -> None:
    page = (ROOT / "docs" / "13-core-types.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) != []
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == {name for name in vars(core) if name[0].isupper()}
