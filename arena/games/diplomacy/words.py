"""Diplomacy in English, for models not trained on its compact language; ``order_parser`` parses their replies.

Places are the map's three-letter names and orders use the engine's notation, since general models know both. A unit's
orders that begin alike share a line, so a whole position takes a page or two.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any, cast

from arena.games.base import Game
from arena.games.diplomacy import POWERS, Settings, board
from arena.games.diplomacy.game import DiplomacyGame
from arena.games.diplomacy.order_parser import Tokens, match_adjustment, mentions_order, parse_orders, split_clauses
from arena.games.diplomacy.position import Position
from arena.games.diplomacy.text import require_turn
from arena.games.texts import ParsedAction, strip_thinking

SEASONS = {"S": "spring", "F": "autumn", "W": "winter"}
_RULES = """\
You are playing Diplomacy on the standard map, as one of {powers}, without any negotiation: nobody can talk to \
anybody, and all orders of a phase are carried out at the same time.
The map has 34 supply centres. Who stands on one after the autumn moves owns it, and in winter every power builds \
up or disbands to as many units as it owns centres. New units stand in free home centres that their power still owns.
Armies (A) move on land, fleets (F) at sea and along coasts, to a neighbouring place. A unit that moves enters a \
place against others only with more support than they have; equal forces stay where they were. A unit that is attacked \
from elsewhere than where its support goes gives no support. Fleets at sea can convoy an army across.
The game ends after the winter of {max_year}. Then you score one point for each centre and half a point for each unit\
{bonus}.
Orders, with places as three letters and coasts as /NC, /SC or /EC:
A PAR H: hold. A PAR - BUR: move. A PAR S A MAR: support A MAR where it stands. A PAR S A MAR - BUR: support its move.
F ENG C A LON - BRE: convoy. A LON - BRE VIA: move by convoy. A PAR R GAS: retreat. A PAR D: disband. A PAR B: build.
Answer with the orders alone, one to a line, each one of those that are listed as legal."""
_BONUS = ", and {points:g} more if you alone own the most centres and they are at least {centers}"

_NUMBER_WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}


def _describe_powers(settings: Settings) -> str:
    *most, last = settings.playing_powers
    if len(most) + 1 == len(POWERS):
        return "seven powers"
    others = "nobody plays the others, which have no units and own no centres"
    return f"{_NUMBER_WORDS[len(most) + 1]} powers ({', '.join(most)} and {last}; {others})"


class DiplomacyWords:
    """The ``Words`` of Diplomacy.

    Defaults for missing or invalid orders: a unit holds, a dislodged one disbands, a build is waived, and of units to
    disband the one farthest from home goes first, as in the rules' civil disorder.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def rules(self) -> str:
        """The rules in brief, bonuses included, and the form of a reply."""
        return _RULES.format(**self._rule_terms(_BONUS))

    def _rule_terms(self, bonus: str) -> dict[str, Any]:
        """Terms of the rules under these settings, given the sentence on the winner's bonus."""
        settings = self._settings
        described = bonus.format(points=settings.win_bonus, centers=settings.winner_threshold_sc)
        powers = _describe_powers(settings)
        return {"powers": powers, "max_year": settings.max_year, "bonus": described if settings.win_bonus else ""}

    def question(self, game: Game, seat: int) -> str:
        """The board power by power, and the legal orders."""
        table = require_turn(game, seat)
        position = table.position
        first = f"You are {table.seats[seat]}. It is {SEASONS[position.phase[0]]} {position.year} ({position.phase})."
        return "\n".join([first, *_power_lines(position, seat), "", *_legal_order_lines(table, seat)])

    def understand(self, game: Game, seat: int, reply: str, rng: Random) -> ParsedAction:
        """Parse orders leniently; if a reply gives a unit several, the last one counts."""
        table = cast(DiplomacyGame, game)
        position = table.position
        clauses = split_clauses(strip_thinking(reply))
        if position.kind == "A":
            due = position.adjustment_due(seat)
            parse = _parse_builds if due > 0 else _parse_disbands
            return parse(position, seat, abs(due), clauses)._replace(mentions_move=mentions_order(clauses))
        default = "H" if position.kind == "M" else "D"
        choices = table.legal_orders(seat)
        orders = parse_orders({unit.unit: unit.orders for unit in choices}, clauses)
        action = tuple(orders.get(unit.unit, f"{unit.unit} {default}") for unit in choices)
        return ParsedAction(action, len(choices), len(choices) - len(orders), mentions_order(clauses))


def _power_lines(position: Position, seat: int) -> Iterable[str]:
    for other, power in enumerate(position.powers):
        owned, units = position.centers[other], position.units[other]
        if owned or units or position.retreats[other]:
            held = f"centres {' '.join(owned) or 'none'}; units {', '.join(units) or 'none'}"
            dislodged = "".join(f"; dislodged {unit}" for unit in position.retreats[other])
            yield f"{power}{' (you)' if other == seat else ''}: {held}{dislodged}"
    if free := [center for center in board.CENTERS if center not in position.owner]:
        yield f"Centres that nobody owns: {' '.join(free)}"


