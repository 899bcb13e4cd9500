"""Leagues on families that only transformers and vLLM know: PEFT trains them, vLLM serves their adapters."""

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from arena.environments import make_environment
from inference import Generation, Request, SamplingParameters
from inference.vllm.engine import VllmBackend
from inference.vllm.settings import VllmConfig
from league.history.replay import verify_events
from league.log.base import RecordedEvent
from league.log.connection import connect
from league.log.jetstream import JetStreamLog, flush_and_close
from league.log.server import EmbeddedServer
from models import BaseShape, make_base
from players.policy import make_model_call
from schemas.config import Plugin
from schemas.events import EvaluationFinished, GradientStepTaken, PolicyPublished, WorkerJoined
from schemas.numbers import wilson_interval
from trainer.backends import AdapterSpec, load_backend
from trainer.learner_config import LearnerConfig
from trainer.loss_inputs import recompute_choices

STEPS, GAMES = 24, 160
TIMEOUT_S = 3600
"""Of each part; a busy machine takes twenty times as long as a quiet one."""
GAME = {"seats": 2, "heaps": [3]}
LEAGUES = ("mistral", "gemma3_text")
COMMAND = [sys.executable, "-m", "ui"]
LONG = "phi3, as Phi-4-mini is"
SERVED_ON_A_CPU = [
    *(LONG, "qwen3", "qwen2", "llama", "gemma3_text", "mistral", "phi3", "olmo2", "olmo3", "smollm3", "gpt_neox"),
    "granitemoehybrid",
]
"""vLLM serves adapters of mixtures of experts on GPUs only."""
"""With positions that are scaled in one way up to a length and in another beyond; vLLM takes one for all lengths."""
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
SIZES: dict[str, dict[str, Any]] = {
    "gemma3_text": WINDOWS,
    "olmo3": WINDOWS,
    "granitemoehybrid": {
        "layer_types": ["mamba", "attention"],
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 8,
        "mamba_n_groups": 1,
        "mamba_chunk_size": 8,
        "mamba_expand": 2,
        "num_local_experts": 0,
        "shared_intermediate_size": 96,
    },
    LONG: {
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10_000.0,
            "original_max_position_embeddings": 64,
            "short_factor": [1.0 + 0.05 * pair for pair in range(16)],
            "long_factor": [2.0 + 0.5 * pair for pair in range(16)],
        },
        "original_max_position_embeddings": 64,
    },
}
"""What a family has beside the sizes of all."""


def make_model(folder: Path, family: str) -> Path:
    """A tiny model of a family with random weights and the game's own tokenizer."""
    from transformers import AutoConfig, AutoModelForCausalLM

    spec: Any = make_environment("nim", GAME)
    make_base(folder, spec.text().vocabulary(), BaseShape(max_positions=256), seed=1)
    words = json.loads((folder / "config.json").read_text())["vocab_size"]
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        family.partition(",")[0],
        vocab_size=words,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        **SIZES.get(family, {}),
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def league(folder: Path, model: Path) -> Path:
    file = folder / "league.toml"
    file.write_text(f"""
name = "nim"
seed = 3
game = {{ name = "nim", settings = {{ seats = 2, heaps = [3] }} }}

[agents]
base_model = {{ kind = "base", rating = 1000.0, baseline = true }}
random_bot = {{ kind = "bot", rating = 800.0, baseline = true }}

[model]
base = "{model}"
lora_rank = 8

[inference]
backend = "vllm"
servers = 1
max_adapters = 4

[rollout]
games_in_flight = 16

[evaluation]
every = 50
gatekeeper_games = 4
benchmark_games = {GAMES}

[trainer]
rollouts_per_step = 24
reward = "outcome"
advantage = "leave_one_out"
learner = {{ learning_rate = 3e-2, minibatch_sequences = 40 }}

[stop]
steps = {STEPS}
""")
    return file


