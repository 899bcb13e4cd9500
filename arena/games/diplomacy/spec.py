"""Diplomacy behind the ``GameSpec`` protocol: new, saved and recorded games, and their bots."""

from collections.abc import Sequence
from functools import cache
from typing import cast

import msgspec

from arena import bots
from arena.games.base import Bot, Game, GameSpec, OpponentModel, Recording, Turn
from arena.games.diplomacy import Settings
from arena.games.diplomacy.egocentric import EgocentricText, EgocentricWords
from arena.games.diplomacy.game import DiplomacyGame, Record
from arena.games.diplomacy.order_features import Floats
from arena.games.diplomacy.order_model import OpponentMixture, OrderModel, bot_weights
from arena.games.diplomacy.position import decode_position
from arena.games.diplomacy.signposts import SignpostedText, SurroundingsText
from arena.games.diplomacy.text import DiplomacyText
from arena.games.diplomacy.value_function import expected_value
from arena.games.diplomacy.words import DiplomacyWords
from arena.games.texts import TextFormat, Words
from schemas.codec import DECODE_ERRORS
from schemas.errors import DecodeError

_TEXTS = {"compact": DiplomacyText, "signposted": SignpostedText, "surroundings": SurroundingsText}


class DiplomacySpec(GameSpec):
    """Factory of Diplomacy games with one set of settings."""

    name = "diplomacy"
    is_fully_observed = True

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.seats: Sequence[str] = settings.playing_powers
        self.bots: Sequence[str] = bots.bot_names(self.name)

    def new(self, seed: int) -> DiplomacyGame:
        """Start a game in spring 1901, which is deterministic; the seed is only recorded."""
        return DiplomacyGame(self.settings, seed)

    def load(self, saved: bytes) -> DiplomacyGame:
        """Restore a saved position; ``DecodeError`` for other bytes."""
        return DiplomacyGame(self.settings, 0, decode_position(saved, self.seats))

    def open_record(self, record: bytes) -> Recording:
        """Decode a record under its own settings, without playing it; ``DecodeError`` for other bytes."""
        try:
            decoded = msgspec.json.decode(record, type=Record)
        except DECODE_ERRORS as error:
            raise DecodeError(f"diplomacy record: {error}") from None
        # The record's own settings decide who played: readers may not know the league's.
        powers = decoded.settings.playing_powers
        if strangers := {power for turn in decoded.turns for power in turn} - set(powers):
            raise DecodeError(f"diplomacy record: orders of {sorted(strangers)}; expected those of {', '.join(powers)}")
        start = None if decoded.start is None else decode_position(decoded.start.encode(), powers)
        turns = [{powers.index(power): action for power, action in turn.items()} for turn in decoded.turns]
        return Recording(
            decoded.seed, DiplomacyGame(decoded.settings, decoded.seed, start, decoded.end), turns, decoded.checks
        )

    def transcript(self, record: bytes) -> list[Turn]:
        """The phases with their orders, what became of them, and the changes of supply centres."""
        recording = self.open_record(record)
        game = cast(DiplomacyGame, recording.start)
        turns: list[Turn] = []
        year_began = game.position
        for actions in recording.turns:
            before = game.position
            game.apply(actions)
            after = game.position
            notes: list[str] = []
            if before.kind == "M":
                notes += [
                    f"dislodged: {power} {unit}, may go to {', '.join(places) or 'nowhere'}"
                    for power, retreats in zip(after.powers, after.retreats, strict=True)
                    for unit, places in retreats.items()
                ]
            if game.is_over() or after.year > before.year:
                parts = []
                for power, old, new in zip(after.powers, year_began.centers, after.centers, strict=True):
                    change = len(new) - len(old)
                    parts.append(f"{power} {len(new)}" + (f" ({change:+d})" if change else ""))
                notes.append(f"supply centres after {before.year}: {', '.join(parts)}")
                year_began = after
            # The package reports nothing useful about adjustments.
            hindered = game.results() if before.kind != "A" else {}
            moves: dict[str, list[str]] = {}
            for seat, action in sorted(actions.items()):
                results = [hindered.get(" ".join(order.split(" ", 2)[:2])) for order in action]
                moves[game.seats[seat]] = [
                    f"{order} ({', '.join(texts)})" if texts else order
                    for order, texts in zip(action, results, strict=True)
                ]
            turns.append(Turn(before.phase, moves, notes))
        return turns

    def bot(self, name: str) -> Bot:
        """The scripted agent of this name; ``GameError``, which lists the names, if there is none."""
        return bots.make_bot(name, self.name)

    def opponent_model(self, known: Sequence[str]) -> OpponentModel:
        """A model fitted to the bots' orders, once a process, which takes some seconds; mixed with ``known`` bots."""
        fitted = OrderModel(_bot_weights())
        return OpponentMixture(fitted, [self.bot(name) for name in known]) if known else fitted

    def expected_value(self, game: Game, seat: int) -> float:
        """Expected final ``squares`` of the seat, 0 to 1."""
        return expected_value(cast(DiplomacyGame, game).position, seat, self.settings.max_year)

    def text(self) -> TextFormat:
        """The text format that the settings select."""
        if self.settings.text == "egocentric":
            return EgocentricText(self.settings)
        return _TEXTS[self.settings.text]()

    def words(self) -> Words:
        """English with the usual notation of orders, or JSON and tags where the settings select them."""
        return EgocentricWords(self.settings) if self.settings.text == "egocentric" else DiplomacyWords(self.settings)


@cache
def _bot_weights() -> Floats:
    return bot_weights(DiplomacySpec(Settings()))
