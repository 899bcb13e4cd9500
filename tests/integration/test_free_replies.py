"""A model that was taught nothing plays by saying anything, in a whole league: what it says is learnt from."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from arena.games import make_game
from arena.prompts import build_game_messages

LEAGUE = """
name = "free"
seed = 3

[game]
name = "nim"
settings = {{ heaps = [2, 2] }}

[prompts]
reply = "free"
extractor = "boxed"
invalid = "random"
second_question = true
reply_tokens = 6

[agents]
base_model = {{ kind = "base", rating = 1000.0, baseline = true }}
random_bot = {{ kind = "bot", rating = 800.0, baseline = true }}

[model]
base = "{model}"

[rollout]
games_in_flight = 2

[evaluation]
every = 1
gatekeepers = ["random_bot"]
gatekeeper_games = 1
benchmark_opponents = ["random_bot"]
benchmark_games = 1

[trainer]
rollouts_per_step = 4

[stop]
steps = 1
"""


@pytest.fixture
def model(speaker: Callable[..., Path]) -> Path:
    nim = make_game("nim", {"shuffle": False})
    return speaker([part.content for part in build_game_messages(nim.words(), nim.new(0), 0)] * 3)


def test_template_that_the_model_does_not_know_is_refused_when_the_league_opens(model: Path, tmp_path: Path):
    asked = LEAGUE.format(model=model).replace('reply = "free"', 'reply = "free"\ntemplate = "llama"')
    (tmp_path / "league.toml").write_text(asked)
    command = [sys.executable, "-m", "ui", "up", "--config", str(tmp_path / "league.toml")]
    command += ["--run", str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 1
    assert "prompts.template: 'llama' needs the token '<|begin_of_text|>'" in " ".join(result.stderr.split())


@pytest.mark.slow
def test_what_is_said_freely_is_trained_on_and_its_form_is_counted(model: Path, tmp_path: Path):
    (tmp_path / "league.toml").write_text(LEAGUE.format(model=model))

    def league(*arguments: str) -> str:
        command = [sys.executable, "-m", "ui", *arguments, "--run", str(tmp_path / "run")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    assert "identical" in league("up", "--config", str(tmp_path / "league.toml"))
    (line,) = league("events", "--type", "GradientStepTaken", "--json").splitlines()
    step = json.loads(line)["event"]
    assert (step["accepted"], step["refused"]) == (4, 0)
    assert step["metrics"]["sampler_gap"] < 1e-5, "the learner sees the distribution that was sampled from"
    assert not league("events", "--type", "MatchFailed", "--json"), "an invalid reply costs a move, not the match"
    for line in league("events", "--type", "MatchFinished", "--json").splitlines():
        for seat in json.loads(line)["event"]["seats"]:
            counted = {name: count for name, count in seat["metrics"].items() if name.startswith("reply_")}
            assert bool(counted) == (seat["agent"] != "random_bot")
            if counted:
                assert counted["reply_count"] == counted["reply_unformatted"] == counted["reply_invalid"] > 0
    match = json.loads(line)["event"]["match_id"]
    assert "identical" in league("match", "show", "--again", match), "the substituted moves are in the record"
    faults = "sum(truncated + empty + unparsable + illegal)"
    table = league("sql", f"SELECT sum(replies) AS replies, {faults} AS faults FROM match_seats", "--json")
    (row,) = json.loads(table)
    assert row["replies"] == row["faults"] > 0
    second = "SELECT count(*) AS kept, count(*) FILTER (second_reply <> '' AND fault <> '') AS asked FROM decisions"
    (row,) = json.loads(league("sql", second, "--json"))
    # A second reply may be empty too.
    assert 0.5 * row["kept"] < row["asked"] <= row["kept"]
