"""The fold over arrays gives what the fold over events gives, bit for bit."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from league.log.base import Recorded
from league.projections.projection import Projection
from league.ratings.arrays import MatchArrays, fold_arrays
from league.ratings.fold import RatingFold
from league.ratings.gather import Gatherer
from league.ratings.load import load_matches
from league.simulation import Simulation
from schemas import events as e
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, RatingsConfig, plain
from schemas.events import Rated

SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
NAMES = ["base_model", "random_bot", "chaos_bot", "stranger", *(f"main@{n}" for n in (0, 3, 5, 9)), "other@2"]


def recorded(events: list[e.Event]) -> list[Recorded]:
    return [Recorded(n, n, "s", "w", encode_event(event)) for n, event in enumerate(events, start=1)]


def by_events(records: list[Recorded], skip: list[str] | None = None) -> dict[tuple[str, str], list[Rated]]:
    fold = RatingFold(LeagueConfig(), skip=skip or [])
    for record in records:
        fold.apply(record.sequence, record.event)
    places = {(table.game, table.system) for table in fold.saved().tables}
    return {place: fold.standings(*place) for place in places}


def by_arrays(records: list[Recorded]) -> dict[tuple[str, str], list[Rated]]:
    return fold_arrays(arrays(records))


def arrays(records: list[Recorded]) -> MatchArrays:
    with Projection() as projection:
        projection.apply(records)
        return load_matches(projection)


@st.composite
def histories(draw: st.DrawFn) -> list[Recorded]:
    """Registrations, results and changes of the rules, in any order."""
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
            config = plain(LeagueConfig(ratings=RatingsConfig(system=system, purposes=purposes)))
            config = config if rng.random() < 0.8 else {"from_the_future": 1}
            events.append(e.LeagueConfigured(config=config, config_digest=str(number), after=number))
        else:
            events.append(a_match(f"w-{number if rng.random() < 0.95 else 0}", rng))
    return recorded(events)


def a_match(name: str, rng: Random) -> e.MatchFinished:
    scores = [rng.choice([0.0, 1.0, 2.5, rng.random()]) for _ in range(rng.randint(2, 8))]
    return e.MatchFinished(
        match_id=name,
        game=rng.choice(["nim", "diplomacy"]),
        purpose=rng.choice(["training", "evaluation", "evaluation", "imported"]),
        worker="w",
        seed=0,
        seats=[e.SeatResult(n, f"S{n}", rng.choice(NAMES), score, 1) for n, score in enumerate(scores)],
        winner=None,
        reason="",
        length=1,
        seconds=0.0,
    )


def gathered(records: list[Recorded], skip: list[str] | None = None) -> dict[tuple[str, str], list[Rated]]:
    gatherer = Gatherer(skip or [])
    for record in records:
        gatherer.apply(record.sequence, record.event)
    return fold_arrays(gatherer.arrays())


@settings(max_examples=60, deadline=None)
@given(histories())
def test_any_history_gives_the_bits_of_the_fold_over_events(records: list[Recorded]) -> None:
    assert by_arrays(records) == by_events(records)
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
    voided = [*records, Recorded(len(records) + 1, 0, "s", "w", encode_event(void))]
    assert by_arrays(voided) == by_events(records, skip=[match.event.match_id])
    assert by_arrays(voided) != by_events(records)
