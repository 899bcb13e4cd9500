"""The ablation's populations of teachers and students: equal budgets, and questions that no reward was earned by."""

from collections import Counter
from pathlib import Path

import msgspec
import pytest
import uvloop

from benchmarks.ablation import examination, games
from benchmarks.ablation.arms import ARMS, MAIN, SETTINGS, STUDENTS, TEACHERS, run_config
from benchmarks.ablation.driver import ensure_base_model, train_run
from benchmarks.ablation.examination import (
    BASE,
    HALF,
    answered_shares,
    differences,
    examinations,
    read_runs,
    recent_reward,
)
from benchmarks.ablation.exports import export_runs, unpack_export
from benchmarks.ablation.games import BENCHMARKS
from benchmarks.ablation.measures import read_events
from benchmarks.ablation.runs import TrainingJob
from benchmarks.ablation.tables import write_report
from lifecycle.config_checks import check_config
from schemas.errors import UsageError
from schemas.events import MatchFinished, OpponentsSampled
from schemas.ids import split_agent

SLOW = SETTINGS["slow"]
SUMS, TEACHING = BENCHMARKS["sums"], games.TEACHING
QUICKLY_TAUGHT = msgspec.structs.replace(TEACHING.model, cloning={"batch": 16})
"""Half of its questions can be used."""
BENCH = msgspec.structs.replace(
    SUMS, games=64, cloned=2_000, attempts=16, config=msgspec.structs.replace(TEACHING, model=QUICKLY_TAUGHT)
)


def policy_of(agent: str) -> str:
    return (split_agent(agent) or (agent, 0))[0]


def job(folder: Path, arm: str) -> TrainingJob:
    return TrainingJob(folder, "sums", "slow", arm, 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One pair and two, a step or two of each policy, and what their students answered."""
    folder = tmp_path_factory.mktemp("populations")
    for arm in ("pair", "pairs"):
        one, config = job(folder, arm), run_config(BENCH, ARMS[arm], 1, SLOW)
        uvloop.run(train_run(one.folder, config, ensure_base_model(one.model, config)))
        for trial in examinations(BENCH, ARMS[arm], SLOW, 1, one.folder):
            uvloop.run(trial.run_trial(one.model))
    return folder


@pytest.mark.parametrize("arm", ["pair", "pairs", "replaced"])
def test_arms_differ_in_who_is_there_and_in_who_is_replaced(arm: str):
    config, pairs = run_config(BENCH, ARMS[arm], 1, SLOW), ARMS[arm].pairs
    check_config(config)
    seats = dict.fromkeys(STUDENTS[:pairs], 0) | dict.fromkeys(TEACHERS[:pairs], 1)
    assert config.matchmaking.seats == seats
    assert set(config.trained_policies) == set(seats)
    assert ARMS[arm].share * len(seats) == 1
    operators = {name: policy.reset_operator and policy.reset_operator.name for name, policy in config.policies.items()}
    if arm == "replaced":
        assert operators == {"student": "mutation", "teacher": "crossover", "tutor": "crossover"}
        assert {policy.reset_by for policy in config.policies.values()} == {"reward"}
    else:
        assert {policy.role for policy in config.policies.values()} == {"main"}
    same = msgspec.structs.replace(config, policies={}, matchmaking=TEACHING.matchmaking)
    other = run_config(BENCH, ARMS["pair"], 1, SLOW)
    assert same == msgspec.structs.replace(other, policies={}, matchmaking=same.matchmaking)


def test_teachers_need_a_game_with_teachers():
    with pytest.raises(UsageError, match="expected teachers and students in both or in neither"):
        run_config(BENCH, ARMS["mirror"], 1, SLOW)
    with pytest.raises(UsageError, match="found Kuhn poker"):
        run_config(BENCHMARKS["kuhn"], ARMS["pair"], 1, SLOW)


@pytest.mark.parametrize(("arm", "policies"), [("pair", 2), ("pairs", 4)])
def test_every_policy_plays_equally_many_training_matches(folder: Path, arm: str, policies: int):
    heroes = Counter(
        policy_of(event.hero) for event in read_events(job(folder, arm).folder) if isinstance(event, OpponentsSampled)
    )
    assert len(heroes) == policies
    assert max(heroes.values()) - min(heroes.values()) <= BENCH.batch
    # Two batches more of each policy at most, and half of the matches teach students nothing.
    assert BENCH.games <= heroes.total() <= BENCH.games + 4 * BENCH.batch * policies


def test_every_student_and_the_base_model_answer_the_same_questions(folder: Path):
    asked = []
    for arm, version in (("pair", MAIN), ("pair", HALF), ("pairs", MAIN), ("pairs", "student")):
        student = MAIN if version == HALF else version
        events = read_events(job(folder, arm).folder / f"examined-{version}")
        matches = [event for event in events if isinstance(event, MatchFinished)]
        assert Counter(policy_of(match.seats[0].agent) for match in matches) == {student: 16, "base_model": 16}
        asked += [sorted(m.seed for m in matches if m.seats[0].agent.startswith(who)) for who in (student, "base")]
    assert all(seeds == asked[0] for seeds in asked)
    assert len(set(asked[0])) == 16


def test_the_best_student_is_the_one_that_earned_most_in_training(folder: Path):
    run = job(folder, "pairs").folder
    answered = {student: answered_shares(run / f"examined-{student}")[0] for student in STUDENTS}
    found = read_runs(folder, "sums", "slow")["pairs"][1]
    assert found.shares["best"] == answered[max(sorted(STUDENTS), key=lambda student: recent_reward(run, student))]
    assert found.shares["main"] == answered[MAIN]
    assert found.shares["mean"] == pytest.approx(sum(answered.values()) / 2)
    earned = [
        seat.score
        for event in read_events(run)
        if isinstance(event, MatchFinished)
        for seat in event.seats
        if seat.trainable and policy_of(seat.agent) == "student"
    ]
    assert recent_reward(run, "student") == pytest.approx(sum(earned) / max(len(earned), 1))
    assert recent_reward(run, "nobody") == 0.0


def test_the_report_compares_later_arms_with_earlier_ones_seed_by_seed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_report(folder, folder, folder)
    said = capsys.readouterr().out
    assert "| one student, one teacher | 1 |" in said
    assert "| two students, two teachers, minus one student, one teacher |" in said
    assert "By equal steps of a student (one student, one teacher, after half of its steps: " in said
    runs = read_runs(folder, "sums", "slow")
    assert runs["pair"][1].shares[BASE] == runs["pairs"][1].shares[BASE]
    (whole, half) = examinations(BENCH, ARMS["pair"], SLOW, 1, job(folder, "pair").folder)
    assert (whole.steps, half.steps) == (8, 2), "each of two students has a quarter of all steps"
    assert half.frozen_policy().policy == MAIN
    found = differences({"pair": {1: runs["pair"][1]}, "pairs": {2: runs["pairs"][1]}}, "best")
    assert found == {}, "no seed that both have"
    both = differences(runs, "best")["pair", "pairs"]
    assert both.mean == runs["pairs"][1].shares["best"] - runs["pair"][1].shares["best"]


def test_what_students_answered_is_exported_with_their_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(BENCHMARKS, "sums", BENCH)
    assert "2 runs" in export_runs([job(folder, arm) for arm in ("pair", "pairs", "replaced")], tmp_path / "runs.tar")
    unpack_export(tmp_path / "runs.tar", tmp_path / "elsewhere")
    assert examination.render_tables(tmp_path / "elsewhere", "sums") == examination.render_tables(folder, "sums")
