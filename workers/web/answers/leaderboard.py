"""Who is ahead: now, or as it was at any place of the history."""

from typing import Any

import msgspec

from league.boards.leaderboard import Wanted, leaderboard
from workers.web.answers.base import answers
from workers.web.asked import Asked
from workers.web.live import LiveLeague

_DRAWS = 0
"""Resampled histories behind intervals: left to those who ask, since they take seconds on long histories."""


@answers("/leaderboard")
async def board(league: LiveLeague, asked: Asked) -> Any:
    """``league leaderboard``: ``at`` a sequence, under a ``system``, with intervals of ``draws`` resamplings."""
    upto = min(asked.whole("at") or league.position, league.position)
    draws = asked.whole("draws", most=1000)
    wanted = Wanted(upto, asked.text("system"), asked.text("game"), "agent", _DRAWS if draws is None else draws)
    return msgspec.to_builtins(await league.read(lambda connection: leaderboard(connection, wanted)))
