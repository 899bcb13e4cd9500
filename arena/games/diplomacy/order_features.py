"""Features of the provinces that a unit chooses among: what is to be gained there, who can come, what friends do.

Shape suffixes: P province, S seat, R round of averaging, M map of what is to be gained, G kind of goal, U unit, O
option of a unit, all units after each other, F feature, C condition on what friendly units choose, J feature under a
condition.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from arena.games.diplomacy import board
from arena.games.diplomacy.position import Position

Floats = NDArray[np.float64]
Number = TypeVar("Number", np.float64, np.int64)

ROUNDS = (0, 1, 2, 3, 5, 8)
"""Numbers of rounds of averaging over neighbours in which a unit looks at what is to be gained."""
MAPS = 4
"""Maps of what is to be gained: unowned centres, rivals' centres, the same by the rival's size, threatened own ones."""
AUTUMN_MAPS = 8
"""Columns of the nearest rounds, which count anew in autumn, when centres change hands."""
GOALS = 4
"""Kinds of goals that moves are counted to: unowned centres, rivals' centres, either of them, threatened own ones."""
UNREACHABLE, MOST_DETOUR = 9, 3
"""Distance in moves of an unreachable province, and the most detour in moves that is distinguished."""
PLACE_FEATURES = 13
CONDITIONS = ("one friend", "two friends", "occupant stays", "occupant goes")
"""Conditions: at least one or two friendly units choose the option too; a friendly unit there stays, or goes."""
JOINT_FEATURES = 11
FEATURES = 2 * MAPS * len(ROUNDS) + AUTUMN_MAPS + 2 * GOALS + PLACE_FEATURES + JOINT_FEATURES
LEAST_LOG = 0.01
"""Added to a gain relative to the best one before its logarithm is taken."""

_INDEX = {province: index for index, province in enumerate(board.PROVINCES)}
_NO_UNIT, _UNOWNED, _NO_CENTER = -1, -1, -2


class UnitChoice(NamedTuple):
    """The provinces that a unit chooses among."""

    unit: str
    provinces: Sequence[str]
    """Its own first, then those that it can move to."""
    features_OF: Floats
    """Features that do not depend on friendly units' choices; the last ``JOINT_FEATURES`` are 0."""
    joint_OCJ: Floats
    """What each of ``CONDITIONS`` adds to the last features."""

    def conditions(self, chosen: Mapping[str, str], occupants: Mapping[str, str]) -> list[tuple[bool, ...]]:
        """Which of ``CONDITIONS`` hold of each option.

        ``chosen`` has the provinces that the seat's units chose, with or without this one; ``occupants`` its units by
        province.
        """
        taken = [province for unit, province in chosen.items() if unit != self.unit]
        found: list[tuple[bool, ...]] = []
        for province in self.provinces:
            friends, occupant = taken.count(province), occupants.get(province)
            target = None if occupant == self.unit or occupant is None else chosen.get(occupant)
            found.append((friends >= 1, friends >= 2, target == province, target not in (None, province)))
        return found

    def with_friends(self, chosen: Mapping[str, str], occupants: Mapping[str, str]) -> Floats:
        """Features, given the choices of all of the seat's units; shape (O, F)."""
        conditions_OC = np.array(self.conditions(chosen, occupants), float)
        features_OF = self.features_OF.copy()
        features_OF[:, -JOINT_FEATURES:] += np.einsum("oc,ocj->oj", conditions_OC, self.joint_OCJ)
        return features_OF


@cache
def _options(unit: str) -> tuple[str, ...]:
    """The unit's own province, then those that it can move to."""
    return (board.province(unit[2:]), *board.adjacent_provinces(unit))


@cache
def _reach(unit: str) -> Floats:
    """1 at the provinces that the unit can move to; shape (P,)."""
    reach_P = np.zeros(len(board.PROVINCES))
    reach_P[[_INDEX[province] for province in _options(unit)[1:]]] = 1
    return reach_P


