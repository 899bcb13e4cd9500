"""Clients with every role's credentials request whatever they like beside a league, which hardly notices.

``LEAGUE_HOSTILE_S`` says for how long; as long again the league is alone, half of it before and half after.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import nats
import pytest
from nats.aio.client import Client

from league.auth.authority import Authority
from league.auth.permissions import ROLES, consumer_names
from league.history.replay import verify_events
from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from schemas import events as e
from tests.integration.test_auth import Broker, user
from tests.integration.test_permissions import RESTRICTED, TARGETS, acts, is_granted

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"
SECONDS = float(os.environ.get("LEAGUE_HOSTILE_S", "120"))
PAUSE_S = 0.05
"""Between two requests of a client."""
MOST_LOST = 0.2
HARM = ("$JS.API.STREAM.PURGE.", "$JS.API.STREAM.MSG.DELETE.", "$JS.API.CONSUMER.MSG.NEXT.WORK.", "$JS.ACK.WORK.")
"""Permitted requests that SECURITY.md names: a trainer's to drop trajectories, an evaluator's to take jobs."""

pytestmark = pytest.mark.slow


async def request_at_random(broker: Broker, role: str, until: float) -> int:
    """Request, publish and direct answers at random, as a bare client; returns the number of requests."""
    rng, count = Random(f"hostile {role}"), 0
    subjects = sorted(subject for subject in acts() if not (is_granted(role, subject) and subject.startswith(HARM)))
    own = [f"$JS.API.CONSUMER.CREATE.LEAGUE.{name}.league.nim.>" for name in consumer_names(role)]
    subjects += own * 20
    creds = str(broker.authority.credentials_path(role))

    async def ignore(_: Exception) -> None:
        pass

    client: Client = await nats.connect(
        broker.url, user_credentials=creds, inbox_prefix=f"_INBOX.{role}", error_cb=ignore, max_reconnect_attempts=-1
    )
    try:
        while time.monotonic() < until:
            subject = rng.choice(subjects)
            subject = own[count % len(own)] if subject in own else subject
            config = {"name": consumer_names(role)[count % len(own)], "ack_policy": "none"}
            config |= {"filter_subject": "league.nim.>"} | rng.choice([{}, {"deliver_subject": rng.choice(TARGETS)}])
            made = json.dumps({"stream_name": "LEAGUE", "config": config}).encode()
            data = rng.choice([b"", b"{}", b"junk", made, rng.randbytes(50)])
            headers = rng.choice([None, None, {"Nats-Batch-Id": f"open-{count}", "Nats-Batch-Sequence": "1"}])
            if rng.random() < 0.1:
                headers = {"Nats-Trace-Dest": rng.choice(TARGETS)}
            with contextlib.suppress(nats.errors.Error):
                await client.publish(subject, data, reply=rng.choice(["", *TARGETS]), headers=headers)
                count += 1
            await asyncio.sleep(PAUSE_S)
    finally:
        await client.close()
    return count


def per_second(events: list[RecordedEvent], kind: type[e.Event], windows: list[tuple[float, float]]) -> float:
    times = [r.time_ns / 1e9 for r in events if isinstance(r.event, kind)]
    return sum(first <= at < last for at in times for first, last in windows) / sum(b - a for a, b in windows)


def test_a_league_works_on_beside_clients_that_request_whatever_they_like(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority.create(tmp_path / "auth")
    for role in ROLES:
        authority.add(role, [role], days=1, league=None if role == "operator" else "nim")
    broker, config, log = Broker(tmp_path, authority), tmp_path / "league.toml", tmp_path / "log"
    config.write_text(CONFIG.read_text().replace("steps = 3", "steps = 1_000_000"))
    words = ["up", "--config", str(config), "--run", str(tmp_path / "run"), "--nats", broker.url]
    creds = ["--creds", str(authority.credentials_path("operator"))]

    async def steps() -> int:
        async with user(broker, "operator") as boss:
            return len([1 async for _ in JetStreamLog(boss, "nim", "boss").read_events(e.GradientStepTaken)])

    async def body() -> tuple[list[RecordedEvent], list[float], int]:
        async with asyncio.timeout(300):
            while await steps() < 3:  # noqa: ASYNC110
                await asyncio.sleep(1.0)
        marks = [time.time()]
        await asyncio.sleep(SECONDS / 2)
        marks.append(time.time())
        until = time.monotonic() + SECONDS
        counts = await asyncio.gather(*(request_at_random(broker, role, until) for role in RESTRICTED))
        marks.append(time.time())
        await asyncio.sleep(SECONDS / 2)
        marks.append(time.time())
        async with user(broker, "operator") as boss:
            events = [r async for r in JetStreamLog(boss, "nim", "boss").read()]
        return events, marks, sum(counts)

    with log.open("ab") as out:
        league = subprocess.Popen([sys.executable, "-m", "ui", *words, *creds], stdout=out, stderr=out)
    try:
        asyncio.run(broker.open())
        events, marks, requests = asyncio.run(body())
        league.send_signal(signal.SIGINT)
        assert league.wait(120) in (0, 130), log.read_text()
    finally:
        league.kill()
        league.wait()
        broker.stop()
    before, hostile, after = (marks[0], marks[1]), (marks[1], marks[2]), (marks[2], marks[3])
    rates = {kind: (per_second(events, kind, [before, after]), per_second(events, kind, [hostile])) for kind in KINDS}
    with capsys.disabled():
        for kind, (alone, beside) in rates.items():
            print(f"\n{kind.__name__}: {alone:.2f}/s alone, {beside:.2f}/s beside {requests:,} requests", end="")
    assert [r.event.reason for r in events if isinstance(r.event, e.WorkerLeft)] == []
    # Of thousands of adapters some answer as others do, which play refuses with a ``ModelError``, beside them or alone.
    failures = [r.event.error for r in events if isinstance(r.event, e.MatchFailed)]
    assert [error for error in failures if not error.startswith("ModelError:")] == []
    assert verify_events(events).is_identical
    assert rates[e.GradientStepTaken][1] >= (1 - MOST_LOST) * rates[e.GradientStepTaken][0]


KINDS: tuple[type[e.Event], ...] = (e.GradientStepTaken, e.MatchFinished)
