"""Glicko-2: a rating, its deviation (RD), and the volatility of the strength itself.

Source: Glickman, *Example of the Glicko-2 system* (revision of 2013), whose steps are named below. Its points are
Elo's: 400 of them are odds of ten to one between well-known agents.

A match is one rating period, in which every pair of seats of different agents is a two-player game. That has two costs.
The seats of one match depend on each other, and six results against the same hero in one game are not six games: with
more than two seats the deviation is too narrow. And the paper assumes periods of ten to fifteen games, for which 0.06
is a usual volatility: with one game a period, the deviation of agents that never change stays wider than necessary
(about 65 points between two seats). ``benchmarks/bench_coverage.py`` measures both effects.

An agent in several seats plays the games of all of them in that one period. An agent's state does not change while it
does not play: its deviation grows, by its volatility, once for each match it is in.

Three bounds not in the paper keep states finite under any history: a deviation never exceeds that of a new agent
(Glicko-1 has that rule), the volatility is searched for below ``max_volatility`` only (an upset against odds of a
thousand to one would otherwise be explained by a strength that jumps by thousands of points a match), and agents count
as no further apart than odds of e²⁵, 4,343 points.
"""

from math import exp, log, pi, sqrt
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from league.ratings.base import SYSTEMS, Inheritance, State, Z
from schemas.errors import ConfigError
from schemas.plugins import PluginStruct

_SCALE = 400.0 / log(10.0)
"""Points per unit of the paper's internal scale, its 173.7178."""
_MAX_LOG_ODDS = 25.0
_MOST_STEPS = 100
_LEAST_VARIANCE = 1e-12
_THREE_BY_PI_SQUARED = 3.0 / (pi * pi)


@SYSTEMS.register("glicko2")
class Glicko2(PluginStruct, frozen=True):
    """Glicko-2 with every match a rating period; a state is rating, deviation and volatility.

    The fields are its settings, ``[ratings.system.settings]``.
    """

    name: ClassVar[str] = "glicko2"
    work_per_seat: ClassVar[int] = 1

    tau: Annotated[float, Meta(ge=0.01, le=10)] = 0.5
    """Constrains changes of the volatility; 0.3 to 1.2 is usual, larger values allow faster change."""
    rd: Annotated[float, Meta(ge=0.01, le=100_000)] = 350.0
    """Deviation of a new agent, in rating points; the maximum for all agents."""
    volatility: Annotated[float, Meta(ge=1e-5)] = 0.06
    """Volatility of a new agent: standard deviation of its strength's change between two matches, in 173.7 points."""
    max_volatility: Annotated[float, Meta(ge=1e-5, le=100)] = 0.3
    """Upper bound of the volatility."""
    convergence: Annotated[float, Meta(ge=1e-14, le=1)] = 1e-6
    """Precision of log(volatility²)."""
    inherited_factor: Annotated[float, Meta(ge=1e-3, le=1e6)] = 2.0
    """A new version's deviation, in units of its predecessor's; at most ``rd``."""

    def __post_init__(self) -> None:
        if self.volatility > self.max_volatility:
            raise ConfigError(f"volatility: {self.volatility}; expected max_volatility, {self.max_volatility}, or less")

    @property
    def inheritance(self) -> tuple[Inheritance, ...]:
        """See ``RatingSystem.inheritance``: a new version is assumed to be near the preceding one."""
        return (Inheritance(), Inheritance(self.inherited_factor, self.rd), Inheritance())

    @property
    def constants(self) -> tuple[float, ...]:
        """See ``RatingSystem.constants``."""
        return (self.tau, self.rd / _SCALE, self.max_volatility**2, self.convergence)

    @property
    def update(self) -> Any:
        """See ``RatingSystem.update``."""
        return update

    def start(self, rating: float) -> State:
        """See ``RatingSystem.start``."""
        return (rating, self.rd, self.volatility)


