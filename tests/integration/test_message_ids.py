"""Message ids: no client can take another's, a duplicate is compared with what is stored, and no fact is split.

Jobs are delivered until they are acknowledged. The simulated broker has to behave as the real one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import nats.errors
import pytest
from nats.aio.client import Client

from league.log.base import RecordedEvent, publication_digest
from league.log.cluster import LocalCluster
from league.log.connection import connect
from league.log.dead_letters import DeadLetter, DeadLetters
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.queues import ExperienceStream, ReceivedTrajectory, WorkQueue
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.queries.decisions import find_pending_trajectory
from league.state import LeagueState
from schemas.codec import encode_event, encode_job, encode_trajectory
from schemas.config import ExperienceConfig
from schemas.errors import MessageIdError
from schemas.events import Event
from schemas.jobs import PlayMatch
from schemas.subjects import event_subject, experience_subject, work_subject
from tests.builders import checkpoint_added, gradient_step, policy_published, trajectory
from tests.simulation.broker.server import URL
from tests.simulation.standalone import run_with_broker

STEP: list[Event] = [policy_published(3), gradient_step(3), checkpoint_added(3)]
JOB = PlayMatch("e-1", "evaluation", ["random_bot", "random_bot"], seed=1, evaluation_id="e")

Body = Callable[[Client, Client], Awaitable[None]]


@pytest.fixture(
    scope="module",
    params=[EmbeddedServer, pytest.param(LocalCluster, marks=pytest.mark.slow), 1, 3],
    ids=["one broker", "cluster", "simulated", "simulated cluster"],
)
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str | int]:
    """Address of a broker, or the number of servers of a simulated one, which each test has for itself."""
    if isinstance(request.param, int):
        yield request.param
        return
    with request.param(tmp_path_factory.mktemp("ids")) as running:
        yield running.url


@pytest.fixture
def run(broker: str | int) -> Callable[[Body], None]:
    """Runs a body with two connections: a worker's, and that of another client."""

    async def main(body: Body, url: str) -> None:
        worker, other = await connect(url, "trainer"), await connect(url, "other")
        await ensure_streams(worker.jetstream(), ExperienceConfig())
        try:
            await asyncio.wait_for(body(worker, other), 300)
        finally:
            await flush_and_close(worker)
            await flush_and_close(other)

    def run_body(body: Body) -> None:
        if isinstance(broker, int):
            run_with_broker(lambda _: main(body, URL), is_clustered=broker > 1)
        else:
            asyncio.run(main(body, broker))

    return run_body


def messages(league: str, events: list[Event]) -> list[tuple[str, bytes]]:
    return [(event_subject(league, event), encode_event(event)) for event in events]


async def recorded(log: JetStreamLog) -> list[RecordedEvent]:
    return [each async for each in log.read()]


async def squat(client: Client, league: str, message_id: str, payload: bytes = b"{}") -> int:
    """Store a message under an id, on a subject of the client's own; returns its sequence."""
    headers = {"Nats-Msg-Id": message_id, "League-Producer": "rollout-0"}
    ack = await client.jetstream().publish(f"league.{league}.worker.joined.rollout-0", payload, headers=headers)
    return int(ack.seq)


def lose_acknowledgement(log: JetStreamLog) -> None:
    """Lose the next acknowledgement of the broker: what was published is stored, and the publisher hears nothing."""
    js = log._publisher._js
    publish = js.publish

    async def publish_and_lose(*args: object, **options: object) -> None:
        js.publish = publish
        await publish(*args, **options)
        raise nats.errors.TimeoutError

    js.publish = publish_and_lose


def test_an_id_made_of_the_key_of_an_event_hides_no_step(run: Callable[[Body], None]) -> None:
    async def body(worker: Client, other: Client) -> None:
        for event in STEP:
            await squat(other, "nim", f"nim:{event.key}")
        log = JetStreamLog(worker, "nim", "trainer-main")
        sequences = await log.append_batch(STEP)
        assert [each.event for each in await recorded(log) if each.sequence in sequences] == STEP

    run(body)


