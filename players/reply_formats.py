"""Formats of replies, of which ``prompt_builder`` chooses one: constraint and parsing.

- ``PhrasePrompter``            only legal completions, piece by piece; free text may come before a tag
- ``GrammarPrompter``           only texts of a language that the game gives
- ``free_text.FreeTextPrompter``  any text, from which the action is extracted; a rule decides where there is none
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from random import Random
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from arena.constraints.grammars import GrammarCompiler, encode_along
from arena.constraints.tagged import TaggedConstraints
from arena.constraints.token_walk import Constraint, PhraseCompiler
from arena.constraints.vocabulary import Vocabulary, read_vocabulary
from arena.games.base import Action, Game
from arena.games.texts import Grammar, Phrases, Pieces, SupportsGrammar, SupportsParts, TextFormat
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

    @property
    def invalid(self) -> bool:
        """Whether the action is not the model's own, or not all of it."""
        return self.illegal > 0


class DecisionPrompt(Protocol):
    """One decision as tokens."""

    prompt_ids: list[int]
    constraint: Constraint | None
    """The constraint; None for anything up to the model's end token."""
    must_end: bool
    """Whether a reply that was cut off is an error."""

    def parse_reply(self, ids: Sequence[int], ended: bool, rng: Random) -> ParsedReply:
        """The action that was sampled.

        Args:
            ids: The completion.
            ended: Whether it is complete, rather than cut off.
            rng: Draws the action where the reply has none.

        Raises:
            GameError: the reply has no legal action, and the rule is to fail.
            ModelError: the tokens are not a whole completion of the constraint.
        """

    def encode_action(self, action: Action) -> list[int]:
        """The tokens of a reply that is an action and nothing else.

        Raises:
            GameError: the action is not legal.
            ModelError: the tokenizer cannot encode it, or replies are free.
        """


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


PrompterT = TypeVar("PrompterT")


class BoundPrompt(Generic[PrompterT]):
    """The part that the decisions of all formats have in common."""

    must_end = True
    constraint: Constraint | None

    def __init__(self, prompter: PrompterT, prompt_ids: list[int], game: Game, seat: int) -> None:
        self.prompt_ids = prompt_ids
        self._prompter = prompter
        self._game = game
        self._seat = seat


class PhrasePrompter:
    """Completions are the game's own, piece by piece."""

    reply_tokens: int | None = None
    reports_metrics = False

    def __init__(self, tokenizer: Tokenizer, text: TextFormat, ask: PromptEncoder, chat: Chat | None) -> None:
        """Join a tokenizer to a game's language.

        ``chat`` is the text, where prompts are conversations.
        """
        self.text = text
        self.walks = get_token_walks(tokenizer, exact=chat is not None)
        self.free_tokens = 0 if chat is None else chat.free_tokens
        self.opening = "" if chat is None else chat.opening
        self.tagged = get_tagged_text(tokenizer, self.opening, self.free_tokens) if self.free_tokens else None
        self._encode_prompt = ask

    def make_prompt(self, game: Game, seat: int) -> "PhrasePrompt":
        """The seat's next decision."""
        return PhrasePrompt(self, self._encode_prompt(game, seat), game, seat)


class PhrasePrompt(BoundPrompt[PhrasePrompter]):
    """A ``DecisionPrompt`` whose completions are walked along the game's phrases."""

    def __init__(self, prompter: PhrasePrompter, prompt_ids: list[int], game: Game, seat: int) -> None:
        super().__init__(prompter, prompt_ids, game, seat)
        self._phrases = prompter.text.completions(game, seat)
        walks, tagged = prompter.walks, prompter.tagged
        self.constraint = walks(self._phrases) if tagged is None else tagged(walks(self._phrases_after_opening()))

    def parse_reply(self, ids: Sequence[int], ended: bool, rng: Random) -> ParsedReply:
        """The action that was sampled."""
        prompter = self._prompter
        if prompter.tagged is None:
            pieces = prompter.walks.read(self._phrases, ids)
            return ParsedReply(prompter.text.read(self._game, self._seat, pieces), parts=self._action_parts(pieces))
        place = self._phrases_after_opening()
        pieces = prompter.walks.read(place, prompter.tagged.read(prompter.walks(place), ids))
        return ParsedReply(prompter.text.read(self._game, self._seat, (prompter.opening, *pieces)))

    def encode_action(self, action: Action) -> list[int]:
        """The tokens of a reply that is an action and nothing else."""
        return self._prompter.walks.encode(self._phrases, self._prompter.text.write(self._game, self._seat, action))

    def _action_parts(self, pieces: Pieces) -> Sequence[str]:
        text, walks = self._prompter.text, self._prompter.walks
        if not isinstance(text, SupportsParts):
            return ()
        parts = zip(pieces, text.parts(self._game, self._seat, pieces), strict=True)
        return [part for piece, part in parts for _ in walks.encode_piece(piece)]

    def _phrases_after_opening(self) -> Phrases:
        return self._phrases.options()[self._prompter.opening]


