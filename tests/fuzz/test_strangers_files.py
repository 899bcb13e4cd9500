"""Files of strangers, damaged and made up: registries, results, settings and folders of releases.

Each is read, or refused by an error of ours, within the processor time of ``soon`` and a gigabyte of memory.
"""

import gzip
import json
import math
import resource
import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import torch

from league.history.registry_import import ImportedRegistry, imported_events, merge_baselines, parse_registry
from lifecycle.external_results import FORMATS, parse_results
from lifecycle.import_registry import _copy_base_model, _read_adapters
from lifecycle.league_models import make_base_model
from lifecycle.trust import find_reaches, trusted_settings
from models import adapters, load_base
from models.adapters import LoraConfig
from schemas.codec import encode_event
from schemas.config import LeagueConfig, load_config
from tests.fuzz.test_fuzz import CASES, DRAWN, ROOT, cases, mangled, soon, survives, twisted

__all__ = ["DRAWN"]
MEMORY_BYTES = 10**9
REGISTRY = {
    "agents": {
        "base_model": {"type": "baseline", "elo": 1010, "matches": 0, "path": None},
        "random_bot": {"type": "baseline", "elo": 790},
        "v40": {"type": "checkpoint", "elo": 1100, "path": "run/v40", "step": 40, "parent": "base_model"},
        "v50": {
            "type": "checkpoint",
            "elo": 1200.5,
            "path": "run/v50",
            "step": 50,
            "created_at": "2025-12-06T12:00:00",
        },
    },
    "history": [
        {"step": 50, "p1": "v50", "p2": "v40", "result": 1},
        {"step": 50, "p1": "v50", "p2": "random_bot", "result": "draw"},
        {"p1": "v40", "p2": "v50", "result": {"v40": 0.25, "v50": 0.75}},
        {"p1": "v40", "p2": "random_bot", "result": [3, 4]},
    ],
    "metadata": {"best_agent": "v50"},
    "base_digest": "ab" * 32,
}
RESULTS = {
    "textarena": {
        "game_id": 7, "env_name": "Poker-v0", "players": {"0": "gpt", "1": {"model_name": "qwen"}}, "num_turns": 12,
        "rewards": '{"0": 1, "1": -1}', "status": "finished", "reason": "over", "player_id": 0,
    },
    "verifiers": {
        "id": "e1", "ok": True, "env": {"id": "kuhn-poker"}, "errors": [],
        "traces": [
            {"agent": {"name": name, "config": {"model": "gpt"}}, "ok": True, "nodes": [{"sampled": True}],
             "rewards": {"win": {"score": 0.5, "weight": 2.0}}, "num_output_tokens": 9, "stop_condition": "done"}
            for name in ("player0", "player1")
        ],
    },
    "kaggle": {
        "name": "connectx", "id": "k1", "steps": [[{"action": 1}, {"action": 0}]], "rewards": [1, -1],
        "statuses": ["DONE", "DONE"], "info": {"TeamNames": ["gpt", "qwen"], "EpisodeId": 3},
    },
    "diplomacy": {
        "id": "d1", "map": "standard", "rules": ["NO_PRESS"],
        "phases": [
            {"name": name, "state": {"units": {"AUSTRIA": ["A VIE"]}, "centers": {"AUSTRIA": ["VIE"]}},
             "orders": {"AUSTRIA": ["A VIE H"]}, "results": {"A VIE": []}, "messages": []}
            for name in ("S1901M", "COMPLETED")
        ],
    },
}  # fmt: skip
MONSTROUS = (
    *(b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5_000, b"-1e-" + b"9" * 5_000, b"a." * 50_000, b"[a]\n" * 1_000),
    *(b'"' + b"x" * 1_000_000 + b'"', b"\\ud800", b"1e400", b"nan", b"\x00", b"=" * 1_000, b"{a={a=" * 10_000),
)
"""What parsers stumble over: nesting, digits, length, numbers and characters that are none."""


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """Fail a test whose process grows by more than a gigabyte."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MEMORY_BYTES


def strange(data: bytes, rng: Random) -> bytes:
    """Bytes that were tampered with: a little, or by something monstrous at some place."""
    if rng.random() > 0.1:
        return mangled(data, rng)
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(MONSTROUS) + data[at + rng.randrange(3) :]


def strange_json(plain: object, rng: Random) -> bytes:
    """JSON of a value in which one or two places were replaced, or with bytes that were tampered with."""
    for _ in range(rng.choice((0, 1, 1, 2))):
        plain = twisted(plain, rng)
    data = json.dumps(plain).encode()
    return strange(data, rng) if rng.random() < 0.5 else data


def test_registries_become_events_or_are_refused() -> None:
    def read(data: bytes) -> None:
        registry = parse_registry(data, "league.json")
        config = merge_baselines(LeagueConfig(), registry)
        for event, _ in imported_events(registry, config, dict.fromkeys(("v40", "v50"), "ab" * 32)):
            encode_event(event)

    with soon():
        for rng in cases("registries"):
            survives(read, strange_json(REGISTRY, rng))


@pytest.mark.parametrize("form", FORMATS)
def test_results_are_such_or_refused(form: str) -> None:
    with soon():
        for rng in islice(cases(f"results of {form}"), CASES // (5 if form == "diplomacy" else 1) + 1):
            lines = [strange_json(RESULTS[form], rng) for _ in range(rng.choice((1, 1, 2)))]
            data = b"\n".join(lines)
            data = strange(gzip.compress(data, 1), rng) if rng.random() < 0.1 else data
            _, results = survives(lambda data: parse_results(data, "games.jsonl", form), data) or ("", [])
            for result in results:
                assert all(math.isfinite(seat.score) for seat in result.seats)


def test_settings_of_releases_reach_nothing_or_are_refused(tmp_path: Path) -> None:
    texts = [path.read_bytes() for path in sorted((ROOT / "configs").glob("*.toml"))]
    hostile = b'\n[alarms]\nwebhook = "https://a.example"\n[blobs]\nurl = "/b"\n[history]\ncopy_to = "s3://c/d"\n'
    path = tmp_path / "league.toml"

    def read(_: bytes) -> None:
        config, _ = trusted_settings(load_config(path), ())
        assert find_reaches(config) == []

    with soon():
        for rng in islice(cases("settings of releases"), math.ceil(CASES / 5)):
            path.write_bytes(strange(rng.choice(texts) + hostile, rng))
            survives(read, b"")


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LeagueConfig]:
    """A release's files beside its registry: a base model and an adapter."""
    folder, config = tmp_path_factory.mktemp("release"), load_config(ROOT / "configs" / "nim-tiny.toml")
    make_base_model(folder / "base", config, lambda text, share: None)
    lora = adapters.create(load_base(folder / "base").shape, LoraConfig(4, 8.0), seed=9)
    with torch.no_grad():
        lora.flat_P.add_(0.01)
    adapters.save(lora, folder / "v50")
    return folder, config


