"""The adjudicator: the ``diplomacy`` package, used through its public names, without what a league does not need.

The package (AGPL-3.0-or-later) decides every phase; this module only feeds it and reads it. Three things make it
fast: legal orders come from ``orders`` and are handed over without being parsed again, no history is kept, and the
table of possible convoys is remembered by where the fleets are.
"""

import re
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

with warnings.catch_warnings():
    # The package leaves the file of its convoy table to the garbage collector when it loads the map.
    warnings.simplefilter("ignore", ResourceWarning)
    import diplomacy

    MAP: Any = diplomacy.Map("standard")

POWERS: tuple[str, ...] = tuple(sorted(MAP.powers))
_MOVE_TO_COAST = re.compile(r" S F \S+ - .../..$").search
_CONVOY_TABLES = 2048
_convoy_tables: "OrderedDict[frozenset[str], tuple[Any, Any]]" = OrderedDict()
_SEAS = frozenset(loc for loc in map(str.upper, MAP.locs) if MAP.area_type(loc) == "WATER")


class LeanGame(diplomacy.Game):  # type: ignore[misc]
    """The package's game without the records it keeps of every phase; the rules are untouched."""

    def build_caches(self) -> None:
        """Take the table of possible convoys from memory where the same seas have held fleets before."""
        self.clear_cache()
        fleets = frozenset(unit[2:] for power in self.powers.values() for unit in power.units if unit[2:] in _SEAS)
        known = _convoy_tables.get(fleets)
        if known is not None:
            _convoy_tables.move_to_end(fleets)
            self.convoy_paths_possible, self.convoy_paths_dest = known
            return
        super().build_caches()
        _convoy_tables[fleets] = (self.convoy_paths_possible, self.convoy_paths_dest)
        if len(_convoy_tables) > _CONVOY_TABLES:
            _convoy_tables.popitem(last=False)

    def get_state(self) -> dict[str, Any]:
        """Nothing: the package asks for it only to file the phase away."""
        return {}

    def get_orderable_locations(self, power_name: str | None = None) -> Any:
        """Nothing for the question about all powers, which the package asks only to mark who need not answer."""
        return {} if power_name is None else super().get_orderable_locations(power_name)


class Adjudicator:
    """One play-through inside the package."""

    def __init__(self) -> None:
        self._game: Any = LeanGame()

    @property
    def phase(self) -> str:
        """The package's short name: ``S1901M``, or ``COMPLETED`` after a solo victory."""
        name: str = self._game.get_current_phase()
        return name

    def units(self, power: str) -> list[str]:
        """Units on the board, in no particular order."""
        units: list[str] = self._game.powers[power].units
        return units

    def retreats(self, power: str) -> dict[str, list[str]]:
        """Where each dislodged unit may go as far as the map says; occupied places are not left out."""
        retreats: dict[str, list[str]] = self._game.powers[power].retreats
        return retreats

    def centers(self, power: str) -> list[str]:
        """Supply centres owned, in no particular order."""
        centers: list[str] = self._game.powers[power].centers
        return centers

    def process(self, orders: Mapping[str, Sequence[str]]) -> None:
        """Adjudicate one phase.

        Args:
            orders: Legal orders per power; what is illegal was refused before.
        """
        game = self._game
        moving = game.phase_type == "M"
        for power, lines in orders.items():
            if moving:
                # Our own enumerator has vouched for the orders; the package would check each a second time.
                game.powers[power].orders = _by_unit(lines)
            else:
                game.set_orders(power, list(lines), expand=False)
        game.process()
        for history in (game.state_history, game.order_history, game.result_history, game.message_history):
            history.clear()

    def restore(
        self,
        phase: str,
        units: Mapping[str, Sequence[str]],
        retreats: Mapping[str, Mapping[str, Sequence[str]]],
        centers: Mapping[str, Sequence[str]],
    ) -> None:
        """Put the board into a saved position."""
        self._game.set_state(
            {
                "name": phase,
                "units": {p: [*units[p], *("*" + unit for unit in retreats[p])] for p in units},
                "retreats": {p: {unit: list(to) for unit, to in retreats[p].items()} for p in retreats},
                "centers": {p: list(centers[p]) for p in centers},
            }
        )


def _by_unit(lines: Sequence[str]) -> dict[str, str]:
    split = (package_form(line).split(" ", 2) for line in lines)
    return {f"{kind} {place}": order for kind, place, order in split}


def package_form(line: str) -> str:
    """A legal movement order as the package would store it had it parsed the text itself.

    They differ in one case: a fleet that supports a fleet which has a choice of coasts supports it to either.
    """
    return _without_choice_of_coast(line) if line[:1] == "F" and _MOVE_TO_COAST(line) else line


@cache
def _without_choice_of_coast(line: str) -> str:
    supporter, _, moving = line.partition(" S ")
    fleet, origin, arrow, target = moving.split()
    return f"{supporter} S {' '.join(MAP.default_coast([fleet, origin, arrow, target[:3]]))}"
