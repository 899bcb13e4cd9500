"""Formats of replies, of which ``prompt_builder`` chooses one: constraint and parsing.

- ``PhrasePrompter``            only legal completions, piece by piece; free text may come before a tag
- ``GrammarPrompter``           only texts of a language that the game gives
- ``FreeTextPrompter``          any text, from which the action is extracted; a rule decides where there is none
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Any, ClassVar, NamedTuple

import msgspec

from arena.constraints.grammars import GrammarCompiler, encode_along
from arena.constraints.tagged import TaggedConstraints
from arena.constraints.token_walk import Constraint, PhraseCompiler
from arena.constraints.vocabulary import Vocabulary, read_vocabulary
from arena.games.base import Action, Game
from arena.games.texts import Grammar, Phrases, SupportsGrammar, SupportsParts, TextFormat
from arena.prompts import Chat
from models.tokenizer import Tokenizer
from schemas.errors import GameError

PromptEncoder = Callable[[Game, int], list[int]]
"""Maps a game and a seat to move to the prompt's tokens."""

_MAX_CACHED_CONSTRAINTS = 2_000


class ParsedReply(NamedTuple):
    """A parsed reply."""

    action: Action
    """Always legal."""
    formatted: bool = True
    """Whether the reply had the required form."""
    choices: int = 0
    """Number of choices it had to make, where that is counted."""
    illegal: int = 0
    """Choices that the game's default or chance made instead."""
    parts: Sequence[str] = ()
    """The part of the action that each token belongs to, where the game's text has parts; empty for no part."""


class DecisionPrompt(ABC):
    """One decision of a seat as tokens, and what its reply means."""

    constraint: Constraint | None
    """The constraint; None for anything up to the model's end token."""
    must_end = True
    """Whether a reply that was cut off is an error."""

    def __init__(self, prompter: Any, prompt_ids: list[int], game: Game, seat: int) -> None:
        self.prompt_ids = prompt_ids
        self._prompter = prompter
        self._game = game
        self._seat = seat

    @abstractmethod
    def parse_reply(self, ids: Sequence[int], ended: bool, rng: Random) -> ParsedReply:
        """The action that was sampled, or one drawn with ``rng``; ``ended`` is whether the completion was not cut off.

        Raises:
            GameError: the reply has no legal action, and the rule is to fail.
            ModelError: the tokens are not a whole completion of the constraint.
        """

    @abstractmethod
    def encode_action(self, action: Action) -> list[int]:
        """The tokens of a reply that is an action and nothing else.

        Raises:
            GameError: the action is not legal, or replies are free.
            ModelError: the tokenizer cannot encode it.
        """


class Prompter:
    """Prompts and replies of one model for one game."""

    prompt_type: ClassVar[type[DecisionPrompt]]
    free_tokens = 0
    """Most tokens of a completion beside those of the constrained answer."""
    reply_tokens: int | None = None
    """Most tokens of a completion altogether; None leaves the limit to the caller."""
    reports_metrics = True
    """Whether replies may be invalid, so that a match's result reports them."""

    def __init__(self, encode_prompt: PromptEncoder) -> None:
        self._encode_prompt = encode_prompt

    def make_prompt(self, game: Game, seat: int) -> DecisionPrompt:
        """The seat's next decision.

        Raises:
            GameError: the seat is not to move.
            ModelError: the tokenizer or its chat template cannot write it.
        """
        return self.prompt_type(self, self._encode_prompt(game, seat), game, seat)


class PhrasePrompt(DecisionPrompt):
    """A decision whose completions are walked along the game's phrases."""

    _prompter: "PhrasePrompter"

    def __init__(self, prompter: "PhrasePrompter", prompt_ids: list[int], game: Game, seat: int) -> None:
        super().__init__(prompter, prompt_ids, game, seat)
        self._phrases = prompter.text.completions(game, seat)
        walks, tagged = prompter.walks, prompter.tagged
        self.constraint = walks(self._phrases) if tagged is None else tagged(walks(self._phrases_after_opening()))

    def parse_reply(self, ids: Sequence[int], ended: bool, rng: Random) -> ParsedReply:
        """See ``DecisionPrompt``."""
        text, walks, tagged = self._prompter.text, self._prompter.walks, self._prompter.tagged
        if tagged is not None:
            place = self._phrases_after_opening()
            pieces = walks.read(place, tagged.read(walks(place), ids))
            return ParsedReply(text.read(self._game, self._seat, (self._prompter.opening, *pieces)))
        pieces = walks.read(self._phrases, ids)
        action = text.read(self._game, self._seat, pieces)
        parts: Sequence[str] = ()
        if isinstance(text, SupportsParts):
            pairs = zip(pieces, text.parts(self._game, self._seat, pieces), strict=True)
            parts = [part for piece, part in pairs for _ in walks.encode_piece(piece)]
        return ParsedReply(action, parts=parts)

    def encode_action(self, action: Action) -> list[int]:
        """See ``DecisionPrompt``."""
        return self._prompter.walks.encode(self._phrases, self._prompter.text.write(self._game, self._seat, action))

    def _phrases_after_opening(self) -> Phrases:
        return self._phrases.options()[self._prompter.opening]


