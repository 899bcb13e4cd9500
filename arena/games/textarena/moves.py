"""Which moves to try: those in square brackets in what a seat is told, and for some environments others."""

import re
from collections.abc import Iterable, Mapping
from itertools import product

MOST = 300
"""Moves that are tried at one place."""
LONGEST = 40
"""Letters of a move that was found in a text; longer ones are explanations."""

GROUP = re.compile(r"\[[^\[\]\n]*\]")

# Environments that show examples instead of a list.
UNSAID: Mapping[str, tuple[str, ...]] = {
    "ConnectFour": tuple(f"[col {column}]" for column in range(7)),
    "IteratedPrisonersDilemma": ("[cooperate]", "[defect]"),
    "IteratedRockPaperScissors": ("[rock]", "[paper]", "[scissors]"),
    "LiarsDice": ("[Call]", *(f"[Bid: {count}, {face}]" for count, face in product(range(1, 9), range(1, 7)))),
    "Nim": tuple(f"[{pile} {count}]" for pile, count in product(range(4), range(1, 10))),
    "Snake": ("[up]", "[down]", "[left]", "[right]"),
    "Surround": ("[up]", "[down]", "[left]", "[right]"),
    "ThreePlayerIPD": tuple(
        " ".join(f"[{player} {choice}]" for player, choice in zip(others, choices, strict=True))
        for others in ((1, 2), (0, 2), (0, 1))
        for choices in product(("cooperate", "defect"), repeat=2)
    ),
}
"""By the environment's name without its version."""


def to_try(name: str, observation: str) -> Iterable[str]:
    """Moves that may be legal, none twice, in a fixed order."""
    found = (group for group in GROUP.findall(observation) if len(group) <= LONGEST)
    return list(dict.fromkeys((*UNSAID.get(name.partition("-")[0], ()), *found)))[:MOST]