def test_a_message_under_the_id_of_another_is_an_error_that_names_both(run: Callable[[Body], None]) -> None:
    async def body(worker: Client, other: Client) -> None:
        log = JetStreamLog(worker, "taken", "trainer-main")
        step = gradient_step(4)
        at = await squat(other, "taken", publication_digest(messages("taken", [step])))
        with pytest.raises(MessageIdError) as raised:
            await log.append(step)
        text = str(raised.value)
        assert "step:main:4 on league.taken.step.taken from trainer-main is not recorded" in text
        assert f"message {at} of LEAGUE, b'{{}}' on league.taken.worker.joined.rollout-0 from rollout-0" in text
        at = await squat(other, "taken", publication_digest(messages("taken", STEP)), encode_event(STEP[0]))
        for expected in (None, 0):
            with pytest.raises(MessageIdError, match=f"published:main@3 .* is taken by message {at} of LEAGUE"):
                await log.append_batch(STEP, expected=expected)
        assert [each.event for each in await recorded(log) if each.event is not None] == []

    run(body)


def test_equal_bytes_in_front_of_other_ones_are_no_repetition_of_a_batch(run: Callable[[Body], None]) -> None:
    async def body(worker: Client, other: Client) -> None:
        log = JetStreamLog(worker, "front", "trainer-main")
        subject, payload = messages("front", STEP)[0]
        headers = {"Nats-Msg-Id": publication_digest(messages("front", STEP))}
        at = (await other.jetstream().publish(subject, payload, headers=headers)).seq
        with pytest.raises(
            MessageIdError, match=f"step:main:3 .* is taken by message {at + 1} of LEAGUE, which cannot"
        ):
            await log.append_batch(STEP)

    run(body)


def test_a_client_without_the_key_cannot_take_an_id(run: Callable[[Body], None]) -> None:
    async def body(worker: Client, other: Client) -> None:
        worker.id_key = b"SUSECRET"
        await squat(other, "keyed", publication_digest(messages("keyed", STEP)))
        log = JetStreamLog(worker, "keyed", "trainer-main")
        first = await log.append_batch(STEP)
        assert await log.append_batch(STEP) == first
        again = JetStreamLog(worker, "keyed", "another name")
        assert await again.append_batch(STEP) == first, "the credentials count, not the name"

    run(body)


@pytest.mark.parametrize("expected", [None, 0])
def test_a_lost_acknowledgement_records_once(run: Callable[[Body], None], expected: int | None) -> None:
    async def body(worker: Client, other: Client) -> None:
        league = f"lost-{expected}"
        log = JetStreamLog(worker, league, "trainer-main")
        lose_acknowledgement(log)
        sequences = await log.append_batch(STEP, expected=expected)
        lose_acknowledgement(log)
        single = await log.append(gradient_step(4), expected=None if expected is None else sequences[1])
        assert [each.sequence for each in await recorded(log)] == [*sequences, single]

    run(body)


def test_a_process_that_ended_before_the_acknowledgement_records_once(run: Callable[[Body], None]) -> None:
    """The next process either repeats the step as it was, or takes another one of the same number."""

    async def body(worker: Client, other: Client) -> None:
        before = JetStreamLog(worker, "killed", "trainer-main")
        first = await before.append_batch(STEP)
        after = JetStreamLog(other, "killed", "trainer-main")
        assert await after.append_batch(STEP) == first
        else_wise = [policy_published(3, adapter="f" * 64), gradient_step(3, accepted=9), checkpoint_added(3)]
        assert await after.append_batch(else_wise) == [first[-1] + n for n in (1, 2, 3)], "never split"
        state = LeagueState()
        for each in await recorded(after):
            state.apply(each.sequence, each.event)
        step = state.last_step("main")
        assert step is not None
        assert (step.accepted, state.published["main"][3].adapter) == (0, f"{3:064d}"), "the first account holds"

    run(body)


async def first_trajectories(stream: ExperienceStream, policy: str, most: int) -> list[ReceivedTrajectory]:
    out: list[ReceivedTrajectory] = []
    async for received in stream.follow(policy, 1):
        out.append(received)
        if len(out) == most:
            break
    return out


