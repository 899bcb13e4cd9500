"""OpenSkill: the Bradley–Terry model of Weng and Lin for any number of sides, each a team or a single seat.

Source: R. C. Weng and C.-J. Lin, "A Bayesian Approximation Method for Online Ranking", JMLR 12 (2011), algorithm 1.
Numbers that the paper leaves open are those of ``BradleyTerryFull`` of the Python package ``openskill`` 6.2.0, whose
results are reproduced: gamma = sigma / c (the paper's suggestion), kappa = 0.0001, deviations that may grow. The
package's default, Plackett–Luce, gives tied winners less than the third place.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import exp, fsum, log, sqrt
from typing import Annotated, ClassVar

from msgspec import Meta

from league.ratings.base import SYSTEMS, Side, State
from league.ratings.skills import inherit_deviation, relative_skills, side_games, skill_variance
from schemas.numbers import NonNegativeFloat, PositiveFloat
from schemas.plugins import PluginStruct

_BETA = 400 / (log(10) * sqrt(2))
_MAX_GAP = 500.0
"""Largest difference of skills that is distinguished from larger ones: its exponential is a float."""


@SYSTEMS.register("openskill")
class OpenSkill(PluginStruct, frozen=True):
    """Weng and Lin's Bradley–Terry model; settings in rating points unless another unit is named.

    A state is (mu, sigma). A side's skill is the sum of its seats', which share what it gains in proportion to their
    variances. Every two sides are compared: with ``c**2`` the sum of both sides' ``sigma**2`` and of ``2 * beta**2``,
    the first wins with probability ``1 / (1 + exp((mu_2 - mu_1) / c))``, a tie counts half, and ratings follow the
    gradient of the log-likelihood. The defaults have the package's proportions: 400 points more mean odds of 10 to 1
    between two seats with small deviations, as in Elo.

    An agent in several seats takes the sum of its seats' changes of its natural parameters (precision, and precision
    times mean); ``tau`` is added once. Its seats thus count as independent results, although they depend on each other.
    """

    name: ClassVar[str] = "openskill"

    beta: PositiveFloat = _BETA
    """Standard deviation of a performance around the skill."""
    sigma: PositiveFloat = 2 * _BETA
    """Standard deviation of a new agent's rating."""
    tau: NonNegativeFloat = _BETA / 50
    """Standard deviation of the change of skill from one match to the next."""
    kappa: Annotated[float, Meta(gt=0, lt=1)] = 1e-4
    """Smallest factor by which a match may multiply a variance."""
    limit_sigma: bool = False
    """Whether matches never increase a deviation, as ``tau`` otherwise can."""
    inherited_factor: PositiveFloat = 2.0
    """A new version's sigma, in units of its predecessor's; at most ``sigma``."""

    def start(self, rating: float) -> State:
        """The rating, and ``sigma``."""
        return rating, self.sigma

    def inherit(self, state: State) -> State:
        """The same rating, with a larger deviation."""
        return inherit_deviation(state, self.inherited_factor, self.sigma)

    def update(self, ratings: Mapping[str, State], sides: Sequence[Side]) -> dict[str, State]:
        """Rate one match by the model's closed-form gradients, added up in natural parameters."""
        variances = {a: skill_variance(state[1], self.beta, self.tau) for a, state in ratings.items()}
        skills = relative_skills(ratings, sides, self.beta)
        # Natural parameters, since their changes add up. A precision is in units of the one before.
        precisions, weighted = dict.fromkeys(ratings, 1.0), dict.fromkeys(ratings, 0.0)
        for game in side_games(sides):
            means = {side: fsum(skills[a] for a in agents) for side, agents in game.sides.items()}
            spreads = {side: fsum(variances[a] for a in agents) for side, agents in game.sides.items()}
            gradients = _gradients(sides, means, spreads)
            for side, agent in game.counted:
                omega, delta = gradients[side]
                variance = variances[agent]
                kept = max(1.0 - variance * delta, self.kappa)
                precisions[agent] += 1.0 / kept - 1.0
                weighted[agent] += variance * omega / kept
        after: dict[str, State] = {}
        for agent, (rating, sigma) in ratings.items():
            deviation = self.beta * sqrt(variances[agent] / precisions[agent])
            if self.limit_sigma and deviation > sigma:
                deviation = sigma
            after[agent] = rating + self.beta * weighted[agent] / precisions[agent], deviation
        return after


def _gradients(
    sides: Sequence[Side], means: Mapping[int, float], spreads: Mapping[int, float]
) -> dict[int, tuple[float, float]]:
    """The paper's Omega and Delta of the sides in ``means``, each divided by the side's variance."""
    omegas, deltas = dict.fromkeys(means, 0.0), dict.fromkeys(means, 0.0)
    for own, other in combinations(means, 2):
        c = sqrt(spreads[own] + spreads[other] + 2.0)
        p = 1.0 / (1.0 + exp(max(min((means[other] - means[own]) / c, _MAX_GAP), -_MAX_GAP)))
        actual = 1.0 if sides[own].score > sides[other].score else 0.5 * (sides[own].score == sides[other].score)
        omegas[own] += (actual - p) / c
        omegas[other] -= (actual - p) / c
        curvature = p * (1.0 - p) / (c * c)
        deltas[own] += sqrt(spreads[own]) / c * curvature
        deltas[other] += sqrt(spreads[other]) / c * curvature
    return {side: (omega, deltas[side]) for side, omega in omegas.items()}
