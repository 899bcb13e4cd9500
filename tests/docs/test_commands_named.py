"""Every `league` command that the documentation names is one, with options that it has."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from schemas.errors import ExitCode
from ui.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TREE: Any = get_command(app)


def said(text: str) -> Iterator[str]:
    """Commands in blocks, a line each unless it ends with a backslash, and in running text between backticks."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        if language in ("", "sh", "bash", "console"):
            yield from re.findall(r"^ *(league [a-z].*)", re.sub(r"\\\n *", "", block), re.MULTILINE)
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([^`]*)`", " ".join(plain.split()))
    yield from (span for span in spans if re.match(r"league [a-z]", span))


def wrong(line: str) -> str:
    """What is wrong with a command; empty if nothing is."""
    for part in line.partition(" #")[0].split(";"):
        # A quotation that goes on in the next line ends where this one does.
        words = shlex.split(part + ('"' if part.count('"') % 2 else ""))
        if words[:1] == ["league"] and (found := _wrong(words[1:])):
            return f"{part.strip()}: {found}"
    return ""


def _wrong(words: list[str]) -> str:
    command = TREE
    while words and hasattr(command, "commands"):
        # `league agent add|retire`
        names = words.pop(0).split("|")
        if unknown := [name for name in names if name not in command.commands]:
            return f"no command {unknown[0]!r}"
        command = command.commands[names[0]]
    known = {option for param in command.params for option in (*param.opts, *param.secondary_opts)} | {"--help"}
    asked = {word.partition("=")[0] for word in words if word.startswith("--") and word != "--"}
    return f"no option {min(asked - known)!r}" if asked - known else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_that_a_page_names_are_commands(page: Path) -> None:
    found = [told for line in said_on(page) if (told := wrong(line))]
    assert found == []


def said_on(page: Path) -> list[str]:
    return list(said(page.read_text(encoding="utf-8")))


def test_commands_are_found_and_wrong_ones_noticed() -> None:
    assert sum(len(said_on(page)) for page in PAGES) > 100
    assert wrong("league replay --verify # all of it") == ""
    assert wrong("league agent add|retire x") == ""
    assert "no command 'forget'" in wrong("league forget main@1")
    assert "no option '--backwards'" in wrong("league status; league replay --backwards")


def test_the_table_of_exit_codes_is_complete() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)]
    assert listed == sorted({int(code) for code in ExitCode})
