"""Word problems: what counts as an answer, what an attempt earns, and which attempts are compared."""

import asyncio
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest

from arena.clients import ScriptedClient
from arena.datasets import PROBLEMS
from arena.environments import ArenaOptions, make_arena
from arena.environments.word_problems import reachable_values
from arena.questions import (
    ends_with_marked_number,
    extract_labelled,
    extract_number,
    is_equivalent_answer,
    parse_number,
)
from schemas.config import Plugin
from schemas.episodes import Message
from schemas.errors import ConfigError
from trainer.advantages.total_reward import CREDIT_ASSIGNERS

PEARS = {"question": "Ana has 3 pears and picks 4 more. How many pears has she now?", "answer": "7"}


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("3 + 4 = 7\n#### 7", 7),
        ("#### 7 pears, not 8", 7),
        ("It is 7.", 7),
        ("First 3, then 4: 7", 7),
        ("#### 5\nNo, wait.\n#### 7", 7),
        ("#### $1,200.50", Fraction("1200.5")),
        ("3-4 gives -1", -1),
        ("x2 seven", None),
        ("#### seven 3", 3),
        ("9" * 5_000, None),
        ("", None),
    ],
)
def test_the_number_of_a_reply_is_that_behind_the_last_mark_or_the_last_one(reply: str, number: Any) -> None:
    assert extract_number(reply) == number


def test_numbers_and_texts_are_compared_by_what_they_mean() -> None:
    assert parse_number("1,000") == parse_number("1000.0") == parse_number("$1000.")
    assert parse_number("ten") is parse_number("٣") is None
    assert all(is_equivalent_answer(*pair) for pair in [("The Heron!", "heron"), ("7.0", "7"), ("the", "The")])
    assert not any(is_equivalent_answer(*pair) for pair in [("", ""), ("heron", "herons"), ("-7", "7")])
    assert extract_labelled("Question: a\nanswer : b \nAnswer:c", "Answer") == "c"
    assert extract_labelled("No answer: b", "Answer") == ""


def test_the_form_is_one_mark_and_a_number_at_the_end() -> None:
    assert all(map(ends_with_marked_number, ("3 + 4 = 7 #### 7", "#### -1.5\n")))
    assert not any(map(ends_with_marked_number, ("7", "#### 7 pears", "#### 7 #### 7", "####", "#### seven")))


def test_every_answer_can_be_had_from_the_numbers_of_its_problem() -> None:
    assert len(PROBLEMS) == len({question for question, _ in PROBLEMS}) == 48
    assert [question for question, answer in PROBLEMS if answer not in reachable_values(question)] == []
    assert reachable_values("2 bags of 5, and 3 more?") == [0, 4, 7, 10, 13, 21, 30]
    assert reachable_values("No number") == []


def play(script: Any, **settings: Any) -> Any:
    spec = make_arena("word_problems", {"problems": [PEARS], "group_size": 4, "problems_per_batch": 1, **settings})
    arena = spec.open(
        ScriptedClient(*script), ArenaOptions(credit_assigner=CREDIT_ASSIGNERS.build(Plugin(name="grpo")))
    )
    return spec, arena, asyncio.run(arena.step())


def test_attempts_at_a_problem_earn_by_answer_and_form_and_are_compared() -> None:
    spec, _, batch = play(["#### 7", "It is 7", "#### 12", "no idea"])

    # Right and marked, right only, marked only, nothing; their mean is 0.55.
    assert [record.reward for record in batch.records] == pytest.approx([1.1, 1.0, 0.1, 0.0])
    assert [record.advantage for record in batch.records] == pytest.approx([0.55, 0.45, -0.45, -0.55])
    assert {record.group for record in batch.records} == {"0|problem-1|word_problem|Solver"}
    assert [spec.passed(record.reward) for record in batch.records] == [True, True, False, False]


def test_each_problem_of_a_batch_has_a_group_of_its_own_and_its_size_is_told() -> None:
    spec = make_arena("word_problems", {"group_size": 3, "problems_per_batch": 48})
    arena = spec.open(ScriptedClient("#### 1"))
    requests = [*arena.get_batch(), *arena.get_batch()]

    groups: dict[str, list[Any]] = {}
    for request in requests:
        groups.setdefault(request.group, []).append(request.artifact["question"])
    assert len(groups) == 96
    assert all(len(questions) == 3 and len(set(questions)) == 1 for questions in groups.values())
    assert {request.group_size for request in requests} == {3}
    assert len({request.artifact["question"] for request in requests[:144]}) == 48


