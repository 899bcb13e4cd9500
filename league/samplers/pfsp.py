"""Prioritised fictitious self-play: every seat draws a bucket, then an opponent from it.

Source: the league specification's matchmaking section: 30 % the mirror, 40 % peers (ratings within 100), 20 % the
exploitable, 10 % baselines; only baselines until two checkpoints exist; and cluster sampling (few distinct opponents,
cloned over the seats) where memory for adapters is short.
"""

from collections.abc import Mapping, Sequence
from math import isclose, isfinite
from random import Random

import msgspec

from league.samplers.base import SAMPLERS, Bucket, OpponentSampler, SeatDraw, draw, live_hero
from schemas.errors import ConfigError
from schemas.events import Pick
from schemas.standings import Record, Standings

BUCKETS = ("mirror", "peers", "exploitable", "baselines")
_CHECKPOINTS_FOR_PFSP = 2


@SAMPLERS.register("pfsp")
class PfspSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``[matchmaking.sampler.settings]`` of ``pfsp``; the four shares sum to 1."""

    mirror: float = 0.3
    """The hero's own live version."""
    peers: float = 0.4
    """Members of the league with a rating near the hero's."""
    exploitable: float = 0.2
    """Members that the policy's versions lost to more than they won, and that are rated below the hero now."""
    baselines: float = 0.1
    """Baseline agents."""
    peer_range: float = 100.0
    """Rating points on either side of the hero's."""
    baseline_weights: dict[str, float] = {}
    """Relative weight of single baselines; 1 for those not named."""
    max_distinct: int | None = None
    """Cluster sampling: draw so many opponents and clone them over the seats. None draws for every seat."""

    def __post_init__(self) -> None:
        """Check what types alone cannot say."""
        for key in BUCKETS:
            _check_weight(key, getattr(self, key))
        for agent, weight in self.baseline_weights.items():
            _check_weight(f"baseline_weights.{agent}", weight)
        total = sum(getattr(self, key) for key in BUCKETS)
        if not isclose(total, 1.0, rel_tol=0.0, abs_tol=1e-9):
            raise ConfigError(f"mirror + peers + exploitable + baselines: sum is {total}; expected 1")
        if not 0 <= self.peer_range < float("inf"):
            raise ConfigError(f"peer_range: {self.peer_range}; expected 0 or more rating points")
        if self.max_distinct is not None and self.max_distinct < 1:
            raise ConfigError(f"max_distinct: {self.max_distinct}; expected 1 or more")

    def build(self) -> "Pfsp":
        """What these settings configure."""
        return Pfsp(self)


def _check_weight(key: str, weight: float) -> None:
    if not (isfinite(weight) and weight >= 0):
        raise ConfigError(f"{key}: {weight}; expected 0 or more")


class Pfsp(OpponentSampler):
    """The mix of four buckets. A bucket without candidates leaves its share to the others in proportion."""

    name = "pfsp"

    def __init__(self, settings: PfspSettings) -> None:
        self._settings = settings

    def draws(self, standings: Standings, hero_policy: str, seats: Sequence[int], rng: Random) -> list[SeatDraw]:
        """See ``OpponentSampler.draws``.

        With ``max_distinct`` the clones are dealt in turn. Every seat is then still drawn from the target shares,
        though not independently of the others.
        """
        buckets = self.distribution(standings, hero_policy)
        shares = {name: bucket.share for name, bucket in buckets.items()}
        distinct = min(len(seats), self._settings.max_distinct or len(seats))
        drawn = []
        for _ in range(distinct):
            bucket = draw(shares, rng)
            drawn.append((bucket, draw(buckets[bucket.key].weights, rng)))
        dealt = (drawn[place % distinct] for place in range(len(seats)))
        return [
            SeatDraw(Pick(seat, agent.key, bucket.key), (bucket, agent))
            for seat, (bucket, agent) in zip(seats, dealt, strict=True)
        ]

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        candidates = self.candidates(standings, hero_policy)
        shares = self._shares(candidates)
        return {name: Bucket(shares[name], candidates[name]) for name in BUCKETS}

    def candidates(self, standings: Standings, hero_policy: str) -> dict[str, dict[str, float]]:
        """Weight of every agent in every bucket. An agent can be in several.

        Baselines are no peers, since they have a bucket of their own; they can be exploitable. While fewer than two
        checkpoints have joined, the other buckets are empty; without any baseline the mirror is left.
        """
        name, live = live_hero(standings, hero_policy)
        members = [agent for agent in standings.agents.values() if agent.active and agent.name != name]
        weights = self._settings.baseline_weights
        baselines = {agent.name: weights.get(agent.name, 1.0) for agent in members if agent.baseline}
        if _is_cold(standings) and any(baselines.values()):
            return {"mirror": {}, "peers": {}, "exploitable": {}, "baselines": baselines}
        records = standings.records.get(hero_policy, {})
        return {
            "mirror": {name: 1.0},
            "peers": {
                agent.name: 1.0
                for agent in members
                if not agent.baseline and abs(agent.rating - live.rating) <= self._settings.peer_range
            },
            "exploitable": {
                agent.name: 1.0
                for agent in members
                if agent.rating < live.rating and _mostly_lost(records.get(agent.name))
            },
            "baselines": baselines,
        }

    def _shares(self, candidates: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        weights = {b: getattr(self._settings, b) if any(candidates[b].values()) else 0.0 for b in BUCKETS}
        if not any(weights.values()):
            # All that could be drawn has share 0: play whoever is there, the mirror first.
            weights[next(b for b in BUCKETS if any(candidates[b].values()))] = 1.0
        total = sum(weights.values())
        return {bucket: weight / total for bucket, weight in weights.items()}


def _is_cold(standings: Standings) -> bool:
    return sum(agent.kind == "checkpoint" for agent in standings.agents.values()) < _CHECKPOINTS_FOR_PFSP


def _mostly_lost(record: Record | None) -> bool:
    return record is not None and record.losses > record.wins
