"""A league of real processes that draws opponents by what is new to it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"


def league(*arguments: str, run: Path) -> str:
    command = [sys.executable, "-m", "ui", *arguments, "--run", str(run)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def play(folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Train a small league for two steps; its run, and its events as a person would read them."""
    text = CONFIG.read_text()
    for key, value in {"steps": 2, "gatekeeper_games": 3, "benchmark_games": 3}.items():
        text = re.sub(rf"^{key} = .*$", f"{key} = {value}", text, flags=re.MULTILINE)
    sampler = '[matchmaking.sampler]\nname = "exploration"\nsettings = { temperature = 0.1 }\n'
    (folder / "league.toml").write_text(f"{text}\n{sampler}")
    run = folder / "run"
    assert "identical" in league("up", "--config", str(folder / "league.toml"), run=run)
    return run, [json.loads(line)["event"] for line in league("events", "--json", run=run).splitlines()]


def last_draw(events: list[dict[str, Any]]) -> str:
    finished = {event["match_id"] for event in events if event["type"] == "MatchFinished"}
    return [e["match_id"] for e in events if e["type"] == "OpponentsSampled" and e["match_id"] in finished][-1]


@pytest.mark.slow
def test_exploration_trains_a_league_on_what_is_new_to_it(tmp_path: Path) -> None:
    run, events = play(tmp_path)
    results = [event for event in events if event["type"] == "MatchFinished"]
    for result in results:
        trained = any(seat["trainable"] for seat in result["seats"])
        counted = any("ngrams_new" in seat["metrics"] for seat in result["seats"])
        assert counted == (result["purpose"] == "training")
        assert trained <= counted
    explained = json.loads(league("match", "explain", last_draw(events), "--json", run=run))
    assert explained["agrees"], explained["explanation"]
    # The first matches were drawn by nothing but hope, these by what was seen: some agent is likelier than another.
    weights = [
        weight for bucket in explained["explanation"]["distribution"].values() for weight in bucket["weights"].values()
    ]
    assert len(set(weights)) > 1
