"""Environments of PettingZoo (Terry et al. 2021, arXiv 2009.14471) with discrete actions, in turn and simultaneous.

- ``game``     an environment as ``Game`` and ``GameSpec``; calls of the package ``pettingzoo`` (the extra of that name)
- ``wording``  actions and observations in words, per environment
"""

from collections.abc import Mapping
from typing import Any

from arena.games import register
from arena.games.base import GameSpec
from arena.games.third_party import require_package


@register("pettingzoo")
def make(settings: Mapping[str, Any]) -> GameSpec:
    """Makes the environment that the settings name.

    Raises:
        ConfigError: a bad setting, no such environment, one that cannot be made here, or the package is not installed.
    """
    with require_package("pettingzoo", "pettingzoo"):
        from arena.games.pettingzoo.game import PettingZooSpec
    return PettingZooSpec.of(settings)
