"""Events of agents: registration, checkpoints, retirement."""

from typing import ClassVar

from schemas.events.base import Event
from schemas.numbers import Count


class AgentRegistered(Event, frozen=True, tag=True):
    """An agent that is not a checkpoint entered the league."""

    KEY: ClassVar[str] = "registered:{e.agent}"
    """One registration per agent."""
    agent: str
    kind: str
    """``bot``, ``base``, ``remote`` or ``search``."""
    baseline: bool
    """Whether the success criteria compare policies with it ("never below the baselines")."""
    rating: float
    """Its initial rating."""


class CheckpointAdded(Event, frozen=True, tag=True):
    """A version of a policy joined the league as an immutable opponent."""

    KEY: ClassVar[str] = "checkpoint:{e.agent}"
    """One joining per agent."""
    agent: str
    policy: str
    version: Count
    parent: str
    """The checkpoint before it, or the base model."""
    reason: str
    """``first``, ``recent``, ``landmark``, ``elite`` or ``reset`` (the last one before its policy was reset)."""
    adapter: str
    """SHA-256 digest of its adapter."""
    rating: float | None = None
    """Its initial rating, if imported; None for the rating of its policy's older versions."""


class CheckpointPromoted(Event, frozen=True, tag=True):
    """A checkpoint already in the league set a new best rating and is kept permanently."""

    KEY: ClassVar[str] = "promoted:{e.agent}"
    """One promotion per agent."""
    agent: str
    rating: float


class ExternalVersionAdded(Event, frozen=True, tag=True):
    """A version of an external agent joined the league: a learner elsewhere plays it, and reports its results."""

    KEY: ClassVar[str] = "external:{e.agent}"
    """One joining per agent."""
    agent: str
    """Policy and version: ``grpo@40``."""
    policy: str
    """Name of the external agent."""
    version: Count
    """Number that its owner gave it, ascending; 0 is the first."""
    worker: str
    """Inference server that it was registered at; ``operator`` for ``league agent add``."""


class AgentRetired(Event, frozen=True, tag=True):
    """An agent is no longer drawn as an opponent; its history stays."""

    KEY: ClassVar[str] = "retired:{e.agent}:{e.after}"
    """One retirement per agent and activation."""
    agent: str
    reason: str
    after: Count = 0
    """Sequence of the ``AgentActivated`` or ``AgentRetired`` before, of this agent; 0 when there is none."""
    resting: bool = False
    """Whether it may be activated again: the active pool has no room for it, or its budget is spent."""

    @property
    def key(self) -> str:
        """See ``Event.key``; without the activation where there was none."""
        return super().key.removesuffix(":0")


class AgentActivated(Event, frozen=True, tag=True):
    """An agent that had been retired is drawn as an opponent again."""

    KEY: ClassVar[str] = "activated:{e.agent}:{e.after}"
    """One activation per retirement."""
    agent: str
    reason: str
    after: Count
    """Sequence of the ``AgentRetired`` before."""
