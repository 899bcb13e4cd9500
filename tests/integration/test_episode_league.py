"""Whole leagues of episodes, in processes of their own: played, trained on, measured, told and replayed."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from arena.datasets import PROBLEMS

LEAGUE = """
name = "episodes"
seed = 3

[game]
{game}

[agents]
base_model = {{ kind = "base", rating = 1000.0, baseline = true }}
random_bot = {{ kind = "bot", rating = 800.0, baseline = true }}

[episodes]
judge = "random_bot"
spread = {spread}

[model]
base = "{model}"

[rollout]
workers = {spread}
games_in_flight = 4

[evaluation]
every = 1
gatekeepers = ["random_bot"]
gatekeeper_games = 2
benchmark_opponents = ["random_bot"]
benchmark_games = 2

[trainer]
rollouts_per_step = 8
reward = {{ name = "outcome" }}
advantage = {{ name = "group_relative" }}

[stop]
steps = 2
"""
WORDS = """
name = "word_problems"
settings = { group_size = 4, problems_per_batch = 2, max_tokens = 8 }
"""
DEBATE = """
name = "debate"
settings = { rounds = 1, group_size = 4, batch_size = 2, max_tokens = 12 }
"""


@pytest.fixture
def model(speaker: Callable[..., Path]) -> Path:
    return speaker([question for question, _ in PROBLEMS])


class League:
    """A league that has run to its end."""

    def __init__(self, folder: Path, settings: str) -> None:
        self.run = folder / "run"
        (folder / "league.toml").write_text(settings)
        self.report = self("up", "--config", str(folder / "league.toml"))

    def __call__(self, *arguments: str, code: int = 0) -> str:
        command = [sys.executable, "-m", "ui", *arguments, "--run", str(self.run)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout + result.stderr

    def events(self, type: str) -> list[dict]:
        return [json.loads(line)["event"] for line in self("events", "--type", type, "--json").splitlines()]


@pytest.mark.slow
def test_one_seat_is_trained_in_shared_groups_and_nobody_is_rated(model: Path, tmp_path: Path) -> None:
    league = League(tmp_path, LEAGUE.format(game=WORDS, model=model, spread=2))
    assert "identical" in league.report
    assert "Episodes passed, alone in the one seat" in league.report
    assert "mean score" in league.report
    steps = league.events("GradientStepTaken")
    assert [step["accepted"] for step in steps] == [8, 8]
    # Each worker plays two of four: only both together complete a group.
    assert all(step["metrics"]["groups_complete"] >= 1 for step in steps)
    assert {match.rpartition("-")[0] for step in steps for match in step["matches"]} == {"rollout-1", "rollout-2"}
    assert not league.events("RatingUpdated")
    assert not [event for event in league.events("EvaluationRequested") if event["suite"] == "promotion"]
    for result in league.events("MatchFinished"):
        (seat,) = result["seats"]
        assert (result["winner"] is not None) == (seat["score"] >= 1)
    match = steps[0]["matches"][0]
    assert "agrees" in league("match", "explain", match)
    shown = " ".join(league("match", "show", match).split())
    assert f"{match}: word_problem about:" in shown
    assert "Solver earns" in shown
    assert "cannot be computed again" in " ".join(league("match", "show", "--again", match, code=2).split())


@pytest.mark.slow
def test_two_seats_meet_and_are_rated_and_the_heros_words_are_learnt_from(model: Path, tmp_path: Path) -> None:
    league = League(tmp_path, LEAGUE.format(game=DEBATE, model=model, spread=1))
    assert "identical" in league.report
    steps = league.events("GradientStepTaken")
    assert [(step["accepted"], step["refused"]) for step in steps] == [(8, 0), (8, 0)]
    assert steps[0]["metrics"]["sampler_gap"] < 1e-5, "the learner sees the distribution that was sampled from"
    assert {seat for step in steps for seat in step["seats"]} == {0, 1}, "heroes sit on both sides"
    assert league.events("RatingUpdated")
    for result in league.events("MatchFinished"):
        assert [seat["role"] for seat in result["seats"]] == ["Aff", "Neg"]
        trained = [seat["agent"].split("@")[0] for seat in result["seats"] if seat["trainable"]]
        assert trained == (["main"] if result["purpose"] == "training" else [])
    turns = json.loads(league("match", "show", steps[0]["matches"][0], "--json"))["turns"]
    assert [next(iter(turn["moves"]), "") for turn in turns] == ["", "Aff", "Neg", ""]
    assert "balanced" in league("ledger")
