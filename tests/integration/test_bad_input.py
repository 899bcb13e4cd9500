"""Wrong input, missing and damaged things: one paragraph that names the place and the expectation, no traceback."""

import asyncio
import contextlib
import json
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client
from typer.testing import CliRunner

from league.blobs import BrokerBlobStore, CachedBlobStore, FolderBlobStore
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.queues import ExperienceStream
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.run import Run
from schemas.config import ExperienceConfig
from schemas.errors import ArtifactError, BackpressureError, LeagueError, StoreFullError
from schemas.events import AgentRegistered
from schemas.subjects import DEAD_LETTER_STREAM
from schemas.trajectories import Trajectory
from ui.cli import app
from workers.runtime import Context, beside

CONFIGS = Path(__file__).parents[2] / "configs"


def process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ui", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **options)


def league(*arguments: str) -> tuple[int, str, str]:
    """A command in this process: its exit code, what it prints, and what it says on standard error.

    Any error but the league's own, which would print a traceback, is raised.
    """
    result = CliRunner().invoke(app, arguments)
    match result.exception:
        case LeagueError() as error:
            return error.exit_code, result.stdout, f"{result.stderr}error: {error}"
        case None | SystemExit():
            return result.exit_code, result.stdout, result.stderr
        case error:
            raise error


def refused(*arguments: str, code: int, says: list[str]) -> None:
    found, said, error = league(*arguments)
    assert found == code, said + error
    for words in says:
        assert words in error, error


def config(folder: Path, text: str) -> str:
    path = folder / "league.toml"
    path.write_text(text)
    return str(path)


@contextlib.asynccontextmanager
async def broker(folder: Path, limits: ExperienceConfig | None = None, **options: int) -> AsyncIterator[Client]:
    with EmbeddedServer(folder / "nats", **options) as server:
        client = await connect(server.url, "test")
        await ensure_streams(client.jetstream(), limits or ExperienceConfig(max_bytes=1_000_000))
        yield client
        await flush_and_close(client)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[trainer]\npolcy = 'x'", ["league.toml", "trainer.polcy: unknown key", "'policy'"]),
        ("[rollout]\ngames_in_flight = 'many'", ["rollout.games_in_flight", "expected `int`"]),
        ("[rollout]\ngames_in_flight = 0", ["rollout.games_in_flight: 0; expected 1 to 100,000"]),
        ("[model.shape]\ninit_std = -1.0", ["model.shape.init_std", "expected"]),
        ("[game]\nname = 'chess'", ["'chess'", "expected", "'diplomacy'"]),
        ("[game]\nname = 'nim'\nsettings = { seats = 1 }", ["seats", "1", "expected"]),
        ("[game]\nname = 'nim'\n[matchmaking.sampler]\nname = 'luck'", ["'luck'", "'pfsp'"]),
        ("this is no toml", ["league.toml", "not TOML"]),
    ],
)
def test_a_wrong_configuration_names_the_key_and_what_was_expected(tmp_path, text, says):
    refused("up", "--config", config(tmp_path, text), "--run", str(tmp_path / "run"), code=2, says=says)


def test_stages_of_different_leagues_are_refused_before_the_first_begins(tmp_path):
    stages = ["--config", str(CONFIGS / "nim-tiny.toml"), "--config", str(CONFIGS / "quick-start.toml")]
    refused("up", *stages, "--run", str(tmp_path / "run"), code=2, says=["'nim'", "game"])
    assert not (tmp_path / "run").exists()


def test_a_missing_configuration_is_named(tmp_path):
    says = ["nowhere.toml", "cannot be read"]
    refused("up", "--config", str(tmp_path / "nowhere.toml"), "--run", str(tmp_path / "run"), code=2, says=says)


def test_an_unreachable_broker_is_named(tmp_path):
    with socket.socket() as sock:
        # Taken, so that nobody else listens there, and refusing connections.
        sock.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{sock.getsockname()[1]}"
        says = ["no NATS broker at", url, "expected a nats-server with JetStream"]
        refused("leaderboard", "--nats", url, "--run", str(tmp_path / "run"), code=1, says=says)


def test_a_busy_port_is_named(tmp_path):
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = str(sock.getsockname()[1])
        arguments = ["up", "--config", str(CONFIGS / "nim-tiny.toml"), "--run", str(tmp_path / "run"), "--port", port]
        result = process(*arguments)
    assert (result.returncode, "Traceback" in result.stdout + result.stderr) == (2, False)
    assert f"--port {port}: " in result.stderr
    assert "in use; expected a free port" in " ".join(result.stderr.split())


