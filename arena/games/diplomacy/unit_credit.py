"""Credit assignment by unit: captures, supports of captures, and losses that could have been prevented.

A year's change of the centre count results from all of a side's orders together and says little about any one of them.
Here units are followed through a game. An order is credited with its unit's later part in centres from that year on:
a centre taken (1), a support into a contested centre (a half), and an equal share of every centre lost that it could
have guarded (-1 in total). Later years are discounted, as in the advantage estimators (``DISCOUNT`` a year).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from arena.games.base import Action
from arena.games.diplomacy import board
from arena.games.diplomacy.position import SavedPosition

DISCOUNT = 0.8
"""Discount factor per year."""
SUPPORT_CREDIT = 0.5
"""Credit, as a fraction of a centre, of a support without which the centre might not have been taken."""


class UnitCredit:
    """The orders of one power in a game, credited backwards from its end.

    ``turns`` are the orders of each phase by power; positions are those before the first phase and after each.
    """

    def __init__(self, positions: Sequence[SavedPosition], turns: Sequence[Mapping[str, Action]], power: str) -> None:
        self._positions = positions
        self._turns = turns
        self._power = power

    def credits(self) -> list[dict[str, float]]:
        """The credit of each order, by phase in which the power had orders to give."""
        per_turn: list[dict[str, float]] = []
        ahead: dict[str, float] = {}
        events: dict[int, dict[str, float]] = {}
        for at in reversed(range(len(self._turns))):
            before, after = self._positions[at : at + 2]
            if after.phase[1:5] != before.phase[1:5] or at == len(self._turns) - 1:
                # Last phase of a year: later credit is discounted, and the year adds its own.
                ahead = {unit: DISCOUNT * value for unit, value in ahead.items()}
                events = self._year_credits(at)
            earned = events.get(at, {})
            # Units without an order in this phase stay where they are.
            now = dict(ahead)
            if self._power in self._turns[at]:
                values = {}
                for order in self._orders(at):
                    unit, then = _unit_of(order), self._unit_after(at, order)
                    values[order] = earned.get(order, 0.0) + (0.0 if then is None else ahead.get(then, 0.0))
                    if unit != "WAIVE":
                        now[unit] = values[order] if before.phase[-1] != "A" else ahead.get(unit, 0.0)
                per_turn.append(values)
            ahead = now
        return per_turn[::-1]

    def _orders(self, at: int) -> Action:
        return self._turns[at].get(self._power, ())

    def _unit_after(self, at: int, order: str) -> str | None:
        """The unit of an order under its name after the phase; None if it no longer exists."""
        after = self._positions[at + 1]
        unit, word = _unit_of(order), order.split()
        mine = after.units[self._power]
        if word[-1] in ("D", "WAIVE"):
            return None
        if word[2] in "-R":
            goal = _find_unit(mine, word[0], word[3])
            if goal is not None and not self._own_unit_stayed(at, word[3], order):
                return goal
        # A dislodged one receives a retreat order next.
        return unit if unit in mine or unit in after.retreats[self._power] else None

    def _own_unit_stayed(self, at: int, place: str, order: str) -> bool:
        """Whether the destination is occupied by a friendly unit that was already there."""
        if self._positions[at].phase[-1] != "M":
            return False
        mine = self._positions[at + 1].units[self._power]
        was_there = [other for other in self._orders(at) if other != order and other[2:5] == place[:3]]
        goals = [(other[0], _destination_of(other)) for other in was_there]
        return any(goal[:3] == place[:3] or _find_unit(mine, kind, goal) is None for kind, goal in goals)

    def _year_credits(self, last: int) -> dict[int, dict[str, float]]:
        """The credit that orders of the year ending with a phase earned directly, by phase."""
        year = self._positions[last].phase[1:5]
        phases = [at for at in range(last + 1) if self._positions[at].phase[1:5] == year]
        moving = [at for at in phases if self._positions[at].phase[-1] == "M"]
        owned, owned_after = (set(self._positions[at].centers[self._power]) for at in (phases[0], last + 1))
        earned: dict[int, dict[str, float]] = {at: defaultdict(float) for at in moving}
        for at in moving[-1:]:
            for center in sorted(owned - owned_after):
                # Units that could have occupied a lost centre.
                able = [
                    order
                    for order in self._orders(at)
                    if order[2:5] == center or center in board.adjacent_provinces(_unit_of(order))
                ]
                for order in able:
                    earned[at][order] += -1.0 / len(able)
        for at, order, share in self._gains(last, moving, owned_after - owned):
            earned[at][order] += share
        return earned

    def _gains(self, last: int, moving: Sequence[int], gained: set[str]) -> Iterator[tuple[int, str, float]]:
        """Yield the order that left a unit in a gained centre, and supports of contested moves on the way there."""
        for at in moving[-1:]:
            for order in self._orders(at):
                end = self._unit_at_year_end(at, last, order)
                if end is not None and end[2:5] in gained:
                    yield at, order, 1.0
                    # The moves that brought the unit to its autumn position, by spring's orders.
                    brought = [
                        (spring, earlier)
                        for spring in moving[:-1]
                        for earlier in self._orders(spring)
                        if " - " in earlier and self._unit_after(spring, earlier) == _unit_of(order)
                    ]
                    for phase, move in [(at, order), *brought]:
                        yield from ((phase, helper, SUPPORT_CREDIT) for helper in self._supporting_orders(phase, move))

    def _supporting_orders(self, at: int, order: str) -> Iterator[str]:
        """Yield own supports that match an order which another power contested."""
        goal = _destination_of(order)
        others = [power for power in self._positions[at].units if power != self._power]
        units = (unit[2:] for power in others for unit in self._positions[at].units[power])
        goals = (_destination_of(order) for power in others for order in self._turns[at].get(power, ()))
        # Another power's unit stood there or was ordered there.
        if any(other[:3] == goal[:3] for other in (*units, *goals)):
            for other in self._orders(at):
                word = other.split()
                helps = word[2] == "S" and " ".join(word[3:5]) == _unit_of(order)
                if helps and _destination_of(" ".join(word[3:]))[:3] == goal[:3]:
                    yield other

    def _unit_at_year_end(self, at: int, last: int, order: str) -> str | None:
        """The unit of an order under its name after the year's retreats."""
        unit = self._unit_after(at, order)
        for later in range(at + 1, last + 1):
            if self._positions[later].phase[-1] == "R":
                retreat = next((other for other in self._orders(later) if _unit_of(other) == unit), None)
                unit = unit if retreat is None else self._unit_after(later, retreat)
        return unit


def _unit_of(order: str) -> str:
    return " ".join(order.split(" ", 2)[:2])


def _destination_of(order: str) -> str:
    word = order.split()
    return word[3] if len(word) > 3 and word[2] == "-" else word[1]


def _find_unit(units: Sequence[str], kind: str, place: str) -> str | None:
    return next((unit for unit in units if unit[0] == kind and unit[2:5] == place[:3]), None)
