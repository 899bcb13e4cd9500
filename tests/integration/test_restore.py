"""A league whose only broker lost part of its history is put together again from the archive and what is left."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from league.integrity.archive import archive_history
from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.run import Run
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from schemas.errors import LeagueError
from schemas.events import WorkerJoined
from tests.builders import store_adapters
from tests.simulated_history import Simulation
from ui.cli import app

HISTORY = Simulation(
    LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7)), registers=True
).run(8, 1)
ARCHIVED = len(HISTORY) - 10
HALF = ARCHIVED // 2
EVERY = 100

History = list[tuple[int, bytes, int, str]]


def league(*words: str | Path | int) -> tuple[int, str]:
    """Exit code of a command, and what it prints."""
    result = CliRunner().invoke(app, list(map(str, words)))
    # As the command line's main function has it.
    code = result.exception.exit_code if isinstance(result.exception, LeagueError) else result.exit_code
    return code, " ".join(f"{result.output} {result.exception or ''}".split())


def lies(recorded: RecordedEvent) -> tuple[int, bytes, int, str]:
    return recorded.sequence, recorded.payload, recorded.time_ns, recorded.producer


async def filled(run: Path, events: list[RecordedEvent], archived: bool) -> None:
    async with Run(run).connect("test") as client:
        await ensure_streams(client.jetstream(), ExperienceConfig())
        log, blobs = JetStreamLog(client, "league", "test"), Run(run).open_blob_store(client, "league")
        await store_adapters(blobs, events)
        await log.copy(events)
        if archived:
            await archive_history(log, blobs, EVERY, rest=True)
            await log.append(WorkerJoined("late", "rollout", "1", "host", 1, "0", 1))


async def read(run: Path) -> list[RecordedEvent]:
    async with Run(run).open_log() as log:
        return [recorded async for recorded in log.read()]


def history_of(run: Path) -> History:
    return [lies(recorded) for recorded in asyncio.run(read(run))]


def without_end(run: Path, kept: int) -> None:
    """The stream ends after so many events; the archive is still in the object store."""
    before = asyncio.run(read(run))
    (stream,) = (run / "nats" / "store").rglob("streams/LEAGUE")
    shutil.rmtree(stream)
    asyncio.run(filled(run, before[:kept], archived=False))


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped run, archived but for the newest events."""
    run = tmp_path_factory.mktemp("archived") / "run"
    asyncio.run(filled(run, list(HISTORY), archived=True))
    return run


@pytest.fixture
def run(archived: Path, tmp_path: Path) -> Path:
    """The same, to be damaged."""
    return Path(shutil.copytree(archived, tmp_path / "run"))


@pytest.fixture(scope="module")
def before(archived: Path) -> History:
    """What it holds."""
    return history_of(archived)


