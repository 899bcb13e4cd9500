"""Reference of the configuration: every table and key, and every plugin with its settings."""

import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import inspect as types

from arena.bots import bot_names
from arena.environments import arena_names
from arena.games import game_names
from docs_site.glossary import SETTINGS
from docs_site.markdown import code, inline, page, render_paragraphs, table
from docs_site.structs import field_table, nested_structs, struct_fields
from schemas.config import LeagueConfig, Plugin
from schemas.plugins import Registry

PLUGIN_REGISTRIES = {
    "policies.reset_operator": ("trainer.operators", "OPERATORS"),
    "matchmaking.sampler": ("league.samplers", "SAMPLERS"),
    "ratings.system": ("league.ratings.base", "SYSTEMS"),
    "trainer.buffer.strategy": ("trainer.buffer", "STRATEGIES"),
    "trainer.reward": ("trainer.rewards", "REWARDS"),
    "trainer.transforms.final": ("trainer.transforms", "FINAL_TRANSFORMS"),
    "trainer.transforms.step": ("trainer.transforms", "STEP_TRANSFORMS"),
    "trainer.transforms.sampling": ("trainer.transforms", "SAMPLING_TRANSFORMS"),
    "trainer.advantage": ("trainer.advantages.base", "ADVANTAGES"),
    "trainer.loss": ("trainer.losses", "LOSSES"),
    "tracker.sinks": ("workers.trackers.sinks", "SINKS"),
}
"""Key of each kind of plugin in the configuration, and module and name of its registry."""
EXTRA_TABLES = {
    "model.shape": ("models.make", "BaseShape"),
    "model.cloning": ("models.behaviour_cloning", "CloningConfig"),
    "trainer.learner": ("trainer.learner_config", "LearnerConfig"),
    "inference.options": ("inference.local", "LocalConfig"),
}
"""Tables without a struct in the configuration, and the structs that decode them."""


def render_page() -> str:
    """The page as Markdown."""
    return page(
        "# Configuration",
        "A league is configured by one TOML file. Every key has a default; unknown keys are refused, with the "
        "known ones in the message. `league config init` writes a file from four questions, `league config check` "
        "checks one and estimates what it would start, `league config set` changes keys of a running league. This "
        "page is generated from `schemas/config/` and from the plugins.",
        "## The file",
        field_table(LeagueConfig, _link, SETTINGS),
        *[_table_section(where, struct) for where, struct in collect_tables("", LeagueConfig).items()],
        "## What is played",
        *_games_section(),
        "## Plugins",
        "A plugin is named by `name`; its `settings` are the fields below. [Extending](../3-extending.md) shows how to "
        "add one.",
        *[_plugin_section(where) for where in PLUGIN_REGISTRIES],
        "## Further tables",
        "The backend `local` reads `inference.options` as below; other backends have options of their own.",
        *[_extra_section(where, _load_attribute(*place)) for where, place in EXTRA_TABLES.items()],
        "## Tables within settings",
        *[_extra_section(name, struct) for name, struct in nested_tables().items()],
    )


def collect_tables(prefix: str, struct: type) -> dict[str, type]:
    """Every table of the file by its dotted key, each followed by the tables within it."""
    found: dict[str, type] = {}
    for where, inner in _inner_tables(prefix, struct):
        if inner is not Plugin:
            found |= {where: inner, **collect_tables(f"{where}.", inner)}
    return found


def _inner_tables(prefix: str, struct: type) -> Iterator[tuple[str, type]]:
    for field in struct_fields(struct):
        name = f"{field.name}.NAME" if isinstance(field.type, types.DictType) else field.name
        for inner in nested_structs(field.type):
            yield prefix + name, inner


def _table_section(where: str, struct: type) -> str:
    return page(
        f"### `[{where}]` {{ #{_anchor(struct)} }}",
        render_paragraphs(_doc(struct)),
        field_table(struct, _link, SETTINGS),
    )


def _extra_section(where: str, struct: type) -> str:
    return page(
        f"### `{where}` {{ #{_anchor(struct)} }}", render_paragraphs(_doc(struct)), field_table(struct, _link, SETTINGS)
    )


def plugin_structs() -> list[type]:
    """The settings of plugins, and the further tables."""
    plugins = [struct for place in PLUGIN_REGISTRIES.values() for struct in _load_attribute(*place).structs().values()]
    return [_load_attribute(*place) for place in EXTRA_TABLES.values()] + plugins


def nested_tables() -> dict[str, type]:
    """Tables within the settings of plugins and within further tables, by key; each struct once."""
    found: dict[str, type] = {}
    for struct in plugin_structs():
        found |= {name: inner for name, inner in collect_tables("", struct).items() if inner not in found.values()}
    return found


def _games_section() -> list[str]:
    games = [[code(name), inline(_module_summary(f"arena.games.{name}"))] for name in game_names()]
    arenas = [[code(name), inline(_module_summary(f"arena.environments.{name}"))] for name in arena_names()]
    bots = ", ".join(code(name) for name in bot_names(""))
    return [
        "`[game]` names a game or an arena, and has its `settings`.",
        table(("game", "is"), games),
        table(("arena", "is"), arenas),
        f"Bots that play every game: {bots}. Games have bots of their own beside them.",
    ]


def _plugin_section(where: str) -> str:
    registry: Registry[Any] = _load_attribute(*PLUGIN_REGISTRIES[where])
    place = where.replace(".", "-")
    parts = [f"### `{where}` {{ #{place} }}"]
    for name, struct in registry.structs().items():
        parts.append(f"#### `{name}` {{ #{place}-{name} }}")
        parts += [
            inline(_module_summary(struct.__module__)),
            render_paragraphs(_doc(struct)),
            field_table(struct, _link, SETTINGS),
        ]
    return page(*parts)


def _module_summary(module: str) -> str:
    """First line of a module's docstring. The module is not imported: it may need a package that is not installed."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text(encoding="utf-8")
    return text.partition('"""')[2].partition("\n")[0].removesuffix('"""')


def _link(struct: type) -> str:
    if struct is Plugin:
        return "[plugin](#plugins)"
    return f"[table](#{_anchor(struct)})"


def _anchor(struct: type) -> str:
    return struct.__name__.removesuffix("Config").lower()


def _doc(struct: type) -> str:
    return inspect.getdoc(struct) or ""


def _load_attribute(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)
