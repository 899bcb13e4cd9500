"""Changes of an open league's configuration: validation, and the event that puts them in force."""

import contextlib
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from league.state import LeagueState
from schemas.codec import canonical_json
from schemas.config import LeagueConfig, convert, to_builtins
from schemas.config.base import assign_setting, parse_value, toml_document
from schemas.errors import ConfigError, UsageError
from schemas.events import LeagueConfigured
from schemas.ids import digest

_IMMUTABLE_KEYS = {
    "name": "every stream and subject of the league carries it",
    "seed": "every recorded draw derives from it",
    "game": "all matches, ratings and training are of this game",
    "model": "adapters and trainer states fit this base model alone",
    "agents": "matches were played against them as they are; agents enter and leave by `league agent add` and `retire`",
}
"""Keys that the recorded history depends on, with the reason why another value would make it another league."""


def check_change(league: str, old: LeagueConfig, new: LeagueConfig) -> list[str]:
    """List the tables that differ between the configuration in force and the requested one.

    Raises:
        UsageError: an immutable key is changed; the message names the keys and the reasons.
    """
    before, after = to_builtins(old), to_builtins(new)
    changed = [key for key in after if after[key] != before[key]]
    fixed = [key for key in changed if key in _IMMUTABLE_KEYS]
    if "agents" in fixed and _agent_identities(new) == _agent_identities(old):
        fixed.remove("agents")
    if new.blobs.url != old.blobs.url:
        raise UsageError(
            f"blobs.url: the league {league!r} was opened with {old.blobs.url!r}, where its large blobs are; expected "
            "the same, or a new league with the other address"
        )
    if fixed:
        reasons = "; ".join(f"{key}: {_IMMUTABLE_KEYS[key]}" for key in fixed)
        raise UsageError(
            f"the league {league!r} of this run was opened with another {', '.join(fixed)} ({reasons}); expected the "
            "same, or another --run folder for another league"
        )
    return changed


def configuration_event(state: LeagueState, config: LeagueConfig, model: str = "") -> LeagueConfigured:
    """The event that puts a configuration in force, with the base model of a league that had none."""
    value = to_builtins(config)
    return LeagueConfigured(value, digest(canonical_json(value))[:16], state.sequence, model)


def with_later_agents(opened: Mapping[str, Any], now: LeagueConfig, file: LeagueConfig) -> LeagueConfig:
    """Add the agents that were registered after the league's opening to a settings file's configuration.

    ``opened`` is the configuration that the league was opened with, ``now`` the one in force.
    """
    agents = {*opened.get("agents", {}), *file.agents}
    later = {name: agent for name, agent in now.agents.items() if name not in agents}
    return msgspec.structs.replace(file, agents=file.agents | later) if later else file


def with_settings(config: LeagueConfig, settings: Sequence[str]) -> LeagueConfig:
    """Apply settings, each ``KEY=VALUE``, to a configuration.

    Keys are dotted; a value is TOML or a plain word, and an empty one is null.
    """
    table = to_builtins(config)
    for setting in settings:
        key, equals, text = (part.strip() for part in setting.partition("="))
        if not equals or not key:
            raise ConfigError(f"{setting}: expected KEY=VALUE, such as rollout.ahead_steps=1.5")
        assign_setting(table, key.split("."), parse_value(text), key)
    return convert(table, LeagueConfig, "")


def _agent_identities(config: LeagueConfig) -> dict[str, Any]:
    """Properties of agents that must not change; a remote agent's address may."""
    return {
        name: (each.kind, each.rating, each.baseline, each.remote and (each.remote.training, each.remote.play_settings))
        for name, each in config.agents.items()
    }


def render_settings(config: LeagueConfig) -> str:
    """Render a configuration as TOML; ConfigError where TOML cannot express a value."""
    with contextlib.suppress(TypeError):
        text = toml_document(to_builtins(config))
        if convert(tomllib.loads(text), LeagueConfig, "") == config:
            return text
    raise ConfigError("settings: a value cannot be written in TOML, such as a list with null")
