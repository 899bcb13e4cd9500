"""Text of events on a terminal: every character is visible, no line is forged, and styles are the commands' own."""

import contextlib
import os
import pty
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from league.queries.terminal import Console, guard_terminal, say
from league.queries.text_table import number_columns, print_table, render_rows
from workers.logs import configure_command_logging
from workers.progress import show_progress

ROOT = Path(__file__).parents[3]
HOSTILE = "m-1\x1b[2J\x1b]0;x\x07\rsound: FAKE\x9b1A\u202eevil\u2066\x08\nsound: FAKE"
UNSEEN = re.compile(
    r"\x1b(?!\[[\d;]*m)|\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]|[\u202a-\u202e\u2066-\u2069]"
)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], str]:
    """What a terminal gets of a function that prints."""

    def run(show: Callable[[], object]) -> str:
        main, side = pty.openpty()
        with os.fdopen(side, "w", encoding="utf-8") as terminal:
            monkeypatch.setattr(sys, "stdout", terminal)
            monkeypatch.setattr(sys, "stderr", terminal)
            guard_terminal()
            show()
            sys.stdout.flush()
            text = os.read(main, 65_536).decode()
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            os.close(main)
        return text

    return run


def test_whatever_is_printed_moves_no_cursor(shown: Callable[[Callable[[], object]], str]) -> None:
    text = shown(lambda: print(HOSTILE))
    assert not UNSEEN.search(text)
    assert "\\u001b[2J" in text
    assert "\\u202eevil" in text


def test_a_line_stays_one_line(shown: Callable[[Callable[[], object]], str]) -> None:
    text = shown(lambda: say(f"damaged: {HOSTILE}"))
    assert text.count("\n") == 1
    assert not UNSEEN.search(text)


def test_consoles_and_tables_add_styles_to_visible_text_only(shown: Callable[[Callable[[], object]], str]) -> None:
    def show() -> None:
        console = Console(force_terminal=True, color_system="standard")
        console.print(HOSTILE, style="red", markup=False)
        print_table(console, ["match", *number_columns("games")], [[HOSTILE, 3]], title=HOSTILE)

    text = shown(show)
    assert not UNSEEN.search(text)
    assert "\x1b[31m" in text
    assert not any(line.startswith("sound") for line in text.splitlines()), "only what was printed as lines is lines"


def test_a_live_display_moves_the_cursor_and_what_is_printed_meanwhile_does_not(
    shown: Callable[[Callable[[], object]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")

    def show() -> None:
        with show_progress(Console(stderr=True, force_terminal=True), "opening the league"):
            print(HOSTILE, file=sys.stderr)

    text = shown(show)
    assert "\x1b[2K" in text
    assert "\\u001b[2K" not in text
    assert "\\u202eevil" in text
    assert "\x1b[2J" not in text


def test_log_lines_on_a_terminal_are_visible_too(shown: Callable[[Callable[[], object]], str]) -> None:
    import structlog

    def show() -> None:
        configure_command_logging()
        structlog.get_logger().warning("event skipped", match=HOSTILE, agent="\x1b[31mred")
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            structlog.get_logger().exception("failed")

    try:
        text = shown(show)
    finally:
        structlog.reset_defaults()
    assert not UNSEEN.search(text)
    assert "\\u001b[31mred" in text


def test_only_one_module_makes_consoles() -> None:
    packages = ["ui", "lifecycle", "workers", "players", "league", "arena", "inference", "trainer", "models"]
    makers = [
        str(path.relative_to(ROOT))
        for package in packages
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"rich\.console import .*\bConsole\b(?!O)|import rich\.console", path.read_text())
    ]
    assert makers == ["league/queries/terminal.py"]


def test_cells_of_csv_are_no_formulas_and_numbers_stay_numbers() -> None:
    rows = [("=1+1",), ("@x",), ("+cmd|' /C calc'!A0",), ("-2+3",), ("-2.5e3",), ("plain",), (-7,), (None,)]
    lines = render_rows(["=name"], ["VARCHAR"], rows, "csv").splitlines()
    assert lines == ["'=name", "'=1+1", "'@x", "'+cmd|' /C calc'!A0", "'-2+3", "-2.5e3", "plain", "-7", '""']
