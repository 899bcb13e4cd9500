"""Proposers and solvers: the hierarchical example worked out by hand, what may be asked, and the curriculum."""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest

from arena.arena import Arena
from arena.clients import ScriptedClient
from arena.environments import ArenaOptions, make_arena
from arena.environments.proposer_solver import SOLVER, ProposerSolverSpec, curriculum_weight
from arena.questions import QuestionAnswer, QuestionRules, parse_question
from arena.training_records import TrainedSeat, to_trajectory
from models.model_config import DecoderShape
from schemas import trajectories
from schemas.batches import TrainingBatch
from schemas.config import Plugin, TrainerConfig
from schemas.episodes import Artifact, ArtifactAdded, EpisodeRequest, GenerateResult, Message
from schemas.errors import ConfigError
from trainer.advantages.total_reward import CREDIT_ASSIGNERS
from trainer.credit import AdvantagePipeline, AdvantageState

SHAPE = DecoderShape(
    "qwen3", 1000, 16, intermediate_size=24, layers=1, heads=2, kv_heads=1, head_dim=8, tied=True, qk_norm=True
)

# Two proposers, four solvers under each

PROPOSED = ["Question: 6 + 7 = ?", "Question: 8 - 3 = ?"]
ANSWERS = {"6 + 7 = ?": ["13", "12", "13", "11"], "8 - 3 = ?": ["4", "5", "6", "7"]}
"""Half of the first four are right, and one of the second four."""


def scripted(proposed: Sequence[str], answers: Mapping[str, Sequence[str]]) -> Callable[[Sequence[Message]], str]:
    """Says each proposal once, in turn, and each answer to a question, in turn; both from the start again."""
    asked: dict[str, int] = {}

    def reply(messages: Sequence[Message]) -> str:
        question = messages[-1].content
        said = proposed if messages[0].content.startswith("Write") else answers[question]
        key = "" if said is proposed else question
        asked[key] = asked.get(key, -1) + 1
        return said[asked[key] % len(said)]

    return reply


def opened(
    credit: str = "grpo",
    proposed: Sequence[str] = PROPOSED,
    answers: Mapping[str, Sequence[str]] = ANSWERS,
    told: list[ArtifactAdded] | None = None,
    **settings: Any,
) -> Arena:
    given = {"proposals": 2, "practice": 0, "solver_rollouts": 4, **settings}
    sink = None if told is None else told.append
    opening = ArenaOptions(credit_assigner=CREDIT_ASSIGNERS.build(Plugin(name=credit)), sink=sink)
    return make_arena("proposer_solver", given).open(ScriptedClient.from_function(scripted(proposed, answers)), opening)


def told_of(batch: TrainingBatch) -> list[tuple[str, str, float, float]]:
    """Of each record: episode, group, reward, advantage. All of them are exact here: halves and quarters."""
    return [(record.rollout_id, record.group, record.reward, record.advantage) for record in batch.records]


TOP, FIRST, SECOND = "0|proposals-1|propose|Proposer", "1|arena-0|solve|Solver", "1|arena-1|solve|Solver"


def test_two_proposers_with_four_solvers_each_have_the_groups_and_advantages_worked_out_by_hand() -> None:
    batch = asyncio.run(opened("grpo").step())

    # Pass rates 1/2 and 1/4: the proposers earn 1 - 2·0 = 1 and 1 - 2·1/4 = 1/2, with a mean of 3/4. The solvers earn
    # 1, 0, 1, 0 with a mean of 1/2, and 0, 1, 0, 0 with a mean of 1/4.
    assert told_of(batch) == [
        ("arena-0", TOP, 1.0, 0.25),
        ("arena-0.0", FIRST, 1.0, 0.5),
        ("arena-0.1", FIRST, 0.0, -0.5),
        ("arena-0.2", FIRST, 1.0, 0.5),
        ("arena-0.3", FIRST, 0.0, -0.5),
        ("arena-1", TOP, 0.5, -0.25),
        ("arena-1.0", SECOND, 0.0, -0.25),
        ("arena-1.1", SECOND, 1.0, 0.75),
        ("arena-1.2", SECOND, 0.0, -0.25),
        ("arena-1.3", SECOND, 0.0, -0.25),
    ]


