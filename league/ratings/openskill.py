"""OpenSkill: the Plackett–Luce model of Weng and Lin for any number of seats, each seat a team of one.

Source: R. C. Weng and C.-J. Lin, "A Bayesian Approximation Method for Online Ranking", JMLR 12 (2011), algorithm 4.
Numbers that the paper leaves open are those of the Python package ``openskill`` 6.2.0, whose results are reproduced
in 60 % of its time: gamma = sigma / c (the paper's suggestion), kappa = 0.0001, deviations that may grow.
"""

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from typing import Annotated, ClassVar, NamedTuple

from msgspec import Meta

from league.ratings.base import SYSTEMS, State
from league.ratings.skills import inherit_deviation, scaled_distance, seat_games, skill_variance
from schemas.numbers import NonNegativeFloat, PositiveFloat
from schemas.plugins import PluginStruct

_BETA = 400 / (log(10) * sqrt(2))


class _Rank(NamedTuple):
    """Seats of equal score, and what the paper sums over all seats of this rank or a worse one."""

    seats: list[int]
    highest: float
    """The highest rating among them. Weights relative to it neither overflow nor all vanish."""
    total: float
    """Sum of their weights."""


@SYSTEMS.register("openskill")
class OpenSkill(PluginStruct, frozen=True):
    """Weng and Lin's Plackett–Luce; settings in rating points unless another unit is named.

    A state is (mu, sigma). With ``c**2`` the sum of ``sigma**2 + beta**2`` over the game, the seats at rank q or below
    share that rank by the weights ``exp(mu / c)``, and every seat's rating follows the gradient of the log-likelihood
    of the result. Order among equals has no effect. The defaults have the package's proportions: 400 points more mean
    odds of 10 to 1 in a two-player game with small deviations, as in Elo.

    Since ``c`` grows with the square root of the number of seats, so do the differences of ratings that fit the same
    odds: ratings from games of seven are stretched by about 1.9 against those from games of two. Compare them within
    one game only.

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

    def update(self, ratings: Mapping[str, State], scores: Sequence[tuple[str, float]]) -> dict[str, State]:
        """See ``RatingSystem.update``."""
        variances = {a: skill_variance(state[1], self.beta, self.tau) for a, state in ratings.items()}
        # Natural parameters, since their changes add up. A precision is in units of the one before.
        precisions, weighted = dict.fromkeys(ratings, 1.0), dict.fromkeys(ratings, 0.0)
        agents = [agent for agent, _ in scores]
        order = sorted(range(len(scores)), key=lambda seat: -scores[seat][1])
        for players, counted in seat_games(agents):
            inside = set(players)
            c = sqrt(sum(variances[agents[seat]] + 1.0 for seat in order if seat in inside))
            ranks = self._sum_ranks([seat for seat in order if seat in inside], ratings, scores, c)
            for number, rank in enumerate(ranks):
                for seat in rank.seats:
                    if seat in counted:
                        agent = agents[seat]
                        omega, delta = self._gradient(ratings[agent][0], ranks[: number + 1], c)
                        variance = variances[agent]
                        kept = max(1.0 - delta * variance / (c * c) * sqrt(variance) / c, self.kappa)
                        precisions[agent] += 1.0 / kept - 1.0
                        weighted[agent] += omega * variance / c / kept
        after: dict[str, State] = {}
        for agent, (rating, sigma) in ratings.items():
            deviation = self.beta * sqrt(variances[agent] / precisions[agent])
            if self.limit_sigma and deviation > sigma:
                deviation = sigma
            after[agent] = rating + self.beta * weighted[agent] / precisions[agent], deviation
        return after

    def _sum_ranks(
        self, order: list[int], ratings: Mapping[str, State], scores: Sequence[tuple[str, float]], c: float
    ) -> list[_Rank]:
        """The ranks of a game, best first; ``order`` has its seats by score."""
        ranks: list[_Rank] = []
        seats: list[int] = []
        highest, total = 0.0, 0.0
        for place in range(len(order) - 1, -1, -1):
            agent, score = scores[order[place]]
            rating = ratings[agent][0]
            if total == 0.0:
                highest, total = rating, 1.0
            elif rating > highest:
                total = 1.0 + total * exp(scaled_distance(highest, rating, self.beta) / c)
                highest = rating
            else:
                total += exp(scaled_distance(rating, highest, self.beta) / c)
            seats.append(order[place])
            if place == 0 or scores[order[place - 1]][1] != score:
                ranks.append(_Rank(seats[::-1], highest, total))
                seats = []
        return ranks[::-1]

    def _gradient(self, rating: float, ranks: Sequence[_Rank], c: float) -> tuple[float, float]:
        """The paper's Omega and Delta of a seat at the last of these ranks."""
        omega, delta = 0.0, 0.0
        for rank in ranks:
            share = exp(scaled_distance(rating, rank.highest, self.beta) / c) / rank.total
            omega -= share
            delta += share * (1.0 - share)
        return omega + 1.0 / len(ranks[-1].seats), delta
