"""A base model spread over ranks with FSDP2, in real processes on gloo: the gradients are those of one rank."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from league.log.server import free_port
from models import BaseShape, make_base
from schemas.config import Plugin, TrainerConfig
from schemas.errors import ConfigError, ModelError
from tests.unit.trainer.test_ranks import rollouts
from trainer.backends import AdapterSpec, load_backend
from trainer.backends.peft import PeftBackend
from trainer.learner import Learner
from trainer.rank_processes import RankGroup, RankSpec, TorchrunRank
from trainer.ranks import RankComm, make_rendezvous_store

SHARDED = Plugin(name="peft", settings={"sharded": True})
WHOLE, NATIVE = Plugin(name="peft"), Plugin(name="native")
LORA = AdapterSpec(rank=4, alpha=8.0, targets=())
# Passes with gradients and without, with the adapter and without.
KL = Plugin(name="tis", settings={"kl": {"weight": 0.1}})


def make(folder: Path, tied: bool) -> Path:
    shape = BaseShape(hidden=16, heads=2, kv_heads=1, head_dim=8, mlp=24, init_std=0.2, tied=tied)
    return make_base(folder / "base", [f"w{i}" for i in range(40)], shape)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("sharded"), tied=False)


def config(ranks: int, backend: Plugin = SHARDED, **learner: object) -> TrainerConfig:
    settings = {"minibatch_sequences": 6, "rectangle_tokens": 64, "learning_rate": 1e-2} | learner
    plugins = {"backend": backend, "loss": KL, "advantage": Plugin(name="episodic")}
    return TrainerConfig(ranks=ranks, learner=settings, rank_timeout_s=240.0, **plugins)


def gradient_and_weights(learner: Learner) -> tuple[torch.Tensor, torch.Tensor]:
    assert learner.adapter.flat_P.grad is not None
    return learner.adapter.flat_P.grad.clone(), learner.adapter.flat_P.detach().clone()


def check_against_one_rank(base: Path, ranks: int, games: int, tmp_path: Path, **options: object) -> None:
    """One step each with the same weights: every gradient, and a whole step after a resume, to the bit."""
    settings = {"epochs": 1, "minibatch_sequences": 1_000, "rectangle_tokens": 32} | options
    alone = Learner(load_backend(WHOLE, base, "cpu", "float32").new_adapter(LORA, 1), config(1, WHOLE, **settings), 5)
    plan = RankSpec(base, LORA, config(ranks, **settings))
    backend = load_backend(plan.config.backend, base, "cpu", "float32")
    assert isinstance(backend, PeftBackend)
    whole = sum(parameter.numel() for parameter in backend.model.parameters())
    with closing(RankGroup(plan, backend)) as group:
        held = sum(getattr(each, "_local_tensor", each).numel() for each in backend.model.parameters())
        assert held < whole * (0.9 if ranks == 2 else 0.7)
        shared = Learner(backend.new_adapter(LORA, 1), plan.config, 5, group.ranks)
        for seed in range(2):
            one, many = alone.step(rollouts(seed, games), 0.0), group.step(shared, rollouts(seed, games), 0.0)
            assert (one.skipped, many.skipped) == ("", "")
            (expected, own), (found, _) = gradient_and_weights(alone), gradient_and_weights(shared)
            assert float((found - expected).abs().max()) < 1e-6
            assert float(expected.norm()) > 1e-3
            # Adam enlarges rounding: the next gradients are compared at the same weights.
            shared.save_state(tmp_path / "before")
            with torch.no_grad():
                shared.adapter.flat_P.copy_(own)
            group._synced = None
        # A step that was lost with a rank is taken again from the recorded state.
        shared.save_state(tmp_path / "recorded")
        group.step(shared, rollouts(7), 0.0)
        _, lost = gradient_and_weights(shared)
        again = Learner(backend.new_adapter(LORA, 1), plan.config, 5, group.ranks)
        again.load_state(tmp_path / "recorded")
        group.step(again, rollouts(7), 0.0)
        assert torch.equal(gradient_and_weights(again)[1], lost)
        again.save_adapter(tmp_path / "adapter")
    # What is written is a plain adapter.
    fresh = load_backend(WHOLE, base, "cpu", "float32").new_adapter(LORA, 0)
    fresh.load(tmp_path / "adapter")
    assert torch.equal(fresh.flat_P.detach(), lost)


def test_two_ranks_give_the_gradient_of_one(base: Path, tmp_path: Path) -> None:
    check_against_one_rank(base, 2, 6, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "games"), [("packed", 6), ("rectangles", 1)])
def test_four_ranks_give_the_gradient_of_one(layout: str, games: int, tmp_path: Path) -> None:
    """With a head that is the embedding, recomputed layers, and a batch of fewer sequences than ranks."""
    base = make(tmp_path, tied=True)
    check_against_one_rank(base, 4, games, tmp_path, recompute_layers=True, layout=layout)


def torchrun_variables(rank: int, count: int, port: int) -> dict[str, str]:
    """Those of a node with one process."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
    }