def kill_worker(up: subprocess.Popen[bytes], role: str) -> None:
    """Kill a worker of a running league, which may just be starting it again."""
    until = time.monotonic() + TIMEOUT_S
    while up.poll() is None and time.monotonic() < until:
        for process in psutil.Process(up.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words = process.cmdline()
                if "worker" in words and role in words:
                    process.kill()
                    return
        time.sleep(0.1)
    pytest.fail(f"no {role} among the processes of the league")


async def until_step(run: Path, step: int, up: subprocess.Popen[bytes]) -> None:
    """Wait for a gradient step in the events: the status comes every ten seconds, in which a fast machine takes all."""
    until = time.monotonic() + TIMEOUT_S
    with EmbeddedServer(run / "nats") as server:
        client = await connect(server.url, "test")
        log = JetStreamLog(client, "nim", "test")
        while not ((newest := await log.newest(GradientStepTaken)) and newest.event.step >= step):
            assert up.poll() is None, (run.parent / "up.log").read_text()[-2000:]
            assert time.monotonic() < until, (run.parent / "up.log").read_text()[-2000:]
            await asyncio.sleep(0.05)
        await flush_and_close(client)


async def read(run: Path) -> list[RecordedEvent]:
    with EmbeddedServer(run / "nats") as server:
        client = await connect(server.url, "test")
        events = [recorded async for recorded in JetStreamLog(client, "nim", "test").read()]
        await flush_and_close(client)
        return events


@pytest.mark.parametrize("family", SERVED_ON_A_CPU)
def test_vllm_serves_a_familys_adapters_with_the_learners_log_probabilities(family: str, tmp_path: Path) -> None:
    base = make_model(tmp_path / family, family)
    learner = load_backend(Plugin("peft"), base, "cpu", "float32")
    adapter = learner.new_adapter(AdapterSpec(4, 8.0, ()), 7)
    with torch.no_grad():
        adapter.flat_P.add_(0.1 * torch.randn(adapter.flat_P.shape, generator=torch.Generator().manual_seed(3)))
    adapter.save(tmp_path / "adapter", str(base))
    config = VllmConfig(max_loras=2, max_cpu_loras=2, enable_prefix_caching=family != "granitemoehybrid")
    backend = VllmBackend(base, config)
    backend.load_adapter("trained", tmp_path / "adapter")

    async def sample() -> dict[str | None, list[Generation]]:
        requests = {
            name: [
                Request([3, 5, 4, 6, 6 + seed % 3], name, None, SamplingParameters(1.0, seed, 12)) for seed in range(8)
            ]
            for name in (None, "trained")
        }
        return {name: await asyncio.gather(*map(backend.generate, each)) for name, each in requests.items()}

    sampled = asyncio.run(sample())
    asyncio.run(backend.close())
    found = {}
    for name, generations in sampled.items():
        calls = [make_model_call([3, 5, 4, 6, 6 + seed % 3], each, 0, 1.0) for seed, each in enumerate(generations)]
        with torch.no_grad():
            evaluate = adapter.begin(LearnerConfig(), enabled=name is not None).loss_inputs
        found[name], stated = recompute_choices(evaluate, learner.shape, adapter.device, calls)
        assert abs(found[name] - stated).max() < 1e-5
    assert not np.array_equal(found[None], found["trained"])


@pytest.mark.slow
@pytest.mark.parametrize("family", LEAGUES)
def test_a_league_learns_on_peft_and_vllm_through_kills(family: str, tmp_path: Path) -> None:
    run, file = tmp_path / "run", league(tmp_path, make_model(tmp_path / family, family))
    subprocess.run(
        [*COMMAND, "up", "--no-workers", "--config", str(file), "--run", str(run)], check=True, timeout=TIMEOUT_S
    )
    with (tmp_path / "up.log").open("wb") as log:
        up = subprocess.Popen([*COMMAND, "up", "--run", str(run)], stdout=log, stderr=log)
        try:
            asyncio.run(until_step(run, 3, up))
            for role in ("trainer", "rollout"):
                kill_worker(up, role)
            assert up.wait(timeout=TIMEOUT_S) == 0, (tmp_path / "up.log").read_text()[-4000:]
        finally:
            if up.poll() is None:
                up.terminate()
                up.wait(timeout=300)
    history = asyncio.run(read(run))
    events = [recorded.event for recorded in history]
    assert [event.step for event in events if isinstance(event, GradientStepTaken)] == list(range(1, STEPS + 1))
    assert sum(isinstance(event, PolicyPublished) for event in events) == STEPS + 1
    assert sum(isinstance(event, WorkerJoined) and event.role == "trainer" for event in events) >= 2
    results = {
        event.agent: wilson_interval(event.wins, event.games)
        for event in events
        if isinstance(event, EvaluationFinished) and event.suite == "benchmark"
    }
    # Chance is a half: the random bot sits in the other seat.
    assert results["base_model"][0] < 0.5, results
    assert results[f"main@{STEPS}"][0] > 0.55, results
    assert verify_events(history).is_identical
    command = [*COMMAND, "doctor", "--parity", "--run", str(run), "--json"]
    parity = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert parity.stdout, parity.stderr
    for cell in json.loads(parity.stdout)["cells"]:
        # Not the largest difference to 1e-5: where the norms of so small a model divide by almost nothing, the
        # learner's own float32 is up to 2e-4 from its float64 at single tokens, after some trainings.
        assert cell["mean"] < 1e-5, cell
        assert cell["largest"] < 1e-3, cell
