"""Results that are taken back: what ratings owe the history then, who may record it, and that it verifies."""

import asyncio
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from league.history.corrections import apply_checked, make_corrections, pending_events, record_pending
from league.history.replay import verify_events, verify_log
from league.log.base import EventLog, RecordedEvent
from league.ratings.fold import RatingFold, RatingTableSnapshot
from league.state import LeagueState
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, RatingsConfig, to_builtins
from schemas.errors import ConflictError, ReplayError
from schemas.events import AgentRating, LeagueConfigured, MatchFinished, MatchVoided, RatingsCorrected, RatingUpdated
from tests.builders import replace_event
from tests.memory_log import MemoryLog
from tests.simulated_history import Simulation

SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
HISTORY = Simulation(SMALL).run(8, 1)
PLACE = ("diplomacy", "elo")
RATED = [r for r in HISTORY if isinstance(r.event, MatchFinished) and r.event.purpose == "evaluation"]


async def a_log(records: list[RecordedEvent]) -> MemoryLog:
    log = MemoryLog()
    await log.copy(records)
    return log


async def void(log: EventLog, *places: int) -> list[int]:
    """Void the n-th rated matches."""
    events = []
    for place in places:
        match = RATED[place].event
        assert isinstance(match, MatchFinished)
        events.append(MatchVoided(match=match, match_sequence=RATED[place].sequence, reason="wrong engine"))
    return await log.append_batch(events)


async def play(log: EventLog, number: int, purpose: str = "evaluation") -> str:
    match = RATED[number % len(RATED)].event
    assert isinstance(match, MatchFinished)
    again = msgspec.structs.replace(match, match_id=f"extra-{number}", purpose=purpose, evaluation_id="")
    await log.append(again)
    return again.match_id


async def standings(log: EventLog, skip: list[str]) -> list[AgentRating]:
    """What the history gives if these matches had never been played."""
    fold = RatingFold(without=skip)
    async for recorded in log.read():
        fold.apply(recorded.sequence, recorded.event)
    return fold.rated_agents(*PLACE)


async def every_table(log: EventLog, skip: list[str]) -> list[RatingTableSnapshot]:
    """The same for every game and system."""
    fold = RatingFold(without=skip)
    async for recorded in log.read():
        fold.apply(recorded.sequence, recorded.event)
    return fold.to_snapshot().tables


async def recorded_tables(log: EventLog) -> list[RatingTableSnapshot]:
    state = LeagueState()
    async for recorded in log.read():
        state.apply(recorded.sequence, recorded.event)
    return state.to_snapshot().tables


async def recorded_standings(log: EventLog) -> list[AgentRating]:
    state = LeagueState()
    async for recorded in log.read():
        state.apply(recorded.sequence, recorded.event)
    return state.rating_table.rated_agents()


def voided_ids(*places: int) -> list[str]:
    return [RATED[place].event.match_id for place in places]  # type: ignore[union-attr]


def test_a_correction_leaves_the_voided_matches_out_and_later_ones_go_on_from_it() -> None:
    async def run() -> None:
        log = await a_log(HISTORY)
        await void(log, 3, 4)
        await play(log, 1)
        await record_pending(log, RatingFold())
        await play(log, 2)
        await record_pending(log, RatingFold())
        assert await recorded_standings(log) == await standings(log, voided_ids(3, 4))
        assert await recorded_standings(log) != await standings(log, [])
        [correction] = [r.event async for r in log.read() if isinstance(r.event, RatingsCorrected)]
        assert (correction.through, correction.waited) == (len(HISTORY) + 2, [])
        report = await verify_log(log)
        assert (report.is_identical, report.corrections, report.pending) == (True, 1, 0)

    asyncio.run(run())


