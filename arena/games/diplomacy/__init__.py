"""Diplomacy on the standard map, for up to seven powers, without press.

- ``engine``       the only module that touches the ``diplomacy`` package (AGPL-3.0-or-later), which adjudicates
- ``board``        the map as tables and bit masks
- ``position``     one phase as all powers see it, its legal orders, its canonical JSON, and its score
- ``game``         one game: ``Game``
- ``spec``         the factory of games: ``GameSpec``
- ``text``         prompts and completions for a language model; ``order_trie`` holds the states of a completion
- ``signposts``    the same with the surroundings of each unit, and these alone, with counts of help
- ``egocentric``   JSON prompts and XML-tagged replies, for large models
- ``saved_games``  games as the package saves them, in and out
- ``map_svg``      the map of every phase as SVG, by the package's renderer
- ``unit_credit``  the contribution of each order
- ``order_model``  how the other powers order their units, fitted to the match so far, or as bots that they may be, over
  ``order_features``
- ``value_function``  who will own each supply centre when the game ends, fitted to games of bots
- ``words``        the game in English for remote agents; ``order_parser`` parses their replies and describes orders
"""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from arena.games import register
from arena.games.base import GameSpec
from schemas.config import convert
from schemas.config.base import Table
from schemas.errors import ConfigError
from schemas.numbers import Count, NonNegativeFloat

POWERS = ("AUSTRIA", "ENGLAND", "FRANCE", "GERMANY", "ITALY", "RUSSIA", "TURKEY")
"""Powers of the standard map, in seat order."""


class Settings(Table, frozen=True):
    """Powers that play, when a game ends, and how it is scored; defaults are League Training's."""

    max_year: Annotated[int, msgspec.Meta(ge=1901, le=1999)] = 1905
    """Last year that is played, its adjustments included: the package declares a draw after a hundred years."""
    win_bonus: NonNegativeFloat = 5.0
    """Points for a sole leader with at least ``winner_threshold_sc`` centres."""
    winner_threshold_sc: Annotated[int, msgspec.Meta(ge=1, le=34)] = 10
    """Supply centres that a sole leader needs for the bonus; the map has 34."""
    text: Literal["compact", "signposted", "surroundings", "egocentric"] = "compact"
    """Format of prompts and completions: the vocabulary of ``text``, the same with each unit's surroundings
    (``signposts``), surroundings without the board (``surroundings``), or JSON and tags, for large models.
    """
    analysis: Count = 0
    """Maximum number of free tokens that a model may write before its orders; only ``egocentric`` asks for them."""
    # Omitted from records where all powers play, so that those records equal the ones made before it existed.
    powers: tuple[str, ...] | UnsetType = UNSET
    """Powers that play; all seven if unset. The others have no units, and their home centres are neutral."""

    @property
    def playing_powers(self) -> tuple[str, ...]:
        """The powers that play, in seat order."""
        return POWERS if self.powers is UNSET else tuple(power for power in POWERS if power in self.powers)

    def __post_init__(self) -> None:
        if self.analysis and self.text != "egocentric":
            raise ConfigError(f"analysis: found {self.analysis} with text = {self.text!r}; expected 'egocentric'")
        if self.powers is UNSET:
            return
        if strangers := sorted({*self.powers} - {*POWERS}):
            raise ConfigError(f"powers: found {', '.join(map(repr, strangers))}; expected some of {', '.join(POWERS)}")
        if twice := sorted(power for power, times in Counter(self.powers).items() if times > 1):
            raise ConfigError(f"powers: found {', '.join(twice)} more than once; expected 2 to 7 different powers")
        if len(self.powers) < 2:
            names = ", ".join(self.powers) or "none"
            raise ConfigError(f"powers: found {names}; expected 2 to 7 of {', '.join(POWERS)}")


@register("diplomacy", texts=("compact", "signposted", "surroundings", "egocentric"))
def make(settings: Mapping[str, Any]) -> GameSpec:
    """Make Diplomacy with these settings; ``ConfigError`` for a bad one, or without the engine's package."""
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
