"""The adjudicator: the ``diplomacy`` package (AGPL-3.0-or-later), used through its public names.

Three things make it fast: legal orders come from ``position`` and are not parsed a second time, no history is kept, and
the table of possible convoys is computed lazily.
"""

import copy
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import msgspec

from arena.games.diplomacy import POWERS as POWERS

with warnings.catch_warnings():
    # The package leaves its convoy table's file handle to the garbage collector when it loads the map.
    warnings.simplefilter("ignore", ResourceWarning)
    import diplomacy

    MAP: Any = diplomacy.Map("standard")
PackageGame: Any = diplomacy.Game
"""The package's own game, with its histories."""

_FLEET_TO_COAST = re.compile(r"(F \S+) S (F \S+ -) (...)/..").fullmatch
"""A fleet's support of another fleet's move to a province with a choice of coasts."""
SEA_BIT = {loc: 1 << i for i, loc in enumerate(sorted(loc for loc in MAP.locs if MAP.area_type(loc) == "WATER"))}
Route = tuple[str, set[str], set[str]]
"""A convoy as the package lists it: the army's province, the fleets on the route, the destinations."""
_SORTED_ROUTES: list[Route] = [route for _, routes in sorted(MAP.convoy_paths.items()) for route in routes]
ROUTES = tuple((sum(SEA_BIT[sea] for sea in route[1]), route) for route in _SORTED_ROUTES)
"""Every convoy of the map with its seas as a mask, the shortest first."""
ConvoyRoutes = dict[str, list[set[str]]]
"""Fleets on each sea route from one province, by destination."""


@lru_cache(maxsize=16384)
def _convoy_routes(start: str, seas: int) -> ConvoyRoutes:
    ways: ConvoyRoutes = {}
    for mask, (origin, fleets, dests) in ROUTES:
        if origin == start and mask & seas == mask:
            for dest in sorted(dests):
                ways.setdefault(dest, []).append(fleets)
    return ways


class _LazyConvoys:
    """The package's list and table of the convoys that the fleets allow, computed where they are read: few ever are."""

    def __init__(self, seas: int) -> None:
        self._seas = seas

    def __iter__(self) -> Iterator[Route]:
        return (route for mask, route in ROUTES if mask & self._seas == mask)

    def get(self, start: str, default: object = None) -> ConvoyRoutes:
        return _convoy_routes(start, self._seas)


class _LatestPhaseHistory(dict[Any, Any]):
    """History that keeps the last phase only, whose results transcripts show: nothing is checked or copied either."""

    latest: Mapping[str, Sequence[object]] = {}

    def put(self, phase: object, value: Any) -> None:
        self.latest = value

    def __missing__(self, phase: object) -> dict[str, Any]:
        return {}


class LeanGame(diplomacy.Game):  # type: ignore[misc]
    """The package's game without its per-phase histories; the rules are untouched."""

    def build_caches(self) -> None:
        """Leave the tables of possible convoys uncomputed."""
        self.clear_cache()
        seas = sum({SEA_BIT.get(unit[2:], 0) for power in self.powers.values() for unit in power.units})
        self.convoy_paths_possible = self.convoy_paths_dest = _LazyConvoys(seas)

    _units_by_place: Mapping[str, str] | None = None
    """Units by location and by province during resolution, when no unit moves yet."""

    def _resolve_moves(self) -> None:
        standing: dict[str, str] = {}
        for power in self.powers.values():
            for unit in power.units:
                standing.setdefault(unit[2:], unit)
                standing.setdefault(unit[2:5], unit)
        self._units_by_place = standing
        super()._resolve_moves()
        self._units_by_place = None

    def _occupant(self, site: str, any_coast: int = 0) -> Any:
        """Occupant of a site. The package scans all units each time, a quarter of an adjudication."""
        if self._units_by_place is None:
            return super()._occupant(site, any_coast)
        return self._units_by_place.get(site[:3] if any_coast else site)

    def update_hash(self, *args: object, **kwargs: object) -> None:
        """Do nothing: the package compares positions by hash only for drivers that this adjudicator does not use."""

    def copy(self) -> "LeanGame":
        """Copy the game. The package takes twenty times as long to construct one."""
        other: LeanGame = _copy_object(self)
        other.powers = {name: _copy_object(power) for name, power in self.powers.items()}
        for power in other.powers.values():
            power.game = other
        return other

    def get_state(self) -> dict[str, Any]:
        """An empty state, since the package only stores it in its history."""
        return {}

    def get_orders(self, power_name: str | None = None) -> Any:
        """An empty result for all powers, which the package only stores in its history."""
        return {} if power_name is None else super().get_orders(power_name)

    def get_orderable_locations(self, power_name: str | None = None) -> Any:
        """An empty result for all powers, with which the package only marks those that need not answer."""
        return {} if power_name is None else super().get_orderable_locations(power_name)