def test_role_baselines_move_as_worked_out_by_hand() -> None:
    arena = opened("rae")
    first, second = (asyncio.run(arena.step()) for _ in range(2))

    # Baselines are 0 at first; then 0.05 · 3/4 for proposers and 0.05 · 3/8 for solvers, whose mean is 3 of 8.
    assert [record.advantage for record in first.records] == [record.reward for record in first.records]
    assert first.credit_state == pytest.approx({"propose/Proposer": 0.0375, "solve/Solver": 0.01875})
    # The same is said again: 1 - 0.0375 and 1/2 - 0.0375, 1 - 0.01875 and -0.01875.
    expected = [0.9625, 0.98125, -0.01875, 0.98125, -0.01875, 0.4625, -0.01875, 0.98125, -0.01875, -0.01875]
    assert [record.advantage for record in second.records] == pytest.approx(expected)
    # 0.95 · 0.0375 + 0.05 · 0.75, and 0.95 · 0.01875 + 0.05 · 0.375.
    assert second.credit_state == pytest.approx({"propose/Proposer": 0.073125, "solve/Solver": 0.0365625})


def harvested(arena: Arena) -> list[trajectories.Trajectory]:
    """What a league's matches of a batch leave for the trainer."""
    found = []
    for result in asyncio.run(arena.generate_rollouts(arena.get_batch())):
        seat = TrainedSeat(result.rollout.id, "proposer_solver", "main", 0, "Both", ("Proposer", "Solver"), (0.0,), 1)
        found.append(to_trajectory(result, seat).trajectory)
    return [rollout for rollout in found if rollout is not None]


def trained(advantage: str) -> tuple[AdvantagePipeline, AdvantageState]:
    config = TrainerConfig(reward=Plugin("outcome"), advantage=Plugin(advantage))
    return AdvantagePipeline(config, SHAPE, filter_zero=False), AdvantageState()


def test_a_league_gives_each_call_the_same_advantage_group_by_group() -> None:
    credit, memory = trained("group_relative")
    rollouts = harvested(opened())
    credited = credit(rollouts, memory)

    assert [(rollout.group, rollout.group_size) for rollout in rollouts] == [("proposals-1", 2)] * 2
    assert [advantages_S.tolist() for advantages_S in credited.advantages] == [
        [0.25, 0.5, -0.5, 0.5, -0.5],
        [-0.25, -0.25, 0.75, -0.25, -0.25],
    ]


def test_a_league_gives_each_call_the_same_advantage_role_by_role() -> None:
    credit, memory = trained("rae")
    arena = opened()
    first = credit(harvested(arena), memory)
    second = credit(harvested(arena), first.memory)

    assert first.memory.baselines == pytest.approx({"propose/Proposer": 0.0375, "solve/Solver": 0.01875})
    assert [advantages_S.tolist() for advantages_S in second.advantages] == [
        pytest.approx([0.9625, 0.98125, -0.01875, 0.98125, -0.01875]),
        pytest.approx([0.4625, -0.01875, 0.98125, -0.01875, -0.01875]),
    ]
    assert second.memory.baselines == pytest.approx({"propose/Proposer": 0.073125, "solve/Solver": 0.0365625})


def test_solvers_that_are_not_to_be_trained_still_decide_what_the_proposer_earns() -> None:
    batch = asyncio.run(opened(solvers_trainable=False).step())

    assert told_of(batch) == [("arena-0", TOP, 1.0, 0.25), ("arena-1", TOP, 0.5, -0.25)]
    assert batch.counts.of_untrainable == 8


def played(arena: Arena, kind: str = "propose") -> GenerateResult:
    return asyncio.run(arena.generate_rollouts([EpisodeRequest(kind, store="" if kind == "propose" else "questions")]))[
        0
    ]


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ("How are you?", "no question"),
        ("Question: How are you?\nAnswer: well", "no arithmetic"),
        ("Question: 6 + 7 = ?\nAnswer: 12", "its answer is wrong"),
        ("Question: 6 + 7 + 8 = ?", "arithmetic beyond the rules"),
        ("Question: 60 + 7 = ?", "arithmetic beyond the rules"),
        ("Question: 6 * 7 = ?", "arithmetic beyond the rules"),
        ("Question: 6 / 7 = ?", "no arithmetic"),
        ("Question: __import__('os')", "no arithmetic"),
    ],
)
def test_a_question_that_cannot_be_used_costs_the_proposer_and_nobody_is_asked(reply: str, why: str) -> None:
    result = played(opened(proposed=[reply], operations="+-", largest=9, terms=2))

    assert (result.rewards, result.children, result.failure) == ({"Proposer": -1.0}, [], "")
    assert result.rollout.extras == {"question": "", "unusable": why}


