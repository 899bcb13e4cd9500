"""Optional extensions of games, of ``TextFormat`` and of ``Words``, and texts spelled letter by letter."""

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import msgspec

from arena.games.base import Action, Game, GameSpec
from arena.games.base import ParsedAction as ParsedAction
from arena.games.base import Phrases as Phrases
from arena.games.base import Pieces as Pieces
from arena.games.base import TextFormat as TextFormat
from arena.games.base import Words as Words
from schemas.errors import GameError
from schemas.jobs import SeatCounts

SpecT = TypeVar("SpecT")

MAX_REPLY_LENGTH = 20_000
"""Number of characters of a plain-language reply that are read."""

_THINKING = re.compile(r"<think(?:ing)?>.*?(?:</think(?:ing)?>|\Z)", re.DOTALL | re.IGNORECASE)


class OptionsState:
    """A ``Phrases`` state with given options."""

    __slots__ = ("__weakref__", "_options")

    def __init__(self, options: Mapping[str, Phrases]) -> None:
        self._options = options

    def options(self) -> Mapping[str, Phrases]:
        """The given options."""
        return self._options


@runtime_checkable
class SupportsCredits(Protocol):
    """A ``Game`` that knows how much each part of an action contributed."""

    def credits(self, seat: int) -> Sequence[Mapping[str, float]]:
        """Credit of each part of each action of the seat, in turn, in units of ``progress``.

        Later contributions are discounted along the clock. Call it once the game is over.
        """


@runtime_checkable
class SupportsEvaluationSpec(Protocol):
    """A ``GameSpec`` that is evaluated on a different game from the one it is trained on."""

    def for_evaluation(self) -> GameSpec:
        """The game of evaluation matches.

        Its seats are the first of this game's; both read each other's records and prompt models by the same text.
        """


def evaluation_spec(spec: SpecT) -> SpecT:
    """The game of evaluation matches; by default the game itself."""
    return cast(SpecT, spec.for_evaluation()) if isinstance(spec, SupportsEvaluationSpec) else spec


@runtime_checkable
class SupportsEnvironments(Protocol):
    """A ``GameSpec`` of several environments, among which the seed of a play-through chooses by ``SeatCounts.choose``.

    Its ``seats`` are those of the environment with the most.
    """

    def seat_counts(self) -> SeatCounts:
        """The environments with their numbers of seats."""

    def environment_prompts(self) -> Mapping[str, Mapping[str, str]]:
        """Keys of the table ``prompts`` that differ, by environment, evaluation's included."""


def seat_counts(spec: Any) -> SeatCounts:
    """Numbers of seats of a game's or an arena's matches, by their seeds."""
    return spec.seat_counts() if isinstance(spec, SupportsEnvironments) else SeatCounts.constant(len(spec.seats))


@runtime_checkable
class SupportsWords(Protocol):
    """A ``GameSpec`` that remote agents can play."""

    def words(self) -> Words:
        """The game in plain language."""


def words_of(spec: GameSpec) -> Words:
    """The game in plain language; ``GameError`` if only bots and models trained on it can play it."""
    if not isinstance(spec, SupportsWords):
        raise GameError(
            f"{spec.name}: the game is not put into plain language, so remote agents cannot play it; "
            "expected a GameSpec with words(), see arena/games/base.py"
        )
    return spec.words()


@runtime_checkable
class SupportsParts(Protocol):
    """A ``TextFormat`` whose completions name the parts of an action one by one."""

    def parts(self, game: Game, seat: int, completion: Pieces) -> Sequence[str]:
        """Part of the action that each piece of a legal completion belongs to; empty for pieces of none."""


class Grammar(msgspec.Struct, frozen=True):
    """A formal language for replies, given by ``regex`` or ``schema``, and the text that ends a reply."""

    regex: str = ""
    """A regular expression; see ``GrammarCompiler.compile_regex``."""
    schema: dict[str, Any] | None = None
    """A JSON schema; see ``GrammarCompiler.compile_json_schema``."""
    closing: str = ""
    """Literal text after the reply: needed where a reply could both end and go on, for models without an end token."""


