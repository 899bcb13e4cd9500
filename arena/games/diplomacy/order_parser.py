"""Orders in English, both ways: descriptions of legal ones, and a parser of free-form replies.

A reply is split into clauses, and a clause into tokens of the engine's notation: kinds, places, verbs and other words.
The first unit that a clause names is its subject. An order matches when its tokens follow the subject and no later
token turns it into another order; optional tokens (a unit's kind, a coast) may be omitted where exactly one legal order
remains.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from arena.games.diplomacy import board
from arena.games.diplomacy.engine import MAP
from arena.games.diplomacy.position import Position, UnitOrders
from arena.games.texts import AnswerField

Tokens = tuple[str, ...]

UNIT_KINDS = ("A", "F")
_PLACES = frozenset((*board.LOCATIONS, *board.PROVINCES))
_COASTS = {"NORTH": "NC", "SOUTH": "SC", "EAST": "EC"}
_COAST = re.compile(r"\s*[(/]?\s*\b(?:(NORTH|SOUTH|EAST)(?:ERN)?\s+COAST|(NC|SC|EC))\b\)?")
_NAMES = {
    **{name.upper(): short.upper() for name, short in MAP.loc_name.items() if "/" not in short},
    "MID ATLANTIC OCEAN": "MAO",
    "MID-ATLANTIC": "MAO",
    "MARSEILLE": "MAR",
    "ROMANIA": "RUM",
    "ST. PETERSBURG": "STP",
    "GULF OF LYONS": "LYO",
    "TYROL": "TYR",
    "HELIGOLAND BIGHT": "HEL",
}
_NAME = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(_NAMES, key=len, reverse=True)))})\b")
_ARROW = re.compile(r"[-=–—]+>?|[→⇒➔]")
_TOKEN = re.compile(r"[A-Z]+(?:/[NSE]C)?|-")
_CLAUSE_END = re.compile(r"[\n;,]|\.\s")
_SYNONYMS = {
    **dict.fromkeys(("ARMY", "ARMIES"), "A"),
    **dict.fromkeys(("FLEET", "FLEETS"), "F"),
    **dict.fromkeys(("HOLD", "HOLDS", "HOLDING", "STAY", "STAYS"), "H"),
    **dict.fromkeys(("SUPPORT", "SUPPORTS", "SUPPORTING"), "S"),
    **dict.fromkeys(("CONVOY", "CONVOYS", "CONVOYING"), "C"),
    **dict.fromkeys(("RETREAT", "RETREATS", "RETREATING"), "R"),
    **dict.fromkeys(("DISBAND", "DISBANDS", "REMOVE", "REMOVES"), "D"),
    **dict.fromkeys(("BUILD", "BUILDS"), "B"),
    **dict.fromkeys(("WAIVE", "WAIVES", "WAIVED"), "WAIVE"),
    "TO": "-",
}
_STOP_WORDS = frozenset(("MOVE", "MOVES", "MOVING", "THE", "IN", "AT", "FROM", "INTO", "ATTACK", "ATTACKS"))
_REDUNDANT = frozenset((("VIA", "C"), ("R", "-")))
"""A token, and one after it that adds nothing: "VIA CONVOY", "RETREATS TO"."""
_CONTINUATIONS = frozenset(("-", "S", "C", "R", "VIA"))


def split_clauses(reply: str) -> list[Tokens]:
    """Split a reply into its non-empty clauses, each of which can hold one order."""
    text = _NAME.sub(lambda name: _NAMES[name[0]], reply.upper())
    text = _COAST.sub(lambda coast: f"/{coast[2] or _COASTS[coast[1]]}", text)
    return [tokens for part in _CLAUSE_END.split(text) if (tokens := _tokenise(part))]


def _tokenise(text: str) -> Tokens:
    tokens: list[str] = []
    for word in _TOKEN.findall(_ARROW.sub(" - ", text)):
        token = _SYNONYMS.get(word, word)
        before = tokens[-1] if tokens else ""
        # "A PAR (Paris)" names one place twice.
        if token not in _STOP_WORDS and token != before and (before, token) not in _REDUNDANT:
            tokens.append(token)
    return tuple(tokens)


def mentions_order(clauses: Sequence[Tokens]) -> bool:
    """Whether any clause names a place, as all orders but WAIVE do, or waives."""
    return any(token in _PLACES or token == "WAIVE" for clause in clauses for token in clause)


def parse_orders(orders_of: Mapping[str, Sequence[str]], clauses: Sequence[Tokens]) -> dict[str, str]:
    """Parse each unit's last legal order in the clauses; units without one are left out."""
    return dict(order for clause in clauses if (order := _parse_order(clause, orders_of)) is not None)


def _parse_order(clause: Tokens, orders_of: Mapping[str, Sequence[str]]) -> tuple[str, str] | None:
    """Parse the unit and order of a clause; None unless it is a legal order for one of these units."""
    units_by_province = {board.province(unit[2:]): unit for unit in orders_of}
    for stop, (before, token) in enumerate(pairwise(("", *clause)), 1):
        kind = before if before in UNIT_KINDS else ""
        if token not in _PLACES:
            continue
        unit = units_by_province.get(board.province(token), "")
        if unit and unit[0].startswith(kind):
            # No tokens after the unit: "HOLD A PAR".
            order = _match_order(clause[stop:] or clause[:1], tuple(orders_of[unit]))
            if order is not None:
                return unit, order
        if kind:
            # The first unit named is the subject, whichever power owns it; places named later are targets.
            return None
    return None


