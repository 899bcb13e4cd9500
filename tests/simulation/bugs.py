"""Defects of earlier versions, put back: the simulator has to find each of them.

``python -m tests.simulation --bugs tests.simulation.bugs`` tries them all.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

import league.history.corrections
import league.log.access
import league.log.connection
import league.log.consumers
import league.log.jetstream
import league.log.publisher
import league.log.pull
import league.log.queues
import workers.runtime
from league.log.base import RecordedEvent
from league.log.connection import translate_broker_errors
from league.log.jetstream import JetStreamLog
from league.log.publisher import OutgoingMessage, Publisher
from league.log.queues import WorkQueue
from league.state import LeagueState
from schemas.codec import encode_job
from schemas.errors import BackpressureError, LogError
from schemas.events import EVENT_TYPES, Event
from schemas.events.base import MAX_EVENT_BYTES
from tests.simulation.campaign import Bug
from workers.evaluator import Evaluator
from workers.membership import SilenceRecorder
from workers.process import WorkerProcess
from workers.trainer import TrainerWorker


def take_events_of_any_size() -> None:
    for kind in (Event, *EVENT_TYPES.values()):
        kind.MAX_BYTES = MAX_EVENT_BYTES


def split_batches() -> None:
    publish = Publisher.publish

    async def one_by_one(self: Any, messages: Sequence[OutgoingMessage], *args: Any, **kwargs: Any) -> int:
        first = await publish(self, messages[:1], *args, **kwargs)
        for message in messages[1:]:
            await publish(self, [message])
        return first

    Publisher.publish = one_by_one  # type: ignore[method-assign]


def trust_duplicates() -> None:
    async def believe(*_: Any) -> None:
        pass

    Publisher._compare = believe  # type: ignore[method-assign]


def release_before_record() -> None:
    take_step = TrainerWorker._take_step

    async def released_first(self: Any, batch: Any) -> None:
        await self._context.experience.delete([item.sequence for item in batch])
        await take_step(self, batch)

    TrainerWorker._take_step = released_first  # type: ignore[method-assign]


def leave_matches_open() -> None:
    async def nothing(self: Any) -> None:
        pass

    SilenceRecorder.record_due = nothing  # type: ignore[method-assign]


def acknowledge_before_result() -> None:
    play = Evaluator._play

    async def acknowledged_first(self: Any, taken: Any) -> None:
        await taken.acknowledge()
        taken.acknowledge = never
        await play(self, taken)

    async def never(*_: Any) -> None:
        pass

    Evaluator._play = acknowledged_first  # type: ignore[method-assign]
    Evaluator.resubmit_lost = never  # type: ignore[attr-defined]


def snapshot_before_fold() -> None:
    to_snapshot = LeagueState.to_snapshot

    def one_ahead(self: Any) -> Any:
        return msgspec.structs.replace(saved := to_snapshot(self), sequence=saved.sequence + 1)

    LeagueState.to_snapshot = one_ahead  # type: ignore[method-assign]


def wait_for_a_lost_consumer() -> None:
    async def for_ever(client: Any, connection: int, something: asyncio.Event) -> None:
        await something.wait()

    league.log.pull._wait_for_arrival = for_ever


def end_without_a_leader() -> None:
    for module in (league.log.connection, league.log.queues):
        module.has_no_responder = lambda error: False  # type: ignore[attr-defined]


def fail_to_close() -> None:
    async def flush_and_close(client: Any) -> None:
        await client.close()

    league.log.jetstream.flush_and_close = flush_and_close


def read_as_the_operator() -> None:
    league.log.jetstream.is_worker = lambda client: False  # type: ignore[attr-defined]


def give_up_unreadable_credentials() -> None:
    league.log.access._PASSING = ()  # type: ignore[assignment]


def end_at_the_first_refusal() -> None:
    league.log.access._REFUSALS = 1


def cancel_once() -> None:
    async def cancel(tasks: Any) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    workers.runtime._cancel_all = cancel


def look_by_the_last_id() -> None:
    league.log.publisher.is_clustered = lambda client: False


def take_in_flight_for_a_conflict() -> None:
    league.log.connection._PASSING.discard(10164)
    league.log.connection._WRONG_LAST_SEQUENCE.add(10164)


def take_foreign_bytes_for_a_rival() -> None:
    async def is_new(self: Any, fence: Any) -> bool:
        return False

    JetStreamLog._advance_fence = is_new  # type: ignore[method-assign]


def take_foreign_bytes_for_events() -> None:
    RecordedEvent.is_event = True  # type: ignore[assignment, method-assign]


def end_at_a_taken_job_id() -> None:
    async def submit(self: Any, job: Any, is_lost: bool = False) -> None:
        message = OutgoingMessage(self._subject, encode_job(job), {})
        await self._publisher.publish([message])

    WorkQueue.submit = submit  # type: ignore[method-assign]


def end_at_the_limit_of_consumers() -> None:
    async def at_once(doing: str, request: Any, *_: Any, **__: Any) -> Any:
        try:
            with translate_broker_errors(doing):
                return await request()
        except BackpressureError as error:
            raise LogError(str(error)) from error

    league.log.consumers.retry_until_ready = at_once  # type: ignore[assignment]


class _Whatever(int):
    """A number that equals every other."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def skip_lost_deliveries() -> None:
    parse_position = league.log.pull._parse_position
    league.log.pull._parse_position = lambda msg: parse_position(msg)._replace(nth=_Whatever())
    league.log.pull._PENDING_HEADER = ""


