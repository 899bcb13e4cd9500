"""OpenSkill: the Plackett–Luce model of Weng and Lin for any number of seats, each agent a team of one.

Source: R. C. Weng and C.-J. Lin, "A Bayesian Approximation Method for Online Ranking", JMLR 12 (2011), algorithm 4.
Numbers that the paper leaves open are those of the Python package ``openskill`` 6.2.0, whose results are reproduced:
gamma = sigma / c (the paper's suggestion), kappa = 0.0001, deviations that may grow.

Inside ``update`` everything is in units of beta.
"""

from math import exp, log, sqrt
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from league.ratings.base import (
    SYSTEMS,
    Inheritance,
    State,
    Z,
    has_other_seat,
    performance_skill_variance,
    scaled_distance,
)
from schemas.numbers import NonNegativeFloat, PositiveFloat
from schemas.plugins import PluginStruct

_BETA = 400 / (log(10) * sqrt(2))

# Layout of the scratch space, in units of the number of seats. It begins with all seats by rank.
# By rank in the game that is being rated:
_PLAYER = 1
_HIGHEST = 2
_SUM = 3
_TIED = 4
# By agent:
_PRECISION = 5
_WEIGHTED = 6
_FIELDS = 7


@SYSTEMS.register("openskill")
class OpenSkill(PluginStruct, frozen=True):
    """Weng and Lin's Plackett–Luce, every seat a team of one.

    A state is (mu, sigma). With ``c**2`` the sum of ``sigma**2 + beta**2`` over the game, the seats at rank q or below
    share that rank by the weights ``exp(mu / c)``, and every seat's rating follows the gradient of the log-likelihood
    of the result. Order among equals has no effect.

    Since ``c`` grows with the square root of the number of seats, so do the differences of ratings that fit the same
    odds: ratings from games of seven are stretched by about 1.9 against those from games of two. Compare them within
    one game only.

    An agent in several seats: each of its seats is rated in the game of that seat and all seats of other agents. The
    agent takes the sum of these games' changes of its natural parameters (precision, and precision times mean), and
    ``tau`` is added once. Its seats thus count as independent results: six seats of one bot against one hero are six
    results against that hero for the bot, and a game against six for the hero. As they depend on each other, the
    deviations are too narrow.

    The fields are its settings, ``[ratings.system.settings]``; in rating points unless another unit is named. The
    defaults have the package's proportions. With them, 400 points more mean odds of 10 to 1 in a two-player game with
    small deviations, as in Elo.
    """

    name: ClassVar[str] = "openskill"
    work_per_seat: ClassVar[int] = _FIELDS

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

    @property
    def inheritance(self) -> tuple[Inheritance, ...]:
        """See ``RatingSystem.inheritance``: the same rating, with a larger deviation."""
        return Inheritance(), Inheritance(self.inherited_factor, self.sigma)

    @property
    def constants(self) -> tuple[float, ...]:
        """See ``RatingSystem.constants``: beta; tau in units of it; kappa; 1 if deviations are limited."""
        return self.beta, self.tau / self.beta, self.kappa, float(self.limit_sigma)

    @property
    def update(self) -> Any:
        """See ``RatingSystem.update``."""
        return update

    def start(self, rating: float) -> State:
        """See ``RatingSystem.start``."""
        return rating, self.sigma


