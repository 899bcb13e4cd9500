"""Model of how the other powers order their units, fitted to the orders of the match so far.

Each unit chooses the province that it wants to have or to keep: it stays, moves there, or supports a friendly unit that
does. The choice is a conditional logit (McFadden 1974, "Conditional logit analysis of qualitative choice behavior")
over features of the province: what is to be gained or defended there and around it, who else can come, and whether it
is occupied. The weights maximise the posterior density, with a normal prior around those of bots that play each other.

Shape suffixes: P province, S seat, R round of averaging, M map of what is to be gained, O option of a unit, all units
after each other, F feature.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from random import Random
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from arena.bots.mover import unit_preserving_action
from arena.games.base import Action, Game, GameSpec
from arena.games.diplomacy import board
from arena.games.diplomacy.game import DiplomacyGame
from arena.games.diplomacy.position import Position, UnitOrders

Floats = NDArray[np.float64]

ROUNDS = (0, 1, 2, 3, 5, 8)
"""Numbers of rounds of averaging over neighbours in which a unit looks at what is to be gained."""
MAPS = 4
"""Maps of what is to be gained: unowned centres, rivals' centres, the same by the rival's size, threatened own ones."""
AUTUMN_MAPS = 8
"""Columns of the nearest rounds, which count anew in autumn, when centres change hands."""
PLACE_FEATURES = 13
FEATURES = MAPS * len(ROUNDS) + AUTUMN_MAPS + PLACE_FEATURES
PRECISION = 0.3
"""Of the prior, an independent normal distribution for each weight."""
NEWTON_STEPS, PRIOR_NEWTON_STEPS = 4, 12
MAX_STEP = 2.0
"""Largest change of a weight in one of Newton's steps."""
PRIOR_BOTS = ("mover", "greedy", "tactician")
PRIOR_GAMES = 6
"""Games of each bot against itself that the prior is fitted to."""

_INDEX = {province: index for index, province in enumerate(board.PROVINCES)}
_NO_UNIT, _UNOWNED, _NO_CENTER = -1, -1, -2


class UnitChoice(NamedTuple):
    """The provinces that a unit chooses among."""

    unit: str
    provinces: Sequence[str]
    """Its own first, then those that it can move to."""
    features_OF: Floats


class _Options(NamedTuple):
    """A unit's options as indices of provinces."""

    provinces: tuple[str, ...]
    index_O: NDArray[np.int64]
    reached_O: Floats
    """1 where the unit can move to, 0 at its own place."""


@cache
def _options(unit: str) -> _Options:
    provinces = (board.province(unit[2:]), *board.adjacent_provinces(unit))
    index = np.array([_INDEX[province] for province in provinces])
    return _Options(provinces, index, _reach(unit)[index])


@cache
def _reach(unit: str) -> Floats:
    """1 at the provinces that the unit can move to; shape (P,)."""
    reach_P = np.zeros(len(board.PROVINCES))
    reach_P[[_INDEX[province] for province in board.adjacent_provinces(unit)]] = 1
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


class _Board:
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
        ranked = np.sort(self.reach_SP, axis=0)
        self._most_P, self._second_P, self._leader_P = ranked[-1], ranked[-2], self.reach_SP.argmax(axis=0)
        self._sizes = np.array([*(len(owned) for owned in position.centers), 0, 0], float)
        self.is_autumn = position.phase[0] == "F"

    def strongest_rival(self, seat: int) -> Floats:
        """Largest number of units of one rival that can move to each province; shape (P,)."""
        strongest_P: Floats = np.where(self._leader_P == seat, self._second_P, self._most_P)
        return strongest_P

    def gains(self, seat: int) -> Floats:
        """What is to be gained at each province; shape (M, P)."""
        owner_P = self.owner_P
        is_foreign = (owner_P >= 0) & (owner_P != seat)
        is_threatened = (owner_P == seat) & (self.strongest_rival(seat) > 0)
        return np.array([owner_P == _UNOWNED, is_foreign, is_foreign * self._sizes[owner_P] / 8, is_threatened], float)


