"""Big events, and tables that fail: the pages go on, and name what they skip."""

import asyncio
from collections.abc import Callable

import duckdb
import msgspec
import pytest

from league.log.base import RecordedEvent
from league.projections.tables import RECORDED_EVENTS
from schemas.errors import BusyError
from schemas.events import AgentRegistered, Event, MatchFailed, MatchFinished
from tests.simulated_history import Simulation
from tests.web.conftest import Site

FULL = "x" * (Event.MAX_BYTES - 300)


async def wait_for(site: Site, sequence: int) -> None:
    async with asyncio.timeout(120):
        await site.league.wait_for_sequence(sequence)


def test_events_from_a_stranger_as_large_as_the_broker_takes_leave_the_pages_running(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    async def body(site: Site) -> None:
        js = site.log.client.jetstream()
        finished = next(r.event for r in simulated.history if isinstance(r.event, MatchFinished))
        for number in range(12):
            event = msgspec.structs.replace(finished, match_id=f"big-{number}", worker="w", reason="x" * 4_100_000)
            payload = msgspec.json.encode(event)
            await js.publish("league.league.match.training.finished.w", payload, headers={"League-Schema": "2"})
        failures = [
            MatchFailed(match_id=f"failed-{n}", purpose="training", worker="w", error=f"{n}{FULL}") for n in range(400)
        ]
        added = (await site.log.append_batch(failures))[-1]
        await wait_for(site, added)
        assert await site.league.query("SELECT count(*) FROM match_failures WHERE worker = 'w'") == [(400,)]
        assert (await site.league.query("SELECT * FROM unreadable_events"))[0][1] == 12
        # The whole of a message that is no event is the archive's.
        assert await site.league.query("SELECT max(strlen(payload)) <= 66000 FROM kept.events") == [(True,)]
        for page in ("/overview", "/leaderboard", "/matches"):
            await site.get(page)

    on_site(simulated.history, body)


def test_a_page_that_needs_too_much_memory_is_answered_and_so_are_the_others(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    async def body(site: Site) -> None:
        with pytest.raises(BusyError, match=r"more memory needed than the tables may use \(200MB\)"):
            await site.league.query("SELECT list(range) FROM range(30000000)")
        await site.get("/overview")

    on_site(simulated.history, body)


def test_tables_that_fail_for_good_are_opened_again(simulated: Simulation, on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        failed = site.league._projection

        def fail(_: object) -> None:
            raise duckdb.FatalException("database has been invalidated")

        with pytest.raises(BusyError, match="are opened again"):
            await site.league.read(fail)
        assert site.league._reopening is not None
        await site.league._reopening
        assert site.league._projection is not failed
        added = await site.log.append(AgentRegistered(agent="late", kind="bot", baseline=False, rating=1.0))
        await wait_for(site, added)
        assert await site.league.query("SELECT count(*) FROM agents WHERE agent = 'late'") == [(1,)]
        assert await site.league.query("SELECT count(*), max(sequence) FROM events") == [(added, added)]

    on_site(simulated.history, body)


def test_an_event_that_the_tables_cannot_take_is_skipped_and_the_others_are_not(simulated: Simulation) -> None:
    from league.projections.load import Loader
    from league.projections.projection import Projection

    class Refusing(Loader):
        def load(self, batch: object, *arguments: object, **options: object) -> None:
            if any(r.sequence == 30 and not r.payload.startswith(b"not loaded") for r in batch):  # type: ignore[attr-defined]
                raise duckdb.OutOfMemoryException("too much")
            super().load(batch, *arguments, **options)  # type: ignore[arg-type]

    with Projection() as projection:
        projection._loader = Refusing(projection.connection)
        projection.apply(simulated.history)
        kept = [RecordedEvent(*row) for row in projection.query(f"{RECORDED_EVENTS} ORDER BY sequence")]
    assert [r.sequence for r in kept] == [r.sequence for r in simulated.history]
    assert [r.sequence for r, s in zip(kept, simulated.history, strict=True) if r.payload != s.payload] == [30]
    assert kept[29].payload.startswith(b"not loaded: ")
