"""A trainer that is killed again and again ends where one that never was ends, bit for bit, and loses count of nothing.

``LEAGUE_KILLS`` says how often; ``make test-faults`` kills it 50 times.
"""

import asyncio
import os
import random
import shutil
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
import pytest
from nats.aio.client import Client

import workers.rollout
import workers.trainer
from league.blobs import BrokerBlobStore
from league.log.base import RecordedEvent
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.queues import LABEL_HEADER, ExperienceStream
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.run import Run
from league.state import LeagueState
from lifecycle.open import open_league
from schemas.codec import decode_trajectory, encode_trajectory
from schemas.config import (
    BlobsConfig,
    BufferConfig,
    ExperienceConfig,
    GroupAssemblyConfig,
    LeagueConfig,
    Plugin,
    RolloutConfig,
    StopConfig,
    load_config,
)
from schemas.errors import BackpressureError
from schemas.events import GradientStepTaken, MatchFinished, PolicyPublished, WorkerLeft
from schemas.ids import digest
from schemas.subjects import EXPERIENCE_STREAM, experience_subject
from schemas.trajectories import Trajectory
from tests.forks import FORKS
from trainer.report import StepReport
from workers.run_worker import run_worker
from workers.runtime import Context, beside
from workers.trainer import load_policy_base

KILLS = int(os.environ.get("LEAGUE_KILLS", "5"))
STEPS = max(16, 3 * KILLS)
PER_STEP = 4
SLACK = 8
"""Rollouts beyond those that are trained on, so that a batch is always drawn from a full buffer."""
BUFFERS = {
    "oldest": BufferConfig(),
    "uniform": BufferConfig(strategy=Plugin(name="uniform"), batch_delay=2.0),
    "steps": BufferConfig(level="step", steps_per_batch=3, strategy=Plugin(name="prioritised"), batch_delay=2.0),
    "groups": BufferConfig(strategy=Plugin(name="uniform"), batch_delay=2.0),
    "peft": BufferConfig(strategy=Plugin(name="uniform"), batch_delay=2.0),
}
"""By kind of league. One is trained by transformers and PEFT, the others by the native decoder."""
PEFT = Plugin(name="peft", settings={"dropout": 0.1})
"""With dropout, whose draws have to be repeated too."""
SIZES = (4, 4, 3, 2, 1, 1, 1)
"""Of the groups in which the recorded rollouts are sent again for the buffer of that name, over and over."""
ALL_IN_THE_BROKER = 1_000_000_000
"""A least size for blobs in the folder that none of a test has."""


def config(buffer: BufferConfig, blobs: Path, ranks: int = 1, min_bytes: int = ALL_IN_THE_BROKER) -> LeagueConfig:
    tiny = load_config(Path(__file__).parents[2] / "configs" / "nim-tiny.toml")
    trainer = msgspec.structs.replace(
        tiny.trainer,
        backend=PEFT if buffer is BUFFERS["peft"] else tiny.trainer.backend,
        rollouts_per_step=PER_STEP,
        max_lag_steps=10_000,
        buffer=buffer,
        gathering=GroupAssemblyConfig(max_open=2),
        # Its baselines are in the recorded state, or a trainer that begins again would credit otherwise.
        advantage=Plugin(name="rae") if buffer is BUFFERS["groups"] else tiny.trainer.advantage,
        ranks=ranks,
    )
    rollout = RolloutConfig(games_in_flight=8, ahead_steps=float(STEPS + SLACK))
    # Not more bytes than the small store of a test has: the broker sets them aside.
    experience = msgspec.structs.replace(tiny.experience, max_messages=100_000, max_bytes=4_000_000)
    return msgspec.structs.replace(
        tiny,
        trainer=trainer,
        rollout=rollout,
        experience=experience,
        stop=StopConfig(steps=STEPS),
        blobs=BlobsConfig(url=str(blobs), min_bytes=min_bytes),
    )


