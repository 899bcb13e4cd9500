"""Rock, paper, scissors with simultaneous moves and a payoff table that may be biased.

By default rock beats scissors for double the payoff: the equilibrium is then a quarter rock, half paper, a quarter
scissors, and the uniform strategy loses to paper. With a payoff table for each player it is any repeated matrix game,
such as the iterated prisoner's dilemma.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from arena.enumerable import ListedGame, ListedSpec
from arena.games import register
from arena.games.texts import Pieces
from schemas.config.base import Table
from schemas.errors import ConfigError

Payoff = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]


class Settings(Table, frozen=True):
    """The ``[game]`` settings."""

    moves: tuple[str, ...] = ("rock", "paper", "scissors")
    payoffs: tuple[tuple[Payoff, ...], ...] = ((0.0, -1.0, 2.0), (1.0, 0.0, -1.0), (-2.0, 1.0, 0.0))
    """Payoff of P1 from P2 in a round: a row per move of P1, a column per move of P2."""
    second_payoffs: tuple[tuple[Payoff, ...], ...] | None = None
    """Payoff of P2 in the same rows and columns; by default what P1 loses."""
    rounds: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3

    def __post_init__(self) -> None:
        if not 2 <= len(set(self.moves)) == len(self.moves) or not all(m.isalpha() and m.islower() for m in self.moves):
            raise ConfigError(f"moves: found {list(self.moves)}; expected two or more different words in small letters")
        for key in ("payoffs", "second_payoffs"):
            rows, moves = getattr(self, key), len(self.moves)
            if rows is not None and (lengths := [len(row) for row in rows]) != [moves] * moves:
                raise ConfigError(
                    f"{key}: found rows of {lengths}; expected a row and a column for each of {moves} moves"
                )

    def payoff(self, seat: int, first: int, second: int) -> float:
        """What a seat wins in a round by both moves."""
        if seat == 1 and self.second_payoffs is not None:
            return self.second_payoffs[first][second]
        return self.payoffs[first][second] if seat == 0 else -self.payoffs[first][second]


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position."""

    played: list[tuple[int, int]]
    """Moves of both seats, round by round, as indices into ``Settings.moves``."""


class RockPaperScissors(ListedGame[State]):
    """A match of several rounds."""

    spec: "RockPaperScissorsSpec"

    def to_move(self) -> Sequence[int]:
        """Both seats until the last round is played."""
        return (0, 1) if self.clock < self.spec.settings.rounds else ()

    def moves(self, seat: int) -> Sequence[str]:
        """All moves; every one is always legal."""
        return self.spec.settings.moves

    def after(self, moves: Mapping[int, str]) -> State:
        """The position after one more round."""
        first, second = (self.spec.settings.moves.index(moves[seat]) for seat in (0, 1))
        return State([*self.state.played, (first, second)])

    @property
    def clock(self) -> int:
        """The number of rounds played."""
        return len(self.state.played)

    def progress(self, seat: int) -> float:
        """The seat's winnings so far."""
        settings = self.spec.settings
        if settings.second_payoffs is None:
            won = float(sum(settings.payoffs[first][second] for first, second in self.state.played))
            return won if seat == 0 else -won
        return float(sum(settings.payoff(seat, first, second) for first, second in self.state.played))

    def scores(self) -> Sequence[float]:
        """The total winnings; the game is zero-sum unless ``second_payoffs`` say otherwise."""
        return [self.progress(seat) for seat in (0, 1)]

    def reason(self) -> str:
        """The only reason a game can end: all rounds were played."""
        return "rounds"

    def metrics(self) -> Sequence[dict[str, float]]:
        """The frequency of each move, by seat."""
        made = [[pair[seat] for pair in self.state.played] for seat in (0, 1)]
        return [{word: float(mine.count(i)) for i, word in enumerate(self.spec.settings.moves)} for mine in made]

    def sees(self, seat: int) -> Pieces:
        """The earlier rounds, the seat's own move first."""
        rounds = ((mine[seat], mine[1 - seat]) for mine in self.state.played)
        return tuple(self.spec.settings.moves[move] for pair in rounds for move in pair)

    def tells(self, seat: int) -> str:
        """The seat's view in English."""
        rounds = [
            f"you {self.spec.settings.moves[p[seat]]}, the other {self.spec.settings.moves[p[1 - seat]]}"
            for p in self.state.played
        ]
        return f"Round {self.clock + 1} of {self.spec.settings.rounds}. Before: {'; '.join(rounds) or 'nothing'}."

    def notes(self) -> list[str]:
        """The balance."""
        others = "" if self.spec.settings.second_payoffs is None else f", P2 {self.progress(1):g}"
        return [f"P1 has won {self.progress(0):g}{others}"]


class RockPaperScissorsSpec(ListedSpec[State]):
    """Starts matches of rock, paper, scissors."""

    name = "rock_paper_scissors"
    settings: Settings
    settings_type, state_type, game_type = Settings, State, RockPaperScissors

    def start(self, seed: int) -> State:
        """The empty position; the seed has no influence."""
        return State([])

    def is_possible(self, state: State) -> bool:
        """Whether every move played is one of the settings' moves."""
        return all(0 <= move < len(self.settings.moves) for pair in state.played for move in pair)

    def pieces(self) -> Sequence[str]:
        """The moves."""
        return self.settings.moves

    def rules(self) -> str:
        """The rules in English, with the payoff of every pair of moves."""
        settings = self.settings
        is_zero_sum = settings.second_payoffs is None
        gains = "What P1 gets and P2 loses in a round" if is_zero_sum else "What P1 and P2 get in a round"
        table = [
            f"{mine} against {other}: {settings.payoff(0, first, second):g}"
            + ("" if is_zero_sum else f" and {settings.payoff(1, first, second):g}")
            for first, mine in enumerate(settings.moves)
            for second, other in enumerate(settings.moves)
        ]
        return (
            f"Two players, P1 and P2, choose at the same time one of {', '.join(settings.moves)}, "
            f"{settings.rounds} times. {gains}, by the moves of P1 against P2: {'; '.join(table)}. The most points win."
        )


make = register("rock_paper_scissors")(RockPaperScissorsSpec.of)
