"""Files that lie apart from the package, in a folder that ``LEAGUE_PLUGINS`` names."""

import importlib
import os
from pathlib import Path

import msgspec
import pytest

from arena.environments import arena_names, make_environment
from arena.games import game_names
from inference.base import _CONFIGS, backend_config, backend_names, register
from league.ratings.base import make_rating_system
from league.samplers import SAMPLERS
from schemas import plugins
from schemas.config import Plugin
from schemas.errors import ConfigError
from schemas.plugins import plugin_modules

GAME = """
from arena.games import register
from arena.games.nim import make as nim

make = register("own_nim")(lambda settings: nim(settings))
"""
PACKAGES = ("arena.games", "arena.bots", "arena.environments", "league.samplers")


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in PACKAGES:
        package = importlib.import_module(name)
        monkeypatch.setattr(package, "__path__", [*package.__path__])


def put(folder: Path, file: str, text: str = "") -> None:
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(text)


def test_a_file_at_the_same_place_in_a_folder_of_ones_own_is_a_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "mine", "arena/games/own_nim.py", GAME)
    put(tmp_path / "more", "league/samplers/own_sampler.py")
    before, samplers = game_names(), SAMPLERS.names()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEAGUE_PLUGINS", f"mine{os.pathsep}more")

    assert set(game_names()) - set(before) == {"own_nim"}
    assert "random_bot" in make_environment("own_nim", {"seats": 2, "heaps": [3]}).bots
    assert "own_sampler" in plugin_modules("league.samplers")
    assert SAMPLERS.names() == samplers, "a file that registers nothing adds nothing"


def test_without_such_folders_nothing_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEAGUE_PLUGINS", raising=False)
    path = [*importlib.import_module("arena.games").__path__]

    assert "nim" in game_names()
    assert importlib.import_module("arena.games").__path__ == path


def test_a_file_cannot_take_the_place_of_one_that_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "arena/games/nim.py")
    monkeypatch.setenv("LEAGUE_PLUGINS", str(tmp_path))

    with pytest.raises(ConfigError, match="'nim' exists already; expected another name"):
        game_names()


def test_a_folder_that_is_not_there_is_said_where_a_name_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEAGUE_PLUGINS", str(tmp_path / "nowhere"))

    assert "nim" in game_names()
    with pytest.raises(ConfigError, match=r"nowhere' is not a folder"):
        make_environment("own_nim", {})


def test_the_working_directory_is_refused_since_its_folders_would_hide_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEAGUE_PLUGINS", ".")

    with pytest.raises(ConfigError, match=r"'\.' is the working directory; expected a folder below it"):
        game_names()


def test_a_folder_that_holds_no_kind_of_plugin_is_refused_with_the_nearest_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "arena/environment/own_debate.py", "")
    monkeypatch.setenv("LEAGUE_PLUGINS", str(tmp_path))

    with pytest.raises(ConfigError, match=r"arena/environment: not a plugin folder.*arena/environments"):
        arena_names()


def test_known_settings_are_read_without_scanning_the_folders_again(monkeypatch: pytest.MonkeyPatch) -> None:
    make_rating_system(Plugin(name="elo"))
    monkeypatch.setattr(plugins, "plugin_modules", lambda package: pytest.fail(f"scanned {package}"))
    make_rating_system(Plugin(name="elo"))


class _OwnBackend(msgspec.Struct, forbid_unknown_fields=True):
    rows: int = 1


def test_a_backend_of_ones_own_is_registered_beside_those_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_CONFIGS, "own", ("", ""))
    register("own", _OwnBackend)(object)
    assert "own" in backend_names()
    assert backend_config("own", {"rows": 3}) == _OwnBackend(3)
    with pytest.raises(ConfigError, match="inference"):
        backend_config("own", {"row": 3})
