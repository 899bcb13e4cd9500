"""Plugins of the user's own: named in the settings, recorded in the run, and their errors located."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.config import load_config
from schemas.errors import ConfigError
from schemas.plugins import add_folders, locate_error, missing_folders

ROOT = Path(__file__).parents[2]
BOT = """
from arena.bots import RandomBot, register


@register("faulty", games=["nim"])
class Faulty(RandomBot):
    def act(self, game, seat, rng):
        raise ZeroDivisionError("of the user's own bot")
"""


def league(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key != "LEAGUE_PLUGINS"}
    environment |= {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    command = [sys.executable, "-m", "ui", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def test_a_bot_that_raises_ends_its_matches_and_later_benchmarks_do_not_count_them(tmp_path: Path) -> None:
    bot = tmp_path / "plugins" / "arena" / "bots" / "faulty.py"
    bot.parent.mkdir(parents=True)
    bot.write_text(BOT)
    settings = (ROOT / "configs" / "nim-tiny.toml").read_text()
    settings = settings.replace("[agents]", '[agents]\nfaulty = { kind = "bot" }').replace(
        "sequences = 512", "sequences = 8"
    )
    (tmp_path / "league.toml").write_text(f'plugins = ["plugins"]\n{settings}')
    opened = league(tmp_path, "up", "--no-workers", "--config", "league.toml", "--run", "run")
    assert opened.returncode == 0, opened.stderr
    # From elsewhere, without the settings: the run knows where its plugins are.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    played = league(
        elsewhere, "benchmark", "--agent", "random_bot", "--against", "faulty", "--games", "30", "--run", "../run"
    )
    assert played.returncode == 1, played.stdout + played.stderr
    assert "30 matches failed, the last one by" in played.stdout + played.stderr
    assert "plugins/arena/bots/faulty.py:8: ZeroDivisionError: of the user's own bot" in played.stdout + played.stderr
    assert "Traceback" not in played.stdout + played.stderr
    bot.write_text(BOT.partition("    def")[0] + "    pass\n")
    mended = league(
        elsewhere, "benchmark", "--agent", "random_bot", "--against", "faulty", "--games", "30", "--run", "../run"
    )
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "matches failed" not in mended.stdout + mended.stderr


def test_folders_of_settings_are_relative_to_their_file(tmp_path: Path) -> None:
    (tmp_path / "league.toml").write_text('plugins = ["mine"]\n')
    assert load_config(tmp_path / "league.toml").plugins == (str(tmp_path / "mine"),)


def test_errors_of_plugins_have_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAGUE_PLUGINS", "")
    monkeypatch.chdir(tmp_path)
    add_folders([str(tmp_path)])
    (tmp_path / "broken.py").write_text("x = 1\nx / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ZeroDivisionError) as raised:
        __import__("broken")
    assert locate_error(raised.value) == "broken.py:2: ZeroDivisionError: division by zero"
    assert locate_error(ConfigError("ours")) == "ConfigError: ours"
    assert missing_folders() == ""
    add_folders(["nowhere"])
    assert "'nowhere' is not a folder" in missing_folders()


def test_a_file_that_cannot_be_imported_is_named_with_its_line(tmp_path: Path) -> None:
    game = tmp_path / "plugins" / "arena" / "games" / "own_game.py"
    game.parent.mkdir(parents=True)
    game.write_text("def make(:\n")
    (tmp_path / "league.toml").write_text('plugins = ["plugins"]\n[game]\nname = "own_game"\n')
    checked = league(tmp_path, "config", "check", "league.toml")
    assert "plugins/arena/games/own_game.py:1: SyntaxError" in checked.stderr
    assert "Traceback" not in checked.stderr
    # Commands that need no game work without the folder.
    assert league(tmp_path, "config", "check", str(ROOT / "configs" / "nim-tiny.toml")).returncode == 0


def test_a_plugin_of_0_1_is_refused_with_what_to_do(tmp_path: Path) -> None:
    game = tmp_path / "plugins" / "arena" / "games" / "own_game.py"
    game.parent.mkdir(parents=True)
    game.write_text("from schemas.deprecation import renamed\n")
    (tmp_path / "league.toml").write_text('plugins = ["plugins"]\n[game]\nname = "own_game"\n')
    refused = league(tmp_path, "config", "check", "league.toml").stderr
    assert "plugins/arena/games/own_game.py:1: ModuleNotFoundError: No module named 'schemas.deprecation'" in refused
    assert "plugins of version 0.1.0 must be adapted (CHANGELOG.md)" in refused
