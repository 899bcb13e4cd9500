"""Whole leagues whose processes are killed at random moments, and what has to hold of them afterwards."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from nats.aio.client import Client
from typer.testing import CliRunner

from league.history.replay import verify_events
from league.log.base import RecordedEvent
from league.log.connection import connect
from league.log.jetstream import flush_and_close
from league.run import Run
from schemas.errors import ExitCode, LogError
from schemas.events import GradientStepTaken, MatchFailed, MatchFinished, OpponentsSampled, RatingUpdated, WorkerJoined
from schemas.subjects import event_type_filter
from ui.cli import app

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"
MOST_S = float(os.environ.get("LEAGUE_FAULTS_S", "1800"))
"""After so long without the results that were asked for, something hangs."""
SETTINGS = """
[tracker]
workers = 1

[experience]
max_messages = 2_000

[history]
archive_events = 500
"""


ENDLESS = {
    "games_in_flight = 8": "games_in_flight = 64\nworkers = 2\nahead_steps = 6.0",
    "rollouts_per_step = 8": "rollouts_per_step = 96\nmax_lag_steps = 8",
    "steps = 3": "steps = 1_000_000",
}
"""What makes matches of ``CONFIG`` go on until somebody ends them.

Two processes play, far ahead of training, so that there is somebody who plays while another one starts again.
"""


def endless(folder: Path, config: Path, changes: Mapping[str, str]) -> Path:
    """A configuration with some of its text changed, so that it goes on until somebody ends it."""
    text = config.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    path = folder / "league.toml"
    path.write_text(text + SETTINGS)
    return path


def worker_role(process: psutil.Process) -> str:
    """Role of a worker's process; empty for another process."""
    words = process.cmdline()
    at = words.index("ui") + 1 if "ui" in words else len(words)
    return words[at + 1] if words[at : at + 1] == ["worker"] else ""


