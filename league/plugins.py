"""Plugins by name: one file each, found by importing every module of their package.

A package keeps one ``Registry``; a plugin's module holds its settings struct, its implementation and one
``@registry.register("name")`` on the function that builds it from its settings. Nothing else has to be edited.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from schemas.config import Plugin
from schemas.errors import ConfigError, one_of

T = TypeVar("T")


class Registry(Generic[T]):
    """The plugins of one kind.

    Args:
        package: Dotted name of the package whose modules register them.
        where: Dotted place of the plugin in the configuration, for messages.
    """

    def __init__(self, package: str, where: str) -> None:
        self.where = where
        self._package = package
        self._factories: dict[str, Callable[[Mapping[str, Any]], T]] = {}
        self._loaded = False

    def register(self, name: str) -> Callable[[Callable[[Mapping[str, Any]], T]], Callable[[Mapping[str, Any]], T]]:
        """Make a factory, a function of the settings table, known under ``name``."""

        def add(factory: Callable[[Mapping[str, Any]], T]) -> Callable[[Mapping[str, Any]], T]:
            self._factories[name] = factory
            return factory

        return add

    def names(self) -> list[str]:
        """All registered names, sorted."""
        self._load()
        return sorted(self._factories)

    def make(self, plugin: Plugin) -> T:
        """The plugin that the configuration names, with its settings.

        Raises:
            ConfigError: no plugin of that name (the message lists those there are), or a bad setting.
        """
        names = self.names()
        if plugin.name not in names:
            raise ConfigError(f"{self.where}.name: {plugin.name!r} is not known; expected {one_of(names)}")
        return self._factories[plugin.name](plugin.settings)

    def _load(self) -> None:
        # On first use rather than on import, since plugin modules import the registry themselves.
        if not self._loaded:
            self._loaded = True
            package = importlib.import_module(self._package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self._package}.{module.name}")
