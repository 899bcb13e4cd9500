"""What a person can answer, as things to choose from; what is chosen is a reply that the game's words understand."""

import re
from typing import cast

import msgspec

from arena.games.base import Game
from arena.games.texts import Listing, Words

_LABEL = re.compile(r"^move:?\s+", re.IGNORECASE)


class Choice(msgspec.Struct, frozen=True):
    """One line of a reply."""

    name: str
    """What it is about; empty where there is nothing to say."""
    options: list[str]
    """What the line may be."""
    labels: list[str]
    """The options as they are shown."""
    usual: int = 0
    """Which option is chosen before anything is."""


def choices_of(words: Words, game: Game, seat: int) -> list[Choice]:
    """A choice for every line of a reply; none where a reply can only be written.

    Raises:
        GameError: the seat is not to move.
    """
    if game.name == "diplomacy":
        return _orders(game, seat)
    if not isinstance(words, Listing):
        return []
    replies = list(words.replies(game, seat))
    return [Choice("", replies, [_LABEL.sub("", reply) for reply in replies])] if replies else []


def _orders(game: Game, seat: int) -> list[Choice]:
    # Of an optional package; a game of it is here, so it is too.
    from arena.games.diplomacy import board
    from arena.games.diplomacy.game import DiplomacyGame

    table = cast(DiplomacyGame, game)
    position = table.position
    if position.kind != "A":
        default = "H" if position.kind == "M" else "D"
        return [_of_unit(unit.unit, list(unit.orders), default) for unit in table.choices(seat)]
    due = position.adjustment(seat)
    if due > 0:
        orders = [order for site in position.sites(seat) for order in board.builds_at(site)]
        return [_numbered("build", n, due, ["WAIVE", *orders], 0) for n in range(due)]
    orders = [f"{unit} D" for unit in position.units[seat]]
    return [_numbered("disband", n, -due, orders, n) for n in range(-due)]


def _of_unit(unit: str, orders: list[str], default: str) -> Choice:
    usual = f"{unit} {default}"
    return Choice(unit, orders, [order.removeprefix(f"{unit} ") for order in orders], max(_at(orders, usual), 0))


def _at(orders: list[str], order: str) -> int:
    return orders.index(order) if order in orders else 0


def _numbered(what: str, n: int, of: int, orders: list[str], usual: int) -> Choice:
    return Choice(f"{what} {n + 1} of {of}", orders, orders, usual)