class Harassed:
    """``league up`` with somebody who kills its processes.

    Args:
        folder: Of what it prints and is told.
        nats: A broker of others; None is the run's own.
        seed: Of who is killed, and when.
        inside: Words before the command, that put it into other surroundings.
        run: The run's folder, if it is not to lie in ``folder``.
        config: Of the league.
        changes: In the text of ``config``.
    """

    def __init__(
        self,
        folder: Path,
        nats: str | None = None,
        seed: int = 0,
        inside: Sequence[str] = (),
        run: Path | None = None,
        config: Path = CONFIG,
        changes: Mapping[str, str] = ENDLESS,
    ) -> None:
        self.run = run or folder / "run"
        self.nats = nats
        self.kills: Counter[str] = Counter()
        self.random = random.Random(seed)
        self.notes = folder / "acknowledged.txt"
        self.printed = folder / "up.log"
        self._began = time.monotonic()
        settings = endless(folder, config, changes)
        command = [sys.executable, "-m", "ui", "up", "--config", str(settings), "--run", str(self.run)]
        self._command = [*inside, *command, *self._at()]
        self.start()

    def start(self) -> None:
        """Run the command, for the first time or after it has ended."""
        witness = {"LEAGUE_WITNESS": str(self.notes)}
        witness["PYTHONPATH"] = os.pathsep.join(
            (str(Path(__file__).parent / "witness"), os.environ.get("PYTHONPATH", ""))
        )
        with self.printed.open("a") as out:
            self.process = subprocess.Popen(self._command, stdout=out, stderr=out, env={**os.environ, **witness})

    def _at(self) -> list[str]:
        return [] if self.nats is None else ["--nats", self.nats]

    def broker(self) -> int:
        """Process of the run's own broker."""
        return int(json.loads((self.run / "nats" / "server.json").read_bytes())["pid"])

    def workers(self, role: str) -> list[int]:
        """Processes of a role that are there now."""
        found = []
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.Error):
                if worker_role(child) == role:
                    found.append(child.pid)
        return found

    def kill_worker(self, role: str) -> bool:
        """Whether there was one to kill."""
        found = self.workers(role)
        if found:
            os.kill(self.random.choice(found), signal.SIGKILL)
            self.kills[role] += 1
        return bool(found)

    def kill_broker(self) -> bool:
        """The run's own; one that is killed already comes back by itself."""
        try:
            os.kill(self.broker(), signal.SIGKILL)
        except (OSError, ValueError):
            return False
        self.kills["nats-server"] += 1
        return True

    def kill_all(self) -> None:
        """All of its processes at once: nobody is left to start another again, the broker neither."""
        while found := [process for process in psutil.process_iter(["cmdline"]) if self._is_mine(process)]:
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(found, timeout=5)
        self.process.wait()

    def _is_mine(self, process: psutil.Process) -> bool:
        own = {str(self.run), str(self.run / "nats" / "nats.conf")}
        return not own.isdisjoint(process.info["cmdline"] or ()) and process.status() != psutil.STATUS_ZOMBIE

    def _is_running(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"the league ended by itself: {self.printed.read_text()}")
        return True

    def matches(self) -> int:
        """Results in the history now."""
        return asyncio.run(self._counted("league.*.match.*.finished.>"))

    def steps(self) -> int:
        """Gradient steps in the history now."""
        return asyncio.run(self._counted(event_type_filter("*", GradientStepTaken)))

    async def _counted(self, subject: str, timeout_s: float = 60.0) -> int:
        deadline = time.monotonic() + timeout_s
        while self._is_running():
            try:
                client = await connect(self._url(), "count")
            except (LogError, OSError, ValueError):
                assert time.monotonic() < deadline, "no broker"
                await asyncio.sleep(0.2)
                continue
            try:
                info = await client.jetstream(timeout=5).stream_info("LEAGUE", subjects_filter=subject)
                return sum((info.state.subjects or {}).values())
            except Exception:
                assert time.monotonic() < deadline, "no history"
                await asyncio.sleep(0.2)
            finally:
                await flush_and_close(client)
        return 0

    def _url(self) -> str:
        return self.nats or json.loads((self.run / "nats" / "server.json").read_bytes())["url"]

    def harass(self, matches: int, every_s: float, victims: dict[str, Callable[[], object]], times: int = 1) -> int:
        """Kill somebody now and then until there are so many results, and each was killed; how many there are.

        Args:
            matches: Results wanted.
            every_s: Seconds between kills, on average.
            victims: Kills somebody, and says whether there was somebody to kill.
            times: How often each victim is killed at least.
        """
        deadline = time.monotonic() + MOST_S
        while (found := self.matches()) < min(matches, 20):
            assert time.monotonic() < deadline, self.printed.read_text()
            time.sleep(0.5)
        waiting = self.random.sample(sorted(victims) * times, len(victims) * times)
        while (found := self.matches()) < matches or waiting:
            assert time.monotonic() < deadline, f"{found} matches after {MOST_S} s; {self.printed.read_text()}"
            time.sleep(self.random.uniform(0.5, 1.5) * every_s)
            for name in waiting or self.random.sample(sorted(victims), len(victims)):
                if victims[name]():
                    if name in waiting:
                        waiting.remove(name)
                    break
        return found

    def harass_for(self, seconds: float, every_s: float, victims: dict[str, Callable[[], object]]) -> None:
        """Kill somebody now and then for so long, each in turn in a random order, once there are results."""
        self._wait_for(self.matches, 1)
        end, waiting = time.monotonic() + seconds, list[str]()
        while time.monotonic() < end:
            time.sleep(self.random.uniform(0.5, 1.5) * every_s)
            waiting = waiting or self.random.sample(sorted(victims), len(victims))
            if (name := next((name for name in waiting if victims[name]()), None)) is not None:
                waiting.remove(name)

    def wait_for_steps(self, more: int) -> None:
        """Leave it alone until it has taken so many more steps."""
        self._wait_for(self.steps, self.steps() + more)

    def _wait_for(self, count: Callable[[], int], least: int) -> None:
        deadline = time.monotonic() + MOST_S
        while count() < least:
            assert time.monotonic() < deadline, self.printed.read_text()
            time.sleep(1.0)

    def finish(self) -> None:
        """Have it play what it has in hand, and end."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(240) == 0, self.printed.read_text()

    def end(self) -> None:
        """What a failed test leaves running."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def history(self) -> list[RecordedEvent]:
        async def body() -> list[RecordedEvent]:
            async with Run(self.run, nats=self.nats).open_log() as log:
                return [recorded async for recorded in log.read()]

        return asyncio.run(body())

    def said_to_have_ended(self) -> bool:
        """Whether a worker ended that should not have."""
        return "ended with code" in self.printed.read_text()

    def acknowledged(self) -> dict[int, str]:
        """What the broker told any process it had: keys of events by sequence."""
        lines = (line.partition(" ") for line in self.notes.read_text().splitlines())
        return {int(sequence): key for sequence, _, key in lines}

    def ledger(self) -> list[dict[str, int]]:
        return json.loads(self._printed_by("ledger"))

    def audit(self) -> dict[str, object]:
        return json.loads(self._printed_by("verify"))

    def _printed_by(self, name: str) -> str:
        deadline = time.monotonic() + 300
        while True:
            result = CliRunner().invoke(app, [name, "--json", "--run", str(self.run), *self._at()])
            # A node of a cluster that was started again has to catch up first: until then there may be no verdict.
            if result.exit_code != ExitCode.UNREADABLE or time.monotonic() > deadline:
                break
        assert result.exit_code == 0, result.output
        return result.stdout

    def assert_nothing_is_lost_or_doubled(self) -> list[RecordedEvent]:
        """Everything acknowledged is there, once; ratings, archive and the accounts of all rollouts agree.

        A match counts once, by its first result. A job is delivered at least once: an evaluator that is killed between
        result and acknowledgement leaves one that another worker plays again, so that its match has two results.
        """
        history, told = self.history(), self.acknowledged()
        there = {recorded.sequence: recorded.event.key for recorded in history if recorded.event is not None}
        lost = {sequence: key for sequence, key in told.items() if there.get(sequence) != key}
        assert not lost
        # What is under way when a process ends is not noted: for its many matches, a large share of a short history.
        assert len(told) > len(history) / 2
        results = [(r.sequence, r.event) for r in history if isinstance(r.event, MatchFinished)]
        finished = {result.match_id: sequence for sequence, result in reversed(results)}
        again = [result for sequence, result in results if finished[result.match_id] != sequence]
        assert {result.purpose for result in again} <= {"evaluation"}
        rated = [r.event for r in history if isinstance(r.event, RatingUpdated)]
        assert len(rated) == len({update.key for update in rated})
        assert all(update.match_sequence == finished[update.match_id] for update in rated)
        taken = [r.event for r in history if isinstance(r.event, GradientStepTaken)]
        used = [match for step in taken for match in step.matches]
        assert len(used) == len(set(used))
        # Experience comes before the result: that of a worker that is killed in between ends as a failure.
        drawn = {r.event.match_id for r in history if isinstance(r.event, OpponentsSampled)}
        failed = {r.event.match_id for r in history if isinstance(r.event, MatchFailed)}
        left = [match for step in taken for group in step.dropped for match in group.matches]
        unrecorded = {*used, *left} - set(finished)
        assert unrecorded <= drawn & failed
        assert [step.step for step in taken] == list(range(1, len(taken) + 1))
        assert verify_events(history).is_identical
        assert self.audit()["sound"]
        accounts = self.ledger()
        assert sum(account["unrecorded"] for account in accounts) == len(unrecorded)
        for account in accounts:
            assert account["balanced"]
            fates = ("trained", "stale", "filtered", "voided", "refused", "given_up", "late", "abandoned", "pending")
            assert account["generated"] == sum(account[fate] for fate in fates)
        self._report(history, len(told), len(finished), len(taken), len(unrecorded))
        return history

    def _report(self, history: list[RecordedEvent], told: int, finished: int, steps: int, unrecorded: int) -> None:
        starts = sum(isinstance(r.event, WorkerJoined) for r in history)
        killed = ", ".join(f"{role} {count}" for role, count in sorted(self.kills.items()))
        seconds = time.monotonic() - self._began
        print(
            f"\n{finished:,} matches, {steps} steps, {len(history):,} events in {seconds:.0f} s; "
            f"killed {self.kills.total()} ({killed}), {starts} starts of workers; "
            f"{told:,} acknowledged events: 0 lost, 0 twice, ratings as refolded, ledger balanced; "
            f"{unrecorded} rollouts of workers killed before their match's result was recorded"
        )


@pytest.fixture
def harassed(tmp_path: Path) -> Iterator[Callable[..., Harassed]]:
    """Starts leagues that end with the test."""
    started: list[Harassed] = []

    def start(*given: Any, **named: Any) -> Harassed:
        started.append(Harassed(tmp_path, *given, **named))
        return started[-1]

    yield start
    for league in started:
        league.end()


async def leader_of(url: str, stream: str = "LEAGUE") -> int:
    """Number of the node of a local cluster that leads a stream."""
    client: Client = await connect(url, "test")
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    info = await client.jetstream(timeout=2).stream_info(stream)
                    if info.cluster is not None and info.cluster.leader:
                        return int(info.cluster.leader.rpartition("-")[2])
                except Exception:
                    pass
                await asyncio.sleep(0.1)
    finally:
        await flush_and_close(client)


@pytest.fixture
def leader() -> Callable[[str], int]:
    """Finds the leading node of a cluster."""
    return lambda url: asyncio.run(leader_of(url))
