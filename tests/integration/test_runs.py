"""A real league read match by match, played again, branched in the middle and trained on."""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner, Result

from league.integrity.snapshots import load_state_at
from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.run import Run
from lifecycle.branch import BranchResult, make_branch
from models.adapter_bundle import pack_folder
from schemas import events as e
from schemas.config import HistoryConfig
from schemas.errors import LeagueError, UsageError
from schemas.ids import digest
from schemas.jobs import PlayMatch
from tests.forks import run_forked
from ui.cli import app
from workers.match_runner.runner import MatchExecutor
from workers.policy_weights import ModelManager
from workers.runtime import Context, beside
from workers.trainer import TrainerWorker, load_policy_base

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"
T = TypeVar("T")


def up(run: Path, *arguments: str) -> str:
    result = run_forked(["up", "--run", str(run), *arguments], run.parent)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def with_history(folder: Path, work: Callable[[Run, JetStreamLog], Awaitable[T]]) -> T:
    async def main() -> T:
        run = Run(folder)
        async with run.open_log("test") as history:
            return await work(run, history)

    return asyncio.run(main())


def read(folder: Path) -> list[RecordedEvent]:
    async def work(_: Run, history: JetStreamLog) -> list[RecordedEvent]:
        return [recorded async for recorded in history.read()]

    return with_history(folder, work)


def branched(source: Path, at: int, target: Path) -> BranchResult:
    async def work(run: Run, history: JetStreamLog) -> BranchResult:
        return await make_branch(run, history, at, target, lambda text, share: None)

    return with_history(source, work)


def league(*arguments: str, run: Path) -> Result:
    return CliRunner().invoke(app, [*arguments, "--run", str(run)])


def answer(*arguments: str, run: Path, code: int = 0) -> Any:
    result = league(*arguments, "--json", run=run)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def nim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "nim"
    up(run, "--config", str(CONFIG))
    return run


@pytest.fixture(scope="module")
def history(nim: Path) -> list[RecordedEvent]:
    return read(nim)


@pytest.fixture(scope="module")
def sandbox(nim: Path, history: list[RecordedEvent]) -> Path:
    """A copy of the whole league that tests may spoil."""
    folder = nim.parent / "sandbox"
    branched(nim, history[-1].sequence, folder)
    return folder


def of(history: list[RecordedEvent], kind: type[e.Event]) -> list[RecordedEvent]:
    return [recorded for recorded in history if isinstance(recorded.event, kind)]


def matches(history: list[RecordedEvent], purpose: str) -> list[e.MatchFinished]:
    found = (recorded.event for recorded in history)
    return [event for event in found if isinstance(event, e.MatchFinished) and event.purpose == purpose]


def append(folder: Path, *events: e.Event) -> None:
    async def work(_: Run, history: JetStreamLog) -> None:
        for event in events:
            await history.append(event)

    with_history(folder, work)


def test_matches_are_listed_newest_first_and_by_agent_and_purpose(nim: Path, history: list[RecordedEvent]) -> None:
    newest = [recorded.event.match_id for recorded in of(history, e.MatchFinished)][::-1]  # type: ignore[union-attr]
    assert [row["match_id"] for row in answer("match", "list", "--limit", "500", run=nim)] == newest
    asked = ("match", "list", "--agent", "main@1", "--purpose", "evaluation", "--limit", "3")
    rows = answer(*asked, run=nim)
    played = [m for m in matches(history, "evaluation")[::-1] if "main@1" in [seat.agent for seat in m.seats]]
    assert [row["match_id"] for row in rows] == [match.match_id for match in played[:3]]
    assert {seat["agent"] for seat in rows[0]["seats"]} == {seat.agent for seat in played[0].seats}
    shown = league(*asked, run=nim).stdout
    for match in played[:3]:
        assert re.search(rf"{match.match_id} .* won by {match.seats[match.winner].agent} ", shown)
    for option, wrong, meant in (("--agent", "man@1", "main@1"), ("--purpose", "trainig", "training")):
        refused = league("match", "list", option, wrong, run=nim)
        assert f"{option} {wrong}" in str(refused.exception)
        assert f"did you mean '{meant}'?" in str(refused.exception)


