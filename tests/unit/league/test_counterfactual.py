"""Histories rated under other rules: what is asked for, what comes out, and that nothing is written."""

from collections.abc import Iterator

import msgspec
import pytest

from league.history.counterfactual import (
    Counterfactual,
    RatingComparison,
    amend_ratings,
    compare_ratings,
    rating_shifts,
)
from league.log.base import RecordedEvent
from league.projections.projection import Projection
from league.ratings.fold import RatingFold
from schemas import events as e
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, RatingsConfig
from schemas.errors import ConfigError, UsageError
from schemas.events import AgentRating
from tests.builders import replace_event
from tests.simulated_history import Simulation

SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
HISTORY = Simulation(SMALL).run(12, 2)


@pytest.fixture(scope="module")
def league() -> Iterator[Projection]:
    with Projection() as projection:
        projection.apply(HISTORY)
        yield projection


def refolded(records: list[RecordedEvent], **ratings: object) -> dict[str, float]:
    """Ratings by a fold under one configuration throughout."""
    fold = RatingFold(amend=lambda _: RatingsConfig(**ratings))  # type: ignore[arg-type]
    for recorded in records:
        fold.apply(recorded.sequence, recorded.event)
    return {rated.agent: rated.rating for rated in fold.rated_agents("diplomacy")}


def rated_otherwise(comparison: RatingComparison) -> dict[str, float]:
    return {move.agent: move.rating for move in comparison.moves if move.rating is not None}


def elo(k: float) -> Plugin:
    return Plugin(name="elo", settings={"k": k})


def edited(edit: object) -> list[RecordedEvent]:
    """The history with its matches changed; None leaves one out."""
    records = []
    for r in HISTORY:
        event = edit(r.event) if isinstance(r.event, e.MatchFinished) else r.event  # type: ignore[operator]
        if event is not None:
            records.append(replace_event(r, event))
    return records


def test_under_its_own_rules_nothing_moves(league: Projection) -> None:
    comparison = compare_ratings(league.connection, len(HISTORY), Counterfactual(settings=["ratings.elo.k=32"]))
    assert comparison.changed_count == 0
    assert len(comparison.moves) > 5
    assert [move.rank for move in comparison.moves] == list(range(1, len(comparison.moves) + 1))
    assert all(m.rank == m.recorded_rank and m.games == m.recorded_games > 0 for m in comparison.moves)


@pytest.mark.parametrize("setting", ["ratings.elo.k=16", "ratings.system.settings.k=16.0"])
def test_another_k_gives_the_ratings_of_a_league_that_had_it(league: Projection, setting: str) -> None:
    comparison = compare_ratings(league.connection, len(HISTORY), Counterfactual(settings=[setting]))
    assert rated_otherwise(comparison) == refolded(HISTORY, system=elo(16.0))
    assert comparison.changed_count > 0


def test_other_purposes_count_other_matches(league: Projection) -> None:
    comparison = compare_ratings(
        league.connection, len(HISTORY), Counterfactual(settings=['ratings.purposes=["training"]'])
    )
    assert rated_otherwise(comparison) == refolded(HISTORY, purposes=("training",))


def test_without_an_agent_the_others_still_compare(league: Projection) -> None:
    def edit(match: e.MatchFinished) -> e.MatchFinished:
        return msgspec.structs.replace(match, seats=[seat for seat in match.seats if seat.agent != "random_bot"])

    comparison = compare_ratings(league.connection, len(HISTORY), Counterfactual(without_agents=["random_bot"]))
    assert rated_otherwise(comparison) == refolded(edited(edit))
    gone = next(move for move in comparison.moves if move.agent == "random_bot")
    assert (gone.rank, gone.rating, gone.games) == (None, None, 0)
    assert gone.recorded_games > 0


def test_matches_left_out_count_for_nothing(league: Projection) -> None:
    some = [r.event.match_id for r in HISTORY if isinstance(r.event, e.MatchFinished)][::3]
    left = edited(lambda match: None if match.match_id in some else match)
    comparison = compare_ratings(league.connection, len(HISTORY), Counterfactual(without_matches=some))
    assert rated_otherwise(comparison) == refolded(left)


