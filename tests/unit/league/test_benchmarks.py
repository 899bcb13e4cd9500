"""Requested benchmarks: seats in turn, common seeds, and only the games that are missing."""

from collections import Counter
from typing import Any

import pytest

import schemas.events as e
from league.evaluation.benchmarks import BenchmarkGames, BenchmarkTerms, summarize_seats
from league.state.standings_rows import PolicyRecords
from schemas.codec import decode_event, encode_event
from schemas.jobs import BENCHMARK_PURPOSE, SeatCounts
from tests.builders import match_finished

SEATS = 3
TERMS = BenchmarkTerms("main@4", "random_bot", 0, {"max_year": 1901}, rules=1)


def games(
    number: int = 6,
    *requests: e.BenchmarkRequested,
    ends: Any = (),
    voided: tuple[str, ...] = (),
    terms: BenchmarkTerms = TERMS,
) -> BenchmarkGames:
    return BenchmarkGames(terms, SeatCounts.constant(SEATS), number, requests, ends, voided)


def requested(number: int = 6, *before: e.BenchmarkRequested, **more: Any) -> e.BenchmarkRequested:
    request = games(number, *before, **more).make_request()
    assert request is not None
    return request


def ended(request: e.BenchmarkRequested, number: int, **fields: Any) -> e.MatchFinished:
    own = request.seats[number]
    seats = [("main@4" if seat == own else "random_bot", float(seat == own)) for seat in range(SEATS)]
    fields = {"winner": own, "purpose": BENCHMARK_PURPOSE} | fields
    return match_finished(*seats, match_id=request.matches[number], seed=request.seeds[number], **fields)


def test_the_agent_goes_through_all_seats_with_one_seed_a_round_whoever_plays() -> None:
    first, other = requested(), requested(terms=TERMS._replace(agent="greedy", opponent="mover"))
    assert first.seats == [0, 1, 2, 0, 1, 2]
    assert first.seeds == other.seeds
    assert [len(set(first.seeds[:3])), len(set(first.seeds))] == [1, 2]
    assert requested(terms=TERMS._replace(seed=1)).seeds != first.seeds
    jobs = games(6, first).jobs
    assert Counter(job.seats.index("main@4") for job in jobs) == {0: 2, 1: 2, 2: 2}
    assert {job.purpose for job in jobs} == {BENCHMARK_PURPOSE}
    assert {(job.evaluation_id, job.settings["max_year"]) for job in jobs} == {(first.benchmark_id, 1901)}
    assert decode_event(encode_event(first)) == first


def test_what_was_played_or_waits_is_not_requested_again() -> None:
    first = requested()
    assert games(6, first).make_request() is None
    ends = [ended(first, 0), ended(first, 4)]
    assert [job.match_id for job in games(6, first, ends=ends).jobs] == [first.matches[n] for n in (1, 2, 3, 5)]
    more = requested(9, first, ends=ends)
    assert (more.seats, len(set(more.seeds) - set(first.seeds))) == ([0, 1, 2], 1)
    assert set(more.matches).isdisjoint(first.matches)
    assert [result.match for result in games(3, first, more, ends=ends).results] == ends[:1]


def test_failed_and_voided_games_are_requested_again_in_their_places() -> None:
    first = requested()
    failed = e.MatchFailed(match_id=first.matches[5], purpose=BENCHMARK_PURPOSE, worker="w", error="no reply")
    ends = [ended(first, 1), failed, *(ended(first, number) for number in (0, 2, 3, 4))]
    again = requested(6, first, ends=ends, voided=(first.matches[1],))
    assert list(zip(again.seats, again.seeds, strict=True)) == [(first.seats[n], first.seeds[n]) for n in (1, 5)]
    found = games(6, first, again, ends=[*ends, ended(again, 0), ended(again, 1)], voided=(first.matches[1],))
    assert (len(found.results), found.failures, found.jobs) == (6, [failed], [])


@pytest.mark.parametrize(
    "changed", [{"agent": "main@5"}, {"opponent": "mover"}, {"seed": 1}, {"settings": {"max_year": 1902}}, {"rules": 2}]
)
def test_other_terms_are_another_benchmark(changed: dict[str, Any]) -> None:
    first = requested()
    other = games(6, first, ends=[ended(first, 0)], terms=TERMS._replace(**changed))
    assert (other.results, other.jobs) == ([], [])
    assert set(requested(terms=other.terms).matches).isdisjoint(first.matches)


def test_rows_count_wins_ties_solos_and_survival_by_seat() -> None:
    def match(number: int, own: int, others: int, winner: int | None, reason: str = "year_cap") -> e.MatchFinished:
        metrics = [{"centers": float(own if s == first.seats[number] else others)} for s in range(SEATS)]
        played = ended(first, number, winner=winner, reason=reason)
        # Ranked by score, which also counts units: not what a win is.
        seats = [
            e.SeatResult(
                s, f"S{s}", seat.agent, 1.0, 1, metrics=metrics[s] | {"survived": float(metrics[s]["centers"] > 0)}
            )
            for s, seat in enumerate(played.seats)
        ]
        return e.MatchFinished(**{f: getattr(played, f) for f in played.__struct_fields__} | {"seats": seats})

    first = requested()
    ends = [
        match(0, 18, 5, winner=0, reason="solo"),
        match(1, 9, 9, winner=None),
        match(2, 0, 12, winner=0, reason="solo"),
        match(3, 10, 4, winner=0),
    ]
    *by_seat, overall = summarize_seats(games(6, first, ends=ends).results)
    assert [(row.seat, row.games) for row in by_seat] == [("S0", 2), ("S1", 1), ("S2", 1)]
    counts = {name: share.count for name, share in overall.shares.items()}
    assert counts == {"won": 2, "tied": 1, "solo": 1, "survived": 3}
    assert overall.means["centers"] == 9.25
    assert [round(x, 3) for x in (overall.shares["won"].low, overall.shares["won"].high)] == [0.15, 0.85]
    assert summarize_seats([])[-1].games == 0


def test_benchmarks_do_not_enter_the_records_that_samplers_use() -> None:
    records, match = PolicyRecords(), ended(requested(), 0)
    assert not records.count(match)
    assert records.count(match_finished(("main@4", 1.0), ("random_bot", 0.0), purpose="exhibition"))
