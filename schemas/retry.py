"""Pauses between the tries of one operation: exponential backoff with jitter.

tenacity and stamina retry a call that raises; half of the loops here go by a result, run without end, and start over
after progress.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import inf


@dataclass
class Backoff:
    """Exponential backoff: each pause is twice as long as the one before, up to a bound.

    The caller sleeps, so that cancelling its task ends a pause at once and ``asyncio.timeout`` sets a deadline.
    """

    first_s: float
    """First pause in seconds."""
    max_s: float
    """Maximum pause in seconds, before jitter."""
    jitter: tuple[float, float] = (1.0, 1.0)
    """Range of the random factor of each pause; clients that were rejected together then return apart."""
    uniform: Callable[[float, float], float] = random.uniform
    """Draws the factor; tests give their own."""

    def __post_init__(self) -> None:
        self._next_s = self.first_s

    def next_s(self, at_least_s: float = 0.0, at_most_s: float = inf) -> float:
        """The length of the next pause.

        ``at_least_s`` is what the other side demands (``Retry-After``); later pauses double from one bounded by
        ``at_most_s``.
        """
        pause_s = min(self._next_s, self.max_s, at_most_s)
        self._next_s = 2 * pause_s
        return max(pause_s * self.uniform(*self.jitter), at_least_s)

    def reset(self) -> None:
        """Start over with the first pause, after progress."""
        self._next_s = self.first_s
