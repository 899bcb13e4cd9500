"""What must hold of a league after any faults, once it has finished.

Each invariant is a generator of violations over what the broker holds; the history is read both directly and through
the production reader.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import schemas.events as e
from league.history.replay import verify_events
from league.integrity.snapshots import decode_snapshot, encode_snapshot
from league.integrity.verify import verify_history
from league.log.base import RecordedEvent
from league.ratings.fold import RatingFold
from league.run import Run
from league.state import LeagueState
from schemas.codec import decode_job
from schemas.config import LeagueConfig
from schemas.errors import DecodeError, LeagueError, LogError, MessageIdError, WorkerConflictError
from schemas.ids import digest
from schemas.numbers import expand_ranges
from schemas.subjects import DEAD_LETTER_STREAM, EXPERIENCE_STREAM, LEAGUE_STREAM, WORK_STREAM
from tests.simulation.broker.api import Disk
from tests.simulation.broker.protocol import parse_headers
from tests.simulation.broker.server import URL
from tests.simulation.broker.stream import Acknowledgements
from tests.simulation.operator import HUGE_BYTES

_DUPLICATE_WINDOW_NS = 600 * 10**9
_ELO_K, _ELO_SCALE, _TOLERANCE = 32.0, 400.0, 1e-9


class Remains:
    """What a finished league has left: its history, decoded, and the broker's other streams."""

    def __init__(self, config: LeagueConfig, disk: Disk, acknowledged: Acknowledgements) -> None:
        self.config = config
        self.disk = disk
        self.acknowledged = acknowledged
        self.recorded = [_to_recorded(message) for message in disk.streams[LEAGUE_STREAM].messages.values()]
        self.snapshot: bytes | None = None
        """The newest snapshot; None without one."""
        self.state, self.ratings = LeagueState(), RatingFold()
        for recorded in self.recorded:
            self.state.apply(recorded.sequence, recorded.event)
            self.ratings.apply(recorded.sequence, recorded.event)

    def of(self, kind: type[Any]) -> list[Any]:
        """The events of a type, in order."""
        return [recorded.event for recorded in self.recorded if isinstance(recorded.event, kind)]


def _to_recorded(message: Any) -> RecordedEvent:
    headers = parse_headers(message.headers) if message.headers else {}
    return RecordedEvent(
        message.sequence,
        int(headers.get("League-Time", message.time_ns)),
        message.subject,
        headers.get("League-Producer", ""),
        message.data,
        int(headers.get("League-Schema", 1)),
    )


def acknowledged_messages_are_kept(remains: Remains) -> Iterator[str]:
    """No acknowledged event is lost: what the broker acknowledged is there, with its bytes."""
    history = remains.disk.streams[LEAGUE_STREAM].messages
    for sequence, (subject, checksum) in remains.acknowledged.of(LEAGUE_STREAM).items():
        kept = history.get(sequence)
        if kept is None:
            yield f"event {sequence} on {subject} was acknowledged and is gone"
        elif (kept.subject, digest(kept.data)) != (subject, checksum):
            yield f"event {sequence} on {subject} was acknowledged with other bytes than it has"


def history_is_readable(remains: Remains) -> Iterator[str]:
    """Everything that a process has recorded can be decoded, nothing huge counts, and sequences have no gaps."""
    for place, recorded in enumerate(remains.recorded, 1):
        if recorded.error is None and len(recorded.payload) > HUGE_BYTES:
            yield f"event {recorded.sequence} of {len(recorded.payload):,} bytes counts; expected it to be skipped"
        if recorded.error is not None and recorded.producer:
            yield f"event {recorded.sequence}: {recorded.error}"
        if recorded.sequence != place:
            yield f"event {recorded.sequence} is at place {place} of the history"
            return


def facts_are_recorded_once(remains: Remains) -> Iterator[str]:
    """No process's event is doubled within the deduplication window.

    Accounts of one fact by two processes may be recorded, since folds take the first: two evaluators may request one
    evaluation, or play one match.
    """
    seen: dict[tuple[str, str, bytes], Any] = {}
    for message in remains.disk.streams[LEAGUE_STREAM].messages.values():
        producer = parse_headers(message.headers).get("League-Producer", "") if message.headers else ""
        first = seen.setdefault((producer, message.subject, message.data), message)
        if producer and first is not message and message.time_ns - first.time_ns < _DUPLICATE_WINDOW_NS:
            yield f"event {message.sequence} on {message.subject} repeats event {first.sequence}"


