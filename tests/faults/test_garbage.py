"""Somebody with the right to publish anything floods a running league with messages that are none: it goes on.

``LEAGUE_GARBAGE`` is the number of messages; the report says how many of them the broker stored, and how fast.
"""

import asyncio
import contextlib
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import nats.errors
import nats.js.errors
import psutil
import pytest
from nats.aio.client import Client

from league.history.replay import verify_events
from league.log.base import RecordedEvent
from league.log.connection import connect
from league.log.jetstream import flush_and_close
from league.log.server import EmbeddedServer
from league.run import Run
from schemas.events import GradientStepTaken, MatchFinished, RatingUpdated
from tests.faults.conftest import worker_role

GARBAGE = int(os.environ.get("LEAGUE_GARBAGE", "1000000"))
GROWTH_MB = 150
"""That a process may grow by while it is flooded, however many messages there are."""
BROKER_KB = 0.5
"""That the broker may grow by for each message besides."""
BATCH = 500
GOLDEN = (Path(__file__).parents[1] / "golden" / "events" / "v2.jsonl").read_bytes().splitlines()
ENTITIES = (
    "league.opened", "league.configured", "league.paused", "agent.registered", "agent.retired", "checkpoint.added",
    "match.training.finished.rollout-0", "match.evaluation.finished.evaluator-0", "match.training.failed.mallory",
    "match.voided", "rating.updated", "policy.published", "step.taken", "training.finished", "evaluation.requested",
    "opponents.sampled.rollout-0", "worker.joined.mallory", "worker.left.rollout-0", "history.archived",
    "history.archived", "history.snapshot", "no.such.subject",
)  # fmt: skip

pytestmark = pytest.mark.slow


def garbage(rng: Random) -> bytes:
    """What is no event, job, rollout or heartbeat."""
    event = rng.choice(GOLDEN)
    return rng.choice((
        lambda: rng.randbytes(rng.randrange(200)),
        lambda: event[: rng.randrange(len(event))],
        lambda: event,
        lambda: b"",
        lambda: b'{"type":"MatchFinished","match_id":7}',
        lambda: b'{"type":"Made%d"}' % rng.randrange(10**9),
        lambda: b"[" * rng.randrange(2_000),
        lambda: b'{"type":"RatingUpdated","match_id":"x","changes":' + b"9" * 300,
        lambda: b"\x28\xb5\x2f\xfd" + rng.randbytes(60),
    ))()  # fmt: skip


def headers(rng: Random) -> dict[str, str] | None:
    """Damaged ones now and then; on labelled garbage a name like that of a rollout."""
    odd = {
        "League-Schema": rng.choice(("abc", "-1", "0", "", "9" * 30, "1.5", "2")),
        "League-Time": rng.choice(("abc", "-1", "9" * 40)),
        "Nats-Msg-Id": f"nim:rollout-0-{rng.randrange(10**9)}:{rng.randrange(3)}",
    }
    name = rng.choice((None, None, *odd))
    return None if name is None else {name: odd[name]}