def _legal_order_lines(table: DiplomacyGame, seat: int) -> Iterable[str]:
    position = table.position
    if position.kind != "A":
        yield "Give each of these units one order. Legal orders (a bar stands between the ways to go on):"
        for unit in table.legal_orders(seat):
            by_verb: dict[str, list[str]] = {}
            for order in unit.orders:
                kind, place, verb, *rest = order.split(" ", 3)
                by_verb.setdefault(f"{kind} {place} {verb}", []).extend(rest)
            yield from (f"{beginning} {' | '.join(rests)}".rstrip() for beginning, rests in by_verb.items())
        return
    due = position.adjustment_due(seat)
    if due > 0:
        yield f"You may build {due}, each in another place; WAIVE stands for one that you leave out. Legal orders:"
        yield from (*position.adjustment_orders(seat), "WAIVE")
    else:
        yield f"You must disband {-due}. Legal orders:"
        yield from position.adjustment_orders(seat)


def _parse_builds(position: Position, seat: int, due: int, clauses: Sequence[Tokens]) -> ParsedAction:
    legal = position.adjustment_orders(seat)
    by_site: dict[str, str] = {}
    for clause in _clauses_with_verb(clauses, "B"):
        if (order := match_adjustment(clause, legal)) is not None:
            by_site[board.province(order[2:])] = order
    built = list(by_site.values())[:due]
    waived = min(sum("WAIVE" in clause for clause in clauses), due - len(built))
    action = sorted([*built, *["WAIVE"] * (due - len(built))])
    return ParsedAction(tuple(action), due, due - len(built) - waived)


def _parse_disbands(position: Position, seat: int, due: int, clauses: Sequence[Tokens]) -> ParsedAction:
    legal, units = position.adjustment_orders(seat), sort_farthest_first(position.powers[seat], position.units[seat])
    orders = [match_adjustment(clause, legal) for clause in _clauses_with_verb(clauses, "D")]
    disbands = list(dict.fromkeys(order for order in orders if order is not None))[:due]
    left = [f"{unit} D" for unit in units if f"{unit} D" not in disbands]
    action = sorted([*disbands, *left[: due - len(disbands)]])
    return ParsedAction(tuple(action), due, due - len(disbands))


def _clauses_with_verb(clauses: Sequence[Tokens], verb: str) -> Sequence[Tokens]:
    """The clauses with the verb; all of them, where a reply only names units."""
    return [clause for clause in clauses if verb in clause] or clauses


def sort_farthest_first(power: str, units: Sequence[str]) -> list[str]:
    """Sort units by distance from home, longest first; ties put fleets before armies, then sort by name."""
    homes = board.HOMES[power]
    return sorted(units, key=lambda unit: (-board.distance_to_nearest(unit, homes), unit[0] == "A", unit[2:]))


VIEW_KEYS = (
    *("power", "phase", "season", "year", "last_year", "my_centers", "my_units", "my_dislodged", "threats"),
    *("others", "centers", "units", "dislodged", "free_centers", "builds", "disbands", "legal_orders"),
)
"""All possible keys of ``player_view``."""


def player_view(table: DiplomacyGame, seat: int) -> dict[str, Any]:
    """The position from the seat's side as plain data, without keys that are empty in this phase."""
    position = table.position
    due = position.adjustment_due(seat) if position.kind == "A" else 0
    if position.kind == "A":
        continuations = {order[:-2]: [order[-1]] for order in position.adjustment_orders(seat)}
    else:
        units = table.legal_orders(seat)
        continuations = {unit.unit: [order[len(unit.unit) + 1 :] for order in unit.orders] for unit in units}
    holdings = {power: _holdings(position, other) for other, power in enumerate(position.powers)}
    seen: dict[str, Any] = {
        "power": position.powers[seat],
        "phase": position.phase,
        "season": SEASONS[position.phase[0]],
        "year": position.year,
        "last_year": table.settings.max_year,
        "my_centers": position.centers[seat],
        "my_units": position.units[seat],
        "my_dislodged": list(position.retreats[seat]),
        "threats": _threats(position, seat),
        "others": {power: held for power, held in holdings.items() if held and power != position.powers[seat]},
        "free_centers": [center for center in board.CENTERS if center not in position.owner],
        "builds": max(due, 0),
        "disbands": max(-due, 0),
        "legal_orders": continuations,
    }
    return {key: value for key, value in seen.items() if value}


def _threats(position: Position, seat: int) -> dict[str, list[str]]:
    held = {*position.centers[seat], *(board.province(unit[2:]) for unit in position.units[seat])}
    threats: dict[str, list[str]] = {province: [] for province in sorted(held)}
    for other, units in enumerate(position.units):
        for unit in units if other != seat else ():
            for target in sorted({board.province(dest) for dest in board.MOVES[unit]} & held):
                threats[target].append(f"{position.powers[other]} {unit}")
    return {province: units for province, units in threats.items() if units}


def _holdings(position: Position, seat: int) -> dict[str, Any]:
    held = {"centers": position.centers[seat], "units": position.units[seat], "dislodged": [*position.retreats[seat]]}
    return {key: value for key, value in held.items() if value}