def every_version_is_published_once(remains: Remains) -> Iterator[str]:
    """One publication and one gradient step per version, without gaps, up to the configured number of steps."""
    published = Counter(event.version for event in remains.of(e.PolicyPublished))
    steps = Counter(event.step for event in remains.of(e.GradientStepTaken))
    wanted = remains.config.stop.steps or 0
    if published != Counter(range(wanted + 1)):
        yield f"published versions {sorted(published.elements())}; expected each of 0 to {wanted} once"
    if steps != Counter(range(1, wanted + 1)):
        yield f"gradient steps {sorted(steps.elements())}; expected each of 1 to {wanted} once"


def steps_are_whole(remains: Remains) -> Iterator[str]:
    """A step and its publication are one batch: they are neighbours in the history."""
    for before, after in zip(remains.recorded, remains.recorded[1:], strict=False):
        first, second = before.event, after.event
        if not isinstance(second, e.GradientStepTaken):
            continue
        if not isinstance(first, e.PolicyPublished) or first.version != second.step:
            yield f"event {after.sequence}: step {second.step} does not follow its publication"


def every_sampled_match_ends(remains: Remains) -> Iterator[str]:
    """A match that was drawn has a result or a failure."""
    ended = {event.match_id for kind in (e.MatchFinished, e.MatchFailed) for event in remains.of(kind)}
    for event in remains.of(e.OpponentsSampled):
        if event.match_id not in ended:
            yield f"match {event.match_id} was drawn and never ended"


def every_trained_trajectory_has_a_result(remains: Remains) -> Iterator[str]:
    """The ends of the matches of all trajectories that were trained on are recorded."""
    finished = {event.match_id for kind in (e.MatchFinished, e.MatchFailed) for event in remains.of(kind)}
    for step in remains.of(e.GradientStepTaken):
        for match_id in step.matches:
            if match_id not in finished:
                yield f"step {step.step} trained on match {match_id}, which has no result"


def no_trajectory_is_used_twice(remains: Remains) -> Iterator[str]:
    """A trajectory is trained on or dropped once, by its place in the stream and by its match and seat."""
    places: Counter[int] = Counter()
    matches: Counter[tuple[str, int]] = Counter()
    for step in remains.of(e.GradientStepTaken):
        places.update(expand_ranges(step.trained))
        matches.update(zip(step.matches, step.seats, strict=True))
        for dropped in step.dropped:
            places.update(expand_ranges(dropped.sequences))
    yield from (f"trajectory {place} is accounted for {count} times" for place, count in places.items() if count > 1)
    yield from (f"match {match} is trained on {count} times" for match, count in matches.items() if count > 1)


def the_ledger_is_balanced(remains: Remains) -> Iterator[str]:
    """Every trajectory that was published is named by a step or waits in the stream; other bytes have a dead letter."""
    stream = remains.disk.streams[EXPERIENCE_STREAM]
    letters = [subject.split(".") for subject in remains.disk.streams[DEAD_LETTER_STREAM].subjects]
    named = {int(place) for _, _, about, place in letters if about == EXPERIENCE_STREAM}
    for step in remains.of(e.GradientStepTaken):
        named.update(expand_ranges(step.trained), *(expand_ranges(dropped.sequences) for dropped in step.dropped))
    for sequence in range(1, stream.last + 1):
        if sequence not in named and sequence not in stream.messages:
            yield f"trajectory {sequence} is neither named by a step nor in the stream"
    for step in remains.of(e.GradientStepTaken):
        if step.accepted != len(list(expand_ranges(step.trained))):
            yield f"step {step.step} accepted {step.accepted} trajectories and names {step.trained}"


def ratings_are_the_formula(remains: Remains) -> Iterator[str]:
    """Every rated match moves its two agents by Elo's formula, from where the match before left them.

    After a void a correction replaces all ratings; then the fold alone says what is right.
    """
    if remains.of(e.MatchVoided):
        return
    matches = {event.match_id: event for event in remains.of(e.MatchFinished)}
    rated = Counter(event.match_id for event in remains.of(e.RatingUpdated))
    for match in matches.values():
        if match.purpose in remains.config.ratings.purposes and rated[match.match_id] != 1:
            yield f"match {match.match_id} was rated {rated[match.match_id]} times"
    newest: dict[str, float] = {}
    for update in remains.of(e.RatingUpdated):
        before = {change.agent: change.before for change in update.changes}
        scores = {seat.agent: seat.score for seat in matches[update.match_id].seats}
        for change in update.changes:
            if newest.get(change.agent, change.before) != change.before:
                yield f"match {update.match_id}: {change.agent} begins at {change.before}, not {newest[change.agent]}"
            newest[change.agent] = change.after
            (other,) = before.keys() - {change.agent}
            expected = 1 / (1 + 10 ** ((before[other] - change.before) / _ELO_SCALE))
            actual = (1 + (scores[change.agent] > scores[other]) - (scores[change.agent] < scores[other])) / 2
            after = change.before + _ELO_K * (actual - expected)
            if not math.isclose(after, change.after, rel_tol=_TOLERANCE):
                yield f"match {update.match_id}: {change.agent} is at {change.after}; the formula says {after}"