def test_a_match_is_shown_with_its_seats_and_every_move(nim: Path, history: list[RecordedEvent]) -> None:
    match = matches(history, "training")[3]
    shown = league("match", "show", match.match_id, run=nim)
    assert shown.exit_code == 0
    for seat in match.seats:
        assert seat.agent in shown.stdout
    assert all(f"turn {turn}" in shown.stdout for turn in range(1, match.length + 1))
    value = answer("match", "show", match.match_id, run=nim)
    assert value["finished"]["event"]["seed"] == match.seed
    assert [turn["title"] for turn in value["turns"]] == [f"turn {turn}" for turn in range(1, match.length + 1)]
    assert value["problem"] is None


def test_every_recorded_draw_and_line_up_is_reproduced(nim: Path, history: list[RecordedEvent]) -> None:
    from league.matchmaking.audit import explain_draw, explain_evaluation

    results = {match.match_id: match for purpose in ("training", "evaluation") for match in matches(history, purpose)}

    async def work(run: Run, log: JetStreamLog) -> list[list[str]]:
        artifacts = run.open_blob_store(log.client)
        differences = []
        for recorded in of(history, e.OpponentsSampled):
            assert isinstance(recorded.event, e.OpponentsSampled)
            result = results.get(recorded.event.match_id)
            differences.append((await explain_draw(log, artifacts, recorded.event, result)).differences)
        for match in matches(history, "evaluation"):
            explained = await explain_evaluation(log, artifacts, match.match_id, match, lambda _: 3)
            assert explained is not None
            differences.append(explained.differences)
        return differences

    differences = with_history(nim, work)
    assert len(differences) == len(of(history, e.OpponentsSampled)) + len(matches(history, "evaluation"))
    assert not any(differences), differences


def test_an_explanation_names_everybody_who_was_eligible_and_who_was_drawn(
    nim: Path, history: list[RecordedEvent]
) -> None:
    match = matches(history, "training")[-1]
    value = answer("match", "explain", match.match_id, run=nim)
    assert value["agrees"]
    buckets = value["explanation"]["distribution"]
    assert sum(bucket["share"] for bucket in buckets.values()) == pytest.approx(1.0)
    for pick in value["explanation"]["picks"]:
        assert pick["agent"] in buckets[pick["bucket"]]["probabilities"]
    text = league("match", "explain", match.match_id, run=nim)
    assert (text.exit_code, "agrees" in text.stdout) == (0, True)
    evaluation = league("match", "explain", matches(history, "evaluation")[0].match_id, run=nim)
    assert "evaluation 'base_model-benchmark-random_bot'" in evaluation.stdout.replace("\n", " ")


def test_every_match_plays_again_identically(nim: Path, history: list[RecordedEvent]) -> None:
    from league.queries.match_text import resimulate_from_record
    from league.queries.matches import MatchEvents

    async def work(run: Run, log: JetStreamLog) -> list[bool]:
        found = [MatchEvents("", recorded, None, None, None) for recorded in of(history, e.MatchFinished)]
        return [(await resimulate_from_record(run, log, match, None)).identical for match in found]

    identical = with_history(nim, work)
    assert len(identical) > 40
    assert all(identical)


def test_a_doctored_result_is_found_and_exits_1(sandbox: Path, history: list[RecordedEvent]) -> None:
    match = matches(history, "evaluation")[0]
    seats = [msgspec.structs.replace(seat, score=seat.score + 1) for seat in match.seats]
    append(sandbox, msgspec.structs.replace(match, match_id="doctored-0", seats=seats))
    value = answer("match", "show", "--again", "doctored-0", run=sandbox, code=1)
    assert (value["identical"], value["divergence"]["what"], value["divergence"]["seat"]) == (False, "scores", 0)
    text = league("match", "show", "--again", "doctored-0", run=sandbox)
    assert (text.exit_code, "DIVERGES at seat 0: scores" in text.stdout) == (1, True)
    explained = answer("match", "show", "--again", match.match_id, run=sandbox)
    assert explained["identical"]


