"""From a game's text to a model's tokens and back: pieces for models made here, conversations for large ones."""

from collections.abc import Sequence
from functools import lru_cache

from arena.constraints import Constraint, TokenWalks
from arena.games.base import Action, Game, Phrases, TextFormat
from arena.prompts import Chat, Message, folded, template_for
from arena.tagged import Tagged
from arena.vocabulary import read_vocabulary
from schemas.errors import ModelError
from trainer.model.tokenizer import Tokenizer


class Prompting:
    """How one model is asked about one game."""

    def __init__(self, tokenizer: Tokenizer, text: TextFormat) -> None:
        """Join a tokenizer to a game's language.

        A text that is a ``Chat`` is asked as a conversation, unless the tokenizer was made for the text's pieces.
        """
        self._tokenizer = tokenizer
        self._text = text
        self._chat = text if isinstance(text, Chat) and not tokenizer.whole else None
        self._walks = token_walks(tokenizer, exact=self._chat is not None)
        self._tagged: Tagged | None = None
        self.free_tokens = 0
        """Most tokens that the model may write of its own before what is constrained."""
        if self._chat is not None and self._chat.free_tokens:
            self.free_tokens = self._chat.free_tokens
            self._tagged = tagged_text(tokenizer, self._chat.opening, self.free_tokens)

    def prompt(self, game: Game, seat: int) -> list[int]:
        """The position as tokens.

        Raises:
            GameError: the seat is not to move.
            ModelError: the tokenizer or its chat template cannot write it.
        """
        if self._chat is None:
            return self._tokenizer.encode(self._text.prompt(game, seat))
        return self._tokenizer.encode_text(conversation(self._tokenizer, self._chat.messages(game, seat)))

    def constraint(self, phrases: Phrases) -> Constraint:
        """What may be said, token by token."""
        if self._tagged is None:
            return self._walks(phrases)
        return self._tagged(self._walks(self._opened(phrases)))

    def read(self, game: Game, seat: int, phrases: Phrases, completion_ids: Sequence[int]) -> Action:
        """The action that was sampled under ``constraint``.

        Raises:
            GameError: it is none of the game.
            ModelError: the tokens are not a whole completion.
        """
        if self._tagged is None or self._chat is None:
            return self._text.read(game, seat, self._walks.read(phrases, completion_ids))
        place = self._opened(phrases)
        ids = self._tagged.read(self._walks(place), completion_ids)
        return self._text.read(game, seat, (self._chat.opening, *self._walks.read(place, ids)))

    def write(self, game: Game, seat: int, phrases: Phrases, action: Action) -> list[int]:
        """The tokens with which a model would say an action and nothing else.

        Raises:
            GameError: the action is not legal.
        """
        return self._walks.write(phrases, self._text.write(game, seat, action))

    def _opened(self, phrases: Phrases) -> Phrases:
        assert self._chat is not None
        return phrases.options()[self._chat.opening]


@lru_cache(maxsize=16)
def token_walks(tokenizer: Tokenizer, exact: bool = False) -> TokenWalks:
    """The walks of a tokenizer, shared by everyone in this process who plays with it.

    Args:
        tokenizer: Of the model.
        exact: Whether the game's pieces carry their own white space.
    """
    encode = tokenizer.encode_exactly if exact else tokenizer.encode_piece
    return TokenWalks(encode, end=tokenizer.eos)


@lru_cache(maxsize=16)
def tagged_text(tokenizer: Tokenizer, opening: str, free_tokens: int) -> Tagged:
    """Free text up to a tag, for everyone in this process who plays with the tokenizer.

    Raises:
        ModelError: the tokenizer's vocabulary cannot be read, or cannot write the tag.
    """
    file = (tokenizer.folder / "tokenizer.json").read_bytes()
    vocabulary = read_vocabulary(file, tokenizer.eos, tokenizer.encode_text)
    return Tagged(vocabulary, opening, closing="", free_tokens=free_tokens)


def conversation(tokenizer: Tokenizer, messages: Sequence[Message]) -> str:
    """A conversation as the model was trained on it: by its folder's chat template, or else by that of its family.

    Thinking is switched off where a model has the switch: what comes before the answer is the game's to ask for.

    Raises:
        ModelError: the folder's chat template refuses it, with and without a system.
    """
    if not tokenizer.has_chat_template:
        return template_for(tokenizer.model_type, tokenizer.knows).render(messages)
    try:
        return tokenizer.chat(_plain(messages))
    except ModelError:
        if messages[0].role != "system":
            raise
        return tokenizer.chat(_plain(folded(messages)))


def _plain(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]
