"""Verification: an honest history is reproduced bit for bit, and a changed one is not."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest

from league.log.base import Recorded
from league.replay import Verifier, verify, verify_log
from league.simulation import Simulation
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, RatingsConfig
from schemas.events import RatingChange, RatingUpdated

SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
HISTORY = Simulation(SMALL).run(10, 1)
RATED = [place for place, recorded in enumerate(HISTORY) if isinstance(recorded.event, RatingUpdated)]


def tampered(place: int, by: float) -> list[Recorded]:
    event = HISTORY[place].event
    assert isinstance(event, RatingUpdated)
    first, *rest = event.changes
    changed = msgspec.structs.replace(event, changes=[msgspec.structs.replace(first, after=first.after + by), *rest])
    records = list(HISTORY)
    r = records[place]
    records[place] = Recorded(r.sequence, r.time_ns, r.subject, r.producer, encode_event(changed))
    return records


def test_replay_reproduces_ratings() -> None:
    report = verify(HISTORY)
    assert report.identical
    assert (report.events, report.sequence) == (len(HISTORY), len(HISTORY))
    assert (report.rated, report.pending, report.unknown) == (len(RATED), 0, 0)


def test_a_log_that_is_read_asynchronously_gives_the_same_report() -> None:
    async def read() -> AsyncIterator[Recorded]:
        for recorded in HISTORY:
            yield recorded

    assert asyncio.run(verify_log(read())) == verify(HISTORY)


@pytest.mark.parametrize("by", [1e-9, -50.0])
def test_one_altered_rating_is_found_and_named(by: float) -> None:
    place = RATED[3]
    report = verify(tampered(place, by))
    assert not report.identical
    (difference,) = report.differences
    event = HISTORY[place].event
    assert isinstance(event, RatingUpdated)
    assert (difference.sequence, difference.match_id) == (place + 1, event.match_id)
    assert difference.refolded == event.changes[0].after
    assert difference.recorded == event.changes[0].after + by


def test_matches_that_the_rater_has_not_come_to_are_pending() -> None:
    last = RATED[-1]
    report = verify(HISTORY[:last] + HISTORY[last + 1 :])
    assert report.identical
    assert report.pending == 1


def test_a_rating_of_a_match_that_does_not_count_is_a_difference() -> None:
    invented = RatingUpdated(
        match_id="nowhere-0",
        match_sequence=10**6,
        game="diplomacy",
        system="elo",
        changes=[RatingChange("main@1", 1000.0, 1002.0)],
    )
    report = verify([*HISTORY, Recorded(len(HISTORY) + 1, 0, "s", "w", encode_event(invented))])
    assert [(d.agent, d.recorded, d.refolded) for d in report.differences] == [("main@1", 1002.0, None)]


def test_copies_of_ratings_are_no_difference() -> None:
    copies = [*HISTORY, *(HISTORY[place] for place in RATED)]
    renumbered = [
        Recorded(sequence, r.time_ns, r.subject, r.producer, r.payload) for sequence, r in enumerate(copies, start=1)
    ]
    assert verify(renumbered).identical


def test_a_history_can_be_refolded_under_other_rules() -> None:
    verifier = Verifier(LeagueConfig(ratings=RatingsConfig(purposes=("training", "evaluation"))))
    for recorded in HISTORY:
        verifier.see(recorded)
    assert not verifier.report().identical
    assert verifier.report().pending > 0


def test_only_the_first_differences_are_kept_and_all_are_counted() -> None:
    verifier = Verifier(LeagueConfig(ratings=RatingsConfig(system=Plugin(name="elo", settings={"k": 1.0}))))
    for recorded in Simulation(SMALL).run(60, 0):
        verifier.see(recorded)
    report = verifier.report()
    assert len(report.differences) == 100
    assert report.different > 100