@cache
def _averages() -> Floats:
    """Averages over a province and its neighbours, by kind of unit and after each of ``ROUNDS``; shape (2 R, P, P)."""
    operators = []
    for kind in "AF":
        near_PP = np.eye(len(board.PROVINCES))
        for unit in board.UNITS:
            if unit[0] == kind:
                near_PP[_INDEX[board.province(unit[2:])]] += _reach(unit)
        near_PP = np.minimum(near_PP, 1)
        near_PP /= near_PP.sum(axis=1, keepdims=True)
        operators += [np.linalg.matrix_power(near_PP, rounds) for rounds in ROUNDS]
    return np.array(operators)


@cache
def moves_between() -> Floats:
    """Moves that an army or a fleet needs from one province to another, at most ``UNREACHABLE``; shape (2, P, P)."""
    moves = np.full((2, len(board.PROVINCES), len(board.PROVINCES)), float(UNREACHABLE))
    for unit in board.UNITS:
        from_place = moves["AF".index(unit[0]), _INDEX[board.province(unit[2:])]]
        for province, count in board.distances(unit).items():
            from_place[_INDEX[province]] = min(from_place[_INDEX[province]], count)
    return moves


def largest_other(values: NDArray[Number]) -> NDArray[Number]:
    """The largest value of any other seat; the first axis is that of seats."""
    ranked = np.sort(values, axis=0)
    largest: NDArray[Number] = np.where(values == ranked[-1], ranked[-2], ranked[-1])
    return largest


class PositionArrays:
    """A position as arrays over provinces."""

    def __init__(self, position: Position) -> None:
        provinces = len(board.PROVINCES)
        self.reach_SP = np.zeros((len(position.units), provinces))
        """Number of each seat's units that can move to a province."""
        for seat, units in enumerate(position.units):
            for unit in units:
                self.reach_SP[seat] += _reach(unit)
        self.holder_P = np.full(provinces, _NO_UNIT)
        for province, seat in position.occupied.items():
            self.holder_P[_INDEX[province]] = seat
        self.owner_P = np.full(provinces, _NO_CENTER)
        for center in board.CENTERS:
            self.owner_P[_INDEX[center]] = position.owner.get(center, _UNOWNED)
        self.strongest_SP = largest_other(self.reach_SP)
        """Largest number of units of one rival of each seat that can move to a province."""
        self._sizes = np.array([*(len(owned) for owned in position.centers), 0, 0], float)
        self.is_autumn = position.phase[0] == "F"

    def gains(self, seat: int) -> Floats:
        """What is to be gained at each province; shape (M, P)."""
        owner_P = self.owner_P
        is_foreign = (owner_P >= 0) & (owner_P != seat)
        is_threatened = (owner_P == seat) & (self.strongest_SP[seat] > 0)
        return np.array([owner_P == _UNOWNED, is_foreign, is_foreign * self._sizes[owner_P] / 8, is_threatened], float)


