"""Diplomacy behind the ``GameSpec`` protocol: new games, saved ones, recorded ones, and who can play them."""

from collections.abc import Sequence

import msgspec

from arena import bots
from arena.games.base import Bot, TextFormat
from arena.games.diplomacy.engine import POWERS
from arena.games.diplomacy.game import DiplomacyGame, Record
from arena.games.diplomacy.position import decode_position
from arena.games.diplomacy.settings import Settings
from arena.games.diplomacy.text import DiplomacyText
from schemas.errors import DecodeError


class DiplomacySpec:
    """Makes games of Diplomacy with one set of settings."""

    name = "diplomacy"
    seats: Sequence[str] = POWERS

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.bots: Sequence[str] = bots.bot_names(self.name)

    def new(self, seed: int) -> DiplomacyGame:
        """A game that begins in spring 1901; nothing in it is left to chance, the seed is only recorded."""
        return DiplomacyGame(self.settings, seed)

    def load(self, saved: bytes) -> DiplomacyGame:
        """The position that ``Game.save`` wrote, ready to be played on.

        Raises:
            DecodeError: not such bytes.
        """
        return DiplomacyGame(self.settings, 0, decode_position(saved))

    def replay(self, record: bytes) -> DiplomacyGame:
        """Play a ``Game.record`` again under the settings it was played with.

        Raises:
            DecodeError: not such bytes.
            GameError: an action in it is illegal.
        """
        try:
            told = msgspec.json.decode(record, type=Record)
        except msgspec.DecodeError as error:
            raise DecodeError(f"diplomacy record: {error}") from None
        start = None if told.start is None else decode_position(told.start.encode())
        game = DiplomacyGame(told.settings, told.seed, start)
        for turn in told.turns:
            game.apply({POWERS.index(power): action for power, action in turn.items()})
        return game

    def bot(self, name: str) -> Bot:
        """The scripted agent of that name.

        Raises:
            GameError: no such bot.
        """
        return bots.make_bot(name, self.name)

    def text(self) -> TextFormat:
        """The compact language of ``text.DiplomacyText``."""
        return DiplomacyText()