def test_folders_of_releases_are_read_or_refused(release: tuple[Path, LeagueConfig], tmp_path: Path) -> None:
    folder, config = release
    checkpoint = {"v50": {"type": "checkpoint", "elo": 1200, "path": "v50", "step": 50}}
    registry = parse_registry(json.dumps({"agents": checkpoint}).encode(), "league.json")
    copy, files = tmp_path / "copy", sorted(path for path in folder.rglob("*") if path.is_file())
    shutil.copytree(folder, copy)
    whole = {path: path.read_bytes() for path in files}
    with soon():
        # Fewer: each loads a model.
        for rng in islice(cases("folders of releases"), math.ceil(CASES / 10)):
            path = rng.choice(files)
            place = copy / path.relative_to(folder)
            data = whole[path]
            if path.suffix == ".json" and rng.random() < 0.5:
                place.write_bytes(strange_json(json.loads(data), rng))
            elif path.suffix == ".safetensors" and rng.random() < 0.7:
                # In the header, where the weights' names, types and places are.
                head = 8 + int.from_bytes(data[:8], "little")
                place.write_bytes(strange(data[:head], rng) + data[head:])
            else:
                place.write_bytes(strange(data, rng))
            try:
                _read(registry, copy, config, tmp_path / "model")
            finally:
                place.write_bytes(data)
                shutil.rmtree(tmp_path / "model", ignore_errors=True)


def _read(registry: ImportedRegistry, folder: Path, config: LeagueConfig, model: Path) -> None:
    def read(_: bytes) -> None:
        _copy_base_model(folder / "base", model, None, config)
        _read_adapters(registry, folder, load_base(model), None)

    survives(read, b"")