def test_trajectories_are_stored_once_and_under_ids_of_their_own(run: Callable[[Body], None]) -> None:
    async def body(worker: Client, other: Client) -> None:
        stream = ExperienceStream(worker, "exp")
        ours, next_one = trajectory("m-1", policy="hero"), trajectory("m-2", policy="hero")
        subject = experience_subject("exp", "hero")
        # An id that is easy to guess is taken, ours is not.
        await other.jetstream().publish(subject, b"junk", headers={"Nats-Msg-Id": "exp:m-1:0"})
        assert await stream.publish(ours) == await stream.publish(ours)
        await stream.publish(next_one)
        found = await asyncio.wait_for(first_trajectories(stream, "hero", 3), 300)
        assert [(each.match_id, each.seat) for each in found] == [("", -1), ("m-1", 0), ("m-2", 0)]
        assert [each.trajectory for each in found] == [None, ours, next_one]
        assert await find_pending_trajectory(worker, "exp", "hero", "m-2", 0) == next_one
        await stream.purge_through("hero", found[-1].sequence)
        await stream.publish(ours)
        assert await find_pending_trajectory(worker, "exp", "hero", "m-1", 0) is None, "used, and not stored again"
        third = trajectory("m-3", policy="hero")
        message_id = publication_digest([(subject, encode_trajectory(third))])
        await other.jetstream().publish(
            experience_subject("exp", "villain"), b"junk", headers={"Nats-Msg-Id": message_id}
        )
        with pytest.raises(MessageIdError, match=r"on experience\.exp\.hero .* b'junk' on experience\.exp\.villain"):
            await stream.publish(third)

    run(body)


def test_jobs_of_several_evaluators_are_stored_once(run: Callable[[Body], None]) -> None:
    async def body(worker: Client, other: Client) -> None:
        worker.id_key, other.id_key = b"one evaluator", b"another"
        queue, second = WorkQueue(worker, "jobs"), WorkQueue(other, "jobs")
        await queue.create_consumer()
        await queue.bind()
        await other.jetstream().publish(
            work_subject("jobs", "play_match"), b"{}", headers={"Nats-Msg-Id": f"jobs:{JOB.key}"}
        )
        await queue.submit(JOB)
        await second.submit(JOB)
        (taken,) = await queue.fetch(10, timeout_s=60.0)
        assert taken.job == JOB
        await taken.acknowledge()
        await worker.flush()
        await queue.submit(JOB)
        assert await queue.fetch(10, timeout_s=0.3) == [], "played, and not requested again"

    run(body)


def test_a_job_is_delivered_again_until_it_is_acknowledged(
    run: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("league.log.queues.ACK_WAIT_S", 1.0)

    async def body(worker: Client, other: Client) -> None:
        queue, second = WorkQueue(worker, "leases"), WorkQueue(other, "leases")
        await queue.create_consumer()
        await queue.bind()
        await second.bind()
        await queue.submit(JOB)
        (first,) = await queue.fetch(1, timeout_s=60.0)
        (again,) = await second.fetch(1, timeout_s=60.0)
        assert (first.delivery_count, again.delivery_count, again.job) == (1, 2, JOB)
        await again.acknowledge()
        await other.flush()
        assert await queue.fetch(1, timeout_s=1.5) == []

    run(body)


def test_equal_messages_of_two_dead_letters_are_both_put_back(run: Callable[[Body], None]) -> None:
    async def body(worker: Client, other: Client) -> None:
        letters, data = DeadLetters(worker, "dead"), encode_job(JOB)
        for sequence in (1, 2):
            await letters.publish(
                DeadLetter("WORK", sequence, work_subject("dead", "play_match"), "", payload=data, size=len(data))
            )
        for entry in await letters.list_all():
            await letters.retry(entry)
            await letters.retry(entry)
        queue = WorkQueue(worker, "dead")
        await queue.create_consumer()
        await queue.bind()
        assert [taken.job for taken in await queue.fetch(10, timeout_s=60.0)] == [JOB, JOB]

    run(body)
