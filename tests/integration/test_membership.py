"""One live process per name and one trainer per policy; silent processes are recorded as left, with their matches."""

import asyncio
import contextlib
import errno
import os
import platform
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
import structlog

import workers.membership
from league.log.access import BrokerCredentials
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.run import Run
from league.state.saved_state import WorkerState
from lifecycle.reconfigure import configuration_event, with_settings
from schemas import events as e
from schemas.config import LeagueConfig
from schemas.errors import AccessError, ConflictError, DiskError, LogUnavailableError, VersionError, WorkerConflictError
from schemas.metrics import HEARTBEAT_S, Heartbeat
from tests.builders import opening_events, opponents_sampled, policy_published
from workers.compatibility import check_versions, older_deciders
from workers.learner_state import append_published
from workers.membership import Membership, SilenceDetector, SilenceRecorder, has_ended_here, machine_digest
from workers.monitoring.metrics import HeartbeatPublisher
from workers.process import WorkerProcess, WorkerSpec, read_reason_to_leave
from workers.run_worker import _open_log, _serve_as_member, _serve_until_done, _stop_with_supervisor, worker_main
from workers.runtime import Context, beside

LEAGUE = "t"
Start = Callable[[str], contextlib.AbstractAsyncContextManager[Context]]


@pytest.fixture(autouse=True)
def other_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The "processes" of these tests share a process, so none may conclude from its own id that another ended."""
    monkeypatch.setattr(workers.membership, "machine_digest", lambda: "")
    monkeypatch.setattr(workers.membership, "SILENCE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(workers.membership, "_TICK_S", 0.1)


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that lives is heard before a pause of a busy machine can be taken for its silence."""
    monkeypatch.setattr(workers.membership, "SILENCE_TIMEOUT_S", 300.0)


def in_a_league(folder: Path, body: Callable[[Start], Awaitable[None]]) -> None:
    """Run ``body`` with a broker on which a league is open; its argument starts processes, each with a connection."""

    async def run() -> None:
        with EmbeddedServer(folder / "nats") as server:
            opener = await connect(server.url, "opener")
            await ensure_streams(opener.jetstream(), LeagueConfig().experience)
            await JetStreamLog(opener, LEAGUE, "opener").append_batch(opening_events(LeagueConfig(), LEAGUE))

            @contextlib.asynccontextmanager
            async def start(name: str) -> AsyncIterator[Context]:
                client = await connect(server.url, name)
                context = Context(Run(folder), client, JetStreamLog(client, LEAGUE, name), name)
                try:
                    async with beside(context.follow()):
                        await context.fold_through(await context.log.last_sequence())
                        yield context
                finally:
                    await flush_and_close(client)

            try:
                async with asyncio.timeout(300):
                    await body(start)
            finally:
                await flush_and_close(opener)

    asyncio.run(run())


async def beat(context: Context, role: str) -> None:
    heart = HeartbeatPublisher(context, role)
    while True:
        await heart.publish()
        await asyncio.sleep(0.05)


async def recorded_events(context: Context, kind: type[e.Event]) -> list[e.Event]:
    return [r.event async for r in context.log.read() if isinstance(r.event, kind)]


