"""Free text is trained on like everything else: its branches are over the whole vocabulary, without a list of it."""

from collections import defaultdict
from collections.abc import Callable
from itertools import count
from random import Random

import msgspec
import numpy as np
import pytest
import torch

from arena.games import make_game
from arena.games.base import Action, Game
from models import adapters
from models.decoder import Decoder
from models.model_config import DecoderShape
from schemas.config import Plugin, TrainerConfig
from schemas.trajectories import ModelCall, Trajectory
from trainer.admission import rejection_reason
from trainer.backends.native import NativeAdapter
from trainer.batch import flatten, microbatches
from trainer.learner import Learner
from trainer.loss_inputs import compute_loss_inputs
from trainer.losses import LossInputs
from trainer.report import describe_replies

SHAPE = DecoderShape(
    "qwen3", 30, 16, intermediate_size=24, layers=2, heads=2, kv_heads=1, head_dim=8, tied=True, qk_norm=True
)
EVERYTHING = list(range(SHAPE.vocab_size))


@pytest.fixture(scope="module")
def learner() -> Learner:
    decoder = Decoder.random(SHAPE, seed=0, std=0.2).requires_grad_(False)
    lora = adapters.create(SHAPE, adapters.LoraConfig(rank=4, alpha=8), seed=1)
    with torch.no_grad():
        lora.flat_P.add_(0.1 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(2)))
    return Learner(NativeAdapter(decoder, lora), TrainerConfig(), 5)


def rollout(whole: list[int], share: float, seed: int = 3) -> Trajectory:
    """Steps in which about ``share`` of the branches are over ``whole``, the others over lists."""
    rng = np.random.default_rng(seed)
    steps = []
    for clock in range(6):
        prompt = rng.integers(SHAPE.vocab_size, size=rng.integers(3, 12)).tolist()
        completion = rng.integers(SHAPE.vocab_size, size=rng.integers(3, 9)).tolist()
        branches = sorted(rng.choice(len(completion), size=len(completion) - 1, replace=False).tolist())
        lists = [sorted({completion[at], *rng.integers(SHAPE.vocab_size, size=3).tolist()}) for at in branches]
        allowed = [whole if rng.random() < share else tokens for tokens in lists]
        steps.append(ModelCall(prompt, completion, branches, [-1.0] * len(branches), allowed, 0, clock, 1.0, 0.7))
    return Trajectory("m", "game", "main", 0, "A", "A", steps, 6, 1.0, 0.5, 1)


def terms_and_gradient(learner: Learner, played: Trajectory) -> tuple[list[LossInputs], torch.Tensor]:
    batch = flatten([played], [np.linspace(-1, 1, len(played.steps))])
    learner.adapter.flat_P.grad = None
    found = []
    for chunk in microbatches(batch, np.arange(len(batch)), 40, torch.device("cpu")):
        terms = compute_loss_inputs(learner.adapter.decoder.weights(learner.adapter.lora), chunk)
        (terms.advantage_W * terms.ratio_W() + 0.01 * terms.entropy_W).sum().backward()
        found.append(terms)
    assert learner.adapter.flat_P.grad is not None
    return found, learner.adapter.flat_P.grad.clone()


@pytest.mark.parametrize("share", [0.4, 1.0])
def test_the_whole_vocabulary_is_the_same_listed_and_not(learner: Learner, share: float) -> None:
    unlisted, gradient = terms_and_gradient(learner, rollout([], share))
    listed, expected = terms_and_gradient(learner, rollout(EVERYTHING, share))
    for one, other in zip(unlisted, listed, strict=True):
        torch.testing.assert_close(one.logprob_W, other.logprob_W, atol=1e-5, rtol=0)
        torch.testing.assert_close(one.entropy_W, other.entropy_W, atol=1e-5, rtol=0)
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-4)
    assert float(gradient.abs().max()) > 1e-3


def test_free_text_is_admitted_and_tokens_outside_the_vocabulary_are_not(learner: Learner) -> None:
    played = rollout([], 1.0)
    assert rejection_reason(played, SHAPE.vocab_size) is None
    step = msgspec.structs.replace(played.steps[0], completion_ids=[SHAPE.vocab_size] * 12)
    assert "token ids" in str(rejection_reason(msgspec.structs.replace(played, steps=[step]), SHAPE.vocab_size))


def test_a_step_of_free_text_moves_the_weights(learner: Learner) -> None:
    games = [rollout([], 0.5, seed) for seed in range(4)]
    games = [msgspec.structs.replace(game, match_id=f"m{i}", final_progress=float(i)) for i, game in enumerate(games)]
    before = learner.adapter.flat_P.detach().clone()
    report = learner.step(games)
    assert report.skipped == ""
    assert not torch.equal(before, learner.adapter.flat_P)


