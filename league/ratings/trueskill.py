"""TrueSkill for any number of seats, each agent a team of one.

Source: R. Herbrich, T. Minka and T. Graepel, "TrueSkill: A Bayesian Skill Rating System", NIPS 19 (2007). Its factor
graph and the order of messages (schedule of figure 1) are those of the Python package ``trueskill`` 0.4.5, whose
results are reproduced, in points of Elo's scale instead of the paper's.

Inside ``update`` everything is in units of beta and relative to the first seat's rating. A Gaussian is kept by its
natural parameters: precision (1 / variance) and precision times mean. One file: the messages make sense only together.
"""

from math import erfc, exp, pi, sqrt
from statistics import NormalDist
from typing import Any, ClassVar

from league.ratings.base import (
    SYSTEMS,
    Inheritance,
    State,
    Z,
    has_other_seat,
    performance_skill_variance,
    scaled_distance,
)
from schemas.errors import ConfigError
from schemas.numbers import NonNegativeFloat, PositiveFloat, PositiveInt
from schemas.plugins import PluginStruct

_PACKAGE_BETA = 25 / 6
_ROOT_HALF = sqrt(0.5)
_ROOT_TWO_PI = sqrt(2 * pi)

# From here on the ratio of density and tail is computed by its continued fraction: a quotient of two tiny numbers
# less almost itself would keep few digits. This many levels fix a double's last digit from 5 on.
_TAIL = 5.0
_TAIL_LEVELS = 26
# Bounds that keep any finite states finite, far outside normal use. A result counts as at most so many standard
# deviations against expectation; a draw's margin is at least so many, which also defines a draw where draws have
# probability 0.
_MOST_SURPRISE = 100.0
_LEAST_MARGIN = 1e-3

# Layout of the scratch space, in units of the number of seats. It begins with all seats by rank.
# By rank in the game that is being inferred:
_PLAYER = 1
_PRIOR = 2
_FROM_BETTER = 4
_FROM_WORSE = 6
_TO_DIFFERENCE = 8
# By agent:
_CHANGE = 10
_FIELDS = 12


@SYSTEMS.register("trueskill")
class TrueSkill(PluginStruct, frozen=True):
    """TrueSkill, every seat a team of one.

    A state is (mu, sigma). Seats are ranked by score, and neighbours in the ranking are compared: the better one
    performed better by the draw margin or, with equal scores, within it. With two seats this has the closed form of a
    two-player game; with more, messages pass up and down the ranking until they converge.

    Comparisons of equal scores form a chain too, so the place in it matters. Seats of equal score are ranked by their
    ratings before the match, then by their deviations; those with equal states share the changes of their places: the
    mean over all orders in which they could stand. So seating has no effect.

    An agent in several seats: each of its seats is rated in the game of that seat and all seats of other agents. The
    agent takes the sum of these games' changes of its natural parameters, and ``tau`` is added once. Its seats thus
    count as independent results: six seats of one bot against one hero are six results against that hero for the bot,
    and a chain of six opponents for the hero. As they depend on each other, the deviations are too narrow.

    The fields are its settings, ``[ratings.system.settings]``; in rating points unless another unit is named. The
    defaults are the paper's beta 25/6, sigma 25/3 and tau 1/12, 48 times as large.
    """

    name: ClassVar[str] = "trueskill"
    work_per_seat: ClassVar[int] = _FIELDS

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
    min_delta: PositiveFloat = 1e-4
    """Messages have converged when none changes by more, in the package's unit, which is for a beta of 25/6."""
    iterations: PositiveInt = 10
    """Largest number of rounds of messages."""

    def __post_init__(self) -> None:
        # Written so that the half that the margin is computed from does not round to 1 either.
        if not (self.draw_probability >= 0 and 0.5 + self.draw_probability / 2 < 1):
            raise ConfigError(f"draw_probability: {self.draw_probability}; expected at least 0 and less than 1")

    @property
    def inheritance(self) -> tuple[Inheritance, ...]:
        """See ``RatingSystem.inheritance``: the same rating, with a larger deviation."""
        return Inheritance(), Inheritance(self.inherited_factor, self.sigma)

    @property
    def constants(self) -> tuple[float, ...]:
        """See ``RatingSystem.constants``: beta; in units of it tau, the draw margin and the least change; rounds."""
        margin = NormalDist().inv_cdf(0.5 + self.draw_probability / 2) * sqrt(2)
        settled = self.min_delta * _PACKAGE_BETA
        return self.beta, self.tau / self.beta, margin, settled, float(self.iterations)

    @property
    def update(self) -> Any:
        """See ``RatingSystem.update``."""
        return update

    def start(self, rating: float) -> State:
        """See ``RatingSystem.start``."""
        return rating, self.sigma


