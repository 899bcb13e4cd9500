"""TrueSkill for any number of seats, each seat a team of one.

Source: R. Herbrich, T. Minka and T. Graepel, "TrueSkill: A Bayesian Skill Rating System", NIPS 19 (2007). The factor
graph and the order of messages (schedule of figure 1) are those of the Python package ``trueskill`` 0.4.5, whose
results are reproduced in a tenth of its time, and in the tails too, where the package raises an error.
"""

from collections.abc import Mapping, Sequence
from math import erfc, exp, pi, sqrt
from statistics import NormalDist
from typing import ClassVar

from league.ratings.base import SYSTEMS, State
from league.ratings.skills import inherit_deviation, scaled_distance, seat_games, skill_variance
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

    A state is (mu, sigma). Seats are ranked by score, and neighbours in the ranking are compared: the better one
    performed better by the draw margin or, with equal scores, within it. Messages pass up and down the ranking until
    they converge. The defaults are the paper's beta 25/6, sigma 25/3 and tau 1/12, 48 times as large.

    Comparisons of equal scores form a chain too, so the place in it matters. Seats of equal score are ranked by their
    ratings before the match, then by their deviations; those with equal states share the changes of their places: the
    mean over all orders in which they could stand. So seating has no effect.

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

    def update(self, ratings: Mapping[str, State], scores: Sequence[tuple[str, float]]) -> dict[str, State]:
        """See ``RatingSystem.update``."""
        # From the best score to the worst; equal scores by rating, then deviation, higher first.
        keys = [(score, *ratings[agent]) for agent, score in scores]
        order = sorted(range(len(scores)), key=keys.__getitem__, reverse=True)
        reference = keys[order[0]][1]
        means = {agent: scaled_distance(state[0], reference, self.beta) for agent, state in ratings.items()}
        variances = {agent: skill_variance(state[1], self.beta, self.tau) for agent, state in ratings.items()}
        # The largest difference of performances that is a draw.
        margin = NormalDist().inv_cdf(0.5 + self.draw_probability / 2) * sqrt(2)
        precisions, weighted = dict.fromkeys(ratings, 0.0), dict.fromkeys(ratings, 0.0)
        agents = [agent for agent, _ in scores]
        for players, counted in seat_games(agents):
            inside = set(players)
            ranking = [seat for seat in order if seat in inside]
            chain = _Chain()
            for seat in ranking:
                chain.add(keys[seat][0], means[agents[seat]], variances[agents[seat]] + 1.0)
            chain.infer(margin)
            for seat in counted:
                equal = [place for place, other in enumerate(ranking) if keys[other] == keys[seat]]
                for place in equal:
                    precision, change = chain.performance(place)
                    # A performance has variance 1 around the skill, in units of beta squared.
                    share = (1.0 + precision) * len(equal)
                    precisions[agents[seat]] += precision / share
                    weighted[agents[seat]] += change / share
        after: dict[str, State] = {}
        for agent, state in ratings.items():
            precision = precisions[agent] + 1.0 / variances[agent]
            change = weighted[agent] - precisions[agent] * means[agent]
            after[agent] = state[0] + self.beta * change / precision, self.beta / sqrt(precision)
        return after


class _Chain:
    """The performances in one game, best first, and the messages between neighbours.

    Everything is in units of beta. A Gaussian is kept by its natural parameters: precision (1 / variance) and precision
    times mean; each list of messages has one pair a place.
    """

    def __init__(self) -> None:
        self._scores: list[float] = []
        self._prior: list[tuple[float, float]] = []
        self._from_better: list[tuple[float, float]] = []
        self._from_worse: list[tuple[float, float]] = []
        self._to_difference: list[tuple[float, float]] = []
        """Messages to the difference between the performances at a rank and the next."""

    def add(self, score: float, mean: float, variance: float) -> None:
        """Add the next player of the ranking, with the prior of its performance."""
        self._scores.append(score)
        self._prior.append((1.0 / variance, 1.0 / variance * mean))
        for messages in (self._from_better, self._from_worse, self._to_difference):
            messages.append((0.0, 0.0))

    def performance(self, place: int) -> tuple[float, float]:
        """What the game says about the performance at a place."""
        (better, better_weighted), (worse, worse_weighted) = self._from_better[place], self._from_worse[place]
        return better + worse, better_weighted + worse_weighted

    def infer(self, margin: float) -> None:
        """Pass messages by the package's schedule: down and up until no truncation changes much; then to both ends."""
        last = len(self._scores) - 2
        for _ in range(_MAX_ROUNDS):
            delta = 0.0
            for place in range(last):
                delta = max(delta, self._truncate(place, margin))
                self._send_to_worse(place)
            for place in range(last, 0, -1):
                delta = max(delta, self._truncate(place, margin))
                self._send_to_better(place)
            if last == 0:
                self._truncate(0, margin)
            if delta <= _MIN_DELTA:
                break
        self._send_to_better(0)
        self._send_to_worse(last)

    def _outside(self, place: int) -> tuple[tuple[float, float], tuple[float, float]]:
        """Performances at a place and the next, without what their comparison says; precision and weighted mean."""
        (prior, prior_weighted), (message, weighted) = self._prior[place], self._from_better[place]
        (next_prior, next_weighted), (worse, worse_weighted) = self._prior[place + 1], self._from_worse[place + 1]
        return (prior + message, prior_weighted + weighted), (next_prior + worse, next_weighted + worse_weighted)

    def _truncate(self, place: int, margin: float) -> float:
        """Update the message to a place's difference to the next (paper, table 1); its change."""
        (better, better_weighted), (worse, worse_weighted) = self._outside(place)
        mean = better_weighted / better - worse_weighted / worse
        root = 1.0 / sqrt(1.0 / better + 1.0 / worse)
        is_draw = self._scores[place] == self._scores[place + 1]
        v, w = (_draw_correction if is_draw else _win_correction)(mean * root, margin * root)
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
