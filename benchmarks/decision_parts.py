"""Where the time of decisions goes: functions timed in place, each without what it calls of the others."""

import functools
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

REST = "players, event loop"


class Parts:
    """Seconds by part."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._open = [REST]
        self._since = time.perf_counter()

    def total(self) -> float:
        """All parts together: the time that passed."""
        self._turn()
        return sum(self.seconds.values())

    @contextmanager
    def of(self, owner: Any, name: str, part: str | Callable[..., str]) -> Iterator[None]:
        """Time a function of a class or module as ``part``, which may depend on its arguments, within the block."""
        timed = getattr(owner, name)

        @functools.wraps(timed)
        def wrapper(*args: Any, **options: Any) -> Any:
            self._turn()
            self._open.append(part if isinstance(part, str) else part(*args, **options))
            try:
                return timed(*args, **options)
            finally:
                self._turn()
                self._open.pop()

        setattr(owner, name, wrapper)
        try:
            yield
        finally:
            setattr(owner, name, timed)

    def _turn(self) -> None:
        now = time.perf_counter()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now
