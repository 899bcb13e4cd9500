"""Elo for any number of seats: every pair of seats is a two-player game.

Source: the league specification's multi-player Elo ("pairwise decomposition"), which has k = 32 and divides each
pair's step by the number of opponents, 6 in Diplomacy. Against unstable ratings it advises a high k at first;
``schedule`` configures that.
"""

import math
from typing import Any, ClassVar

from league.ratings.base import SYSTEMS, Inheritance, State, Z
from schemas.errors import ConfigError
from schemas.numbers import PositiveFloat
from schemas.plugins import PluginStruct

_BASE = 10.0
_SCALE = 400.0
# 10 ** 308 is the largest power that a float holds; at such distances 0 or 1 is expected already.
_MAX_EXPONENT = 300.0


@SYSTEMS.register("elo")
class Elo(PluginStruct, frozen=True):
    """Pairwise Elo; the fields are its settings.

    For seats A and B, ``expected = 1 / (1 + 10 ** ((R_B - R_A) / 400))`` with the ratings before the match,
    ``actual`` is 1, 0.5 or 0 by score, and A gains what B loses: ``k / (seats - 1) * (actual - expected)``.
    An agent in several seats gains the sum over its seats; pairs of its own seats are skipped.

    Under a schedule each side of a pair moves by its own k, by its agent's rated matches before this one: a newcomer's
    result moves the newcomer, not opponents with a known rating. The gain of one then differs from the loss of the
    other, so the mean rating of a league drifts: up where newcomers rise, down where they fall. A match counts as one
    for the schedule, however many seats the agent holds, and each of those seats moves it by the full k.
    """

    name: ClassVar[str] = "elo"
    work_per_seat: ClassVar[int] = 1
    inheritance: ClassVar[tuple[Inheritance, ...]] = (Inheritance(),)

    k: PositiveFloat = 32.0
    """Rating points that a seat can win or lose in one match."""
    schedule: tuple[tuple[int, PositiveFloat], ...] = ()
    """``[[30, 40.0], [100, 24.0]]``: k is 40 in an agent's first 30 rated matches, 24 up to its 100th, then ``k``."""

    def __post_init__(self) -> None:
        before = 0
        for games, k in self.schedule:
            if games <= before:
                raise ConfigError(f"schedule: [{games}, {k}] after match {before}; expected a later match")
            before = games

    @property
    def constants(self) -> tuple[float, ...]:
        """See ``RatingSystem.constants``."""
        return (self.k, _BASE, *(number for stage in self.schedule for number in stage))

    @property
    def update(self) -> Any:
        """See ``RatingSystem.update``."""
        return update

    def start(self, rating: float) -> State:
        """See ``RatingSystem.start``: the rating alone."""
        return (rating,)


def chance_deviation(k: float, games: int) -> float:
    """Standard deviation that chance gives a rating after so many matches against equals that stand still.

    The update linearised at its equilibrium is an autoregression: steps of variance k²/4, pulled back by k·ln10/1600 of
    the distance. Its stationary variance is k·200/ln10, approached as 1 - exp(-games·k·ln10/800).
    """
    return math.sqrt(200.0 * k / math.log(10.0) * -math.expm1(-games * k * math.log(10.0) / 800.0))


def update(seats: Z, agents: Z, agent_N: Z, score_N: Z, before: Z, after: Z, games_A: Z, constants: Z, work: Z) -> None:
    """See ``RatingSystem.update``; ``work`` holds the seats' steps."""
    for i in range(seats):
        work[i] = step_size(games_A[agent_N[i]], constants) / (seats - 1)
    for i in range(seats):
        a = agent_N[i]
        for j in range(i + 1, seats):
            b = agent_N[j]
            if a != b:
                # Without branches, which the processor would mispredict half of the time.
                actual = 0.5 + 0.5 * ((score_N[i] > score_N[j]) - (score_N[i] < score_N[j]))
                surplus = actual - expected_score(before[a], before[b], constants[1])
                after[a] += work[i] * surplus
                after[b] -= work[j] * surplus


def expected_share(gap: float, scale: float = _SCALE, max_exponent: float = 30.0) -> float:
    """Elo's expected share of the points for a rating ``gap`` points higher: ``1 / (1 + 10 ** (-gap / scale))``.

    Beyond odds of ``10 ** max_exponent`` to one the outcome is practically certain; the bound prevents overflow.
    """
    odds: float = 10.0 ** max(min(-gap / scale, max_exponent), -max_exponent)
    return 1.0 / (1.0 + odds)


def step_size(games: Z, constants: Z) -> Z:
    """The k of an agent after this many rated matches; ``constants`` are k, a base, then pairs of matches and k."""
    for place in range(2, len(constants), 2):
        if games < constants[place]:
            return constants[place + 1]
    return constants[0]


def expected_score(rating: Z, opponent: Z, base: Z) -> Z:
    """Expected share of points of a rating against another: 0.76 for 200 more, where the base is 10."""
    exponent = (opponent - rating) / _SCALE
    exponent = exponent if exponent < _MAX_EXPONENT else _MAX_EXPONENT
    exponent = exponent if exponent > -_MAX_EXPONENT else -_MAX_EXPONENT
    return 1.0 / (1.0 + base**exponent)
