"""Diplomacy on the standard map, for seven powers or fewer, without press.

- ``settings``  who plays, when a game ends and how it is scored
- ``engine``    the only module that touches the ``diplomacy`` package (AGPL-3.0-or-later), which adjudicates
- ``board``     the map as tables and bit masks
- ``position``  one phase as everybody sees it; its canonical JSON
- ``orders``    legal orders
- ``game``      one game: ``Game``
- ``spec``      makes games: ``GameSpec``
- ``scoring``   the result of a position
- ``text``      prompts and completions for a language model; ``walk`` holds the places of a completion
- ``signposts`` the same with what each unit can see from where it stands
- ``egocentric`` the game as JSON in and XML tags out, for large models
- ``drawing``   the map of every phase as SVG, by the package's renderer
- ``view``       a position from one side, as data
- ``words``     the game in English for remote agents; ``reading`` understands what they say
"""

from collections.abc import Mapping
from typing import Any

from arena.games import register
from arena.games.base import GameSpec
from arena.games.diplomacy.settings import Settings
from schemas.config import convert
from schemas.errors import ConfigError


@register("diplomacy", texts=("compact", "signposted", "egocentric"))
def make(settings: Mapping[str, Any]) -> GameSpec:
    """Diplomacy with these settings.

    Raises:
        ConfigError: a bad setting, or the engine's package is not installed.
    """
    parsed = convert(dict(settings), Settings, "game.settings")
    try:
        from arena.games.diplomacy.spec import DiplomacySpec
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "diplomacy":
            raise
        raise ConfigError(
            "game.name: 'diplomacy' needs the package that adjudicates it, which is not installed. It is an extra "
            "because its licence is AGPL-3.0-or-later: pip install 'event-sourced-league[diplomacy]'. The game "
            "'nim' needs no extra."
        ) from None
    return DiplomacySpec(parsed)
