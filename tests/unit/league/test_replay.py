"""Verification: an honest history is reproduced bit for bit, and a changed one is not."""

import asyncio

import msgspec
import pytest

from league.history.replay import HistoryReplay, VerifyReport, replay_log, verify_events, verify_log
from league.log.base import RecordedEvent
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, RatingsConfig, to_builtins
from schemas.events import LeagueOpened, MatchFailed, MatchFinished, RatingChange, RatingUpdated
from tests.builders import replace_event
from tests.memory_log import MemoryLog
from tests.simulated_history import Simulation

SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
HISTORY = Simulation(SMALL).run(10, 1)
RATED = [place for place, recorded in enumerate(HISTORY) if isinstance(recorded.event, RatingUpdated)]


def tampered(place: int, by: float) -> list[RecordedEvent]:
    event = HISTORY[place].event
    assert isinstance(event, RatingUpdated)
    first, *rest = event.changes
    changed = msgspec.structs.replace(event, changes=[msgspec.structs.replace(first, after=first.after + by), *rest])
    records = list(HISTORY)
    records[place] = replace_event(records[place], changed)
    return records


def test_replay_reproduces_ratings() -> None:
    report = verify_events(HISTORY)
    assert report.is_identical
    assert (report.events, report.sequence) == (len(HISTORY), len(HISTORY))
    assert (report.rated, report.pending, report.unknown) == (len(RATED), 0, 0)


def test_a_verification_states_its_scope() -> None:
    half = HISTORY[: len(HISTORY) // 2]
    report = verify_events(half)
    newest = max(r.event.match_sequence for r in half if isinstance(r.event, RatingUpdated))
    assert report.compared == {"elo of diplomacy": newest}
    assert f"elo of diplomacy to event {newest}; folded to event {len(half)}" in report.scope()[0]
    assert report.scope()[1].startswith("not checked: ")
    assert "archive and blobs" in report.scope()[1]
    assert verify_events(HISTORY[:2]).scope()[0].startswith("compared bit for bit: no ratings")


async def a_log() -> MemoryLog:
    log = MemoryLog()
    await log.copy(HISTORY)
    return log


def test_a_log_gives_the_same_report() -> None:
    async def run() -> VerifyReport:
        return await verify_log(await a_log())

    assert asyncio.run(run()) == verify_events(HISTORY)


def test_a_replay_says_what_the_history_holds_and_the_same_digest_each_time() -> None:
    async def run() -> None:
        log = await a_log()
        report = await replay_log(log)
        assert report == await replay_log(log)
        assert (report.events, report.sequence, report.time_ns) == (len(HISTORY), len(HISTORY), HISTORY[-1].time_ns)
        assert report.matches == sum(isinstance(r.event, MatchFinished) for r in HISTORY)
        assert report.agents > len(SMALL.agents)
        assert report.steps == {"main": 11}

    asyncio.run(run())


@pytest.mark.parametrize("until", [1, len(HISTORY) // 2, len(HISTORY)])
def test_events_appended_while_a_replay_reads_change_nothing_before_them(until: int) -> None:
    async def run() -> None:
        log = await a_log()
        before = await replay_log(log, until)
        replay = HistoryReplay()
        async for recorded in log.read(1, until):
            replay.apply(recorded)
            await log.append(MatchFailed(match_id=f"w-{recorded.sequence}", purpose="x", worker="w", error="late"))
        assert replay.report() == before == await replay_log(log, until)
        assert (await replay_log(log)).digest != before.digest

    asyncio.run(run())


def test_events_of_other_versions_are_counted_by_type() -> None:
    replay = HistoryReplay()
    for sequence, payload in enumerate((b'{"type":"SeasonBegun"}', b'{"type":"SeasonBegun"}', b"\xff{"), start=1):
        replay.apply(RecordedEvent(sequence, 0, "s", "w", payload))
    assert replay.report().unknown == {"SeasonBegun": 2}
    assert replay.report().undecodable == 1


@pytest.mark.parametrize("by", [1e-9, -50.0])
def test_one_altered_rating_is_found_and_named(by: float) -> None:
    place = RATED[3]
    report = verify_events(tampered(place, by))
    assert not report.is_identical
    (difference,) = report.differences
    event = HISTORY[place].event
    assert isinstance(event, RatingUpdated)
    assert (difference.sequence, difference.match_id) == (place + 1, event.match_id)
    assert difference.refolded == event.changes[0].after
    assert difference.recorded == event.changes[0].after + by


def test_matches_that_the_rater_has_not_come_to_are_pending() -> None:
    last = RATED[-1]
    report = verify_events(HISTORY[:last] + HISTORY[last + 1 :])
    assert report.is_identical
    assert report.pending == 1


def test_a_rating_of_a_match_that_does_not_count_is_a_difference() -> None:
    invented = RatingUpdated(
        match_id="nowhere-0",
        match_sequence=10**6,
        game="diplomacy",
        system="elo",
        changes=[RatingChange("main@1", 1000.0, 1002.0)],
    )
    report = verify_events([*HISTORY, RecordedEvent(len(HISTORY) + 1, 0, "s", "w", encode_event(invented))])
    assert [(d.agent, d.recorded, d.refolded) for d in report.differences] == [("main@1", 1002.0, None)]


def test_copies_of_ratings_are_no_difference() -> None:
    copies = [*HISTORY, *(HISTORY[place] for place in RATED)]
    renumbered = [
        RecordedEvent(sequence, r.time_ns, r.subject, r.producer, r.payload)
        for sequence, r in enumerate(copies, start=1)
    ]
    assert verify_events(renumbered).is_identical


def test_only_the_first_differences_are_kept_and_all_are_counted() -> None:
    records = Simulation(SMALL).run(60, 0)
    other = msgspec.structs.replace(SMALL, ratings=RatingsConfig(system=Plugin(name="elo", settings={"k": 1.0})))
    opened = records[0].event
    assert isinstance(opened, LeagueOpened)
    records[0] = replace_event(records[0], msgspec.structs.replace(opened, config=to_builtins(other)))
    report = verify_events(records)
    assert len(report.differences) == 100
    assert report.different > 100


BAYESIAN = msgspec.structs.replace(
    SMALL, ratings=RatingsConfig(also=(Plugin(name="trueskill"), Plugin(name="openskill")))
)


def test_what_systems_keep_beside_ratings_is_compared_and_named() -> None:
    records = Simulation(BAYESIAN).run(6, 1)
    assert verify_events(records).is_identical
    place, event = next((n, r.event) for n, r in enumerate(records) if is_of(r.event, "trueskill"))
    assert isinstance(event, RatingUpdated)
    first, *others = event.changes
    rest = [first.rest[0] + 1.0, *first.rest[1:]]
    edited = msgspec.structs.replace(event, changes=[msgspec.structs.replace(first, rest=rest), *others])
    old = records[place]
    records[place] = RecordedEvent(old.sequence, old.time_ns, old.subject, old.producer, encode_event(edited))
    report = verify_events(records)
    assert report.different == 1
    assert report.rated == sum(isinstance(r.event, RatingUpdated) for r in records)
    assert str(report.differences[0]).endswith(
        f"{first.agent} under trueskill: deviation recorded {rest[0]}, refolded {first.rest[0]}; the ratings agree"
    )


def is_of(event: object, system: str) -> bool:
    return isinstance(event, RatingUpdated) and event.system == system
