"""``league --help`` groups every command, in the order in which people need them; the shell can complete them."""

import re
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from schemas.errors import UsageError
from ui.cli import COMMANDS, GROUPS, PANELS, app

WIDE = {"COLUMNS": "120", "TERMINAL_WIDTH": "120"}


def helped(*words: str) -> str:
    return CliRunner().invoke(app, [*words, "--help"], env=WIDE).stdout


def test_every_command_stands_in_one_panel_and_every_name_is_a_command() -> None:
    placed = [name for names in PANELS.values() for name in names]
    assert sorted(placed) == sorted(get_command(app).commands)  # type: ignore[attr-defined]


def test_lists_show_the_help_of_every_command_without_importing_it() -> None:
    tree = get_command(app)
    groups = {"": tree, **{name: tree.commands[name] for name in GROUPS}}  # type: ignore[attr-defined]
    for words in COMMANDS:
        group, _, name = words.rpartition(" ")
        context = groups[group].context_class(groups[group])
        assert groups[group].get_command(context, name).help == groups[group].commands[name].help, words


def test_panels_and_commands_come_in_their_order() -> None:
    told = helped()
    titles = re.findall(r"^╭─ (.*?) ─+╮$", told, re.MULTILINE)
    assert titles == ["Options", *PANELS]
    # Lines that go on with a command's help begin with more spaces.
    names = re.findall(r"^│ ([a-z][a-z-]*) ", told.partition("Begin")[2], re.MULTILINE)
    assert names == [name for names in PANELS.values() for name in names]


def test_the_help_ends_with_three_commands_to_begin_with_that_there_are() -> None:
    first = re.findall(
        r"^ +league ([a-z ]+?)(?: --| [a-z.]+toml|  )", helped().partition("first three")[2], re.MULTILINE
    )
    assert first == ["config init", "up", "dash"]
    for words in first:
        assert f"Usage: root {words} " in " ".join(helped(*words.split()).split()), words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_can_be_told_to_complete(shell: str) -> None:
    script = CliRunner().invoke(app, [], env={"_LEAGUE_COMPLETE": f"source_{shell}"}, prog_name="league").stdout
    assert "_LEAGUE_COMPLETE" in script


def test_words_are_completed_to_commands_and_options() -> None:
    def completed(line: str) -> str:
        env = {"_LEAGUE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
        return CliRunner().invoke(app, [], env=env, prog_name="league").stdout

    assert completed("league lead").split() == ["leaderboard"]
    assert completed("league config i").split() == ["init"]
    assert "--hardware" in completed("league config init --h").split()


def test_a_mistyped_command_is_answered_with_the_one_that_was_meant() -> None:
    assert "'leaderboard'" in CliRunner().invoke(app, ["leaderbord"], env=WIDE).stderr


@pytest.mark.parametrize("words", [["leaderboard"], ["status"], ["verify"], ["events"]])
def test_without_a_league_the_way_to_one_is_told(words: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*words, "--run", str(tmp_path / "none")])
    assert isinstance(result.exception, UsageError)
    assert "league config init" in str(result.exception)