def update(seats: Z, agents: Z, agent_N: Z, score_N: Z, before: Z, after: Z, games_A: Z, constants: Z, work: Z) -> None:
    """See ``RatingSystem.update``; ``work`` holds g(φ) of every agent."""
    most_variance = constants[1] * constants[1]
    for a in range(agents):
        variance = _bounded_square(before[3 * a + 1] / _SCALE, most_variance)
        work[a] = 1.0 / sqrt(1.0 + _THREE_BY_PI_SQUARED * variance)
    for a in range(agents):
        # Steps 3 and 4: information is 1/v, surplus is Δ/v.
        information, surplus = 0.0, 0.0
        for i in range(seats):
            if agent_N[i] == a:
                for j in range(seats):
                    b = agent_N[j]
                    if b != a:
                        g = work[b]
                        actual = 1.0 if score_N[i] > score_N[j] else 0.5 if score_N[i] == score_N[j] else 0.0
                        expected = _expected_score(g * (before[3 * a] - before[3 * b]) / _SCALE)
                        information += g * g * expected * (1.0 - expected)
                        surplus += g * (actual - expected)
        variance = _bounded_square(before[3 * a + 1] / _SCALE, most_variance)
        volatility = _bounded_square(before[3 * a + 2], constants[2])
        volatility = _updated_variance(volatility, variance, 1.0 / information, surplus / information, constants)
        # Steps 6 to 8.
        variance = 1.0 / (1.0 / (variance + volatility) + information)
        variance = variance if variance < most_variance else most_variance
        after[3 * a] = before[3 * a] + _SCALE * variance * surplus
        after[3 * a + 1] = _SCALE * sqrt(variance)
        after[3 * a + 2] = sqrt(volatility)


def _bounded_square(x: Z, most: Z) -> Z:
    square = x * x
    square = square if square < most else most
    return square if square > _LEAST_VARIANCE else _LEAST_VARIANCE


def _expected_score(log_odds: Z) -> Z:
    """Expected share of points at these log-odds."""
    log_odds = log_odds if log_odds < _MAX_LOG_ODDS else _MAX_LOG_ODDS
    log_odds = log_odds if log_odds > -_MAX_LOG_ODDS else -_MAX_LOG_ODDS
    return 1.0 / (1.0 + exp(-log_odds))


def _updated_variance(before: Z, variance: Z, v: Z, delta: Z, constants: Z) -> Z:
    """The new volatility's square, from the previous one, φ², v and Δ, by the Illinois method."""
    tau, most = constants[0], constants[2]
    a, surprise = log(before), delta * delta - variance - v
    if surprise > 0.0:
        b, last = log(surprise), log(most)
        b = b if b < last else last
        if b > a and _volatility_equation(b, a, surprise, variance + v, tau) > 0.0:
            return most
    else:
        # At most tau / 2 steps: the results' part of the slope is above -1/2.
        b = a - tau
        while _volatility_equation(b, a, surprise, variance + v, tau) < 0.0:
            b -= tau
    x = a
    value_x = _volatility_equation(a, a, surprise, variance + v, tau)
    value_b = _volatility_equation(b, a, surprise, variance + v, tau)
    for _ in range(_MOST_STEPS):
        if abs(b - x) <= constants[3] or value_x == value_b:
            break
        c = x + (x - b) * value_x / (value_b - value_x)
        value_c = _volatility_equation(c, a, surprise, variance + v, tau)
        if value_c * value_b <= 0.0:
            x, value_x = b, value_b
        else:
            value_x *= 0.5
        b, value_b = c, value_c
    return exp(x)


def _volatility_equation(x: Z, a: Z, surprise: Z, known: Z, tau: Z) -> Z:
    """The paper's f(x); ``surprise`` is Δ² - φ² - v, ``known`` is φ² + v."""
    variance = exp(x)
    whole = known + variance
    return variance * (surprise - variance) / (2.0 * whole * whole) - (x - a) / (tau * tau)
