"""The text of every token, as the libraries that write tokenizers mean it."""

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.constraints.vocabulary import ALL_BYTES, Vocabulary, read_vocabulary
from schemas.errors import ModelError

CORPUS = ["A PAR - BUR", "F BRE S A GAS - MAO", "Über die Grenze: zażółć gęślą jaźń", "<orders> </orders>"] * 5


def byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<eos>"], initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["<think>"])
    return tokenizer


TOKENIZER = byte_level()


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


VOCABULARY = read_vocabulary(TOKENIZER.to_str(), end=TOKENIZER.token_to_id("<eos>"), encode=encode)


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=12))
def test_byte_level_tokens_together_say_what_was_encoded(text):
    assert VOCABULARY.decode(encode(text)) == text.encode()
    assert list(VOCABULARY.encode(text.encode())) == encode(text)


def test_byte_level_vocabulary_can_write_any_bytes() -> None:
    assert VOCABULARY.missing_bytes == ()
    assert VOCABULARY.decode(VOCABULARY.encode(b"\xff\x80 A PAR")) == b"\xff\x80 A PAR"


def test_special_tokens_have_no_text_and_added_ones_have_theirs() -> None:
    assert VOCABULARY.texts[VOCABULARY.end or 0] is None
    assert VOCABULARY.texts[TOKENIZER.token_to_id("<think>")] == b"<think>"
    assert len(VOCABULARY) == TOKENIZER.get_vocab_size()


def test_sentencepiece_tokens_say_spaces_and_bytes() -> None:
    model = tokenizers.models.BPE({"▁A": 0, "▁": 1, "A": 2, "<0x0A>": 3}, [("▁", "A")], byte_fallback=True)
    tokenizer = tokenizers.Tokenizer(model)
    parts = [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    tokenizer.decoder = tokenizers.decoders.Sequence(parts)
    assert read_vocabulary(tokenizer.to_str(), end=None).texts == (b" A", b" ", b"A", b"\n")


def test_words_are_their_own_text() -> None:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"PAR": 0, "<orders>": 1}))
    assert read_vocabulary(tokenizer.to_str(), end=None).texts == (b"PAR", b"<orders>")


def test_without_a_tokenizer_the_longest_token_is_taken() -> None:
    assert Vocabulary([b"a", b"ab", b"abc", b"c", b"d"], end=None).encode(b"abababcd") == (1, 1, 2, 4)


def test_tokenizer_that_adds_to_the_text_is_not_believed() -> None:
    vocabulary = Vocabulary([b"a", b" a", b" "], end=None, encode=lambda text: [1])
    assert vocabulary.encode(b"a") == (0,)
    assert vocabulary.encode(b" a") == (1,)
    assert Vocabulary([b"a", None], end=None, encode=lambda text: [1, 0]).encode(b"a") == (0,)


def test_what_cannot_be_written_or_read_is_named() -> None:
    with pytest.raises(ModelError, match="none of its 2 tokens begins b'c'"):
        Vocabulary([b"a", b"b"], end=None).encode(b"abc")
    with pytest.raises(ModelError, match="end 2"):
        Vocabulary([b"a", b"b"], end=2)
    with pytest.raises(ModelError, match="expected texts"):
        Vocabulary([None, b""], end=None)
    for text in ("{", "[]", '{"model": {}}', '{"model": {"vocab": 3}}'):
        with pytest.raises(ModelError, match="cannot read its vocabulary"):
            read_vocabulary(text, end=None)


def test_all_bytes_are_missing_from_no_tokens_but_their_own() -> None:
    assert Vocabulary(ALL_BYTES, end=None).missing_bytes == ()
    assert Vocabulary([*ALL_BYTES[1:], b"ab"], end=None).missing_bytes == (b"\x00",)


def test_forced_text_is_written_as_the_tokenizer_would_write_it() -> None:
    pytest.importorskip("llguidance")
    from arena.constraints.grammars import GrammarCompiler

    place, ids = (
        GrammarCompiler(VOCABULARY).compile_regex("F BRE S A GAS - MAO; (A|F) PAR - BUR", closing=" </orders>"),
        list[int](),
    )
    while allowed := place.allowed():
        ids.append(allowed[0])
        place = place.advance(ids[-1])
    text = VOCABULARY.decode(ids).decode()
    assert text in {f"F BRE S A GAS - MAO; {kind} PAR - BUR </orders>" for kind in "AF"}
    first = encode("F BRE S A GAS - MAO;")
    assert ids[: len(first)] == first
    last = encode(" BUR </orders>")
    assert ids[-len(last) :] == last
