"""The game contract: seeded, serialisable, simultaneous or turn-taking.

A game is a mutable play-through, deterministic in (settings, seed, actions). Seats are numbered from 0 and have
names. ``to_move`` lists the seats that must act before ``apply`` can be called: all that have orders to give in a
simultaneous game, one in a turn-taking game, none once the game is over.

``TextFormat`` and ``Words`` are how language models play a game; ``arena.games.texts`` has their optional parts.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from random import Random
from statistics import fmean
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from schemas.errors import GameError
from schemas.ids import digest

Action = tuple[str, ...]
"""One seat's action in the game's own notation: one string per part (Diplomacy: one per order), sorted."""


class Outcome(msgspec.Struct, frozen=True):
    """Result of a finished game, seat by seat."""

    scores: tuple[float, ...]
    """Final score per seat, bonuses included."""
    ranks: tuple[int, ...]
    """1 for the best; tied seats share the better rank (1, 2, 2, 4)."""
    winner: int | None
    """The seat that is strictly first by the game's own measure of winning, if any; of a team, its first seat."""
    metrics: tuple[dict[str, float], ...]
    """Named facts per seat (Diplomacy: ``centers``, ``units``, ``survived``)."""
    reason: str
    """Why the game ended: ``year_cap``, ``solo``, ``draw`` …"""
    length: int
    """Number of ``apply`` calls (Diplomacy: phases)."""
    environment: str = ""
    """The TextArena environment, for a game that has several; empty for all other games."""
    teams: tuple[str, ...] = ()
    """Team of each seat, for a game with teams: its members share score and rank."""
    roles: tuple[str, ...] = ()
    """Role of each seat, for a game that draws them; else the names of the seats are their roles."""

    @classmethod
    def of(cls, scores: Sequence[float], teams: Sequence[str] = (), **facts: Any) -> "Outcome":
        """Make a result by scores alone: each team has the mean of its members'; ``facts`` are the other fields."""
        if len(teams) == len(scores):
            members = {team: [score for score, own in zip(scores, teams, strict=True) if own == team] for team in teams}
            scores = [members[team][0] if len(set(members[team])) == 1 else fmean(members[team]) for team in teams]
        sides = teams if len(teams) == len(scores) else range(len(scores))
        best = [seat for seat, score in enumerate(scores) if score == max(scores)]
        # Who plays together against nobody has no one to win against.
        is_won = len({sides[seat] for seat in best}) == 1 and (len(scores) == 1 or len(set(sides)) > 1)
        winner = best[0] if is_won else None
        return cls(tuple(scores), ranks(scores, sides), winner, teams=tuple(teams), **facts)


def check_outcome(game: str, outcome: Outcome, seats: int) -> None:
    """Check that a game with teams, or with drawn roles, has one for each seat, and that a team shares its result.

    Raises:
        GameError: with the seat that has none, or a member that differs.
    """
    for kind, names in (("team", outcome.teams), ("role", outcome.roles)):
        if names and not (len(names) == seats and all(names)):
            missing = next((seat for seat, name in enumerate(names) if not name), len(names))
            raise GameError(
                f"{game}: seat {missing} has no {kind} in {list(names)}; expected one for each of {seats} seats"
            )
    results: dict[str, tuple[float, int]] = {}
    for team, score, rank in zip(outcome.teams, outcome.scores, outcome.ranks, strict=False):
        if (score, rank) != (first := results.setdefault(team, (score, rank))):
            raise GameError(f"{game}: team {team!r} has a member with score and rank {score, rank}; expected {first}")


class TeamSizes:
    """Numbers of members by team, which are the same in all matches of one environment with so many seats.

    Who is in which team may differ from match to match.
    """

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], tuple[str, Counter[str]]] = {}

    def check(self, match: str, environment: str, teams: Sequence[str]) -> None:
        """Check a match with these teams; none for a match without teams.

        Raises:
            GameError: an earlier match had other teams; the message has both matches.
        """
        sizes = Counter(teams)
        first, expected = self._first.setdefault((environment, len(teams)), (match, sizes))
        if teams and sizes != expected:
            raise GameError(
                f"match {match}: the teams of {environment} are {_describe_teams(sizes)}; expected "
                f"{_describe_teams(expected)}, as in match {first}"
            )


