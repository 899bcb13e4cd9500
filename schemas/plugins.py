"""Plugins by name: one file in a plugin folder holds its config struct, its implementation and its registration."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from schemas.config import Plugin, convert
from schemas.errors import ConfigError, one_of

Runtime = TypeVar("Runtime")
Runtime_co = TypeVar("Runtime_co", covariant=True)
C = TypeVar("C", bound=type)


class Settings(Protocol[Runtime_co]):
    """A plugin's config struct: a frozen msgspec struct that forbids unknown fields."""

    def build(self) -> Runtime_co:
        """The object that these settings configure."""


class Registry(Generic[Runtime]):
    """The plugins of one folder; importing a file of the folder registers what it holds."""

    def __init__(self, where: str, package: str) -> None:
        """Make an empty registry.

        Args:
            where: dotted place of the plugin in the configuration, for messages: ``trainer.reward``.
            package: the folder, as a package name.
        """
        self.where = where
        self.package = package
        self._settings: dict[str, Any] = {}

    def register(self, name: str) -> Callable[[C], C]:
        """Class decorator of a settings struct."""

        def add(settings: C) -> C:
            if name in self._settings:
                raise ConfigError(f"{self.where}: {name!r} is registered twice")
            self._settings[name] = settings
            return settings

        return add

    def names(self) -> list[str]:
        """Every registered name, sorted; imports the folder's files first."""
        for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__):
            importlib.import_module(f"{self.package}.{module.name}")
        return sorted(self._settings)

    def settings(self, plugin: Plugin) -> Any:
        """The configured plugin's settings, defaults included.

        Raises:
            ConfigError: an unknown name (the message lists the valid ones) or settings it does not have.
        """
        if plugin.name not in self.names():
            raise ConfigError(f"{self.where}.name: {plugin.name!r} is not known; expected {one_of(self.names())}")
        return convert(plugin.settings, self._settings[plugin.name], f"{self.where}.settings")

    def build(self, plugin: Plugin) -> Runtime:
        """The configured plugin.

        Raises:
            ConfigError: an unknown name (the message lists the valid ones) or settings it does not have.
        """
        settings: Settings[Runtime] = self.settings(plugin)
        return settings.build()