def update(seats: Z, agents: Z, agent_N: Z, score_N: Z, before: Z, after: Z, games_A: Z, constants: Z, work: Z) -> None:
    """See ``RatingSystem.update``."""
    _rank(seats, agent_N, score_N, before, work)
    for agent in range(agents):
        work[_CHANGE * seats + agent] = 0.0
        work[(_CHANGE + 1) * seats + agent] = 0.0
    # The game of all seats, for agents in one seat; then that of each seat of the others.
    for only in range(-1, seats):
        if only < 0 or has_other_seat(only, seats, agents, agent_N):
            players = _infer(only, seats, agent_N, score_N, before, constants, work)
            for place in range(players):
                seat = int(work[_PLAYER * seats + place])
                if seat == only or (only < 0 and not has_other_seat(seat, seats, agents, agent_N)):
                    _add_skill_change(place, players, seats, agent_N, score_N, before, work)
    reference = before[2 * agent_N[int(work[0])]]
    for agent in range(agents):
        precision = work[_CHANGE * seats + agent]
        weighted = work[(_CHANGE + 1) * seats + agent] - precision * scaled_distance(
            before[2 * agent], reference, constants
        )
        precision += 1.0 / performance_skill_variance(before[2 * agent + 1], constants)
        after[2 * agent] = before[2 * agent] + constants[0] * weighted / precision
        after[2 * agent + 1] = constants[0] / sqrt(precision)


def _rank(seats: Z, agent_N: Z, score_N: Z, before: Z, work: Z) -> None:
    """Order all seats from the best score to the worst; equal scores by rating, then deviation, higher first."""
    for seat in range(seats):
        place = seat
        while place and _is_before(seat, int(work[place - 1]), agent_N, score_N, before):
            work[place] = work[place - 1]
            place -= 1
        work[place] = float(seat)


def _is_before(seat: Z, other: Z, agent_N: Z, score_N: Z, before: Z) -> Z:
    a, b = 2 * agent_N[seat], 2 * agent_N[other]
    if score_N[seat] != score_N[other]:
        return score_N[seat] > score_N[other]
    if before[a] != before[b]:
        return before[a] > before[b]
    return before[a + 1] > before[b + 1]


def _infer(only: Z, seats: Z, agent_N: Z, score_N: Z, before: Z, constants: Z, work: Z) -> Z:
    """Pass messages in the game of one seat and all seats of other agents, or of all seats where ``only`` is -1.

    Returns the number of players; their messages are in the scratch space.
    """
    players = 0
    reference = before[2 * agent_N[int(work[0])]]
    for rank in range(seats):
        seat = int(work[rank])
        if only < 0 or seat == only or agent_N[seat] != agent_N[only]:
            agent = agent_N[seat]
            precision = 1.0 / (performance_skill_variance(before[2 * agent + 1], constants) + 1.0)
            mean = scaled_distance(before[2 * agent], reference, constants)
            work[_PLAYER * seats + players] = float(seat)
            work[_PRIOR * seats + players] = precision
            work[(_PRIOR + 1) * seats + players] = precision * mean
            for field in range(_FROM_BETTER, _CHANGE):
                work[field * seats + players] = 0.0
            players += 1
    _pass_messages(players, seats, score_N, constants, work)
    return players


def _pass_messages(players: Z, seats: Z, score_N: Z, constants: Z, work: Z) -> None:
    """The package's schedule: down the ranking and up again until no truncation changes much; then both ends."""
    last = players - 2
    for _ in range(int(constants[4])):
        delta = 0.0
        for place in range(last):
            change = _truncate(place, seats, score_N, constants, work)
            delta = change if change > delta else delta
            _send_to_worse(place, seats, work)
        for place in range(last, 0, -1):
            change = _truncate(place, seats, score_N, constants, work)
            delta = change if change > delta else delta
            _send_to_better(place, seats, work)
        if last == 0:
            _truncate(0, seats, score_N, constants, work)
        if delta <= constants[3]:
            break
    _send_to_better(0, seats, work)
    _send_to_worse(last, seats, work)


def _truncate(place: Z, seats: Z, score_N: Z, constants: Z, work: Z) -> Z:
    """Update the message to a place's difference of performances to the next (paper, table 1); returns its change."""
    better = work[_PRIOR * seats + place] + work[_FROM_BETTER * seats + place]
    worse = work[_PRIOR * seats + place + 1] + work[_FROM_WORSE * seats + place + 1]
    mean = (work[(_PRIOR + 1) * seats + place] + work[(_FROM_BETTER + 1) * seats + place]) / better
    mean -= (work[(_PRIOR + 1) * seats + place + 1] + work[(_FROM_WORSE + 1) * seats + place + 1]) / worse
    root = 1.0 / sqrt(1.0 / better + 1.0 / worse)
    seat, other = int(work[_PLAYER * seats + place]), int(work[_PLAYER * seats + place + 1])
    if score_N[seat] == score_N[other]:
        v, w = _draw_correction(mean * root, constants[2] * root)
    else:
        v, w = _win_correction(mean * root, constants[2] * root)
    precision = root * root * w / (1.0 - w)
    weighted = (root * root * mean * w + root * v) / (1.0 - w)
    at, weighted_at = _TO_DIFFERENCE * seats + place, (_TO_DIFFERENCE + 1) * seats + place
    change, weighted_change = sqrt(abs(precision - work[at])), abs(weighted - work[weighted_at])
    work[at], work[weighted_at] = precision, weighted
    return change if change > weighted_change else weighted_change


