"""The contract of an opponent sampler, and the samplers by name."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol

from schemas.config import Plugin
from schemas.errors import UsageError, one_of
from schemas.events import Pick
from schemas.ids import agent_name
from schemas.plugins import Registry
from schemas.standings import Live, Standings


class OpponentSampler(Protocol):
    """Draws opponents: a pure function of standings, hero and rng, so that every draw can be computed again."""

    name: str

    def sample(self, standings: Standings, hero_policy: str, seats: Sequence[int], rng: Random) -> list[Pick]:
        """One pick per seat of ``seats``, in their order.

        Raises:
            UsageError: no version of the hero's policy has been published.
        """

    def target_shares(self, standings: Standings, hero_policy: str) -> Mapping[str, float]:
        """Probability of each bucket for one seat, as these standings allow it; sums to 1.

        Audits compare realised shares with this, not with the configured mix: a bucket may be empty.
        """


SAMPLERS: Registry[OpponentSampler] = Registry("matchmaking.sampler", "league.samplers")


def make_sampler(plugin: Plugin) -> OpponentSampler:
    """The opponent sampler that the configuration names.

    Raises:
        ConfigError: unknown name or bad setting.
    """
    return SAMPLERS.build(plugin)


def live_hero(standings: Standings, policy: str) -> tuple[str, Live]:
    """The live version of a policy: its agent's name and its entry.

    Raises:
        UsageError: none has been published.
    """
    live = standings.live.get(policy)
    if live is None:
        raise UsageError(f"policy {policy!r} has no published version; published are {one_of(standings.live)}")
    return agent_name(policy, live.version), live


def draw(weights: Mapping[str, float], rng: Random) -> str:
    """One key, with probability in proportion to its weight.

    Keys are taken in their sorted order and one ``rng.random()`` is spent, whose sequence Python guarantees: the
    same rng gives the same key in any process and on any version.
    """
    names = sorted(name for name, weight in weights.items() if weight > 0)
    place = rng.random() * sum(weights[name] for name in names)
    for name in names:
        place -= weights[name]
        if place < 0:
            return name
    return names[-1]
