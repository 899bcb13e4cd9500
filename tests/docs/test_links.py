"""What the pages name exists: files, headings, functions and their lengths."""

import ast
import re
from itertools import takewhile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOP = ["README.md", "AGENTS.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "llms.txt"]
PAGES = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#: ]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if not (page.parent / link).exists()]


def test_configurations_and_pages_that_are_named_exist() -> None:
    named: set[str] = set()
    for path in [*PAGES, *ROOT.glob("configs/**/*.toml"), *ROOT.glob("*/**/*.py")]:
        if not any(part.startswith(".venv") or part == "tests" for part in path.parts):
            text = path.read_text(encoding="utf-8")
            named |= set(re.findall(r"`{1,2}((?:configs/[\w/-]+\.toml|docs/[\w-]+\.md))`", text))
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / name).exists() and "NAME" not in name]


def function_length(file: str, name: str) -> int:
    body: list[ast.stmt] = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    for part in name.split("."):
        node = next(node for node in body if getattr(node, "name", "") == part)
        assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        body = node.body
    return (node.end_lineno or 0) - node.lineno + 1


@pytest.mark.parametrize("path", ["One match", "One gradient step"])
def test_a_main_path_fits_the_screens_that_the_page_claims(path: str) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    claim, _, rest = page.partition(f"**{path}** fits ")[2].partition(":")
    table = "\n".join(takewhile(lambda line: not line.startswith("**"), rest.splitlines()))
    rows = re.findall(r"^\| `([\w.]+)` \| `([\w/.]+)` \| (\d+) \|$", table, re.MULTILINE)
    lengths = [function_length(file, name) for name, file, _ in rows]
    assert len(rows) >= 8
    assert all(abs(length - int(said)) <= 8 for length, (_, _, said) in zip(lengths, rows, strict=True)), lengths
    screens, lines = (int(number) for number in re.findall(r"\d+", claim))
    assert sum(lengths) <= screens * lines


def test_what_the_readme_says_to_read_first_is_as_long_as_it_says() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.partition("lines to read first")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w/.]+)` \| (\d+) \|", section, re.MULTILINE)
    lengths = [len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file, _ in rows]
    assert all(abs(length - int(said)) <= 10 for length, (_, said) in zip(lengths, rows, strict=True)), lengths
    [claim] = re.findall(r"## The ([\d,]+) lines to read first", readme)
    assert abs(sum(lengths) - int(claim.replace(",", ""))) <= 0.1 * sum(lengths)


def test_llms_txt_begins_as_its_format_requires() -> None:
    """Title, summary and sections of links: https://llmstxt.org/#format."""
    title, _, summary, *rest = (ROOT / "llms.txt").read_text(encoding="utf-8").splitlines()
    assert title.startswith("# ")
    assert summary.startswith("> ")
    sections = [line for line in rest if line.startswith("## ")]
    assert sections[-1] == "## Optional"
    assert all(line.startswith("- [") for line in rest[rest.index(sections[0]) :] if line and line not in sections)


def test_a_package_that_lists_its_modules_lists_all_but_plugins() -> None:
    unlisted = {}
    for path in ROOT.glob("*/py.typed"):
        for package in path.parent.rglob("__init__.py"):
            listed = set(re.findall(r"``(\w+)/?``", package.read_text().partition('"""\n')[0]))
            own = [module for module in package.parent.glob("[!_]*.py") if "register(" not in module.read_text()]
            modules = {module.stem for module in own}
            if listed & modules and (missing := modules - listed):
                unlisted[str(package.parent.relative_to(ROOT))] = sorted(missing)
    assert unlisted == {}
