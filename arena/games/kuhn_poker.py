"""Two-player Kuhn poker: one card each from jack, queen and king, and one hidden-information betting round (Kuhn 1950).

Both players ante one chip. The first player checks or bets a chip; a bet is called or folded, a check is answered by a
check or a bet. The higher card takes the pot. Under optimal play the first player loses 1/18 of a chip per game.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated

import msgspec

from arena.enumerable import ListedGame, ListedSpec
from arena.games import register
from arena.games.texts import Pieces

CARDS = ("jack", "queen", "king")
"""Ranks, ascending."""
MOVES = ("bet", "call", "check", "fold")
Card = Annotated[int, msgspec.Meta(ge=0, lt=len(CARDS))]
LINES = (("check", "check"), ("check", "bet", "call"), ("check", "bet", "fold"), ("bet", "call"), ("bet", "fold"))
"""All hands."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[game]`` settings."""

    shuffle: bool = True
    """Whether the seed decides the first player; otherwise it is seat 0."""


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position."""

    cards: tuple[Card, Card]
    """Each seat's card, as an index into ``CARDS``."""
    first: Annotated[int, msgspec.Meta(ge=0, le=1)]
    """The seat that began."""
    said: list[str] = []
    """Moves so far."""


class KuhnPoker(ListedGame[State]):
    """One hand."""

    def to_move(self) -> Sequence[int]:
        """The seat to move; none after an answered bet or two checks, which end the game."""
        said = self.state.said
        is_over = said[-1:] in (["call"], ["fold"]) or said == ["check", "check"]
        return () if is_over else ((self.state.first + len(said)) % 2,)

    def moves(self, seat: int) -> Sequence[str]:
        """The replies to an open bet, or check and bet."""
        return ("call", "fold") if self.state.said[-1:] == ["bet"] else ("bet", "check")

    def after(self, moves: Mapping[int, str]) -> State:
        """The position after one more move."""
        (move,) = moves.values()
        return State(self.state.cards, self.state.first, [*self.state.said, move])

    @property
    def clock(self) -> int:
        """The number of moves made."""
        return len(self.state.said)

    def scores(self) -> Sequence[float]:
        """The chips won: 1, or 2 after a called bet."""
        won = 2.0 if self.reason() == "call" else 1.0
        folder = (self.state.first + len(self.state.said) - 1) % 2
        winner = 1 - folder if self.reason() == "fold" else int(self.state.cards[1] > self.state.cards[0])
        return [won if seat == winner else -won for seat in range(2)]

    def reason(self) -> str:
        """The last move."""
        return self.state.said[-1]

    def sees(self, seat: int) -> Pieces:
        """The seat's own card and the moves so far."""
        return (CARDS[self.state.cards[seat]], *self.state.said)

    def tells(self, seat: int) -> str:
        """The seat's view in English."""
        actions = ", ".join(self.state.said) or "nothing; you begin"
        return f"Your card is the {CARDS[self.state.cards[seat]]}. Said so far: {actions}."

    def notes(self) -> list[str]:
        """Both cards once they are revealed."""
        cards = [f"{name} held the {CARDS[card]}" for name, card in zip(self.seats, self.state.cards, strict=True)]
        return [] if self.to_move() else ["; ".join(cards)]


class KuhnPokerSpec(ListedSpec[State]):
    """Deals hands of Kuhn poker."""

    name = "kuhn_poker"
    settings_type, state_type, game_type = Settings, State, KuhnPoker

    def start(self, seed: int) -> State:
        """Deal two of the three cards."""
        rng = Random(seed)
        first, second = rng.sample(range(3), 2)
        return State((first, second), rng.randrange(2) if self.settings.shuffle else 0)

    def is_possible(self, state: State) -> bool:
        """Whether the cards differ and the actions begin a line of play."""
        said = tuple(state.said)
        return state.cards[0] != state.cards[1] and any(line[: len(said)] == said for line in LINES)

    def pieces(self) -> Sequence[str]:
        """The cards and moves."""
        return (*CARDS, *MOVES)

    def rules(self) -> str:
        """The rules in English."""
        return (
            "You are playing Kuhn poker. Two players, P1 and P2, put in one chip each and get one card each of jack, "
            "queen and king, the king being the highest; nobody sees the other's card. Whoever begins checks or bets "
            "one chip. A bet is called with one chip or folded, which loses the pot. After a check the other player "
            "checks or bets. After a call or two checks the higher card wins the pot."
        )


make = register("kuhn_poker")(KuhnPokerSpec.of)