def test_a_doctored_draw_is_found_and_exits_1(sandbox: Path, history: list[RecordedEvent]) -> None:
    draw = of(history, e.OpponentsSampled)[-1].event
    assert isinstance(draw, e.OpponentsSampled)
    match_id = f"{draw.worker}-9999"
    append(sandbox, msgspec.structs.replace(draw, match_id=match_id))
    value = answer("match", "explain", match_id, run=sandbox, code=1)
    assert not value["agrees"]
    assert any(difference.startswith("draw: recorded") for difference in value["differences"])


def test_what_cannot_be_read_is_said_and_the_rest_is_shown(sandbox: Path, history: list[RecordedEvent]) -> None:
    # Matches of one seed may be alike, and which comes first depends on the evaluator's luck.
    kept, gone, damaged = list({match.record: match for match in matches(history, "evaluation")}.values())[1:4]

    async def spoil(run: Run, log: JetStreamLog) -> None:
        artifacts = run.open_blob_store(log.client)
        await artifacts.delete(gone.record)
        await artifacts.cache.delete(damaged.record)
        await artifacts.store.delete(damaged.record)
        path = artifacts.cache.path(damaged.record)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not a record")
        state = await load_state_at(log, artifacts)
        config = msgspec.to_builtins(state.config) | {"history": msgspec.to_builtins(HistoryConfig(records="digest"))}
        await log.append(e.LeagueConfigured(config=config, config_digest="d", after=state.config_sequence))
        await log.append(msgspec.structs.replace(kept, match_id="unkept-0", record="0" * 64))

    with_history(sandbox, spoil)
    for match_id in (gone.match_id, damaged.match_id, "unkept-0"):
        value = answer("match", "show", match_id, run=sandbox)
        assert value["finished"]["event"]["match_id"] == match_id
        assert (value["turns"], "is not in the broker" in value["problem"]) == (None, True)
        assert ("not stored, since history.records" in value["problem"]) == (match_id == "unkept-0")
        refused = league("match", "show", "--again", match_id, run=sandbox)
        assert isinstance(refused.exception, LeagueError)
        assert refused.exception.exit_code == 1


def test_a_copy_of_a_record_that_the_league_does_not_keep_can_be_read_and_played(
    nim: Path, sandbox: Path, history: list[RecordedEvent], tmp_path: Path
) -> None:
    match = matches(history, "evaluation")[5]

    async def work(run: Run, log: JetStreamLog) -> bytes:
        return await run.open_blob_store(log.client).get(match.record)

    copy = tmp_path / "record"
    copy.write_bytes(with_history(nim, work))
    value = answer("match", "show", "--again", match.match_id, "--record", str(copy), run=sandbox)
    assert value["identical"]
    copy.write_bytes(b"another")
    wrong = answer("match", "show", match.match_id, "--record", str(copy), run=sandbox)
    assert "the history says" in wrong["problem"]


def test_a_league_that_keeps_digests_stores_no_record(sandbox: Path) -> None:
    async def work(run: Run, log: JetStreamLog) -> tuple[str, set[str], bytes]:
        context = Context(run, log.client, log, "test")
        state = await load_state_at(log, run.open_blob_store(log.client))
        config = msgspec.to_builtins(state.config) | {"history": {"records": "digest"}}
        await log.append(e.LeagueConfigured(config=config, config_digest="d2", after=state.config_sequence))
        async with beside(context.follow()):
            await context.wait_for_sequence(await log.last_sequence())
            before = {stored.name for stored in await context.blobs.stored()}
            matches = MatchExecutor.between_agents(context, await ModelManager.load(context))
            played = await matches.run(PlayMatch("digest-only", "check", ["random_bot"] * 3, seed=1))
            assert played is not None
            finished = await matches.append_result(played)
            after = {stored.name for stored in await context.blobs.stored()}
        return finished.record, after - before, played.record

    record, new, data = with_history(sandbox, work)
    assert (record, new) == (digest(data), set())


