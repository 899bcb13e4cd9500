"""A league of three policies in real processes: main agent, main exploiter, league exploiter."""

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from league.log.base import RecordedEvent
from league.log.connection import connect
from league.log.jetstream import flush_and_close
from league.log.queues import ExperienceStream
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.matchmaking.audit import SamplingAudit, audit_sampling
from league.run import Run
from league.state import LeagueState
from lifecycle.branch import make_branch
from schemas.config import ExperienceConfig, load_config
from schemas.errors import BackpressureError, UsageError
from schemas.events import (
    CheckpointAdded,
    Event,
    GradientStepTaken,
    MatchFinished,
    OpponentsSampled,
    PolicyPublished,
    PolicyReset,
    TrainingFinished,
    WorkerJoined,
    WorkerLeft,
)
from schemas.ids import agent_name, split_agent
from schemas.trajectories import Trajectory
from tests.forks import run_forked
from tests.simulated_history import leaderboard_rows
from ui.cli import app
from workers.runtime import Context, beside
from workers.trainer import TrainerWorker, load_policy_base

CONFIG = Path(__file__).parents[2] / "configs" / "nim-roles.toml"
STEPS = 48
POLICIES = ["main", "exploiter", "rogue"]


def league(*arguments: str, run: Path) -> Result:
    return CliRunner().invoke(app, [*arguments, "--run", str(run)])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("roles") / "run"
    # With more resets to a step, and long enough for exploiters whose workers start seconds after the main agent's.
    text = CONFIG.read_text()
    for old, new in (
        ("\nsteps = 24", f"\nsteps = {STEPS}"),
        ("reset_steps = 6", "reset_steps = 4"),
        # On a busy machine it takes few steps meanwhile.
        ("reset_steps = 8", 'reset_steps = 2\nreset_operator = "crossover"'),
    ):
        assert old in text
        text = text.replace(old, new)
    (run.parent / "roles.toml").write_text(text)
    result = run_forked(["up", "--config", str(run.parent / "roles.toml"), "--run", str(run)], run.parent)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "identical" in result.stdout
    assert "Trained policies" in result.stdout
    return run


@pytest.fixture(scope="module")
def records(finished: Path) -> list[RecordedEvent]:
    async def read() -> list[RecordedEvent]:
        async with Run(finished).open_log("test") as history:
            return [recorded async for recorded in history.read()]

    return asyncio.run(read())


def of(records: list[RecordedEvent], kind: type[Event]) -> list[Any]:
    return [recorded.event for recorded in records if isinstance(recorded.event, kind)]


def policy_of(agent: str) -> str:
    named = split_agent(agent)
    return agent if named is None else named[0]


def test_all_policies_train_on_their_own_matches(records: list[RecordedEvent]) -> None:
    heroes = {draw.match_id: policy_of(draw.hero) for draw in of(records, OpponentsSampled)}
    steps = of(records, GradientStepTaken)
    assert {step.policy for step in steps} == set(POLICIES)
    for step in steps:
        assert {heroes[match] for match in step.matches} == {step.policy}
    used = [match for step in steps for match in step.matches]
    assert len(used) == len(set(used))


def test_a_policys_rollouts_are_consumed_in_order_with_none_left_out(records: list[RecordedEvent]) -> None:
    for policy in POLICIES:
        steps = [step for step in of(records, GradientStepTaken) if step.policy == policy]
        assert [step.experience_from for step in steps] == [1, *(step.experience_to + 1 for step in steps[:-1])]


def test_everybody_draws_whom_their_role_says(records: list[RecordedEvent]) -> None:
    drawn = Counter[tuple[str, str, str]]()
    for draw in of(records, OpponentsSampled):
        drawn.update((policy_of(draw.hero), pick.bucket, policy_of(pick.agent)) for pick in draw.picks)
    assert {(bucket, whom) for hero, bucket, whom in drawn if hero == "exploiter"} <= {
        ("live", "main"),
        ("past", "main"),
    }
    assert {bucket for hero, bucket, _ in drawn if hero == "rogue"} == {"members"}
    assert {whom for hero, _, whom in drawn if hero == "rogue"} >= {"main", "exploiter", "random_bot"}
    assert {whom for hero, _, whom in drawn if hero == "main"} >= {"main", "random_bot"}


