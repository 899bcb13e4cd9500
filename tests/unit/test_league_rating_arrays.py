"""The fold over arrays gives what the fold over events gives, bit for bit."""

from dataclasses import replace
from random import Random

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from league.log.base import RecordedEvent
from league.projections.projection import Projection
from league.ratings.arrays import MatchArrays, fold_arrays, rated_mask
from league.ratings.fold import RatingFold
from league.ratings.load import MatchArrayBuilder, load_matches
from schemas import events as e
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, RatingsConfig, to_builtins
from schemas.events import AgentRating
from tests.builders import match_finished, record_events
from tests.simulated_history import Simulation

SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
NIM = LeagueConfig(game=Plugin(name="nim"))
NAMES = ["base_model", "random_bot", "chaos_bot", "stranger", *(f"main@{n}" for n in (0, 3, 5, 9)), "other@2"]


def by_events(records: list[RecordedEvent], skip: list[str] | None = None) -> dict[tuple[str, str], list[AgentRating]]:
    fold = RatingFold(LeagueConfig(), skip=skip or [])
    for record in records:
        fold.apply(record.sequence, record.event)
    places = {(table.game, table.system) for table in fold.to_snapshot().tables}
    return {place: fold.rated_agents(*place) for place in places}


def by_arrays(records: list[RecordedEvent]) -> dict[tuple[str, str], list[AgentRating]]:
    return fold_arrays(arrays(records))


def arrays(records: list[RecordedEvent]) -> MatchArrays:
    with Projection() as projection:
        projection.apply(records)
        return load_matches(projection.connection)


@st.composite
def histories(draw: st.DrawFn) -> list[RecordedEvent]:
    """Registrations, resets, results and changes of the rules, in any order."""
    rng = Random(draw(st.integers(0, 2**32)))
    events: list[e.Event] = []
    for number in range(draw(st.integers(1, 60))):
        kind = rng.random()
        if kind < 0.1:
            name = rng.choice(NAMES[:4])
            base = "base" if name == "base_model" else "bot"
            events.append(e.AgentRegistered(agent=name, kind=base, baseline=False, rating=rng.uniform(500, 1500)))
        elif kind < 0.2:
            name, rating = rng.choice(NAMES[4:]), rng.choice([None, rng.uniform(500, 1500)])
            policy, _, version = name.partition("@")
            events.append(
                e.CheckpointAdded(
                    agent=name, policy=policy, version=int(version), parent="", reason="", adapter="", rating=rating
                )
            )
        elif kind < 0.25:
            purposes = tuple(rng.sample(["training", "evaluation"], rng.randint(1, 2)))
            system = Plugin(name="elo", settings={"k": rng.choice([8.0, 32.0, 51.5])})
            config = to_builtins(LeagueConfig(ratings=RatingsConfig(system=system, purposes=purposes)))
            config = config if rng.random() < 0.8 else {"from_the_future": 1}
            events.append(e.LeagueConfigured(config=config, config_digest=str(number), after=number))
        elif kind < 0.3:
            policy, version = rng.choice(["main", "other"]), rng.choice([0, 3, 4, 5])
            events.append(e.PolicyReset(policy=policy, version=version, reason=""))
        else:
            events.append(a_match(f"w-{number if rng.random() < 0.95 else 0}", rng))
    return record_events(events)


def a_match(name: str, rng: Random) -> e.MatchFinished:
    scores = [rng.choice([0.0, 1.0, 2.5, rng.random()]) for _ in range(rng.randint(1, 8))]
    numbers = list(range(len(scores)))
    if rng.random() < 0.1:
        # A seat that is listed twice, next to its copy or not.
        numbers[-1] = rng.choice(numbers)
    return match_finished(
        match_id=name,
        game=rng.choice(["nim", "diplomacy"]),
        purpose=rng.choice(["training", "evaluation", "evaluation", "imported"]),
        seats=[e.SeatResult(n, f"S{n}", rng.choice(NAMES), s, 1) for n, s in zip(numbers, scores, strict=True)],
    )


def gathered(records: list[RecordedEvent], skip: list[str] | None = None) -> dict[tuple[str, str], list[AgentRating]]:
    gatherer = MatchArrayBuilder(skip or [])
    for record in records:
        gatherer.apply(record.sequence, record.event)
    return fold_arrays(gatherer.build())