@runtime_checkable
class SupportsGrammar(Protocol):
    """A ``TextFormat`` whose replies are texts of a formal language rather than walks over pieces.

    Its ``completions``, ``write`` and ``read`` are not called. The pieces of ``vocabulary`` must be able to write the
    language, for models made for the game.
    """

    def grammar(self, game: Game, seat: int) -> Grammar:
        """The language of the seat's reply. It may contain illegal actions that a language cannot exclude."""

    def write_reply(self, game: Game, seat: int, action: Action) -> str:
        """Write a legal action as a reply, without the closing text."""

    def read_reply(self, game: Game, seat: int, reply: str) -> Action:
        """Read the action from a reply without its closing text; ``GameError`` if it is illegal."""


def as_grammar_text(text: object) -> SupportsGrammar | None:
    """A text as ``SupportsGrammar``; None for a text without a formal language."""
    return text if isinstance(text, SupportsGrammar) else None


@runtime_checkable
class SupportsBrief(Protocol):
    """``Words``, or a text format that is a ``Chat``, with a shorter form of its questions."""

    def brief(self) -> Any:
        """The format, of the same protocol, with questions that omit redundant information."""


class AnswerField(msgspec.Struct, frozen=True):
    """One line of a reply."""

    name: str
    """Its subject; empty where there is only one line."""
    options: list[str]
    """The texts that the line may be."""
    labels: list[str]
    """The options as they are shown."""
    usual: int = 0
    """Index of the option that is selected at first."""


@runtime_checkable
class SupportsAnswerFields(Protocol):
    """A ``Game`` whose actions a person puts together from choices, a line for each part."""

    def answer_fields(self, seat: int) -> Sequence[AnswerField]:
        """The fields of a reply; ``GameError`` if the seat is not to move."""


@runtime_checkable
class Listing(Protocol):
    """``Words`` that can list all legal replies, for models that are constrained to them."""

    def replies(self, game: Game, seat: int) -> Sequence[str]:
        """One reply per legal action, which ``understand`` parses back; none if the actions are unknown.

        ``GameError`` if the seat is not to move.
        """


def write_reply(words: Words, game: Game, seat: int, action: Action, choices: Sequence[str] = ()) -> str:
    """Write an action as a reply that ``understand`` parses back, one of ``choices`` if any; else ``GameError``."""
    listed = words.replies(game, seat) if isinstance(words, Listing) else ()
    # Those that contain the action come first: parsing takes the most time.
    candidates = choices or [*sorted(listed, key=lambda reply: action[0] not in reply), "\n".join(action)]
    for reply in candidates:
        parsed = words.understand(game, seat, reply, Random(0))
        if parsed.action == action and not parsed.illegal:
            return reply
    raise GameError(f"{game.name}: none of {len(candidates)} replies stands for the action {' '.join(action)!r}")


def strip_thinking(reply: str) -> str:
    """Remove the thinking from a reply, and all but the end of a long one."""
    return _THINKING.sub(" ", reply)[-MAX_REPLY_LENGTH:]


SPACE, NEWLINE, UNKNOWN = "␣", "⏎", "?"
LETTERS: Pieces = (*(chr(code) for code in range(33, 127)), NEWLINE, SPACE)
"""Vocabulary of texts spelled letter by letter, for small models where a game's words are not known beforehand."""

_LETTER_PIECES = {**{letter: letter for letter in LETTERS}, " ": SPACE, "\n": NEWLINE}


def to_letters(text: str, most: int | None = None) -> Pieces:
    """Spell a text, or its last ``most`` characters, in letters; other than ASCII becomes question marks."""
    return tuple(_LETTER_PIECES.get(letter, UNKNOWN) for letter in (text if most is None else text[-most:]))


def from_letters(pieces: Pieces) -> str:
    """Join letters to a text."""
    return "".join(pieces).replace(SPACE, " ").replace(NEWLINE, "\n")
