"""Behaviour cloning teaches a made model what a bot says, reproducibly."""

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import torch

from models import make_base
from models.behaviour_cloning import CloningConfig, CloningProgress, Example, clone_behaviour
from models.decoder import Decoder
from schemas.errors import ModelError
from tests.packed_forward import forward_packed

WORDS = [f"w{i}" for i in range(12)]
QUICK = CloningConfig(sequences=600, batch=50, learning_rate=1e-2)


def copying(seed: int = 0) -> Iterator[Example]:
    """A bot that answers with the last word of the question, one of four words, then a full stop."""
    rng = Random(seed)
    while True:
        prompt = [rng.randrange(3, 7) for _ in range(rng.randrange(2, 6))]
        yield Example(prompt, [prompt[-1], 9], [0], [[3, 4, 5, 6]])


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_base(tmp_path / "base", WORDS, seed=1)


def test_bot_is_imitated_and_the_weights_are_written_back(base: Path):
    last = clone_behaviour(base, copying(), QUICK)
    assert last.uniform_loss == pytest.approx(1.386, abs=1e-3)
    assert last.branch_loss < 0.9
    decoder = Decoder.load(base)
    right = 0
    for seed in range(50):
        asked = next(copying(1000 + seed))
        hidden_TD = forward_packed(decoder, torch.tensor(asked.prompt_ids), [len(asked.prompt_ids)])
        right += decoder.logits(hidden_TD[-1:])[0, 3:7].argmax().item() + 3 == asked.completion_ids[0]
    assert right >= 45


def test_equal_examples_make_equal_weights(tmp_path: Path):
    weights = []
    for name in ("a", "b"):
        folder = make_base(tmp_path / name, WORDS, seed=1)
        clone_behaviour(folder, copying(), CloningConfig(sequences=100))
        weights.append((folder / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_cloning_computes_on_one_thread_unless_told_otherwise_and_leaves_the_process_as_it_was(base: Path):
    before, seen = torch.get_num_threads(), set[int]()

    def watched() -> Iterator[Example]:
        for example in copying():
            seen.add(torch.get_num_threads())
            yield example

    torch.set_num_threads(3)
    try:
        for config in (CloningConfig(sequences=50), CloningConfig(sequences=50, threads=2)):
            clone_behaviour(base, watched(), config)
        assert seen == {1, 2}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_progress_tells_rate_and_time_left(base: Path):
    heard: list[CloningProgress] = []
    last = clone_behaviour(base, copying(), CloningConfig(sequences=128), heard.append)
    assert heard[-1] == last
    assert (last.sequences, last.total, last.seconds_left) == (128, 128, 0.0)
    assert last.rate == pytest.approx(128 / last.seconds)


def test_short_iterator_ends_the_lesson_early(base: Path):
    examples = [next(copying()) for _ in range(10)]
    assert clone_behaviour(base, examples, CloningConfig(sequences=1000)).sequences == 10


def test_completions_without_choices_can_be_learned_too(base: Path):
    last = clone_behaviour(base, [Example([3, 4], [5, 6], [], [])] * 8, CloningConfig(sequences=8))
    assert last.branch_loss == 0


def test_no_examples_and_lost_numbers_are_refused(base: Path):
    before = (base / "model.safetensors").read_bytes()
    with pytest.raises(ModelError, match="no examples"):
        clone_behaviour(base, [])
    with pytest.raises(ModelError, match="expected a finite number"):
        clone_behaviour(base, copying(), CloningConfig(sequences=600, learning_rate=1e30, grad_clip=1e30))
    assert (base / "model.safetensors").read_bytes() == before
