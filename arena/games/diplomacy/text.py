"""Diplomacy's compact language: about 72 pieces for a position, about four for an order.

The prompt lists every place once under its status *relative to the player*: all other powers are "theirs". A completion
goes through the player's units in sorted order; a unit's place is forced, its order is a short code, and the last piece
closes the list.
"""

from collections.abc import Iterable, Sequence
from typing import cast

from arena.games.base import Action, Game
from arena.games.diplomacy import board, order_trie
from arena.games.diplomacy.engine import POWERS
from arena.games.diplomacy.game import DiplomacyGame
from arena.games.diplomacy.position import Position
from arena.games.texts import Phrases, Pieces
from schemas.errors import GameError

OPEN = "<orders>"
SEASONS = {"SM": "<spring>", "SR": "<spring-retreats>", "FM": "<fall>", "FR": "<fall-retreats>", "WA": "<winter>"}
POWER_PIECES = {power: f"<{power.lower()}>" for power in POWERS}
YEARS_LEFT = tuple(f"<left-{years}>" for years in range(10))
"""Years remaining after this one; the last also stands for any higher number."""
MY_CENTERS, FREE_CENTERS, THEIR_CENTERS = "<my-centers>", "<free-centers>", "<their-centers>"
THEIR_ARMIES, THEIR_FLEETS = "<their-armies>", "<their-fleets>"
MY_ARMIES, MY_FLEETS = "<my-armies>", "<my-fleets>"
MY_DISLODGED, THEIR_DISLODGED = "<my-dislodged>", "<their-dislodged>"
BUILD, DISBAND = "<build>", "<disband>"
"""Written once for each adjustment that is due."""

_FIXED_PIECES = (
    *(OPEN, order_trie.CLOSE, BUILD, DISBAND, MY_CENTERS, FREE_CENTERS, THEIR_CENTERS, THEIR_ARMIES, THEIR_FLEETS),
    *(MY_ARMIES, MY_FLEETS, MY_DISLODGED, THEIR_DISLODGED),
    *("H", "-", "VIA", "S", "C", "R", "D", "A", "F", "WAIVE"),
)


class DiplomacyText:
    """The ``TextFormat`` of Diplomacy."""

    def vocabulary(self) -> Sequence[str]:
        """Every piece of prompts and orders, sorted."""
        return sorted({*_FIXED_PIECES, *SEASONS.values(), *POWER_PIECES.values(), *YEARS_LEFT, *board.LOCATIONS})

    def prompt(self, game: Game, seat: int) -> Pieces:
        """Power, season, years left and the board as ``seat`` sees it."""
        table = require_turn(game, seat)
        position = table.position
        years_left = min(table.settings.max_year - position.year, len(YEARS_LEFT) - 1)
        season = SEASONS[position.phase[0] + position.phase[-1]]
        return (POWER_PIECES[table.seats[seat]], season, YEARS_LEFT[years_left], *_board_pieces(position, seat), OPEN)

    def completions(self, game: Game, seat: int) -> Phrases:
        """The walk over the orders of each unit in turn; of adjustments, over builds or disbands."""
        table = require_turn(game, seat)
        if table.position.kind == "A":
            return order_trie.adjustment_completions(table.position, seat)
        return order_trie.chain_tries(map(order_trie.unit_trie, table.legal_orders(seat)))

    def write(self, game: Game, seat: int, action: Action) -> Pieces:
        """Write the orders in pieces; ``GameError`` if they are not legal."""
        table = require_turn(game, seat)
        if not table.is_legal(seat, action):
            raise GameError(f"diplomacy text, {table.position.phase}: seat {seat} cannot play {action!r}")
        codes = [order_trie.encode_order(order) for order in action]
        if table.position.kind == "A":
            codes.sort(key=lambda code: (code == ("WAIVE",), code))
        return (*(piece for code in codes for piece in code), order_trie.CLOSE)

    def read(self, game: Game, seat: int, completion: Pieces) -> Action:
        """Read the orders; ``GameError`` if they are not one of ``completions``."""
        order_trie.check_completion(self.completions(game, seat), completion)
        return tuple(sorted(order for order, _ in self.split_orders(cast(DiplomacyGame, game), seat, completion)))

    def parts(self, game: Game, seat: int, completion: Pieces) -> Sequence[str]:
        """The order that each piece of a legal completion encodes; empty for the closing piece."""
        orders = self.split_orders(cast(DiplomacyGame, game), seat, completion)
        return [*(order for order, count in orders for _ in range(count)), ""]

    def split_orders(self, table: DiplomacyGame, seat: int, completion: Pieces) -> Iterable[tuple[str, int]]:
        """Yield the orders of a legal completion in turn, with the number of pieces of each."""
        codes: list[Pieces] = []
        start = 0
        while start < len(completion) - 1:
            length = 1 if completion[start] == "WAIVE" else CODE_LENGTH[completion[start + 1]]
            codes.append(completion[start : start + length])
            start += length
        if table.position.kind == "A":
            legal = ("WAIVE", *table.position.adjustment_orders(seat))
            order_of = {order_trie.encode_order(order): order for order in legal}
            orders = [order_of[code] for code in codes]
        else:
            units = table.legal_orders(seat)
            orders = [order_trie.decode_order(unit, code) for unit, code in zip(units, codes, strict=True)]
        return zip(orders, map(len, codes), strict=True)


def require_turn(game: Game, seat: int) -> DiplomacyGame:
    """The game as a ``DiplomacyGame``, after a check that the seat is to move."""
    table = cast(DiplomacyGame, game)
    table.check_to_move(seat)
    return table


def _board_pieces(position: Position, seat: int) -> Iterable[str]:
    others = [other for other in range(len(position.powers)) if other != seat]
    mine, theirs = position.units[seat], sorted(unit for other in others for unit in position.units[other])
    yield from (MY_CENTERS, *position.centers[seat])
    yield from (FREE_CENTERS, *(center for center in board.CENTERS if center not in position.owner))
    yield from (THEIR_CENTERS, *sorted(center for other in others for center in position.centers[other]))
    yield from (THEIR_ARMIES, *(unit[2:] for unit in theirs if unit[0] == "A"))
    yield from (THEIR_FLEETS, *(unit[2:] for unit in theirs if unit[0] == "F"))
    yield from (MY_ARMIES, *(unit[2:] for unit in mine if unit[0] == "A"))
    yield from (MY_FLEETS, *(unit[2:] for unit in mine if unit[0] == "F"))
    if position.kind == "R":
        dislodged = sorted(unit for other in others for unit in position.retreats[other])
        yield from (THEIR_DISLODGED, *(unit[2:] for unit in dislodged))
        yield from (MY_DISLODGED, *(unit[2:] for unit in position.retreats[seat]))
    elif position.kind == "A":
        due = position.adjustment_due(seat)
        yield from [BUILD if due > 0 else DISBAND] * abs(due)


CODE_LENGTH = {"H": 2, "D": 2, "A": 2, "F": 2, "-": 3, "VIA": 3, "R": 3, "S": 4, "C": 4}
"""Number of pieces of a code by its second piece; ``WAIVE`` has no second."""
