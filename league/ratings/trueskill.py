"""TrueSkill for any number of sides, each a team or a single seat.

Source: R. Herbrich, T. Minka and T. Graepel, "TrueSkill: A Bayesian Skill Rating System", NIPS 19 (2007). The factor
graph and the order of messages (schedule of figure 1) are those of the Python package ``trueskill`` 0.4.5, whose
results are reproduced in a tenth of its time, and in the tails too, where the package raises an error.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import erfc, exp, fsum, pi, sqrt
from statistics import NormalDist
from typing import ClassVar, NamedTuple

from league.ratings.base import SYSTEMS, Side, State
from league.ratings.skills import inherit_deviation, relative_skills, side_games, skill_variance
from schemas.errors import ConfigError
from schemas.numbers import NonNegativeFloat, PositiveFloat
from schemas.plugins import PluginStruct

_MIN_DELTA = 1e-4 * 25 / 6
"""Messages have converged when none changes by more: the package's default, which is for a beta of 25/6."""
_MAX_ROUNDS = 10
_ROOT_HALF = sqrt(0.5)
_ROOT_TWO_PI = sqrt(2 * pi)
# From here on the ratio of density and tail is computed by its continued fraction: a quotient of two tiny numbers
# less almost itself would keep few digits. This many levels fix a double's last digit from 5 on.
_TAIL = 5.0
_TAIL_LEVELS = 26
# Bounds that keep any finite states finite, far outside normal use. A result counts as at most so many standard
# deviations against expectation; a draw's margin is at least so many, which also defines a draw where draws have
# probability 0.
_MAX_SURPRISE = 100.0
_MIN_MARGIN = 1e-3


@SYSTEMS.register("trueskill")
class TrueSkill(PluginStruct, frozen=True):
    """TrueSkill; settings in rating points unless another unit is named.

    A state is (mu, sigma). A side performs as the sum of its seats. Sides are ranked by score, and neighbours in the
    ranking are compared: the better one performed better by the draw margin or, with equal scores, within it. Messages
    pass up and down the ranking until they converge. The defaults are the paper's beta 25/6, sigma 25/3 and tau 1/12,
    48 times as large.

    Comparisons of equal scores form a chain too, so the place in it matters. Sides of equal score are ranked by their
    skills before the match, then by their deviations; equal ones share the changes of their places: the mean over all
    orders in which they could stand. So seating has no effect.

    An agent in several seats takes the sum of its seats' changes of its natural parameters (precision, and precision
    times mean); ``tau`` is added once. Its seats thus count as independent results, although they depend on each other.
    """

    name: ClassVar[str] = "trueskill"

    beta: PositiveFloat = 200.0
    """Standard deviation of an agent's performance around its skill; this much more skill wins 76 %, as in Elo."""
    sigma: PositiveFloat = 400.0
    """Standard deviation of a new agent's rating."""
    tau: NonNegativeFloat = 4.0
    """Standard deviation of the change of skill from one match to the next."""
    draw_probability: float = 0.1
    """Probability of a draw between equal agents."""
    inherited_factor: PositiveFloat = 2.0
    """A new version's sigma, in units of its predecessor's; at most ``sigma``. Unstable Baselines doubles it."""

    def __post_init__(self) -> None:
        # Written so that the half that the margin is computed from does not round to 1 either.
        if not (self.draw_probability >= 0 and 0.5 + self.draw_probability / 2 < 1):
            raise ConfigError(f"draw_probability: {self.draw_probability}; expected at least 0 and less than 1")

    def start(self, rating: float) -> State:
        """The rating, and ``sigma``."""
        return rating, self.sigma

    def inherit(self, state: State) -> State:
        """The same rating, with a larger deviation."""
        return inherit_deviation(state, self.inherited_factor, self.sigma)

    def update(self, ratings: Mapping[str, State], sides: Sequence[Side]) -> dict[str, State]:
        """Rate one match by messages along the chain of sides, ordered by score."""
        means = relative_skills(ratings, sides, self.beta)
        variances = {agent: skill_variance(state[1], self.beta, self.tau) for agent, state in ratings.items()}
        # Natural parameters, since their changes add up.
        precisions, weighted = dict.fromkeys(ratings, 0.0), dict.fromkeys(ratings, 0.0)
        margin = NormalDist().inv_cdf(0.5 + self.draw_probability / 2)
        for game in side_games(sides):
            performances = {
                side: _Performance(
                    sides[side].score,
                    fsum(means[agent] for agent in agents),
                    fsum(variances[agent] for agent in agents) + len(agents),
                    len(agents),
                )
                for side, agents in game.sides.items()
            }
            # From the best score to the worst; equal scores by skill, then deviation, higher first.
            ranking = sorted(performances.values(), reverse=True)
            chain = _Chain(ranking, margin)
            for side, agent in game.counted:
                own = performances[side]
                equal = [place for place, other in enumerate(ranking) if other == own]
                for place in equal:
                    precision, change = chain.performance(place)
                    # The rest of the side, and the seat's own performance with variance 1 around its skill.
                    share = (1.0 + precision * (own.variance - variances[agent])) * len(equal)
                    precisions[agent] += precision / share
                    weighted[agent] += (change - precision * (own.mean - means[agent])) / share
        after: dict[str, State] = {}
        for agent, state in ratings.items():
            precision = precisions[agent] + 1.0 / variances[agent]
            change = weighted[agent] - precisions[agent] * means[agent]
            after[agent] = state[0] + self.beta * change / precision, self.beta / sqrt(precision)
        return after


class _Performance(NamedTuple):
    """The prior of a side's performance, in units of beta."""

    score: float
    mean: float
    variance: float
    seats: int


