"""Observations and replies of models in a TextArena environment."""

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate
from random import Random
from typing import Any, cast

from arena.enumerable import CLOSE, ListedSpec, ListedText, ListedWords, require_turn
from arena.games.base import Action, Game
from arena.games.textarena.moves import LISTED, MAX_CANDIDATES
from arena.games.texts import (
    LETTERS,
    MAX_REPLY_LENGTH,
    NEWLINE,
    OptionsState,
    ParsedAction,
    Phrases,
    Pieces,
    from_letters,
    strip_thinking,
    to_letters,
)
from schemas.errors import GameError

MAX_MOVE_LENGTH = 40
"""Maximum length of a candidate move in a text; longer matches are explanations."""

BRACKET_GROUP = re.compile(r"\[[^\[\]\n]*\]")


def candidate_moves(name: str, observation: str, listed: Iterable[str] = ()) -> Iterable[str]:
    """Generate moves that may be legal, without duplicates, in a fixed order.

    Args:
        name: TextArena's id.
        observation: What the seat to move sees; its examples in brackets are candidates.
        listed: Moves found in the position, by ``moves.FROM_POSITION``.
    """
    found = BRACKET_GROUP.findall(observation)
    groups = (group for group in found if len(group) <= MAX_MOVE_LENGTH and group.isprintable())
    return list(dict.fromkeys((*LISTED.get(name.partition("-")[0], ()), *listed, *groups)))[:MAX_CANDIDATES]


MAX_BRACKETED_LETTERS = 30
"""Maximum number of letters in brackets that a small model may write freely."""
NO_ANSWER = "[no answer]"
"""Message for a reply without text."""


class TextArenaText(ListedText):
    """Observations letter by letter; completions are candidate moves, or short text in brackets if there are none."""

    def completions(self, game: Game, seat: int) -> Phrases:
        """The walk over the candidate moves, else over any text in brackets."""
        return super().completions(game, seat) if _found_moves(game, seat) else _BRACKETED_TEXT

    def write(self, game: Game, seat: int, action: Action) -> Pieces:
        """Spell the message; ``GameError`` unless it is a candidate move or, where there are none, in brackets."""
        if _found_moves(game, seat):
            if action[0:1] and action[0] not in _found_moves(game, seat):
                raise GameError(f"{game.name} text: seat {seat} cannot say {action!r}; expected a move that was found")
            return super().write(game, seat, action)
        pieces = (*to_letters(action[0] if action else ""), CLOSE)
        self.read(game, seat, pieces)
        return pieces

    def read(self, game: Game, seat: int, completion: Pieces) -> Action:
        """Read the message; ``GameError`` if it is not one of ``completions``."""
        if _found_moves(game, seat):
            return super().read(game, seat, completion)
        place: Phrases = _BRACKETED_TEXT
        for piece in completion:
            if piece not in (options := place.options()):
                raise GameError(f"{game.name} text: {completion[:20]} is not a text in brackets and {CLOSE!r}")
            place = options[piece]
        if place.options():
            raise GameError(f"{game.name} text: {completion[:20]} does not end with {CLOSE!r}")
        return (from_letters(completion[:-1]),)


def _any_text_in_brackets() -> Phrases:
    """The walk through any text of 1 to ``MAX_BRACKETED_LETTERS`` letters in square brackets."""
    end = OptionsState({"]": OptionsState({CLOSE: OptionsState({})})})
    place = end
    letters = [letter for letter in LETTERS if letter not in ("[", "]", NEWLINE)]
    for _ in range(MAX_BRACKETED_LETTERS - 1):
        place = OptionsState({**dict.fromkeys(letters, place), **end.options()})
    return OptionsState({"[": OptionsState(dict.fromkeys(letters, place))})


_BRACKETED_TEXT = _any_text_in_brackets()


class TextArenaWords(ListedWords):
    """The environment's prompts, and messages of at most ``longest`` characters that the environment itself judges."""

    opening = ""

    def __init__(self, spec: ListedSpec[Any], longest: int) -> None:
        super().__init__(spec)
        self._longest = longest

    def rules(self) -> str:
        """The game's origin and the form of a reply."""
        return f"{self._definition.rules()} Moves stand in square brackets."

    def question(self, game: Game, seat: int) -> str:
        """The environment's own prompt."""
        table = require_turn(game, seat)
        visibility = "All that you answer is heard." if _hears_all(game) else "Your last line with brackets is heard."
        return f"You are {table.seats[seat]}.\n{table.tells(seat)}\n\n{visibility}"

    def replies(self, game: Game, seat: int) -> Sequence[str]:
        """The candidate moves."""
        return list(_found_moves(game, seat))

    def understand(self, game: Game, seat: int, reply: str, rng: Random) -> ParsedAction:
        """Extract the message for the environment; one that it would reject counts as illegal but stays the action.

        Square brackets mark what is meant as a move. A reply without any is in form where the environment accepts it
        and it is none of the listed moves: talk that all hear, or words that are the move (Taboo's clues).
        """
        message, listed = clean_reply(strip_thinking(reply), self._longest), ()
        bracketed = any(group[1:-1].strip() for group in BRACKET_GROUP.findall(message))
        if not message:
            return ParsedAction((NO_ANSWER,), 1, 1, mentions_move=False, well_formed=False)
        if not _hears_all(game):
            listed = _found_moves(game, seat)
            message = extract_bracketed_move(message, listed, self._longest)
        refused = bool(cast(Any, game).refuses(message))
        return ParsedAction((message,), 1, int(refused), bracketed, bracketed or not (refused or message in listed))


def extract_bracketed_move(reply: str, moves: Any = (), longest: int = MAX_REPLY_LENGTH) -> str:
    """Find the last bracketed text, known moves first; else the whole reply in brackets.

    Of more than ``longest`` characters, and ``MAX_MOVE_LENGTH``, the end is left, in whole brackets.
    """
    known = {move.lower(): move for move in moves} | {move: move for move in moves}
    most = max(longest, MAX_MOVE_LENGTH)
    for line in reversed(reply.splitlines()):
        if groups := BRACKET_GROUP.findall(line):
            meant = [move for group in groups if (move := known.get(group) or known.get(group.lower()))]
            if meant:
                return str(meant[-1])
            ends = accumulate(len(group) + 1 for group in reversed(groups))
            return " ".join(groups[-max(sum(end <= most + 1 for end in ends), 1) :])
    inner = " ".join(reply.replace("[", " ").replace("]", " ").split())
    end = inner[-min(100, most - 2) :].strip()
    return str(known.get(f"[{inner.lower()}]", f"[{end}]")) if inner else NO_ANSWER


def clean_reply(reply: str, longest: int) -> str:
    """Remove control characters, and truncate a reply to its end."""
    # Unprintable characters include lone surrogates, which JSON cannot represent.
    text = reply if reply.isprintable() else "".join(each for each in reply if each == "\n" or each.isprintable())
    return text.strip()[-longest:].strip()


def _hears_all(game: Game) -> bool:
    return bool(cast(Any, game).talk)


def _found_moves(game: Game, seat: int) -> Any:
    return require_turn(game, seat).moves(seat)
