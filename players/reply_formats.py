"""Prompts and replies in a game's own language, and what every kind of prompt has in common.

- ``PhrasePrompter``   only legal completions, piece by piece; free text may come before a tag
- ``GrammarPrompter``  only texts of a formal language that the game gives

``word_replies`` has the kinds that ask in plain language; ``prompt_builder`` chooses.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import NamedTuple, Protocol

import msgspec

from arena.constraints.grammars import GrammarCompiler, encode_along
from arena.constraints.tagged import TaggedConstraints, force_tokens
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
    fault: str = ""
    """Why a free reply holds no legal action: one of ``schemas.metrics.REPLY_FAULTS``; empty if it holds one."""


class DecisionPrompt(NamedTuple):
    """One decision of a seat as tokens, and the meaning of its reply."""

    prompt_ids: list[int]
    constraint: Constraint | None
    """The constraint of the reply; None for anything up to the model's end token."""
    parse_reply: Callable[[Sequence[int], bool, Random], ParsedReply]
    """The action of a completion (its tokens, whether it ended by itself, randomness for a replacement).

    Raises ``GameError`` if the reply has no legal action and the rule is to fail; ``ModelError`` if the tokens are not
    a whole completion of the constraint.
    """
    encode_action: Callable[[Action], list[int]]
    """The tokens of a reply that states an action and nothing else.

    Raises ``GameError`` if the action is not legal, or replies are free; ``ModelError`` if it cannot be encoded.
    """
    must_end: bool = True
    """Whether a reply that was cut off is an error."""
    ask_again: Callable[[Sequence[int], str], list[int]] | None = None
    """The prompt of a second question after a reply (its tokens, its fault); None if none is asked."""


class Prompter(Protocol):
    """Prompts and replies of one model for one game."""

    free_tokens: int
    """Most tokens of a completion beside those of the constrained answer."""
    reply_tokens: int | None
    """Most tokens of a completion altogether; None leaves the limit to the caller."""
    reports_metrics: bool
    """Whether replies may be invalid, so that a match's result reports them."""

    def make_prompt(self, game: Game, seat: int) -> DecisionPrompt:
        """The seat's next decision.

        Raises:
            GameError: the seat is not to move.
            ModelError: the tokenizer or its chat template cannot write it.
        """


class PhrasePrompter:
    """A ``Prompter`` of the game's own completions, piece by piece; ``chat`` is the text of conversations.

    ``thought_end`` are the tokens that end the thought with which a reply begins, if it begins with one.
    """

    reply_tokens: int | None = None
    reports_metrics = False

    def __init__(
        self, tokenizer: Tokenizer, text: TextFormat, ask: PromptEncoder, chat: Chat | None, thought_end: Sequence[int]
    ) -> None:
        self._ask = ask
        self._text = text
        self._walks = get_token_walks(tokenizer, exact=chat is not None)
        self.free_tokens = 0 if chat is None else chat.free_tokens
        self._opening = "" if chat is None else chat.opening
        free = self.free_tokens
        self._tagged = get_tagged_text(tokenizer, self._opening, free, *thought_end) if free else None
        self._before = thought_end
        """Tokens before the answer in a reply that says nothing else."""

    def make_prompt(self, game: Game, seat: int) -> DecisionPrompt:
        """The seat's decision among the game's completions, behind free text if the answer is tagged."""
        prompt_ids, phrases = self._ask(game, seat), self._text.completions(game, seat)

        def encode_action(action: Action) -> list[int]:
            return [*self._before, *self._walks.encode(phrases, self._text.write(game, seat, action))]

        if (tagged := self._tagged) is not None:
            answer = phrases.options()[self._opening]

            def parse_tagged(ids: Sequence[int], ended: bool, rng: Random) -> ParsedReply:
                pieces = self._walks.read(answer, tagged.read(self._walks(answer), ids))
                return ParsedReply(self._text.read(game, seat, (self._opening, *pieces)))

            return DecisionPrompt(prompt_ids, tagged(self._walks(answer)), parse_tagged, encode_action)

        def parse_reply(ids: Sequence[int], ended: bool, rng: Random) -> ParsedReply:
            return self._parse_phrases(game, seat, phrases, ids)

        constraint = force_tokens(self._before, self._walks(phrases))
        return DecisionPrompt(prompt_ids, constraint, parse_reply, encode_action)

    def _parse_phrases(self, game: Game, seat: int, phrases: Phrases, ids: Sequence[int]) -> ParsedReply:
        pieces = self._walks.read(phrases, ids[len(self._before) :])
        action = self._text.read(game, seat, pieces)
        parts: Sequence[str] = ()
        if isinstance(self._text, SupportsParts):
            pairs = zip(pieces, self._text.parts(game, seat, pieces), strict=True)
            parts = [""] * len(self._before) + [part for piece, part in pairs for _ in self._walks.encode_piece(piece)]
        return ParsedReply(action, parts=parts)


