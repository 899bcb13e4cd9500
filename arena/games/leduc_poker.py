"""Two-player Leduc poker: six cards of three ranks, one private card each, one public card, two betting rounds.

Southey et al. 2005. Both players ante one chip. Seat 0 opens each round; a bet is 2 chips in the first round and 4 in
the second, with at most two bets per round. ``call`` answers a bet, or checks where there is none. After the first
round the public card is revealed: a pair with it wins, otherwise the higher card; equal cards split the pot. The same
game as OpenSpiel's ``leduc_poker``.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated

import msgspec

from arena.enumerable import ListedGame, ListedSpec
from arena.games import register
from arena.games.texts import Pieces

CARDS = ("jack", "queen", "king")
"""Ranks, ascending; the deck has two of each."""
MOVES = ("call", "fold", "raise")
Card = Annotated[int, msgspec.Meta(ge=0, lt=len(CARDS))]
Move = Annotated[str, msgspec.Meta(pattern=rf"^(?:{'|'.join(MOVES)})\Z")]
_BETS = (2.0, 4.0)
_MAX_RAISES = 2
_TABLE_CARD_MARK = "open"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[game]`` settings; there are none."""


class State(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A position."""

    cards: tuple[Card, Card, Card]
    """Indices into ``CARDS`` of both private cards and the public card, hidden until the first round is over."""
    rounds: Annotated[list[list[Move]], msgspec.Meta(min_length=1, max_length=2)] = msgspec.field(
        default_factory=lambda: [[]]
    )
    """Moves so far, round by round."""


class LeducPoker(ListedGame[State]):
    """One hand."""

    def to_move(self) -> Sequence[int]:
        """The seat to move, seat 0 first in each round; none after a fold or the last round."""
        actions = self.state.rounds[-1]
        is_last_round = len(self.state.rounds) == len(_BETS)
        is_over = actions[-1:] == ["fold"] or (is_last_round and _is_round_over(actions))
        return () if is_over else (len(actions) % 2,)

    def moves(self, seat: int) -> Sequence[str]:
        """The replies to an open bet, or check and bet."""
        actions = self.state.rounds[-1]
        raised = "raise" in actions
        return (*(["fold"] if raised else []), "call", *(["raise"] if actions.count("raise") < _MAX_RAISES else []))

    def after(self, moves: Mapping[int, str]) -> State:
        """The position after one more move; the public card is revealed once the first round is over."""
        (move,) = moves.values()
        rounds = [*self.state.rounds[:-1], [*self.state.rounds[-1], move]]
        opens = len(rounds) < len(_BETS) and _is_round_over(rounds[-1])
        return State(self.state.cards, [*rounds, []] if opens else rounds)

    @property
    def clock(self) -> int:
        """The number of moves made."""
        return sum(map(len, self.state.rounds))

    def scores(self) -> Sequence[float]:
        """The chips won, which are those the loser has paid in."""
        paid = [1.0, 1.0]
        for bet, actions in zip(_BETS, self.state.rounds, strict=False):
            for place, move in enumerate(actions):
                if move != "fold":
                    paid[place % 2] = paid[1 - place % 2] + (bet if move == "raise" else 0.0)
        if self.reason() == "fold":
            winner = len(self.state.rounds[-1]) % 2
        else:
            worth = [(card == self.state.cards[2], card) for card in self.state.cards[:2]]
            if worth[0] == worth[1]:
                return [0.0, 0.0]
            winner = int(worth[1] > worth[0])
        return [paid[1 - seat] if seat == winner else -paid[seat] for seat in range(2)]

    def reason(self) -> str:
        """The last move."""
        return self.state.rounds[-1][-1]

    def sees(self, seat: int) -> Pieces:
        """The seat's own card, the moves, and the public card once it is revealed."""
        first, *second = self.state.rounds
        table = (_TABLE_CARD_MARK, CARDS[self.state.cards[2]], *second[0]) if second else ()
        return (CARDS[self.state.cards[seat]], *first, *table)

    def tells(self, seat: int) -> str:
        """The seat's view in English."""
        first, *second = self.state.rounds
        text = f"First round: {', '.join(first) or 'nothing yet'}."
        if second:
            text += (
                f" On the table: {CARDS[self.state.cards[2]]}. Second round: {', '.join(second[0]) or 'nothing yet'}."
            )
        return f"Your card is the {CARDS[self.state.cards[seat]]}. {text}"

    def notes(self) -> list[str]:
        """The cards once the hand is over."""
        cards = [f"{name} held the {CARDS[card]}" for name, card in zip(self.seats, self.state.cards, strict=False)]
        return [] if self.to_move() else ["; ".join(cards)]


class LeducPokerSpec(ListedSpec[State]):
    """Deals hands of Leduc poker."""

    name = "leduc_poker"
    settings_type, state_type, game_type = Settings, State, LeducPoker

    def start(self, seed: int) -> State:
        """Deal three of the six cards."""
        first, second, table = Random(seed).sample([0, 0, 1, 1, 2, 2], 3)
        return State((first, second, table))

    def pieces(self) -> Sequence[str]:
        """The cards and moves."""
        return (*CARDS, *MOVES, _TABLE_CARD_MARK)

    def rules(self) -> str:
        """The rules in English."""
        return (
            "You are playing Leduc poker. The deck has two jacks, two queens and two kings, the king being the "
            "highest. Two players, P1 and P2, put in one chip each and get one card each; nobody sees the other's. P1 "
            "begins each of two rounds. One calls (which is a check where nothing was bet), raises by 2 chips in the "
            "first round and by 4 in the second, at most twice a round, or folds, which loses the pot. After the first "
            "round a card is laid open. In the end whoever pairs it wins, else the higher card; equal cards share the "
            "pot."
        )


def _is_round_over(actions: Sequence[str]) -> bool:
    """Whether a bet was answered, or both players have checked."""
    return len(actions) > 1 and actions[-1] == "call"


make = register("leduc_poker")(LeducPokerSpec.of)
