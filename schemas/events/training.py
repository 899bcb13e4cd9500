"""Events of policies and their training: publications, gradient steps, resets, ends."""

from typing import Any, ClassVar

import msgspec

from schemas.events.base import MAX_EVENT_BYTES, Event
from schemas.numbers import Count, Int64, Ranges


class PolicyPublished(Event, frozen=True, tag=True):
    """The trainer made a new version of a policy; rollout workers use it from their next decision on."""

    KEY: ClassVar[str] = "published:{e.policy}@{e.version}"
    """One publication per version."""
    policy: str
    version: Count
    """Gradient step that made the version; 0 is the untrained adapter."""
    adapter: str
    """SHA-256 digest of its adapter."""
    parent: str
    """Previous version; after a reset the first parent of an offspring, else the base model."""


class ParentAdapter(msgspec.Struct, frozen=True):
    """A checkpoint that an operator on adapters took as a parent."""

    agent: str
    adapter: str
    """SHA-256 digest of its adapter."""


class PolicyReset(Event, frozen=True, tag=True):
    """A policy was reset: the next version is an untrained adapter, or an operator's offspring of checkpoints.

    Version numbers continue. Operator, settings, parents and seed give the offspring's adapter again.
    """

    KEY: ClassVar[str] = "reset:{e.policy}@{e.version}"
    """One reset per version."""
    policy: str
    version: Count
    """Last version before the reset."""
    reason: str
    operator: str = ""
    """Name of the operator on adapters; empty for an untrained adapter."""
    settings: dict[str, Any] = {}
    """The operator's settings, defaults included."""
    parents: list[ParentAdapter] = []
    """Parents in the operator's order; the first is the parent of the next version."""
    seed: Count = 0
    """Seed of the operator's random numbers."""
    adapter: str = ""
    """SHA-256 digest of the offspring."""


class AdaptersDropped(Event, frozen=True, tag=True):
    """Adapters of old versions, which nothing refers to, were dropped from the store by ``blobs.keep_versions``."""

    MAX_BYTES: ClassVar[int] = MAX_EVENT_BYTES
    KEY: ClassVar[str] = "dropped:{e.policy}@"
    """One per first version, since a version is dropped once."""
    policy: str
    versions: Ranges
    """Ranges of versions, both ends included."""
    keep: Count
    """Newest versions that were kept in any case."""

    @property
    def key(self) -> str:
        """The event's id: policy and first version."""
        return super().key + "".join(map(str, self.versions[0][:1] if self.versions else ()))


class DroppedTrajectories(msgspec.Struct, frozen=True):
    """Trajectories that left the trainer's buffer without being trained on, or without being fully trained on."""

    reason: str
    """Reason: ``stale``, ``filtered``, ``voided`` or ``refused``; ``given_up`` with its group or ``late`` for it;
    ``copy`` of a trajectory accounted for elsewhere; or ``failed``, for a match without a trajectory."""
    sequences: list[list[Count]]
    """Sequences in ``EXPERIENCE``, as ranges: ``[first, last]``."""
    matches: list[str]
    """Matches in the order of the sequences; ``#`` and the sequence if unknown."""
    seats: list[Int64] = []
    """Seats in the matches, -1 if unknown."""


class PartialTrajectory(msgspec.Struct, frozen=True):
    """Steps of a trajectory that a gradient step trained on in part."""

    sequence: Count
    """Sequence in ``EXPERIENCE``."""
    match_id: str
    steps: list[list[Count]]
    """Indices of the steps trained on, from 0, as ranges."""
    left: Count
    """Number of steps not trained on yet."""
    seat: Int64 = -1
    """Seat in the match; -1 if unknown."""


MAX_CLOSED_GROUPS = 1_000
"""Maximum closed groups remembered, newest first."""


class OpenGroup(msgspec.Struct, frozen=True):
    """Trajectories that wait in a trainer's buffer for the others of their group."""

    name: str
    version: Count
    """Policy version of its first member."""
    size: Count
    """Number of members of the complete group."""
    sequences: list[list[Count]]
    """Members present, as ranges of ``EXPERIENCE``."""
    missing: list[str] = []
    """Matches of members that failed or cannot be used."""


class BufferContents(msgspec.Struct, frozen=True):
    """Contents of a trainer's buffer after a step, where trajectories come in groups."""

    waiting: list[list[Count]]
    """Trajectories that wait to be drawn, as ranges of ``EXPERIENCE``."""
    open: list[OpenGroup] = []
    """Incomplete groups, oldest first."""
    over: list[str] = []
    """Groups completed or given up since the previous step, in order."""


class GradientStepTaken(Event, frozen=True, tag=True):
    """The trainer used a batch of trajectories. Accounts for every trajectory that left its buffer."""

    MAX_BYTES: ClassVar[int] = MAX_EVENT_BYTES
    KEY: ClassVar[str] = "step:{e.policy}:{e.step}"
    """One step per policy and number."""
    policy: str
    step: Count
    batch: str
    """Digest of the match ids that were trained on, in order."""
    matches: list[str]
    """Matches of the trajectories that were trained on, once per trajectory."""
    experience_from: Int64
    experience_to: Int64
    """First and last sequence of ``EXPERIENCE`` read for this step."""
    accepted: Count
    """Trajectories fully trained on."""
    stale: Count
    refused: Count
    """Trajectories rejected as invalid or of another policy."""
    state: str
    """Digest of the trainer's state after the step: what a restarted trainer continues from."""
    skipped: bool = False
    """Whether the weights were left unchanged."""
    skip_reason: str = ""
    """Reason for skipping; empty for a step taken."""
    voided: Count = 0
    """Trajectories of matches that had been voided by then."""
    filtered: Count = 0
    """Trajectories drawn but left out for lack of a learning signal."""
    floor: Int64 = 0
    """All of the policy's trajectories up to this sequence are accounted for; those between it and ``experience_to``
    that no step has named wait in the buffer."""
    trained: list[list[Count]] = []
    """Sequences of the accepted trajectories, as ranges."""
    dropped: list[DroppedTrajectories] = []
    """Trajectories dropped from the buffer, by reason."""
    parts: list[PartialTrajectory] = []
    """Trajectories trained on in part."""
    seats: list[Int64] = []
    """Seats of the trajectories in ``matches``."""
    metrics: dict[str, float] = {}
    gathered: BufferContents | None = None
    """Contents of the buffer; None until a trajectory has had a group."""

    def dropped_count(self, reason: str) -> int:
        """Number of trajectories dropped for a reason."""
        return sum(len(group.matches) for group in self.dropped if group.reason == reason)


class TrainingFinished(Event, frozen=True, tag=True):
    """A policy met a stop condition."""

    KEY: ClassVar[str] = "trained:{e.policy}@{e.version}:{e.configured}"
    """One end per policy, version and configuration."""
    policy: str
    version: Count
    reason: str
    configured: Count = 0
    """Sequence of the configuration with the condition; a later one may resume training."""
    criterion_met: bool = False
    """Whether ``stop.criterion`` ended the training, rather than a limit."""
