"""Model of how the other powers order their units, fitted to the orders of the match so far.

Each unit chooses a province to have or to keep: it stays, moves there, or supports a friendly unit that
does. Given what friendly units choose, the choice is a conditional logit (McFadden 1974, "Conditional logit analysis of
qualitative choice behavior") over ``order_features``. The weights maximise the pseudo-likelihood (Besag 1975,
"Statistical analysis of non-lattice data") with a normal prior around those of bots that play each other; orders are
drawn by Gibbs sampling. In an ``OpponentMixture`` each power may be one of some known bots instead.

Shape suffixes: those of ``order_features``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import exp
from random import Random
from typing import cast

import numpy as np

from arena.bots.greedy import unit_preserving_action
from arena.games.base import Action, Bot, Game, GameSpec
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
from schemas.ids import derive_seed

PRECISION = 0.1
"""Precision of the prior, an independent normal distribution for each weight."""
NEWTON_STEPS, PRIOR_NEWTON_STEPS = 4, 12
MAX_STEP = 2.0
"""Largest change of a weight in one of Newton's steps."""
SWEEPS = 2
"""Times that every unit chooses anew, by what friendly units chose."""
PRIOR_BOTS = ("mover", "greedy", "tactician")
PRIOR_GAMES = 6
"""Games of each bot against itself that the prior is fitted to."""
DRAWS = 4
"""Draws of a model's orders by which the orders of a phase are judged."""
MISSED, PSEUDO_DRAWS = 0.05, 0.5
"""Hits that an order has beside those among the draws, and draws that are counted beside them."""

_Model = Callable[[Game, Sequence[int], Random], Mapping[int, Action]]


class OrderModel:
    """An ``OpponentModel`` of Diplomacy; retreats and adjustments are the bots'.

    ``mean`` is the mean of the weights' prior, shape (F,).
    """

    def __init__(self, mean: Floats | None = None) -> None:
        self._mean_F: Floats = np.zeros(FEATURES) if mean is None else mean
        self.weights_F: Floats = self._mean_F.copy()
        self._turns = 0
        """Turns of the match that were taken in."""
        self._features: list[Floats] = []
        self._chosen: list[int] = []
        """The option chosen in each of ``_features``."""

    def observe(self, game: Game, seat: int) -> None:
        """Add the other seats' orders since the last call, and fit the weights anew."""
        turns = cast(DiplomacyGame, game).history()
        for position, actions in turns[self._turns :]:
            self.add({other: action for other, action in actions.items() if other != seat}, position)
        if len(turns) > self._turns:
            self.fit(NEWTON_STEPS)
        self._turns = len(turns)

    def add(self, actions: Mapping[int, Action], position: Position) -> None:
        """Add the orders of a movement phase to the data; other phases carry no information."""
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
        """Move the weights toward the highest posterior density by Newton's method."""
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
        """Draw where each unit goes by the fitted weights."""
        table = cast(DiplomacyGame, game)
        if table.position.kind != "M":
            return {seat: unit_preserving_action(table, seat, rng) for seat in seats}
        choices = unit_choices(table.position, seats)
        drawn = {seat: draw_provinces(units, self.weights_F, rng) for seat, units in choices.items()}
        return {seat: _orders(table.legal_orders(seat), chosen) for seat, chosen in drawn.items()}


def draw_provinces(units: Sequence[UnitChoice], weights_F: Floats, rng: Random) -> dict[str, str]:
    """Draw the province that each unit of a seat chooses, in random order of the units."""
    occupants = _occupants(units)
    chosen: dict[str, str] = {}
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
    occupants = {board.province(unit[2:]): unit for unit in chosen}
    choices = {unit.unit: unit for unit in legal}
    moves: dict[str, str] = {}
    orders: dict[str, str] = {}
    for unit, province in chosen.items():
        occupant = occupants.get(province)
        if occupant == unit:
            order = f"{unit} H"
        elif occupant is not None and chosen[occupant] == province:
            order = f"{unit} S {occupant}"
        elif province in moves:
            order = f"{unit} S {moves[province]}"
        else:
            # It enters a province with several coasts by the first one.
            order = next(f"{unit} - {place}" for place in board.MOVES[unit] if board.province(place) == province)
            if order in choices[unit]:
                moves[province] = order
        orders[unit] = order if order in choices[unit] else f"{unit} H"
    return tuple(orders[unit] for unit in choices)


