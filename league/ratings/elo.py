"""Elo for any number of seats and teams: every pair of sides is a two-player game.

Source: League Training's multi-player Elo ("pairwise decomposition"), which has k = 32 and divides each
pair's step by the number of opponents, 6 in Diplomacy.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import ClassVar

from league.ratings.base import SYSTEMS, Side, State
from schemas.numbers import PositiveFloat
from schemas.plugins import PluginStruct

_SCALE = 400.0
# 10 ** 308 is the largest power that a float holds; at such distances 0 or 1 is expected already.
_MAX_EXPONENT = 300.0


@SYSTEMS.register("elo")
class Elo(PluginStruct, frozen=True):
    """Pairwise Elo.

    For sides A and B, ``expected = 1 / (1 + 10 ** ((R_B - R_A) / 400))`` with their seats' mean ratings before the
    match, ``actual`` is 1, 0.5 or 0 by score, and every seat of A gains what every seat of B loses:
    ``k / (sides - 1) * (actual - expected)``. Where sides have different numbers of seats, that is multiplied by the
    other side's share of both sides' seats, times 2: both sides then exchange the same points.
    """

    name: ClassVar[str] = "elo"

    k: PositiveFloat = 32.0
    """Rating points that a seat can win or lose in one match between sides of equal size."""

    def start(self, rating: float) -> State:
        """The rating alone."""
        return (rating,)

    def inherit(self, state: State) -> State:
        """The same rating."""
        return state

    def update(self, ratings: Mapping[str, State], sides: Sequence[Side]) -> dict[str, State]:
        """Rate one match: each agent's changes against the other sides, by their means before the match, added up."""
        step = 2.0 * self.k / (len(sides) - 1)
        after = {agent: state[0] for agent, state in ratings.items()}
        means = [math.fsum(ratings[agent][0] / len(side.agents) for agent in side.agents) for side in sides]
        for (own, mean), (other, other_mean) in combinations(zip(sides, means, strict=True), 2):
            actual = 1.0 if own.score > other.score else 0.5 if own.score == other.score else 0.0
            seats = len(own.agents) + len(other.agents)
            change = step / seats * (actual - expected_share(mean - other_mean))
            for a in own.agents:
                for b in other.agents:
                    if a != b:
                        after[a] += change
                        after[b] -= change
        return {agent: (rating,) for agent, rating in after.items()}


def expected_share(gap: float, max_exponent: float = _MAX_EXPONENT) -> float:
    """Expected share of the points for a rating ``gap`` points higher: 0.76 for 200.

    Beyond odds of ``10 ** max_exponent`` to one the outcome is certain.
    """
    exponent = -gap / _SCALE
    if not -max_exponent < exponent < max_exponent:
        exponent = math.copysign(max_exponent, exponent)
    share: float = 1.0 / (1.0 + 10.0**exponent)
    return share


def chance_deviation(k: float, games: int) -> float:
    """Standard deviation that chance gives a rating after so many matches against equals that stand still.

    The update linearised at its equilibrium is an autoregression: steps of variance k²/4, pulled back by k·ln10/1600 of
    the distance. Its stationary variance is k·200/ln10, approached as 1 - exp(-games·k·ln10/800).
    """
    return math.sqrt(200.0 * k / math.log(10.0) * -math.expm1(-games * k * math.log(10.0) / 800.0))