class _Chain:
    """The performances in one game, best first, and the messages between neighbours.

    Everything is in units of beta. A Gaussian is kept by its natural parameters: precision (1 / variance) and precision
    times mean; each list of messages has one pair a place.
    """

    def __init__(self, ranking: Sequence[_Performance], margin: float) -> None:
        """Pass the messages; ``margin`` is the draw margin of one seat."""
        self._scores = [each.score for each in ranking]
        # The largest difference that is a draw grows with the number of seats that perform.
        self._margins = [margin * sqrt(better.seats + worse.seats) for better, worse in pairwise(ranking)]
        self._prior = [(1.0 / each.variance, 1.0 / each.variance * each.mean) for each in ranking]
        self._from_better = [(0.0, 0.0)] * len(ranking)
        self._from_worse = [(0.0, 0.0)] * len(ranking)
        self._to_difference = [(0.0, 0.0)] * len(ranking)
        """Messages to the difference between the performances at a rank and the next."""
        self._infer()

    def performance(self, place: int) -> tuple[float, float]:
        """Message of the game to the performance at a place."""
        (better, better_weighted), (worse, worse_weighted) = self._from_better[place], self._from_worse[place]
        return better + worse, better_weighted + worse_weighted

    def _infer(self) -> None:
        """Pass messages by the package's schedule: down and up until no truncation changes much; then to both ends."""
        last = len(self._scores) - 2
        for _ in range(_MAX_ROUNDS):
            delta = 0.0
            for place in range(last):
                delta = max(delta, self._truncate(place))
                self._send_to_worse(place)
            for place in range(last, 0, -1):
                delta = max(delta, self._truncate(place))
                self._send_to_better(place)
            if last == 0:
                self._truncate(0)
            if delta <= _MIN_DELTA:
                break
        self._send_to_better(0)
        self._send_to_worse(last)

    def _outside(self, place: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """Performances at a place and the next, without what their comparison says; precision and weighted mean."""
        (prior, prior_weighted), (message, weighted) = self._prior[place], self._from_better[place]
        (next_prior, next_weighted), (worse, worse_weighted) = self._prior[place + 1], self._from_worse[place + 1]
        return (prior + message, prior_weighted + weighted), (next_prior + worse, next_weighted + worse_weighted)

    def _truncate(self, place: int) -> float:
        """Update the message to a place's difference to the next (paper, table 1); its change."""
        (better, better_weighted), (worse, worse_weighted) = self._outside(place)
        mean = better_weighted / better - worse_weighted / worse
        root = 1.0 / sqrt(1.0 / better + 1.0 / worse)
        is_draw = self._scores[place] == self._scores[place + 1]
        v, w = (_draw_correction if is_draw else _win_correction)(mean * root, self._margins[place] * root)
        precision = root * root * w / (1.0 - w)
        weighted = (root * root * mean * w + root * v) / (1.0 - w)
        old, old_weighted = self._to_difference[place]
        self._to_difference[place] = precision, weighted
        return max(sqrt(abs(precision - old)), abs(weighted - old_weighted))

    def _send_to_worse(self, place: int) -> None:
        """Send a comparison's message to the worse player: its performance is the better one's minus the difference."""
        (better, weighted), _ = self._outside(place)
        difference, difference_weighted = self._to_difference[place]
        share = 1.0 + difference / better
        message = difference / share, (difference * (weighted / better) - difference_weighted) / share
        self._from_better[place + 1] = message

    def _send_to_better(self, place: int) -> None:
        """Send a comparison's message to the better player: its performance is the worse one's plus the difference."""
        _, (worse, weighted) = self._outside(place)
        difference, difference_weighted = self._to_difference[place]
        share = 1.0 + difference / worse
        message = difference / share, (difference * (weighted / worse) + difference_weighted) / share
        self._from_worse[place] = message


def _win_correction(difference: float, margin: float) -> tuple[float, float]:
    """V and W of the paper for a win: shift and shrinkage of a standard normal cut off below ``margin``."""
    t = min(margin - difference, _MAX_SURPRISE)
    if t < _TAIL:
        v = exp(-0.5 * t * t) / _ROOT_TWO_PI / (0.5 * erfc(t * _ROOT_HALF))
        return v, v * (v - t)
    excess = _hazard_excess(t)
    return t + excess, (t + excess) * excess


def _draw_correction(difference: float, margin: float) -> tuple[float, float]:
    """V and W of the paper for a draw: of a standard normal cut off beyond ``margin`` on both sides."""
    h = max(margin, _MIN_MARGIN)
    x = min(abs(difference), _MAX_SURPRISE + h)
    near, far = x - h, x + h
    if near < _TAIL:
        at_near = exp(-0.5 * near * near) / _ROOT_TWO_PI
        mass = 0.5 * (erfc(near * _ROOT_HALF) - erfc(far * _ROOT_HALF))
        at_far = at_near * exp(-2.0 * h * x)
    else:
        # In units of the density at the nearer edge.
        at_near = 1.0
        at_far = exp(-2.0 * h * x)
        mass = 1.0 / (near + _hazard_excess(near)) - at_far / (far + _hazard_excess(far))
    v = (at_far - at_near) / mass
    w = v * v + (far * at_far - near * at_near) / mass
    return (v if difference >= 0.0 else -v), w


def _hazard_excess(t: float) -> float:
    """Excess over ``t`` of the normal's density divided by its upper tail, from 5 on: Laplace's continued fraction."""
    x = t
    for level in range(_TAIL_LEVELS, 1, -1):
        x = t + level / x
    return 1.0 / x
