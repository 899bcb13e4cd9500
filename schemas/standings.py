"""The read-only table that decisions are made from: agents, ratings, and win-loss records."""

from collections.abc import Mapping

import msgspec

from schemas.ids import policy_of


class Agent(msgspec.Struct, frozen=True):
    """One entrant of the league."""

    name: str
    kind: str
    """``bot``, ``base``, ``checkpoint``, ``remote``, ``search``, or ``external`` for a version of an agent that plays
    elsewhere."""
    rating: float
    games: int
    """Number of rated matches."""
    baseline: bool = False
    active: bool = True
    """Whether it can be drawn as an opponent."""
    adapter: str | None = None
    policy: str = ""
    version: int = 0
    reason: str = ""
    """Reason why a checkpoint is in the league."""
    deviation: float = 0.0
    """Standard deviation of the rating; 0 if the rating system has none."""


class LivePolicy(msgspec.Struct, frozen=True):
    """A policy at its newest version."""

    policy: str
    version: int
    adapter: str | None
    rating: float
    """Rating of its last evaluated version; the base model's before that."""
    deviation: float = 0.0
    """Standard deviation of the rating, as ``Agent.deviation``."""


class WinLoss(msgspec.Struct, frozen=True):
    """Results of a policy's versions against one agent, seat by seat."""

    wins: int = 0
    draws: int = 0
    losses: int = 0


class Alarm(msgspec.Struct, frozen=True):
    """A condition that needs a person's attention."""

    name: str
    """Stable while the condition lasts: its kind, and after a colon its subject."""
    text: str


class Standings(msgspec.Struct, frozen=True):
    """The table at one sequence of the history."""

    sequence: int
    agents: Mapping[str, Agent]
    """Agents by name, in the order in which they joined."""
    live: Mapping[str, LivePolicy]
    records: Mapping[str, Mapping[str, WinLoss]]
    """``records[policy][agent]``: results of the policy's versions against the agent."""
    novelty: Mapping[str, float] = {}
    """Share of new n-grams among an opponent's actions when it played them, 0 to 1, by agents met."""
    rewards: Mapping[str, float] = {}
    """Mean reward of each policy in its last training matches, where populations choose by reward and it has enough."""
    slots: int | None = None
    """Minimum over workers of the adapters that fit in memory; None if all hold the configured number."""

    def rating(self, agent: str) -> float | None:
        """Rating of an agent, or the policy's for a version that has not joined; None for others."""
        if (member := self.agents.get(agent)) is not None:
            return member.rating
        live = self.live.get(policy_of(agent))
        return None if live is None else live.rating