def test_replies_that_were_cut_off_are_left_out_where_asked(learner: Learner) -> None:
    played = rollout([], 0.5)
    steps = [msgspec.structs.replace(step, truncated=at < 2) for at, step in enumerate(played.steps)]
    cut = msgspec.structs.replace(played, steps=steps)
    advantages = [np.ones(len(steps))]
    whole, masked = flatten([cut], advantages), flatten([cut], advantages, mask_truncated=True)
    assert (len(whole), len(masked)) == (6, 4)
    assert masked.trajectory_branches_S.tolist() == [len(masked.position_W)] * 4
    config = TrainerConfig(
        learner={"mask_truncated": True}, reward=Plugin("outcome"), advantage=Plugin("constant"), loss=Plugin("dapo")
    )
    masking = Learner(learner.adapter, config, 5)
    report = masking.step([cut])
    assert (report.masked, report.sequences, report.cut) == (2, 4, 0)
    none = msgspec.structs.replace(cut, steps=steps[:2])
    assert "cut off" in masking.step([none]).skipped


def test_a_step_tells_how_alike_and_how_faulty_its_replies_are(learner: Learner) -> None:
    def call(completion_ids: list[int], allowed: list[int], fault: str = "") -> ModelCall:
        places = range(len(completion_ids))
        return ModelCall(
            [1], completion_ids, [*places], [-1.0 for _ in places], [allowed] * len(places), 0, 0, 0.0, fault=fault
        )

    steps = [call([5, 2], []), call([5, 2], []), call([5, 2], [], "illegal"), call([7, 8, 9, 2], [], "truncated")]
    game = Trajectory("m", "game", "main", 0, "A", "A", steps, 6, 1.0, 0.5, 1)
    figures = describe_replies([game])
    assert {name: value for name, value in figures.items() if value} == {
        "reply_opening": 0.75,
        "reply_tokens": 2.5,
        "reply_free_tokens": 2.5,
        "reply_illegal": 0.25,
        "reply_truncated": 0.25,
    }
    assert learner.step([game]).metrics().items() >= figures.items()
    listed = msgspec.structs.replace(game, steps=[call([5], [5, 6]), call([6], [5, 6])])
    assert describe_replies([listed]) == {"reply_opening": 0.5, "reply_tokens": 1.0}


Play = Callable[[Game, int, Random], Action]


def always_bets_and_calls(table: Game, seat: int, rng: Random) -> Action:
    return ("bet" if table.is_legal(seat, ("bet",)) else "call",)


EQUILIBRIUM: Play = make_game("kuhn_poker", {}).bot("kuhn_equilibrium").act
MINIMAX: Play = make_game("tic_tac_toe", {}).bot("tic_tac_toe_minimax").act


@pytest.mark.parametrize(
    ("name", "play", "opponent", "free", "low", "high"),
    [
        # Against itself all is asked at its turn; against others the legal moves tell what it is asked.
        ("kuhn_poker", always_bets_and_calls, None, True, 1.0, 1.0),
        ("kuhn_poker", always_bets_and_calls, "random_bot", False, 1.0, 1.0),
        ("kuhn_poker", EQUILIBRIUM, None, True, 0.4, 0.75),
        ("kuhn_poker", EQUILIBRIUM, "random_bot", False, 0.4, 0.75),
        # Right play is few moves for each position, but not the same for all.
        ("tic_tac_toe", MINIMAX, None, True, 0.0, 0.5),
        ("tic_tac_toe", MINIMAX, "random_bot", False, 0.0, 0.5),
    ],
)
def test_replies_that_are_the_same_at_each_turn_whatever_the_prompt_are_told_from_right_ones(
    name: str, play: Play, opponent: str | None, free: bool, low: float, high: float
) -> None:
    spec, ids, rng, games = make_game(name, {}), defaultdict[str, int](count().__next__), Random(1), []
    for seed in range(200):
        table, hero, calls = spec.new(seed), seed % 2, list[ModelCall]()
        while moving := table.to_move():
            (seat,) = moving
            (move,) = action = (play if seat == hero or opponent is None else spec.bot(opponent).act)(table, seat, rng)
            if seat == hero:
                prompt, allowed = (
                    [ids[piece] for piece in table.sees(seat)],
                    sorted(ids[each] for each in table.moves(seat)),
                )
                calls.append(
                    ModelCall(prompt, [ids[move]], [0], [-1.0], [[] if free else allowed], 0, table.clock, 0.0)
                )
            table.apply({seat: action})
        games.append(Trajectory("m", name, "main", hero, f"P{hero}", "", calls, 9, 0.0, 0.0, 1))
    assert low <= describe_replies(games).get("reply_turn_opening", 0.0) <= high