steps = st.lists(
    st.one_of(st.tuples(st.just("void"), st.integers(0, len(RATED) - 1)), st.sampled_from(["play", "settle", "rules"])),
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(steps)
def test_ratings_end_as_those_of_a_history_without_what_was_voided(plan: list[tuple[str, int] | str]) -> None:
    async def run() -> None:
        log = await a_log(HISTORY)
        fold, skip = RatingFold(), []
        for number, step in enumerate(plan):
            if step == "settle":
                await record_pending(log, fold)
            elif step == "play":
                await play(log, number)
            elif step == "rules":
                system = Plugin(name="elo", settings={"k": 16.0 + number})
                also = (Plugin(name="trueskill"),) if number % 2 else ()
                config = to_builtins(msgspec.structs.replace(SMALL, ratings=RatingsConfig(system=system, also=also)))
                await log.append(LeagueConfigured(config=config, config_digest=str(number), after=number))
            else:
                await void(log, step[1])
                skip += voided_ids(step[1])
        await record_pending(log, fold)
        assert await recorded_standings(log) == await standings(log, skip) == fold.rated_agents(*PLACE)
        tables = [(table.game, table.system, table.ratings) for table in await every_table(log, skip)]
        assert [(table.game, table.system, table.ratings) for table in await recorded_tables(log)] == tables
        report = await verify_log(log)
        assert report.is_identical, report.differences
        assert report.pending == 0
        assert report == verify_events([r async for r in log.read()])

    asyncio.run(run())


def test_every_system_is_corrected_on_its_own_and_goes_on_from_there() -> None:
    async def run() -> None:
        config = msgspec.structs.replace(SMALL, ratings=RatingsConfig(also=(Plugin(name="trueskill"),)))
        log = await a_log(Simulation(config).run(8, 1))
        played = [r async for r in log.read() if isinstance(r.event, MatchFinished) and r.event.purpose == "evaluation"]
        chosen = played[3]
        assert isinstance(chosen.event, MatchFinished)
        await log.append(MatchVoided(match=chosen.event, match_sequence=chosen.sequence, reason="wrong engine"))
        await play(log, 1)
        await record_pending(log, RatingFold())
        await play(log, 2)
        await record_pending(log, RatingFold())
        corrected = [r.event.system async for r in log.read() if isinstance(r.event, RatingsCorrected)]
        assert corrected == ["elo", "trueskill"]
        tables = await recorded_tables(log)
        assert [table.system for table in tables] == ["elo", "trueskill"]
        expected = await every_table(log, [chosen.event.match_id])
        assert [table.ratings for table in tables] == [table.ratings for table in expected]
        assert tables[1].ratings[0].rest != []
        assert (await verify_log(log)).is_identical

    asyncio.run(run())


def test_a_match_between_two_voids_still_lets_its_evaluation_settle() -> None:
    """It gets no update of its own: the correction holds it."""

    async def run() -> None:
        last = next(n for n, r in enumerate(HISTORY) if r.sequence == RATED[-1].sequence)
        unrated = [*HISTORY[: last + 1]]
        log = await a_log(unrated[:-1])
        await void(log, 0)
        log_match = RATED[-1].event
        assert log_match is not None
        await log.append(log_match)
        await void(log, 1)
        await record_pending(log, RatingFold())
        state = LeagueState()
        async for recorded in log.read():
            state.apply(recorded.sequence, recorded.event)
        assert all(not evaluation.unrated for evaluation in state.evaluations.values())
        [correction] = [r.event async for r in log.read() if isinstance(r.event, RatingsCorrected)]
        assert correction.waited == voided_ids(-1)
        assert await recorded_standings(log) == await standings(log, voided_ids(0, 1))

    asyncio.run(run())


def test_updates_that_are_due_are_recorded_before_the_correction() -> None:
    async def run() -> None:
        log = await a_log(HISTORY)
        await play(log, 1)
        await void(log, 2)
        await record_pending(log, RatingFold())
        kinds = [type(r.event) async for r in log.read(len(HISTORY) + 1)]
        assert kinds == [MatchFinished, MatchVoided, RatingUpdated, RatingsCorrected]
        assert (await verify_log(log)).is_identical

    asyncio.run(run())


def test_of_two_raters_only_one_records_a_correction() -> None:
    async def run() -> None:
        log = await a_log(HISTORY)
        await void(log, 2)
        first, second = RatingFold(), RatingFold()
        async for recorded in log.read():
            apply_checked(first, recorded)
            apply_checked(second, recorded)
        [mine], [theirs] = await make_corrections(log, first), await make_corrections(log, second)
        assert mine == theirs
        await log.append(mine, expected=first.recorded_sequence)
        other = msgspec.structs.replace(theirs, through=theirs.through + 1)
        with pytest.raises(ConflictError):
            await log.append(other, expected=second.recorded_sequence)

    asyncio.run(run())


def test_an_older_match_may_be_voided_while_a_correction_is_on_its_way() -> None:
    async def run() -> None:
        log = await a_log(HISTORY)
        await void(log, 3)
        fold = RatingFold()
        async for recorded in log.read():
            apply_checked(fold, recorded)
        [correction] = await make_corrections(log, fold)
        await void(log, 1)
        await log.append(correction, expected=fold.recorded_sequence)
        await record_pending(log, fold)
        assert await recorded_standings(log) == await standings(log, voided_ids(1, 3))
        report = await verify_log(log)
        assert (report.is_identical, report.corrections, report.pending) == (True, 2, 0)

    asyncio.run(run())


def test_two_that_settle_at_once_leave_one_correction() -> None:
    async def run() -> None:
        log = await a_log(HISTORY)
        await void(log, 2)
        await play(log, 1)
        await asyncio.gather(*(record_pending(log, RatingFold()) for _ in range(3)))
        kinds = [type(r.event) async for r in log.read(len(HISTORY) + 1)]
        assert kinds == [MatchVoided, MatchFinished, RatingsCorrected, RatingUpdated]

    asyncio.run(run())


@pytest.mark.parametrize("crash_after", range(4))
def test_a_rater_that_dies_anywhere_is_followed_by_one_that_owes_the_rest(crash_after: int) -> None:
    async def run() -> None:
        log = await a_log(HISTORY)
        await play(log, 1)
        await void(log, 2)
        await play(log, 3)
        dying = RatingFold()
        for _ in range(crash_after):
            async for recorded in log.read(dying.sequence + 1):
                apply_checked(dying, recorded)
            if events := await pending_events(log, dying):
                await log.append_batch(events, expected=dying.recorded_sequence)
        await record_pending(log, RatingFold())
        assert await recorded_standings(log) == await standings(log, voided_ids(2))
        kinds = [type(r.event) async for r in log.read(len(HISTORY) + 4)]
        assert kinds == [RatingUpdated, RatingsCorrected, RatingUpdated]

    asyncio.run(run())


def test_a_fold_saved_between_void_and_correction_owes_what_the_other_one_owes() -> None:
    async def run() -> None:
        log = await a_log(HISTORY)
        await play(log, 1)
        await void(log, 2)
        await play(log, 3)
        fold = RatingFold()
        async for recorded in log.read():
            apply_checked(fold, recorded)
        await record_pending(log, RatingFold.from_snapshot(fold.to_snapshot()))
        assert await recorded_standings(log) == await standings(log, voided_ids(2))
        assert (await verify_log(log)).pending == 0

    asyncio.run(run())


def test_an_update_that_the_rules_do_not_give_stops_the_rater() -> None:
    async def run() -> None:
        log = await a_log(HISTORY)
        await play(log, 1)
        fold = RatingFold()
        async for recorded in log.read():
            apply_checked(fold, recorded)
        [right] = fold.unrecorded.values()
        first, *rest = right.changes
        wrong = msgspec.structs.replace(right, changes=[msgspec.structs.replace(first, after=first.after + 1), *rest])
        await log.append(wrong)
        with pytest.raises(ReplayError, match=r"ratings recorded after match extra-1 differ"):
            await record_pending(log, fold)

    asyncio.run(run())


def corrected_history() -> list[RecordedEvent]:
    async def run() -> list[RecordedEvent]:
        log = await a_log(HISTORY)
        await void(log, 2)
        await play(log, 1)
        await record_pending(log, RatingFold())
        return [recorded async for recorded in log.read()]

    return asyncio.run(run())


def with_event(records: list[RecordedEvent], place: int, event: RatingsCorrected) -> list[RecordedEvent]:
    return [*records[:place], replace_event(records[place], event), *records[place + 1 :]]


def test_a_tampered_correction_is_found_and_named() -> None:
    records = corrected_history()
    place = next(n for n, r in enumerate(records) if isinstance(r.event, RatingsCorrected))
    event = records[place].event
    assert isinstance(event, RatingsCorrected)
    assert verify_events(records).is_identical
    rated = Random(0).choice(event.ratings)
    higher = msgspec.structs.replace(rated, rating=rated.rating + 1e-9)
    ratings = [higher if one is rated else one for one in event.ratings]
    [difference] = verify_events(
        with_event(records, place, msgspec.structs.replace(event, ratings=ratings))
    ).differences
    assert (difference.sequence, difference.match_id, difference.agent) == (place + 1, "", rated.agent)
    assert (difference.recorded, difference.refolded) == (rated.rating + 1e-9, rated.rating)
    assert f"event {place + 1}, correction, {rated.agent} under elo: recorded" in str(difference)
    for changed in (
        msgspec.structs.replace(event, waited=["extra-1"]),
        msgspec.structs.replace(event, ratings=event.ratings[::-1]),
    ):
        [difference] = verify_events(with_event(records, place, changed)).differences
        assert "does not match the voided matches before it" in str(difference)


def test_a_correction_that_nothing_calls_for_is_found() -> None:
    sequence = len(HISTORY) + 1
    invented = RatingsCorrected(
        game="diplomacy", system="elo", through=sequence - 1, waited=[], ratings=[AgentRating("main@1", 3000.0, 1)]
    )
    records = [*HISTORY, RecordedEvent(sequence, 0, "s", "w", encode_event(invented))]
    report = verify_events(records)
    assert (report.different, report.corrections) == (1, 1)
    assert report.differences[0].sequence == sequence
