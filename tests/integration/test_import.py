"""A foreign registry becomes a league that opens, plays and trains on."""

import asyncio
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from league.history.registry_import import parse_registry
from league.integrity.snapshots import load_state_at
from league.run import Run
from lifecycle.import_registry import _unknown_bots
from lifecycle.league_models import make_base_model
from lifecycle.open import open_league
from models import adapters, load_base
from models.adapters import LoraConfig
from models.model_config import read_shape
from schemas.config import LeagueConfig, Plugin, load_config
from schemas.errors import ExitCode, ModelError, UsageError
from ui.cli import app

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"
AGENTS: dict[str, Any] = {
    "base_model": {"type": "baseline", "elo": 1010, "matches": 0, "path": None},
    "random_bot": {"type": "baseline", "elo": 790, "matches": 0, "path": None},
    "v40": {"type": "checkpoint", "elo": 1100, "path": "run/v40", "step": 40, "parent": "base_model"},
    "v50": {
        "type": "checkpoint",
        "elo": 1200,
        "path": "run/v50",
        "step": 50,
        "parent": "v40",
        "created_at": "2025-12-06T12:00:00",
    },
}
HISTORY = [
    {"step": 50, "p1": "v50", "p2": "v40", "result": 1},
    {"step": 50, "p1": "v50", "p2": "random_bot", "result": "draw"},
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, an adapter for it, and settings that name the model."""
    folder = tmp_path_factory.mktemp("import")
    config = load_config(CONFIG)
    make_base_model(folder / "base", config, lambda text, share: None)
    lora = adapters.create(load_base(folder / "base").shape, LoraConfig(16, 32.0), seed=9)
    with torch.no_grad():
        lora.flat_P.add_(0.01)
    adapters.save(lora, folder / "run" / "v50")
    (folder / "run" / "v50" / "README.md").write_text("no part of the adapter")
    settings = CONFIG.read_text().replace("[model]", f"[model]\nbase = {str(folder / 'base')!r}")
    (folder / "settings.toml").write_text(settings)
    (folder / "longer.toml").write_text(settings.replace("steps = 3", "steps = 51"))
    return folder


def written(folder: Path, **changes: Any) -> Path:
    told = {"agents": AGENTS, "history": HISTORY, "metadata": {"best_agent": "v50"}, **changes}
    path = folder / "league.json"
    path.write_text(json.dumps(told))
    return path


def imported(file: Path, home: Path, run: Path, *more: str) -> Result:
    arguments = ["import", str(file), "--config", str(home / "settings.toml"), "--run", str(run), *more]
    return CliRunner().invoke(app, arguments)


@pytest.fixture(scope="module")
def run(home: Path) -> Path:
    result = imported(written(home), home, home / "new", "--json")
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert (made["agents"], made["checkpoints"], made["adapters"], made["matches"]) == (4, 2, 1, 2)
    assert list(made["without"]) == ["v40"]
    assert made["without"]["v40"].endswith("v40: does not exist")
    assert "names no base model" in made["notes"]["v50"][0]
    return home / "new"


def answer(*arguments: str, run: Path) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json", "--run", str(run)])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_leaderboard_stands_as_the_registry_says(run: Path) -> None:
    board = {row["agent"]: row for row in answer("leaderboard", run=run)}
    ratings = {"main@50": 1200.0, "main@40": 1100.0, "base_model": 1010.0, "random_bot": 790.0}
    assert {agent: row["online"] for agent, row in board.items()} == ratings
    assert {agent for agent, row in board.items() if not row["active"]} == {"main@40"}


def test_events_carry_the_registrys_times(run: Path) -> None:
    lines = CliRunner().invoke(app, ["events", "--json", "--type", "CheckpointAdded", "--run", str(run)]).stdout
    newest = json.loads(lines.splitlines()[1])
    assert (newest["event"]["agent"], newest["time"]) == ("main@50", "2025-12-06T12:00:00+00:00")
    assert newest["producer"] == "import"


def test_imported_matches_are_shown_as_such_and_have_nothing_to_explain(run: Path) -> None:
    value = answer("match", "show", "import-0", run=run)
    assert value["finished"]["event"]["purpose"] == "imported"
    assert "its purpose is 'imported'" in value["problem"]
    refused = CliRunner().invoke(app, ["match", "explain", "import-0", "--run", str(run)])
    assert "nothing to explain" in str(refused.exception)


def test_what_was_imported_is_sound_and_not_archived_yet(run: Path) -> None:
    result = CliRunner().invoke(app, ["verify", "--json", "--run", str(run)])
    assert result.exit_code == ExitCode.SUCCESS, result.output
    found = json.loads(result.stdout)
    assert (found["sound"], found["segments"], found["blobs"]["faults"]) == (True, 0, [])


@pytest.mark.slow
def test_the_league_trains_on_from_the_imported_adapter_and_never_draws_the_one_without(home: Path, run: Path) -> None:
    command = [sys.executable, "-m", "ui", "up", "--run", str(run), "--config", str(home / "longer.toml")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "identical" in result.stdout
    steps = answer("sql", "SELECT step FROM gradient_steps ORDER BY step", run=run)
    assert [row["step"] for row in steps] == [51]
    heroes = answer("sql", "SELECT DISTINCT hero FROM opponents_sampled", run=run)
    assert "main@50" in {row["hero"] for row in heroes}
    played = answer(
        "sql",
        "SELECT DISTINCT agent FROM match_seats JOIN matches USING (match_id) WHERE purpose <> 'imported'",
        run=run,
    )
    agents = {row["agent"] for row in played}
    assert {"main@50", "main@51"} <= agents
    assert "main@40" not in agents
    log = (run / "logs" / "trainer-1.log").read_text()
    assert "adapter loaded, optimiser moments are fresh" in log
    assert answer("verify", run=run)["sound"]


def refused(file: Path, home: Path, target: Path) -> BaseException:
    before = set(target.parent.iterdir())
    result = imported(file, home, target)
    assert result.exception is not None
    assert set(target.parent.iterdir()) == before
    return result.exception


def test_a_file_that_is_not_sound_writes_nothing(home: Path, tmp_path: Path) -> None:
    wrong = written(tmp_path, history=[*HISTORY, {"p1": "v50", "p2": "ghost", "result": 1}])
    assert "history[2].p2: 'ghost' is not among the agents" in str(refused(wrong, home, tmp_path / "new"))


def test_an_existing_folder_is_refused(home: Path, run: Path) -> None:
    error = refused(home / "league.json", home, run)
    assert isinstance(error, UsageError)
    assert "exists already" in str(error)


def test_a_newest_adapter_of_another_rank_is_refused_with_the_settings_to_change(home: Path, tmp_path: Path) -> None:
    small = adapters.create(load_base(home / "base").shape, LoraConfig(4, 8.0), seed=9)
    adapters.save(small, tmp_path / "run" / "v50")
    error = refused(written(tmp_path), home, tmp_path / "new")
    assert isinstance(error, UsageError)
    assert "agents.v50: its adapter has rank 4 and alpha 8" in str(error)


def test_a_damaged_adapter_is_as_good_as_none_unless_it_is_the_only_one(home: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "v50").mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        whole = (home / "run" / "v50" / name).read_bytes()
        (tmp_path / "run" / "v50" / name).write_bytes(whole if name.endswith("json") else whole[:-100])
    error = refused(written(tmp_path), home, tmp_path / "new")
    assert isinstance(error, ModelError)
    assert "agents.v50" in str(error)
    assert "not a readable safetensors file" in str(error)
    shutil.copytree(home / "run" / "v50", tmp_path / "run" / "v40")
    result = imported(written(tmp_path), home, tmp_path / "new")
    assert result.exit_code == 0
    assert "v50 will not be drawn" in result.stdout
    assert "not a readable safetensors file" in result.stdout


def test_an_adapter_of_another_base_model_is_refused(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home / "run" / "v50", tmp_path / "run" / "v50")
    path = tmp_path / "run" / "v50" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": "Qwen/Qwen3-0.6B"}))
    assert "base_model_name_or_path is 'Qwen/Qwen3-0.6B'" in str(refused(written(tmp_path), home, tmp_path / "new"))


# PEFT asks transformers under a name that transformers is about to drop.
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_of_a_family_that_only_transformers_computes_are_imported(home: Path, tmp_path: Path) -> None:
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    base = shutil.copytree(home / "base", tmp_path / "base")
    sizes = {"vocab_size": read_shape(base).vocab_size, "hidden_size": 64, "num_hidden_layers": 1, "head_dim": 32}
    heads = {
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "max_position_embeddings": 256,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma3_text", **sizes, **heads))
    model.save_pretrained(base)
    config = PeftConfig(r=16, lora_alpha=32.0, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    get_peft_model(model, config).save_pretrained(tmp_path / "run" / "v50")
    text = CONFIG.read_text().replace("[model]", f"[model]\nbase = {str(base)!r}")
    (tmp_path / "settings.toml").write_text(text + '\n[inference]\nbackend = "vllm"\n')
    result = imported(written(tmp_path), tmp_path, tmp_path / "new", "--json")
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert (made["adapters"], list(made["without"])) == (1, ["v40"])


def test_an_import_makes_no_model_and_up_makes_it(tmp_path: Path) -> None:
    file = written(tmp_path)
    command = ["import", str(file), "--config", str(CONFIG), "--run", str(tmp_path / "new")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert "v50 will not be drawn" in result.stdout
    assert "model.base" in result.stdout
    assert not (tmp_path / "new" / "model").exists()
    assert {row["agent"] for row in answer("leaderboard", run=tmp_path / "new")} >= {"main@50", "base_model"}

    async def reopen() -> str:
        run = Run(tmp_path / "new")
        async with run.connect("test") as client:
            history = await open_league(run, client, None, lambda text, share: None)
            await open_league(run, client, None, lambda text, share: None)
            return (await load_state_at(history, run.open_blob_store(client))).model

    model = asyncio.run(reopen())
    assert model.startswith("artifact:")
    [changed] = (
        CliRunner()
        .invoke(app, ["events", "--json", "--type", "LeagueConfigured", "--run", str(tmp_path / "new")])
        .stdout.splitlines()
    )
    assert json.loads(changed)["event"]["model"] == model
    # The blob is held from now on, and nothing contradicts anything.
    found = json.loads(CliRunner().invoke(app, ["verify", "--json", "--run", str(tmp_path / "new")]).stdout)
    assert (found["sound"], found["blobs"]["faults"]) == (True, [])


def test_baselines_that_no_bot_of_the_game_is_named_after_join_as_external_agents() -> None:
    agents = {name: {"type": "baseline", "elo": 900} for name in ("base_model", "chaos_bot", "dumb_bot")}
    told = parse_registry(json.dumps({"agents": agents}).encode(), "league.json")
    assert _unknown_bots(told, LeagueConfig()) == ["dumb_bot"]
    assert _unknown_bots(told, LeagueConfig(game=Plugin("nim"))) == ["chaos_bot", "dumb_bot"]