def test_a_voided_and_a_failed_match_say_so(sandbox: Path, history: list[RecordedEvent]) -> None:
    recorded = of(history, e.MatchFinished)[7]
    assert isinstance(recorded.event, e.MatchFinished)
    voided = e.MatchVoided(match=recorded.event, match_sequence=recorded.sequence, reason="a bad disk")
    failed = e.MatchFailed(match_id="failed-0", purpose="training", worker="rollout-9", error="GameError: odd")
    append(sandbox, voided, failed)
    assert "VOIDED by event" in league("match", "show", recorded.event.match_id, run=sandbox).stdout
    shown = league("match", "show", "failed-0", run=sandbox)
    assert "FAILED at rollout-9" in shown.stdout
    assert "it was not played to its end" in shown.stdout


@pytest.mark.parametrize("command", ["show", "explain", "show --again"])
def test_an_unknown_match_is_refused_by_name(nim: Path, command: str) -> None:
    result = league("match", *command.split(), "rollout-1-12345'", run=nim)
    assert isinstance(result.exception, UsageError)
    assert "match \"rollout-1-12345'\": the history of league 'nim' does not hold it" in str(result.exception)


def test_a_branch_is_a_copy_that_trains_on_from_the_exact_state(
    nim: Path, history: list[RecordedEvent], tmp_path: Path
) -> None:
    # Right after the first checkpoint, whose trainer state is kept.
    at = of(history, e.CheckpointAdded)[0].sequence
    made = branched(nim, at, tmp_path / "new")
    assert (made.at, made.copied.events, made.copied.missing) == (at, at, {})
    assert [(start.step, start.exact) for start in made.trainers] == [(1, True)]
    begun = {r.event.match_id for r in of(history[:at], e.OpponentsSampled)}
    used = {match for r in of(history[:at], e.GradientStepTaken) for match in r.event.matches}
    # A trainer may use a match's trajectory before the end of the match is recorded.
    ended = {r.event.match_id for r in of(history[:at], e.MatchFinished)}
    assert made.left_behind == len(begun - (used & ended))
    copied = read(tmp_path / "new")
    assert [parts(r) for r in copied[:at]] == [parts(r) for r in history[:at]]
    assert copied[at].event == e.LeagueBranched(origin="nim", at=at, digest=made.digest)
    assert len(copied) == at + 1
    assert digest_at(nim, at) == digest_at(tmp_path / "new", at) == made.digest

    assert "identical" in up(tmp_path / "new")
    after = read(tmp_path / "new")[at:]
    steps = [r.event for r in of(after, e.GradientStepTaken)]
    assert [step.step for step in steps] == [2, 3]
    assert steps[0].experience_from == of(history, e.GradientStepTaken)[0].event.experience_to + 1
    assert [r.event.version for r in of(after, e.TrainingFinished)] == [3]
    assert "is gone" not in (tmp_path / "new" / "logs" / "trainer-1.log").read_text()
    # Evaluations that the copied history had begun are finished in the branch, and its origin knows nothing of it.
    assert {r.event.evaluation_id for r in of(read(tmp_path / "new"), e.EvaluationFinished)} == {
        r.event.evaluation_id for r in of(read(tmp_path / "new"), e.EvaluationRequested)
    }
    assert len(read(nim)) == len(history)


def parts(recorded: RecordedEvent) -> tuple[Any, ...]:
    return (recorded.sequence, recorded.time_ns, recorded.subject, recorded.producer, recorded.payload, recorded.schema)


def digest_at(folder: Path, at: int) -> str:
    async def work(run: Run, log: JetStreamLog) -> str:
        return (await load_state_at(log, run.open_blob_store(log.client), at)).digest()

    return with_history(folder, work)


def test_a_branch_whose_trainer_state_is_gone_trains_on_from_the_adapter_and_says_so(
    sandbox: Path, history: list[RecordedEvent], tmp_path: Path
) -> None:
    first, second = of(history, e.GradientStepTaken)[:2]

    async def forget(run: Run, log: JetStreamLog) -> None:
        # It is gone already, unless the version set a new best in time and joined as elite.
        await run.open_blob_store(log.client).delete(second.event.state)

    with_history(sandbox, forget)
    made = branched(sandbox, second.sequence, tmp_path / "new")
    (start,) = made.trainers
    assert (start.step, start.exact, start.nearest_step) == (2, False, 1)
    assert start.nearest == of(history, e.PolicyPublished)[2].sequence - 1 > first.sequence

    async def resumed(run: Run, log: JetStreamLog) -> tuple[int, dict[str, Any]]:
        context = Context(run, log.client, log, "trainer-1")
        async with beside(context.follow()):
            await context.wait_for_sequence(await log.last_sequence())
            worker = TrainerWorker(context, await load_policy_base(context), "main")
            with capture_logs() as said:
                await worker.resume()
            worker.learner.save_adapter(tmp_path / "adapter")
            assert digest(pack_folder(tmp_path / "adapter")) == context.state.published["main"][2].adapter
        return worker.learner.steps, said[0]

    steps, said = with_history(tmp_path / "new", resumed)
    assert steps == 2
    assert (said["log_level"], said["event"]) == (
        "warning",
        "the trainer's state is gone, going on from the adapter alone",
    )


