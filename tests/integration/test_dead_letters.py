"""What cannot be read or done is set aside with its reason, and nobody waits for it."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from nats.aio.client import Client
from typer.testing import CliRunner

from arena.games import make_game
from league.log import queues
from league.log.connection import connect
from league.log.dead_letters import MAX_PAYLOAD_BYTES, DeadLetter, DeadLetters
from league.log.jetstream import flush_and_close
from league.log.queues import ClaimedJob, WorkQueue
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.run import Run
from lifecycle.open import open_league
from models import BaseShape, make_base
from schemas.codec import encode_job
from schemas.config import ExperienceConfig, LeagueConfig, convert
from schemas.errors import ConfigError, UsageError
from schemas.events import EvaluationRequested, MatchFailed, MatchFinished
from schemas.jobs import PlayMatch
from schemas.subjects import WORK_STREAM
from ui.cli import app
from workers.evaluator import Evaluator
from workers.policy_weights import ModelManager
from workers.runtime import Context, beside

CONFIG = {
    "name": "nim",
    "game": {"name": "nim", "settings": {"seats": 2, "heaps": [2, 3]}},
    "agents": {
        "base_model": {"kind": "base", "rating": 1000.0, "baseline": True},
        "random_bot": {"kind": "bot", "rating": 800.0, "baseline": True},
    },
    "evaluation": {"tries": 2},
}
SHAPE = BaseShape(hidden=32, layers=1, heads=2, kv_heads=2, head_dim=16, mlp=48)
ACK_WAIT_S = 1.0
JOB = PlayMatch("deadly", "evaluation", ["random_bot", "random_bot"], seed=1, evaluation_id="e")


@contextlib.asynccontextmanager
async def broker(folder: Path) -> AsyncIterator[Client]:
    with EmbeddedServer(folder / "nats") as server:
        client = await connect(server.url, "test")
        await ensure_streams(client.jetstream(), ExperienceConfig(max_bytes=1_000_000))
        yield client
        await flush_and_close(client)


async def hand_out(client: Client, times: int) -> None:
    """Take the next job as often as a worker that dies over it each time."""
    pull = await client.jetstream().pull_subscribe_bind("players-nim", WORK_STREAM)
    for _ in range(times):
        (msg,) = await pull.fetch(1, timeout=60)
        await msg.nak()


async def taken(queue: WorkQueue, timeout_s: float = 60.0) -> list[ClaimedJob]:
    """The next job, once there is one."""
    deadline = asyncio.get_running_loop().time() + timeout_s
    while asyncio.get_running_loop().time() < deadline:
        if found := await queue.fetch(1, timeout_s=0.3):
            return found
    return []


@contextlib.asynccontextmanager
async def evaluating(context: Context) -> AsyncIterator[None]:
    """An evaluator that plays what is asked for and plans nothing."""
    models = await ModelManager.load(context)
    async with beside(Evaluator(context, models).play_jobs()):
        yield
    await models.close()


async def ended(context: Context, match_id: str) -> MatchFailed | MatchFinished:
    """How a match ended, once it has."""
    async for recorded in context.log.follow():
        event = recorded.event
        if isinstance(event, MatchFailed | MatchFinished) and event.match_id == match_id:
            return event
    raise AssertionError("the history has no end")


def test_a_job_that_kills_its_workers_is_set_aside_and_its_evaluation_ends_without_it(tmp_path: Path) -> None:
    async def body() -> None:
        run, config = Run(tmp_path), convert(CONFIG, LeagueConfig, "test")
        make_base(run.model, make_game("nim", config.game.settings).text().vocabulary(), SHAPE, seed=1)
        async with run.connect("test") as client:
            context = Context(run, client, await open_league(run, client, config, lambda *_: None), "evaluator-1")
            async with beside(context.follow()):
                asked = EvaluationRequested("e", "random_bot", "gatekeepers", [], [JOB.match_id])
                await context.wait_for_sequence(await context.append(asked))
                await context.work_queue.bind()
                await context.work_queue.submit(JOB)
                await hand_out(client, 2)
                async with evaluating(context):
                    failed = await ended(context, JOB.match_id)
                    assert isinstance(failed, MatchFailed)
                    assert "delivered 2 times and never finished" in failed.error
                    await context.wait_until(lambda: not context.state.evaluations["e"].waiting)
                    assert context.state.evaluations["e"].failed == 1
                    dead = DeadLetters(client, "nim")
                    (filed,) = await dead.list_all()
                    assert (filed.letter.stream, filed.letter.tries, filed.letter.match_id) == ("WORK", 3, "deadly")
                    again = await dead.retry(filed)
                    assert again == f"deadly-again-{filed.number}"
                    played = await ended(context, again)
                    assert isinstance(played, MatchFinished)
                    assert played.evaluation_id == "", "its evaluation has ended without it"
                    assert await dead.list_all() == []
                info = await client.jetstream().stream_info(WORK_STREAM)
                assert info.state.messages == 0

    asyncio.run(asyncio.wait_for(body(), 300))


def test_a_job_that_another_acknowledged_is_requested_again(tmp_path: Path) -> None:
    async def body() -> None:
        run, config = Run(tmp_path), convert(CONFIG, LeagueConfig, "test")
        make_base(run.model, make_game("nim", config.game.settings).text().vocabulary(), SHAPE, seed=1)
        async with run.connect("test") as client:
            context = Context(run, client, await open_league(run, client, config, lambda *_: None), "evaluator-1")
            async with beside(context.follow()):
                asked = EvaluationRequested("e", "random_bot", "gatekeepers", ["random_bot"], [JOB.match_id])
                await context.wait_for_sequence(await context.append(asked))
                js = client.jetstream()
                # Short enough to be over when the job is requested again.
                await js.update_stream((await js.stream_info(WORK_STREAM)).config, duplicate_window=0.1)
                models = await ModelManager.load(context)
                evaluator, queue = Evaluator(context, models), context.work_queue
                await queue.bind()
                await evaluator.resubmit_lost()
                (mine,) = await taken(queue)
                await evaluator.resubmit_lost()
                assert await queue.fetch(1, timeout_s=0.3) == [], "the job in play is still in the queue"
                await client.publish(mine.msg.reply, b"+ACK")
                await client.flush()
                again: list[ClaimedJob] = []
                while not again:
                    await evaluator.resubmit_lost()
                    again = await queue.fetch(1, timeout_s=0.1)
                assert [claimed.job.match_id for claimed in again] == [JOB.match_id]
                await models.close()

    asyncio.run(asyncio.wait_for(body(), 300))


def test_a_game_longer_than_the_wait_for_an_acknowledgement_stays_in_one_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "ACK_WAIT_S", ACK_WAIT_S)

    async def extended(client: Client, queue: WorkQueue) -> ClaimedJob:
        """The job, after its lease was extended for longer than it lasts; again where this machine was too slow."""
        while True:
            (mine,) = await taken(queue)
            began = last = time.monotonic()
            while time.monotonic() < began + 2 * ACK_WAIT_S:
                await mine.extend_lease()
                # Until the broker has it.
                await client.flush(timeout=60)
                others = await queue.fetch(1, timeout_s=0.25)
                pause_s, last = time.monotonic() - last, time.monotonic()
                if pause_s > ACK_WAIT_S / 2:
                    break
                assert others == []
            else:
                return mine

    async def body() -> None:
        async with broker(tmp_path) as client:
            queue = WorkQueue(client, "nim")
            await queue.create_consumer()
            await queue.bind()
            await queue.submit(JOB)
            mine = await extended(client, queue)
            (another,) = await taken(queue)
            assert another.job == JOB
            assert another.delivery_count == mine.delivery_count + 1, "whoever says nothing any more has lost it"
            await another.acknowledge()

    asyncio.run(asyncio.wait_for(body(), 300))


def test_what_is_no_job_is_set_aside_once_and_goes_back_as_it_was(tmp_path: Path) -> None:
    async def body() -> None:
        async with broker(tmp_path) as client:
            queue, dead = WorkQueue(client, "nim"), DeadLetters(client, "nim")
            await queue.create_consumer()
            await queue.bind()
            await client.jetstream().publish("work.nim.play_match", b"\xff no job")
            await client.jetstream().publish("work.nim.play_match", b"x" * (MAX_PAYLOAD_BYTES + 1))
            await queue.submit(JOB)
            found = await taken(queue) or await taken(queue)
            while not found:
                found = await taken(queue)
            assert [each.job for each in found] == [JOB]
            small, large = await dead.list_all()
            assert "not a job" in small.letter.error
            assert await dead.original_message(small.letter) == b"\xff no job"
            assert await dead.publish(small.letter) is False
            assert large.letter.size == MAX_PAYLOAD_BYTES + 1
            with pytest.raises(UsageError, match="were kept"):
                await dead.retry(large)
            assert await dead.retry(small) == ""
            assert await taken(queue, 1.0) == []
            assert [each.letter.payload for each in await dead.list_all()] == [large.letter.payload, b"\xff no job"]

    asyncio.run(asyncio.wait_for(body(), 300))


def test_letters_are_listed_shown_put_back_and_dropped_by_command(tmp_path: Path) -> None:
    async def write() -> None:
        run, config = Run(tmp_path), convert(CONFIG, LeagueConfig, "test")
        make_base(run.model, make_game("nim", config.game.settings).text().vocabulary(), SHAPE, seed=1)
        async with run.connect("test") as client:
            await open_league(run, client, config, lambda *_: None)
            dead, job = DeadLetters(client, "nim"), encode_job(JOB)
            await client.jetstream().publish("league.nim.agent.registered", b"\xff no event")
            await dead.publish(DeadLetter("LEAGUE", 4, "league.nim.agent.registered", "not a JSON object"))
            await dead.publish(DeadLetter("WORK", 9, "work.nim.play_match", "gave up", 6, "deadly", job, len(job)))
            await dead.publish(DeadLetter("WORK", 10, "work.nim.play_match", "not a job", 1, "", b"{}", 2))

    def told(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["dead-letters", *arguments, "--run", str(tmp_path)])
        assert result.exit_code == 0, result.output
        return result.output

    asyncio.run(write())
    listed = json.loads(told("--json"))
    assert [(each["number"], each["stream"], each["sequence"], each["tries"]) for each in listed] == [
        (1, "LEAGUE", 4, 1),
        (2, "WORK", 9, 6),
        (3, "WORK", 10, 1),
    ]
    assert "gave up" in told()
    assert "no event" in told("1")
    assert '"match_id":"deadly"' in told("2")
    assert told("--all", "--retry") == ("2: back on the queue as match deadly-again-2\n3: back on the queue\n"), (
        "only jobs can be"
    )
    assert told("1", "--drop") == "1 dropped\n"
    assert told() == "no dead letters\n"
    refused = CliRunner().invoke(app, ["dead-letters", "1", "--run", str(tmp_path)])
    assert isinstance(refused.exception, UsageError)
    assert "no such dead letter" in str(refused.exception)


def test_tries_are_at_least_one() -> None:
    with pytest.raises(ConfigError, match=r"evaluation\.tries: 0; expected 1 or more"):
        convert(CONFIG | {"evaluation": {"tries": 0}}, LeagueConfig, "test")


def test_what_is_no_letter_keeps_no_letter_from_being_listed(tmp_path: Path) -> None:
    async def body() -> None:
        async with broker(tmp_path) as client:
            dead = DeadLetters(client, "nim")
            deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
            await client.jetstream().publish("dead.nim.LEAGUE.1", deep)
            assert await dead.publish(DeadLetter(WORK_STREAM, 7, "work.nim.play_match", "bad", payload=b"x"))
            odd, letter = [entry.letter for entry in await dead.list_all()]
            assert odd.error.startswith("not a dead letter")
            assert letter.sequence == 7

    asyncio.run(asyncio.wait_for(body(), 300))