def test_a_folder_without_a_league_is_said_to_have_none(tmp_path):
    refused("leaderboard", "--run", str(tmp_path), code=2, says=[str(tmp_path), "no league here", "league up"])
    assert list(tmp_path.iterdir()) == []


def test_unknown_roles_and_event_types_list_the_valid_ones(tmp_path):
    refused("worker", "cook", "--run", str(tmp_path), code=2, says=["'cook'", "'rater'"])
    refused("events", "--type", "Foo", "--run", str(tmp_path), code=2, says=["--type Foo", "'MatchFinished'"])
    refused("leaderboard", "--nonsense", code=2, says=["--nonsense"])


def test_a_model_directory_that_is_none_is_named(tmp_path):
    (tmp_path / "model").mkdir()
    text = (CONFIGS / "nim-tiny.toml").read_text().replace("[model]", f"[model]\nbase = '{tmp_path / 'model'}'")
    arguments = ["up", "--no-workers", "--config", config(tmp_path, text), "--run", str(tmp_path / "run")]
    refused(*arguments, code=1, says=[str(tmp_path / "model"), "config.json"])


def test_another_leagues_configuration_is_refused_and_a_changed_setting_recorded(tmp_path):
    run = str(tmp_path / "run")
    text = (CONFIGS / "nim-tiny.toml").read_text()
    text = text.replace("sequences = 512", "sequences = 16")
    assert league("up", "--no-workers", "--config", config(tmp_path, text), "--run", run)[0] == 0
    other = config(tmp_path, text.replace("seed = 3", "seed = 4"))
    refused(
        "up", "--no-workers", "--config", other, "--run", run, code=2, says=["another seed", "another --run folder"]
    )
    more = config(tmp_path, text.replace("steps = 3", "steps = 4"))
    assert league("up", "--no-workers", "--config", more, "--run", run)[0] == 0
    lines = league("events", "--type", "LeagueConfigured", "--json", "--run", run)[1].splitlines()
    assert json.loads(lines[0])["event"]["config"]["stop"]["steps"] == 4


def test_a_missing_or_damaged_artifact_is_never_used(tmp_path):
    async def body() -> None:
        async with broker(tmp_path) as client:
            cache = FolderBlobStore(tmp_path / "cache")
            store = CachedBlobStore(BrokerBlobStore(client, "nim"), cache)
            name = await store.put(b"weights")
            cache.path(name).write_bytes(b"wrong!!")
            with pytest.raises(ArtifactError, match="damaged"):
                await cache.get(name)
            assert await store.get(name) == b"weights"
            assert cache.path(name).read_bytes() == b"weights"
            with pytest.raises(ArtifactError, match="not in the broker's object store"):
                await store.get("0" * 64)

    asyncio.run(body())


def test_an_undecodable_message_is_set_aside_and_the_rest_goes_on(tmp_path):
    async def body() -> None:
        async with broker(tmp_path) as client:
            log = JetStreamLog(client, "league", "test")
            agent = AgentRegistered(agent="a", kind="bot", baseline=False, rating=1.0)
            await client.jetstream().publish("league.league.agent.registered", b"\xff not an event")
            await log.append(agent)
            for _ in range(2):
                recorded = [r async for r in log.read()]
                assert [r.event for r in recorded] == [None, agent]
                for each in recorded:
                    await log.publish_dead_letter(each)
            letters = await client.jetstream().stream_info(DEAD_LETTER_STREAM)
            assert letters.state.messages == 1
            letter = await client.jetstream().get_msg(DEAD_LETTER_STREAM, 1)
            assert json.loads(letter.data)["sequence"] == 1

    asyncio.run(body())


def test_events_of_unknown_types_are_passed_over_and_counted(tmp_path):
    async def body() -> None:
        async with broker(tmp_path) as client:
            log = JetStreamLog(client, "league", "test")
            for number in (1, 2):
                stranger = json.dumps({"type": "SeasonBegun", "number": number}).encode()
                await client.jetstream().publish("league.league.season.begun", stranger)
            last = await log.append(AgentRegistered(agent="a", kind="bot", baseline=False, rating=1.0))
            context = Context(Run(tmp_path), client, log, "worker")
            async with beside(context.follow()):
                await asyncio.wait_for(context.wait_for_sequence(last), 300)
            assert context.skipped_types == {"event of unknown type 'SeasonBegun'": 2}
            assert list(context.state.agents) == ["a"]

    asyncio.run(body())


