"""Processes of different versions: who may join, who goes on, and which side is to be upgraded."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arena.games.diplomacy.spec import DiplomacySpec
from league.history.corrections import record_pending
from league.log import jetstream
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.ratings.fold import RatingFold
from league.run import Run
from league.state import LeagueState
from schemas.codec import SCHEMA_VERSION, encode_event
from schemas.config import LeagueConfig, to_builtins
from schemas.errors import UsageError, VersionError
from schemas.events import AgentRetired, LeagueOpened, WorkerJoined, WorkerLeft
from ui.cli import app
from workers import compatibility, run_worker
from workers.runtime import Context


@asynccontextmanager
async def league(folder: Path, rules: int = 1) -> AsyncIterator[tuple[Run, JetStreamLog]]:
    run, config = Run(folder), LeagueConfig(name="nim")
    async with run.connect("test") as client:
        await ensure_streams(client.jetstream(), config.experience)
        log = JetStreamLog(client, "nim", "test")
        await log.append(LeagueOpened(league="nim", config=to_builtins(config), model="", rules=rules))
        yield run, log


async def write_newer(log: JetStreamLog) -> None:
    """An event as a process of the next schema writes it."""
    headers, event = {"League-Schema": str(SCHEMA_VERSION + 1)}, encode_event(AgentRetired(agent="a", reason="b"))
    await log.client.jetstream().publish("league.nim.agent.retired", event, headers=headers)


async def until_stopped(context: Context) -> None:
    await context.stopping.wait()


def worker(run: Run, role: str, serve: Callable[[Context], Awaitable[None]] = until_stopped) -> Awaitable[int]:
    return run_worker.worker_main(run, role, f"{role}-0", serve)


async def left(log: JetStreamLog) -> str:
    """Why the worker that left last did."""
    found = await log.newest(WorkerLeft)
    assert found is not None
    assert isinstance(found.event, WorkerLeft)
    return found.event.reason


def test_pending_ratings_are_left_to_raters_that_can_read_the_history(tmp_path: Path) -> None:
    async def body() -> None:
        async with league(tmp_path) as (_, log):
            await write_newer(log)
            with pytest.raises(
                VersionError, match=rf"event 2 .* up to {SCHEMA_VERSION}: upgrade the reader; a newer rater"
            ):
                await record_pending(log, RatingFold())

    asyncio.run(body())


@pytest.mark.parametrize("role", ["rater", "rollout"])
def test_who_cannot_read_the_history_does_not_join(tmp_path: Path, role: str) -> None:
    async def body() -> None:
        async with league(tmp_path) as (run, log):
            await write_newer(log)
            with pytest.raises(
                VersionError, match=r"event 2 .* schema version 3; .* upgrade the reader; .*branch --at 1`"
            ):
                await worker(run, role)
            assert await log.newest(WorkerJoined) is None

    asyncio.run(asyncio.wait_for(body(), 300))


@pytest.mark.parametrize("role", ["rater", "trainer", "archivist"])
def test_deciders_end_at_an_event_that_they_cannot_read_and_say_why(tmp_path: Path, role: str) -> None:
    async def body() -> None:
        async with league(tmp_path) as (run, log):

            async def serve(context: Context) -> None:
                await write_newer(log)
                await context.stopping.wait()

            with pytest.raises(VersionError, match="upgrade the reader"):
                await worker(run, role, serve)
            assert "upgrade the reader" in await left(log)

    asyncio.run(asyncio.wait_for(body(), 300))


def test_players_pass_over_what_is_newer_and_go_on(tmp_path: Path) -> None:
    async def body() -> None:
        async with league(tmp_path) as (run, log):

            async def serve(context: Context) -> None:
                await write_newer(log)
                await context.wait_for_sequence(await log.last_sequence())
                assert sum(context.skipped_types.values()) == 1

            assert await worker(run, "rollout", serve) == 0
            assert await left(log) == "done"

    asyncio.run(asyncio.wait_for(body(), 300))


def test_nobody_joins_who_would_write_what_a_decider_cannot_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compatibility, "SCHEMA_VERSION", 3)

    async def done(context: Context) -> None:
        pass

    async def body() -> None:
        async with league(tmp_path) as (run, log):
            old = WorkerJoined(
                worker="rater-7", role="rater", incarnation="1", host="h", pid=1, version="0.2.0", schema=2
            )
            await log.append(old)
            with pytest.raises(VersionError, match=r"rollout-0 writes .* 3, and rater-7 .* up to 2: upgrade rater-7"):
                await worker(run, "rollout", done)
            await log.append(WorkerLeft(worker="rater-7", incarnation="1", reason="done"))
            assert await worker(run, "rollout", done) == 0

    asyncio.run(asyncio.wait_for(body(), 300))


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (1, 2, r"rollout-0 plays diplomacy by version 1 .* the league nim by version 2: .* upgrade rollout-0"),
        (3, 2, r"rollout-0 plays diplomacy by version 3 .* by version 2: .* open another league .* the older package"),
    ],
)
def test_nobody_joins_to_play_by_other_rules_than_the_leagues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ours: int, theirs: int, said: str
) -> None:
    monkeypatch.setattr(DiplomacySpec, "rules_version", ours)

    async def done(context: Context) -> None:
        pass

    async def body() -> None:
        async with league(tmp_path, rules=theirs) as (run, log):
            with pytest.raises(VersionError, match=said):
                await worker(run, "rollout", done)
            assert await log.newest(WorkerJoined) is None
            assert await worker(run, "tracker", done) == 0, "who plays nothing needs no rules"
            monkeypatch.setattr(DiplomacySpec, "rules_version", theirs)
            assert await worker(run, "rollout", done) == 0

    asyncio.run(asyncio.wait_for(body(), 300))


def test_the_rules_of_a_league_are_those_that_it_was_opened_with() -> None:
    state = LeagueState()
    state.apply(1, LeagueOpened(league="nim", config={}, model="", rules=4))
    state.apply(2, LeagueOpened(league="nim", config={}, model="", rules=5))
    assert LeagueState.from_snapshot(state.to_snapshot()).rules == state.rules == 4


def test_a_league_of_0_1_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetstream, "SCHEMA_VERSION", 1)

    async def body() -> None:
        async with league(tmp_path):
            pass

    asyncio.run(asyncio.wait_for(body(), 300))
    monkeypatch.undo()
    for words in (
        ["status"],
        ["sql", "SELECT 1"],
        ["up", "--config", str(Path(__file__).parents[2] / "configs" / "nim-tiny.toml")],
    ):
        result = CliRunner().invoke(app, [*words, "--run", str(tmp_path)])
        assert isinstance(result.exception, UsageError), result.output
        assert "its history was written by version 0.1.0 (events of schema 1); expected schema 2" in str(
            result.exception
        )
