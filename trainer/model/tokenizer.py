"""Pieces to token ids and back.

A prompt is written piece by piece and each piece is encoded on its own, so that the same piece is always the same
tokens and nothing that was sampled is ever tokenised again. Made tokenizers hold every piece as one token; a hub
model's sub-word tokenizer writes a piece as a word, with the space before it.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import tokenizers

from schemas.errors import ModelError

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
SPECIAL = (PAD, EOS, UNK)
"""First tokens of every made vocabulary, in this order."""


class Tokenizer:
    """The tokenizer of one model directory."""

    def __init__(self, folder: Path) -> None:
        """Read ``tokenizer.json`` and the special tokens beside it.

        Raises:
            ModelError: no readable tokenizer.
        """
        self._folder = Path(folder)
        path = self._folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{folder}: no tokenizer.json; expected a tokenizer of the `tokenizers` library")
        try:
            text = path.read_text(encoding="utf-8")
            self._tokens = tokenizers.Tokenizer.from_str(text)
            self._whole = msgspec.json.decode(text)["model"]["type"] == "WordLevel"
        except Exception as error:  # the library raises bare Exception on anything it cannot parse
            raise ModelError(f"{path}: not a readable tokenizer ({error})") from error
        self._memo: dict[str, tuple[int, ...]] = {}
        self.eos = self._special("eos_token")

    def encode_piece(self, piece: str) -> tuple[int, ...]:
        """The token ids of one piece; the same on every call.

        Raises:
            ModelError: the vocabulary cannot write the piece.
        """
        ids = self._memo.get(piece)
        if ids is None:
            ids = self._memo[piece] = self._encode(piece)
        return ids

    def encode(self, pieces: Sequence[str]) -> list[int]:
        """The token ids of a whole text, piece after piece."""
        return [token for piece in pieces for token in self.encode_piece(piece)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text for people to read; the way back to pieces is the constraint that produced the ids."""
        text: str = self._tokens.decode(list(ids), skip_special_tokens=False)
        return text

    def __len__(self) -> int:
        return int(self._tokens.get_vocab_size())

    def _encode(self, piece: str) -> tuple[int, ...]:
        if self._whole:
            token = self._tokens.token_to_id(piece)
            if token is None:
                raise ModelError(f"{self._folder}: piece {piece!r} is not among the {len(self)} words it knows")
            return (int(token),)
        ids = tuple(self._tokens.encode(" " + piece, add_special_tokens=False).ids)
        if not ids:
            raise ModelError(f"{self._folder}: the tokenizer writes piece {piece!r} as nothing")
        return ids

    def _special(self, name: str) -> int | None:
        """Id of a special token named in ``tokenizer_config.json``; written there as text or with its flags."""
        path = self._folder / "tokenizer_config.json"
        if not path.is_file():
            return None
        try:
            found = msgspec.json.decode(path.read_bytes()).get(name)
        except (msgspec.DecodeError, AttributeError) as error:
            raise ModelError(f"{path}: not a readable tokenizer configuration ({error})") from error
        text = found.get("content") if isinstance(found, dict) else found
        token = self._tokens.token_to_id(text) if isinstance(text, str) else None
        return None if token is None else int(token)
