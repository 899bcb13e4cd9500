"""Opponent samplers: they choose the agents for the other seats of a training match.

A sampler is a function from standings, a policy (the *hero*) and settings to a distribution: buckets with their shares,
and in each bucket the weights of its agents. Every seat draws a bucket and then an agent of it. ``league match
explain``, the audit of target against realised shares and the web pages show the same distribution.

- ``pfsp``               League Training's: ``pfsp``, a mix of mirror, peers, exploitable and baselines, and
                         ``tiered``, weights 5, 2 and 0.5 by rating distance
- ``alphastar``          ``win_rate``, by measured win rates, and ``main_exploiter``, one policy's live version or past
- ``unstable_baselines`` ``mirror``, ``fixed``, ``random``, ``lagged``, ``match_quality``, ``ts_dist`` and
                         ``exploration``
- ``uniform``            ``uniform``, every member alike with the mirror, and ``policies``, versions of named policies

Samplers draw active agents; ``main_exploiter`` and ``policies`` also draw live versions of other policies. The hero's
live version is drawn only from the bucket ``mirror``. An empty bucket leaves its share to the others in proportion;
without any opponent the hero plays itself. When adapter slots are short, the matchmaker clones opponents
(``league.matchmaking.pool``).

A new sampler is one file here: a struct of its settings with ``@SAMPLERS.register("name")`` and a ``distribution``.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, cycle
from random import Random
from typing import ClassVar

import msgspec

from schemas.config import Plugin
from schemas.errors import UsageError, format_choices
from schemas.events import OpponentPick
from schemas.ids import agent_name
from schemas.numbers import PositiveInt
from schemas.plugins import PluginStruct, Registry
from schemas.standings import Agent, LivePolicy, Standings

_CHECKPOINTS_FOR_A_LEAGUE = 2


class Bucket(msgspec.Struct, frozen=True):
    """One part of a distribution."""

    share: float
    """Probability of the bucket for one seat."""
    weights: dict[str, float]
    """Weights of the agents that can be drawn, in proportion to their probabilities; empty for share 0."""

    def probabilities(self) -> dict[str, float]:
        """Probability of each agent once the bucket is drawn; empty for an empty bucket."""
        total = add_up(self.weights.values())
        return {agent: weight / total for agent, weight in self.weights.items()} if total else {}


Distribution = Mapping[str, Bucket]
"""Buckets by name; their shares sum to 1."""


class OpponentSampler(PluginStruct, frozen=True):
    """Settings of a sampler, and the distribution that follows from them."""

    name: ClassVar[str]

    max_distinct: PositiveInt | None = None
    """Cluster sampling: draw this many opponents and clone them over the seats. None draws for every seat."""

    def distribution(self, standings: Standings, hero_policy: str) -> Distribution:
        """Every bucket, empty ones with share 0. Depends on nothing but settings, standings and hero.

        Raises:
            UsageError: no version of the hero's policy has been published.
        """
        raise NotImplementedError

    def sample(self, standings: Standings, hero_policy: str, seats: Sequence[int], rng: Random) -> list[OpponentPick]:
        """Draw an opponent for every seat.

        Clones are dealt in turn: every seat follows the distribution, though not independently of the others.

        Raises:
            UsageError: no version of the hero's policy has been published, or a seat is listed twice.
        """
        if len(set(seats)) < len(seats):
            twice = next(seat for index, seat in enumerate(seats) if seat in seats[:index])
            raise UsageError(f"seat {twice} is listed twice; expected distinct seats")
        count = min(len(seats), self.max_distinct or len(seats))
        drawn = draw_agents(self.distribution(standings, hero_policy), count, rng)
        return [OpponentPick(seat, agent, bucket) for seat, (bucket, agent) in zip(seats, cycle(drawn), strict=False)]


SAMPLERS: Registry[OpponentSampler] = Registry("matchmaking.sampler", "league.samplers")


def make_sampler(plugin: Plugin) -> OpponentSampler:
    """Build the configured sampler; ConfigError for an unknown name or a bad setting."""
    return SAMPLERS.build(plugin)


def draw_agents(distribution: Distribution, count: int, rng: Random) -> list[tuple[str, str]]:
    """Draw ``count`` pairs of a bucket and an agent in it, independently.

    Names are taken in sorted order and each draw uses exactly one ``rng.random()``, whose sequence Python guarantees:
    the same rng gives the same agents in any process and any version.
    """
    buckets = _Urn({name: bucket.share for name, bucket in distribution.items()})
    agents: dict[str, _Urn] = {}
    drawn = []
    for _ in range(count):
        bucket = buckets.draw(rng)
        if bucket not in agents:
            agents[bucket] = _Urn(distribution[bucket].weights)
        drawn.append((bucket, agents[bucket].draw(rng)))
    return drawn


class _Urn:
    """Names with their cumulative weights."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._names = sorted(name for name, weight in weights.items() if weight > 0)
        self._ends = list(accumulate(weights[name] for name in self._names))

    def draw(self, rng: Random) -> str:
        index = bisect_right(self._ends, rng.random() * self._ends[-1])
        # The product may round up to the end of the last interval.
        return self._names[min(index, len(self._names) - 1)]


