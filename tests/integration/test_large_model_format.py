"""A sub-word model with a chat template plays and learns in a whole league: JSON in, free analysis and tags out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from arena.games import make_game
from arena.prompts import messages_of

SETTINGS = {"text": "egocentric", "analysis": 6, "max_year": 1901}
TEMPLATE = "{% for message in messages %}{{ message.content }}\n\n{% endfor %}"
LEAGUE = """
name = "large"
seed = 3

[game]
name = "diplomacy"
settings = {{ text = "egocentric", analysis = 6, max_year = 1901 }}

[agents]
base_model = {{ kind = "base", rating = 1000.0, baseline = true }}
random_bot = {{ kind = "bot", rating = 800.0, baseline = true }}

[model]
base = "{model}"

[matchmaking.sampler]
name = "pfsp"
settings = {{ mirror = 0, peers = 0, exploitable = 0, baselines = 1, baseline_weights = {{ random_bot = 1.0 }} }}

[rollout]
games_in_flight = 2

[evaluation]
every = 1
gatekeepers = ["random_bot"]
gatekeeper_games = 1
benchmark_opponents = ["random_bot"]
benchmark_games = 1

[trainer]
rollouts_per_step = 2

[stop]
steps = 1
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder, game = tmp_path / "model", make_game("diplomacy", SETTINGS)
    tokenizer = ByteLevelBPETokenizer()
    asked = messages_of(game.words(), game.new(0), 0)
    tokenizer.train_from_iterator([part.content for part in asked] * 3, vocab_size=700, special_tokens=["<eos>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer._tokenizer, eos_token="<eos>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=700,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=4096,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def test_free_analysis_and_tagged_orders_are_trained_on_as_they_were_sampled(model: Path, tmp_path: Path):
    (tmp_path / "league.toml").write_text(LEAGUE.format(model=model))

    def league(*arguments: str) -> str:
        command = [sys.executable, "-m", "workers", *arguments, "--run", str(tmp_path / "run")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    assert "identical" in league("up", "--config", str(tmp_path / "league.toml"))
    (line,) = league("events", "--type", "GradientStepTaken", "--json").splitlines()
    step = json.loads(line)["event"]
    assert (step["accepted"], step["refused"]) == (2, 0)
    assert step["metrics"]["sampler_gap"] < 1e-5, "the learner sees the distribution that was sampled from"
    assert not league("events", "--type", "MatchFailed", "--json")