class End(NamedTuple):
    """When a process kills itself, or its other rank: no other process would be in time on a busy machine."""

    steps: int
    """After so many gradient steps of its own,"""
    delay_s: float = 0.0
    """and so many seconds, or one more step."""
    is_of_rank: bool = False


def begin(folder: Path, role: str, end: End | None = None) -> BaseProcess:
    serve = {"trainer": workers.trainer.serve, "rollout": workers.rollout.serve}[role]
    process = FORKS.Process(target=run_to_end, args=(end, Run(folder), role, f"{role}-1", serve))
    process.start()
    return process


def run_to_end(end: End | None, *arguments: Any) -> None:
    """Run a worker, in a process that is its own."""
    if end is not None:
        prepare(end)
    run_worker(*arguments)


def prepare(end: End) -> None:
    append, steps = JetStreamLog.append_batch, 0

    def kill() -> None:
        for pid in [rank.pid for rank in ranks_of(os.getpid())] if end.is_of_rank else [os.getpid()]:
            os.kill(pid, signal.SIGKILL)

    def count() -> None:
        if steps == end.steps:
            timer = threading.Timer(end.delay_s, kill)
            timer.daemon = True
            timer.start()
        elif steps > end.steps:
            # A fast machine would take all steps in these seconds.
            kill()

    async def counted(self: JetStreamLog, events: Any, **options: Any) -> list[int]:
        nonlocal steps
        sequences = await append(self, events, **options)
        if any(isinstance(event, GradientStepTaken) for event in events):
            steps += 1
            count()
        return sequences

    JetStreamLog.append_batch = counted  # type: ignore[method-assign]
    count()


@asynccontextmanager
async def broker(folder: Path, max_store_bytes: int | None = None) -> AsyncIterator[Client]:
    with EmbeddedServer(folder / "nats", max_store_bytes=max_store_bytes) as server:
        client = await connect(server.url, "test")
        try:
            yield client
        finally:
            await flush_and_close(client)


async def history(client: Client) -> list[RecordedEvent]:
    return [recorded async for recorded in JetStreamLog(client, "nim", "test").read()]


Condition = Callable[[], Awaitable[bool]]


async def until(condition: Condition, timeout_s: float = 600.0) -> None:
    async with asyncio.timeout(timeout_s):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.02)


class Pass(NamedTuple):
    """What one pass over the recorded stream came to."""

    batches: list[tuple[str, list[list[int]], list[Any]]]
    weights: list[str]
    state: str
    skipped: int
    """Steps that left the weights as they were, such as one whose matches gave the hero no choice."""
    given_up: list[str]
    """Matches of members of groups that others were missing from."""


async def passed(client: Client) -> Pass:
    events = [recorded.event for recorded in await history(client)]
    steps = [event for event in events if isinstance(event, GradientStepTaken)]
    published = {event.version: event.adapter for event in events if isinstance(event, PolicyPublished)}
    return Pass(
        [(step.batch, step.trained, step.parts) for step in steps],
        [published[version] for version in sorted(published)],
        steps[-1].state,
        sum(step.skipped for step in steps),
        [match for step in steps for left in step.dropped if left.reason == "given_up" for match in left.matches],
    )


async def record(folder: Path, buffer: BufferConfig) -> None:
    """Open a league, let a trainer publish its first version, and play ahead of training."""
    async with broker(folder) as client:
        await open_league(Run(folder), client, config(buffer, folder.parent / "blobs"), lambda text, share: None)

        async def published() -> bool:
            return any(isinstance(recorded.event, PolicyPublished) for recorded in await history(client))

        async def played() -> bool:
            info = await client.jetstream().stream_info(EXPERIENCE_STREAM)
            return info.state.messages >= (STEPS + SLACK) * PER_STEP - 2 * PER_STEP

        for role, condition in (("trainer", published), ("rollout", played)):
            process = begin(folder, role)

            async def there(process: BaseProcess = process, condition: Condition = condition) -> bool:
                assert process.is_alive(), f"the {process.name} ended"
                return await condition()

            await until(there)
            process.kill() if role == "trainer" else process.terminate()
            process.join(300)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "run"
    asyncio.run(record(folder, BUFFERS["oldest"]))
    return folder