class GrammarPrompter:
    """A ``Prompter`` of texts in a language that the game gives; where its rules forbid more, they may be illegal.

    ``chat`` is the text, where prompts are conversations; ``rule`` is ``prompts.invalid``; ``thought_end`` as in
    ``PhrasePrompter``.
    """

    reply_tokens: int | None = None
    reports_metrics = True

    def __init__(
        self,
        tokenizer: Tokenizer,
        text: SupportsGrammar,
        ask: PromptEncoder,
        chat: Chat | None,
        rule: str,
        thought_end: Sequence[int],
    ) -> None:
        self._ask = ask
        self._text = text
        self._rule = rule
        self._grammars = get_grammars(tokenizer)
        self.free_tokens = 0 if chat is None else chat.free_tokens
        free = self.free_tokens
        self._tagged = get_tagged_text(tokenizer, chat.opening, free, *thought_end) if chat and free else None
        self._before = [*thought_end, *(tokenizer.encode_text(chat.opening) if chat and free else [])]
        """Tokens before the answer in a reply that says nothing else."""
        self._constraints: dict[bytes, Constraint] = {}

    def make_prompt(self, game: Game, seat: int) -> DecisionPrompt:
        """The seat's decision among the texts of the game's grammar."""
        grammar = self._text.grammar(game, seat)
        inner, vocabulary = self._get_constraint(grammar), self._grammars.vocabulary

        def parse_reply(ids: Sequence[int], ended: bool, rng: Random) -> ParsedReply:
            pieces = ids[len(self._before) :] if self._tagged is None else self._tagged.read(inner, ids)
            reply = vocabulary.decode(pieces).decode(errors="replace").removesuffix(grammar.closing)
            try:
                return ParsedReply(self._text.read_reply(game, seat, reply), choices=1)
            except GameError:
                if self._rule == "fail":
                    raise
                return ParsedReply(game.random_action(seat, rng), choices=1, illegal=1, fault="illegal")

        def encode_action(action: Action) -> list[int]:
            text = self._text.write_reply(game, seat, action) + grammar.closing
            return [*self._before, *encode_along(inner, vocabulary, text.encode())]

        constraint = force_tokens(self._before, inner) if self._tagged is None else self._tagged(inner)
        return DecisionPrompt(self._ask(game, seat), constraint, parse_reply, encode_action)

    def _get_constraint(self, grammar: Grammar) -> Constraint:
        """The constraint of a language, cached, since the same languages recur."""
        key = msgspec.json.encode(grammar)
        if key not in self._constraints:
            if len(self._constraints) >= _MAX_CACHED_CONSTRAINTS:
                self._constraints.clear()
            if grammar.schema is not None:
                compiled = self._grammars.compile_json_schema(grammar.schema, grammar.closing)
            else:
                compiled = self._grammars.compile_regex(grammar.regex, grammar.closing)
            self._constraints[key] = compiled
        return self._constraints[key]


@lru_cache(maxsize=16)
def get_token_walks(tokenizer: Tokenizer, exact: bool = False) -> PhraseCompiler:
    """The process's token walks of a tokenizer; ``exact`` is whether the game's pieces carry their own white space."""
    return PhraseCompiler(tokenizer.encode_unspaced if exact else tokenizer.encode_piece, end=tokenizer.eos)


@lru_cache(maxsize=16)
def get_tagged_text(
    tokenizer: Tokenizer, opening: str, free_tokens: int, thought_end: int | None = None
) -> TaggedConstraints:
    """The process's constraints with free text up to a tag, behind the thought where ``thought_end`` ends one.

    ``ModelError`` if the vocabulary cannot write the tag.
    """
    return TaggedConstraints(_vocabulary(tokenizer), opening, "", free_tokens, thought_end)


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