def test_a_drawn_live_version_of_another_policy_plays_the_match_itself(records: list[RecordedEvent]) -> None:
    played = {match.match_id: match for match in of(records, MatchFinished)}
    for draw in of(records, OpponentsSampled):
        if draw.match_id in played:
            seats = {seat.seat: seat.agent for seat in played[draw.match_id].seats}
            assert {pick.seat: pick.agent for pick in draw.picks}.items() <= seats.items()


def test_an_exploiter_is_reset_whole_and_its_last_version_stays(finished: Path, records: list[RecordedEvent]) -> None:
    config = load_config(finished.parent / "roles.toml")
    resets = [(place, record.event) for place, record in enumerate(records) if isinstance(record.event, PolicyReset)]
    assert {reset.policy for _, reset in resets} == {"exploiter", "rogue"}
    joined = {event.agent for event in of(records, CheckpointAdded)}
    begun = dict.fromkeys(POLICIES, 0)
    for place, reset in resets:
        assert 0 < reset.version - begun[reset.policy] <= config.policies[reset.policy].reset_steps
        begun[reset.policy] = reset.version + 1
        assert agent_name(reset.policy, reset.version) in joined
        after = records[place + 1].event
        assert isinstance(after, PolicyPublished)
        parent = reset.parents[0].agent if reset.parents else "base_model"
        assert (after.policy, after.version, after.parent) == (reset.policy, reset.version + 1, parent)
        if reset.parents:
            assert (reset.policy, reset.operator, reset.adapter) == ("rogue", "crossover", after.adapter)
            assert {parent.agent for parent in reset.parents} <= joined


def test_exploiters_end_with_the_main_policy_and_everybody_leaves_in_good_order(records: list[RecordedEvent]) -> None:
    ends = {end.policy: end.reason for end in of(records, TrainingFinished)}
    after = "training of main has finished"
    assert ends == {"main": f"{STEPS} steps", "exploiter": after, "rogue": after}
    joined = {(event.worker, event.incarnation) for event in of(records, WorkerJoined)}
    left = {(event.worker, event.incarnation) for event in of(records, WorkerLeft) if event.reason == "done"}
    assert joined == left
    assert {worker for worker, _ in joined} >= {"rollout-1", "rollout-exploiter-1", "trainer-1", "trainer-rogue-1"}


def test_an_exploiters_match_is_explained_and_audited_by_its_own_sampler(
    finished: Path, records: list[RecordedEvent]
) -> None:
    name = next(draw.match_id for draw in of(records, OpponentsSampled)[::-1] if policy_of(draw.hero) == "rogue")
    explained = league("match", "explain", name, run=finished)
    assert explained.exit_code == 0, explained.output
    assert "agree with the standings and the seed" in " ".join(explained.stdout.split())

    async def audit() -> SamplingAudit:
        async with Run(finished).open_log() as history:
            return await audit_sampling(history, 10, policy="exploiter")

    audited = asyncio.run(audit())
    assert set(audited.whole.target) == {"live", "past", "mirror"}
    assert audited.passed_over == 0


def test_the_leaderboard_in_sql_stands_where_the_fold_stands_after_resets(
    finished: Path, records: list[RecordedEvent]
) -> None:
    state = LeagueState()
    for recorded in records:
        state.apply(recorded.sequence, recorded.event)
    board = json.loads(league("leaderboard", "--json", run=finished).stdout)
    expected = {row.agent: row.rating for row in leaderboard_rows(state)}
    assert {row["agent"]: row["online"] for row in board} == pytest.approx(expected)


