"""``league arena`` trains a model on a registered arena, plays it with a server, or says why it cannot."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from arena.environments import arena_names
from schemas.errors import ConfigError, EpisodeError, LeagueError, ModelError, RemoteError, UsageError
from ui.cli import app

TIMES = ("tokens_per_s", "seconds", "left_s")


def read_adapter(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    return json.loads((folder / "adapter_config.json").read_text()), load_file(folder / "adapter_model.safetensors")


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["arena", *words])
    if result.exception is not None:
        raise result.exception
    return result.stdout


def local(url: str, *words: str) -> str:
    return run("debate", "--local", "--port", url.split(":")[2].split("/")[0], "--model", "m", *words)


def test_the_list_names_every_arena():
    assert run("--list").split() == arena_names()


def test_an_arena_is_played_with_a_server_of_this_machine(chat_server, say):
    server = chat_server(lambda *_: say("Winner: Aff"))
    out = local(server.url, "--num-steps", "2", "--batch-size", "1", "--settings", "rounds=1", "--json")
    batches = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    assert [batch["step"] for batch in batches] == [0, 1]
    assert all(batch["counts"]["without_tokens"] == 2 for batch in batches)
    assert {asked.body["model"] for asked in server.asked} == {"m"}


def test_items_and_sizes_reach_the_arena_and_another_model_judges(chat_server, say):
    server = chat_server(lambda *_: say("Winner: Aff"))
    words = ("Cats rule", "--batch-size", "1", "--solver-rollouts", "2", "--judge-model", "wise", "--json")
    (batch,) = [
        json.loads(line)
        for line in local(server.url, *words, "--settings", "rounds=1", "--num-steps", "1").splitlines()
        if line.startswith("{")
    ]
    assert batch["counts"]["episodes"] == 2
    asked = [(request.body["model"], "Cats rule" in str(request.body["messages"])) for request in server.asked]
    assert sorted(asked) == [("m", True)] * 4 + [("wise", True)] * 4


CONFIG = """
[game]
name = "word_problems"
settings = { first = 2, group_size = 4, problems_per_batch = 2, max_tokens = 6 }

[model]
cloning = { sequences = 96, batch = 32 }

[model.shape]
hidden = 32
layers = 1
heads = 2
kv_heads = 1
head_dim = 16
mlp = 64
max_positions = 256
init_std = 0.02

[trainer]
advantage = { name = "group_relative" }
loss = { name = "ppo_clip", settings = { entropy = 0.0 } }
"""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """A configuration whose model is made in a second, and the run that keeps it."""
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "arena.toml").write_text(CONFIG)
    return ("--config", str(folder / "arena.toml"), "--run", str(folder / "run"), "--json")


def steps(*words: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in run(*words).splitlines() if line.startswith("{")]
    return [{key: value for key, value in step.items() if key not in TIMES} for step in found]


def test_a_model_that_is_made_once_is_trained_on_what_it_plays(tiny, tmp_path):
    saved = tmp_path / "adapter"
    first = steps("word_problems", *tiny, "--num-steps", "3", "--save", str(saved))
    assert [step["policy_version"] for step in first] == [0, 1, 2]
    assert all(step["training"]["sampler_gap"] < 1e-3 for step in first if not step["skipped"])
    made = list((Path(tiny[3]) / "arenas").iterdir())
    written = made[0].stat().st_mtime_ns
    config, weights = read_adapter(saved)
    assert config["base_model_name_or_path"] == str(made[0])
    assert any(weight.abs().max() > 0 for name, weight in weights.items() if "lora_B" in name)
    again = steps("word_problems", *tiny, "--num-steps", "3")
    assert [step["rewards"] for step in again] == [step["rewards"] for step in first]
    assert [made[0]] == list(made[0].parent.iterdir())
    assert made[0].stat().st_mtime_ns == written
    log = tmp_path / "run.log"
    few = ("--num-steps", "1", "--seed", "3", "--batch-size", "1", "--no-train", "--log", str(log))
    other = steps("word_problems", *tiny, *few)
    assert [json.loads(line)["event"] for line in log.read_text().splitlines()].count("model call") == 4
    assert (other[0]["counts"]["episodes"], other[0]["training"]) == (4, {})
    assert [made[0]] == list(made[0].parent.iterdir())


def test_what_was_saved_is_not_written_over(tiny, tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "mine").touch()
    with pytest.raises(UsageError, match="something is there"):
        run("word_problems", *tiny, "--save", str(tmp_path / "adapter"))


def test_a_server_whose_every_reply_is_empty_ends_the_run_with_the_reason(chat_server, say):
    server = chat_server(lambda *_: say(""))
    with pytest.raises(EpisodeError, match="it is empty"):
        local(server.url, "--settings", "rounds=1", "--batch-size", "1")


@pytest.mark.parametrize(
    ("words", "error", "why"),
    [
        ((), UsageError, "no name"),
        (("chess960", "--model", "x"), ConfigError, "no arena is called"),
        (("debate", "--settings", "rounds"), UsageError, "KEY=VALUE"),
        (("debate", "--settings", "heat=1", "--model", "x"), ConfigError, "heat"),
        (("debate", "--hosted"), ConfigError, "model 'openai/gpt-4o-mini': no key"),
        (("debate", "--hosted", "--model", "x"), ConfigError, "OPENROUTER_API_KEY"),
        (("debate", "--hosted", "--local"), UsageError, "one of them"),
        (("debate", "--model", "./nowhere"), ModelError, "no folder"),
        (("debate", "--judge-model", "gpt"), UsageError, "expected 'same'"),
        (("debate", "--save", "there", "--no-train"), UsageError, "training is off"),
        (("debate", "a", "--questions", "[]"), UsageError, "one of them"),
        (("negotiation", "a topic"), UsageError, "takes no items"),
        (("proposer_solver", "--questions", "no"), UsageError, "JSON list"),
        (("debate", "--local", "--port", "1"), RemoteError, "no connection"),
    ],
)
def test_bad_input_is_told_in_words(monkeypatch, words: tuple[str, ...], error: type[LeagueError], why: str):
    for name in ("OPENROUTER_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(error, match=why):
        run(*words)