class Flood:
    """A connection without restrictions that sends garbage to every stream.

    Args:
        client: The connection.
        messages: How many.
    """

    def __init__(self, client: Client, messages: int) -> None:
        self._client = client
        self._rng = Random(5)
        self._left = messages
        self.sent: Counter[str] = Counter()

    async def send(self, most: int) -> int:
        """Send up to so many; how many are left."""
        until = max(self._left - most, 0)
        while self._left > until:
            kind = self._rng.choice(("league", "league", "experience", "work", "metrics", "dead"))
            count = min(BATCH, self._left)
            await (self._history(count) if kind == "league" else self._others(kind, count))
            self.sent[kind] += count
            self._left -= count
        return self._left

    async def _history(self, count: int) -> None:
        """As one atomic batch: as many single messages would each wait for the disk."""
        batch, name = uuid.uuid4().hex, "league.nim."
        for nth in range(1, count + 1):
            # A message id would have the whole batch refused, if it came twice.
            extra = {key: text for key, text in (headers(self._rng) or {}).items() if key != "Nats-Msg-Id"}
            extra |= {"Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(nth)}
            subject, data = name + self._rng.choice(ENTITIES), garbage(self._rng)
            if data.startswith(b'{"type":') and extra.get("League-Schema") == "2":
                # An event of tomorrow, for all that anybody can tell: deciders end at it, as they should.
                del extra["League-Schema"]
            if nth < count:
                await self._client.publish(subject, data, headers=extra)
            else:
                await self._client.jetstream(timeout=60).publish(
                    subject, data, headers=extra | {"Nats-Batch-Commit": "1"}
                )

    async def _others(self, kind: str, count: int) -> None:
        subjects = {
            "experience": ["experience.nim.main"],
            "work": ["work.nim.play_match", "work.nim.nonsense"],
            "metrics": ["metrics.nim.rollout-0", f"metrics.nim.results-up-{self._rng.randrange(10**6)}"],
            "dead": [f"dead.nim.LEAGUE.{self._rng.randrange(10**6)}", "dead.nim.WORK.1"],
        }[kind]
        for _ in range(count):
            await self._client.publish(self._rng.choice(subjects), garbage(self._rng), headers=headers(self._rng))
        with contextlib.suppress(nats.errors.TimeoutError):
            await self._client.flush(60)


def memory(league: Any) -> dict[str, float]:
    """Megabytes of every process of a league."""
    found = {}
    for child in [psutil.Process(league.broker()), *psutil.Process(league.process.pid).children()]:
        with contextlib.suppress(psutil.Error):
            name = worker_role(child) or child.name()
            found[f"{name} {child.pid}"] = child.memory_info().rss / 1e6
    return found


async def real(run: Run) -> tuple[list[RecordedEvent], int]:
    """What is an event, and how many messages there are."""
    found, count = [], 0
    async with run.open_log() as log:
        async for recorded in log.read():
            count += 1
            if recorded.event is not None:
                found.append(recorded)
    return found, count


def counts(records: list[RecordedEvent]) -> Counter[type]:
    return Counter(type(recorded.event) for recorded in records)


def test_a_league_goes_on_under_a_flood_of_garbage(
    harassed: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    league = harassed(seed=7)

    async def flood() -> tuple[Counter[str], float, dict[str, float], dict[str, float]]:
        client = await connect(league._url(), "mallory")
        try:
            sender = Flood(client, GARBAGE)
            # Everybody has read some before it is measured.
            await sender.send(GARBAGE // 20)
            before, began = memory(league), time.monotonic()
            while await sender.send(GARBAGE // 20):
                pass
            return sender.sent, time.monotonic() - began, before, memory(league)
        finally:
            await flush_and_close(client)

    # Opening a league takes as long as it takes on a busy machine.
    while not (league.run / "nats" / "server.json").exists():
        assert league.process.poll() is None, league.printed.read_text()
        time.sleep(0.5)
    while league.matches() < 60:
        time.sleep(0.5)
    sent, seconds, before, after = asyncio.run(flood())
    during = league.matches()
    run = Run(league.run)
    known, _ = asyncio.run(real(run))
    then = counts(known)
    deadline = time.monotonic() + 600
    while True:
        records, stored = asyncio.run(real(run))
        now = counts(records)
        if all(now[kind] > then[kind] + 2 for kind in (MatchFinished, GradientStepTaken, RatingUpdated)):
            break
        assert time.monotonic() < deadline, (then, now, league.printed.read_text()[-5_000:])
        time.sleep(2.0)
    letters = asyncio.run(held(league._url()))
    league.finish()
    grown = {name: after[name] - size for name, size in before.items() if name in after}
    with capsys.disabled():
        each = ", ".join(f"{name} {count:,}" for name, count in sorted(sent.items()))
        most = max(grown, key=lambda name: grown[name])
        print(
            f"\n{sent.total():,} garbage messages ({each}) in {seconds:.0f} s, {0.95 * GARBAGE / seconds:,.0f}/s; "
            f"{stored - len(records):,} of them in the history; meanwhile {during} matches; {letters}; "
            f"most growth {most}: {grown[most]:.0f} MB"
        )
    assert not league.said_to_have_ended()
    assert set(before) == set(after), "the same processes as before"
    # The broker keeps in memory where every message of the history lies, garbage too, which is never deleted.
    broker = GROWTH_MB + GARBAGE * BROKER_KB / 1_000
    assert all(mb < (broker if name.startswith("nats-server") else GROWTH_MB) for name, mb in grown.items()), grown
    assert letters["DEAD"] <= 2_000
    finished = [r.event.match_id for r in records if isinstance(r.event, MatchFinished)]
    assert len(finished) == len(set(finished))
    assert verify_events(records).is_identical


async def held(url: str) -> dict[str, int]:
    """Messages in each stream but the history."""
    client = await connect(url, "count")
    try:
        js = client.jetstream(timeout=10)
        names = ("DEAD", "EXPERIENCE", "METRICS", "WORK")
        return {name: (await js.stream_info(name)).state.messages for name in names}
    finally:
        await flush_and_close(client)


def test_a_message_of_a_gigabyte_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async def body() -> None:
        with EmbeddedServer(tmp_path / "nats") as server:
            client = await connect(server.url, "mallory")
            try:
                with pytest.raises(nats.errors.MaxPayloadError):
                    await client.publish("league.nim.agent.registered", memoryview(bytearray(10**9)))
                await client.flush(10)
                assert client.is_connected
            finally:
                await flush_and_close(client)

    asyncio.run(asyncio.wait_for(body(), 60))


@pytest.mark.parametrize(
    ("size", "why"), [(10**9, "bad or missing size"), (10**9 - 1, "maximum payload")], ids=["10 digits", "9 digits"]
)
def test_a_socket_that_announces_a_gigabyte_is_cut_off_by_the_broker(tmp_path: Path, size: int, why: str) -> None:
    with EmbeddedServer(tmp_path / "nats") as server:
        host, _, port = server.url.removeprefix("nats://").rpartition(":")
        before = psutil.Process(server_pid(tmp_path)).memory_info().rss
        with socket.create_connection((host, int(port)), timeout=10) as raw:
            assert raw.recv(4_096).startswith(b"INFO ")
            raw.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nPUB league.nim.x %d\r\n' % size)
            with contextlib.suppress(ConnectionError):
                # Would wait for the rest of the message, and fail by its timeout, if the broker did.
                while raw.recv(4_096):
                    pass
        assert why in (tmp_path / "nats" / "server.log").read_text().lower()
        assert psutil.Process(server_pid(tmp_path)).memory_info().rss - before < 50e6

        async def works() -> None:
            client = await connect(server.url, "test")
            await client.flush(10)
            await flush_and_close(client)

        asyncio.run(works())


def server_pid(folder: Path) -> int:
    """Of the broker that keeps its files there."""
    for process in psutil.Process().children(recursive=True):
        if any(str(folder) in word for word in process.cmdline()):
            return int(process.pid)
    raise AssertionError("no broker")
