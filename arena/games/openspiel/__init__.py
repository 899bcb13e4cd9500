"""The games of OpenSpiel (Lanctot et al. 2019, arXiv 1908.09453), turn-taking and simultaneous.

- ``game``       its games as ``Game`` and ``GameSpec``; calls of the package ``open_spiel`` (the extra ``openspiel``)
- ``responses``  exact best responses and exploitability of a policy
"""

from collections.abc import Mapping
from typing import Any

from arena.games import register
from arena.games.base import GameSpec
from arena.games.third_party import require_package


@register("openspiel")
def make(settings: Mapping[str, Any]) -> GameSpec:
    """Makes the game that the settings name.

    Raises:
        ConfigError: a bad setting, no such game, one that cannot be played here, or the package is not installed.
    """
    with require_package("openspiel", "open_spiel"):
        from arena.games.openspiel.game import OpenSpielSpec
    return OpenSpielSpec.of(settings)