@pytest.mark.usefixtures("_patient")
def test_the_name_of_a_live_process_is_refused(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        async with start("w") as first, start("w") as second:
            await Membership(first, "rollout").join()
            async with beside(beat(first, "rollout")):
                with pytest.raises(WorkerConflictError, match=rf"w is the name of process {os.getpid()} on .*kill"):
                    await Membership(second, "rollout").join()
            assert len(await recorded_events(first, e.WorkerJoined)) == 1
            await first.append(e.WorkerLeft("other", "a", "still accepted"))

    in_a_league(tmp_path, body)


@pytest.mark.usefixtures("_patient")
def test_of_two_processes_that_join_at_once_one_is_refused(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        async with start("w") as first, start("w") as second:

            async def join(context: Context) -> bool:
                try:
                    await Membership(context, "rollout").join()
                except WorkerConflictError:
                    return False
                beating.append(asyncio.create_task(beat(context, "rollout")))
                return True

            beating: list[asyncio.Task[None]] = []
            try:
                assert sorted(await asyncio.gather(join(first), join(second))) == [False, True]
            finally:
                for task in beating:
                    task.cancel()

    in_a_league(tmp_path, body)


def test_a_silent_process_is_replaced_and_its_appends_are_rejected(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        async with start("w") as first, start("w") as second:
            membership = Membership(first, "rollout")
            await membership.join()
            await first.append(sampled(0))
            await Membership(second, "rollout").join()
            with pytest.raises(WorkerConflictError, match="w: another process has taken over this name"):
                await first.append(sampled(1))
            with pytest.raises(WorkerConflictError):
                await first.log.append_batch([sampled(1), sampled(2)])
            with pytest.raises(WorkerConflictError):
                # As a rater does, to whom a conflict alone says that the history brings these events.
                await twice(first, e.WorkerLeft("other", "a", "gone"), expected=0)
            with pytest.raises(WorkerConflictError, match=r"w: process .* taken this name over"):
                await membership.watch()
            # Its leaving is not recorded as that of the successor.
            await membership.leave("done")
            await second.append(sampled(1))
            left = await recorded_events(second, e.WorkerLeft)
            assert [(event.incarnation, event.reason[:4]) for event in left] == [(first.incarnation, "gone")]  # type: ignore[attr-defined]
            assert second.state.workers["w"].left is None

    in_a_league(tmp_path, body)


@pytest.mark.usefixtures("_patient")
def test_a_second_trainer_of_a_policy_is_refused(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        async with start("trainer-1") as first, start("trainer-2") as second, start("trainer-3") as third:
            await Membership(first, "trainer", "main").join()
            async with beside(beat(first, "trainer")):
                await Membership(second, "trainer", "exploiter").join()
                with pytest.raises(WorkerConflictError, match="policy main is trained by trainer-1, process"):
                    await Membership(third, "trainer", "main").join()

    in_a_league(tmp_path, body)


def test_of_two_trainers_one_publishes_a_version(tmp_path: Path) -> None:
    """Also while another policy's trainer publishes on the same subject."""

    async def body(start: Start) -> None:
        async with start("trainer-1") as first, start("trainer-2") as second, start("trainer-3") as third:

            async def publish(context: Context, policy: str) -> int:
                for version in range(10):
                    try:
                        await append_published(context, [policy_published(version, policy, adapter=context.name)])
                    except WorkerConflictError as error:
                        refusals.append(str(error))
                        return version
                return 10

            refusals: list[str] = []
            done = await asyncio.gather(publish(first, "main"), publish(second, "main"), publish(third, "exploiter"))
            assert done[2] == 10
            assert max(done[:2]) == 10
            assert f"version {min(done[:2])} of main was published by trainer-" in refusals[0]
            published = await recorded_events(first, e.PolicyPublished)
            assert len(published) == 20

    in_a_league(tmp_path, body)


def sampled(n: int, worker: str = "w") -> e.OpponentsSampled:
    return opponents_sampled(f"{worker}-{n}", worker)


async def record_silence(context: Context, recorder: SilenceRecorder) -> None:
    """Bring a rater's own heartbeats to the number that the configured silence takes."""
    own = HeartbeatPublisher(context, "rater")._make()
    for _ in range(int(context.config.workers.silence_s / HEARTBEAT_S) + 3):
        recorder._detector.observe(own)
        await recorder.record_due()


def test_a_silent_worker_is_recorded_as_left_once_and_joins_again(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        async with start("w") as worker, start("rater-1") as rater, start("rater-2") as standby:
            membership = Membership(worker, "inference")
            await membership.join()
            before = worker.incarnation
            await worker.announce(e.InferenceServing("w", before, "http://127.0.0.1:1", "local"))
            for n in range(3):
                await worker.append(sampled(n))
            failed = e.MatchFailed(match_id="w-1", purpose="training", worker="w", error="its own")
            await rater.fold_through(await worker.append(failed))
            await standby.fold_through(await rater.log.last_sequence())
            await asyncio.gather(*(record_silence(c, SilenceRecorder(c)) for c in (rater, standby)))
            left = await recorded_events(rater, e.WorkerLeft)
            assert [(event.worker, event.reason) for event in left] == [("w", "silent: no heartbeat for 60 s")]  # type: ignore[attr-defined]
            ends = await recorded_events(rater, e.MatchFailed)
            assert sorted(event.match_id for event in ends) == ["w-0", "w-1", "w-2"]  # type: ignore[attr-defined]
            assert not rater.state.in_play.unfinished
            async with beside(membership.watch()):
                while worker.incarnation == before or not worker.state.workers["w"].url:
                    await worker.wait_for_event(0.1)
            assert worker.state.workers["w"].left is None
            await worker.append(sampled(3))

    in_a_league(tmp_path, body)


def test_silence_is_counted_by_the_observers_own_heartbeats() -> None:
    def heartbeat(incarnation: str) -> Heartbeat:
        return Heartbeat(incarnation, "rollout", incarnation, "h", 1, 1.0, 1, 0.0, 1, 1, 0)

    def joined(name: str) -> WorkerState:
        return WorkerState(e.WorkerJoined(name, "rollout", name, "h", 1, "0"))

    detector, workers = SilenceDetector("rater"), {"a": joined("a"), "b": joined("b")}
    for _ in range(20):
        # The observer hears others and not itself: its own connection is in doubt.
        detector.observe(heartbeat("a"))
    assert detector.silent(workers, silence_s=15.0) == []
    for _ in range(3):
        detector.observe(heartbeat("rater"))
        detector.observe(heartbeat("a"))
        assert detector.silent(workers, silence_s=15.0) == []
    detector.observe(heartbeat("rater"))
    assert detector.silent(workers, silence_s=15.0) == [workers["b"]]
    detector.observe(heartbeat("b"))
    assert detector.silent(workers, silence_s=15.0) == []


def test_matches_of_a_worker_that_started_again_end(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        async with start("w") as first, start("rater-1") as rater:
            await Membership(first, "rollout").join()
            await first.append(sampled(0))
            async with start("w") as second:
                await Membership(second, "rollout").join()
                await second.append(sampled(1))
                await rater.fold_through(await rater.log.last_sequence())
                await SilenceRecorder(rater).record_due()
            failed = await recorded_events(rater, e.MatchFailed)
            assert [(event.match_id, event.error) for event in failed] == [  # type: ignore[attr-defined]
                ("w-0", "unfinished when its worker started again")
            ]

    in_a_league(tmp_path, body)


def test_a_rater_that_ends_records_the_ended_processes_of_its_machine_and_their_matches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    if not machine_digest():
        pytest.skip("the system does not tell machines apart")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    async def body(start: Start) -> None:
        async with start("w") as worker, start("rater-1") as rater:
            joined = e.WorkerJoined("w", "rollout", worker.incarnation, "h", ended.pid, "0", machine=machine_digest())
            elsewhere = e.WorkerJoined("elsewhere", "rollout", "b", "h", ended.pid, "0", machine="another")
            running = e.WorkerJoined("running", "rollout", "c", "h", os.getppid(), "0", machine=machine_digest())
            for event in (joined, sampled(0), elsewhere, running):
                await worker.log.append(event)
            await Membership(rater, "rater").join()
            recorder = SilenceRecorder(rater)
            await recorder.record_due()
            assert await recorded_events(rater, e.WorkerLeft) == []
            await recorder.record_due(at_end=True)
            left = await recorded_events(rater, e.WorkerLeft)
            assert [(event.worker, event.reason) for event in left] == [("w", "ended without leaving")]  # type: ignore[attr-defined]
            failed = await recorded_events(rater, e.MatchFailed)
            assert [(event.match_id, event.error) for event in failed] == [  # type: ignore[attr-defined]
                ("w-0", "unfinished when its worker left (ended without leaving)")
            ]

    in_a_league(tmp_path, body)


def test_a_process_that_was_recorded_as_gone_before_it_knew_that_it_had_joined_joins_anew(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        async with start("w") as context:
            first = context.incarnation
            # The broker's reply is lost, and the process is paused until it counts as silent.
            await context.append(e.WorkerJoined("w", "rollout", first, "h", os.getpid(), "0"))
            await context.fold_through(await context.append(e.WorkerLeft("w", first, "silent")))
            await Membership(context, "rollout").join()
            assert context.state.workers["w"] == WorkerState(context.state.workers["w"].joined)
            assert context.state.workers["w"].joined.incarnation == context.incarnation != first

    in_a_league(tmp_path, body)


def test_a_supervisor_records_no_departure_of_a_process_that_it_did_not_start(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        async with start("w") as context:
            child = WorkerProcess(context, WorkerSpec("rollout", "w"), lambda text: None)
            child._process = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
            await child._process.wait()
            for pid, expected in ((os.getpid(), None), (child._process.pid, "ended with code 1")):
                joined = e.WorkerJoined("w", "rollout", f"of {pid}", platform.node(), pid, "0")
                await context.fold_through(await context.append(joined))
                await child._record_departure(1)
                await context.fold_through(await context.log.last_sequence())
                assert context.state.workers["w"] == WorkerState(joined, expected)

    in_a_league(tmp_path, body)


def test_a_worker_that_is_stopped_while_it_is_being_started_ends(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        async with start("w") as context:
            child = WorkerProcess(context, WorkerSpec("rater", "rater-1"), lambda text: None)
            supervising = asyncio.create_task(child.supervise())
            # The task has begun, and has no process yet.
            await asyncio.sleep(0)
            assert child._process is None
            await child.stop()
            try:
                async with asyncio.timeout(60):
                    await supervising
            finally:
                child.kill()
            assert child.has_ended

    in_a_league(tmp_path, body)


def test_a_trainer_that_was_done_is_started_again_when_a_configuration_lets_training_go_on(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        async with start("supervisor") as context:
            runs: asyncio.Queue[int] = asyncio.Queue()

            class Trainer(WorkerProcess):
                """Ends in order at once, the second time not at all."""

                async def _run(self) -> int:
                    runs.put_nowait(len(await recorded_events(context, e.TrainingFinished)))
                    if runs.qsize() > 1:
                        await asyncio.Future()
                    return 0

            await context.append(e.TrainingFinished("main", 3, "steps", context.state.config_sequence))
            child = Trainer(context, WorkerSpec("trainer", "trainer-1"), lambda text: None)
            async with beside(child.supervise()):
                await context.wait_until(lambda: child.has_ended)
                assert runs.qsize() == 1
                await context.append(
                    configuration_event(context.state, with_settings(context.config, ["stop.steps=5"]))
                )
                await context.wait_until(lambda: not child.has_ended)
                assert await runs.get() == await runs.get() == 1

    in_a_league(tmp_path, body)


def test_a_worker_whose_supervisor_ended_while_it_started_leaves(tmp_path: Path) -> None:
    """Before the league is open, and after: the id of its parent is another one from the beginning."""

    async def serve(context: Context) -> None:
        await context.stopping.wait()

    async def run_orphan(run: Run) -> int:
        return await worker_main(run, "rater", "w", serve, supervisor=os.getppid() + 1)

    closed = Run(tmp_path / "closed", nats="nats://127.0.0.1:1", name=LEAGUE)
    assert asyncio.run(asyncio.wait_for(run_orphan(closed), 300)) == 0

    async def body(start: Start) -> None:
        async with start("watcher") as watcher:
            context = Context(watcher.run, watcher.client, JetStreamLog(watcher.client, LEAGUE, "w"), "w")
            async with beside(_stop_with_supervisor(context, os.getppid() + 1)):
                await context.stopping.wait()

    in_a_league(tmp_path, body)


def test_of_older_deciders_only_running_ones_refuse_a_newer_worker(tmp_path: Path) -> None:
    """Where all were killed at once, nothing else would record that they have left: each newer one would wait."""

    async def body(start: Start) -> None:
        async with start("rater-1") as rater, start("rollout-1") as rollout:
            await Membership(rater, "rater").join()
            killed = e.WorkerJoined("archivist-1", "archivist", "a", "h", 1, "0", schema=0)
            await rollout.fold_through(await rater.append(killed))
            assert older_deciders(rollout.state, "rollout-1") == [killed]
            async with start("rater-2") as newer:
                found = older_deciders(newer.state, "rater-2")
                check_versions("rater-2", await Membership(newer, "rater").filter_running(found))
            with pytest.raises(VersionError, match="upgrade archivist-1 first"):
                # It may not listen to others: it waits until the rater has recorded what it found.
                check_versions("rollout-1", await Membership(rollout, "rollout").filter_running([killed]))

    in_a_league(tmp_path, body)


def test_a_failing_disk_ends_a_worker_with_an_error_and_a_full_one_the_league(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        async with start("w") as context:

            async def fails(number: int) -> str:
                async def serve(context: Context) -> None:
                    raise OSError(number, os.strerror(number), "part")

                return await _serve_until_done(context, serve)

            assert await fails(errno.EIO) == "OSError: [Errno 5] Input/output error: 'part'"
            with pytest.raises(DiskError):
                await fails(errno.ENOSPC)

    in_a_league(tmp_path, body)


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that gives an input/output error")
def test_credentials_that_cannot_be_read_now_are_not_refused() -> None:
    """The file is there and gives an input/output error, as on a failing disk."""
    with pytest.raises(LogUnavailableError, match=r"credentials cannot be read .*\[Errno 5\]"):
        BrokerCredentials(Path("/proc/self/mem")).identity()
    with pytest.raises(AccessError, match="credentials cannot be read"):
        BrokerCredentials(Path("/proc/self")).identity()


def test_an_ended_process_of_this_machine_is_known_to_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    here = e.WorkerJoined("w", "rollout", "a", "h", ended.pid, "0", machine=machine_digest())
    # A zombie until it is waited for.
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert has_ended_here(here) == bool(here.machine)
    ended.wait()
    assert has_ended_here(here) == bool(here.machine)
    assert not has_ended_here(msgspec.structs.replace(here, pid=os.getppid()))
    assert not has_ended_here(msgspec.structs.replace(here, machine="elsewhere"))


def waits(logs: Sequence[Mapping[str, object]]) -> list[object]:
    """The reasons for which a worker waits for its league, as it logs them."""
    return [line["found"] for line in logs if line["event"] == "waiting for the league to be opened"]


def test_a_worker_of_a_named_league_waits_for_that_one_beside_others(tmp_path: Path) -> None:
    async def body() -> None:
        with EmbeddedServer(tmp_path / "nats") as server, structlog.testing.capture_logs() as logs:
            client = await connect(server.url, "opener")
            await ensure_streams(client.jetstream(), LeagueConfig().experience)
            await JetStreamLog(client, "other", "opener").append_batch(opening_events(LeagueConfig(), "other"))

            async def open_once_waited_for() -> None:
                while not waits(logs):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                await JetStreamLog(client, LEAGUE, "opener").append_batch(opening_events(LeagueConfig(), LEAGUE))

            async with contextlib.AsyncExitStack() as stack, beside(open_once_waited_for()):
                run = Run(tmp_path / "worker", nats=server.url, name=LEAGUE)
                history = await _open_log(run, "early", None, stack)
                assert history is not None
                assert await history.newest(e.LeagueOpened) is not None
            await flush_and_close(client)
        assert waits(logs) == [f"no league {LEAGUE} was opened on this broker; start it with `league up`"]

    asyncio.run(asyncio.wait_for(body(), 300))


def test_a_worker_waits_for_the_league_to_be_opened(tmp_path: Path) -> None:
    """Without a broker, then with an empty one."""
    command = [sys.executable, "-m", "ui", "worker", "rater", "--name", "early", "--run", str(tmp_path / "worker")]

    with EmbeddedServer(tmp_path / "nats") as server:
        url = server.url
    process = subprocess.Popen([*command, "--nats", url], stderr=subprocess.PIPE)

    async def body() -> None:
        try:
            assert process.stderr is not None
            said = await asyncio.to_thread(process.stderr.readline)
            assert b"waiting for the league to be opened" in said
            with EmbeddedServer(tmp_path / "nats", int(url.rpartition(":")[2])) as server:
                client = await connect(server.url, "opener")
                log = JetStreamLog(client, LEAGUE, "opener")
                await ensure_streams(client.jetstream(), LeagueConfig().experience)
                await log.append_batch(opening_events(LeagueConfig(), LEAGUE))
                async for recorded in log.follow():
                    if isinstance(recorded.event, e.WorkerJoined):
                        break
                process.terminate()
                await asyncio.to_thread(process.communicate)
                assert process.returncode == 0
                await flush_and_close(client)
        finally:
            process.kill()
            process.wait()

    asyncio.run(asyncio.wait_for(body(), 300))


def test_a_worker_names_the_changed_settings_that_it_keeps(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        async with start("rollout-1") as rollout, start("trainer-1") as trainer:
            await Membership(rollout, "rollout").join()
            await Membership(trainer, "trainer", "main").join()
            changed = with_settings(rollout.config, ["rollout.games_in_flight=3", "rollout.ahead_steps=1.5"])
            with structlog.testing.capture_logs() as logs:
                sequence = await rollout.append(configuration_event(rollout.state, changed))
                await asyncio.gather(rollout.fold_through(sequence), trainer.fold_through(sequence))
            assert [line.get("key") for line in logs] == ["rollout.games_in_flight"]

    in_a_league(tmp_path, body)


async def twice(context: Context, left: e.WorkerLeft, expected: int) -> None:
    """Append two events as one fact, on a condition."""
    await context.log.append_batch([left, msgspec.structs.replace(left, incarnation="b")], expected=expected)


def test_a_condition_of_its_own_stays_a_conflict(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        async with start("rater-1") as context:
            await Membership(context, "rater").join()
            left = e.WorkerLeft("w", "a", "r")
            for append in (lambda: context.log.append(left, expected=7), lambda: twice(context, left, 7)):
                with pytest.raises(ConflictError) as caught:
                    await append()
                assert not isinstance(caught.value, WorkerConflictError)

    in_a_league(tmp_path, body)


def test_a_worker_whose_background_work_fails_is_not_recorded_as_done(tmp_path: Path) -> None:
    async def body(start: Start) -> None:
        async with start("w") as context:
            is_serving = asyncio.Event()

            async def serve(_: Context) -> None:
                is_serving.set()
                await asyncio.Event().wait()

            async def fails() -> None:
                await is_serving.wait()
                raise ValueError("broken")

            with pytest.raises(ValueError, match="broken"):
                async with beside(fails()):
                    await _serve_as_member(context, Membership(context, "rater"), "rater", serve)
            await context.fold_through(await context.log.last_sequence())
            assert context.state.workers["w"].left == "stopped before it was done"

    in_a_league(tmp_path, body)


def test_the_reason_of_a_worker_that_ended_is_read_from_its_log(tmp_path: Path) -> None:
    log = tmp_path / "trainer-1.log"
    assert read_reason_to_leave(log) == ""
    log.write_text('{"event": "joined"}\n{"event": "left", "reason": "ConfigError: no such \\u001b[2J key"}\n')
    assert read_reason_to_leave(log) == "ConfigError: no such \\u001b[2J key"
    for later in ('{"event": "joined"}\n', "no JSON\n", '{"event"', '\n{"x":' + "[" * 50_000):
        with log.open("a") as file:
            file.write(later)
        assert read_reason_to_leave(log) == ""
