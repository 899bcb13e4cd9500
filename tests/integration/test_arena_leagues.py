"""The leagues of arenas that come with the package, cut short: each makes its model, trains, and can be replayed."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from arena.environments import arena_names
from schemas.config import load_config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "configs"
POPULATIONS = FOLDER / "proposer-solver-populations.toml"
LEAGUES = sorted(
    path for path in FOLDER.glob("*.toml") if load_config(path).game.name in arena_names() and path != POPULATIONS
)
EXAMPLES = sorted((ROOT / "examples").glob("*.toml"))
CUTS = {
    r"(?m)^cloning = .*$": "cloning = { sequences = 320, batch = 32 }",
    r"(?m)^steps = \d+$": "steps = 2",
    r"(?m)^every = \d+$": "every = 2",
    r"(?m)^gatekeeper_games = \d+$": "gatekeeper_games = 4",
    r"(?m)^benchmark_games = \d+$": "benchmark_games = 4",
}
SILENT_JUDGE = "model reply: it is empty"


def cut(text: str) -> str:
    for pattern, short in CUTS.items():
        text, found = re.subn(pattern, short, text)
        assert found == 1, pattern
    return text


class League:
    """A league that has run to its end."""

    def __init__(self, folder: Path, settings: str) -> None:
        self.run = folder / "run"
        (folder / "league.toml").write_text(settings)
        self.report = self("up", "--config", str(folder / "league.toml"))

    def __call__(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "ui", *arguments, "--run", str(self.run)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout + result.stderr

    def events(self, type: str) -> list[dict]:
        return [json.loads(line)["event"] for line in self("events", "--type", type, "--json").splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("config", [*LEAGUES, *EXAMPLES], ids=lambda path: path.stem)
def test_the_league_of_an_arena_trains_from_a_model_that_it_makes(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if config in EXAMPLES:
        monkeypatch.setenv("LEAGUE_PLUGINS", str(ROOT / "examples" / "plugins"))
    league = League(tmp_path, cut(config.read_text()))
    assert "identical" in league.report
    steps = league.events("GradientStepTaken")
    wanted = load_config(config).trainer.rollouts_per_step
    assert [(step["accepted"], step["refused"]) for step in steps] == [(wanted, 0)] * 2
    assert not any(step["metrics"].get("skipped") or step["metrics"].get("alarms") for step in steps)
    # Of later steps some was sampled by the version before.
    assert abs(steps[0]["metrics"]["sampler_gap"]) < 1e-4, "the learner sees the distribution that was sampled from"
    # What has read so little speaks nonsense, which is scored. A judge whose verdict is nothing at all gives none.
    failures = [event["error"] for event in league.events("MatchFailed")]
    assert [error for error in failures if SILENT_JUDGE not in error] == []
    assert "balanced" in league("ledger")
    # The one arena whose stores grow while it is played: what is practised is weighed anew, new questions may be kept.
    stored = league.events("ArtifactStored")
    played = {event["match_id"] for event in league.events("MatchFinished")}
    assert {event["store"] for event in stored} == ({"questions"} if config.stem == "proposer-solver" else set())
    assert {event["match_id"] for event in stored} <= played


@pytest.mark.slow
def test_students_who_are_never_asked_anything_hold_up_neither_the_stream_nor_the_league(tmp_path: Path) -> None:
    # Teachers that have read so little write no question, so that what students do has no tokens to train on.
    league = League(tmp_path, cut(POPULATIONS.read_text()))
    assert "identical" in league.report
    steps = league.events("GradientStepTaken")
    assert [step["skip_reason"] for step in steps if step["policy"] == "main"] == ["no usable trajectory"] * 2
    assert all(step["accepted"] for step in steps if step["policy"] in ("teacher", "tutor"))
    assert "balanced" in league("ledger")
