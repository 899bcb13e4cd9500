"""The one-process comparison of settings runs on any game, and says what it did."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import learning

ROOT = Path(__file__).parents[3]


def test_a_few_steps_and_the_measurement_are_told_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, adapter = tmp_path / "log.jsonl", tmp_path / "adapter"
    told = ["--steps", "20", "--games", "12", "--log", str(log), "--adapter", str(adapter)]
    changes = ["--set", "trainer.rollouts_per_step=3", "--set", "model.cloning={ sequences = 64 }"]
    monkeypatch.setattr(sys, "argv", ["learning", str(ROOT / "configs" / "nim-tiny.toml"), *told, *changes])
    learning.main()
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert rows[0]["changes"] == [changes[1], changes[3]]
    assert rows[1]["step"] == 20
    assert sum(seats for _, _, seats in rows[1]["by"].values()) > 0
    assert rows[2]["games"] == 12
    assert rows[2]["low"] <= rows[2]["share"] <= rows[2]["high"]
    assert (adapter / "adapter_config.json").is_file()


def test_layouts_are_compared_on_one_batch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--layouts", "auto", "packed", "--set", "model.cloning={ sequences = 64 }"]
    monkeypatch.setattr(sys, "argv", ["learning", str(ROOT / "configs" / "nim-tiny.toml"), *options])
    learning.main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()[2:]]
    assert [(row["layout"], len(row["cpu"])) for row in rows] == [("auto", 5), ("packed", 5)]


def test_a_change_reaches_into_tables_that_the_file_leaves_out() -> None:
    config = learning.load_changed_config(
        ROOT / "configs" / "nim-tiny.toml", ["trainer.loss={ name = 'grpo' }", "seed=3"]
    )
    assert (config.trainer.loss.name, config.seed) == ("grpo", 3)
