"""Moves that an environment may accept, for those that show examples in place of a list.

Each is tried on a copy of the environment before it counts as a move, so a table may hold more than the rules allow.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations, pairwise, product
from math import comb
from typing import Any

MAX_CANDIDATES = 300
"""Maximum number of candidate moves that are tried in a position."""

LISTED: Mapping[str, tuple[str, ...]] = {
    "Battleship": tuple(f"[{row}{column}]" for row, column in product("ABCDEFGHIJ", range(10))),
    "Briscola": tuple(f"[play {card}]" for card in range(1, 4)),
    "Chopsticks": (
        *(f"[attack {own} {other}]" for own, other in product(range(2), repeat=2)),
        *(f"[split {left} {right}]" for left, right in product(range(9), repeat=2) if left + right <= 8),
    ),
    "ConnectFour": tuple(f"[col {column}]" for column in range(7)),
    "GermanWhist": tuple(f"[play {card}]" for card in range(1, 14)),
    "Golf": (
        *("[draw]", "[take]", "[discard]", "[knock]"),
        *(f"[{act} {row} {column}]" for act in ("swap", "peek") for row in range(1, 4) for column in range(1, 5)),
    ),
    "IteratedPrisonersDilemma": ("[cooperate]", "[defect]"),
    "IteratedRockPaperScissors": ("[rock]", "[paper]", "[scissors]"),
    "IteratedTwoThirdsAverage": tuple(f"[{number}]" for number in range(101)),
    "LiarsDice": ("[Call]", *(f"[Bid: {count}, {face}]" for count, face in product(range(1, 9), range(1, 7)))),
    # Eight issues with five choices each: some of the 390,625 offers.
    "NewRecruit": (
        *("[Accept]", "[Reject]"),
        *(
            f"[Propose] {''.join('ABCDE'[(first + step * at) % 5] for at in range(8))}"
            for first, step in product(range(5), repeat=2)
        ),
    ),
    "Nim": tuple(f"[{pile} {count}]" for pile, count in product(range(4), range(1, 10))),
    "PegJump": tuple(f"[{start} {end}]" for start, end in product(range(1, 16), repeat=2)),
    "QuantumTicTacToe": tuple(f"[{one},{other}]" for one, other in combinations(range(9), 2)),
    "RushHour": tuple(f"[{car}{way}]" for car, way in product("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "+-")),
    "Snake": ("[up]", "[down]", "[left]", "[right]"),
    "Surround": ("[up]", "[down]", "[left]", "[right]"),
    "ThreePlayerIPD": tuple(
        " ".join(f"[{player} {choice}]" for player, choice in zip(others, choices, strict=True))
        for others in ((1, 2), (0, 2), (0, 1))
        for choices in product(("cooperate", "defect"), repeat=2)
    ),
    "TwoDollar": ("[Accept]", "[Reject]", *(f"[Propose] ${cents / 100:.2f}" for cents in range(0, 201, 10))),
}
"""Moves by the environment's name without its version."""


def _alquerque(env: Any, seat: int) -> Iterator[str]:
    name = sys.modules[type(env).__module__].rc_to_coord
    for row, column in _squares(env.state.game_state["board"], "RB"[seat]):
        for to_row, to_column in product(range(row - 2, row + 3), range(column - 2, column + 3)):
            if 0 <= to_row < env.BOARD_N and 0 <= to_column < env.BOARD_N:
                yield f"[{name(row, column)} {name(to_row, to_column)}]"


def _bandit(env: Any, seat: int) -> Iterator[str]:
    return (f"[{button}]" for button in env.buttons)


def _breakthrough(env: Any, seat: int) -> Iterator[str]:
    for row, column in _squares(env.state.game_state["board"], "WB"[seat]):
        to_row = row + (1, -1)[seat]
        for to_column in range(max(column - 1, 0), min(column + 2, env.board_size)):
            yield f"[{chr(ord('a') + column)}{row + 1}{chr(ord('a') + to_column)}{to_row + 1}]"


def _colonel_blotto(env: Any, seat: int) -> Iterator[str]:
    """All allocations, or those in the smallest lots of which there are not too many."""
    fields, units = len(env.field_names), env.num_total_units
    lot = next(lot for lot in range(1, units + 1) if comb(units // lot + fields - 1, fields - 1) <= MAX_CANDIDATES)
    for bars in combinations(range(units // lot + fields - 1), fields - 1):
        edges = (-1, *bars, units // lot + fields - 1)
        shares = [lot * (end - start - 1) for start, end in pairwise(edges)]
        shares[0] += units % lot
        yield f"[{' '.join(f'{name}{share}' for name, share in zip(env.field_names, shares, strict=True))}]"


def _guess_the_number(env: Any, seat: int) -> Iterator[str]:
    return (f"[{number}]" for number in range(env.min_number, env.max_number + 1))


def _lines_of_action(env: Any, seat: int) -> Iterator[str]:
    board = env.state.game_state["board"]
    for row, column in _squares(board, "OX"[seat]):
        for down, right in product((-1, 0, 1), repeat=2):
            for distance in range(1, len(board)):
                to_row, to_column = row + down * distance, column + right * distance
                if (down or right) and 0 <= to_row < len(board) and 0 <= to_column < len(board):
                    yield f"[{env.rc_to_coord(row, column)}{env.rc_to_coord(to_row, to_column)}]"


def _minesweeper(env: Any, seat: int) -> Iterator[str]:
    return (f"[{row} {column}]" for row, column in product(range(env.rows), range(env.cols)))


def _tak(env: Any, seat: int) -> Iterator[str]:
    for row, column in product(range(env.board_size), repeat=2):
        stack = env.board[row][column]
        if not stack:
            yield from (f"[place () {{({row},{column}): [{stone}{seat}]}}]" for stone in "FWC")
        elif stack[-1][-1] == str(seat):
            for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
                target = (row + down, column + right)
                if min(target) >= 0 and max(target) < env.board_size:
                    for height in range(1, len(stack) + 1):
                        moved = ", ".join(stack[-height:])
                        yield f"[move ({row},{column}) {{({target[0]},{target[1]}): [{moved}]}}]"


def _squares(board: Any, piece: str) -> Iterator[tuple[int, int]]:
    return ((row, column) for row, line in enumerate(board) for column, found in enumerate(line) if found == piece)


FROM_POSITION: Mapping[str, Callable[[Any, int], Iterator[str]]] = {
    "Alquerque": _alquerque,
    "Bandit": _bandit,
    "Breakthrough": _breakthrough,
    "ColonelBlotto": _colonel_blotto,
    "GuessTheNumber": _guess_the_number,
    "LinesOfAction": _lines_of_action,
    "Minesweeper": _minesweeper,
    "Tak": _tak,
}
"""Listings by the environment's name without its version, from the unwrapped environment and the seat to move."""