def test_lineage_begins_at_the_reset(finished: Path, records: list[RecordedEvent]) -> None:
    last = [added for added in of(records, CheckpointAdded) if added.policy == "exploiter"][-1]
    resets = [reset.version for reset in of(records, PolicyReset) if reset.policy == "exploiter"]
    # Main's training can end before a version that was trained after a reset joins.
    begun = max((version + 1 for version in resets if version < last.version), default=0)
    traced = json.loads(league("lineage", last.agent, "--json", run=finished).stdout)
    steps = [step["step"] for station in traced["stations"] for step in station["steps"]]
    assert steps == list(range(begun + 1, last.version + 1))


def test_a_trainer_that_died_after_a_reset_begins_untrained(
    finished: Path, records: list[RecordedEvent], tmp_path: Path
) -> None:
    resets = [record for record in records if isinstance(record.event, PolicyReset)]
    reset = next(record for record in resets if isinstance(record.event, PolicyReset) and not record.event.parents)
    assert isinstance(reset.event, PolicyReset)
    policy, version = reset.event.policy, reset.event.version

    async def resume() -> TrainerWorker:
        async with Run(finished).open_log("test") as history:
            # Amid the step's batch: the branch begins before it, and one further with all of it.
            inside = await make_branch(
                Run(finished), history, reset.sequence, tmp_path / "inside", lambda text, share: None
            )
            whole = await make_branch(
                Run(finished), history, reset.sequence + 1, tmp_path / "new", lambda text, share: None
            )
        assert inside.at < reset.sequence - 1
        assert whole.at == reset.sequence + 1
        assert next(start for start in whole.trainers if start.policy == policy).exact
        run = Run(tmp_path / "new")
        async with run.open_log("test") as history:
            context = Context(run, history.client, history, "test")
            async with beside(context.follow()):
                await context.wait_for_sequence(await history.last_sequence())
                worker = TrainerWorker(context, await load_policy_base(context), policy)
                await worker.resume()
                return worker

    learner = asyncio.run(resume()).learner
    assert learner.steps == version + 1
    matrices = learner.adapter.lora.matrices().values()
    assert all(not b_OR.any() for _, b_OR in matrices), "an untrained adapter changes nothing"
    other = [a_RI for a_RI, _ in matrices]
    assert all(torch.isfinite(a_RI).all() and a_RI.any() for a_RI in other)


def test_one_policys_full_buffer_does_not_stop_another(tmp_path: Path) -> None:
    async def fill() -> None:
        with EmbeddedServer(tmp_path / "nats") as server:
            client = await connect(server.url, "test")
            await ensure_streams(client.jetstream(), ExperienceConfig(max_messages=2))
            stream = ExperienceStream(client, "league")

            def rollout(policy: str, number: int) -> Trajectory:
                return Trajectory(f"{policy}-{number}", "nim", policy, 0, "first", "g", [], 1, 1.0, 1.0, 1)

            await stream.publish(rollout("main", 0))
            await stream.publish(rollout("main", 1))
            with pytest.raises(BackpressureError):
                await stream.publish(rollout("main", 2))
            await stream.publish(rollout("rogue", 0))
            await stream.publish(rollout("rogue", 1))
            await stream.purge_through("main", 1)
            await stream.publish(rollout("main", 2))
            with pytest.raises(BackpressureError):
                await stream.publish(rollout("rogue", 2))
            await flush_and_close(client)

    asyncio.run(fill())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("rollout", "--policy", "nobody"), "--policy nobody: not trained in this league; expected"),
        (("rater", "--policy", "main"), "--policy main: a worker 'rater' serves all policies"),
    ],
)
def test_a_worker_of_an_unknown_policy_is_refused(finished: Path, arguments: tuple[str, ...], says: str) -> None:
    result = league("worker", *arguments, run=finished)
    assert isinstance(result.exception, UsageError)
    assert says in str(result.exception)