def test_a_full_experience_stream_pushes_back(tmp_path):
    async def body() -> None:
        async with broker(tmp_path, ExperienceConfig(max_messages=2, max_bytes=100_000)) as client:
            stream = ExperienceStream(client, "league")
            rollouts = [Trajectory(f"m{n}", "nim", "main", 0, "first", "g", [], 1, 1.0, 1.0, 1) for n in range(3)]
            await stream.publish(rollouts[0])
            await stream.publish(rollouts[1])
            with pytest.raises(BackpressureError):
                await stream.publish(rollouts[2])
            received = [r async for r in first_two(stream)]
            await stream.purge_through("main", received[0].sequence)
            await stream.publish(rollouts[2])

    async def first_two(stream):
        count = 0
        async for received in stream.follow("main", 1):
            yield received
            count += 1
            if count == 2:
                return

    asyncio.run(asyncio.wait_for(body(), 300))


async def noticed(server: EmbeddedServer) -> None:
    """Look at the store as a supervisor does, until it complains."""
    while True:
        await asyncio.sleep(0.2)
        server.check_disk_space()


async def fill(log: JetStreamLog) -> int:
    """Append until the store is full; how many were acknowledged."""
    for n in range(100_000):
        try:
            await log.append(AgentRegistered(agent=f"agent-{n}" + "x" * 2_000, kind="bot", baseline=False, rating=1.0))
        except StoreFullError:
            return n
    raise AssertionError("the store never filled")


def test_a_store_at_its_limit_refuses_and_loses_nothing(tmp_path):
    async def body() -> None:
        async with broker(tmp_path, max_store_bytes=3_000_000) as client:
            log = JetStreamLog(client, "league", "test")
            acknowledged = await fill(log)
        async with broker(tmp_path) as client:
            log = JetStreamLog(client, "league", "test")
            assert len([r async for r in log.read()]) == acknowledged
            assert await log.append(AgentRegistered(agent="b", kind="bot", baseline=False, rating=1.0))

    asyncio.run(body())


def test_a_full_disk_refuses_and_loses_nothing(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        shutil.which("mount") is None
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("this user cannot mount a small disk")

    async def body() -> None:
        ballast = disk / "ballast"
        with EmbeddedServer(disk / "nats") as server:
            client = await connect(server.url, "test")
            await ensure_streams(client.jetstream(), ExperienceConfig(max_bytes=1_000_000))
            log = JetStreamLog(client, "league", "test")
            server.check_disk_space()
            ballast.write_bytes(b"x" * 3_000_000)
            filling = asyncio.create_task(fill(log))
            with pytest.raises(StoreFullError, match="no space left"):
                await noticed(server)
            recorded = await log.last_sequence()
            filling.cancel()
            await flush_and_close(client)
        ballast.unlink()
        async with broker(disk) as client:
            log = JetStreamLog(client, "league", "test")
            assert len([r async for r in log.read()]) == recorded > 100
            assert await log.append(AgentRegistered(agent="b", kind="bot", baseline=False, rating=1.0))

    try:
        asyncio.run(asyncio.wait_for(body(), 300))
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_broker_holds_several_leagues_and_the_reader_says_which(tmp_path):
    text = (CONFIGS / "nim-tiny.toml").read_text().replace("sequences = 512", "sequences = 16")
    with EmbeddedServer(tmp_path / "nats") as server:
        shared = ["--nats", server.url, "--run", str(tmp_path / "run")]
        for name in ("red", "blue"):
            other = config(tmp_path, text.replace('name = "nim"\nseed', f'name = "{name}"\nseed'))
            assert league("up", "--no-workers", "--config", other, *shared)[0] == 0
        refused("leaderboard", *shared, code=1, says=["several leagues (blue, red)", "--league"])
        opened = league("events", "--type", "LeagueOpened", "--json", "--league", "red", *shared)[1].splitlines()
        assert [json.loads(line)["event"]["league"] for line in opened] == ["red"]


def test_a_player_at_an_endless_pipe_is_refused_in_words_too(tmp_path: Path) -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as pipe:
        result = process("play", "--run", str(tmp_path / "none"), stdin=pipe.stdout)
        pipe.kill()
    assert result.returncode == 2
    assert "no league here" in result.stderr
    assert "Traceback" not in result.stderr