class GrammarPrompter:
    """Completions are texts of a language that the game gives; where its rules forbid more, they may be illegal."""

    reply_tokens: int | None = None
    reports_metrics = True

    def __init__(
        self, tokenizer: Tokenizer, text: SupportsGrammar, ask: PromptEncoder, chat: Chat | None, rule: str
    ) -> None:
        """Join a tokenizer to a game's language.

        ``chat`` is the text, where prompts are conversations; ``rule`` is ``prompts.invalid``.
        """
        self.text = text
        self.rule = rule
        self.grammars = get_grammars(tokenizer)
        self.free_tokens = 0 if chat is None else chat.free_tokens
        self.tagged = get_tagged_text(tokenizer, chat.opening, self.free_tokens) if chat and self.free_tokens else None
        self._encode_prompt = ask
        self._constraints: dict[bytes, Constraint] = {}

    def make_prompt(self, game: Game, seat: int) -> "GrammarPrompt":
        """The seat's next decision."""
        return GrammarPrompt(self, self._encode_prompt(game, seat), game, seat)

    def get_constraint(self, grammar: Grammar) -> Constraint:
        """The constraint of a language, cached, since the same languages recur."""
        key = msgspec.json.encode(grammar)
        place = self._constraints.get(key)
        if place is None:
            if len(self._constraints) >= _MAX_CACHED_CONSTRAINTS:
                self._constraints.clear()
            place = self._constraints[key] = _make_constraint(self.grammars, grammar)
        return place


class GrammarPrompt(BoundPrompt[GrammarPrompter]):
    """A ``DecisionPrompt`` whose completions are texts of a language."""

    def __init__(self, prompter: GrammarPrompter, prompt_ids: list[int], game: Game, seat: int) -> None:
        super().__init__(prompter, prompt_ids, game, seat)
        self._grammar = prompter.text.grammar(game, seat)
        self._grammar_constraint = prompter.get_constraint(self._grammar)
        self.constraint = (
            self._grammar_constraint if prompter.tagged is None else prompter.tagged(self._grammar_constraint)
        )

    def parse_reply(self, ids: Sequence[int], ended: bool, rng: Random) -> ParsedReply:
        """The action that was sampled, or a random one where the language allows what the rules forbid.

        Raises:
            GameError: the rule is to fail instead.
        """
        prompter = self._prompter
        pieces = ids if prompter.tagged is None else prompter.tagged.read(self._grammar_constraint, ids)
        reply = prompter.grammars.vocabulary.decode(pieces).decode(errors="replace").removesuffix(self._grammar.closing)
        try:
            return ParsedReply(prompter.text.read_reply(self._game, self._seat, reply), choices=1)
        except GameError:
            if prompter.rule == "fail":
                raise
            return ParsedReply(self._game.random_action(self._seat, rng), choices=1, illegal=1)

    def encode_action(self, action: Action) -> list[int]:
        """The tokens of a reply that is an action and nothing else."""
        text = self._prompter.text.write_reply(self._game, self._seat, action) + self._grammar.closing
        return encode_along(self._grammar_constraint, self._prompter.grammars.vocabulary, text.encode())


@lru_cache(maxsize=16)
def get_token_walks(tokenizer: Tokenizer, exact: bool = False) -> PhraseCompiler:
    """The token walks of a tokenizer, shared by all players in this process.

    ``exact`` is whether the game's pieces carry their own white space.
    """
    encode = tokenizer.encode_unspaced if exact else tokenizer.encode_piece
    return PhraseCompiler(encode, end=tokenizer.eos)


@lru_cache(maxsize=16)
def get_tagged_text(tokenizer: Tokenizer, opening: str, free_tokens: int) -> TaggedConstraints:
    """Constraints with free text up to a tag, shared by all players in this process.

    Raises:
        ModelError: the tokenizer's vocabulary cannot be read, or cannot write the tag.
    """
    return TaggedConstraints(_vocabulary(tokenizer), opening, closing="", free_tokens=free_tokens)


@lru_cache(maxsize=16)
def get_grammars(tokenizer: Tokenizer) -> GrammarCompiler:
    """The compiler of grammars over a tokenizer's vocabulary, shared by all players in this process.

    Raises:
        ConfigError: the extra ``grammars`` is not installed.
        ModelError: the tokenizer's vocabulary cannot be read.
    """
    return GrammarCompiler(_vocabulary(tokenizer))


@lru_cache(maxsize=16)
def _vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    file = (tokenizer.folder / "tokenizer.json").read_bytes()
    return read_vocabulary(file, tokenizer.eos, tokenizer.encode_text)


def _make_constraint(languages: GrammarCompiler, grammar: Grammar) -> Constraint:
    if grammar.schema is not None:
        return languages.compile_json_schema(grammar.schema, grammar.closing)
    return languages.compile_regex(grammar.regex, grammar.closing)