def _copy_object(original: Any) -> Any:
    """Copy an object with its collections."""
    other = copy.copy(original)
    for name in original._slots if isinstance(original, LeanGame) else original.__slots__:
        value = getattr(original, name)
        if type(value) in (dict, list, set):
            setattr(other, name, value.copy())
    return other


_FIRST_POSITION = LeanGame()


class SavedPosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Serialised form of ``DiplomacyGame.save``: everything that determines how play continues."""

    phase: str
    """The package's short name: ``S1901M``, or ``COMPLETED`` after a solo victory."""
    year: int
    turns: int
    units: dict[str, list[str]]
    retreats: dict[str, dict[str, list[str]]]
    """Places that the map allows each dislodged unit to go to, occupied ones included."""
    centers: dict[str, list[str]]


class Adjudicator:
    """One play-through inside the package. Powers that do not play have neither units nor centres."""

    def __init__(self, powers: Sequence[str] = POWERS) -> None:
        self._powers = powers
        game: Any = _FIRST_POSITION.copy()
        for absent in {*POWERS} - {*powers}:
            game.clear_units(absent)
            game.clear_centers(absent)
        game.state_history = _LatestPhaseHistory()
        game.order_history = _LatestPhaseHistory()
        game.result_history = _LatestPhaseHistory()
        game.message_history = _LatestPhaseHistory()
        self._game = game

    def save(self, year: int, turns: int) -> SavedPosition:
        """The position after so many phases; ``year`` is kept if its phase names none."""
        phase: str = self._game.get_current_phase()
        powers = {name: self._game.powers[name] for name in self._powers}
        return SavedPosition(
            phase=phase,
            year=int(phase[1:5]) if phase[1:5].isdigit() else year,
            turns=turns,
            units={name: sorted(power.units) for name, power in powers.items()},
            retreats={
                name: {unit: sorted(places) for unit, places in sorted(power.retreats.items())}
                for name, power in powers.items()
            },
            centers={name: sorted(power.centers) for name, power in powers.items()},
        )

    def results(self) -> dict[str, list[str]]:
        """The failures of each unit in the phase just adjudicated; successful units are left out.

        In the package's words: ``bounce``, ``cut``, ``void``, ``dislodged``, ``no convoy``, ``disrupted``, ``disband``.
        """
        newest: Mapping[str, Sequence[object]] = self._game.result_history.latest
        failures = {unit: [text for text in map(str, results) if text] for unit, results in newest.items()}
        return {unit: texts for unit, texts in failures.items() if texts}

    def process(self, orders: Mapping[str, Sequence[str]]) -> None:
        """Adjudicate the legal orders of one phase, by power; illegal ones were rejected earlier."""
        game = self._game
        moving = game.phase_type == "M"
        for power, lines in orders.items():
            if moving:
                # ``position`` has validated these already; the package would check each of them again.
                game.powers[power].orders = _orders_by_unit(lines)
            else:
                game.set_orders(power, list(lines), expand=False)
        game.process()

    def renderable_game(self, orders: Mapping[str, Sequence[str]], influence: Mapping[str, Sequence[str]]) -> Any:
        """Convert to the package's own game object for its renderer; this adjudicator cannot be used afterwards.

        The orders are set but not adjudicated; ``influence`` is provinces by the power that last occupied them.
        """
        game = self._game
        for power, provinces in influence.items():
            game.powers[power].influence = list(provinces)
        for power, lines in orders.items():
            if game.phase_type == "M":
                game.powers[power].orders = _orders_by_unit(lines)
            else:
                game.powers[power].adjust = list(lines)
        return game

    def restore(self, saved: SavedPosition) -> None:
        """Restore a saved position."""
        game = self._game
        game.set_current_phase(saved.phase)
        for name, power in game.powers.items():
            power.units = list(saved.units.get(name, ()))
            power.retreats = {unit: list(places) for unit, places in saved.retreats.get(name, {}).items()}
            power.centers = list(saved.centers.get(name, ()))
            power.influence = [unit[2:5] for unit in (*power.units, *power.retreats)]
            power.clear_orders()
        game.build_caches()


def _orders_by_unit(lines: Sequence[str]) -> dict[str, str]:
    split = (to_package_notation(line).split(" ", 2) for line in lines)
    return {f"{kind} {place}": order for kind, place, order in split}


@cache
def to_package_notation(line: str) -> str:
    """Convert a legal movement order to the form in which the package stores it after parsing.

    They differ in one case: a fleet that supports another fleet's move to a province with a choice of coasts
    supports it to either.
    """
    if (parts := _FLEET_TO_COAST(line)) is None:
        return line
    supporter, move, province = parts.groups()
    return f"{supporter} S {' '.join(MAP.default_coast([*move.split(), province]))}"
