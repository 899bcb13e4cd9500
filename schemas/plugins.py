"""Plugins by name: one file in a plugin folder holds its config struct, its implementation and its registration.

Plugins outside the installed package are found in the folders of ``LEAGUE_PLUGINS`` (separated by ``os.pathsep``) and
of the setting ``plugins``, laid out like the package: ``arena/games/race.py`` is the game ``race``.
"""

import importlib
import os
import pkgutil
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, Self, TypeVar

import msgspec

from schemas.config import Plugin, convert
from schemas.errors import ConfigError, LeagueError, describe_error, format_choices

Runtime = TypeVar("Runtime")
C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])
Factory = TypeVar("Factory", bound=Callable[..., Any])
Info = TypeVar("Info")

PLUGIN_PACKAGES = (
    *("arena.bots", "arena.environments", "arena.games", "arena.prompts", "league.ratings", "league.samplers"),
    *("trainer.advantages", "trainer.backends", "trainer.buffer", "trainer.losses", "trainer.operators"),
    *("trainer.rewards", "trainer.transforms", "workers.trackers.sinks"),
)
"""Packages whose modules are plugins."""
_PACKAGES = ("arena", "inference", "league", "lifecycle", "models", "players", "schemas", "trainer", "ui", "workers")


def plugin_modules(package: str) -> list[str]:
    """Names of the modules in a plugin folder, including those in the folders of ``LEAGUE_PLUGINS``; sorted.

    Afterwards all of them can be imported as modules of ``package``. Folders that are not there are left to
    ``missing_folders``: most commands need no plugin. ``ConfigError`` if a file has the name of one that is there.
    """
    folders = importlib.import_module(package).__path__
    for folder in _own_folders(package):
        if str(folder) in folders:
            continue
        if clashes := _module_names(folders) & _module_names([str(folder)]):
            raise ConfigError(f"LEAGUE_PLUGINS: {folder}: {min(clashes)!r} exists already; expected another name")
        folders.append(str(folder))
    return sorted(_module_names(folders))


def _module_names(places: Sequence[str]) -> set[str]:
    return {module.name for module in pkgutil.iter_modules(places)}


def add_folders(folders: Iterable[str]) -> None:
    """Name further plugin folders, for this process and for those that it starts."""
    if added := dict.fromkeys([*_named_folders(), *folders]):
        os.environ["LEAGUE_PLUGINS"] = os.pathsep.join(added)


def missing_folders() -> str:
    """The end of a message about an unknown name: which plugin folders are not there; empty if all are."""
    missing = [name for name in _named_folders() if not Path(name).is_dir()]
    return f"; LEAGUE_PLUGINS or plugins: {missing[0]!r} is not a folder, as seen from {Path.cwd()}" if missing else ""


def locate_error(error: BaseException) -> str:
    """Type and message of an error, after the file and line of the plugin of the user's own that raised it, if any."""
    place = _plugin_place(error)
    return f"{place}: {describe_error(error)}" if place else describe_error(error)


def is_plugins_fault(error: BaseException) -> bool:
    """Whether a plugin in a folder of the user's own raised an error that is not one of ours."""
    return not isinstance(error, LeagueError) and bool(_plugin_place(error))


def _plugin_place(error: BaseException) -> str:
    folders = [f"{Path(name).resolve()}{os.sep}" for name in _named_folders()]
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        frames.append((error.filename or "", error.lineno))
    for file, line in reversed(frames):
        if any(file.startswith(folder) for folder in folders):
            return f"{os.path.relpath(file)}:{line}"
    return ""


