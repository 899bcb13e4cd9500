"""What every way of asking a model about a game promises, token by token, for models of whole words and of sub-words.

Games and their ways are found by themselves; an extra that is missing is skipped.
"""

from collections.abc import Iterator
from functools import cache
from random import Random
from typing import NamedTuple

import pytest
from tokenizers import ByteLevelBPETokenizer
from transformers import PreTrainedTokenizerFast

from arena.constraints.token_walk import ANY_TOKEN, Constraint
from arena.games import game_names, make_game
from arena.games.base import Game, GameSpec
from arena.games.texts import Listing, SupportsGrammar, words_of
from arena.prompts import Chat
from models import Tokenizer, make_base
from players.prompt_builder import make_prompter
from players.reply_formats import DecisionPrompt, Prompter
from schemas.config import PromptsConfig
from schemas.errors import ConfigError, GameError
from tests.builders import text_settings

MOST_WHOLE_WORDS = 2_000
"""Tokens of a prompt: a made model's positions, less room for a reply."""
MOST_SUB_WORDS = 8_000
"""The same for large models; the tokenizer here writes more tokens than theirs do."""


class Asked(NamedTuple):
    """A game, and how one kind of model is asked about it."""

    spec: GameSpec
    prompting: Prompter
    most: int


@cache
def positions(name: str) -> list[bytes]:
    """About a dozen saved positions of a random game, over its whole length."""
    spec, saved = made(name, ""), []
    game, rng = spec.new(3), Random(3)
    while moving := game.to_move():
        saved.append(game.save())
        game.apply({seat: game.random_action(seat, rng) for seat in moving})
    return saved[:: max(len(saved) // 12, 1)]


def made(name: str, text: str) -> GameSpec:
    try:
        return make_game(name, {"text": text} if text else {})
    except ConfigError as error:
        if "pip install" in str(error):
            pytest.skip(str(error))
        raise


def modes() -> list[tuple[str, str, str]]:
    texts = [(name, settings.get("text", "")) for name in game_names() for settings in text_settings(name)]
    return [(*mode, kind) for mode in texts for kind in ("whole", "sub")]


@pytest.fixture(scope="module")
def sub_words(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder, library = tmp_path_factory.mktemp("sub"), ByteLevelBPETokenizer()
    library.train_from_iterator(["take the heap and the army to the centre"], vocab_size=300, special_tokens=["<eos>"])
    PreTrainedTokenizerFast(tokenizer_object=library._tokenizer, eos_token="<eos>").save_pretrained(folder)
    return Tokenizer(folder)


@pytest.fixture(scope="module", params=modes(), ids="-".join)
def asked(request: pytest.FixtureRequest, sub_words: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    name, text, kind = request.param
    spec, tokenizer, most = made(name, text), sub_words, MOST_SUB_WORDS
    if kind == "whole":
        folder = make_base(tmp_path_factory.mktemp("made"), spec.text().vocabulary())
        tokenizer, most = Tokenizer(folder), MOST_WHOLE_WORDS
    elif not isinstance(spec.text(), Chat) and not isinstance(words_of(spec), Listing):
        with pytest.raises(ConfigError, match="cannot list its legal replies in words"):
            make_prompter(tokenizer, spec, PromptsConfig())
        pytest.skip("asked in pieces only, which a hub model does not know")
    if isinstance(spec.text(), SupportsGrammar):
        pytest.importorskip("llguidance")
    return Asked(spec, make_prompter(tokenizer, spec, PromptsConfig()), most)


def questions(asked: Asked) -> Iterator[tuple[Game, int, DecisionPrompt]]:
    """Every seat of every position."""
    for saved in positions(asked.spec.name):
        game = asked.spec.load(saved)
        for seat in game.to_move():
            yield game, seat, asked.prompting.make_prompt(game, seat)


def walked(place: Constraint, ids: list[int]) -> list[Constraint]:
    """The places before each token and after the last."""
    places = [place]
    for token in ids:
        allowed = places[-1].allowed()
        assert allowed is ANY_TOKEN or token in allowed
        places.append(places[-1].advance(token))
    return places


def drawn(place: Constraint, rng: Random) -> list[int]:
    ids: list[int] = []
    while allowed := place.allowed():
        assert list(allowed) == sorted(set(allowed))
        ids.append(rng.choice(allowed))
        place = place.advance(ids[-1])
    return ids


def test_every_action_survives_being_said_in_tokens(asked: Asked) -> None:
    rng = Random(1)
    for game, seat, question in questions(asked):
        action = game.random_action(seat, rng)
        heard = question.parse_reply(question.encode_action(action), True, rng)
        assert (heard.action, heard.formatted, heard.illegal) == (action, True, 0)


def test_whatever_may_be_said_is_a_legal_action(asked: Asked) -> None:
    rng = Random(2)
    for game, seat, question in questions(asked):
        assert question.constraint is not None
        ids = drawn(question.constraint, rng)
        heard = question.parse_reply(ids, True, rng)
        assert game.is_legal(seat, heard.action)
        assert heard.formatted
        assert question.parse_reply(ids, True, rng).action == heard.action or heard.illegal


def test_no_completion_begins_another(asked: Asked) -> None:
    rng = Random(3)
    for game, seat, question in questions(asked):
        assert question.constraint is not None
        ids = question.encode_action(game.random_action(seat, rng))
        *before, end = walked(question.constraint, ids)
        assert all(place.allowed() for place in before)
        assert not end.allowed()


def test_prompts_are_of_some_length_and_not_more_than_a_model_reads(asked: Asked) -> None:
    lengths = [len(question.prompt_ids) for _, _, question in questions(asked)]
    assert 0 < min(lengths) <= max(lengths) <= asked.most


def test_question_tells_no_more_than_the_position_that_all_may_see(asked: Asked) -> None:
    """Neither the seed, nor how the position came about, nor what other seats are about to do."""
    for game, seat, question in questions(asked):
        elsewhere = asked.spec.load(game.save())
        for other in elsewhere.to_move():
            elsewhere.random_action(other, Random(other))
        assert asked.prompting.make_prompt(elsewhere, seat).prompt_ids == question.prompt_ids
    for seed in range(4):
        first, other = asked.spec.new(seed), asked.spec.new(seed + 100)
        if first.save() == other.save():
            seat = first.to_move()[0]
            assert (
                asked.prompting.make_prompt(first, seat).prompt_ids
                == asked.prompting.make_prompt(other, seat).prompt_ids
            )


def test_asking_changes_nothing_and_is_repeatable(asked: Asked) -> None:
    for game, seat, question in questions(asked):
        before = game.save()
        again = asked.prompting.make_prompt(game, seat)
        assert again.prompt_ids == question.prompt_ids
        action = game.random_action(seat, Random(4))
        assert again.encode_action(action) == question.encode_action(action)
        assert game.save() == before


def test_what_is_illegal_cannot_be_said(asked: Asked) -> None:
    for _, _, question in questions(asked):
        with pytest.raises(GameError):
            question.encode_action(("nonsense",))


def test_nobody_is_asked_when_the_game_is_over(asked: Asked) -> None:
    game, rng = asked.spec.new(2), Random(2)
    while moving := game.to_move():
        game.apply({seat: game.random_action(seat, rng) for seat in moving})
    with pytest.raises(GameError, match="not to move"):
        asked.prompting.make_prompt(game, 0)


def test_a_question_that_is_a_conversation_leaves_room_as_it_is_told_to(asked: Asked) -> None:
    text = asked.spec.text()
    if not isinstance(text, Chat):
        pytest.skip("not asked as a conversation")
    roomy = text.with_free_tokens(17)
    assert isinstance(roomy, Chat)
    assert (text.free_tokens, roomy.free_tokens) == (0, 17)
    game = asked.spec.new(2)
    seat = game.to_move()[0]
    assert roomy.with_free_tokens(0).messages(game, seat) == text.messages(game, seat) != roomy.messages(game, seat)