def _send_to_worse(place: Z, seats: Z, work: Z) -> None:
    """Send a comparison's message to the worse player: its performance is the better one's minus the difference."""
    at, at_weighted = _TO_DIFFERENCE * seats + place, (_TO_DIFFERENCE + 1) * seats + place
    better = work[_PRIOR * seats + place] + work[_FROM_BETTER * seats + place]
    mean = (work[(_PRIOR + 1) * seats + place] + work[(_FROM_BETTER + 1) * seats + place]) / better
    share = 1.0 + work[at] / better
    work[_FROM_BETTER * seats + place + 1] = work[at] / share
    work[(_FROM_BETTER + 1) * seats + place + 1] = (work[at] * mean - work[at_weighted]) / share


def _send_to_better(place: Z, seats: Z, work: Z) -> None:
    """Send a comparison's message to the better player: its performance is the worse one's plus the difference."""
    at, at_weighted = _TO_DIFFERENCE * seats + place, (_TO_DIFFERENCE + 1) * seats + place
    worse = work[_PRIOR * seats + place + 1] + work[_FROM_WORSE * seats + place + 1]
    mean = (work[(_PRIOR + 1) * seats + place + 1] + work[(_FROM_WORSE + 1) * seats + place + 1]) / worse
    share = 1.0 + work[at] / worse
    work[_FROM_WORSE * seats + place] = work[at] / share
    work[(_FROM_WORSE + 1) * seats + place] = (work[at] * mean + work[at_weighted]) / share


def _add_skill_change(place: Z, players: Z, seats: Z, agent_N: Z, score_N: Z, before: Z, work: Z) -> None:
    """Add the game's message about the skill at a place to the change of its agent."""
    first, stop = place, place + 1
    while first > 0 and _has_equal_state(first - 1, place, seats, agent_N, score_N, before, work):
        first -= 1
    while stop < players and _has_equal_state(stop, place, seats, agent_N, score_N, before, work):
        stop += 1
    agent = agent_N[int(work[_PLAYER * seats + place])]
    for one in range(first, stop):
        precision = work[_FROM_BETTER * seats + one] + work[_FROM_WORSE * seats + one]
        weighted = work[(_FROM_BETTER + 1) * seats + one] + work[(_FROM_WORSE + 1) * seats + one]
        # A performance has variance 1 around the skill, in units of beta squared.
        share = (1.0 + precision) * (stop - first)
        work[_CHANGE * seats + agent] += precision / share
        work[(_CHANGE + 1) * seats + agent] += weighted / share


def _has_equal_state(place: Z, other: Z, seats: Z, agent_N: Z, score_N: Z, before: Z, work: Z) -> Z:
    seat, another = int(work[_PLAYER * seats + place]), int(work[_PLAYER * seats + other])
    a, b = 2 * agent_N[seat], 2 * agent_N[another]
    return score_N[seat] == score_N[another] and before[a] == before[b] and before[a + 1] == before[b + 1]


def _win_correction(difference: Z, margin: Z) -> Z:
    """V and W of the paper for a win: shift and shrinkage of a standard normal cut off below ``margin``."""
    t = margin - difference
    t = t if t < _MOST_SURPRISE else _MOST_SURPRISE
    if t < _TAIL:
        v = exp(-0.5 * t * t) / _ROOT_TWO_PI / (0.5 * erfc(t * _ROOT_HALF))
        return v, v * (v - t)
    excess = _hazard_excess(t)
    return t + excess, (t + excess) * excess


def _draw_correction(difference: Z, margin: Z) -> Z:
    """V and W of the paper for a draw: of a standard normal cut off beyond ``margin`` on both sides."""
    h = margin if margin > _LEAST_MARGIN else _LEAST_MARGIN
    x = abs(difference)
    x = x if x < _MOST_SURPRISE + h else _MOST_SURPRISE + h
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


def _hazard_excess(t: Z) -> Z:
    """Excess over ``t`` of the normal's density divided by its upper tail, from 5 on: Laplace's continued fraction."""
    x = t
    for level in range(_TAIL_LEVELS, 1, -1):
        x = t + level / x
    return 1.0 / x
