"""The environments of TextArena (Guertler et al. 2025, arXiv 2504.11442), played as text.

They list no legal moves. An action is free text, and the environment judges it: a move that it rejects is recorded,
penalised by the environment's rules, and counted. Models answer freely (``[prompts] reply = "free"``); where candidate
moves can be found by trial, bots and models made here choose among those.

- ``library``   environments of the package ``textarena`` (the extra of that name), each with its own random state
- ``game``      an environment as ``Game`` and ``GameSpec``
- ``language``  observations and replies: pieces and plain text; candidate moves
"""

from collections.abc import Mapping
from typing import Any

from arena.games import register
from arena.games.base import GameSpec
from arena.games.third_party import require_package


@register("textarena")
def make(settings: Mapping[str, Any]) -> GameSpec:
    """Makes the environment that the settings name.

    Raises:
        ConfigError: a bad setting, no such environment, one that cannot be made here, or the package is not installed.
    """
    with require_package("textarena", "textarena"):
        from arena.games.textarena.game import TextArenaSpec
    return TextArenaSpec.of(settings)