def test_up_to_a_sequence_both_sides_are_of_then(league: Projection) -> None:
    until = next(
        r.sequence for r in HISTORY[len(HISTORY) // 2 :] if type(r.event).__name__ in ("OpponentsSampled", "Retired")
    )
    comparison = compare_ratings(league.connection, until, Counterfactual(settings=["ratings.elo.k=16"]))
    assert rated_otherwise(comparison) == refolded(HISTORY[:until], system=elo(16.0))
    assert {m.agent: m.recorded_rating for m in comparison.moves} == refolded(HISTORY[:until])


def test_a_void_counts_from_its_own_place_on() -> None:
    match = next(r for r in HISTORY if isinstance(r.event, e.MatchFinished) and r.event.purpose == "evaluation")
    assert isinstance(match.event, e.MatchFinished)
    void = e.MatchVoided(match=match.event, match_sequence=match.sequence, reason="x")
    end = len(HISTORY)
    with Projection() as projection:
        projection.apply([*HISTORY, RecordedEvent(end + 1, 0, "s", "w", encode_event(void))])
        assert compare_ratings(projection.connection, end, Counterfactual()).changed_count == 0
        comparison = compare_ratings(projection.connection, end + 1, Counterfactual())
    assert rated_otherwise(comparison) == refolded([r for r in HISTORY if r is not match])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("ratings.elo.k=0", r"ratings\.system\.settings\.k: 0; expected more than 0"),
        ("ratings.elo.q=1", r"ratings\.system\.settings\.q: unknown key; expected 'k'"),
        ("ratings.elo.k=many", r"ratings\.system\.settings\.k: expected `float`"),
        ("ratings.glicko.tau=1", r"nothing was rated under 'glicko'; expected ratings\.elo\.tau"),
        ("ratings.colour=1", r"ratings\.colour: unknown key; expected 'also', 'purposes' or 'system'"),
        ("ratings.purposes.k.x=1", r"'purposes' is not a table"),
        ("rating.k=1", r"expected ratings\.KEY=VALUE"),
        ("ratings.elo.k", r"expected ratings\.KEY=VALUE"),
    ],
)
def test_a_setting_that_does_not_exist_is_refused_by_name(league: Projection, settings: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compare_ratings(league.connection, len(HISTORY), Counterfactual(settings=[settings]))


def test_an_unknown_system_or_agent_is_refused_with_those_there_are(league: Projection) -> None:
    with pytest.raises(ConfigError, match=r"ratings\.system\.name: 'glicko' is unknown; expected 'elo'"):
        compare_ratings(league.connection, len(HISTORY), Counterfactual(system="glicko"))
    with pytest.raises(UsageError, match=r"agent 'nobody': in no match.*'random_bot'"):
        compare_ratings(league.connection, len(HISTORY), Counterfactual(without_agents=["nobody"]))


def test_a_setting_of_another_system_changes_nothing() -> None:
    otherwise = Counterfactual(settings=["ratings.trueskill.tau=1", 'ratings.purposes=["training"]'])
    changed = amend_ratings(RatingsConfig(system=elo(8.0), also=(Plugin(name="openskill"),)), otherwise)
    assert changed == RatingsConfig(system=elo(8.0), purposes=("training",))


def test_moves_rank_both_tables() -> None:
    [new, other, gone] = rating_shifts(
        [AgentRating("a", 1000.0, 3), AgentRating("b", 1100.0, 2)],
        [AgentRating("c", 1200.0, 1), AgentRating("a", 900.0, 3)],
    )
    assert (new.agent, new.rank, new.recorded_rank) == ("c", 1, None)
    assert (other.agent, other.rank, other.recorded_rank, other.rating) == ("a", 2, 2, 900.0)
    assert (gone.agent, gone.rank, gone.recorded_rank) == ("b", None, 1)


def test_a_system_beside_the_official_one_is_compared_with_its_own_record_under_its_own_settings() -> None:
    beside = Plugin(name="elo", settings={"k": 8.0})
    config = msgspec.structs.replace(SMALL, ratings=RatingsConfig(system=Plugin(name="trueskill"), also=(beside,)))
    records = Simulation(config).run(8, 1)
    with Projection() as projection:
        projection.apply(records)
        same = compare_ratings(projection.connection, len(records), Counterfactual(system="elo"))
        assert (same.system, same.recorded_system, same.changed_count) == ("elo", "elo", 0)
        assert len(same.moves) > 3
        other = compare_ratings(
            projection.connection, len(records), Counterfactual(system="elo", settings=["ratings.elo.k=16"])
        )
        assert other.changed_count > 0
        assert {m.agent: m.recorded_rating for m in other.moves} == {m.agent: m.rating for m in same.moves}
        unrecorded = compare_ratings(projection.connection, len(records), Counterfactual(system="openskill"))
        assert (unrecorded.system, unrecorded.recorded_system) == ("openskill", "trueskill")
