"""Problems of reasoning-gym in environments with questions: the seed identifies them, their verifier scores them."""

import asyncio
import math
import os
import subprocess
import sys
from typing import Any

import pytest

from arena.clients import ScriptedClient
from arena.clients.improviser import improvised_calls
from arena.datasets import EXECUTE_REPLIES, UNSEEDED, Problem, ProblemSet, score_answer
from arena.environments import ArenaOptions, ArenaSpec, make_arena
from schemas.episodes import GenerateResult
from schemas.errors import ConfigError, EpisodeError

CHAIN = {"dataset": "chain_sum", "seed": 3, "size": 6}
SPELL = {"dataset": "spell_backward", "seed": 3, "size": 6}


def test_a_missing_package_is_named_when_the_environment_is_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    settings = [("word_problems", "problems"), ("proposer_solver", "questions")]
    for name, key in settings:
        with pytest.raises(ConfigError, match=r"pip install 'event-sourced-league\[reasoning-gym\]'"):
            make_arena(name, {key: {"dataset": "chain_sum", "seed": 99}})


@pytest.mark.parametrize("name", [*sorted(UNSEEDED)[:1], *sorted(EXECUTE_REPLIES)[:1]])
def test_data_sets_that_a_seed_does_not_identify_or_that_run_replies_are_refused(name: str):
    with pytest.raises(ConfigError, match=rf"dataset: '{name}' (changes from process|runs replies)"):
        make_arena("word_problems", {"problems": {"dataset": name}})


def test_questions_without_a_verifier_are_stored_as_before():
    spec = make_arena("word_problems", {"first": 1})
    (artifact,) = spec.open(ScriptedClient()).stores["problems"].sample(1)
    assert set(artifact.data) == {"question", "answer"}


def answer_all(spec: ArenaSpec, *replies: str, evaluation: bool = False) -> list[GenerateResult]:
    arena = spec.open(ScriptedClient(*replies), ArenaOptions(seed=5))
    requests = spec.evaluation_batch(arena) if evaluation else arena.get_batch()
    return asyncio.run(arena.generate_rollouts(requests, concurrency=1))


def opened(name: str, settings: dict[str, Any]) -> ArenaSpec:
    pytest.importorskip("reasoning_gym")
    return make_arena(name, settings)


@pytest.mark.parametrize("problems", [CHAIN, SPELL])
def test_the_verifier_scores_the_text_after_the_mark(problems: dict[str, Any]):
    spec = opened("word_problems", {"problems": problems, "group_size": 1, "problems_per_batch": 6})
    answers = {result.rollout.artifact["question"]: result.rollout.artifact for result in answer_all(spec, "no idea")}
    assert len(answers) == 6
    client = ScriptedClient.from_function(lambda messages: f"I think.\n#### {answers[messages[-1].content]['answer']}")
    arena = spec.open(client, ArenaOptions(seed=6))
    for result in asyncio.run(arena.generate_rollouts(arena.get_batch())):
        assert result.rollout.rewards == {"Solver": pytest.approx(1.1)}
        assert result.rollout.artifact["problem"] == {**problems, "index": result.rollout.artifact["problem"]["index"]}


def test_solvers_practise_problems_and_are_evaluated_on_those_of_the_next_seed():
    spec = opened("proposer_solver", {"questions": CHAIN, "proposals": 0, "practice": 2, "solver_rollouts": 2})
    (first, _) = answer_all(spec, "Answer: 7")
    assert first.rollout.rewards == {"Solver": 0.0}
    assert first.children[0].rollout.artifact["problem"]["seed"] == 3
    examined = answer_all(spec, "Answer: 7", evaluation=True)
    assert {result.rollout.artifact["problem"]["seed"] for result in examined} == {4}
    assert len(examined) == 6
    assert not {result.rollout.failure for result in examined} - {""}


@pytest.mark.parametrize(("name", "key"), [("word_problems", "problems"), ("proposer_solver", "questions")])
def test_improvised_play_is_scored_without_a_failure(name: str, key: str):
    spec = opened(name, {key: SPELL})
    calls = improvised_calls(spec, 3)
    assert all(next(calls).reply for _ in range(4))


PRINT = """
from arena.datasets import ProblemSet
for name in ("chain_sum", "family_relationships", "graph_color", "spell_backward"):
    print(ProblemSet(dataset=name, size=4, seed=7).problems())
"""


def test_a_seed_gives_the_same_problems_in_every_process():
    pytest.importorskip("reasoning_gym")
    printed = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PRINT],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        ).stdout
        for hash_seed in ("1", "77")
    }
    assert len(printed) == 1


def test_a_problem_without_a_reference_answer_is_scored_too():
    pytest.importorskip("reasoning_gym")
    (_, answer, problem), *_ = ProblemSet(dataset="graph_color", size=1).problems()
    assert answer == ""
    assert score_answer("{}", problem) < 1


@pytest.mark.parametrize(("score", "reason"), [(math.nan, "score nan; expected"), (None, "raises.*no score")])
def test_a_verifier_that_raises_or_gives_no_number_fails_the_episode(
    score: float | None, reason: str, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("reasoning_gym")
    from reasoning_gym.arithmetic.chain_sum import ChainSumDataset

    def judge(self: Any, answer: str, entry: Any) -> float:
        if score is None:
            raise ValueError("no score")
        return score

    monkeypatch.setattr(ChainSumDataset, "score_answer", judge)
    with pytest.raises(EpisodeError, match=f"chain_sum, seed 3, problem 0: .*{reason}"):
        score_answer("1", Problem("chain_sum", 3, 6, 0))


def test_settings_that_do_not_fit_are_refused_by_name():
    with pytest.raises(ConfigError, match="no data set 'chain_sums'"):
        opened("word_problems", {"problems": {"dataset": "chain_sums"}})
    with pytest.raises(ConfigError, match="'chain_sum' cannot be made with options"):
        opened("word_problems", {"problems": {"dataset": "chain_sum", "options": {"min_terms": 0}}})
    with pytest.raises(ConfigError, match=r"size: 0; expected 1 or more"):
        opened("word_problems", {"problems": {"dataset": "chain_sum", "size": 0}})