def bucket_shares(distribution: Distribution) -> dict[str, float]:
    """Probability of each bucket for one seat."""
    return {name: bucket.share for name, bucket in distribution.items()}


def agent_probabilities(distribution: Distribution) -> dict[str, float]:
    """Probability of each agent for one seat, over all buckets; sorted by name."""
    probabilities: dict[str, float] = {}
    for bucket in distribution.values():
        for agent, probability in bucket.probabilities().items():
            probabilities[agent] = probabilities.get(agent, 0.0) + bucket.share * probability
    return dict(sorted(probabilities.items()))


def live_hero(standings: Standings, policy: str) -> tuple[str, LivePolicy]:
    """The agent name of a policy's live version, and its entry; UsageError if none has been published."""
    live = standings.live.get(policy)
    if live is None:
        raise UsageError(f"policy {policy!r} has no published version; published are {format_choices(standings.live)}")
    return agent_name(policy, live.version), live


def others(standings: Standings, hero_policy: str) -> list[Agent]:
    """Possible opponents: all active agents but the live version of the hero's policy; raises as ``live_hero``."""
    hero, _ = live_hero(standings, hero_policy)
    return [agent for agent in standings.agents.values() if agent.active and agent.name != hero]


def is_cold_start(standings: Standings) -> bool:
    """Whether fewer than two checkpoints have joined, retired ones included: then only baselines are played.

    Source: League Training's cold start.
    """
    return sum(agent.kind == "checkpoint" for agent in standings.agents.values()) < _CHECKPOINTS_FOR_A_LEAGUE


def mix_buckets(mix: Mapping[str, float], weights: Mapping[str, dict[str, float]]) -> Distribution:
    """Buckets with configured shares; an empty bucket leaves its share to the others in proportion.

    When all filled buckets have share 0, the first of them is played; at least one is filled.
    """
    filled = [name for name, agents in weights.items() if any(weight > 0 for weight in agents.values())]
    shares = {name: mix[name] for name in filled}
    if not any(shares.values()):
        shares[filled[0]] = 1.0
    total = add_up(shares.values())
    return {
        name: Bucket(shares[name] / total, agents) if shares.get(name) else Bucket(0.0, {})
        for name, agents in weights.items()
    }


def pool_buckets(weights: Mapping[str, dict[str, float]], hero: str) -> Distribution:
    """Buckets of one pool, in which every agent is drawn by its weight: a bucket's share is its agents' total.

    ``mirror`` has share 1 without any other agent, and share 0 otherwise.
    """
    totals = {name: add_up(agents[agent] for agent in sorted(agents)) for name, agents in weights.items()}
    total = add_up(totals.values())
    buckets = {
        name: Bucket(totals[name] / total, agents) if totals[name] else Bucket(0.0, {})
        for name, agents in weights.items()
    }
    return {**buckets, "mirror": Bucket(0.0, {}) if total else Bucket(1.0, {hero: 1.0})}


def split_by_kind(weights: Mapping[str, float], agents: Mapping[str, Agent]) -> dict[str, dict[str, float]]:
    """Weights as two buckets: ``fixed`` (bots, base and remote models, which never change) and ``checkpoints``."""
    split: dict[str, dict[str, float]] = {"fixed": {}, "checkpoints": {}}
    for name, weight in weights.items():
        split["checkpoints" if agents[name].kind == "checkpoint" else "fixed"][name] = weight
    return split


def add_up(numbers: Iterable[float]) -> float:
    """Sum of the numbers, one by one: the rounding of sum() differs between versions of Python."""
    total = 0.0
    for number in numbers:
        total += number
    return total
