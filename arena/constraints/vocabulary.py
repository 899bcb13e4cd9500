"""The texts of a tokenizer's tokens, for constraints on text.

A token's text is bytes, since a sub-word token may contain half a character. Tokens without a text (padding, the end of
a turn) have None: they never occur in constrained text and add nothing to free text.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property

import msgspec

from schemas.errors import ModelError

ALL_BYTES = tuple(bytes((value,)) for value in range(256))
SENTENCEPIECE_SPACE = "▁"
"""How SentencePiece vocabularies write a space."""


class Vocabulary:
    """Every token's text, by its id."""

    def __init__(
        self, texts: Sequence[bytes | None], end: int | None, encode: Callable[[str], Sequence[int]] | None = None
    ) -> None:
        """The vocabulary of a tokenizer; ``ModelError`` if no token has a text, or ``end`` is not a token.

        ``end`` is the token that ends a completion; its text is ignored. ``encode`` is the tokenizer's own encoding, so
        that forced text consists of the tokens that the model has learnt; without it, encoding repeatedly takes the
        longest token that fits.
        """
        self.texts = tuple(None if token == end else text or None for token, text in enumerate(texts))
        self.end = end
        self._tokenizer_encode = encode
        if not any(self.texts) or (end is not None and not 0 <= end < len(self.texts)):
            raise ModelError(
                f"vocabulary: {len(self.texts)} tokens and end {end}; expected texts, and the end among them"
            )
        self._max_token_length = max(len(text) for text in self.texts if text)

    def __len__(self) -> int:
        return len(self.texts)

    def decode(self, ids: Sequence[int]) -> bytes:
        """The text of a completion."""
        return b"".join(self.texts[token] or b"" for token in ids)

    def encode(self, text: bytes) -> tuple[int, ...]:
        """Tokens whose texts add up to ``text``; ``ModelError`` if there are none."""
        if self._tokenizer_encode is not None:
            with suppress(UnicodeDecodeError):
                own = tuple(self._tokenizer_encode(text.decode()))
                # Some tokenizers add a leading space or mark.
                if own and all(self.texts[token] for token in own) and self.decode(own) == text:
                    return own
        ids: list[int] = []
        at = 0
        while at < len(text):
            sizes = range(min(self._max_token_length, len(text) - at), 0, -1)
            size = next((size for size in sizes if text[at : at + size] in self._token_by_text), 0)
            if not size:
                raise ModelError(f"vocabulary: none of its {len(self)} tokens begins {text[at:]!r}")
            ids.append(self._token_by_text[text[at : at + size]])
            at += size
        return tuple(ids)

    @cached_property
    def missing_bytes(self) -> tuple[bytes, ...]:
        """Single bytes that are not tokens; a vocabulary without any can encode every text."""
        return tuple(byte for byte in ALL_BYTES if byte not in self._token_by_text)

    @cached_property
    def _token_by_text(self) -> Mapping[bytes, int]:
        return {text: token for token, text in reversed(list(enumerate(self.texts))) if text}


def read_vocabulary(
    tokenizer_json: str | bytes, end: int | None, encode: Callable[[str], Sequence[int]] | None = None
) -> Vocabulary:
    """The vocabulary of a ``tokenizer.json`` of the `tokenizers` library; ``ModelError`` for another file.

    Byte-level vocabularies (GPT-2, Llama 3, Qwen), those of SentencePiece with ``▁`` for a space and ``<0x0A>`` for a
    byte (Llama 2, Gemma) and lists of words are supported. Special tokens have no text.
    """
    try:
        file = msgspec.json.decode(tokenizer_json)
        vocabulary, added = file["model"]["vocab"], file.get("added_tokens") or []
        if not isinstance(vocabulary, Mapping):
            # Unigram models list pairs of text and score; all others map texts to ids.
            vocabulary = {str(pair[0]): token for token, pair in enumerate(vocabulary)}
        ids = vocabulary | {one["content"]: one["id"] for one in added}
        special = {one["id"] for one in added if one.get("special")}
        plain = {one["id"] for one in added}
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ModelError(f"tokenizer.json: cannot read its vocabulary ({type(error).__name__}: {error})") from error
    kinds = _decoder_types(file.get("decoder"))
    texts: list[bytes | None] = [None] * (max(ids.values(), default=-1) + 1)
    for text, token in ids.items():
        if token not in special:
            texts[token] = text.encode() if token in plain else _bytes_of(text, kinds)
    return Vocabulary(texts, end, encode)


def _decoder_types(decoder: Mapping[str, object] | None) -> frozenset[str]:
    """The types of a decoder and its nested decoders."""
    if not decoder:
        return frozenset()
    parts = decoder.get("decoders") or ()
    assert isinstance(parts, Sequence)
    return frozenset({str(decoder.get("type"))}).union(*(_decoder_types(part) for part in parts))


def _bytes_of(text: str, kinds: frozenset[str]) -> bytes:
    if "ByteLevel" in kinds:
        return bytes(BYTE_OF[letter] for letter in text) if all(letter in BYTE_OF for letter in text) else text.encode()
    if "ByteFallback" in kinds and len(text) == 6 and text.startswith("<0x"):
        return bytes.fromhex(text[3:5])
    return text.replace(SENTENCEPIECE_SPACE, " ").encode() if kinds & {"Replace", "Metaspace"} else text.encode()


_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [value for value in range(256) if value not in _PRINTABLE]
BYTE_OF = {chr(value): value for value in _PRINTABLE} | {chr(256 + i): value for i, value in enumerate(_OTHERS)}
"""The letters that stand for bytes in byte-level vocabularies (GPT-2, Radford et al. 2019).

Printable bytes of Latin-1 stand for themselves; the others, in order, for the letters from code point 256 on.
"""
