"""Credit assignment by unit: captures, supports of captures, and losses that could have been prevented.

A year's change of the centre count results from all of a side's orders together and says little about any one of them.
Here units are followed through a game. An order is credited with its unit's later part in centres from that year on:
a centre taken (1), a support into a contested centre (a half), and an equal share of every centre lost that it could
have guarded (-1 in total). Later years are discounted, as in the advantage estimators (``DISCOUNT`` a year).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from arena.games.base import Action
from arena.games.diplomacy import board
from arena.games.diplomacy.position import SavedPosition

DISCOUNT = 0.8
"""Discount factor per year."""
SUPPORT_CREDIT = 0.5
"""Credit, as a fraction of a centre, of a support without which the centre might not have been taken."""


def credits_of(
    positions: Sequence[SavedPosition], turns: Sequence[Mapping[str, Action]], power: str
) -> list[dict[str, float]]:
    """Returns the credit of each order of one power, by phase in which it had orders to give.

    ``turns`` are the orders of each phase by power; positions are those before the first phase and after each.
    """
    return _CreditAssignment(positions, turns, power).compute()


class _CreditAssignment:
    """One power's units through a game, processed backwards from its end."""

    def __init__(self, positions: Sequence[SavedPosition], turns: Sequence[Mapping[str, Action]], power: str) -> None:
        self._positions, self._turns, self._power = positions, turns, power
        self._steps = list(zip(pairwise(positions), turns, strict=True))

    def compute(self) -> list[dict[str, float]]:
        per_turn: list[dict[str, float]] = []
        ahead: dict[str, float] = {}
        events: dict[int, dict[str, float]] = {}
        for at in range(len(self._steps) - 1, -1, -1):
            (before, after), turn = self._steps[at]
            if after.phase[1:5] != before.phase[1:5] or at == len(self._steps) - 1:
                # Last phase of a year: later credit is discounted, and the year adds its own.
                ahead = {unit: DISCOUNT * value for unit, value in ahead.items()}
                events = self._year_credits(at)
            earned = events.get(at, {})
            orders = turn.get(self._power)
            # Units without an order in this phase stay where they are.
            now = dict(ahead)
            if orders is not None:
                values = {}
                for order in orders:
                    unit, then = _unit_of(order), self._unit_after(at, order)
                    values[order] = earned.get(order, 0.0) + (0.0 if then is None else ahead.get(then, 0.0))
                    if unit != "WAIVE":
                        now[unit] = values[order] if before.phase[-1] != "A" else ahead.get(unit, 0.0)
                per_turn.append(values)
            ahead = now
        return per_turn[::-1]

    def _unit_after(self, at: int, order: str) -> str | None:
        """Returns the unit of an order under its name after the phase; None if it no longer exists."""
        after = self._positions[at + 1]
        word, mine = order.split(), after.units[self._power]
        if word[-1] in ("D", "WAIVE"):
            return None
        unit = f"{word[0]} {word[1]}"
        if word[2] in "-R":
            goal = _find_unit(mine, word[0], word[3])
            if goal is not None and not self._own_unit_stayed(at, word[3], order):
                return goal
        if unit in mine:
            return unit
        # Dislodged: it receives a retreat order next.
        return unit if unit in after.retreats[self._power] else None

    def _own_unit_stayed(self, at: int, place: str, order: str) -> bool:
        """Whether the destination is occupied by a friendly unit that was already there."""
        (before, after), turn = self._steps[at]
        if before.phase[-1] != "M":
            return False
        was_there = [o for o in turn.get(self._power, ()) if o != order and o[2:5] == place[:3]]
        goals = [(o[0], _destination_of(o)) for o in was_there]
        mine = after.units[self._power]
        return any(goal[:3] == place[:3] or _find_unit(mine, kind, goal) is None for kind, goal in goals)

    def _year_credits(self, last: int) -> dict[int, dict[str, float]]:
        """Returns the credit that orders of the year ending with a phase earned directly, by phase."""
        year = self._positions[last].phase[1:5]
        first = last
        while first and self._positions[first - 1].phase[1:5] == year:
            first -= 1
        owned = [set(self._positions[i].centers[self._power]) for i in (first, last + 1)]
        moving = [i for i in range(first, last + 1) if self._positions[i].phase[-1] == "M"]
        earned: dict[int, dict[str, float]] = {i: defaultdict(float) for i in moving}
        for i in moving[-1:]:
            orders = self._turns[i].get(self._power, ())
            for center in sorted(owned[0] - owned[1]):
                # Units that could have occupied a lost centre.
                able = [o for o in orders if o[2:5] == center or center in board.adjacent_provinces(_unit_of(o))]
                for order in able:
                    earned[i][order] += -1.0 / len(able)
        for i, order, share in self._gains(last, moving, owned[1] - owned[0]):
            earned[i][order] += share
        return earned

    def _gains(self, last: int, moving: Sequence[int], gained: set[str]) -> Iterator[tuple[int, str, float]]:
        """Yields the order that left a unit in a gained centre, and supports of contested moves on the way there."""
        for i in moving[-1:]:
            for order in self._turns[i].get(self._power, ()):
                end = self._unit_at_year_end(i, last, order)
                if end is not None and end[2:5] in gained:
                    yield i, order, 1.0
                    yield from ((i, helper, SUPPORT_CREDIT) for helper in self._supporting_orders(i, order))
                    yield from self._spring_supports(moving, order)

    def _spring_supports(self, moving: Sequence[int], order: str) -> Iterator[tuple[int, str, float]]:
        """Yields the spring supports of the move that brought the unit to its autumn position."""
        for i in moving[:-1]:
            for earlier in self._turns[i].get(self._power, ()):
                if " - " in earlier and self._unit_after(i, earlier) == _unit_of(order):
                    yield from ((i, helper, SUPPORT_CREDIT) for helper in self._supporting_orders(i, earlier))

    def _supporting_orders(self, i: int, order: str) -> Iterator[str]:
        """Yields own supports that match an order which another power contested."""
        goal = _destination_of(order)
        others = [power for power in self._positions[i].units if power != self._power]
        units = (unit[2:] for power in others for unit in self._positions[i].units[power])
        goals = (_destination_of(order) for power in others for order in self._turns[i].get(power, ()))
        # Another power's unit stood there or was ordered there.
        if any(other[:3] == goal[:3] for other in (*units, *goals)):
            for other in self._turns[i].get(self._power, ()):
                word = other.split()
                helps = word[2] == "S" and " ".join(word[3:5]) == _unit_of(order)
                if helps and _destination_of(" ".join(word[3:]))[:3] == goal[:3]:
                    yield other

    def _unit_at_year_end(self, i: int, last: int, order: str) -> str | None:
        """Returns the unit of an order under its name after the year's retreats."""
        unit = self._unit_after(i, order)
        for k in range(i + 1, last + 1):
            if unit is not None and self._positions[k].phase[-1] == "R":
                for later in self._turns[k].get(self._power, ()):
                    if _unit_of(later) == unit:
                        unit = self._unit_after(k, later)
                        break
        return unit


def _unit_of(order: str) -> str:
    return "WAIVE" if order == "WAIVE" else " ".join(order.split(" ", 2)[:2])


def _destination_of(order: str) -> str:
    word = order.split()
    return word[3] if len(word) > 3 and word[2] == "-" else word[1]


def _find_unit(units: Sequence[str], kind: str, place: str) -> str | None:
    return next((unit for unit in units if unit[0] == kind and unit[2:5] == place[:3]), None)
