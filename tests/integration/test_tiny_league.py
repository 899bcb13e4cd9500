"""A whole league in real processes: trained, rated, read back by strangers, replayed identically."""

import asyncio
import contextlib
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path

import nats
import nbformat
import pytest
from nats.js.api import ConsumerConfig, DeliverPolicy
from nbclient import NotebookClient
from typer.testing import CliRunner, Result

import league as league_package
from league.log.server import EmbeddedServer
from league.queries.live_league import open_live_league
from league.queries.pages import RequestParams
from league.queries.pages.matches import load_whole_match
from league.queries.pages.training import step_decisions
from league.queries.stored import ProjectionCopy
from league.run import Run
from schemas.codec import decode_event
from schemas.events import (
    CheckpointAdded,
    EvaluationFinished,
    Event,
    GradientStepTaken,
    MatchFailed,
    MatchFinished,
    OpponentsSampled,
    PolicyPublished,
    RatingUpdated,
    TrainingFinished,
    WorkerJoined,
    WorkerLeft,
)
from schemas.jobs import PlayMatch
from tests.builders import run_query
from ui.cli import app
from workers.match_runner.runner import MatchExecutor
from workers.policy_weights import ModelManager
from workers.runtime import Context, beside

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "configs" / "nim-tiny.toml"
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def league(*arguments: str, run: Path) -> Result:
    return CliRunner().invoke(app, [*arguments, "--run", str(run)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run, printed = tmp_path_factory.mktemp("tiny") / "run", io.StringIO()
    with contextlib.redirect_stdout(printed):
        reader = league_package.up(CONFIG, run)
    assert "identical" in printed.getvalue()
    assert "nothing is left" not in printed.getvalue()
    assert "base_model" in {row["agent"] for row in reader.leaderboard()}
    return run


@pytest.fixture(scope="module")
def history(finished: Path) -> list[Event]:
    """Read as a stranger would: a bare client of the broker, no code of the log."""

    async def read() -> list[Event]:
        with EmbeddedServer(finished / "nats") as server:
            client = await nats.connect(server.url)
            js = client.jetstream()
            last = (await js.stream_info("LEAGUE")).state.last_seq
            subscription = await js.subscribe(
                "league.nim.>", ordered_consumer=True, config=ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
            )
            events = []
            while len(events) < last:
                message = await subscription.next_msg(timeout=300)
                assert json.loads(message.data)["type"]
                events.append(decode_event(message.data, int(message.headers["League-Schema"])))
            await client.close()
            return events

    return asyncio.run(read())


def of(history: list[Event], kind: type[Event]) -> list:
    return [event for event in history if isinstance(event, kind)]


def test_every_step_of_training_is_an_event(history):
    assert [step.step for step in of(history, GradientStepTaken)] == [1, 2, 3]
    assert [published.version for published in of(history, PolicyPublished)] == [0, 1, 2, 3]
    assert of(history, TrainingFinished)[0].reason == "3 steps"
    assert [added.reason for added in of(history, CheckpointAdded)][:1] == ["first"]


def test_every_rollout_is_accounted_for(history):
    published = [m for m in of(history, MatchFinished) if m.purpose == "training" and m.experience]
    steps = of(history, GradientStepTaken)
    used = [match for step in steps for match in step.matches]
    assert len(used) == len(set(used)) == sum(step.accepted for step in steps)
    assert set(used) <= {match.match_id for match in published}
    assert [step.experience_from for step in steps] == [1, *(step.experience_to + 1 for step in steps[:-1])]


def test_every_training_match_was_drawn_and_trains_the_hero_only(history):
    drawn = {sampled.match_id: sampled for sampled in of(history, OpponentsSampled)}
    for match in of(history, MatchFinished):
        if match.purpose == "training":
            trainable = [seat.seat for seat in match.seats if seat.trainable]
            assert trainable in ([], [drawn[match.match_id].hero_seat])


def test_the_finished_league_is_archived_and_has_all_its_blobs(finished: Path) -> None:
    result = league("verify", "--json", run=finished)
    found = json.loads(result.stdout)
    assert (result.exit_code, found["sound"]) == (0, True), found["damage"]
    assert found["events"] == found["last"]
    assert found["segments"] == 1
    assert found["blobs"]["checked"] > 0


def test_evaluation_matches_are_rated_each_once(history):
    rated = [update.match_id for update in of(history, RatingUpdated)]
    evaluated = [match.match_id for match in of(history, MatchFinished) if match.purpose == "evaluation"]
    assert sorted(rated) == sorted(evaluated)
    agents = {(result.agent, result.suite) for result in of(history, EvaluationFinished)}
    assert {("base_model", "benchmark"), ("main@3", "benchmark"), ("main@3", "gatekeepers")} <= agents


def test_workers_join_and_leave_in_good_order(history):
    joined = {(event.worker, event.incarnation) for event in of(history, WorkerJoined)}
    left = {(event.worker, event.incarnation) for event in of(history, WorkerLeft) if event.reason == "done"}
    assert {worker for worker, _ in joined} == {"archivist-1", "rater-1", "trainer-1", "evaluator-1", "rollout-1"}
    assert joined == left


def test_replay_of_a_stopped_run_is_identical(finished):
    result = league("replay", "--verify", run=finished)
    assert (result.exit_code, "identical" in result.stdout) == (0, True), result.stderr
    report = json.loads(league("replay", "--verify", "--json", run=finished).stdout)
    assert report["different"] == 0
    assert report["rated"] > 0


def test_commands_read_a_stopped_run(finished):
    board = json.loads(league("leaderboard", "--json", run=finished).stdout)
    assert {"base_model", "random_bot", "main@1"} <= {row["agent"] for row in board}
    counted = league("sql", "SELECT count(*) AS n FROM matches", "--format", "csv", run=finished)
    assert counted.stdout.split()[0] == "n"
    assert int(counted.stdout.split()[1]) > 24
    lines = league("events", "--type", "CheckpointAdded", "--json", run=finished).stdout.splitlines()
    assert json.loads(lines[0])["event"]["agent"] == "main@1"


def test_going_on_with_a_finished_run_reports_and_says_how_to_train_on(finished):
    command = [sys.executable, "-m", "ui", "up", "--run", str(finished)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0
    assert "identical" in result.stdout
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("nothing is left to do"))
    assert "training ended (3 steps)" in line
    assert f"config set stop.steps=… --run {finished}`" in line


@pytest.mark.slow
def test_stages_are_trained_one_after_the_other_and_not_again(finished: Path, tmp_path: Path) -> None:
    run, files = tmp_path / "run", []
    shutil.copytree(finished, run)
    # The first is over already.
    for steps in (3, 4, 5):
        files += ["--config", str(tmp_path / f"{steps}.toml")]
        Path(files[-1]).write_text(CONFIG.read_text().replace("steps = 3", f"steps = {steps}"))
    for _ in range(2):
        command = [sys.executable, "-m", "ui", "up", "--run", str(run), *files]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert ended.returncode == 0, ended.stderr
        lines = league("events", "--json", run=run).stdout.splitlines()
        events = [json.loads(line)["event"] for line in lines]
        configured = [event for event in events if event["type"] == "LeagueConfigured"]
        assert [event["config"]["stop"]["steps"] for event in configured] == [4, 5]
        assert [event["step"] for event in events if event["type"] == "GradientStepTaken"] == [1, 2, 3, 4, 5]


def test_no_broker_is_left_behind(finished):
    assert not (finished / "nats" / "server.json").exists()


def test_a_missing_or_damaged_adapter_fails_its_own_match_only(finished):
    async def play() -> list[MatchFailed]:
        run = Run(finished)
        async with run.open_log("test") as history:
            context = Context(run, history.client, history, "test")
            async with beside(context.follow()):
                await context.wait_for_sequence(await history.last_sequence())
                published = context.state.published["main"]
                await context.blobs.delete(published[1].adapter)
                await context.blobs.store.delete(published[2].adapter)
                context.blobs.cache.path(published[2].adapter).write_bytes(b"not what its name says")
                matches = MatchExecutor.between_agents(context, await ModelManager.load(context))
                for version, works in ((1, False), (2, False), (3, True)):
                    seats = [f"main@{version}", "random_bot", "base_model"]
                    played = await matches.run(PlayMatch(f"check-{version}", "check", seats, seed=version))
                    assert (played is not None) == works
                await context.wait_for_sequence(await history.last_sequence())
            return [r.event async for r in history.read() if isinstance(r.event, MatchFailed)]

    failed = asyncio.run(play())
    assert [event.match_id for event in failed] == ["check-1", "check-2"]
    assert all("ArtifactError: blob" in event.error for event in failed)


INTERRUPTED_REPORT = """
import os, signal
from lifecycle import run_league
from ui.cli.main import main

verify = run_league.verify_log

async def interrupted(*given, **named):
    os.kill(os.getpid(), signal.SIGINT)
    return await verify(*given, **named)

run_league.verify_log = interrupted
main()
"""


def test_ctrl_c_during_the_final_report_ends_the_command_cleanly(finished: Path) -> None:
    # From within: a signal from here could come once the report is complete.
    command = [sys.executable, "-u", "-c", INTERRUPTED_REPORT, "up", "--run", str(finished)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    assert ended.returncode == 130
    assert "Leaderboard" in ended.stdout
    assert "Traceback" not in ended.stdout
    assert not (finished / "nats" / "server.json").exists()


def kinds_of_output(cell: nbformat.NotebookNode) -> set[str]:
    """What a cell shows: texts, tables, pictures."""
    return {kind for output in cell.outputs for kind in output.get("data", {"stream": ""})}


def test_the_quick_start_notebook_runs_and_shows_what_is_stored_in_it(finished: Path, tmp_path: Path) -> None:
    stored = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    expected = [kinds_of_output(cell) for cell in stored.cells if cell.cell_type == "code"]
    assert all(expected)
    # A finished league: the notebook continues it, which takes seconds.
    shutil.copytree(finished, tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEAGUE_RUN", str(tmp_path / "run"))
        patch.setenv("LEAGUE_CONFIG", str(CONFIG))
        for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
            patch.setenv(variable, str(tmp_path / variable.lower()))
        NotebookClient(stored, timeout=300, startup_timeout=300, kernel_name="python3").execute()
    assert [kinds_of_output(cell) for cell in stored.cells if cell.cell_type == "code"] == expected


def test_every_decision_can_be_read_with_its_credit(finished: Path, history: list[Event]) -> None:
    run = league_package.open(finished)
    steps = {event.step: event for event in history if isinstance(event, GradientStepTaken)}
    rows = run.sql(
        "SELECT step, count(DISTINCT match_id) AS matches FROM decisions WHERE outcome = 'trained' GROUP BY 1"
    )
    assert {row["step"]: row["matches"] for row in rows} == {step: len(set(e.matches)) for step, e in steps.items()}
    [row] = run.sql(
        "SELECT count(*) AS n, count(*) FILTER (list_contains(legal_moves, move)) AS legal, "
        "count(*) FILTER (len(prompt) > 0 AND len(reply) > 0 AND choices > 0 AND logprob < 0) AS said, "
        "count(*) FILTER (len(opponents) = 2 AND ratings[1] > 0) AS met FROM decisions WHERE choices > 0"
    )
    assert row["n"] == row["legal"] == row["said"] == row["met"] > 0
    played = {(event.match_id, event.purpose) for event in history if isinstance(event, MatchFinished)}
    kept = {(row["match_id"], row["purpose"]) for row in run.sql("SELECT DISTINCT match_id, purpose FROM decisions")}
    # Matches between bots have no decisions of a model.
    assert kept <= played
    assert {match for match, purpose in kept if purpose == "training"} == {
        match for match, purpose in played if purpose == "training"
    }
    of_step = run.decisions(step=2)
    assert {row["step"] for row in of_step} == {2}
    advantages = [row["advantage"] for row in of_step]
    assert advantages == sorted(advantages)
    match_id = next(row["match_id"] for row in of_step if row["choices"])
    [first, *_] = run.decisions(match=match_id)
    shown = league("match", "show", match_id, run=finished)
    assert shown.exit_code == 0, shown.output
    assert f"seat {first['seat']}, {first['agent']}, decision 1: reward" in shown.output
    assert f", trained on in step 2, log-probability {first['logprob']:.3g}\n" in shown.output
    assert f"── reply\n{first['reply']}" in shown.output
    told = json.loads(league("match", "show", match_id, "--json", run=finished).output)
    assert told["decisions"][0]["prompt"] == first["prompt"]


def test_pages_show_kept_decisions(finished: Path) -> None:
    asyncio.run(check_pages(Run(finished)))


async def check_pages(run: Run) -> None:
    async with run.open_log() as history, open_live_league(run, history) as league:
        asked = {"policy": "main", "step": "2"}
        rows, total = (await step_decisions(league, RequestParams(asked | {"limit": "500"}, {}))).values()
        first = await step_decisions(league, RequestParams(asked | {"limit": "3"}, {}))
        assert first == {"rows": rows[:3], "total": total}
        sizes = [abs(row["advantage"]) for row in rows]
        assert sizes
        assert sizes == sorted(sizes, reverse=True)
        [shown] = [row for row in rows if row["match_id"] == rows[0]["match_id"] and row["call"] == 0]
        whole = await load_whole_match(league, shown["match_id"])
        kept = [each for (_, seat), each in sorted(whole.decisions.items()) if seat == shown["seat"]]
        assert kept[0].source == "kept"
        assert (kept[0].prompt, kept[0].reply) == (shown["prompt"], shown["reply"])
        assert "trained on in step 2" in kept[0].credit
        copy = ProjectionCopy(league)
        path = await copy.latest(decisions=True)
        [(count,)] = run_query(path, "SELECT count(*) FROM decisions WHERE step = 2").rows
        assert count == total == len(rows)
        copy.close()