@settings(max_examples=20, deadline=None)
@given(histories())
def test_any_history_gives_the_bits_of_the_fold_over_events(records: list[RecordedEvent]) -> None:
    assert by_arrays(records) == by_events(records)


@settings(max_examples=60, deadline=None)
@given(histories())
def test_any_history_that_is_gathered_gives_the_bits_of_the_fold_over_events(records: list[RecordedEvent]) -> None:
    assert gathered(records) == by_events(records)
    assert gathered(records, ["w-0", "w-3"]) == by_events(records, ["w-0", "w-3"])


def test_a_whole_league_gives_the_bits_of_the_fold_over_events() -> None:
    records = Simulation(SMALL).run(30, 1)
    found = by_arrays(records)
    assert found == by_events(records)
    assert len(found["diplomacy", "elo"]) > 5


def test_voided_matches_are_left_out() -> None:
    records = Simulation(SMALL).run(10, 1)
    match = next(r for r in records[::-1] if isinstance(r.event, e.MatchFinished) and r.event.purpose == "evaluation")
    assert isinstance(match.event, e.MatchFinished)
    void = e.MatchVoided(match=match.event, match_sequence=match.sequence, reason="wrong engine")
    voided = [*records, RecordedEvent(len(records) + 1, 0, "s", "w", encode_event(void))]
    assert by_arrays(voided) == by_events(records, skip=[match.event.match_id])
    assert by_arrays(voided) != by_events(records)


def test_a_match_that_cannot_be_rated_is_rated_nowhere() -> None:
    good = a_match("w-1", Random(1))
    seats = [
        e.SeatResult(n, f"S{n}", name, float(n), 1) for n, name in enumerate(["random_bot", "chaos_bot", "main@3"])
    ]
    good = msgspec.structs.replace(good, game="nim", purpose="evaluation", seats=seats)
    bad = {
        "a seat twice": [seats[0], seats[1], msgspec.structs.replace(seats[2], seat=1)],
        "a seat twice, apart": [seats[0], seats[1], msgspec.structs.replace(seats[2], seat=0)],
        "one agent": [msgspec.structs.replace(seat, agent="random_bot") for seat in seats],
        "one seat": seats[:1],
        "nobody": [],
    }
    events = [msgspec.structs.replace(good, match_id=name, seats=found) for name, found in bad.items()]
    records = record_events([e.LeagueConfigured(config=to_builtins(NIM), config_digest="", after=0), *events, good])
    expected = by_events(records)
    assert [rated.games for rated in expected["nim", "elo"]] == [1, 1, 1]
    assert by_arrays(records) == gathered(records) == expected
    with Projection() as projection:
        # All of them could count: they lie before a correction.
        correction = e.RatingsCorrected(game="nim", system="elo", first=1, through=9, voided=0, ratings=[])
        projection.apply([*records, RecordedEvent(9, 9, "s", "w", encode_event(correction))])
        assert projection.query("SELECT match_id FROM rated_matches_at(9)") == [(good.match_id,)]


def test_a_match_with_a_score_that_is_not_finite_is_rated_nowhere() -> None:
    # The wire carries no such number, so the arrays are made by hand.
    fine = arrays(record_events([a_match(f"w-{n}", Random(n)) for n in range(30)]))
    places = np.flatnonzero(rated_mask(fine, "nim"))
    assert len(places) > 3
    for bad in (np.nan, np.inf, -np.inf):
        scores = fine.score_S.copy()
        scores[fine.begin_M[places[0]]] = bad
        assert np.flatnonzero(rated_mask(replace(fine, score_S=scores), "nim")).tolist() == places[1:].tolist()


def test_every_seat_has_its_role() -> None:
    records = record_events([a_match(f"w-{n}", Random(n)) for n in range(30)])
    with Projection() as projection:
        projection.apply(records)
        matches = load_matches(projection.connection, with_roles=True)
        assert len(load_matches(projection.connection).role_S) == 0
    played = {r.sequence: r.event for r in records if isinstance(r.event, e.MatchFinished)}
    for at, begin, end in zip(matches.sequence_M, matches.begin_M, matches.end_M, strict=True):
        if end > begin:
            roles = [seat.role for seat in sorted(played[at].seats, key=lambda seat: seat.seat)]
            assert [matches.roles[code] for code in matches.role_S[begin:end]] == roles
    less = matches.exclude_agents(["random_bot"])
    assert len(less.role_S) == len(less.agent_S) < len(matches.role_S)