OTHER_RANK = (
    "from trainer.rank_processes import TorchrunRank, run_torchrun_rank; run_torchrun_rank(TorchrunRank.read(), 240.0)"
)


def test_ranks_of_torchrun_take_steps_and_a_lost_one_is_an_error(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    command = [sys.executable, "-c", OTHER_RANK]
    other = subprocess.Popen(command, env=os.environ | torchrun_variables(1, 2, port), stderr=subprocess.DEVNULL)
    try:
        for name, value in torchrun_variables(0, 2, port).items():
            monkeypatch.setenv(name, value)
        plan = RankSpec(base, LORA, config(2, NATIVE))
        backend = load_backend(plan.config.backend, base, "cpu", "float32")
        with closing(RankGroup(plan, backend)) as group:
            assert group.processes == []
            shared = Learner(backend.new_adapter(LORA, 1), plan.config, 5, group.ranks)
            group.step(shared, rollouts(0), 0.0)
            alone = Learner(backend.new_adapter(LORA, 1), config(1, NATIVE), 5)
            alone.step(rollouts(0), 0.0)
            torch.testing.assert_close(shared.adapter.flat_P, alone.adapter.flat_P, rtol=1e-3, atol=1e-5)
            other.kill()
            other.wait()
            with pytest.raises(ModelError, match=r"of 2 ranks of the trainer one was lost"):
                group.step(shared, rollouts(1), 0.0)
    finally:
        other.kill()
        other.wait()


def test_a_rank_that_does_not_come_is_named() -> None:
    store = make_rendezvous_store(3, timeout_s=5.0)
    store.set("league/rank/1", b"here")
    with pytest.raises(ModelError, match=r"ranks \[2\] of 3 of the trainer did not connect within 0\.05 s"):
        RankComm.connect(0, 3, store, timeout_s=0.05)


def test_another_number_of_processes_than_configured_is_refused(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in torchrun_variables(0, 4, 1).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"trainer\.ranks: 2; torchrun started 4, expected the same number"):
        RankGroup(RankSpec(base, LORA, config(2)))
    monkeypatch.delenv("LOCAL_RANK")
    with pytest.raises(ConfigError, match="LOCAL_RANK"):
        TorchrunRank.read()
    with pytest.raises(ConfigError, match=r"the environment: WORLD_SIZE is set, but not .*'four'"):
        TorchrunRank.read({"WORLD_SIZE": "four"})


def test_settings_that_cannot_be_combined_are_refused(base: Path) -> None:
    backend = load_backend(SHARDED, base, "cpu", "float32")
    with pytest.raises(ConfigError, match=r"sharded: true with trainer\.ranks 1; expected 2 or more"):
        RankGroup(RankSpec(base, LORA, config(1)), backend)
    with pytest.raises(ConfigError, match=r"trainer\.backend\.settings\.sharded"):
        load_backend(Plugin(name="peft", settings={"sharded": True, "quantization": "4bit"}), base, "cpu", "float32")
