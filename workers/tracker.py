"""The tracker: sends charts of the history to Weights & Biases or files, and exports its events.

It only reads. It can be started at any time, also after the league has ended, and covers the history from the first
event; rows that its sinks have are not sent again. Heartbeat metrics, which are in no event, are covered from its
start on.
"""

import asyncio
import os
from collections.abc import Sequence

from league.log.jetstream import JetStreamLog
from league.log.metrics import MetricsStream
from schemas.config import Plugin, to_builtins
from schemas.errors import LogError
from schemas.events import LeagueBranched, LeagueOpened
from schemas.ids import digest
from schemas.loggers import get_logger
from workers.log_export.exports import LogExports
from workers.log_export.lines import LogLineWriter
from workers.runtime import Context, beside
from workers.trackers.feed import SinkFeed
from workers.trackers.sinks import Place, make_sink

log = get_logger()

_FINISH_TIMEOUT_S = 30.0
"""Time for sinks to accept the last rows when the tracker is stopped."""
_RETRY_S = 5.0
_NICE = 5


async def serve(context: Context, sinks: Sequence[str] = ()) -> None:
    """Feed sinks until the worker is stopped, then send the rows of all events recorded by then.

    ``sinks`` names the sinks to feed, without log export; empty for everything that is configured.
    """
    # Play and training have priority on a machine whose cores are all busy.
    os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    place, newest = await make_place(context), await context.log.last_sequence()
    feeds = [SinkFeed(plugin.name, make_sink(plugin), place, newest) for plugin in _select_sinks(context, sinks)]
    exports = [] if sinks else context.config.tracker.forward
    forwards = LogExports(exports, context.run.folder, LogLineWriter(place.league, place.identity))
    async with beside(
        _collect_heartbeats(context, feeds), forwards.run(context.log), *(f.follow(context.log) for f in feeds)
    ):
        await context.stopping.wait()
        await _wait_for_sinks([*feeds, forwards], await context.log.last_sequence())
    for feed in feeds:
        await feed.close()


def _select_sinks(context: Context, sinks: Sequence[str]) -> list[Plugin]:
    configured = {plugin.name: plugin for plugin in context.config.tracker.sinks}
    return [configured.get(name) or Plugin(name=name) for name in sinks or configured]


async def _wait_for_sinks(feeds: Sequence[SinkFeed | LogExports], sequence: int) -> None:
    try:
        async with asyncio.timeout(_FINISH_TIMEOUT_S):
            await asyncio.gather(*(feed.wait_for_sequence(sequence) for feed in feeds))
    except TimeoutError:
        log.warning("not all rows were taken; the next tracker goes on from there", waited_s=_FINISH_TIMEOUT_S)


async def _collect_heartbeats(context: Context, feeds: Sequence[SinkFeed]) -> None:
    stream = MetricsStream(context.client, context.log.league)
    while True:
        try:
            async for heartbeat in stream.follow():
                for feed in feeds:
                    feed.heartbeat_means.add(heartbeat)
        except LogError as error:
            log.warning("no heartbeats are heard", error=str(error), retry_s=_RETRY_S)
        await asyncio.sleep(_RETRY_S)


async def make_place(context: Context) -> Place:
    """The place of the league's rows: its history and the folder for files."""
    return Place(
        folder=context.run.folder / "tracking",
        league=context.log.league,
        identity=await history_identity(context.log),
        config=to_builtins(context.config),
    )


async def history_identity(history: JetStreamLog) -> str:
    """A digest that distinguishes histories of the same league name: of when it was opened and last branched."""
    marks = [await history.newest(kind) for kind in (LeagueOpened, LeagueBranched)]
    return digest(repr([(mark.sequence, mark.time_ns) for mark in marks if mark is not None]).encode())
