"""DumbBot, the rule-based Diplomacy player that published agents are measured against.

David Norman's rules in the form of the ruleset of ``diplomacy/research`` (Paquette et al. 2019), which the literature
quotes. Each unit's possible places get values: supply centres attract, nine rounds of averaging over neighbours spread
the attraction over the map, and adjacent units add or subtract. Units then take the best free places in random order,
with some chance of the next best, and support each other where they would collide.

``dumbbot`` gives unowned centres no value, as that ruleset does; ``dumbbot_plus`` restores the value that they have in
Norman's original. Values are integers, scaled so that the averages are exact: equal positions give equal values on any
platform.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from arena.bots import register
from arena.games.base import Action, Game

if TYPE_CHECKING:
    from arena.games.diplomacy.game import DiplomacyGame
    from arena.games.diplomacy.position import Position, UnitOrders

ATTACK_WEIGHTS = {"S": 700, "F": 600, "W": 700}
"""Weight of a foreign centre, by season."""
DEFENCE_WEIGHTS = {"S": 300, "F": 400, "W": 300}
"""Weight of an own centre that a rival can enter, by season."""
_NEAREST_FIRST = (1000, 100, 30, 10, 6, 5, 4, 3, 2, 1)
PROXIMITY_WEIGHTS = {"S": (100, 1000, *_NEAREST_FIRST[2:]), "F": _NEAREST_FIRST, "W": _NEAREST_FIRST}
"""Weights of the averages over 0 to 9 rounds, by season."""
UNIT_WEIGHT = 1000
"""Weight of an adjacent unit, friendly or hostile; in winter, of a point of defence."""
DIVISOR = 5
"""Each round divides by it: a place has four neighbours on average, and itself."""
ALTERNATIVE_SHARE = 0.5
"""Highest probability with which the next best place is taken instead."""
GAP_FACTOR = 5
"""A relative gap of a tenth between two values rules out the lower one."""

_SCALE = DIVISOR ** (len(_NEAREST_FIRST) - 1)


class _Tables(NamedTuple):
    """Adjacencies of the standard map as arrays; a place is a unit that could stand there, such as ``F STP/SC``."""

    places: Mapping[str, int]
    """Index of each place."""
    province: np.ndarray
    """Index of each place's province, shape (places,)."""
    siblings: np.ndarray
    """Indices of the places of the same province, padded with repetitions; shape (places, 3)."""
    inflow: np.ndarray
    """1 where a unit at the column's place can move to the row's; shape (places, places)."""
    entries: np.ndarray
    """1 where a unit at the column's place can move into the row's province; shape (provinces, places)."""


@cache
def _tables() -> _Tables:
    from arena.games.diplomacy import board

    members = {name: [i for i, unit in enumerate(board.UNITS) if unit[2:5] == name] for name in board.PROVINCES}
    return _Tables(
        places={unit: i for i, unit in enumerate(board.UNITS)},
        province=np.array([board.PROVINCES.index(unit[2:5]) for unit in board.UNITS]),
        siblings=np.array([(members[unit[2:5]] * 3)[:3] for unit in board.UNITS]),
        inflow=np.array(
            [[int(not {to[2:], to[2:5]}.isdisjoint(board.MOVES[unit])) for unit in board.UNITS] for to in board.UNITS]
        ),
        entries=np.array(
            [[int(name in board.adjacent_provinces(unit)) for unit in board.UNITS] for name in board.PROVINCES]
        ),
    )


@cache
def _destinations(unit: str) -> tuple[str, ...]:
    """Places whose location the unit can move to; a coastal province counts as an army's place and as a fleet's."""
    from arena.games.diplomacy import board

    return tuple(place for place in board.UNITS if place[2:] in board.MOVES[unit])


@cache
def _support_locations(unit: str) -> tuple[str, ...]:
    """Locations into which a holding unit looks for units to support; the ruleset's armies overlook split coasts."""
    from arena.games.diplomacy import board

    split = {board.province(location) for location in board.LOCATIONS if "/" in location}
    return tuple(location for location in board.MOVES[unit] if location not in split)


class PlaceValues(NamedTuple):
    """Values of places, on which a seat's decision is based."""

    values: Mapping[str, int]
    """Value of each place, scaled by 5⁹."""
    competition: Mapping[str, int]
    """Largest number of units of one rival that can enter each province."""


