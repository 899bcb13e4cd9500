"""Environments of verifiers v1, single- and multi-agent, with their own rewards: each agent is a seat.

- ``adapter``  an environment as ``ArenaSpec``; calls of the package ``verifiers`` (the extra of that name)

It has no default environment, so it is not among ``arena_names``.
"""

from collections.abc import Mapping
from typing import Any

from arena.environments import ArenaSpec, register
from arena.games.third_party import require_package


@register("verifiers")
def make(settings: Mapping[str, Any]) -> ArenaSpec:
    """Makes the environment that the settings name.

    Raises:
        ConfigError: a bad setting, no such environment, one that cannot be played here, or no such package.
    """
    with require_package("verifiers", "verifiers"):
        from arena.environments.verifiers.adapter import VerifiersSpec
    return VerifiersSpec.of(settings)