def unit_choices(position: Position, seats: Iterable[int]) -> dict[int, list[UnitChoice]]:
    """Returns the choices of all units of these seats in a movement phase."""
    seats = [seat for seat in seats if position.units[seat]]
    if not seats:
        return {}
    table = _Board(position)
    gains_SMP = np.array([table.gains(seat) for seat in seats])
    # One small product a matrix: large ones would wake the threads of the linear algebra library.
    spread = np.matmul(_averages(), gains_SMP.reshape(-1, len(board.PROVINCES)).T)
    spread = (spread / (spread.max(axis=1, keepdims=True) + 1e-6)).reshape(
        2, len(ROUNDS), len(board.PROVINCES), len(seats), MAPS
    )
    units = [(row, seat, unit) for row, seat in enumerate(seats) for unit in position.units[seat]]
    options = [_options(unit) for _, _, unit in units]
    lengths = [len(each.provinces) for each in options]
    at_O, row_O, kind_O = (
        np.concatenate([each.index_O for each in options]),
        np.repeat([row for row, _, _ in units], lengths),
        np.repeat(["AF".index(unit[0]) for _, _, unit in units], lengths),
    )
    seat_O = np.array(seats)[row_O]
    own_O = table.reach_SP[seat_O, at_O] - np.concatenate([each.reached_O for each in options])
    strongest_O = np.array([table.strongest_rival(seat) for seat in seats])[row_O, at_O]
    rivals_O = table.reach_SP.sum(axis=0)[at_O] - table.reach_SP[seat_O, at_O]
    starts = [0, *np.cumsum(lengths).tolist()]
    stays_O = np.zeros(len(at_O), bool)
    stays_O[starts[:-1]] = True
    spread_OF = spread[kind_O, :, at_O, row_O].reshape(len(at_O), -1)
    holder_O, owner_O = table.holder_P[at_O], table.owner_P[at_O]
    is_goal, is_rivals = (owner_O != seat_O) & (owner_O != _NO_CENTER), (holder_O >= 0) & (holder_O != seat_O)
    features_OF = np.column_stack(
        [
            spread_OF,
            spread_OF[:, :AUTUMN_MAPS] * table.is_autumn,
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
        ]
    )
    found: dict[int, list[UnitChoice]] = {seat: [] for seat in seats}
    for (_, seat, unit), option, (start, stop) in zip(units, options, pairwise(starts), strict=True):
        found[seat].append(UnitChoice(unit, option.provinces, features_OF[start:stop]))
    return found


def chosen_province(order: str) -> str:
    """Returns the province that an order is about: its destination, that of what it supports, or the unit's own."""
    words = order.split()
    match words[2]:
        case "-":
            return board.province(words[3])
        case "S":
            return board.province(words[-1])
        case _:
            return board.province(words[1])


class OrderModel:
    """An ``OpponentModel`` of Diplomacy; retreats and adjustments are those of the bots."""

    def __init__(self, mean: Floats | None = None) -> None:
        """Begin with the prior.

        Args:
            mean: Of the weights' prior, shape (F,); 0 by default.
        """
        self._mean_F: Floats = np.zeros(FEATURES) if mean is None else mean
        self.weights_F: Floats = self._mean_F.copy()
        self._turns = 0
        """Turns of the match that were taken in."""
        self._features: list[Floats] = []
        self._chosen: list[int] = []
        """The option chosen in each of ``_features``."""

    def observe(self, game: Game, seat: int) -> None:
        """See ``OpponentModel.observe``."""
        turns = cast(DiplomacyGame, game).history()
        for position, actions in turns[self._turns :]:
            self.add({other: action for other, action in actions.items() if other != seat}, position)
        if len(turns) > self._turns:
            self.fit(NEWTON_STEPS)
        self._turns = len(turns)

    def add(self, actions: Mapping[int, Action], position: Position) -> None:
        """Adds the orders of a movement phase to the data; those of other phases tell nothing."""
        if position.kind != "M":
            return
        for seat, units in unit_choices(position, actions).items():
            chosen = {order[:5]: chosen_province(order) for order in actions[seat]}
            for unit, provinces, features_OF in units:
                # A convoyed army's destination may be out of its own reach.
                if (province := chosen.get(unit[:5])) in provinces:
                    self._features.append(features_OF)
                    self._chosen.append(provinces.index(province))

    def fit(self, steps: int) -> None:
        """Moves the weights toward the highest posterior density by Newton's method."""
        if not self._features:
            return
        features_OF = np.concatenate(self._features)
        lengths = [len(each) for each in self._features]
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        unit_O = np.repeat(np.arange(len(lengths)), lengths)
        chosen_F = features_OF[starts + self._chosen].sum(axis=0)
        for _ in range(steps):
            logits_O = features_OF @ self.weights_F
            odds_O = np.exp(logits_O - np.maximum.reduceat(logits_O, starts)[unit_O])
            odds_O /= np.add.reduceat(odds_O, starts)[unit_O]
            weighted_OF = features_OF * odds_O[:, None]
            expected_UF = np.add.reduceat(weighted_OF, starts)
            gradient_F = chosen_F - expected_UF.sum(axis=0) - PRECISION * (self.weights_F - self._mean_F)
            hessian_FF = weighted_OF.T @ features_OF - expected_UF.T @ expected_UF + PRECISION * np.eye(FEATURES)
            step_F = np.linalg.solve(hessian_FF, gradient_F)
            self.weights_F = self.weights_F + step_F * min(1.0, MAX_STEP / max(float(np.abs(step_F).max()), 1e-9))

    def act(self, game: Game, seats: Sequence[int], rng: Random) -> dict[int, Action]:
        """See ``OpponentModel.act``."""
        table = cast(DiplomacyGame, game)
        if table.position.kind != "M":
            return {seat: unit_preserving_action(table, seat, rng) for seat in seats}
        choices = unit_choices(table.position, seats)
        return {
            seat: _OrderDraw(table.legal_orders(seat), choices[seat], self.weights_F, rng).orders() for seat in seats
        }