def unit_choices(position: Position, seats: Iterable[int]) -> dict[int, list[UnitChoice]]:
    """The choices of all units of these seats in a movement phase."""
    seats = [seat for seat in seats if position.units[seat]]
    if not seats:
        return {}
    table = PositionArrays(position)
    gains_SMP = np.array([table.gains(seat) for seat in seats])
    # One small product a matrix: large ones would wake the threads of the linear algebra library.
    spread = np.matmul(_averages(), gains_SMP.reshape(-1, len(board.PROVINCES)).T)
    spread /= spread.max(axis=1, keepdims=True) + 1e-6
    spread = spread.reshape(2, len(ROUNDS), len(board.PROVINCES), len(seats), MAPS)
    units = [(row, seat, unit) for row, seat in enumerate(seats) for unit in position.units[seat]]
    options = [_options(unit) for _, _, unit in units]
    lengths = [len(provinces) for provinces in options]
    at_O = np.array([_INDEX[province] for provinces in options for province in provinces])
    row_O = np.repeat([row for row, _, _ in units], lengths)
    kind_O = np.repeat(["AF".index(unit[0]) for _, _, unit in units], lengths)
    seat_O = np.array(seats)[row_O]
    starts = [0, *np.cumsum(lengths).tolist()]
    stays_O = np.zeros(len(at_O), bool)
    stays_O[starts[:-1]] = True
    own_O = table.reach_SP[seat_O, at_O] - ~stays_O
    strongest_O = table.strongest_SP[seat_O, at_O]
    rivals_O = table.reach_SP.sum(axis=0)[at_O] - table.reach_SP[seat_O, at_O]
    spread_OF = spread[kind_O, :, at_O, row_O].reshape(len(at_O), -1)
    # Of each unit's options the best gain is 1: what is far away matters where nothing is near.
    best_UF = np.maximum.reduceat(spread_OF, starts[:-1])
    relative_OF = spread_OF / (np.repeat(best_UF, lengths, axis=0) + 1e-9)
    is_unowned_SP, is_rivals_SP, _, is_threatened_SP = (gains_SMP > 0).swapaxes(0, 1)
    goals_SGP = np.stack([is_unowned_SP, is_rivals_SP, is_unowned_SP | is_rivals_SP, is_threatened_SP], axis=1)
    moves_OG = _moves_to_nearest(goals_SGP)[row_O, :, kind_O, at_O]
    detour_OG = moves_OG - np.repeat(np.minimum.reduceat(moves_OG, starts[:-1]), lengths, axis=0)
    holder_O, owner_O = table.holder_P[at_O], table.owner_P[at_O]
    is_goal, is_rivals = (owner_O != seat_O) & (owner_O != _NO_CENTER), (holder_O >= 0) & (holder_O != seat_O)
    features_OF = np.column_stack(
        [
            relative_OF,
            np.log(LEAST_LOG + relative_OF),
            spread_OF[:, :AUTUMN_MAPS] * table.is_autumn,
            detour_OG == 0,
            np.minimum(detour_OG, MOST_DETOUR),
            np.minimum(own_O, 3),
            np.minimum(strongest_O, 3),
            np.minimum(rivals_O, 4),
            own_O + 1 > strongest_O,
            is_rivals,
            (holder_O == seat_O) & ~stays_O,
            is_rivals * np.minimum(own_O, 3),
            is_goal & (strongest_O > 0),
            stays_O,
            stays_O & table.is_autumn,
            stays_O & is_goal,
            stays_O & is_goal & table.is_autumn,
            stays_O & (owner_O == seat_O) & (strongest_O > 0),
            np.zeros((len(at_O), JOINT_FEATURES)),
        ]
    )
    joint_OCJ = _joint_features(strongest_O, is_rivals, is_goal, stays_O)
    found: dict[int, list[UnitChoice]] = {seat: [] for seat in seats}
    for (_, seat, unit), provinces, (start, stop) in zip(units, options, pairwise(starts), strict=True):
        found[seat].append(UnitChoice(unit, provinces, features_OF[start:stop], joint_OCJ[start:stop]))
    return found


def _moves_to_nearest(goals_SGP: NDArray[np.bool_]) -> Floats:
    """Moves from each province to the nearest goal of a kind, for armies and fleets; shape (S, G, 2, P)."""
    reachable = np.where(goals_SGP[:, :, None, None, :], moves_between(), float(UNREACHABLE))
    nearest: Floats = reachable.min(axis=-1)
    return nearest


def _joint_features(strongest_O: Floats, is_rivals: Floats, is_goal: Floats, stays_O: Floats) -> Floats:
    """What each condition adds to the features that depend on friends; shape (O, C, J)."""
    always, contested, outnumbered = np.ones(len(stays_O)), strongest_O > 0, strongest_O > 1
    every = (always, contested, outnumbered, is_rivals, is_goal, stays_O)
    rows = (every, (always, outnumbered), (always, outnumbered), (always,))
    joint_OCJ = np.zeros((len(stays_O), len(CONDITIONS), JOINT_FEATURES))
    column = 0
    for condition, columns in enumerate(rows):
        joint_OCJ[:, condition, column : column + len(columns)] = np.column_stack(columns)
        column += len(columns)
    return joint_OCJ


def chosen_province(order: str) -> str:
    """The province that an order is about: its destination, that of what it supports, or the unit's own."""
    words = order.split()
    match words[2]:
        case "-":
            return board.province(words[3])
        case "S":
            return board.province(words[-1])
        case _:
            return board.province(words[1])