def place_values(position: "Position", seat: int, values_unowned: bool) -> PlaceValues:
    """Compute the values of all places for a seat; unowned centres may count as those of one more power."""
    from arena.games.diplomacy import board

    tables = _tables()
    season = position.phase[0]
    columns = [[tables.places[unit] for unit in units] for units in position.units]
    counts = np.array([tables.entries[:, each].sum(axis=1) for each in columns])
    competition = np.delete(counts, seat, axis=0).max(axis=0, initial=0)
    attack, defence = _centre_values(position, seat, counts, values_unowned)
    rounds = [(attack * ATTACK_WEIGHTS[season] + defence * DEFENCE_WEIGHTS[season])[tables.province]]
    for _ in _NEAREST_FIRST[1:]:
        rounds.append(rounds[-1][tables.siblings].max(axis=1) + tables.inflow @ rounds[-1])
    weighted = enumerate(zip(PROXIMITY_WEIGHTS[season], rounds, strict=True))
    total = sum(weight * spread * (_SCALE // DIVISOR**number) for number, (weight, spread) in weighted)
    total += UNIT_WEIGHT * _SCALE * (defence if season == "W" else counts[seat] - competition)[tables.province]
    values = dict(zip(board.UNITS, total.tolist(), strict=True))
    return PlaceValues(values, dict(zip(board.PROVINCES, competition.tolist(), strict=True)))


def _centre_values(
    position: "Position", seat: int, counts: np.ndarray, values_unowned: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Values of attacking and of defending each province: the size of its owner, of the largest rival next to it."""
    from arena.games.diplomacy import board

    sizes = [_size(len(centers)) for centers in position.centers]
    unowned = _size(len(board.CENTERS) - len(position.owner)) if values_unowned else 0
    attack, defence = np.zeros(len(board.PROVINCES), np.int64), np.zeros(len(board.PROVINCES), np.int64)
    for index, province in enumerate(board.PROVINCES):
        if province not in board.CENTER_SET:
            continue
        owner = position.owner.get(province)
        if owner == seat:
            near = [size for rival, size in enumerate(sizes) if rival != seat and counts[rival, index]]
            defence[index] = max(near, default=0)
        else:
            attack[index] = unowned if owner is None else sizes[owner]
    return attack, defence


def _size(centers: int) -> int:
    return centers**2 + 4 * centers + 16


def _draw(ranked: Sequence[str], values: Mapping[str, int], rng: Random) -> str:
    """Draw a place: mostly the first, and the next one the more often, the smaller the relative gap is."""
    for place, following in pairwise(ranked):
        value = values[place]
        gap = GAP_FACTOR * abs(value - values[following]) / value if value else 0.0
        if not ALTERNATIVE_SHARE > rng.random() >= gap:
            return place
    return ranked[-1]


@register("dumbbot", games=["diplomacy"])
class DumbBot:
    """The ruleset as published, in which unowned centres have no value."""

    values_unowned = False

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """Orders by the values of places, in each kind of phase."""
        table = cast("DiplomacyGame", game)
        values = place_values(table.position, seat, self.values_unowned)
        match table.position.kind:
            case "M":
                return _MovementPhase(table, seat, values, rng).orders()
            case "R":
                return _retreats(table, seat, values.values, rng)
        return _adjustments(table.position, seat, values.values, rng)


@register("dumbbot_plus", games=["diplomacy"])
class DumbBotPlus(DumbBot):
    """DumbBot with the original's value of unowned centres: they count as those of one more power."""

    values_unowned = True


class _MovementPhase:
    def __init__(self, table: "DiplomacyGame", seat: int, values: PlaceValues, rng: Random) -> None:
        self._values = values.values
        self._competition = values.competition
        self._rng = rng
        self._legal: dict[str, UnitOrders] = {unit.unit: unit for unit in table.legal_orders(seat)}
        self._unit_at = {unit[2:5]: unit for unit in self._legal}
        self._orders: dict[str, str] = {}
        """Orders by unit."""
        self._targets: dict[str, str] = {}
        """Location that each moving unit moves to."""
        self._waiting: dict[str, set[str]] = {unit: set() for unit in self._legal}
        """Provinces of the units that wait for each unit's order."""
        self._waits_left = len(self._legal) ** 2
        """Units that wait for each other in a circle could be put back without end."""

    def orders(self) -> Action:
        """Draw the orders, in the order of the legal orders; an illegal support becomes a hold."""
        queue = list(self._legal)
        self._rng.shuffle(queue)
        while queue:
            unit = queue.pop(0)
            occupant = self._decide(unit)
            if occupant is not None:
                self._waiting[occupant].add(unit[2:5])
                self._waits_left -= 1
                queue.insert(queue.index(occupant) + 1, unit)
        for unit in [unit for unit, order in self._orders.items() if order == f"{unit} H"]:
            self._support_instead(unit)
        actions = []
        for unit, choices in self._legal.items():
            # Without the coast, or a hold, where only that is legal.
            forms = (self._orders[unit], self._orders[unit].rpartition("/")[0], f"{unit} H")
            actions.append(next(form for form in forms if form in choices))
        return tuple(actions)

    def _decide(self, unit: str) -> str | None:
        """Give the unit its order, or return the friendly unit whose order it has to wait for."""
        places = [place for place in _destinations(unit) if place[2:5] not in self._waiting[unit]]
        places = sorted([*places, unit], key=self._values.__getitem__, reverse=True)
        while True:
            place = _draw(places, self._values, self._rng)
            province = place[2:5]
            if province == unit[2:5]:
                self._orders[unit] = f"{unit} H"
                return None
            occupant = self._unit_at.get(province)
            if occupant is not None and occupant not in self._orders and self._waits_left:
                return occupant
            if occupant is None or occupant in self._targets:
                supported, least = self._unit_moving_to(province), 0
            else:
                supported, least = occupant, 1
            if supported is None:
                self._targets[unit] = place[2:]
                self._orders[unit] = f"{unit} - {place[2:]}"
                return None
            if self._competition[province] > least:
                self._orders[unit] = self._support(unit, supported, province)
                return None
            places.remove(place)

    def _unit_moving_to(self, province: str) -> str | None:
        return next((unit for unit, target in self._targets.items() if target[:3] == province), None)

    def _support(self, unit: str, supported: str, target: str) -> str:
        is_moving = supported in self._targets
        return f"{unit} S {supported} - {target}" if is_moving else f"{unit} S {supported}"

    def _support_instead(self, unit: str) -> None:
        """Support an adjacent unit in need of it rather than hold; rated by the place where that unit stands."""
        best, order = 0, None
        for target in _support_locations(unit):
            occupant = self._unit_at.get(target)
            for supported, least in (self._unit_moving_to(target[:3]), 0), (occupant, 1):
                if supported is None or (least and supported in self._targets) or supported == unit:
                    continue
                if self._competition[target[:3]] > least and self._values[supported] > best:
                    best, order = self._values[supported], self._support(unit, supported, target)
        if order is not None:
            self._orders[unit] = order


def _retreats(table: "DiplomacyGame", seat: int, values: Mapping[str, int], rng: Random) -> Action:
    """Draw a vacant adjacent place for each dislodged unit; one that may not go there disbands."""
    choices = {unit.unit: unit for unit in table.legal_orders(seat)}
    units, occupied, orders = list(choices), {*table.position.occupied}, {unit: f"{unit} D" for unit in choices}
    rng.shuffle(units)
    for unit in units:
        ranked = _ranked(_destinations(unit), values)
        while ranked:
            place = _draw(ranked, values, rng)
            if place[2:5] not in occupied:
                occupied.add(place[2:5])
                orders[unit] = f"{unit} R {place[2:]}"
                break
            # Taken places count as alternatives until they are drawn.
            ranked.remove(place)
    return tuple(order if order in choices[unit] else f"{unit} D" for unit, order in orders.items())


def _adjustments(position: "Position", seat: int, values: Mapping[str, int], rng: Random) -> Action:
    """Draw builds at the best of the free home centres, or disband the units with the lowest values."""
    from arena.games.diplomacy import board

    due = position.adjustment_due(seat)
    if due > 0:
        sites = position.free_build_sites(seat)
        ranked, verb = _ranked([unit for unit in board.UNITS if unit[2:5] in sites], values), "B"
    else:
        ranked, verb = sorted(position.units[seat], key=values.__getitem__), "D"
    drawn: list[str] = []
    for _ in range(abs(due)):
        drawn.append(_draw(ranked, values, rng))
        ranked = [unit for unit in ranked if unit[2:5] != drawn[-1][2:5]]
    return tuple(sorted(f"{unit} {verb}" for unit in drawn))


def _ranked(places: Iterable[str], values: Mapping[str, int]) -> list[str]:
    return sorted(places, key=values.__getitem__, reverse=True)