def match_adjustment(clause: Tokens, orders: Iterable[str]) -> str | None:
    """Find the first adjustment whose unit the clause names; the kind may be omitted if only one fits."""
    lines = list(orders)
    for before, token in pairwise(("", *clause)):
        kind = before if before in UNIT_KINDS else ""
        fit = [line for line in lines if line[2:].split()[0] == token and line[0].startswith(kind)]
        near = [line for line in lines if board.province(line[2:]) == token and line[0].startswith(kind)]
        for candidate in (fit, near):
            if len(candidate) == 1:
                return candidate[0]
    return None


def _match_order(tokens: Tokens, orders: tuple[str, ...]) -> str | None:
    """Find the longest order that matches the tokens after a unit."""
    forms = _order_forms(orders)
    for length in range(min(len(tokens), 6), 0, -1):
        order = forms.get(tokens[:length])
        if order is not None:
            return order if not (set(tokens[length : length + 1]) & _CONTINUATIONS) else None
    return None


@lru_cache(maxsize=4096)
def _order_forms(orders: tuple[str, ...]) -> dict[Tokens, str]:
    """Map every phrasing of a unit's orders, without the unit, to the order."""
    exact = {tuple(order.split()[2:]): order for order in orders}
    short: dict[Tokens, set[str]] = {}
    for tokens, order in exact.items():
        for form in _abbreviations(tokens):
            short.setdefault(form, set()).add(order)
    return {form: min(candidates) for form, candidates in short.items() if len(candidates) == 1} | exact


def _abbreviations(tokens: Tokens) -> Iterable[Tokens]:
    """Generate an order's tokens with optional ones omitted."""
    without_coast = tuple(board.province(token) if "/" in token else token for token in tokens)
    for form in (tokens, without_coast):
        yield form
        yield tuple(token for token in form if token not in ("A", "F"))
        if form[-1] == "VIA":
            yield form[:-1]
    if tokens[0] == "S" and len(tokens) == 3:
        yield (*tokens, "H")


_PLACE_PATTERN = r"([A-Z]{3}(?:/[A-Z]{2})?)"
_UNIT = rf"([AF]) {_PLACE_PATTERN}"
# What stands after the unit, as the engine writes it.
_ORDER_PATTERNS = (
    (r"H", "hold"),
    (r"D", "disband"),
    (rf"- {_PLACE_PATTERN} VIA", "move to {0} by convoy"),
    (rf"- {_PLACE_PATTERN}", "move to {0}"),
    (rf"R {_PLACE_PATTERN}", "retreat to {0}"),
    (rf"S {_UNIT} - {_PLACE_PATTERN}", "support {0} from {1} to {2}"),
    (rf"S {_UNIT}(?: H)?", "support {0} in {1}"),
    (rf"C {_UNIT} - {_PLACE_PATTERN}", "convoy {0} from {1} to {2}"),
)
_KIND_NAMES = {"A": "army", "F": "fleet"}
_PROVINCE_NAMES = {short: name.title().replace(" Of ", " of ") for name, short in MAP.loc_name.items()}
_COAST_NAMES = {"": "", "NC": ", north coast", "SC": ", south coast", "EC": ", east coast"}


def order_fields(position: Position, seat: int, units: Sequence[UnitOrders]) -> list[AnswerField]:
    """A field for every one of these units, or for everything to build or disband."""
    if position.kind != "A":
        return [_unit_field(unit) for unit in units]
    due, orders = position.adjustment_due(seat), position.adjustment_orders(seat)
    if due > 0:
        orders = ["WAIVE", *orders]
    what = "build" if due > 0 else "disband"
    labels = ["nothing" if order == "WAIVE" else _describe_unit(order[:-2]) for order in orders]
    # Nothing is built, and other units are disbanded, where nothing else is selected.
    return [AnswerField(f"{what} {n + 1} of {abs(due)}", orders, labels, 0 if due > 0 else n) for n in range(abs(due))]


def _unit_field(choices: UnitOrders) -> AnswerField:
    labels = [_describe_order(order.removeprefix(f"{choices.unit} ")) for order in choices.orders]
    # The default loses no unit.
    usual = next((n for n, label in enumerate(labels) if label == "hold" or label.startswith("retreat")), 0)
    return AnswerField(_describe_unit(choices.unit), list(choices.orders), labels, usual)


def _describe_order(text: str) -> str:
    for pattern, words in _ORDER_PATTERNS:
        if match := re.fullmatch(pattern, text):
            return words.format(*(_KIND_NAMES.get(part) or _describe_place(part) for part in match.groups()))
    return text


def _describe_unit(unit: str) -> str:
    kind, place = unit.split()
    return f"{_KIND_NAMES[kind]} in {_describe_place(place)}"


def _describe_place(short: str) -> str:
    """The name of a place, with the short one used in replies and records."""
    province, _, coast = short.partition("/")
    return f"{_PROVINCE_NAMES[province]}{_COAST_NAMES[coast]} ({short})"
