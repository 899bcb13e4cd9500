"""Branches: leagues that begin as a copy of another history up to one of its events.

The copy keeps sequences, times, producers and bytes, so all references in it stay valid, also those to archives.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import msgspec

from league.blobs import BlobStore, CachedBlobStore
from league.integrity.archive import ArchiveManifest, archived_batches
from league.log.base import EventLog
from league.state import LeagueState
from schemas import events as e
from schemas.errors import ArtifactError, DecodeError, UsageError
from schemas.ids import agent_name

_PARALLEL = 16
"""Number of blobs copied concurrently: the broker syncs its disk after each."""

ProgressCallback = Callable[[int], None]


class TrainerStart(msgspec.Struct, frozen=True):
    """Starting point of a policy's trainer in a branch."""

    policy: str
    step: int
    """The last gradient step before the branch; 0 when there is none."""
    exact: bool
    """Whether its state is kept, so that training resumes exactly; otherwise it resumes from the published adapter with
    fresh optimiser moments.
    """
    nearest: int | None = None
    """The newest earlier event at which a branch would be exact, if there is one."""
    nearest_step: int | None = None


class BlobReference(msgspec.Struct, frozen=True):
    """A blob that an event refers to."""

    kind: str
    digest: str


class CopyReport(msgspec.Struct):
    """Blobs copied into a branch, and those missing."""

    events: int = 0
    artifacts: int = 0
    bytes: int = 0
    missing: dict[str, int] = {}
    """Number of blobs that copied events refer to and the origin lacks, by kind."""


def event_references(event: e.Event | None) -> Iterator[BlobReference]:
    """Blobs that an event refers to; ``manifest_references`` gives a manifest's."""
    match event:
        case e.LeagueOpened(model=model) if model.startswith("artifact:"):
            yield BlobReference("model", model.removeprefix("artifact:"))
        case e.PolicyPublished(adapter=adapter) | e.CheckpointAdded(adapter=adapter) if adapter:
            yield BlobReference("adapter", adapter)
        case e.GradientStepTaken(state=state) if state:
            yield BlobReference("trainer state", state)
        case e.MatchFinished(record=record) if record:
            yield BlobReference("game record", record)
        case e.SnapshotTaken(artifact=artifact):
            yield BlobReference("snapshot", artifact)
        case e.HistoryArchived(manifest=manifest):
            yield BlobReference("manifest", manifest)


def manifest_references(data: bytes) -> Iterator[BlobReference]:
    """Blobs listed in an archive's manifest; none when it cannot be decoded."""
    with contextlib.suppress(DecodeError):
        for _, file in ArchiveManifest.decode(data).files():
            yield BlobReference("archive", file.digest)


async def last_step_boundary(history: EventLog, at: int) -> int:
    """The newest event at or before ``at`` that does not lie inside a gradient step.

    A trainer appends a step as one batch: the version, the step, perhaps a checkpoint, perhaps a reset and the
    untrained version after it. A part of it would publish a version whose step was never taken.
    """
    neighbours = [recorded async for recorded in history.read(max(at - 4, 1), at + 2)]
    events = {recorded.sequence: recorded.event for recorded in neighbours}
    while _is_same_step(events.get(at), events.get(at + 1)):
        at -= 1
    return at


def _is_same_step(event: e.Event | None, following: e.Event | None) -> bool:
    match event, following:
        case (
            (e.PolicyPublished(policy=policy, version=step), e.GradientStepTaken(policy=other, step=after))
            | (e.GradientStepTaken(policy=policy, step=step), e.CheckpointAdded(policy=other, version=after))
            | (e.GradientStepTaken(policy=policy, step=step), e.PolicyReset(policy=other, version=after))
            | (e.CheckpointAdded(policy=policy, version=step), e.PolicyReset(policy=other, version=after))
        ):
            return (policy, step) == (other, after)
        case e.PolicyReset(policy=policy, version=step), e.PolicyPublished(policy=other, version=after):
            return (policy, step + 1) == (other, after)
    return False


def check_league_open(state: LeagueState, at: int) -> None:
    """Raise UsageError if the league was not open at a sequence, or not all of its first agents had been admitted."""
    if state.config is None or set(state.config.agents) - set(state.agents):
        raise UsageError(f"event {at}: the league was not fully open yet; expected a later event")


