"""Pieces to token ids and back.

A prompt is encoded piece by piece, so that the same piece always gives the same tokens and nothing that was sampled is
ever tokenised again. Made tokenizers hold every piece as one token; a hub model's sub-word tokenizer encodes a piece as
a word, with the space before it, or, where the game's pieces carry their own white space, as it stands.
"""

import os
import re
from collections.abc import Mapping, Sequence
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from schemas.codec import DECODE_ERRORS
from schemas.errors import ModelError

PAD, EOS, UNK = "<pad>", "<eos>", "<unk>"
SPECIAL = (PAD, EOS, UNK)
"""First tokens of every made vocabulary, in this order."""

TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
"""Files with the chat template in newer model folders; older ones have it among the settings of the tokenizer."""
PLAIN_MARKS = ("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "<|system|>", "<|user|>", "<|assistant|>")
"""Marks of turns that Llama 2, the first Mistral models and OLMo 2 write as plain text."""
_LONG_CHARS = 20_000
_PROBE = "system-role-probe"
"""Content of a system message, in no template's own text."""
_DATE_CALL = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")
_TODAY = date(2024, 7, 26)
"""The date in prompts, in place of the current one, so that they stay the same; the default of Llama 3.1's template."""


class Tokenizer:
    """The tokenizer of one model directory."""

    def __init__(self, folder: Path) -> None:
        """Read ``tokenizer.json`` and the special tokens beside it; raises ``ModelError`` where it is not readable."""
        self.folder = Path(folder)
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise ModelError(f"{folder}: no tokenizer.json; expected a tokenizer of the `tokenizers` library")
        import tokenizers  # slow to import

        try:
            text = path.read_text(encoding="utf-8")
            self._tokens = tokenizers.Tokenizer.from_str(text)
            self.is_word_level = msgspec.json.decode(text)["model"]["type"] == "WordLevel"
        except Exception as error:  # the library raises bare Exception on anything it cannot parse
            raise ModelError(f"{path}: not a readable tokenizer ({error})") from error
        _keep_whole(self._tokens)
        self._memo: dict[str, tuple[int, ...]] = {}
        self._exact: dict[str, tuple[int, ...]] = {}
        self.eos = self._special_token("eos_token")
        listed = self._settings("generation_config.json").get("eos_token_id")
        ends = [self.eos, *(listed if isinstance(listed, list) else [listed])]
        self.ends = tuple(dict.fromkeys(token for token in ends if type(token) is int))
        """Tokens that end a completion, the tokenizer's own first, then those of ``generation_config.json``."""

    def encode_piece(self, piece: str) -> tuple[int, ...]:
        """The token ids of one piece; the same on every call.

        Raises:
            ModelError: the vocabulary cannot encode the piece.
        """
        ids = self._memo.get(piece)
        if ids is None:
            if not self.is_word_level:
                ids = self._encode_some(" " + piece, piece)
            elif (token := self._tokens.token_to_id(piece)) is not None:
                ids = (int(token),)
            else:
                raise ModelError(f"{self.folder}: piece {piece!r} is not among the {len(self)} words it knows")
            self._memo[piece] = ids
        return ids

    def encode(self, pieces: Sequence[str]) -> list[int]:
        """The token ids of a list of pieces."""
        return [token for piece in pieces for token in self.encode_piece(piece)]

    def encode_unspaced(self, piece: str) -> tuple[int, ...]:
        """Token ids of a piece without a space before it, for pieces that contain their own spaces."""
        ids = self._exact.get(piece)
        if ids is None:
            ids = self._exact[piece] = self._encode_some(piece, piece)
        return ids

    def _encode_some(self, text: str, piece: str) -> tuple[int, ...]:
        ids = tuple(self.encode_text(text))
        if not ids:
            raise ModelError(f"{self.folder}: the tokenizer writes piece {piece!r} as nothing")
        return ids

    def encode_text(self, text: str) -> list[int]:
        """The token ids of running text as it stands; special tokens in it are parsed as such, none are added."""
        return self._encode(self._tokens, text, special_tokens=False)

    def encode_chat(self, text: str) -> list[int]:
        """The token ids of a conversation from ``render_chat``, as the library ``transformers`` encodes them.

        Its tokenizers may differ from ``tokenizer.json``: Llama's puts no space after a special token.
        """
        return self._encode(self._chat_tokens, text, special_tokens=False)

    def _encode(self, tokens: Any, text: str, special_tokens: bool) -> list[int]:
        try:
            if len(text) < _LONG_CHARS:
                return list(tokens.encode(text, add_special_tokens=special_tokens).ids)
            # Encoding a batch, unlike encoding a text, lets other threads run meanwhile.
            return list(tokens.encode_batch([text], add_special_tokens=special_tokens)[0].ids)
        except Exception as error:  # the library raises bare Exception
            raise ModelError(f"{self.folder}: tokenizer.json: {error}; text {text[:40]!r} cannot be encoded") from error

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """The tokens that the tokenizer puts before a text, as BOS; empty for made tokenizers and for many families."""
        plain = self.encode_text("a")
        whole = self._encode(self._tokens, "a", special_tokens=True)
        starts = (at for at in range(len(whole)) if whole[at : at + len(plain)] == plain)
        if prefix := tuple(whole[: next(starts, 0)]):
            return prefix
        has_bos = self._settings("tokenizer_config.json").get("add_bos_token") is True
        bos = self._special_token("bos_token") if has_bos else None
        return () if bos is None else (bos,)

    def encode_prompt(self, text: str) -> list[int]:
        """The token ids of a text that begins a sequence: with the tokenizer's ``prefix``, unless it is there."""
        ids = self.encode_text(text)
        return ids if tuple(ids[: len(self.prefix)]) == self.prefix else [*self.prefix, *ids]

    @cached_property
    def special_texts(self) -> frozenset[str]:
        """The texts of special tokens and of other marks of turns, which must not stand in what players write.

        Of added tokens that are not special, and of marks in plain text, those are turned away that the chat template
        writes.
        """
        template = self._template_text()
        added = self._tokens.get_added_tokens_decoder().values()
        tokens = {each.content for each in added if each.special or (each.content.strip() and each.content in template)}
        return frozenset(tokens | {mark for mark in PLAIN_MARKS if mark in template})

    def is_token(self, text: str) -> bool:
        """Whether the text is one token."""
        return self._tokens.token_to_id(text) is not None

    @cached_property
    def model_type(self) -> str:
        """The architecture in the ``config.json`` beside the tokenizer; empty where there is none."""
        value = self._settings("config.json").get("model_type")
        return value if isinstance(value, str) else ""

    @property
    def has_chat_template(self) -> bool:
        """Whether the folder has a chat template."""
        if any((self.folder / name).is_file() for name in TEMPLATE_FILES):
            return True
        return bool(self._settings("tokenizer_config.json").get("chat_template"))

    @cached_property
    def has_system_role(self) -> bool:
        """Whether the chat template writes system messages: Gemma 2's raises an error, early Phi-3's ignores them."""
        talk = [{"role": "system", "content": _PROBE}, {"role": "user", "content": "?"}]
        try:
            return _PROBE in self.render_chat(talk)
        except ModelError:
            return False

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], thinking: bool = False, continues: bool = False
    ) -> str:
        """Render a conversation with the folder's chat template, up to the start of the reply.

        ``continues``: up to the end of the last message's text, which the reply continues. Messages have ``role`` and
        ``content``; ``thinking`` is ``enable_thinking`` of templates that have the switch.

        Raises:
            ModelError: the template cannot be read, or rejects the conversation (some have no system role).
        """
        try:
            text: str = self._hf_tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=not continues,
                continue_final_message=continues,
                enable_thinking=thinking,
                chat_template=self._dated_template,
            )
        except Exception as error:  # templates are third-party programs, which may raise anything
            roles = [message["role"] for message in messages]
            raise ModelError(
                f"{self.folder}: its chat template does not write a conversation of {roles} "
                f"({type(error).__name__}: {error}); expected one that does, or a family's in prompts.template"
            ) from error
        return text

    @cached_property
    def _dated_template(self) -> str:
        """The chat template, with ``_TODAY`` in place of its calls of ``strftime_now``."""
        template: str = self._hf_tokenizer.get_chat_template()
        return _DATE_CALL.sub(lambda call: repr(_TODAY.strftime(call[2])), template)

    def _template_text(self) -> str:
        """The text of the folder's chat template, of all of them where it has several; empty without one."""
        if not self.has_chat_template:
            return ""
        template = self._hf_tokenizer.chat_template
        return "\n".join(template.values()) if isinstance(template, dict) else str(template)

    @cached_property
    def _hf_tokenizer(self) -> Any:
        from transformers import AutoTokenizer  # slow to import

        return AutoTokenizer.from_pretrained(self.folder, local_files_only=True)

    @cached_property
    def _chat_tokens(self) -> Any:
        tokens = getattr(self._hf_tokenizer, "backend_tokenizer", self._tokens)
        _keep_whole(tokens)
        return tokens

    def decode(self, ids: Sequence[int]) -> str:
        """Text for people to read; the constraint that produced the ids maps them back to pieces."""
        text: str = self._tokens.decode(list(ids), skip_special_tokens=False)
        return text

    def __len__(self) -> int:
        return int(self._tokens.get_vocab_size())

    def _special_token(self, name: str) -> int | None:
        """The id of a token that ``tokenizer_config.json`` names, as text or with its flags; None if missing."""
        mark = self._settings("tokenizer_config.json").get(name)
        mark = mark.get("content") if isinstance(mark, dict) else mark
        return self._tokens.token_to_id(mark) if isinstance(mark, str) else None

    def _settings(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        if not path.is_file():
            return {}
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except DECODE_ERRORS as error:
            raise ModelError(f"{path}: not a readable JSON object ({error})") from error


def _keep_whole(tokens: Any) -> None:
    """Cut or pad no text, whatever the folder of a fine-tuned model keeps from its training."""
    tokens.no_truncation()
    tokens.no_padding()


def converted_folder(name: str) -> Path:
    """Where a packaged model is converted to, once on a machine."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "event-sourced-league" / "models" / name.lower()


def find_tokenizer(model: str) -> Path | None:
    """The folder with the tokenizer of a folder, a packaged model or a hub model, if it is here; fetches nothing."""
    for folder in (Path(model), converted_folder(model)):
        if (folder / "tokenizer.json").is_file():
            return folder
    try:
        from huggingface_hub import try_to_load_from_cache  # slow to import, and local models never need it

        cached = try_to_load_from_cache(model, "tokenizer.json")
    except (ImportError, ValueError):  # a player without models, or no valid id
        return None
    return Path(cached).parent if isinstance(cached, str) else None
