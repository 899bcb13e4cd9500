"""Mixture of models of the other seats: each may be one of some known bots, or else as the fitted model has it.

How probable each is of a seat follows from its orders in the match so far by Bayes' rule. The likelihood of an order is
the share of a model's draws that have it, smoothed. The prior of a seat counts how probable each model is of the other
seats, which are often alike.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import cast

import numpy as np

from arena.games.base import Action, Bot, Game
from arena.games.diplomacy.game import DiplomacyGame
from arena.games.diplomacy.order_features import Floats
from arena.games.diplomacy.order_model import OrderModel
from schemas.ids import derive_seed

DRAWS = 4
"""Draws of a model's orders by which the orders of a phase are judged."""
MISSED, PSEUDO_DRAWS = 0.05, 0.5
"""Hits that an order has beside those among the draws, and draws that are counted beside them."""

_Model = Callable[[Game, Sequence[int], Random], Mapping[int, Action]]


class OpponentMixture:
    """An ``OpponentModel`` of Diplomacy: bots and a fitted model, by their posterior probabilities."""

    def __init__(self, fitted: OrderModel, bots: Sequence[Bot]) -> None:
        """Begin with equal probabilities.

        Args:
            fitted: Model of those that are none of the bots.
            bots: What another seat may be.
        """
        self._fitted = fitted
        self._models: list[_Model] = [*(partial(_act, bot) for bot in bots), fitted.act]
        self._turns = 0
        """Turns of the match that were taken in."""
        self._log_likelihoods: dict[int, Floats] = {}
        """Of each seat's orders so far, by model."""
        self._probabilities: dict[int, list[float]] = {}

    def observe(self, game: Game, seat: int) -> None:
        """See ``OpponentModel.observe``."""
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
        """Adds the log-likelihoods of one phase's orders."""
        rng = Random(past.seed)
        for number, model in enumerate(self._models):
            draws = [model(past, list(actions), rng) for _ in range(DRAWS)]
            for seat, action in actions.items():
                known = self._log_likelihoods.setdefault(seat, np.zeros(len(self._models)))
                hits = (sum(draw[seat][place] == order for draw in draws) for place, order in enumerate(action))
                known[number] += sum(np.log((count + MISSED) / (DRAWS + PSEUDO_DRAWS)) for count in hits)

    def probabilities(self, seat: int) -> list[float]:
        """Returns the posterior probability that a seat is each of the bots, and at last that it is none of them."""
        others = (_normalise(known) for other, known in self._log_likelihoods.items() if other != seat)
        prior = np.log(sum(others, np.ones(len(self._models))))
        return [float(share) for share in _normalise(self._log_likelihoods.get(seat, 0) + prior)]

    def act(self, game: Game, seats: Sequence[int], rng: Random) -> dict[int, Action]:
        """See ``OpponentModel.act``."""
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
