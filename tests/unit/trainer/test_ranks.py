"""Several ranks of one trainer, in real processes: what one would have computed, the same on each, to the bit."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models import BaseShape, make_base
from models.decoder import Decoder
from schemas.config import Plugin, TrainerConfig, convert
from schemas.errors import ConfigError, ModelError
from schemas.trajectories import ModelCall, Trajectory
from trainer.backends import AdapterSpec
from trainer.backends.native import NativeBackend
from trainer.learner import Learner
from trainer.rank_processes import RankGroup, RankSpec
from trainer.ranks import RankComm

WORDS = 40
LORA = AdapterSpec(rank=4, alpha=8.0, targets=())
EVERYTHING: dict[str, Any] = {
    "advantage": Plugin(name="gae"),
    "loss": Plugin(name="tis", settings={"kl": {"weight": 0.1}, "normalize": "sample", "max_clipped": 0.9}),
}
"""Every pass over the model that there is: policy, critic, the weights before the step, the base."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = BaseShape(hidden=16, heads=2, kv_heads=1, head_dim=8, mlp=24, init_std=0.2)
    return make_base(tmp_path_factory.mktemp("base") / "base", [f"w{i}" for i in range(WORDS)], shape)


def rollouts(seed: int, games: int = 6) -> list[Trajectory]:
    rng = np.random.default_rng(seed)

    def step(clock: int) -> ModelCall:
        ids = rng.integers(WORDS, size=rng.integers(6, 30)).tolist()
        prompt, completion = ids[:4], ids[4:]
        allowed = [sorted({token, *rng.integers(WORDS, size=3).tolist()}) for token in completion]
        at = [place for place, tokens in enumerate(allowed) if len(tokens) > 1]
        logprobs = [-float(np.log(len(allowed[place]))) for place in at]
        return ModelCall(prompt, completion, at, logprobs, [allowed[p] for p in at], 0, clock, float(rng.integers(9)))

    return [
        Trajectory(
            f"m-{n}", "g", "main", 0, "AB"[n % 2], "x", [step(0), step(1), step(2)], 3, float(n), float(n % 3), 1
        )
        for n in range(games)
    ]


def plan(base: Path, ranks: int, minibatch: int = 6, **settings: Any) -> RankSpec:
    learner = {"minibatch_sequences": minibatch, "rectangle_tokens": 64, "learning_rate": 1e-2}
    return RankSpec(base, LORA, TrainerConfig(ranks=ranks, learner=learner, **settings))


def learner(plan: RankSpec, ranks: RankComm) -> Learner:
    decoder = Decoder.load(plan.base)
    return Learner(NativeBackend(decoder).new_adapter(LORA, 1), plan.config, 5, ranks)


def state(of: Learner, folder: Path) -> bytes:
    of.save_state(folder)
    return next(folder.glob("*.safetensors")).read_bytes()


@pytest.fixture(scope="class")
def pair(base: Path) -> Iterator[RankGroup]:
    with closing(RankGroup(plan(base, 2))) as group:
        yield group


class TestOfTwo:
    """A process joins one group at a time, so these share theirs."""

    def test_two_ranks_take_the_step_that_one_takes(self, base: Path, pair: RankGroup) -> None:
        alone, shared = learner(plan(base, 1), RankComm()), learner(plan(base, 2), pair.ranks)
        for seed in range(3):
            one, two = alone.step(rollouts(seed), 0.1 * seed), pair.step(shared, rollouts(seed), 0.1 * seed)
            numbers, found = one.metrics(), two.metrics()
            for name in numbers.keys() - {"seconds", "tokens_per_s"}:
                assert found[name] == pytest.approx(numbers[name], rel=1e-3, abs=1e-5), name
        torch.testing.assert_close(shared.adapter.flat_P, alone.adapter.flat_P, rtol=1e-3, atol=1e-5)
        assert not torch.equal(shared.adapter.flat_P, learner(plan(base, 1), RankComm()).adapter.flat_P)

    def test_a_trainer_that_resumes_goes_on_to_the_bit(self, base: Path, pair: RankGroup, tmp_path: Path) -> None:
        through, again = (learner(plan(base, 2), pair.ranks) for _ in range(2))
        pair.step(through, rollouts(1), 0.0)
        state(through, tmp_path / "killed")
        pair.step(through, rollouts(2), 0.5)
        again.load_state(tmp_path / "killed")
        pair.step(again, rollouts(2), 0.5)
        assert state(again, tmp_path / "again") == state(through, tmp_path / "through")

    def test_a_batch_without_use_moves_no_rank(self, base: Path, pair: RankGroup) -> None:
        shared = learner(plan(base, 2), pair.ranks)
        before = shared.adapter.flat_P.detach().clone()
        assert pair.step(shared, [], 0.0).skipped
        assert torch.equal(shared.adapter.flat_P, before)
        assert not pair.step(shared, rollouts(1), 0.0).skipped


def test_critic_and_other_weights_are_shared_and_minibatches_may_be_smaller_than_ranks(base: Path) -> None:
    settings = plan(base, 2, minibatch=1, **EVERYTHING)
    alone = learner(plan(base, 1, minibatch=1, **EVERYTHING), RankComm())
    with closing(RankGroup(settings)) as group:
        shared = learner(settings, group.ranks)
        for seed in range(2):
            one, two = alone.step(rollouts(seed, 3), 0.0), group.step(shared, rollouts(seed, 3), 0.0)
            assert (one.skipped, one.passed_over) == (two.skipped, two.passed_over) == ("", one.passed_over)
            assert two.value_loss == pytest.approx(one.value_loss, rel=1e-3)
        assert alone.critic is not None
        assert shared.critic is not None
        torch.testing.assert_close(shared.critic.flat_C, alone.critic.flat_C, rtol=1e-2, atol=1e-3)
        # Once ranks hold different weights, what they compute together is nobody's gradient.
        with torch.no_grad():
            shared.adapter.flat_P[0] += 1e-3
        with pytest.raises(ModelError, match=r"step 3: ranks \[1\] of 2 hold other weights than rank 0"):
            group.step(shared, rollouts(5, 3), 0.0)


def test_a_rank_that_dies_is_named(base: Path) -> None:
    with closing(RankGroup(plan(base, 2))) as group:
        shared = learner(plan(base, 2), group.ranks)
        group.step(shared, rollouts(1), 0.0)
        group.check_alive()
        (process,) = group.processes
        process.kill()
        with pytest.raises(ModelError, match=r"of 2 ranks of the trainer ended: rank-1 with code -9"):
            group.step(shared, rollouts(2), 0.0)
        with pytest.raises(ModelError, match="rank-1"):
            group.check_alive()


def test_a_rank_that_cannot_begin_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="rank-1 with code 1"):
        RankGroup(plan(tmp_path, 2))


def test_shares_make_up_the_minibatch_and_weigh_about_the_same() -> None:
    length_S = np.array([3, 90, 4, 80, 5, 70, 6, 60, 7])
    sequences_S = np.array([8, 1, 3, 0, 5, 7, 2])
    shares = [RankComm(rank, 3).shard(sequences_S, length_S) for rank in range(3)]
    assert sorted(np.concatenate(shares).tolist()) == sorted(sequences_S.tolist())
    assert [len(share) for share in shares] == [3, 2, 2]
    assert RankComm().shard(sequences_S, length_S) is sequences_S


def test_no_ranks_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.ranks: 0; expected 1 or more"):
        convert({"ranks": 0}, TrainerConfig, "trainer")
