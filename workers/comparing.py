"""Ratings under other rules, for commands: another command that is at the same file is waited for."""

import asyncio
import time
from pathlib import Path

from league.counterfactual import Comparison, Otherwise, compare
from schemas.errors import BusyError

_PATIENCE_S = 60.0


async def compared(path: Path, until: int, otherwise: Otherwise) -> Comparison:
    """See ``league.counterfactual.compare``.

    Raises:
        BusyError: another process has been writing the file for a minute.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return compare(path, until, otherwise)
        except BusyError:
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.2)