@pytest.fixture(scope="module")
def uninterrupted(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], "Pass"]:
    """What a pass that nobody disturbs comes to, with a kind of buffer."""

    @cache
    def passed_with(kind: str) -> Pass:
        return asyncio.run(whole(copied(recorded, tmp_path_factory.mktemp("whole") / "run", kind)))

    return passed_with


def copied(recorded: Path, folder: Path, kind: str, ranks: int = 1, min_bytes: int = ALL_IN_THE_BROKER) -> Path:
    """The recorded league, told to train with a kind of buffer and some ranks; large blobs go to a folder."""
    shutil.copytree(recorded, folder, ignore=shutil.ignore_patterns("logs", "server.json", "*.lock"))

    async def configure() -> None:
        async with broker(folder) as client:
            changed = config(BUFFERS[kind], recorded.parent / "blobs", ranks, min_bytes)
            await open_league(Run(folder), client, changed, lambda text, share: None)
            if kind == "groups":
                await regroup(client)

    asyncio.run(configure())
    return folder


async def regroup(client: Client) -> None:
    """Send what was recorded once more, in groups whose members come between each other; two are never complete."""
    stream, subject = client.jetstream(), experience_subject("nim", "main")
    last = (await stream.stream_info(EXPERIENCE_STREAM)).state.last_seq
    lying = [decode_trajectory((await stream.get_msg(EXPERIENCE_STREAM, at)).data) for at in range(1, last + 1)]
    places = [(n + at / 2, n, size) for n, size in enumerate(SIZES * last) for at in range(size)][:last]
    await stream.purge_stream(EXPERIENCE_STREAM)
    for rollout, (_, n, size) in zip(lying, sorted(places), strict=True):
        wanted = size + (n in (1, 9))
        grouped = msgspec.structs.replace(rollout, group=f"group-{n}", group_size=wanted)
        await stream.publish(subject, encode_trajectory(grouped))


async def whole(folder: Path) -> Pass:
    async with broker(folder) as client:
        process = begin(folder, "trainer")
        await asyncio.to_thread(process.join, 300)
        assert process.exitcode == 0
        return await passed(client)


async def killed(folder: Path, kills: int, seed: int) -> tuple[Pass, int]:
    """The same, killed at random moments: before, in, between and after steps."""
    rng = random.Random(seed)
    async with broker(folder) as client:
        for landed in range(kills + 1):
            end = End(rng.randint(0, 2), rng.uniform(0.0, 0.25)) if landed < kills else None
            process = begin(folder, "trainer", end)
            await asyncio.to_thread(process.join, 300)
            if process.exitcode == 0:
                return await passed(client), landed
            assert process.exitcode == -signal.SIGKILL
            await assert_balanced(client)
    raise AssertionError("killed though it was not to be")


async def assert_balanced(client: Client) -> None:
    """Every rollout has left once or waits, and what waits lies in the stream."""
    state, events = LeagueState(), await history(client)
    for each in events:
        state.apply(each.sequence, each.event)
    consumed = state.consumption.position("main")
    used = [match for r in events if isinstance(r.event, GradientStepTaken) for match in r.event.matches]
    parts = [part for r in events if isinstance(r.event, GradientStepTaken) for part in r.event.parts]
    assert parts or len(used) == len(set(used))
    pending = sum(
        not state.consumption.is_accounted(r.event.match_id, seat.seat)
        for r in events
        if isinstance(r.event, MatchFinished) and r.event.experience
        for seat in r.event.seats
        if seat.trainable
    )
    js = client.jetstream()
    last = (await js.stream_info(EXPERIENCE_STREAM)).state.last_seq
    lying, first = 0, (await js.stream_info(EXPERIENCE_STREAM)).state.first_seq
    for sequence in range(max(consumed.floor + 1, first), last + 1):
        if not consumed.is_accounted(sequence):
            await js.get_msg(EXPERIENCE_STREAM, sequence)
            lying += 1
    assert lying == pending