@pytest.fixture
def restore(run: Path, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    return lambda *words: league("restore", "--from", run, "--run", tmp_path / "new", *words)


def test_what_a_cut_stream_has_lost_comes_from_the_archive(
    run: Path, before: History, tmp_path: Path, restore: Callable[..., tuple[int, str]]
) -> None:
    without_end(run, HALF)
    code, said = restore()
    assert code == 0, said
    restored = history_of(tmp_path / "new")
    assert len(restored) - 1 >= len(HISTORY)
    assert restored[:-1] == before[: len(restored) - 1]
    assert f"up to {len(restored) - 1} from the archive" in said
    assert f"the archive vouches for it up to event {len(HISTORY)};" in said
    assert league("verify", "--run", tmp_path / "new")[0] == 0
    assert league("replay", "--verify", "--run", tmp_path / "new")[0] == 0


def test_what_the_stream_holds_after_the_archive_is_taken_over(
    before: History, tmp_path: Path, restore: Callable[..., tuple[int, str]]
) -> None:
    code, said = restore()
    assert code == 0, said
    assert "left out" not in said
    restored = history_of(tmp_path / "new")
    assert restored[:-1] == before


def test_what_a_cut_stream_went_on_with_is_left_out(
    run: Path, before: History, tmp_path: Path, restore: Callable[..., tuple[int, str]]
) -> None:
    async def go_on() -> None:
        async with Run(run, name="league").open_log("test") as log:
            for number in range(ARCHIVED):
                await log.append(WorkerJoined(f"late-{number}", "rollout", "1", "host", 1, "0", 1))

    without_end(run, HALF)
    asyncio.run(go_on())
    code, said = restore()
    assert code == 0, said
    assert f"left out, events {HALF + 1} to {HALF + ARCHIVED} of the stream" in said
    restored = history_of(tmp_path / "new")
    assert restored[:-1] == before[: len(restored) - 1]


def test_a_folder_of_artifacts_is_enough(run: Path, before: History, tmp_path: Path) -> None:
    code, said = league(
        "restore", "--from", tmp_path / "none", "--archive", run / "artifacts", "--run", tmp_path / "new"
    )
    assert code == 0, said
    restored = history_of(tmp_path / "new")
    assert restored[:-1] == before[: len(restored) - 1]


def test_a_copy_of_the_archive_is_written_once_verified_and_enough(run: Path, before: History, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    assert league("config", "set", f"history.copy_to={copy}", "--run", run)[0] == 0
    code, text = league("verify", "--run", run)
    assert (code, "the archive reaches event" in text, "its copy 0" in text) == (1, True, True), text
    code, text = league("archive", "--run", run)
    assert (code, "copied up to event" in text) == (0, True), text
    (place,) = copy.iterdir()
    code, text = league("restore", "--from", tmp_path / "none", "--archive", place, "--run", tmp_path / "new")
    assert code == 0, text
    restored = history_of(tmp_path / "new")
    assert restored[: len(before)] == before[: len(restored) - 1]
    damaged = max((path for path in place.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    damaged.chmod(0o644)
    damaged.write_bytes(b"damaged")
    league("archive", "--run", run)
    assert damaged.read_bytes() == b"damaged", "nothing replaces a file"
    # The stream ends before the event that configured the copy.
    without_end(run, HALF)
    code, text = league("verify", "--run", run, "--copy", copy)
    assert (code, "DAMAGED in the copy" in text) == (1, True), text
    assert f"ends at event {HALF}; the copy of the archive reaches" in text


def test_a_damaged_archive_is_restored_as_far_as_it_is_whole_and_without_its_beginning_not_at_all(
    run: Path, tmp_path: Path
) -> None:
    manifest = max(
        (json.loads(data) for path in (run / "artifacts").rglob("*") if (data := content(path)).startswith(b'{"vers')),
        key=lambda found: len(found["segments"]),
    )
    copy = tmp_path / "copy"
    shutil.copytree(run / "artifacts", copy)
    for place, code in ((-1, 0), (0, 1)):
        for file in manifest["segments"][place]["files"].values():
            (copy / file["digest"][:2] / file["digest"]).write_bytes(b"damaged")
        new = tmp_path / f"new{place}"
        result, said = league("restore", "--from", tmp_path / "none", "--archive", copy, "--run", new)
        assert result == code, said
        assert new.exists() == (code == 0)
    assert len(history_of(tmp_path / "new-1")) - 1 <= manifest["segments"][-2]["last"]
    assert "cannot be read from its first event on" in said


def content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def test_what_cannot_be_restored_is_said(run: Path, tmp_path: Path, restore: Callable[..., tuple[int, str]]) -> None:
    for words, told in (
        (("--expect", "f" * 64), "no manifest has this digest"),
        (("--expect", "f"), "not the digest of a manifest"),
        (("--league", "other"), "no archive of league 'other' was found"),
        (("--archive", tmp_path / "nowhere"), "no such folder"),
    ):
        code, said = restore(*words)
        assert code == 2, said
        assert told in said
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    for folder, told in (("none", "none: no such folder"), ("empty", "no archive of any league was found")):
        code, said = league("restore", "--from", tmp_path / folder, "--run", tmp_path / "new")
        assert code == 2
        assert told in said