def test_a_branch_never_begins_inside_a_gradient_step(nim: Path, history: list[RecordedEvent], tmp_path: Path) -> None:
    step = of(history, e.GradientStepTaken)[0]
    for name, at in (("a", step.sequence - 1), ("b", step.sequence)):
        made = branched(nim, at, tmp_path / name)
        assert (made.asked, made.at) == (at, step.sequence - 2)
        assert made.trainers[0].step == 0


def test_a_time_means_the_same_in_the_branch(
    nim: Path, sandbox: Path, history: list[RecordedEvent], tmp_path: Path
) -> None:
    place = of(history, e.CheckpointAdded)[0]
    # Whole microseconds, as they are written; workers' clocks and the order of events need not agree.
    limit_ns = (place.time_ns // 1_000 + 1) * 1_000
    meant = max(recorded.sequence for recorded in history if recorded.time_ns < limit_ns)
    second = datetime.fromtimestamp(place.time_ns // 10**9, tz=UTC)
    time = second.replace(microsecond=place.time_ns // 1_000 % 10**6).isoformat()
    made = []
    for source in (nim, sandbox):
        target = tmp_path / f"from-{source.name}"
        arguments = ["branch", "--at", time, "--json", "--from", str(source), "--run", str(target)]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        made.append(json.loads(result.stdout))
    assert made[0]["asked"] == made[1]["asked"] == meant
    assert made[0]["digest"] == made[1]["digest"] == digest_at(nim, made[0]["at"])


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("100000", "no such event; the history of 'nim' holds 1 to"),
        ("0", "no such event"),
        ("1", "the league was not fully open yet"),
        ("yesterday", "neither a sequence nor a time"),
        ("1999-12-31", "before the first event"),
    ],
)
def test_a_branch_at_a_place_that_is_none_is_refused_and_leaves_nothing(
    nim: Path, tmp_path: Path, at: str, message: str
) -> None:
    result = CliRunner().invoke(app, ["branch", "--at", at, "--from", str(nim), "--run", str(tmp_path / "new")])
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_branch_into_an_existing_folder_or_of_nothing_is_refused(nim: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    for source, target, message in ((nim, "here", "exists already"), (tmp_path / "here", "new", "no league here")):
        result = CliRunner().invoke(
            app, ["branch", "--at", "90", "--from", str(source), "--run", str(tmp_path / target)]
        )
        assert isinstance(result.exception, UsageError)
        assert message in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_a_branch_that_is_broken_off_leaves_nothing(nim: Path, tmp_path: Path) -> None:
    async def work(run: Run, log: JetStreamLog) -> None:
        def stop(text: str, share: float) -> None:
            if "artifacts" in text:
                raise KeyboardInterrupt

        await make_branch(run, log, 90, tmp_path / "new", stop)

    with pytest.raises(KeyboardInterrupt):
        with_history(nim, work)
    assert list(tmp_path.iterdir()) == []


def test_artifacts_that_are_gone_are_counted_by_kind(
    sandbox: Path, history: list[RecordedEvent], tmp_path: Path
) -> None:
    lost = matches(history, "evaluation")[8]

    async def work(run: Run, log: JetStreamLog) -> None:
        await run.open_blob_store(log.client).delete(lost.record)

    with_history(sandbox, work)
    made = branched(sandbox, history[-1].sequence, tmp_path / "new")
    assert made.copied.missing["game record"] >= 1
    assert set(made.copied.missing) == {"game record"}
