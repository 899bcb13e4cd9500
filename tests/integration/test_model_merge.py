"""A league that begins with an adapter made elsewhere, trains in bfloat16, replaces what it has nothing to learn from,
and gives an agent away as a plain model.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner, Result

from models import adapters, make_base
from models.adapters import LoraConfig
from models.hf import merge_adapter
from models.model_config import read_shape
from ui.cli import app

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"
TARGETS = ("q_proj", "v_proj", "down_proj")

TRAINER = """
[trainer]
dtype = "bfloat16"
reward = { name = "outcome" }
advantage = { name = "step_reward" }
learner.filter_zero_advantage = true
learner.refills = 40
learner.schedule = "cosine"
learner.warmup_updates = 2
learner.recompute_layers = true
"""


def given_adapter(folder: Path) -> Path:
    """One for the model that the league will make: adapters do not depend on a vocabulary."""
    shape = read_shape(make_base(folder / "any", ["a", "b"]))
    lora = adapters.create(shape, LoraConfig(16, 32.0, TARGETS), seed=3)
    with torch.no_grad():
        lora.flat_P.add_(0.05 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(4)))
    adapters.save(lora, folder / "given")
    return folder / "given"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the given adapter and a run that began with it."""
    folder = tmp_path_factory.mktemp("warm")
    text = CONFIG.read_text()
    assert "[trainer]\n" in text
    text = text.replace("[trainer]\n", TRAINER).replace("[rollout]\n", "[rollout]\nahead_steps = 8\n")
    model = f'lora_targets = {list(TARGETS)}\nadapter = "{given_adapter(folder)}"\n'
    text = text.replace("[model]\n", f"[model]\n{model}") if "[model]\n" in text else f"{text}\n[model]\n{model}"
    (folder / "warm.toml").write_text(text)
    command = [
        sys.executable,
        "-m",
        "workers",
        "up",
        "--run",
        str(folder / "run"),
        "--config",
        str(folder / "warm.toml"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


def asked(place: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["model", "export", "--merged", "--run", str(place / "run"), *arguments])


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
@pytest.mark.slow
def test_a_league_begins_with_the_given_adapter_and_its_model_leaves_whole(place: Path) -> None:
    result = asked(place, "main@0", str(place / "merged"))
    assert result.exit_code == 0, result.output
    from peft import PeftModel

    (base,) = [path for path in (place / "run" / "models").glob("*") if path.is_dir()]
    ids = torch.tensor([[3, 4, 5, 6, 7, 8]])
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(base)
        bare = plain(ids).logits
        expected = PeftModel.from_pretrained(plain, place / "given")(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(place / "merged")(ids).logits
    torch.testing.assert_close(merged, expected, atol=1e-5, rtol=0)
    assert (bare - expected).abs().max() > 0.01
    assert (place / "merged" / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()


@pytest.mark.slow
def test_games_that_teach_nothing_make_room_for_others_and_are_counted(place: Path) -> None:
    """Who loses has an advantage of 0 here."""

    def told(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--run", str(place / "run"), "--json"])

    steps = [json.loads(line) for line in told("events", "--type", "GradientStepTaken").stdout.splitlines()]
    facts = [step.get("event", step) for step in steps]
    assert len(facts) == 3
    assert sum(fact["filtered"] for fact in facts) > 0
    assert [fact["accepted"] for fact in facts] == [8, 8, 8]
    ledger = told("ledger")
    assert ledger.exit_code == 0, ledger.output
    assert all(policy["balanced"] for policy in json.loads(ledger.stdout)), ledger.stdout


@pytest.mark.slow
def test_who_has_no_adapter_is_refused_with_the_names_of_those_who_have(place: Path) -> None:
    bot = asked(place, "random_bot", str(place / "bot"))
    assert (bot.exit_code, type(bot.exception).__name__) == (1, "UsageError")
    assert "'bot', without an adapter" in str(bot.exception)
    unknown = asked(place, "main@999", str(place / "bot"))
    assert "main@999: no agent or published version" in str(unknown.exception)
    assert "main@" in str(unknown.exception).partition("checkpoints are")[2]
    assert not (place / "bot").exists()
    assert "exists already" in str(asked(place, "main@0", str(place)).exception)


def test_an_adapter_of_another_base_leaves_no_folder_behind(tmp_path: Path) -> None:
    from models import BaseShape
    from schemas.errors import ModelError

    adapter = given_adapter(tmp_path)
    narrow = make_base(tmp_path / "narrow", ["a"], BaseShape(hidden=32))
    with pytest.raises(ModelError, match=r"an adapter of another base model: .*size mismatch"):
        merge_adapter(narrow, adapter, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_base_of_sixteen_bits_stays_one(tmp_path: Path) -> None:
    adapter = given_adapter(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "any").to(torch.bfloat16)
    model.save_pretrained(tmp_path / "sixteen")
    merged = AutoModelForCausalLM.from_pretrained(merge_adapter(tmp_path / "sixteen", adapter, tmp_path / "out"))
    assert merged.dtype == torch.bfloat16
