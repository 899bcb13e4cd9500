"""Model of how the other powers order their units, fitted to the orders of the match so far.

Each unit chooses the province that it wants to have or to keep: it stays, moves there, or supports a friendly unit that
does. Given what friendly units choose, the choice is a conditional logit (McFadden 1974, "Conditional logit analysis of
qualitative choice behavior") over ``order_features``. The weights maximise the pseudo-likelihood (Besag 1975,
"Statistical analysis of non-lattice data") with a normal prior around those of bots that play each other; orders are
drawn by Gibbs sampling.

Shape suffixes: those of ``order_features``.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from math import exp
from random import Random
from typing import cast

import numpy as np

from arena.bots.mover import unit_preserving_action
from arena.games.base import Action, Game, GameSpec
from arena.games.diplomacy import board
from arena.games.diplomacy.game import DiplomacyGame
from arena.games.diplomacy.order_features import (
    FEATURES,
    JOINT_FEATURES,
    Floats,
    UnitChoice,
    chosen_province,
    unit_choices,
)
from arena.games.diplomacy.position import Position, UnitOrders

PRECISION = 0.1
"""Of the prior, an independent normal distribution for each weight."""
NEWTON_STEPS, PRIOR_NEWTON_STEPS = 4, 12
MAX_STEP = 2.0
"""Largest change of a weight in one of Newton's steps."""
SWEEPS = 2
"""Times that every unit chooses anew, by what friendly units chose."""
PRIOR_BOTS = ("mover", "greedy", "tactician")
PRIOR_GAMES = 6
"""Games of each bot against itself that the prior is fitted to."""


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
            by_unit = {choice.unit: chosen[choice.unit[:5]] for choice in units if choice.unit[:5] in chosen}
            occupants = _occupants(units)
            for choice in units:
                # A convoyed army's destination may be out of its own reach.
                if (province := by_unit.get(choice.unit)) in choice.provinces:
                    self._features.append(choice.with_friends(by_unit, occupants))
                    self._chosen.append(choice.provinces.index(province))

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
        return {
            seat: _orders(table.legal_orders(seat), draw_provinces(units, self.weights_F, rng))
            for seat, units in unit_choices(table.position, seats).items()
        }


def draw_provinces(units: Sequence[UnitChoice], weights_F: Floats, rng: Random) -> dict[str, str]:
    """Draws the province that each unit of a seat chooses, in random order of the units."""
    occupants, chosen = _occupants(units), dict[str, str]()
    unit_terms = [
        (unit, (unit.features_OF @ weights_F).tolist(), (unit.joint_OCJ @ weights_F[-JOINT_FEATURES:]).tolist())
        for unit in rng.sample(units, len(units))
    ]
    for _ in range(1 + SWEEPS):
        for unit, alone, joint in unit_terms:
            logits = [
                logit + sum(term for term, holds in zip(terms, conditions, strict=True) if holds)
                for logit, terms, conditions in zip(alone, joint, unit.conditions(chosen, occupants), strict=True)
            ]
            best = max(logits)
            chosen[unit.unit] = rng.choices(unit.provinces, [exp(logit - best) for logit in logits])[0]
    return chosen


def _orders(legal: Sequence[UnitOrders], chosen: Mapping[str, str]) -> Action:
    """Orders by which each unit helps to have the province that it chose; a hold where that is not legal."""
    occupants, moves = {board.province(unit[2:]): unit for unit in chosen}, dict[str, str]()
    choices, orders = {unit.unit: unit for unit in legal}, dict[str, str]()
    for unit, province in chosen.items():
        occupant = occupants.get(province)
        if occupant == unit:
            order = f"{unit} H"
        elif occupant is not None and chosen[occupant] == province:
            order = f"{unit} S {occupant}"
        elif province in moves:
            order = f"{unit} S {moves[province]}"
        else:
            order = f"{unit} - {_location(unit, province)}"
            if order in choices[unit]:
                moves[province] = order
        orders[unit] = order if order in choices[unit] else f"{unit} H"
    return tuple(orders[unit] for unit in choices)


def _occupants(units: Sequence[UnitChoice]) -> dict[str, str]:
    return {board.province(unit.unit[2:]): unit.unit for unit in units}


@cache
def _location(unit: str, province: str) -> str:
    """The province as the unit enters it, on its first coast where there are several."""
    return next(location for location in board.MOVES[unit] if board.province(location) == province)


def bot_weights(spec: GameSpec, names: Sequence[str] | None = None) -> Floats:
    """Returns weights fitted to games of each of ``PRIOR_BOTS`` against itself; shape (F,)."""
    model = OrderModel()
    for name in names or PRIOR_BOTS:
        bot = spec.bot(name)
        for number in range(PRIOR_GAMES):
            game, rng = cast(DiplomacyGame, spec.new(number)), Random(number)
            while moving := game.to_move():
                actions = {seat: bot.act(game, seat, rng) for seat in moving}
                model.add(actions, game.position)
                game.apply(actions)
    model.fit(PRIOR_NEWTON_STEPS)
    return model.weights_F
