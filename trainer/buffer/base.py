"""The protocol of a strategy, which says in what order waiting rollouts are trained on, and the registry."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple, Protocol

from schemas.plugins import Registry


class Unit(NamedTuple):
    """What is drawn as one: a rollout, or at step level one step of it."""

    sequence: int
    """Of ``EXPERIENCE``: the order of arrival."""
    step: int
    """Index in the rollout; -1 for all of it."""
    game: str
    role: str
    lag: int
    """Versions that the policy has moved on since the rollout's oldest step, or since this one."""
    score: float
    """Of the rollout."""


class Strategy(Protocol):
    """In what order units are taken."""

    def __call__(self, units: Sequence[Unit], rng: Random) -> list[Unit]:
        """All the units, the one to be taken first in front; pure in its arguments.

        Args:
            units: by sequence and step.
            rng: a fresh one for every batch, so that a trainer that begins again draws the same.
        """


STRATEGIES: Registry[Strategy] = Registry("trainer.buffer.strategy", "trainer.buffer")
register = STRATEGIES.register


def take(order: Sequence[Unit], count: int, shares: dict[str, float]) -> list[Unit]:
    """The first ``count`` units, as far as there are; by sequence and step.

    Args:
        order: from a ``Strategy``.
        count: at most so many.
        shares: of the batch, by game; others have what these leave. What a game has not enough of goes to the others,
            in their order.
    """
    room = {game: int(count * share) for game, share in shares.items()}
    rest = count - sum(room.values())
    taken: list[Unit] = []
    passed: list[Unit] = []
    for unit in order:
        free = room.get(unit.game, rest)
        (taken if free > 0 else passed).append(unit)
        if unit.game in room:
            room[unit.game] = free - 1
        else:
            rest -= 1
    return sorted((taken + passed)[:count]) if shares else sorted(order[:count])
