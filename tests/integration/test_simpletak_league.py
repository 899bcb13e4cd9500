"""The quick start in miniature: trained on one environment against itself, evaluated on two."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("textarena")

CONFIG = Path(__file__).parents[2] / "configs" / "simpletak-tiny.toml"
TAK, KUHN = "SimpleTak-v0-train", "KuhnPoker-v0-train"


@pytest.mark.slow
def test_results_are_told_apart_by_environment(tmp_path: Path) -> None:
    def league(*arguments: str) -> str:
        command = [sys.executable, "-m", "ui", *arguments, "--run", str(tmp_path / "run")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def asked(query: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(league("sql", query, "--json"))
        return rows

    assert "identical" in league("up", "--config", str(CONFIG))
    assert not league("events", "--type", "MatchFailed", "--json")

    played = asked("SELECT DISTINCT purpose, environment FROM matches ORDER BY ALL")
    assert [(row["purpose"], row["environment"]) for row in played] == [
        ("evaluation", KUHN), ("evaluation", TAK), ("training", TAK),
    ]  # fmt: skip
    mirrors = asked("SELECT DISTINCT agent FROM opponents_sampled ORDER BY ALL")
    assert all(row["agent"].startswith("main@") for row in mirrors), "nobody but itself"
    (found,) = asked(f"SELECT match_id FROM matches WHERE environment = '{KUHN}' ORDER BY sequence LIMIT 1")
    match = found["match_id"]
    assert f"textarena {KUHN}, evaluation" in " ".join(league("match", "show", match).split())
    assert "identical" in league("match", "show", "--again", match)
    steps = [
        json.loads(line)["event"] for line in league("events", "--type", "GradientStepTaken", "--json").splitlines()
    ]
    assert len(steps) == 2