Uninterrupted = Callable[[str], Pass]


@pytest.mark.parametrize("kind", BUFFERS if KILLS > 5 else ["groups"])
def test_a_trainer_killed_again_and_again_ends_with_the_same_weights(
    recorded: Path, uninterrupted: Uninterrupted, tmp_path: Path, kind: str
) -> None:
    expected = uninterrupted(kind)
    # Where adapters and states are stored makes no difference.
    run = copied(recorded, tmp_path / "run", kind, min_bytes=1000)
    found, landed = asyncio.run(killed(run, KILLS, seed=4))
    assert landed == KILLS
    assert len(expected.batches) == STEPS
    assert found.batches == expected.batches
    assert found.weights == expected.weights
    assert found.state == expected.state
    assert {found.state, *found.weights[1:]} <= {path.name for path in (recorded.parent / "blobs").rglob("??/*")}
    assert expected.skipped <= STEPS // 4
    assert len(set(expected.weights)) == STEPS + 1 - expected.skipped, "every other step moved the weights"
    assert len(expected.given_up) == (4 + 3 if kind == "groups" else 0)
    assert found.given_up == expected.given_up


def test_the_next_step_is_computed_while_one_is_stored_and_recorded_after_it(
    recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(copied(recorded, tmp_path / "run", "oldest"))

    async def trained() -> tuple[int, list[int]]:
        async with run.open_log("trainer-1") as log:
            context = Context(run, log.client, log, "trainer-1")
            async with asyncio.timeout(300), beside(context.follow()):
                await context.wait_for_sequence(await log.last_sequence())
                worker = workers.trainer.TrainerWorker(context, await load_policy_base(context), "main")
                await worker.resume()
                put, during = worker._states.put, list[int]()
                compute, threads = worker._group.step, set[int]()

                def step_in_thread(*given: Any) -> StepReport:
                    threads.add(threading.get_ident())
                    return compute(*given)

                async def put_slowly(data: bytes) -> str:
                    while not during and worker.learner.steps < 2:  # noqa: ASYNC110  (a learner has no event)
                        await asyncio.sleep(0.01)
                    during.append(len(context.state.published["main"]))
                    if len(during) == 2:
                        context.stopping.set()
                    return await put(data)

                monkeypatch.setattr(worker._states, "put", put_slowly)
                monkeypatch.setattr(worker._group, "step", step_in_thread)
                async with beside(worker.experience_reader.receive()):
                    await worker.train()
                steps = [r.event.step async for r in log.read() if isinstance(r.event, GradientStepTaken)]
                assert len(threads) == 1, "the C library keeps what a thread has freed for that thread"
                assert threads != {threading.get_ident()}
                return during[0], steps

    published, steps = asyncio.run(trained())
    assert published == 1, "while the first step was stored, only the version before it had been published"
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 2


def test_a_rank_that_is_killed_ends_the_worker_and_the_next_one_goes_on_to_the_bit(
    recorded: Path, tmp_path: Path
) -> None:
    async def interrupted(folder: Path) -> str:
        async with broker(folder) as client:
            process = begin(folder, "trainer", End(steps=2, is_of_rank=True))
            await asyncio.to_thread(process.join, 300)
            await assert_balanced(client)
            (left,) = [r.event for r in await history(client) if isinstance(r.event, WorkerLeft)][-1:]
            return left.reason

    folder = copied(recorded, tmp_path / "run", "oldest", ranks=2)
    reason = asyncio.run(interrupted(copied(recorded, tmp_path / "killed", "oldest", ranks=2)))
    assert "of 2 ranks of the trainer ended: rank-1 with code -9" in reason
    through, again = (asyncio.run(whole(where)) for where in (folder, tmp_path / "killed"))
    assert again == through


def ranks_of(pid: int) -> list[psutil.Process]:
    """The processes that a trainer has started for its other ranks."""
    return [child for child in psutil.Process(pid).children() if "spawn_main" in _command_line(child)]


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        # It has ended, and its end may not have been collected yet (``ZombieProcess``).
        return ""


def test_a_full_store_leaves_the_last_checkpoint_whole_and_more_room_lets_training_go_on_alike(
    recorded: Path, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    async def full(folder: Path) -> None:
        async with broker(folder) as client:
            used = (await client.jetstream().account_info()).storage
        async with broker(folder, used + 2_200_000) as client:
            process = begin(folder, "trainer")
            await asyncio.to_thread(process.join, 300)
            steps = [r.event for r in await history(client) if isinstance(r.event, GradientStepTaken)]
            assert 0 < len(steps) < STEPS
            assert digest(await BrokerBlobStore(client, "nim").get(steps[-1].state)) == steps[-1].state
            await assert_balanced(client)

    folder = copied(recorded, tmp_path / "run", "uniform")
    asyncio.run(full(folder))
    assert asyncio.run(whole(folder)) == uninterrupted("uniform")


def test_damaged_messages_and_copies_are_named_and_training_goes_on(recorded: Path, tmp_path: Path) -> None:
    async def spoilt(folder: Path) -> list[GradientStepTaken]:
        async with broker(folder) as client:
            subject, stream = experience_subject("nim", "main"), client.jetstream()
            first = await stream.get_msg(EXPERIENCE_STREAM, 1)
            rest = [await stream.get_msg(EXPERIENCE_STREAM, sequence) for sequence in range(2, 20)]
            await stream.purge_stream(EXPERIENCE_STREAM)
            await stream.publish(subject, first.data)
            await stream.publish(subject, b"\xff no rollout", headers={LABEL_HEADER: "rollout-9-7:0"})
            await stream.publish(subject, first.data)
            await stream.publish(subject, b"not labelled either")
            for message in rest:
                await stream.publish(subject, message.data)
            process = begin(folder, "trainer")

            async def trained() -> bool:
                return sum(isinstance(recorded.event, GradientStepTaken) for recorded in await history(client)) >= 2

            await until(trained)
            process.kill()
            process.join()
            return [r.event for r in await history(client) if isinstance(r.event, GradientStepTaken)]

    steps = asyncio.run(spoilt(copied(recorded, tmp_path / "run", "oldest")))
    begun = steps[0].experience_from
    assert [(group.reason, group.matches) for group in steps[0].dropped] == [
        ("refused", ["rollout-9-7", steps[0].dropped[0].matches[1]]),
        ("copy", steps[0].matches[:1]),
    ]
    assert steps[0].dropped[0].matches[1].startswith("#")
    assert (steps[0].refused, steps[0].accepted, steps[1].accepted) == (2, PER_STEP, PER_STEP)
    assert steps[0].experience_to >= begun + PER_STEP + 2


def test_what_is_accounted_for_makes_room_though_an_older_one_waits(tmp_path: Path) -> None:
    def rollout(n: int) -> Trajectory:
        return Trajectory(f"m-{n}", "nim", "main", 0, "first", "g", [], 1, 1.0, 1.0, 1)

    async def fill() -> list[int]:
        async with broker(tmp_path) as client:
            await ensure_streams(client.jetstream(), ExperienceConfig(max_messages=3))
            stream = ExperienceStream(client, "nim")
            for n in range(3):
                await stream.publish(rollout(n))
            with pytest.raises(BackpressureError):
                await stream.publish(rollout(3))
            # Some may be gone already, or were never there.
            for _ in range(2):
                await stream.delete([2, 3, 99])
            await stream.publish(rollout(4))
            await stream.publish(rollout(5))
            found: list[int] = []
            async for received in stream.follow("main", 1):
                found.append(received.sequence)
                if len(found) == 3:
                    return found
            return found

    assert asyncio.run(fill()) == [1, 4, 5]