def update(seats: Z, agents: Z, agent_N: Z, score_N: Z, before: Z, after: Z, games_A: Z, constants: Z, work: Z) -> None:
    """See ``RatingSystem.update``."""
    _rank(seats, score_N, work)
    for agent in range(agents):
        work[_PRECISION * seats + agent] = 1.0
        work[_WEIGHTED * seats + agent] = 0.0
    # The game of all seats, for agents in one seat; then that of each seat of the others.
    for only in range(-1, seats):
        if only < 0 or has_other_seat(only, seats, agents, agent_N):
            c, players = _form_sums(only, seats, agent_N, score_N, before, constants, work)
            for place in range(players):
                seat = int(work[_PLAYER * seats + place])
                if seat == only or (only < 0 and not has_other_seat(seat, seats, agents, agent_N)):
                    _add_player_update(place, c, players, seats, agent_N, score_N, before, constants, work)
    for agent in range(agents):
        precision = work[_PRECISION * seats + agent]
        after[2 * agent] = before[2 * agent] + constants[0] * work[_WEIGHTED * seats + agent] / precision
        deviation = constants[0] * sqrt(performance_skill_variance(before[2 * agent + 1], constants) / precision)
        limited = constants[3] > 0.0 and deviation > before[2 * agent + 1]
        after[2 * agent + 1] = before[2 * agent + 1] if limited else deviation


def _rank(seats: Z, score_N: Z, work: Z) -> None:
    for seat in range(seats):
        place = seat
        while place and score_N[seat] > score_N[int(work[place - 1])]:
            work[place] = work[place - 1]
            place -= 1
        work[place] = float(seat)


def _form_sums(only: Z, seats: Z, agent_N: Z, score_N: Z, before: Z, constants: Z, work: Z) -> Z:
    """Form the sums of the game of one seat and all seats of other agents, or of all seats where ``only`` is -1.

    At the first place of each rank: the highest rating from there on, the sum of weights relative to it, and the number
    of seats at the rank. Weights relative to the highest remaining one neither overflow nor all vanish. Returns the
    paper's c in units of beta, and the number of players.
    """
    players, squares = 0, 0.0
    for rank in range(seats):
        seat = int(work[rank])
        if only < 0 or seat == only or agent_N[seat] != agent_N[only]:
            work[_PLAYER * seats + players] = float(seat)
            squares += performance_skill_variance(before[2 * agent_N[seat] + 1], constants) + 1.0
            players += 1
    c = sqrt(squares)
    highest, total, tied = 0.0, 0.0, 0.0
    for place in range(players - 1, -1, -1):
        seat = int(work[_PLAYER * seats + place])
        rating = before[2 * agent_N[seat]]
        if total == 0.0:
            highest, total = rating, 1.0
        elif rating > highest:
            highest, total = rating, 1.0 + total * exp(scaled_distance(highest, rating, constants) / c)
        else:
            total += exp(scaled_distance(rating, highest, constants) / c)
        tied += 1.0
        work[_HIGHEST * seats + place] = highest
        work[_SUM * seats + place] = total
        work[_TIED * seats + place] = tied
        if place and score_N[seat] != score_N[int(work[_PLAYER * seats + place - 1])]:
            tied = 0.0
    return c, players


def _add_player_update(
    place: Z, c: Z, players: Z, seats: Z, agent_N: Z, score_N: Z, before: Z, constants: Z, work: Z
) -> None:
    """Add the game's change of the player at a place to its agent: the paper's Omega and Delta."""
    seat = int(work[_PLAYER * seats + place])
    agent = agent_N[seat]
    omega, delta, rank = 0.0, 0.0, 0
    while rank < players and score_N[int(work[_PLAYER * seats + rank])] >= score_N[seat]:
        distance = scaled_distance(before[2 * agent], work[_HIGHEST * seats + rank], constants)
        share = exp(distance / c) / work[_SUM * seats + rank]
        omega -= share
        delta += share * (1.0 - share)
        tied = work[_TIED * seats + rank]
        rank += int(tied)
    omega += 1.0 / tied
    variance = performance_skill_variance(before[2 * agent + 1], constants)
    deviation = sqrt(variance)
    kept = 1.0 - delta * variance / (c * c) * deviation / c
    kept = kept if kept > constants[2] else constants[2]
    # Natural parameters, since their changes add up. The precision is in units of the one before.
    work[_PRECISION * seats + agent] += 1.0 / kept - 1.0
    work[_WEIGHTED * seats + agent] += omega * variance / c / kept
