"""Time travel, counterfactual replay, voids and lineage by command, on a real broker's files."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from league.history.replay import HistoryReplay, replay_log, verify_events
from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.ratings.fold import RatingFold
from league.run import Run
from league.state import LeagueState
from models.adapter_bundle import pack_folder
from schemas import events as e
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from schemas.errors import LeagueError
from schemas.ids import digest
from tests.simulated_history import Simulation, leaderboard_rows
from ui.cli import app

HISTORY = Simulation(
    LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
).run(8, 2)
EVALUATED = [r.event for r in HISTORY if isinstance(r.event, e.MatchFinished) and r.event.purpose == "evaluation"]
TRAINED = [r.event for r in HISTORY if isinstance(r.event, e.MatchFinished) and r.event.purpose == "training"]


@contextlib.asynccontextmanager
async def league_in(folder: Path) -> AsyncIterator[JetStreamLog]:
    async with Run(folder).connect("test") as client:
        await ensure_streams(client.jetstream(), ExperienceConfig())
        yield JetStreamLog(client, "league", "test")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped")

    async def body() -> None:
        async with league_in(folder) as log:
            await log.copy(HISTORY)

    asyncio.run(body())
    return folder


@pytest.fixture
def run(stopped: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path / "run"


def events_of(run: Path, first: int = 1) -> list[RecordedEvent]:
    async def body() -> list[RecordedEvent]:
        async with league_in(run) as log:
            return [recorded async for recorded in log.read(first)]

    return asyncio.run(body())


def command(run: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--run", str(run)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def told(run: Path, *arguments: str) -> Any:
    return json.loads(command(run, *arguments, "--json"))


def refused(run: Path, *arguments: str) -> str:
    with pytest.raises(LeagueError) as failure:
        CliRunner().invoke(app, [*arguments, "--run", str(run)], catch_exceptions=False)
    assert failure.value.exit_code == 2
    return str(failure.value)


def kinds(records: list[RecordedEvent]) -> Counter[str]:
    return Counter(type(record.event).__name__ for record in records)


def clock(sequence: int) -> str:
    """The time of an event, as people write it."""
    ns = HISTORY[sequence - 1].time_ns
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(ns // 10**9)) + f".{ns % 10**9 // 1000:06}"


def test_a_replay_prints_the_same_digest_each_time_and_by_sequence_or_time(stopped: Path) -> None:
    until = len(HISTORY) // 2
    state = LeagueState()
    for recorded in HISTORY[:until]:
        state.apply(recorded.sequence, recorded.event)
    by_sequence = told(stopped, "replay", "--until", str(until))
    assert by_sequence["digest"] == state.digest()
    assert told(stopped, "replay", "--until", clock(until)) == by_sequence
    assert told(stopped, "replay")["sequence"] == len(HISTORY)
    assert f"digest of the state: {state.digest()}" in command(stopped, "replay", "--until", str(until))


def test_the_leaderboard_of_a_past_event_is_that_of_the_state_then(stopped: Path) -> None:
    until = len(HISTORY) // 2
    state = LeagueState()
    for recorded in HISTORY[:until]:
        state.apply(recorded.sequence, recorded.event)
    expected = {row.agent: (row.rating, row.games) for row in leaderboard_rows(state)}
    for place in (str(until), clock(until), clock(until) + "Z"):
        rows = told(stopped, "leaderboard", "--at", place)
        assert {row["agent"]: (row["online"], row["rated_games"]) for row in rows} == expected
    result = CliRunner().invoke(app, ["leaderboard", "--at", str(until), "--run", str(stopped)])
    assert f"as of event {until} (" in result.stderr


@pytest.mark.parametrize(
    "words", [("replay", "--until"), ("leaderboard", "--at"), ("replay", "--system", "elo", "--until")]
)
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("0", f"holds 1 to {len(HISTORY)}"),
        ("999999", f"holds 1 to {len(HISTORY)}"),
        ("yesterday", "neither a sequence nor a time"),
        ("2001-01-01", "before the first event"),
    ],
)
def test_a_place_that_the_history_does_not_have_is_refused_with_what_it_has(
    stopped: Path, words: tuple[str, ...], place: str, message: str
) -> None:
    assert message in refused(stopped, *words, place)


def test_a_counterfactual_replay_tells_the_moves_and_writes_nothing(stopped: Path) -> None:
    found = told(stopped, "replay", "--set", "ratings.elo.k=16")
    fold = RatingFold()
    for recorded in HISTORY:
        fold.apply(recorded.sequence, recorded.event)
    recorded_ratings = {rated.agent: rated.rating for rated in fold.rated_agents("diplomacy")}
    assert {move["agent"]: move["recorded_rating"] for move in found["moves"]} == recorded_ratings
    assert any(move["rating"] != move["recorded_rating"] for move in found["moves"])
    excluded = told(stopped, "replay", "--exclude", "worker = 'evaluator-0' -- all evaluations")
    assert all(move["rank"] is None for move in excluded["moves"])
    assert told(stopped, "replay", "--without-worker", "evaluator-0") == excluded
    assert len(events_of(stopped)) == len(HISTORY)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--exclude", "lenght > 3"), "LINE 2: lenght > 3\n        ^"),
        (("--exclude", "match_id IN (DELETE FROM agents RETURNING agent)"), "LINE 2: match_id IN (DELETE FROM agents"),
        (("--exclude", "true); DROP TABLE agents; --"), "SQL:"),
        (("--exclude", "length IN (SELECT 1 FROM read_text('/etc/hostname'))"), "LINE 2"),
        (("--without-worker", "bob"), "--without-worker bob: played no match; expected 'evaluator-0' or 'rollout-0'"),
        (("--without-agent", "bob"), "agent 'bob': in no match"),
        (("--system", "glicko"), "'glicko' is unknown; expected 'elo'"),
        (("--set", "ratings.elo.k=16", "--verify"), "--verify: compares the history with itself"),
    ],
)
def test_rules_that_cannot_be_are_refused(stopped: Path, words: tuple[str, ...], message: str) -> None:
    assert message in refused(stopped, "replay", *words)
    assert command(stopped, "replay", "--verify").splitlines()[0].endswith("identical")


def test_voided_matches_are_taken_out_of_the_ratings_of_a_stopped_league(run: Path) -> None:
    names = [EVALUATED[3].match_id, EVALUATED[9].match_id]
    predicted = told(run, "void", *names, "--dry-run")
    assert len(events_of(run)) == len(HISTORY)
    found = told(run, "void", *names, "--reason", "wrong engine")
    assert found["matches"] == names
    assert {move["agent"]: move["rating"] for move in found["moves"]} == {
        move["agent"]: move["rating"] for move in predicted["moves"]
    }
    assert kinds(events_of(run, len(HISTORY) + 1)) == {"MatchVoided": 2, "RatingsCorrected": 1}
    fold = RatingFold(without=names)
    for recorded in HISTORY:
        fold.apply(recorded.sequence, recorded.event)
    rows = told(run, "leaderboard")
    expected = {rated.agent: (rated.rating, rated.games) for rated in fold.rated_agents("diplomacy")}
    assert {r["agent"]: (r["online"], r["rated_games"]) for r in rows if r["rated_games"]} == {
        agent: rated for agent, rated in expected.items() if agent in {row["agent"] for row in rows}
    }
    assert told(run, "leaderboard", "--at", str(len(HISTORY))) != rows
    assert "1 correction: identical" in command(run, "replay", "--verify")
    assert "0 matches voided, 2 were void already" in command(run, "void", *names, "--reason", "wrong engine")
    assert len(events_of(run)) == len(HISTORY) + 3


def test_a_workers_matches_taint_the_steps_that_used_them_and_what_followed(run: Path) -> None:
    last = TRAINED[-1]
    since = next(r.sequence for r in HISTORY if r.event == last)
    found = told(run, "void", "--worker", "rollout-0", "--since", str(since), "--reason", "broken GPU")
    assert found["matches"] == [last.match_id]
    steps = [r.event for r in HISTORY if isinstance(r.event, e.GradientStepTaken) and last.match_id in r.event.matches]
    assert [step["step"] for step in found["tainted"]] == [step.step for step in steps]
    assert told(run, "void", "--worker", "rollout-0", "--until", clock(since), "--dry-run")["already"] == 1
    lineage = told(run, "lineage", "main@8")
    assert not any(station["tainted"] for station in lineage["stations"])
    assert command(run, "lineage", "main@8", "--mermaid").startswith("flowchart TD\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("eval-nowhere-0", "--reason", "x"), "'eval-nowhere-0': no such match was played to its end"),
        (
            ("--worker", "bob", "--reason", "x"),
            "--worker bob: finished no match; expected 'evaluator-0' or 'rollout-0'",
        ),
        (("--worker", "rollout-0"), "--reason: empty"),
        (("--reason", "x"), "expected either ids of matches or --worker"),
        (("a", "--since", "3", "--reason", "x"), "--since and --until go with --worker"),
        (("--worker", "rollout-0", "--since", "999999", "--reason", "x"), "no such event"),
        (("--worker", "rollout-0", "--since", "soon", "--reason", "x"), "neither a sequence nor a time"),
    ],
)
def test_a_void_that_names_nothing_is_refused(stopped: Path, words: tuple[str, ...], message: str) -> None:
    assert message in refused(stopped, "void", *words)
    assert len(events_of(stopped)) == len(HISTORY)


def test_an_adapters_files_name_the_version_that_they_are(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    packed = tmp_path / "packed"
    packed.write_bytes(pack_folder(folder))

    async def publish() -> None:
        async with league_in(run) as log:
            name = digest(packed.read_bytes())
            await log.append(e.PolicyPublished(policy="main", version=99, adapter=name, parent="main@8"))

    asyncio.run(publish())
    for path in (folder, folder / "adapter_model.safetensors", packed):
        assert told(run, "lineage", str(path))["agent"] == "main@99"
    (folder / "adapter_model.safetensors").write_bytes(b"other weights")
    assert "no version in this history has an adapter" in refused(run, "lineage", str(folder))


def test_events_appended_while_a_replay_reads_do_not_change_it(run: Path) -> None:
    async def body() -> None:
        async with league_in(run) as log:
            until = len(HISTORY)
            before = await replay_log(log, until)
            replay, number = HistoryReplay(), 0
            async for batch in log.batches(1, until):
                for recorded in batch:
                    replay.apply(recorded)
                    if recorded.sequence % 20 == 0:
                        number += 1
                        event = e.MatchFailed(match_id=f"late-{number}", purpose="training", worker="late", error="x")
                        await log.append(event)
            assert number > 5
            assert replay.report() == before == await replay_log(log, until)
            assert (await replay_log(log)).events == until + number

    asyncio.run(body())


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.3])
def test_a_rater_killed_around_a_void_leaves_one_correction(run: Path, delay_s: float) -> None:
    async def body() -> list[RecordedEvent]:
        async with league_in(run) as log:
            first = rater(run, "rater-1")
            await until_joined(log, "rater-1")
            for place in (3, 5, 7):
                match = EVALUATED[place]
                sequence = next(r.sequence for r in HISTORY if r.event == match)
                await log.append(e.MatchVoided(match=match, match_sequence=sequence, reason="x"))
            await asyncio.sleep(delay_s)
            os.kill(first.pid, signal.SIGKILL)
            first.wait()
            second = rater(run, "rater-2")
            await until_joined(log, "rater-2")
            await log.append(once_more(EVALUATED[11]))
            second.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(second.wait, 300) == 0
            return [recorded async for recorded in log.read()]

    records = asyncio.run(asyncio.wait_for(body(), 300))
    through = [r.event.through for r in records if isinstance(r.event, e.RatingsCorrected)]
    assert through == sorted(set(through))
    report = verify_events(records)
    assert (report.is_identical, report.pending) == (True, 0)
    fold, state = RatingFold(without=[EVALUATED[place].match_id for place in (3, 5, 7)]), LeagueState()
    for recorded in records:
        fold.apply(recorded.sequence, recorded.event)
        state.apply(recorded.sequence, recorded.event)
    assert state.rating_table.rated_agents() == fold.rated_agents("diplomacy")


def once_more(match: e.MatchFinished) -> e.MatchFinished:
    """The same result under another id."""
    return msgspec.structs.replace(match, match_id="again-0", evaluation_id="")


def rater(run: Path, name: str) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-m", "ui", "worker", "rater", "--run", str(run), "--name", name]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


async def until_joined(log: JetStreamLog, name: str) -> None:
    while True:
        async for recorded in log.read(only=e.WorkerJoined):
            if isinstance(recorded.event, e.WorkerJoined) and recorded.event.worker == name:
                return
        await asyncio.sleep(0.05)
