"""Imports that plugins of earlier releases wrote: they work, and say what to write instead."""

import importlib
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from random import Random

import pytest

from schemas import deprecation
from schemas.deprecation import MOVED, RENAMED, new_path, old_paths

OLD_IMPORTS = [
    # As the documentation and the tests of plugins had them.
    ("arena.arenas", "register"),
    ("arena.arenas.base", "ArenaSpec"),
    ("arena.arenas.base", "Opening"),
    ("arena.calls", "Wish"),
    ("arena.clients", "Choosing"),
    ("arena.clients.scripted", "ScriptedClient"),
    ("arena.constraints", "Constraint"),
    ("arena.constraints", "Fixed"),
    ("arena.contests", "make_contest"),
    ("arena.excerpts", "Excerpt"),
    ("arena.games.base", "Crediting"),
    ("arena.games.base", "InWords"),
    ("arena.games.texts", "Grammatical"),
    ("arena.games.texts", "InBrief"),
    ("arena.grammars", "Grammars"),
    ("arena.harvest", "harvest"),
    ("arena.judging", "judged"),
    ("arena.listed", "ListedGame"),
    ("arena.listed", "ListedSpec"),
    ("arena.tagged", "Tagged"),
    ("arena.vocabulary", "Vocabulary"),
    ("league.artifacts", "ArtifactStore"),
    ("league.boards.payoff", "make_payoff_matrix"),
    ("league.criteria", "judge"),
    ("league.log.memory", "MemoryLog"),
    ("league.ratings.base", "inherited"),
    ("league.ratings.compiling", "compiled"),
    ("league.samplers.base", "SAMPLERS"),
    ("league.samplers.mix", "is_cold"),
    ("league.samplers.urn", "Urn"),
    ("league.simulation", "Simulation"),
    ("schemas.config", "plain"),
    ("schemas.errors", "one_of"),
    ("schemas.trajectories", "Rollout"),
    ("schemas.trajectories", "Step"),
    ("trainer.advantages.trees", "CREDITS"),
    ("trainer.advantages.trees.base", "register"),
    ("trainer.losses", "Kl"),
    ("trainer.losses", "Terms"),
    ("trainer.losses", "allowed_distribution"),
    ("trainer.model", "make_base"),
    ("trainer.packing", "rows"),
    ("trainer.terms", "whole"),
    ("trainer.transforms", "FINAL"),
    ("workers.asking.replies", "Prompting"),
    ("workers.forwarding.base", "Target"),
    ("workers.inference.base", "Sampling"),
    ("workers.inference.registry", "register"),
    ("workers.tracking.sinks.base", "Sink"),
]
UNCHANGED = [
    ("arena.arena", "Arena"),
    ("arena.bots", "register"),
    ("arena.clients", "InferenceClient"),
    ("arena.episodes", "Episode"),
    ("arena.episodes.chat", "MultiTurnEpisode"),
    ("arena.games", "register"),
    ("arena.games.base", "Game"),
    ("arena.match", "play"),
    ("arena.rubrics", "Rubric"),
    ("league.ratings.base", "Inheritance"),
    ("league.samplers", "SAMPLERS"),
    ("league.samplers.mix", "by_weight"),
    ("league.samplers.mix", "others"),
    ("schemas.episodes", "Rollout"),
    ("trainer.losses", "Objective"),
]


