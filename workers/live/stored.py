"""The events of a league as its tables keep them, for folds that run beside the server."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from league.log.base import Recorded
from workers.live.league import LiveLeague

_AT_ONCE = 5_000
_PATIENCE_S = 60.0


class StoredHistory:
    """What an audit reads, from another thread than the server's: a long fold would hold up everybody there.

    Args:
        league: Whose tables are read.
        through: The newest event that counts.
        loop: Of the server, where the tables are asked.
    """

    def __init__(self, league: LiveLeague, through: int, loop: asyncio.AbstractEventLoop) -> None:
        self._league = league
        self._through = through
        self._loop = loop

    async def last_sequence(self) -> int:
        """Sequence of the newest event that counts."""
        return self._through

    async def read(self, first: int = 1, last: int | None = None) -> AsyncIterator[Recorded]:
        """Events from sequence ``first`` to ``last``, as they were written."""
        last = self._through if last is None else min(last, self._through)
        while first <= last:
            rows = self._rows(first, last)
            for row in rows:
                yield Recorded(**row)
            if not rows:
                return
            first = rows[-1]["sequence"] + 1

    def _rows(self, first: int, last: int) -> list[dict[str, Any]]:
        asked = self._league.rows(
            "SELECT sequence, time_ns, subject, producer, coalesce(raw, encode(payload)) AS payload, schema "
            "FROM kept.all_events WHERE sequence BETWEEN ? AND ? ORDER BY sequence LIMIT ?",
            first,
            last,
            _AT_ONCE,
        )
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result(_PATIENCE_S)