def _describe_teams(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{team} with {size}" for team, size in sorted(sizes.items()))


class Turn(msgspec.Struct, frozen=True):
    """One turn of a recorded match in readable form."""

    title: str
    """The game's name for the turn: ``S1901M``, ``turn 3``."""
    moves: dict[str, list[str]]
    """Moves by the seat's name, a line per part."""
    notes: list[str] = []
    """Notable results (Diplomacy: supply centres at the end of a year)."""


class Game(Protocol):
    """One play-through of a game."""

    name: str
    seats: Sequence[str]

    def to_move(self) -> Sequence[int]:
        """The seats to move, ascending; empty once the game is over."""

    def random_action(self, seat: int, rng: Random) -> Action:
        """Draw a uniformly random legal action of ``seat`` by ``rng`` alone; ``GameError`` if it is not to move."""

    def is_legal(self, seat: int, action: Action) -> bool:
        """Whether ``apply`` would accept the action as it stands."""

    def apply(self, actions: Mapping[int, Action]) -> None:
        """Play the actions of all seats to move; ``GameError`` for a missing or illegal one, and nothing changes."""

    @property
    def clock(self) -> int:
        """The coarse time (Diplomacy: the year)."""

    def progress(self, seat: int) -> float:
        """The seat's progress (Diplomacy: its supply centres)."""

    def outcome(self) -> Outcome:
        """The result; ``GameError`` while the game is not over."""

    def save(self) -> bytes:
        """The position as canonical JSON: equal positions give equal bytes."""

    def record(self) -> bytes:
        """The play-through as canonical JSON: settings, seed, all actions and each position's checksum."""


class Recording(NamedTuple):
    """A decoded game record."""

    seed: int
    start: Game
    """The first position, ready to be played on."""
    turns: list[dict[int, Action]]
    """Actions by seat, turn by turn."""
    checks: list[str]
    """``position_checksum`` of the position after each turn; empty in records older than these checksums."""


Pieces = tuple[str, ...]
"""A text as indivisible pieces; a tokenizer maps each piece to one token or several, always the same ones."""


class Phrases(Protocol):
    """An immutable state in the walk over the legal completions of one decision, piece by piece."""

    def options(self) -> "Mapping[str, Phrases]":
        """The next pieces and the state after each; one entry is a forced piece, none a finished completion."""


class TextFormat(Protocol):
    """A game's compact language: fixed vocabulary, prompts, legal completions, and their conversion to actions.

    All methods with a seat raise ``GameError`` if it is not to move.
    """

    def vocabulary(self) -> Sequence[str]:
        """Every piece that a prompt or completion can contain, sorted: the words of the game's tokenizer."""

    def prompt(self, game: Game, seat: int) -> Pieces:
        """The position as ``seat`` sees it."""

    def completions(self, game: Game, seat: int) -> Phrases:
        """The walk over all legal completions."""

    def write(self, game: Game, seat: int, action: Action) -> Pieces:
        """Write the completion for ``action``; ``GameError`` if it is not legal."""

    def read(self, game: Game, seat: int, completion: Pieces) -> Action:
        """Read the action from a completion; ``GameError`` if it is not one of ``completions``."""


class ParsedAction(NamedTuple):
    """The action parsed from a reply in plain language."""

    action: Action
    """Always legal."""
    choices: int
    """Number of choices that the reply had to make (Diplomacy: one per unit)."""
    illegal: int
    """Choices that were missing or illegal; the game's default replaces them."""
    mentions_move: bool = True
    """Whether anything in the reply reads as a move, legal or not."""
    well_formed: bool = True
    """Whether the reply has the form that the rules ask for."""


class Words(Protocol):
    """A game in plain language, for models that were never trained on its ``TextFormat``. Deterministic."""

    def rules(self) -> str:
        """The rules in brief, and the form of a reply."""

    def question(self, game: Game, seat: int) -> str:
        """The position as ``seat`` sees it, and all of its choices; ``GameError`` if it is not to move."""

    def understand(self, game: Game, seat: int, reply: str, rng: Random) -> ParsedAction:
        """Parse a reply leniently: Markdown, bullets, letter case and surrounding prose are ignored.

        Any text is accepted; the game's default, drawn with ``rng``, fills in what is missing. ``game`` must still be
        at the position of the question.
        """


class GameSpec(Protocol):
    """A registered game: makes play-throughs and knows its bots and its text format. Subclasses inherit ``replay``."""

    name: str
    seats: Sequence[str]
    bots: Sequence[str]
    """Names of the scripted agents that can play it."""
    rules_version: int = 1
    """Version of the rules, from 1 on. It increases with every change to how a game with the same settings, seed and
    actions ends, but not with how models are prompted: results under different rules are not comparable."""
    is_fully_observed: bool = False
    """Whether every seat sees all of a position, and no chance is left in it: copies can be searched."""

    def new(self, seed: int) -> Game:
        """Start a play-through."""

    def load(self, saved: bytes) -> Game:
        """Restore a ``Game.save``, ready to be played on; ``DecodeError`` for other bytes."""

    def replay(self, record: bytes) -> Game:
        """Replay a ``Game.record`` under the settings it was played with; the result saves to the same bytes."""
        recording = self.open_record(record)
        for actions in recording.turns:
            recording.start.apply(actions)
        return recording.start

    def open_record(self, record: bytes) -> Recording:
        """Decode a ``Game.record`` under its own settings, without playing it; ``DecodeError`` for other bytes."""

    def transcript(self, record: bytes) -> list[Turn]:
        """Describe a ``Game.record`` in words; ``DecodeError`` or ``GameError`` if it cannot be replayed."""

    def bot(self, name: str) -> "Bot":
        """The scripted agent of this name; ``GameError``, which lists the names, if there is none."""

    def text(self) -> TextFormat:
        """The format in which language models read positions and write actions."""


class Bot(Protocol):
    """A scripted agent: a pure function of (position, seat, rng)."""

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """Choose a legal action for ``seat``."""


class OpponentModel(Protocol):
    """A prediction of the other seats' actions, fitted to those of the match so far."""

    def observe(self, game: Game, seat: int) -> None:
        """Take in what was played since the last call, by all seats but ``seat``."""

    def act(self, game: Game, seats: Sequence[int], rng: Random) -> Mapping[int, Action]:
        """Sample the actions of these seats; the match need not have reached the position."""


@runtime_checkable
class SupportsOpponentModel(Protocol):
    """A ``GameSpec`` whose players can be predicted."""

    def opponent_model(self, known: Sequence[str]) -> OpponentModel:
        """An opponent model before a match; another seat may be one of the ``known`` bots, or none."""


@runtime_checkable
class SupportsValueFunction(Protocol):
    """A ``GameSpec`` with a value function, fitted to finished games."""

    def expected_value(self, game: Game, seat: int) -> float:
        """Expected final value of the seat's game, 0 to 1: ``squares`` of ``SearchConfig.value``."""


def position_checksum(saved: bytes) -> str:
    """Eight hex digits that distinguish a saved position from nearly all others."""
    return digest(saved)[:8]


def ranks(scores: Sequence[float], sides: Sequence[Hashable] = ()) -> tuple[int, ...]:
    """The rank of each score, 1 for the highest; tied ones share the better rank (1, 2, 2, 4).

    Seats of one of the ``sides`` have one score, and take one place.
    """
    descending = sorted(dict(zip(sides, scores, strict=True)).values() if sides else scores, reverse=True)
    return tuple([1 + descending.index(score) for score in scores])


def sole_leader(values: Sequence[float]) -> int | None:
    """The seat of the strictly highest value, None if several share it."""
    best = max(values)
    return values.index(best) if values.count(best) == 1 else None


def validate_actions(game: Game, actions: Mapping[int, Action], moment: Callable[[], str]) -> list[tuple[int, Action]]:
    """List actions in seat order; ``GameError`` unless all are legal and exactly the seats to move act.

    ``moment`` gives the game's name for the current turn, for the message.
    """
    expected = list(game.to_move())
    if sorted(actions) != expected:
        raise GameError(f"{game.name}, {moment()}: actions of seats {sorted(actions)}; expected those of {expected}")
    for seat in expected:
        if not game.is_legal(seat, actions[seat]):
            raise GameError(
                f"{game.name}, {moment()}: seat {seat} ({game.seats[seat]}) cannot play {actions[seat]!r}; "
                "expected a sorted, complete and legal action"
            )
    return [(seat, actions[seat]) for seat in expected]
