"""``league game check`` plays the contract of games with a plugin and says which rules it breaks."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from arena.games.contract import RULES, TEXT_RULES

BROKEN = """
from itertools import count
from arena.games import register
from arena.games.tic_tac_toe import State, TicTacToe, TicTacToeSpec

games = count()

class Game(TicTacToe):
    def after(self, moves):
        if len(self.state.moves) == 8:
            raise KeyError("corner")
        return super().after(moves)

class Spec(TicTacToeSpec):
    name = "noughts"
    game_type = Game

    def start(self, seed):
        return State(next(games) % 2)

make = register("noughts")(Spec.of)
"""


@pytest.fixture
def plugins(tmp_path: Path) -> Path:
    file = tmp_path / "plugins" / "arena" / "games" / "noughts.py"
    file.parent.mkdir(parents=True)
    file.write_text(BROKEN)
    return tmp_path / "plugins"


def check(plugins: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ui", "game", "check", *words]
    environment = {**os.environ, "LEAGUE_PLUGINS": str(plugins)}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)


def test_the_rules_that_a_plugin_breaks_are_named_with_what_was_found(plugins: Path) -> None:
    result = check(plugins, "noughts")
    assert result.returncode == 1, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == len(RULES) + len(TEXT_RULES)
    assert any(line.startswith("MISS Equal seeds and actions give equal bytes: save() of a second") for line in lines)
    assert any(re.match(r"MISS Random play is legal.*noughts\.py:11: KeyError: 'corner'", line) for line in lines)
    assert "ok   Text rejects what it cannot say" in lines
    told = json.loads(check(plugins, "noughts", "--json").stdout)
    assert [not finding["found"] for finding in told] == [line.startswith("ok") for line in lines]


def test_a_sound_game_keeps_every_rule_with_the_settings_of_a_file(plugins: Path, tmp_path: Path) -> None:
    file = tmp_path / "league.toml"
    file.write_text('[game]\nname = "nim"\n[game.settings]\nheaps = [2, 3]\n')
    result = check(plugins, "nim", "--config", str(file))
    assert result.returncode == 0, result.stdout + result.stderr
    assert all(line.startswith("ok ") for line in result.stdout.splitlines())
    for words, told in (
        (["noughts", "--config", str(file)], "game.name is 'nim'; expected 'noughts'"),
        (["nougts"], "no game is called 'nougts'"),
    ):
        refused = check(plugins, *words)
        assert refused.returncode == 2
        assert told in refused.stderr