@pytest.mark.parametrize(
    ("reply", "question", "answer"),
    [
        ("Question: 6+7=?", "6 + 7 = ?", "13"),
        ("I ask.\nquestion: What is 2 + 3 * 4?\nanswer: 14.", "2 + 3 * 4 = ?", "14"),
        ("Question: 3 - 5 - 1", "3 - 5 - 1 = ?", "-3"),
        ("Question: 2 × 3 × 4 =", "2 * 3 * 4 = ?", "24"),
        ("Question: 007 - 0 = ?", "7 - 0 = ?", "7"),
    ],
)
def test_arithmetic_is_computed_and_written_in_one_way(reply: str, question: str, answer: str) -> None:
    assert parse_question(reply, QuestionRules()) == (QuestionAnswer(question, answer), "")


def test_other_questions_are_asked_where_the_proposer_is_believed() -> None:
    trusting = QuestionRules(trust=True)
    assert parse_question("Question: Who hoots?\nAnswer: the owl", trusting) == (
        QuestionAnswer("Who hoots?", "the owl"),
        "",
    )
    assert parse_question("Question: Who hoots?", trusting) == (None, "no answer")
    assert parse_question("Question: 1 + 1 = ?\nAnswer: 3", trusting) == (None, "its answer is wrong")


def test_questions_of_a_good_pass_rate_are_kept_by_weight_and_the_proposer_is_shown_them() -> None:
    told: list[ArtifactAdded] = []
    answers = {**ANSWERS, "1 + 1 = ?": ["2"], "9 * 9 = ?": ["80"]}
    arena = opened(proposed=[*PROPOSED, "Question: 1 + 1 = ?", "Question: 9 * 9 = ?"], answers=answers, told=told)
    for _ in range(4):
        played(arena)

    # Pass rates 1/2, 1/4, 1 and 0; kept from 0.2 to 0.8, with weights 1 at 1/2 and 1/2 at 1/4.
    assert [(added.store, added.artifact.data["question"], added.artifact.weight) for added in told] == [
        ("questions", "6 + 7 = ?", 1.0),
        ("questions", "8 - 3 = ?", 0.5),
    ]
    assert arena.stores["questions"].count() == 4
    client = arena.client
    assert isinstance(client, ScriptedClient)
    shown = [call.messages[-1].content for call in client.calls if call.messages[0].content.startswith("Write")]
    assert all(text.startswith("Known: ") and text.endswith("Write a new question.") for text in shown)


def test_practice_weighs_a_known_question_anew_and_its_solvers_are_compared() -> None:
    told: list[ArtifactAdded] = []
    known = {"question": "8 - 3 = ?", "answer": "5"}
    arena = opened(told=told, questions=[known], proposals=0, practice=1)
    batch = asyncio.run(arena.step())

    assert [record.advantage for record in batch.records] == [-0.25, 0.75, -0.25, -0.25]
    assert [(added.artifact.data, added.artifact.weight) for added in told] == [(known, 0.5)]
    assert arena.stores["questions"].count() == 1
    assert batch.rewards == {"practise/Solver": 0.25, "solve/Solver": 0.25}


def test_the_curriculum_is_the_same_again_from_what_was_told() -> None:
    told: list[ArtifactAdded] = []
    before = opened(told=told)
    asyncio.run(before.step())
    after = opened()
    after.stores["questions"].replay(told)

    for seed in range(20):
        drawn = [arena.stores["questions"].sample(3, True, Random(seed)) for arena in (before, after)]
        assert drawn[0] == drawn[1]