def end_at_an_id_in_process() -> None:
    league.log.connection._PASSING.discard(10158)


def leave_ratings_after_a_void() -> None:
    async def none_due(*_: Any) -> list[Any]:
        return []

    league.history.corrections.make_corrections = none_due


def take_training_for_over() -> None:
    async def nothing_more(self: Any) -> bool:
        return False

    WorkerProcess._has_more_work = nothing_more  # type: ignore[method-assign]


BUGS = (
    Bug("a batch is appended event by event", split_batches, ("kill", "crash_broker"), 20),
    Bug("a duplicate is believed without a look at its bytes", trust_duplicates, ("false_duplicate",), 10),
    Bug("trajectories are released before the step is recorded", release_before_record, ("kill",), 20),
    Bug("matches of a killed worker never end", leave_matches_open, ("kill",), 10),
    Bug("a job is acknowledged before its result is recorded", acknowledge_before_result, ("kill",), 30),
    Bug("a snapshot names an event that is not in it", snapshot_before_fold, (), 3),
    Bug(
        "a reader waits for ever for a consumer that the broker has lost",
        wait_for_a_lost_consumer,
        ("crash_broker",),
        10,
    ),
    Bug("a worker ends because a stream has no leader", end_without_a_leader, ("no_leader",), 20),
    Bug(
        "closing a connection that was reset ends a process",
        fail_to_close,
        ("crash_broker", "no_leader", "partition"),
        40,
    ),
    Bug("workers make requests that only the operator may make", read_as_the_operator, (), 4),
    Bug(
        "a worker whose credentials could not be read once is never started again",
        give_up_unreadable_credentials,
        ("worker_disk_failing",),
        # A failing disk meets a read of credentials in six of the first hundred leagues, first in the 18th.
        40,
    ),
    Bug("one refused connection ends a worker for good", end_at_the_first_refusal, ("reload",), 10),
    Bug(
        "a condition that fails ends the history of a cluster",
        look_by_the_last_id,
        ("lost_replies", "slow_replica"),
        20,
    ),
    Bug(
        "a worker of a cluster takes a message in flight for the end of its name",
        take_in_flight_for_a_conflict,
        ("crash_server",),
        10,
    ),
    Bug("readers skip messages that were lost between two servers", skip_lost_deliveries, ("lost_deliveries",), 10),
    Bug(
        "a worker of a cluster ends because its message is still in flight when it is sent again",
        end_at_an_id_in_process,
        ("crash_server", "slow_disk"),
        40,
    ),
    Bug("foreign bytes on a worker's subject end it", take_foreign_bytes_for_a_rival, ("foreign_bytes",), 20),
    Bug("foreign bytes count as the newest event", take_foreign_bytes_for_events, ("foreign_bytes",), 20),
    Bug("a job's id that another took ends an evaluator", end_at_a_taken_job_id, ("taken_job_ids",), 20),
    Bug("no consumer to be had ends a worker", end_at_the_limit_of_consumers, ("no_consumers",), 20),
    Bug("an event of any size is recorded and read", take_events_of_any_size, ("huge_event",), 10),
    Bug("ratings are never corrected after a void", leave_ratings_after_a_void, ("void",), 10),
    Bug("a trainer is not started again for a longer training", take_training_for_over, ("configure",), 20),
)
