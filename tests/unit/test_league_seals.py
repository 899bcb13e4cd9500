"""Seals: any change to sealed history is found and located; of two sealers at once, one gives way."""

import asyncio
import itertools

import msgspec
import pytest

from league.integrity.seals import Sealer, seal_through
from league.integrity.verification import Damage, DamagedEvents, SealChecker, check_stream, read_chain
from league.log.base import RecordedEvent
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, LeagueConfig
from schemas.errors import ConflictError
from schemas.events import HistorySealed
from tests.memory_log import MemoryLog
from tests.simulated_history import Simulation

HISTORY = Simulation(
    LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
).run(8, 1)


async def sealed(every: int) -> MemoryLog:
    log = MemoryLog()
    await log.copy(HISTORY)
    await seal_through(log, len(HISTORY), every)
    return log


async def damage_of(records: list[RecordedEvent]) -> list[Damage]:
    log = MemoryLog()
    await log.copy(records)
    chain = await read_chain(log)
    return chain.damage + (await check_stream(log, chain)).damage


def edited(recorded: RecordedEvent, payload: bytes) -> RecordedEvent:
    return RecordedEvent(
        recorded.sequence, recorded.time_ns, recorded.subject, recorded.producer, payload, recorded.schema
    )


def of(records: list[RecordedEvent]) -> list[Damage]:
    return asyncio.run(damage_of(records))


@pytest.fixture(scope="module")
def records() -> list[RecordedEvent]:
    async def body() -> list[RecordedEvent]:
        return [recorded async for recorded in (await sealed(20)).read()]

    return asyncio.run(body())


def seals(records: list[RecordedEvent]) -> list[HistorySealed]:
    return [r.event for r in records if isinstance(r.event, HistorySealed)]


def test_seals_close_the_whole_history_in_a_chain(records: list[RecordedEvent]) -> None:
    found = seals(records)
    assert [seal.events for seal in found[:-1]] == [20] * (len(found) - 1)
    assert (found[0].first, found[0].previous) == (1, "")
    for before, after in itertools.pairwise(found):
        assert (after.first, after.previous) == (before.last + 1, before.digest)
    assert found[-1].last == len(HISTORY)
    assert of(records) == []


def test_sealing_again_seals_the_seals_and_nothing_else() -> None:
    async def body() -> None:
        log = await sealed(20)
        before = await log.last_sequence()
        sealer = await seal_through(log, before, 20)
        assert await log.last_sequence() == before, "seals alone are not worth a seal"
        await log.append(msgspec.structs.replace(HISTORY[1].event, agent="another"))
        sealer = await seal_through(log, before + 1, 20)
        assert sealer.first == before + 2
        newest = await log.newest(HistorySealed)
        assert newest is not None
        assert newest.event.first == len(HISTORY) + 1  # type: ignore[union-attr]
        assert newest.event.last == before + 1  # type: ignore[union-attr]

    asyncio.run(body())


@pytest.mark.parametrize("field", ["payload", "time", "subject", "producer", "schema", "sequence"])
def test_a_change_to_anything_recorded_changes_the_digest(records: list[RecordedEvent], field: str) -> None:
    r = records[24]
    changed = {
        "payload": RecordedEvent(
            r.sequence, r.time_ns, r.subject, r.producer, r.payload.replace(b"1", b"2", 1), r.schema
        ),
        "time": RecordedEvent(r.sequence, r.time_ns + 1, r.subject, r.producer, r.payload, r.schema),
        "subject": RecordedEvent(r.sequence, r.time_ns, r.subject + "x", r.producer, r.payload, r.schema),
        "producer": RecordedEvent(r.sequence, r.time_ns, r.subject, r.producer + "x", r.payload, r.schema),
        "schema": RecordedEvent(r.sequence, r.time_ns, r.subject, r.producer, r.payload, r.schema + 1),
        "sequence": r,
    }[field]
    if field == "sequence":
        found = of([*records[:24], *records[25:]])
        assert found[0].located == [DamagedEvents("missing", 25, 25, 1)]
    else:
        found = of([*records[:24], changed, *records[25:]])
        assert found[0].located == [DamagedEvents("differs", 25, 25, 1)]
    assert [(d.where, d.first, d.last) for d in found] == [("stream", 21, 40)]