def test_weights_are_highest_at_the_target_and_never_nothing() -> None:
    assert [curriculum_weight(rate, 0.5) for rate in (0, 0.25, 0.5, 0.75, 1)] == [0.02, 0.5, 1, 0.5, 0.02]
    assert [curriculum_weight(rate, 0.8) for rate in (0.4, 0.8, 0.9)] == pytest.approx([0.5, 1, 0.5])


def test_a_proposal_whose_solvers_all_fail_fails_and_keeps_nothing() -> None:
    told: list[ArtifactAdded] = []
    result = played(opened(answers={"6 + 7 = ?": [" "]}, told=told))

    assert result.failure == "none of 4 attempts came to a result: model reply: it is empty; expected text"
    assert told == []


def test_solvers_that_fail_are_left_out_of_the_pass_rate() -> None:
    result = played(opened(answers={"6 + 7 = ?": ["13", " ", "12", " "]}))

    assert result.rollout.extras["pass_rate"] == 0.5
    assert [bool(child.failure) for child in result.children] == [False, True, False, True]


def test_a_league_sees_pass_rates_and_a_score_of_whoever_the_episode_is_about() -> None:
    spec = make_arena("proposer_solver", {})
    proposal, practice = (
        played(opened()),
        played(opened(questions=[{"question": "8 - 3 = ?", "answer": "5"}]), "practise"),
    )

    assert (spec.score(proposal), spec.score(practice)) == ((1.0,), (0.25,))
    assert [spec.passed(score) for score in (1.0, 0.5, 0.25, -1.0)] == [True, True, False, False]
    assert spec.metrics(proposal) == {"goldilocks.Proposer": 1.0, "pass_rate": 0.5, "usable": 1.0}
    assert spec.metrics(practice) == {"solved.Solver": 0.25, "pass_rate": 0.25}


def test_evaluations_put_the_same_questions_to_every_version() -> None:
    spec = make_arena("proposer_solver", {"operations": "+-", "largest": 9})
    first, other = (spec.open(ScriptedClient(""), ArenaOptions(seed=seed)) for seed in (1, 2))
    other.stores["questions"].add(Artifact({"question": "1 + 1 = ?", "answer": "2"}))
    asked = spec.evaluation_batch(first)

    assert asked == spec.evaluation_batch(other)
    assert len({request.artifact["question"] for request in asked}) > 32
    assert {request.episode_type for request in asked} == {"solve"}
    believed = {"trust": True, "questions": [{"question": "Who flies?", "answer": "birds"}]}
    (known,) = make_arena("proposer_solver", believed).evaluation_batch(first)
    assert known.artifact == {"question": "Who flies?", "answer": "birds"}


def test_improvised_proposals_can_be_asked_and_improvised_answers_are_about_right() -> None:
    spec = make_arena("proposer_solver", {"largest": 9, "near": 2, "operations": "+-"})
    rng, off, rules = Random(1), [], QuestionRules(operations="+-", largest=9, terms=2)
    for _ in range(300):
        question, why = parse_question(spec.improvise("Proposer", [], rng), rules)
        assert question, why
        said = spec.improvise("Solver", [Message("user", question.question)], rng)
        off.append(int(said.removeprefix("Answer: ")) - int(question.answer))

    assert set(off) == {-2, -1, 0, 1, 2}
    assert 0.1 < off.count(0) / 300 < 0.3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"solver_rollouts": 0}, r"game\.settings\.solver_rollouts: 0; expected 1 or more"),
        ({"proposals": 0, "practice": 0}, "both 0"),
        ({"questions": []}, "questions: none"),
        ({"target": 1.0}, r"target: 1\.0; expected more than 0 and less than 1"),
        ({"keep": [0.8, 0.2]}, "expected two ascending shares"),
        ({"operations": "+/"}, r"operations: '\+/'"),
        ({"solvers": 3}, "solvers"),
    ],
)
def test_bad_settings_are_refused_with_what_was_expected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_arena("proposer_solver", settings)


def test_a_question_with_an_answer_in_its_text_is_improvised_on():
    spec = ProposerSolverSpec.of({"trust": True})
    question = Message("user", "Which of them?\nAnswer: the first or the second.")
    assert re.fullmatch(r"Answer: -?\d+", spec.improvise(SOLVER, [question], Random(0)))
