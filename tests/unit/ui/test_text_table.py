"""Tables fit the terminal: no line is longer, and no number is cut or folded."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from typer.testing import CliRunner

from league.queries.text_table import Column, number_columns, render_rows, render_table
from tests.simulated_history import make_run
from ui.cli import app
from ui.output import format_count

WIDTH = 80
BORDERS = "┏┡┃│└├"


def table_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line[:1] in BORDERS]


def numbers(text: str) -> set[str]:
    return set(re.findall(r"[+-]?[\d,.]*\d", "\n".join(table_lines(text))))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(st.text("ab -", max_size=60), st.integers(0, 10**12), st.floats(0, 1e9)), max_size=4),
    st.integers(30, 120),
)
def test_no_line_is_wider_and_every_number_is_whole(rows: Sequence[tuple[object, ...]], width: int) -> None:
    columns = [Column("agent"), *number_columns("games of a policy", "rating")]
    text = render_table(columns, rows, width, ("games of a policy",))
    assert max(map(cell_len, text.splitlines()), default=0) <= width
    lines = table_lines(text)
    for _, games, rating in rows:
        assert any(re.search(rf" {re.escape(f'{rating:.6g}')} ", line) for line in lines)
        assert "games" not in text or any(f" {games} " in line for line in lines)


def test_optional_columns_go_in_their_order_before_texts_are_folded_into_pieces() -> None:
    columns = ["agent", *number_columns("rating"), "kind", "reason"]
    row = ["main@1234", 1034.5, "checkpoint", "joined as the first version after its evaluation"]
    narrow = render_table(columns, [row], 50, ("reason", "kind"))
    assert "joined" not in narrow
    assert "checkpoint" in narrow
    # A text that has room for some words a line stays, over several lines.
    assert "as the first" in render_table(columns, [row], 80, ("reason", "kind"))
    assert "joined as the first version after its evaluation" in render_table(columns, [row])


def test_what_does_not_fit_as_a_table_is_a_list_of_fields() -> None:
    names = [f"column_{number}" for number in range(20)]
    text = render_rows(names, ["BIGINT"] * 20, [range(10**6, 10**6 + 20)], "table", 60)
    assert re.search(r"│ column_19 +│ 1000019 +│", text)
    assert len(table_lines(text)) == 21


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("tables-of-a-league"))


@pytest.fixture(scope="module")
def match(run: Path) -> str:
    statement = "SELECT min(match_id) FROM matches WHERE purpose = 'training'"
    result = CliRunner().invoke(app, ["sql", statement, "--format", "csv", "--run", str(run)])
    return str(result.stdout.split()[1])


COMMANDS = [
    "leaderboard",
    "status --all",
    "ledger",
    "lineage main@3",
    "replay --set ratings.elo.k=64",
    "criteria",
    "match list --limit 50",
    "match show MATCH",
    "match explain MATCH",
    "sql SHOW_TABLES",
    "sql MATCHES",
]
"""Commands that print tables; the words in capitals stand for a statement or a match."""
STATEMENTS = {"SHOW_TABLES": "SHOW TABLES", "MATCHES": "SELECT * EXCLUDE (environment) FROM matches LIMIT 2"}


def printed(run: Path, words: Sequence[str], width: int) -> str:
    place = ["--run", str(run)]
    terminal = {"TTY_COMPATIBLE": "1", "COLUMNS": str(width), "NO_COLOR": "1", "TERM": "xterm"}
    result = CliRunner().invoke(app, [*words, *place], env=terminal)
    assert result.exit_code in (0, 1), (words, result.output, result.exception)
    return result.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_tables_fit_eighty_columns_with_their_numbers_whole(run: Path, match: str, command: str) -> None:
    words = [{**STATEMENTS, "MATCH": match}.get(word, word) for word in command.split()]
    narrow = printed(run, words, WIDTH)
    lines = table_lines(narrow)
    assert lines, "a table"
    assert [line for line in lines if cell_len(line) > WIDTH] == []
    assert [line for line in lines if re.search(r"\d…", line)] == []
    assert numbers(narrow) <= numbers(printed(run, words, 400))


def test_counts_have_the_plural_of_their_noun() -> None:
    assert format_count(1, "seal") == "1 seal"
    assert format_count(2000, "seal") == "2,000 seals"
    assert [format_count(n, "match", "matches") for n in (0, 1, 2)] == ["0 matches", "1 match", "2 matches"]