async def trainer_starts(history: EventLog, state: LeagueState, at: int, available: set[str]) -> list[TrainerStart]:
    """Starting points of the trainers of a branch at ``at``, where the origin has ``state`` and ``available`` blobs."""
    steps = [step async for step in history.read_events(e.GradientStepTaken, last=at)]
    starts = []
    for policy in state.policies:
        own = [(sequence, step) for sequence, step in steps if step.policy == policy]
        last = own[-1][1] if own else None
        # A step that ended with a reset needs nothing from before it.
        if last is None or last.state in available or state.training_start(policy) > last.step:
            starts.append(TrainerStart(policy, last.step if last is not None else 0, True))
            continue
        # The next step's events begin with the version that it published.
        exact = [(following - 2, step.step) for (_, step), (following, _) in pairwise(own) if step.state in available]
        starts.append(TrainerStart(policy, last.step, False, *(exact[-1] if exact else ())))
    return starts


def describe_trainer_start(start: TrainerStart) -> str:
    """Describe in a sentence how a policy's training will start."""
    version = agent_name(start.policy, start.step)
    if start.step == 0:
        return f"no gradient step of {start.policy!r} had been taken: training begins with its newest version"
    if start.exact:
        return f"training of {start.policy!r} continues from its exact state after step {start.step}"
    nearest = (
        f"the nearest earlier exact state is after step {start.nearest_step}: --at {start.nearest}"
        if start.nearest is not None
        else "no earlier state is kept either"
    )
    return (
        f"training of {start.policy!r} continues from the adapter of {version} with fresh optimiser moments, since its "
        f"state after step {start.step} is not kept ({nearest})"
    )


async def copy_history(
    source: EventLog, target: EventLog, at: int, report: ProgressCallback, archive: CachedBlobStore | None = None
) -> tuple[int, list[BlobReference]]:
    """Copy events up to ``at``; returns their number and the blobs that they refer to.

    Archived events are copied from the store ``archive``, which repairs a damaged stream. ``report`` is called with the
    sequence reached.
    """
    events = 0
    references: dict[BlobReference, None] = {}
    async for batch in source.batches(1, at) if archive is None else archived_batches(source, archive, 1, at):
        await target.copy(batch)
        for recorded in batch:
            references.update(dict.fromkeys(event_references(recorded.event)))
        events += len(batch)
        report(batch[-1].sequence)
    return events, list(references)


async def copy_blobs(
    references: Sequence[BlobReference],
    sources: Sequence[BlobStore],
    target: BlobStore,
    report: ProgressCallback,
    archive: BlobStore | None = None,
) -> CopyReport:
    """Copy the available blobs of ``references``, and those listed in the manifests among them.

    Stores are searched in the order of ``sources``; ``report`` is called with the number of blobs processed. Manifests
    and the files that they list go to ``archive``, by default to ``target``.
    """
    done: set[str] = set()
    copied = CopyReport()
    queue = list(references)
    while queue:
        batch, queue = queue[:_PARALLEL], queue[_PARALLEL:]
        fresh = [reference for reference in batch if reference.digest not in done]
        done.update(reference.digest for reference in fresh)
        targets = [
            archive if archive is not None and each.kind in ("manifest", "archive") else target for each in fresh
        ]
        sizes = await asyncio.gather(
            *(_copy_blob(each, sources, chosen, queue) for each, chosen in zip(fresh, targets, strict=True))
        )
        for reference, size in zip(fresh, sizes, strict=True):
            if size is not None:
                copied.artifacts += 1
                copied.bytes += size
            elif reference.kind != "trainer state":
                # Trainers remove superseded states; ``describe_trainer_start`` covers the consequences.
                copied.missing[reference.kind] = copied.missing.get(reference.kind, 0) + 1
        report(len(done))
    return copied


async def _copy_blob(
    reference: BlobReference, sources: Sequence[BlobStore], target: BlobStore, queue: list[BlobReference]
) -> int | None:
    """Copy one blob and queue those that a manifest lists; returns its size, None if no source has it."""
    for source in sources:
        with contextlib.suppress(ArtifactError):
            data = await source.get(reference.digest)
            await target.put(data, reference.kind)
            if reference.kind == "manifest":
                queue += manifest_references(data)
            return len(data)
    return None
