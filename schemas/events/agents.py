"""Events of agents: registration, checkpoints, retirement."""

from typing import ClassVar

from schemas.events.base import Event
from schemas.numbers import Count

MAX_AGENT_BYTES = 8_192
"""Largest event that adds an agent: the leaderboard holds the names of all."""


class AgentRegistered(Event, frozen=True, tag=True):
    """An agent that is not a checkpoint entered the league."""

    MAX_BYTES: ClassVar[int] = MAX_AGENT_BYTES
    KEY: ClassVar[str] = "registered:{e.agent}"
    """One registration per agent."""
    agent: str
    kind: str
    """``bot``, ``base``, ``remote`` or ``search``."""
    baseline: bool
    """Whether policies must stay above it by the success criteria ("never below the baselines")."""
    rating: float
    """Initial rating."""


class CheckpointAdded(Event, frozen=True, tag=True):
    """A version of a policy joined the league as an immutable opponent."""

    MAX_BYTES: ClassVar[int] = MAX_AGENT_BYTES
    KEY: ClassVar[str] = "checkpoint:{e.agent}"
    """One joining per agent."""
    agent: str
    policy: str
    version: Count
    parent: str
    """Previous checkpoint of the policy, or the base model."""
    reason: str
    """``first``, ``recent``, ``landmark``, ``elite`` or ``reset`` (the last one before its policy was reset)."""
    adapter: str
    """SHA-256 digest of the adapter."""
    rating: float | None = None
    """Initial rating of an imported checkpoint; None for the rating of its policy's older versions."""


class CheckpointPromoted(Event, frozen=True, tag=True):
    """A checkpoint already in the league set a new best rating and is kept permanently."""

    KEY: ClassVar[str] = "promoted:{e.agent}"
    """One promotion per agent."""
    agent: str
    rating: float


class ExternalVersionAdded(Event, frozen=True, tag=True):
    """A version of an external agent joined the league: a learner elsewhere plays it, and reports its results."""

    MAX_BYTES: ClassVar[int] = MAX_AGENT_BYTES
    KEY: ClassVar[str] = "external:{e.agent}"
    """One joining per agent."""
    agent: str
    """Policy and version: ``grpo@40``."""
    policy: str
    """Name of the external agent."""
    version: Count
    """Ascending number given by its owner, from 0."""
    worker: str
    """Inference server where it was registered; ``operator`` for ``league agent add``."""


class AgentRetired(Event, frozen=True, tag=True):
    """An agent is no longer drawn as an opponent; its history stays."""

    KEY: ClassVar[str] = "retired:{e.agent}:{e.after}"
    """One retirement per agent and activation."""
    agent: str
    reason: str
    after: Count = 0
    """Sequence of the agent's previous ``AgentActivated`` or ``AgentRetired``; 0 for none."""
    resting: bool = False
    """Whether the agent may be activated again: it left the opponent pool for lack of room, or its budget is spent."""

    @property
    def key(self) -> str:
        """The event's id; without ``after`` where it is 0."""
        return super().key.removesuffix(":0")


class AgentActivated(Event, frozen=True, tag=True):
    """A retired agent is drawn as an opponent again."""

    KEY: ClassVar[str] = "activated:{e.agent}:{e.after}"
    """One activation per retirement."""
    agent: str
    reason: str
    after: Count
    """Sequence of the agent's ``AgentRetired``."""