def test_the_same_seed_draws_the_same_problems_and_opening_tells_of_no_additions() -> None:
    told: list[Any] = []
    spec = make_arena("word_problems", {"problems_per_batch": 5})
    drawn = [
        [
            request.artifact
            for request in spec.open(ScriptedClient(), ArenaOptions(seed=seed, sink=told.append)).get_batch()
        ]
        for seed in (1, 1, 2)
    ]

    assert drawn[0] == drawn[1] != drawn[2]
    assert told == []


def test_improvised_answers_are_in_form_and_right_as_often_as_chance_has_it() -> None:
    spec = make_arena("word_problems", {})
    rng = Random(1)
    right = 0
    for question, answer in PROBLEMS:
        for _ in range(20):
            said = spec.improvise("Solver", [Message("user", question)], rng)
            assert ends_with_marked_number(said)
            right += extract_number(said) == answer

    chance = sum(1 / len(reachable_values(question)) for question, _ in PROBLEMS) / 48
    assert 0.2 < chance < 0.35
    assert right / 960 == pytest.approx(chance, abs=0.05)


def test_problems_can_be_a_file_in_the_form_of_gsm8k(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text('{"question": "What is 2 and 2?", "answer": "2 + 2 = <<2+2=4>>4\\n#### 4"}\n\n', encoding="utf-8")
    _, arena, batch = play(["four: 4"], problems=str(path))

    assert arena.stores["problems"].count() == 1
    assert [record.reward for record in batch.records] == [1.0] * 4


def test_only_the_first_problems_are_asked_where_that_is_wanted() -> None:
    arena = make_arena("word_problems", {"first": 5}).open(ScriptedClient())
    assert arena.stores["problems"].count() == 5


def test_problems_that_are_held_out_are_asked_in_evaluation_alone() -> None:
    spec = make_arena("word_problems", {"held_out": 8, "group_size": 1, "problems_per_batch": 40})
    arena = spec.open(ScriptedClient("#### 1"))
    trained = {request.artifact["question"] for request in (*arena.get_batch(), *arena.get_batch())}
    evaluated = [request.artifact["question"] for request in spec.evaluation_batch(arena)]

    assert len(trained) == 40
    assert evaluated == [question for question, _ in PROBLEMS[-8:]]
    assert not trained.intersection(evaluated)
    results = asyncio.run(arena.generate_rollouts(spec.evaluation_batch(arena)))
    assert [result.rollout.rewards for result in results] == [{"Solver": pytest.approx(0.1)}] * 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"held_out": 48}, r"game\.settings\.held_out: 48 of 48 problems; expected fewer, to train on the rest"),
        ({"group_size": 0}, r"game\.settings\.group_size: 0; expected 1 or more"),
        ({"format_weight": 1.0}, r"game\.settings\.format_weight: 1\.0; expected 0 or more, and less than 1"),
        ({"group": 4}, "group"),
        ({"problems": "no/such/file"}, r"game\.settings\.problems: no/such/file: .*expected JSON lines"),
        ({"problems": [{"question": "Why?", "answer": "because"}]}, r"problems\[0\]: 'Why\?' with .*'because'"),
    ],
)
def test_bad_settings_are_refused_with_what_was_expected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_arena("word_problems", settings)


@pytest.mark.parametrize("lines", [[], ["{"], ['{"question": "1?"}'], ["[1]"]])
def test_a_bad_file_of_problems_is_refused(lines: Sequence[str], tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"game\.settings\.problems"):
        make_arena("word_problems", {"problems": str(path)})


def test_a_bad_line_of_problems_is_named_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text('{"question": "1 + 1?", "answer": "2"}\n\n{"question": "1?"}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"game\.settings\.problems: .*problems\.jsonl, line 3: .*`answer`"):
        make_arena("word_problems", {"problems": str(path)})


def test_a_problem_may_contain_line_separators_of_unicode(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text('{"question": "One.\u2028How many?", "answer": "1"}\n', encoding="utf-8")
    assert make_arena("word_problems", {"problems": str(path)}).open(ScriptedClient()).stores["problems"].count() == 1