def _occupants(units: Sequence[UnitChoice]) -> dict[str, str]:
    return {board.province(unit.unit[2:]): unit.unit for unit in units}


def bot_weights(spec: GameSpec, names: Sequence[str] = PRIOR_BOTS) -> Floats:
    """Weights fitted to games of each of these bots against itself; shape (F,)."""
    model = OrderModel()
    for name in names:
        bot = spec.bot(name)
        for number in range(PRIOR_GAMES):
            game, rng = cast(DiplomacyGame, spec.new(number)), Random(number)
            while moving := game.to_move():
                actions = {seat: bot.act(game, seat, rng) for seat in moving}
                model.add(actions, game.position)
                game.apply(actions)
    model.fit(PRIOR_NEWTON_STEPS)
    return model.weights_F


class OpponentMixture:
    """An ``OpponentModel`` of Diplomacy: each other seat is one of some bots, or as the fitted model has it.

    How probable each is of a seat follows from its orders in the match so far by Bayes' rule. The likelihood of an
    order is the share of a model's draws that have it, smoothed. The prior of a seat counts how probable each model is
    of the other seats, which are often alike. At first all are equally probable.
    """

    def __init__(self, fitted: OrderModel, bots: Sequence[Bot]) -> None:
        self._fitted = fitted
        self._models: list[_Model] = [*(partial(_act, bot) for bot in bots), fitted.act]
        self._turns = 0
        """Turns of the match that were taken in."""
        self._log_likelihoods: dict[int, Floats] = {}
        """Log-likelihoods of each seat's orders so far, by model."""
        self._probabilities: dict[int, list[float]] = {}

    def observe(self, game: Game, seat: int) -> None:
        """Judge every model by the other seats' orders since the last call, then fit the one that is fitted."""
        table = cast(DiplomacyGame, game)
        turns = table.history()
        for number, (position, actions) in enumerate(turns[self._turns :], self._turns):
            if position.kind == "M":
                past = DiplomacyGame(table.settings, derive_seed(table.seed, "opponents", number), position)
                self._judge(past, {other: action for other, action in actions.items() if other != seat})
        self._turns = len(turns)
        self._probabilities = {other: self.probabilities(other) for other in self._log_likelihoods}
        # Fitted only now: it was judged by orders that it had not seen.
        self._fitted.observe(game, seat)

    def _judge(self, past: DiplomacyGame, actions: Mapping[int, Action]) -> None:
        """Add the log-likelihoods of one phase's orders."""
        rng = Random(past.seed)
        for number, model in enumerate(self._models):
            draws = [model(past, list(actions), rng) for _ in range(DRAWS)]
            for seat, action in actions.items():
                known = self._log_likelihoods.setdefault(seat, np.zeros(len(self._models)))
                hits = (sum(draw[seat][place] == order for draw in draws) for place, order in enumerate(action))
                known[number] += sum(np.log((count + MISSED) / (DRAWS + PSEUDO_DRAWS)) for count in hits)

    def probabilities(self, seat: int) -> list[float]:
        """The posterior probability that a seat is each of the bots, and at last that it is none of them."""
        others = (_normalise(known) for other, known in self._log_likelihoods.items() if other != seat)
        prior = np.log(sum(others, np.ones(len(self._models))))
        return [float(share) for share in _normalise(self._log_likelihoods.get(seat, 0) + prior)]

    def act(self, game: Game, seats: Sequence[int], rng: Random) -> dict[int, Action]:
        """Draw a model for each seat by its probability, and that model's action."""
        models = range(len(self._models))
        drawn = {seat: rng.choices(models, self._probabilities.get(seat))[0] for seat in seats}
        actions: dict[int, Action] = {}
        for number in sorted(set(drawn.values())):
            actions.update(self._models[number](game, [seat for seat in seats if drawn[seat] == number], rng))
        return actions


def _act(bot: Bot, game: Game, seats: Sequence[int], rng: Random) -> Mapping[int, Action]:
    return {seat: bot.act(game, seat, rng) for seat in seats}


def _normalise(logs: Floats) -> Floats:
    weights = np.exp(logs - logs.max())
    normalised: Floats = weights / weights.sum()
    return normalised