def ratings_are_the_fold(remains: Remains) -> Iterator[str]:
    """The recorded ratings equal those that the history folds to."""
    report = verify_events(remains.recorded)
    if not report.is_identical or report.pending:
        yield f"replay: {report.summary()}"


def folds_are_equal(remains: Remains) -> Iterator[str]:
    """A fold from the newest snapshot on equals one from the first event, byte for byte."""
    if remains.snapshot is None:
        return
    state, ratings = decode_snapshot(remains.snapshot)
    first = state.sequence
    for recorded in remains.recorded:
        if recorded.sequence > first:
            state.apply(recorded.sequence, recorded.event)
            ratings.apply(recorded.sequence, recorded.event)
    if encode_snapshot(state, ratings) != encode_snapshot(remains.state, remains.ratings):
        yield f"the fold from the snapshot at event {first} differs from the fold of all events"


def no_job_is_left(remains: Remains) -> Iterator[str]:
    """Every evaluation is finished, and none waits for a job of the work queue."""
    for evaluation in remains.state.evaluations.values():
        if evaluation.finished is None:
            yield f"evaluation {evaluation.requested.evaluation_id} never finished"
    for message in remains.disk.streams[WORK_STREAM].messages.values():
        try:
            job = decode_job(message.data)
        except DecodeError:
            continue
        asked = remains.state.evaluations.get(job.evaluation_id)
        if asked is not None and job.match_id in asked.waiting:
            yield f"the job of match {job.match_id} is left in the queue"


def workers_leave_with_reason(remains: Remains) -> Iterator[str]:
    """No worker leaves for an error of the broker that is in no class, since its name or a job's id was taken.

    The history refuses every record of a worker whose name another process has. A trainer may find that another one,
    which was started while it was paused, has published its version.
    """
    for left in remains.of(e.WorkerLeft):
        is_rival = "was published by" in left.reason and f"by {left.worker} already" not in left.reason
        is_job = left.reason.startswith(f"{MessageIdError.__name__}:") and f" of {WORK_STREAM}, " in left.reason
        is_class = left.reason.startswith((f"{WorkerConflictError.__name__}:", f"{LogError.__name__}:"))
        if is_job or (is_class and not is_rival):
            yield f"{left.worker} left: {left.reason}"


INVARIANTS: tuple[Callable[[Remains], Iterator[str]], ...] = (
    acknowledged_messages_are_kept,
    history_is_readable,
    facts_are_recorded_once,
    every_version_is_published_once,
    steps_are_whole,
    every_sampled_match_ends,
    every_trained_trajectory_has_a_result,
    no_trajectory_is_used_twice,
    the_ledger_is_balanced,
    ratings_are_the_formula,
    ratings_are_the_fold,
    folds_are_equal,
    no_job_is_left,
    workers_leave_with_reason,
)
_MAX_REPORTED = 3


async def check_league(config: LeagueConfig, disk: Disk, acknowledged: Acknowledgements, folder: Path) -> list[str]:
    """Violations of all invariants, each with the name of its invariant."""
    remains = Remains(config, disk, acknowledged)
    violations = await _check_through_the_broker(Run(folder, nats=URL, name=config.name), remains)
    for invariant in INVARIANTS:
        found = [f"{invariant.__name__}: {text}" for text in invariant(remains)]
        violations += found[:_MAX_REPORTED]
        if len(found) > _MAX_REPORTED:
            violations.append(f"{invariant.__name__}: {len(found) - _MAX_REPORTED} more")
    return violations


async def _check_through_the_broker(run: Run, remains: Remains) -> list[str]:
    """The production reader finds all events, and the production check an intact archive and blobs."""
    try:
        async with run.open_log("auditor") as history:
            blobs = run.open_blob_store(history.client)
            found = [recorded async for recorded in history.read()]
            if snapshots := remains.of(e.SnapshotTaken):
                remains.snapshot = await blobs.store.get(snapshots[-1].artifact)
            report = await verify_history(history, blobs, client=history.client, scrubbed=lambda *_: None)
    except LeagueError as error:
        return [f"history_is_readable: {error}"]
    read, held = len(found), len(remains.recorded)
    violations = [] if read == held else [f"history_is_readable: read {read} of {held} events"]
    if not report.is_sound:
        violations.append(f"the_history_is_sound: {report}")
    return violations
