"""What a visitor can play, and with whom."""

import asyncio
from typing import Any

from workers.live.answers.base import answers
from workers.live.asked import Asked
from workers.live.league import LiveLeague
from workers.people.room import contest_of, folded, offered, unrecorded


@answers("/play")
async def play(league: LiveLeague, _: Asked) -> Any:
    """The league's game, its seats, and who can sit there; and whether what is played is recorded."""
    await folded(league.state, league.position)
    # Beside the pages: a game's package may take seconds to load.
    await asyncio.to_thread(contest_of, league.state)
    return {**offered(league.state), "unrecorded": unrecorded(league.run, league.log.league)}