def _import_plugin(name: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:  # a plugin's file may raise anything
        if not is_plugins_fault(error):
            raise
        remedy = "; plugins of version 0.1.0 must be adapted (CHANGELOG.md)" if _is_name_of_ours(error) else ""
        raise ConfigError(f"{locate_error(error)}; expected a plugin that can be imported{remedy}") from error


def _is_name_of_ours(error: BaseException) -> bool:
    """Whether an import failed for a module or name that this version's packages do not have."""
    return isinstance(error, ImportError) and (error.name or "").partition(".")[0] in _PACKAGES


def _named_folders() -> list[str]:
    return [name for name in os.environ.get("LEAGUE_PLUGINS", "").split(os.pathsep) if name]


def _own_folders(package: str) -> Iterator[Path]:
    for name in filter(os.path.isdir, _named_folders()):
        if Path(name).resolve() == Path.cwd():
            # A worker would import its folder ``arena`` for the package of that name.
            raise ConfigError(
                f"LEAGUE_PLUGINS: {name!r} is the working directory; expected a folder below it or elsewhere"
            )
        for folder in Path(name).glob("*/[!_.]*/"):
            _check_is_plugin_folder(folder.relative_to(name))
        folder = Path(name).resolve().joinpath(*package.split("."))
        if folder.is_dir():
            yield folder


def _check_is_plugin_folder(folder: Path) -> None:
    """Raise ``ConfigError`` for a folder of one of our packages that no registry reads: its files would be ignored."""
    package = ".".join(folder.parts)
    packages = {known.partition(".")[0] for known in PLUGIN_PACKAGES}
    if folder.parts[0] in packages and not any(f"{known}.".startswith(f"{package}.") for known in PLUGIN_PACKAGES):
        expected = format_choices([known.replace(".", "/") for known in PLUGIN_PACKAGES], folder.as_posix())
        raise ConfigError(f"LEAGUE_PLUGINS: {folder.as_posix()}: not a plugin folder; expected {expected}")


class PluginStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of plugins whose settings and implementation are one struct."""

    def build(self) -> Self:
        """The struct itself."""
        return self


class Registry(Generic[Runtime]):
    """The plugins of one folder; importing a module of the folder registers its plugins."""

    def __init__(self, where: str, package: str) -> None:
        self.where = where
        """Dotted key of the plugin in the configuration, for messages: ``trainer.reward``."""
        self.package = package
        self._settings: dict[str, Any] = {}
        self._scanned_for: str | None = None
        """``LEAGUE_PLUGINS`` when the folders were last scanned; None if they never were."""

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator of a settings struct; its ``build`` makes what it configures."""

        def add(settings: C) -> C:
            if name in self._settings:
                raise ConfigError(f"{self.where}: {name!r} is registered twice")
            self._settings[name] = settings
            return settings

        return add

    def names(self) -> list[str]:
        """Every registered name, sorted; imports the folder's files first."""
        for name in plugin_modules(self.package):
            _import_plugin(f"{self.package}.{name}")
        self._scanned_for = os.environ.get("LEAGUE_PLUGINS", "")
        return sorted(self._settings)

    def structs(self) -> dict[str, type]:
        """The settings struct of every registered plugin, by name."""
        return {name: self._settings[name] for name in self.names()}

    def settings(self, plugin: Plugin) -> Any:
        """The configured plugin's settings, defaults included; ``ConfigError`` for an unknown name or bad settings."""
        # Scanning folders takes longer than folding the matches of a small league, which needs its settings 200 times.
        is_known = plugin.name in self._settings and self._scanned_for == os.environ.get("LEAGUE_PLUGINS", "")
        if not is_known and plugin.name not in self.names():
            raise ConfigError(
                f"{self.where}.name: {plugin.name!r} is unknown; expected {format_choices(self.names(), plugin.name)}"
                f"{missing_folders()}"
            )
        return convert(plugin.settings, self._settings[plugin.name], f"{self.where}.settings")

    def build(self, plugin: Plugin) -> Runtime:
        """The object that the configured plugin's settings build; raises as ``settings``."""
        built: Runtime = self.settings(plugin).build()
        return built


class FactoryPlugin(NamedTuple, Generic[Factory, Info]):
    """A registered factory, and what is known of it without calling it."""

    make: Factory
    info: Info


class FactoryRegistry(Generic[Factory, Info]):
    """Factories in the files of one folder, which are imported on first use: a plugin may need an optional package."""

    def __init__(self, package: str, not_plugins: Collection[str] = ()) -> None:
        """An empty registry of a folder, by its package's name; ``not_plugins`` are modules that register nothing."""
        self.package = package
        self._not_plugins = frozenset(not_plugins)
        self._plugins: dict[str, FactoryPlugin[Factory, Info]] = {}
        self._is_complete = False

    def register(self, name: str, info: Info) -> Callable[[F], F]:
        """Decorator of a factory."""

        def add(factory: F) -> F:
            self._plugins[name] = FactoryPlugin(factory, info)  # type: ignore[arg-type]
            return factory

        return add

    def forget(self, name: str) -> None:
        """Drop a plugin, and look for new files at the next ``load_all``."""
        self._plugins.pop(name, None)
        self._is_complete = False

    def modules(self) -> list[str]:
        """Names of the folder's plugin files, sorted; nothing is imported."""
        return [name for name in plugin_modules(self.package) if name not in self._not_plugins]

    def load(self, module: str) -> FactoryPlugin[Factory, Info]:
        """The plugin of a file's name, after importing the file."""
        _import_plugin(f"{self.package}.{module}")
        return self._plugins[module]

    def load_all(self) -> Mapping[str, FactoryPlugin[Factory, Info]]:
        """Every plugin by name, after importing all files once."""
        if not self._is_complete:
            for module in self.modules():
                _import_plugin(f"{self.package}.{module}")
            self._is_complete = True
        return self._plugins