class _OrderDraw:
    """The orders of one seat, drawn unit by unit: two that want one province become a move and a support."""

    def __init__(
        self, legal: Sequence[UnitOrders], choices: Sequence[UnitChoice], weights_F: Floats, rng: Random
    ) -> None:
        self._legal = {unit.unit: unit for unit in legal}
        self._choices = {choice.unit: choice for choice in choices}
        self._unit_at = {board.province(unit[2:]): unit for unit in self._choices}
        self._weights_F = weights_F
        self._rng = rng
        self._movers: dict[str, str] = {}
        """Unit that moves to each province."""
        self._orders: dict[str, str] = {}
        self._started: set[str] = set()

    def orders(self) -> Action:
        """Draws the orders of all units, in the order of the legal orders."""
        units = list(self._choices)
        self._rng.shuffle(units)
        for unit in units:
            self._decide(unit)
        return tuple(self._orders[unit] for unit in self._legal)

    def _decide(self, unit: str) -> None:
        """Gives a unit its order, after the friendly unit whose place it wants."""
        if unit in self._started:
            return
        self._started.add(unit)
        _, provinces, features_OF = self._choices[unit]
        logits_O = features_OF @ self._weights_F
        odds = np.exp(logits_O - logits_O.max()).tolist()
        order = f"{unit} H"
        while sum(odds) > 0:
            drawn = self._rng.choices(range(len(odds)), odds)[0]
            odds[drawn] = 0.0
            order = self._order_for(unit, provinces[drawn]) if drawn else f"{unit} H"
            if order in self._legal[unit]:
                break
            order = f"{unit} H"
        self._orders[unit] = order
        words = order.split()
        if words[2] == "-":
            self._movers[board.province(words[3])] = unit

    def _order_for(self, unit: str, province: str) -> str:
        """The order by which the unit would help to have a province beside it."""
        friend = self._unit_at.get(province)
        if friend is not None:
            self._decide(friend)
        if province in self._movers:
            return f"{unit} S {self._orders[self._movers[province]]}"
        if friend is not None and " - " not in self._orders.get(friend, ""):
            return f"{unit} S {friend}"
        return f"{unit} - {_location(unit, province)}"


@cache
def _location(unit: str, province: str) -> str:
    """The province as the unit enters it, on its first coast where there are several."""
    return next(location for location in board.MOVES[unit] if board.province(location) == province)


def bot_weights(spec: GameSpec) -> Floats:
    """Returns weights fitted to games of each of ``PRIOR_BOTS`` against itself; shape (F,)."""
    model = OrderModel()
    for name in PRIOR_BOTS:
        bot = spec.bot(name)
        for number in range(PRIOR_GAMES):
            game, rng = cast(DiplomacyGame, spec.new(number)), Random(number)
            while moving := game.to_move():
                actions = {seat: bot.act(game, seat, rng) for seat in moving}
                model.add(actions, game.position)
                game.apply(actions)
    model.fit(PRIOR_NEWTON_STEPS)
    return model.weights_F
