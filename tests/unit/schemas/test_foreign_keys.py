"""Keys of other programs are answered with what they are called here."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from arena.environments import make_environment
from arena.games.diplomacy import Settings as DiplomacySettings
from schemas.config import LeagueConfig, convert, to_builtins
from schemas.config.foreign_keys import FOREIGN_KEYS, REMOVED_KEYS
from schemas.errors import ConfigError
from trainer.learner_config import LearnerConfig

PAGE = (Path(__file__).parents[3] / "docs" / "coming-from.md").read_text(encoding="utf-8")


def places(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        yield prefix + key
        if isinstance(value, Mapping):
            yield from places(value, f"{prefix}{key}.")


KNOWN = {
    *places(to_builtins(LeagueConfig())),
    *(f"trainer.learner.{field.name}" for field in msgspec.structs.fields(LearnerConfig)),
    *(f"game.settings.{field.name}" for field in msgspec.structs.fields(DiplomacySettings)),
    *("game.settings.env", "game.settings.evaluation_env", "game.settings.taskset"),
}


@pytest.mark.parametrize("key", FOREIGN_KEYS)
def test_a_key_of_another_program_is_answered_with_ours(key: str) -> None:
    named = re.findall(r"`([a-z_]+(?:\.\w+)*)`", FOREIGN_KEYS[key])
    assert named or FOREIGN_KEYS[key].startswith("nothing: ")
    assert [place for place in named if "." in place and place not in KNOWN] == []
    with pytest.raises(ConfigError) as caught:
        convert({"trainer": {key: 1}}, LeagueConfig, "")
    assert str(caught.value) == f"trainer.{key}: unknown key; here {FOREIGN_KEYS[key]}"


@pytest.mark.parametrize("key", REMOVED_KEYS)
def test_a_key_of_0_1_is_refused_with_what_became_of_it(key: str) -> None:
    named = re.findall(r"`([a-z_]+(?:\.\w+)*)`", REMOVED_KEYS[key])
    assert set(named) <= KNOWN
    with pytest.raises(ConfigError) as caught:
        convert({"trainer": {key: 1}}, LeagueConfig, "")
    message = f"trainer.{key}: a key of version 0.1.0; remove it: {REMOVED_KEYS[key]} (CHANGELOG.md)"
    assert str(caught.value) == message


def test_no_key_of_ours_is_hidden() -> None:
    ours = {place.rpartition(".")[2] for place in KNOWN if not place.startswith("game.settings.")}
    assert ours & (FOREIGN_KEYS.keys() | REMOVED_KEYS.keys()) == set()


def test_the_page_has_all_of_them() -> None:
    assert [key for key in FOREIGN_KEYS if f"`{key}`" not in PAGE] == []


def test_an_environment_as_a_game_is_answered_with_its_game() -> None:
    with pytest.raises(ConfigError, match=r"the game 'textarena' with game.settings.env = 'SimpleTak-v0-train'"):
        make_environment("SimpleTak-v0-train", {})
