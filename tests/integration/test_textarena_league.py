"""A model that was taught nothing talks to an environment of TextArena, and a league learns from what comes of it."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from arena.games import make_game
from arena.games.texts import words_of
from arena.prompts import build_game_messages

pytest.importorskip("textarena")

LEAGUE = """
name = "said"
seed = 3

[game]
name = "textarena"
settings = {{ env = "TicTacToe-v0-train", evaluation_env = "KuhnPoker-v0-train" }}

[prompts]
reply = "free"
extractor = "boxed"
reply_tokens = 6

[agents]
base_model = {{ kind = "base", rating = 1000.0, baseline = true }}

[model]
base = "{model}"

[rollout]
games_in_flight = 2
filter_opponent_invalid = true

[evaluation]
every = 1
gatekeepers = ["base_model"]
gatekeeper_games = 1
benchmark_opponents = ["base_model"]
benchmark_games = 1

[trainer]
reward = "outcome"
rollouts_per_step = 4

[stop]
steps = 1
"""


@pytest.fixture
def model(speaker: Callable[..., Path]) -> Path:
    game = make_game("textarena", {})
    return speaker([part.content for part in build_game_messages(words_of(game), game.new(0), 0)] * 3, 500, 2048)


@pytest.mark.slow
def test_sets_are_apart_and_nothing_is_learnt_from_what_another_seat_gave_away(model: Path, tmp_path: Path):
    (tmp_path / "league.toml").write_text(LEAGUE.format(model=model))

    def league(*arguments: str) -> str:
        command = [sys.executable, "-m", "ui", *arguments, "--run", str(tmp_path / "run")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    assert "identical" in league("up", "--config", str(tmp_path / "league.toml"))
    assert not league("events", "--type", "MatchFailed", "--json"), "an invalid reply costs the game, not the match"
    drawn = [
        json.loads(line)["event"] for line in league("events", "--type", "OpponentsSampled", "--json").splitlines()
    ]
    heroes, seen = {event["match_id"]: event["hero_seat"] for event in drawn}, set()
    last: dict[str, str] = {}
    for line in league("events", "--type", "MatchFinished", "--json").splitlines():
        match = json.loads(line)["event"]
        last[match["purpose"]] = match["match_id"]
        kind = "TicTacToe" if match["purpose"] == "training" else "KuhnPoker"
        assert match["environment"] == f"{kind}-v0-train"
        ended_by = [seat["seat"] for seat in match["seats"] if seat["metrics"]["ended_by_invalid"]]
        assert match["reason"] == ("invalid_move" if ended_by else "over")
        if match["purpose"] == "training":
            given_away = bool(ended_by) and ended_by != [heroes[match["match_id"]]]
            assert bool(match["experience"]) != given_away
            assert any(seat["trainable"] for seat in match["seats"]) != given_away
            seen.add(given_away)
    assert seen == {True, False}
    assert "does not follow the correct format" in league("match", "show", last["training"]), "TicTacToe says so"
    assert "Action must be [Check]" in " ".join(league("match", "show", last["evaluation"]).split()), "Kuhn poker does"
    assert "identical" in league("match", "show", "--again", last["evaluation"])
