"""A model in a seat plays legal games and keeps what it needs to learn from them."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from arena.constraints.token_walk import read_choices
from arena.games import make_game
from arena.games.base import GameSpec
from arena.match import BotPlayer, play
from inference import InferenceBackend, SamplingParameters, make_backend
from models import Tokenizer, make_base
from models.behaviour_cloning import CloningConfig, Example, clone_behaviour
from players.policy import PolicyPlayer, make_example
from players.prompt_builder import make_constrained_prompter
from players.reply_formats import get_token_walks
from schemas.errors import ModelError


@pytest.fixture(scope="module")
def nim() -> GameSpec:
    return make_game("nim", {})


@pytest.fixture(scope="module")
def base(nim: GameSpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), nim.text().vocabulary())


def player(backend: InferenceBackend, base: Path, nim: GameSpec, **sampling: float) -> PolicyPlayer:
    return PolicyPlayer(
        backend,
        make_constrained_prompter(Tokenizer(base), nim.text()),
        lambda: (7, None),
        SamplingParameters(**sampling),
    )


def games(base: Path, nim: GameSpec, count: int) -> list[tuple[bytes, list[PolicyPlayer]]]:
    """Model against model and bot, all at once."""

    async def run() -> list[tuple[bytes, list[PolicyPlayer]]]:
        backend = make_backend("local", base)
        bot = BotPlayer(nim.bot("random_bot"))

        async def one(seed: int) -> tuple[bytes, list[PolicyPlayer]]:
            model = player(backend, base, nim, temperature=0.8)
            others = [player(backend, base, nim)] if seed % 2 else [bot]
            game = nim.new(seed)
            seated = [model, *others, *[bot] * len(nim.seats)][: len(nim.seats)]
            await play(game, seated, seed)
            return game.record(), [p for p in seated if isinstance(p, PolicyPlayer)]

        done = await asyncio.gather(*map(one, range(count)))
        await backend.close()
        return done

    return asyncio.run(run())


def test_models_play_legal_games_to_their_end(base: Path, nim: GameSpec):
    for record, models in games(base, nim, 20):
        assert not nim.replay(record).to_move()
        assert all(model.model_calls for model in models[:1])


def test_steps_hold_what_was_allowed_and_sampled(base: Path, nim: GameSpec):
    for _, models in games(base, nim, 10):
        for step in models[0].model_calls:
            assert (step.version, step.temperature) == (7, 0.8)
            assert len(step.branches) == len(step.logprobs) == len(step.allowed)
            for branch, allowed in zip(step.branches, step.allowed, strict=True):
                assert step.completion_ids[branch] in allowed
                assert allowed == sorted(allowed)


def test_same_seeds_play_the_same_games(base: Path, nim: GameSpec):
    assert [record for record, _ in games(base, nim, 6)] == [record for record, _ in games(base, nim, 6)]


def test_newly_published_version_serves_the_next_decision(base: Path, nim: GameSpec):
    published = iter([(1, None), (2, None)])

    async def run() -> list[int]:
        backend = make_backend("local", base)
        model = PolicyPlayer(
            backend,
            make_constrained_prompter(Tokenizer(base), nim.text()),
            lambda: next(published),
            SamplingParameters(),
        )
        for seed in range(2):
            await model.act(nim.new(0), nim.new(0).to_move()[0], seed)
        await backend.close()
        return [step.version for step in model.model_calls]

    assert asyncio.run(run()) == [1, 2]


def test_completion_that_is_cut_off_is_an_error(base: Path, nim: GameSpec):
    async def run() -> None:
        backend = make_backend("local", base)
        try:
            await player(backend, base, nim, max_tokens=1).act(nim.new(0), nim.new(0).to_move()[0], 0)
        finally:
            await backend.close()

    with pytest.raises(ModelError, match="has not ended"):
        asyncio.run(run())


def test_bots_decisions_become_examples_that_a_model_can_learn(nim: GameSpec, tmp_path: Path):
    folder = make_base(tmp_path / "base", nim.text().vocabulary())
    tokenizer, bot, text = Tokenizer(folder), nim.bot("random_bot"), nim.text()
    examples: list[Example] = []
    for seed in range(20):
        game = nim.new(seed)
        while moving := game.to_move():
            actions = {seat: bot.act(game, seat, Random(seed)) for seat in moving}
            examples += [make_example(tokenizer, text, game, seat, action) for seat, action in actions.items()]
            walk = get_token_walks(tokenizer)(text.completions(game, moving[0]))
            last = examples[-len(moving)]
            assert read_choices(walk, last.completion_ids) == (last.branches, last.allowed)
            game.apply(actions)
    assert clone_behaviour(folder, examples, CloningConfig(sequences=64)).sequences == 64


def test_sub_word_tokenizer_of_a_hub_model_plays_legal_games_too(nim: GameSpec, tmp_path: Path):
    from tokenizers import Tokenizer as Library
    from tokenizers import models, pre_tokenizers, trainers

    folder = make_base(tmp_path / "base", [f"w{index}" for index in range(277)])
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    library.train_from_iterator([" ".join(nim.text().vocabulary())], trainer)
    library.save(str(folder / "tokenizer.json"))
    assert max(len(Tokenizer(folder).encode_piece(piece)) for piece in nim.text().vocabulary()) > 1
    for record, players in games(folder, nim, 10):
        assert not nim.replay(record).to_move()
        assert players[0].model_calls