class PhrasePrompter(Prompter):
    """Completions are the game's own, piece by piece; ``chat`` is the text, where prompts are conversations."""

    prompt_type = PhrasePrompt
    reports_metrics = False

    def __init__(self, tokenizer: Tokenizer, text: TextFormat, ask: PromptEncoder, chat: Chat | None) -> None:
        super().__init__(ask)
        self.text = text
        self.walks = get_token_walks(tokenizer, exact=chat is not None)
        self.free_tokens = 0 if chat is None else chat.free_tokens
        self.opening = "" if chat is None else chat.opening
        self.tagged = get_tagged_text(tokenizer, self.opening, self.free_tokens) if self.free_tokens else None


class GrammarPrompt(DecisionPrompt):
    """A decision whose completions are texts of a language."""

    _prompter: "GrammarPrompter"

    def __init__(self, prompter: "GrammarPrompter", prompt_ids: list[int], game: Game, seat: int) -> None:
        super().__init__(prompter, prompt_ids, game, seat)
        self._grammar = prompter.text.grammar(game, seat)
        self._inner = prompter.get_constraint(self._grammar)
        self.constraint = self._inner if prompter.tagged is None else prompter.tagged(self._inner)

    def parse_reply(self, ids: Sequence[int], ended: bool, rng: Random) -> ParsedReply:
        """The action that was sampled, or a random one where the language allows what the rules forbid."""
        prompter = self._prompter
        pieces = ids if prompter.tagged is None else prompter.tagged.read(self._inner, ids)
        reply = prompter.grammars.vocabulary.decode(pieces).decode(errors="replace").removesuffix(self._grammar.closing)
        try:
            return ParsedReply(prompter.text.read_reply(self._game, self._seat, reply), choices=1)
        except GameError:
            if prompter.rule == "fail":
                raise
            return ParsedReply(self._game.random_action(self._seat, rng), choices=1, illegal=1)

    def encode_action(self, action: Action) -> list[int]:
        """See ``DecisionPrompt``."""
        text = self._prompter.text.write_reply(self._game, self._seat, action) + self._grammar.closing
        return encode_along(self._inner, self._prompter.grammars.vocabulary, text.encode())


class GrammarPrompter(Prompter):
    """Completions are texts of a language that the game gives; where its rules forbid more, they may be illegal.

    ``chat`` is the text, where prompts are conversations; ``rule`` is ``prompts.invalid``.
    """

    prompt_type = GrammarPrompt

    def __init__(
        self, tokenizer: Tokenizer, text: SupportsGrammar, ask: PromptEncoder, chat: Chat | None, rule: str
    ) -> None:
        super().__init__(ask)
        self.text = text
        self.rule = rule
        self.grammars = get_grammars(tokenizer)
        self.free_tokens = 0 if chat is None else chat.free_tokens
        self.tagged = get_tagged_text(tokenizer, chat.opening, self.free_tokens) if chat and self.free_tokens else None
        self._constraints: dict[bytes, Constraint] = {}

    def get_constraint(self, grammar: Grammar) -> Constraint:
        """The constraint of a language, cached, since the same languages recur."""
        key = msgspec.json.encode(grammar)
        if key not in self._constraints:
            if len(self._constraints) >= _MAX_CACHED_CONSTRAINTS:
                self._constraints.clear()
            if grammar.schema is not None:
                compiled = self.grammars.compile_json_schema(grammar.schema, grammar.closing)
            else:
                compiled = self.grammars.compile_regex(grammar.regex, grammar.closing)
            self._constraints[key] = compiled
        return self._constraints[key]


@lru_cache(maxsize=16)
def get_token_walks(tokenizer: Tokenizer, exact: bool = False) -> PhraseCompiler:
    """The process's token walks of a tokenizer; ``exact`` is whether the game's pieces carry their own white space."""
    return PhraseCompiler(tokenizer.encode_unspaced if exact else tokenizer.encode_piece, end=tokenizer.eos)


@lru_cache(maxsize=16)
def get_tagged_text(tokenizer: Tokenizer, opening: str, free_tokens: int) -> TaggedConstraints:
    """The process's constraints with free text up to a tag; ``ModelError`` if the vocabulary cannot write the tag."""
    return TaggedConstraints(_vocabulary(tokenizer), opening, closing="", free_tokens=free_tokens)


@lru_cache(maxsize=16)
def get_grammars(tokenizer: Tokenizer) -> GrammarCompiler:
    """The process's compiler of grammars over a tokenizer's vocabulary.

    Raises:
        ConfigError: the extra ``grammars`` is not installed.
        ModelError: the vocabulary cannot be read.
    """
    return GrammarCompiler(_vocabulary(tokenizer))


@lru_cache(maxsize=16)
def _vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    file = (tokenizer.folder / "tokenizer.json").read_bytes()
    return read_vocabulary(file, tokenizer.eos, tokenizer.encode_text)