def test_every_single_flipped_bit_of_an_event_is_found(records: list[RecordedEvent]) -> None:
    victim = records[29]
    for bit in range(0, 8 * len(victim.payload), 37):
        payload = bytearray(victim.payload)
        payload[bit // 8] ^= 1 << bit % 8
        found = of([*records[:29], edited(victim, bytes(payload)), *records[30:]])
        assert [d.located for d in found] == [[DamagedEvents("differs", 30, 30, 1)]]


def test_a_history_that_was_written_anew_without_an_event_differs_from_there_on() -> None:
    """Checks of two bytes are equal by chance in every range of some hundred events."""

    async def body() -> None:
        log = await sealed(200)
        chain = await read_chain(log)
        records = [r async for r in log.read()]
        for late_ns in range(20):
            shifted = [
                RecordedEvent(r.sequence - 1, r.time_ns + late_ns, r.subject, r.producer, r.payload, r.schema)
                for r in records[10:]
            ]
            checker = SealChecker(chain.ranges[:1], "stream")
            checker.apply_batch([*records[:9], *shifted])
            (damage,) = checker.finish()
            assert {located.what for located in damage.located} == {"differs"}
            assert 10 <= damage.located[0].first <= 12
            assert 198 <= damage.located[-1].last <= 200

    asyncio.run(body())


def test_a_missing_an_added_and_a_changed_event_of_one_range_are_told_apart() -> None:
    async def body() -> None:
        log = await sealed(200)
        chain = await read_chain(log)
        records = [r async for r in log.read()]
        places = [*range(10), *range(11, 40), *range(40, len(records))]
        tampered = [records[place] for place in places]
        tampered[19] = edited(tampered[19], b'{"type":"AgentRetired","agent":"x","reason":"y"}')
        tampered.insert(60, RecordedEvent(61, 0, "league.league.agent.retired", "nobody", b"{}"))
        checker = SealChecker(chain.ranges, "stream")
        checker.apply_batch(sorted(tampered, key=lambda r: r.sequence))
        (damage,) = checker.finish()
        assert {(located.what, located.events) for located in damage.located} == {
            ("missing", 1),
            ("differs", 1),
            ("added", 1),
        }
        assert next(located for located in damage.located if located.what == "missing").first == 11

    asyncio.run(body())


def test_a_seal_that_was_rewritten_with_its_events_is_given_away_by_the_seal_after(
    records: list[RecordedEvent],
) -> None:
    async def body() -> None:
        # Somebody edits an event and computes its seal anew.
        log = MemoryLog()
        await log.copy([edited(HISTORY[0], HISTORY[0].payload + b" "), *HISTORY[1:20]])
        await seal_through(log, 20, 20)
        forged = (await log.newest(HistorySealed)).event  # type: ignore[union-attr]
        place = next(n for n, r in enumerate(records) if isinstance(r.event, HistorySealed))
        history = [edited(records[0], records[0].payload + b" "), *records[1:]]
        history[place] = edited(records[place], encode_event(forged))  # type: ignore[arg-type]
        found = await damage_of(history)
        assert (found[0].first, found[0].last) == (1, 20)
        assert "the seal after it was made for others" in found[0].what

    asyncio.run(body())


def test_a_lost_seal_does_not_unseal_its_range(records: list[RecordedEvent]) -> None:
    # Seal the seals, so that losing one shows in a range of its own too.
    place = next(n for n, r in enumerate(records) if isinstance(r.event, HistorySealed))
    without = [*records[:place], *records[place + 1 :]]
    (lost,) = of(without)
    assert (lost.first, lost.last) == (1, 20)
    assert "lost" in lost.what
    found = of([edited(without[0], without[0].payload + b" "), *without[1:]])
    assert [(d.first, d.last) for d in found] == [(1, 20), (1, 20)]
    assert "do not give the sealed digest" in found[1].what


def test_of_two_sealers_at_once_one_gives_way_and_takes_over_the_others_seal() -> None:
    async def body() -> None:
        log = MemoryLog()
        await log.copy(HISTORY)
        one, other = [await Sealer.resume(log) for _ in range(2)]
        async for recorded in log.read(last=30):
            one.apply(recorded)
            if recorded.sequence <= 25:
                other.apply(recorded)
        mine = await one.record_seal(log)
        with pytest.raises(ConflictError):
            await other.record_seal(log)
        async for recorded in log.read(only=HistorySealed):
            other.observe_seal(recorded)
        assert (other.first, other.previous) == (31, mine.digest)  # type: ignore[union-attr]
        async for recorded in log.read(31):
            one.apply(recorded)
        await one.record_seal(log)
        late = Sealer("league")
        async for recorded in log.read(last=50):
            late.apply(recorded)
        # It has not heard of any seal, so its condition fails.
        late.first = 2
        with pytest.raises(ConflictError):
            await late.record_seal(log)
        assert await damage_of([r async for r in log.read()]) == []
        assert len(seals([r async for r in log.read()])) == 2

    asyncio.run(body())


def test_a_resumed_sealer_goes_on_where_the_newest_seal_ends() -> None:
    async def body() -> None:
        log = MemoryLog()
        await log.copy(HISTORY)
        await seal_through(log, 40, 15)
        await seal_through(log, len(HISTORY), 15)
        assert await damage_of([r async for r in log.read()]) == []
        found = seals([r async for r in log.read()])
        assert [(s.first, s.last) for s in found[:3]] == [(1, 15), (16, 30), (31, 40)]

    asyncio.run(body())
