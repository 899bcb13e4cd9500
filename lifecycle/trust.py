"""What settings from elsewhere would reach on this machine and beyond it, and the same settings without that.

The settings of a release are a stranger's data. Those that name an address, a file, an environment variable or code to
run are left off by every command that reads them there, unless the user trusts them by name.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from league.history.registry_import import REGISTRY_FILE, SETTINGS_FILE
from models import is_hub_id
from schemas.config import LeagueConfig, Plugin, config_path, convert, to_builtins
from schemas.errors import UsageError, format_choices

_REACHING_KEYS = {
    "plugins": "runs the Python files in",
    "inference.host": "listens on",
    "tracker.forward": "sends events to",
    "alarms.webhook_variable": "sends alarms to the address in the environment variable",
}
"""Keys that reach beyond the run's folder, whatever their value is, and how."""
_REACHING_PLUGINS = {
    "openenv": "sends moves to a server",
    "pettingzoo": "runs an installed module",
    "tinker": "sends the training data to a service, with the environment variable TINKER_API_KEY",
    "verifiers": "runs an installed module",
    "wandb": "sends charts to a service, with the environment variable WANDB_API_KEY",
}
"""Plugins that reach beyond this machine or run other code whatever their settings are, and how."""
_CODE_WORDS = ("remote_code", "trust_remote_code")
_TEXTS = ("prompts.system",)
"""Keys of texts for models."""
_NEEDED = ("game", "model.base")
"""Keys without which there is no league."""


class Reach(NamedTuple):
    """One thing that settings would reach."""

    name: str
    """Key of the settings, by which it is trusted."""
    what: str
    """What it does, with the values."""


def is_released(file: Path) -> bool:
    """Whether a settings file lies in the folder of a release, links followed."""
    place = config_path(file).resolve()
    return place.name == SETTINGS_FILE and place.with_name(REGISTRY_FILE).is_file()


def find_reaches(config: LeagueConfig) -> list[Reach]:
    """Everything that settings would reach beyond the run's folder, by key; defaults reach nothing."""
    found: dict[str, Reach] = {}
    default = to_builtins(LeagueConfig())
    for table, value in to_builtins(config).items():
        if value != default[table]:
            for reach in _walk(table, value, default[table]):
                found.setdefault(reach.name, reach)
    return sorted(found.values())


def trusted_settings(config: LeagueConfig, trusted: Collection[str]) -> tuple[LeagueConfig, list[Reach]]:
    """Settings without what is not ``trusted`` by name, and what was left off.

    Raises:
        UsageError: a name is none of those by which the settings reach something, or there is no league without one
            that is not trusted.
    """
    reaches = find_reaches(config)
    names = [reach.name for reach in reaches]
    if unknown := sorted(set(trusted) - set(names)):
        known = format_choices(names, unknown[0])
        raise UsageError(f"--trust {unknown[0]}: the settings reach nothing by that name; expected {known}")
    left_off = [reach for reach in reaches if reach.name not in trusted]
    for reach in left_off:
        if reach.name in _NEEDED:
            raise UsageError(
                f"{reach.name}: {reach.what}, say settings from elsewhere, and there is no league without it; expected "
                f"--trust {reach.name} if you trust where they come from"
            )
    plain = to_builtins(config)
    agents = {reach.name.removeprefix("agents.") for reach in left_off if reach.name.startswith("agents.")}
    for key in ("gatekeepers", "benchmark_opponents"):
        plain["evaluation"][key] = [name for name in plain["evaluation"][key] if name not in agents]
    if plain["episodes"]["judge"] in agents:
        plain["episodes"]["judge"] = ""
    for reach in left_off:
        _remove(plain, reach.name)
    return convert(plain, LeagueConfig, ""), left_off


def _walk(key: str, value: Any, default: Any = None) -> Iterator[Reach]:
    """What the value of a key and the values in it reach."""
    if value == default or key in _TEXTS:
        return
    if key in _REACHING_KEYS:
        yield Reach(key, f"{_REACHING_KEYS[key]} {_show(value)}")
    elif isinstance(value, Mapping) and value.get("kind") == "remote" and isinstance(value.get("remote"), Mapping):
        variable = value["remote"]["key_variable"]
        secret = f", with the environment variable {variable}" if variable else ""
        yield Reach(key, f"sends prompts to {value['remote']['url']}{secret}")
    elif isinstance(value, Mapping) and set(value) == set(Plugin.__struct_fields__):
        name, settings = value["name"], value["settings"]
        if (what := _REACHING_PLUGINS.get(name)) is not None:
            yield Reach(key, f"{what}: {_show(value)}")
        # As one: a plugin rarely works without a part of its settings.
        yield from (Reach(key, f"{name}: {inner.what}") for inner in _walk("settings", settings))
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _walk(f"{key}.{name}", part, default.get(name) if isinstance(default, Mapping) else None)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from (reach._replace(name=key) for reach in _walk(key, part))
    elif value and key.rpartition(".")[2] in _CODE_WORDS:
        yield Reach(key, "runs Python code that comes with the model")
    elif isinstance(value, str) and _is_place(value) and not (key == "model.base" and is_hub_id(value)):
        yield Reach(key, f"reaches the file or address {_show(value)}")


def _is_place(text: str) -> bool:
    """Whether a text may be a path or an address, rather than a name or a sentence."""
    has_spaces = any(letter.isspace() for letter in text)
    return text.startswith(("/", "~", ".")) or "://" in text or (not has_spaces and bool({"/", "\\"} & set(text)))


def _remove(table: dict[str, Any], key: str) -> None:
    """Remove a key from nested tables, whose names may contain dots."""
    if key in table:
        del table[key]
        return
    name = next(name for name in table if key.startswith(f"{name}."))
    _remove(table[name], key.removeprefix(f"{name}."))


def _show(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 200 else f"{text[:200]}…"