@pytest.fixture(autouse=True)
def _as_if_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old paths are looked up again, though another test has imported them."""
    for path in [path for path in sys.modules if new_path(path) is not None]:
        monkeypatch.delitem(sys.modules, path)


@pytest.mark.parametrize(("module", "name"), OLD_IMPORTS)
def test_an_old_import_works_and_warns(module: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=" is now "):
        imported = getattr(importlib.import_module(module), name)
    assert imported is not None


@pytest.mark.parametrize(("module", "name"), UNCHANGED)
def test_names_that_stayed_do_not_warn(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)


@pytest.mark.parametrize("old", MOVED)
def test_every_old_path_gives_the_module_of_today(old: str) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        module = importlib.import_module(old)
    assert f"{old} is now {MOVED[old]}" in [str(warning.message) for warning in seen]
    today = importlib.import_module(MOVED[old])
    if module is not today:
        assert all(getattr(module, name) is value for name, value in vars(today).items() if not name.startswith("__"))
    assert today.__spec__ is not None
    assert today.__spec__.name == MOVED[old]


@pytest.mark.parametrize(("module", "old"), [(module, old) for module, names in RENAMED.items() for old in names])
def test_every_old_name_gives_the_object_of_today(module: str, old: str) -> None:
    imported = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=rf"{module}\.{old} is now "):
        assert getattr(imported, old) is not None


def test_the_warning_points_at_the_import() -> None:
    code = "import schemas\nfrom arena.contests import make_contest\nfrom schemas.trajectories import Step\n"
    command = [sys.executable, "-W", "always::DeprecationWarning", "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    lines = {line.partition(": ")[0] for line in run.stderr.splitlines() if " is now " in line}
    assert lines == {"<string>:2", "<string>:3"}


@pytest.mark.parametrize(
    "old", ["arena.arenas.base", "league.boards.payoff", "trainer.group_assembler", "workers.inference.base"]
)
def test_an_old_path_is_found_by_an_interpreter_that_has_imported_nothing_else(old: str) -> None:
    command = [sys.executable, "-W", "always::DeprecationWarning", "-c", f"import {old}"]
    run = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    assert (run.returncode, f"{old} is now " in run.stderr) == (0, True), run.stderr


def test_an_old_submodule_leaves_the_package_of_today_as_it_is() -> None:
    with pytest.warns(DeprecationWarning, match=r"workers\.asking is now players"):
        importlib.import_module("workers.asking")
    with pytest.warns(DeprecationWarning, match=r"workers\.asking\.remote is now players\.remote\.remote_player"):
        importlib.import_module("workers.asking.remote")
    assert importlib.import_module("players").remote is importlib.import_module("players.remote")


def test_what_never_was_is_still_missing() -> None:
    with (
        pytest.raises(ModuleNotFoundError, match=r"arena\.arenas\.nothing"),
        pytest.warns(DeprecationWarning, match="arena.arenas"),
    ):
        importlib.import_module("arena.arenas.nothing")
    with pytest.raises(AttributeError, match="nothing"):
        getattr(importlib.import_module("schemas.trajectories"), "nothing".lower())


def test_a_folder_of_plugins_may_have_its_old_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from schemas.plugins import plugin_modules

    package = importlib.import_module("arena.environments")
    monkeypatch.setattr(package, "__path__", [*package.__path__])
    (tmp_path / "arena" / "arenas").mkdir(parents=True)
    (tmp_path / "arena" / "arenas" / "own_arena.py").touch()
    monkeypatch.setenv("LEAGUE_PLUGINS", str(tmp_path))

    with pytest.warns(DeprecationWarning, match=r"arena/arenas/own_arena\.py is now arena/environments/own_arena\.py"):
        assert "own_arena" in plugin_modules("arena.environments")
    assert "workers.tracking.sinks" in old_paths("workers.trackers.sinks")


def test_a_text_with_a_grammar_may_have_its_old_methods() -> None:
    from arena.enumerable import ListedText
    from arena.games import make_game
    from arena.games.nim import NimLanguage
    from arena.games.texts import as_grammar_text

    class OldText(ListedText):
        grammar, said, heard = NimLanguage.grammar, NimLanguage.write_reply, NimLanguage.read_reply

    spec = make_game("nim", {"text": "json"})
    text, game = spec.text(), spec.new(1)
    (seat,) = game.to_move()
    action = game.random_action(seat, Random(1))
    old = OldText.__new__(OldText)
    vars(old).update(vars(text))
    with pytest.warns(DeprecationWarning, match=r"OldText\.(said is now write_reply|heard is now read_reply)"):
        today = as_grammar_text(old)
    assert today is not None
    assert today.read_reply(game, seat, today.write_reply(game, seat, action)) == action
    assert as_grammar_text(make_game("nim", {}).text()) is None


def test_the_redirection_is_installed_once() -> None:
    before = list(sys.meta_path)
    deprecation.redirect_old_imports()
    assert sys.meta_path == before


@pytest.mark.parametrize("package", sorted(name for name in RENAMED if "." not in name))
def test_old_names_of_a_package_that_is_imported_first(package: str) -> None:
    code = f"import {package} as p\nfor name in {sorted(RENAMED[package])}: getattr(p, name)"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


def test_every_line_of_the_table_is_an_entry() -> None:
    table = Path(deprecation.__file__).with_name("old_names.txt").read_text(encoding="utf-8")
    entries = [line for line in table.splitlines() if line and not line.startswith("#")]
    assert [line for line in entries if not re.fullmatch(r"[\w.]+ -> [\w.]+|[\w.]+:( \w+=[\w.]+)+", line)] == []
