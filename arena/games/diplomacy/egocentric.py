"""Diplomacy for large models: the position as JSON from the player's side, orders between XML tags.

A reply is ``<analysis>…</analysis><orders>…</orders>``, with one order per line in the engine's own notation. The
same format serves models trained here (``EgocentricText``, whose completions are the legal ones) and remote agents
(``EgocentricWords``, which parses leniently).
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from random import Random

import msgspec

from arena.games.base import Action, Game
from arena.games.diplomacy import Settings, board, order_trie
from arena.games.diplomacy.engine import POWERS
from arena.games.diplomacy.order_trie import CLOSE
from arena.games.diplomacy.position import UnitOrders
from arena.games.diplomacy.text import OPEN, require_turn
from arena.games.diplomacy.words import SEASONS, VIEW_KEYS, DiplomacyWords, player_view
from arena.games.texts import OptionsState, ParsedAction, Phrases, Pieces, strip_thinking
from arena.prompts import Message, build_game_messages
from arena.prompts.extraction import EXTRACTORS
from schemas.errors import GameError

END = "\n"
"""Ends the line of each order."""
_VERBS = (" H", " -", " S", " C", " R", " D", " B", " VIA")
_WORD = re.compile(r"[A-Za-z_]+|[^A-Za-z_]")
_RULES = """\
You play Diplomacy on the standard map as one of {powers}. Nobody can talk to anybody, and all orders of a phase \
are carried out at once.
Armies (A) move on land, fleets (F) at sea and along coasts, to a neighbouring place. Entering a place against others \
takes more support than they have; a supporter that is attacked from elsewhere supports nobody. Fleets at sea convoy \
armies. Whoever stands on a supply centre after the autumn moves owns it. In winter each power builds (in its own free \
home centres, at most one unit in each) or disbands until it has as many units as centres.
The game ends after the winter of {max_year}: one point for each centre, half a point for each unit{bonus}.
The position comes as JSON, seen from your side. {lists}In winter give as many orders as there are "builds" or \
"disbands"; WAIVE leaves a build out.
Answer in this form, with one order to a line for every unit that is ordered:
{analysis}<orders>
A PAR - BUR
F BRE H
</orders>"""
_LISTS_RULES = """\
"threats" names, for each province that you hold, the units of others that can move there without a convoy. \
"legal_orders" lists what each of your units may do; an order is the unit followed by one of its entries. """
_LIST_KEYS = ("threats", "free_centers", "legal_orders")
"""Keys derivable from the rest of the position and the map: about half of a question."""
_ANALYSIS_FORM = """\
<analysis>
what matters, in a few sentences
</analysis>
"""
_BONUS = ", and {points:g} more for sole possession of the most centres if they are at least {centers}"


class EgocentricWords(DiplomacyWords):
    """The format's ``Words``. Missing or invalid orders are filled in as by ``DiplomacyWords``.

    ``analysis`` asks for one before the orders; ``lists`` adds threats and legal orders to a question.
    """

    def __init__(self, settings: Settings, analysis: bool = True, lists: bool = True) -> None:
        super().__init__(settings)
        self._asks_analysis = analysis
        self._with_lists = lists

    def brief(self) -> "EgocentricWords":
        """The format without threats and legal orders, which follow from the map."""
        return EgocentricWords(self._settings, self._asks_analysis, lists=False)

    def rules(self) -> str:
        """The rules in brief, the meaning of the keys, and the form of a reply."""
        lists = _LISTS_RULES if self._with_lists else ""
        analysis = _ANALYSIS_FORM if self._asks_analysis else ""
        return _RULES.format(**self._rule_terms(_BONUS), lists=lists, analysis=analysis)

    def question(self, game: Game, seat: int) -> str:
        """The position as JSON, one key per line."""
        seen = player_view(require_turn(game, seat), seat)
        shown = [key for key in seen if self._with_lists or key not in _LIST_KEYS]
        return "{" + ",\n".join(f'"{key}":{msgspec.json.encode(seen[key]).decode()}' for key in shown) + "}"

    def understand(self, game: Game, seat: int, reply: str, rng: Random) -> ParsedAction:
        """Parse the orders between the last ``<orders>`` and its end, or the whole reply if the tag is missing."""
        return super().understand(game, seat, EXTRACTORS["orders"](strip_thinking(reply)).text, rng)


class EgocentricText:
    """The format's ``TextFormat``. Pieces include their white space: joined, they are the text itself."""

    opening = OPEN

    def __init__(self, settings: Settings, lists: bool = True) -> None:
        self._settings = settings
        self._with_lists = lists
        self.free_tokens = settings.analysis
        self._words = EgocentricWords(settings, settings.analysis > 0, lists)

    def brief(self) -> "EgocentricText":
        """The format without threats and legal orders, which follow from the map."""
        return EgocentricText(self._settings, lists=False)

    def with_free_tokens(self, free_tokens: int) -> "EgocentricText":
        """Copy the format with this many tokens for an analysis."""
        return EgocentricText(msgspec.structs.replace(self._settings, analysis=free_tokens), self._with_lists)

    def vocabulary(self) -> Sequence[str]:
        """Every piece of orders and prompts, sorted; white space is part of them."""
        observable = " ".join(
            (*VIEW_KEYS, *SEASONS.values(), *POWERS, *board.LOCATIONS, *_VERBS, *"AFMSWR", "WAIVE", "0123456789")
        )
        places = (f" {location}" for location in {*board.LOCATIONS, *board.PROVINCES})
        supported = (f" {kind} {location}" for kind in "AF" for location in {*board.LOCATIONS, *board.PROVINCES})
        written = {OPEN, CLOSE, END, "WAIVE", *_VERBS, *board.UNITS, *places, *supported}
        return sorted(written | {*_WORD.findall(observable), *'{}[]",:/ \n-'})

    def messages(self, game: Game, seat: int) -> list[Message]:
        """The rules and the question as a conversation."""
        return build_game_messages(self._words, game, seat)

    def prompt(self, game: Game, seat: int) -> Pieces:
        """The position alone, for tokenizers made for these pieces."""
        return tuple(_WORD.findall(self._words.question(game, seat)))

    def completions(self, game: Game, seat: int) -> Phrases:
        """All legal completions: one order per unit, in the sorted order of units."""
        table = require_turn(game, seat)
        position = table.position
        if position.kind != "A":
            return _with_opening(order_trie.chain_tries(map(_unit_trie, table.legal_orders(seat))))
        return _with_opening(order_trie.adjustment_completions(position, seat, _pieces))

    def write(self, game: Game, seat: int, action: Action) -> Pieces:
        """Write orders line by line, builds before waives; ``GameError`` if they are not legal."""
        table = require_turn(game, seat)
        if not table.is_legal(seat, action):
            raise GameError(f"diplomacy text, {table.position.phase}: seat {seat} cannot play {action!r}")
        orders: Sequence[str] = action
        if table.position.kind == "A":
            orders = sorted(action, key=lambda order: (order == "WAIVE", order[2:]))
        return (OPEN, END, *(piece for order in orders for piece in _pieces(order)), CLOSE)

    def read(self, game: Game, seat: int, completion: Pieces) -> Action:
        """Read orders line by line; ``GameError`` if they are not one of ``completions``."""
        order_trie.check_completion(self.completions(game, seat), completion)
        return tuple(sorted("".join(completion[2:-1]).splitlines()))


@lru_cache(maxsize=1 << 16)
def _pieces(order: str) -> Pieces:
    """Split an order into units, places and verbs, none of which is a prefix of another."""
    if order == "WAIVE":
        return ("WAIVE", END)
    kind, place, *rest = order.split()
    if rest[0] in "SC":
        # The other unit's kind and place are one piece, like the unit's own: "S A MAR - BUR".
        rest[1:3] = [f"{rest[1]} {rest[2]}"]
    return (f"{kind} {place}", *(f" {word}" for word in rest), END)


@lru_cache(maxsize=4096)
def _with_opening(orders: order_trie.TrieState | OptionsState) -> OptionsState:
    return OptionsState({OPEN: OptionsState({END: orders})})


@lru_cache(maxsize=8192)
def _unit_trie(choices: UnitOrders) -> order_trie.Trie:
    return order_trie.build_trie(map(_pieces, choices.orders))
