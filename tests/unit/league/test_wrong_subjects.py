"""What lies on a subject where it does not belong counts nowhere: tables say what the folds say."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from league.log.base import RecordedEvent
from league.projections.dedup_index import DedupIndex
from league.projections.projection import Projection
from league.projections.segments import write_segment
from league.projections.tables import TABLES, VIEWS
from league.state import LeagueState
from schemas import events as e
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, LeagueConfig, to_builtins
from schemas.subjects import event_subject
from tests.simulated_history import Simulation, leaderboard_rows

SMALL = LeagueConfig(seed=8, evaluation=EvaluationConfig(every=5, gatekeeper_games=5, benchmark_games=5))


def forged() -> list[tuple[e.Event, str]]:
    """Events that would change something, on subjects where whoever wrote them may publish something else."""
    seats = [e.SeatResult(seat=n, role="P", agent="main@1", score=1.0, rank=1) for n in range(2)]
    won = e.MatchFinished(
        match_id="rollout-0-3", game="nim", purpose="training", worker="mallory", seed=1, seats=seats, winner=0,
        reason="", length=1, seconds=0.0,
    )  # fmt: skip
    mine = "league.league.match.training.finished.mallory"
    opened = e.LeagueOpened(league="league", config=to_builtins(SMALL) | {"seed": 99}, model="mine")
    rated = e.RatingUpdated(
        match_id="x", match_sequence=1_000, game="nim", system="elo", changes=[e.RatingChange("main@1", 0.0, 9_000.0)]
    )
    return [
        (opened, mine),
        (won, "league.league.match.evaluation.finished.mallory"),
        (won, "league.league.match.training.finished.rollout-0"),
        (won, "league.league.match.training.failed.mallory"),
        (won, "league.league.agent.registered"),
        (e.MatchFailed(match_id="rollout-0-4", purpose="training", worker="w", error=""), mine),
        (rated, mine),
        (e.RatingsCorrected(game="nim", system="elo", through=10**6, waited=[], ratings=[]), mine),
        (e.AgentRegistered(agent="mallory", kind="bot", baseline=False, rating=1.0), mine),
        (e.AgentRetired(agent="random_bot", reason="forged"), "league.league.worker.left.mallory"),
        (e.LeaguePaused(reason="forged"), "league.league"),
        (e.LeagueConfigured(config=to_builtins(SMALL), config_digest="x", after=1), "league."),
        (e.OpponentsSampled(match_id="rollout-0-5", worker="a", hero="main", hero_seat=0, sampler="", sampler_digest="",
                            standings_sequence=0, draw=0, picks=[]), "league.league.opponents.sampled.b"),
        (e.CheckpointAdded(agent="main@9", policy="main", version=9, parent="", reason="first", adapter=""), mine),
        (e.WorkerLeft(worker="rollout-0", incarnation="1", reason="forged"), "league.league.worker.left.mallory"),
    ]  # fmt: skip


def honest() -> list[tuple[e.Event, str]]:
    events = [r.event for r in Simulation(SMALL).run_with_voids(5) if r.event is not None]
    joined = e.WorkerJoined(worker="rater-1", role="rater", incarnation="1", host="h", pid=1, version="1")
    left = e.WorkerLeft(worker="rater-1", incarnation="1", reason="done")
    return [(event, event_subject("league", event)) for event in [*events, joined, left]]


def recorded(found: list[tuple[e.Event, str]]) -> list[RecordedEvent]:
    return [
        RecordedEvent(n, n * 10**9, subject, "w", encode_event(event)) for n, (event, subject) in enumerate(found, 1)
    ]


def mixed(seed: int) -> tuple[list[RecordedEvent], set[int]]:
    """Both, each forged event twice at places of its own, the first before everything; and where those lie."""
    rng, found = Random(seed), [(event, subject, True) for event, subject in honest()]
    places = forged()
    for event, subject in places[1:] + places[1:]:
        found.insert(rng.randrange(len(found) + 1), (event, subject, False))
    found.insert(0, (*places[0], False))
    records = recorded([(event, subject) for event, subject, _ in found])
    return records, {n for n, (*_, is_real) in enumerate(found, 1) if not is_real}


def tables(records: list[RecordedEvent]) -> dict[str, list[tuple[Any, ...]]]:
    with Projection() as projection:
        projection.apply(records)
        return {name: projection.query(f"FROM {name} ORDER BY ALL") for name in [*TABLES, *VIEWS]}


def folded(records: list[RecordedEvent]) -> LeagueState:
    state = LeagueState()
    for record in records:
        state.apply(record.sequence, record.event)
    return state


@pytest.mark.parametrize("seed", [1])
def test_tables_and_folds_agree_that_events_on_wrong_subjects_count_nowhere(seed: int) -> None:
    records, strange = mixed(seed)
    assert {r.sequence for r in records if r.event is None} == strange
    # What is no event at the same places.
    nothing = [RecordedEvent(r.sequence, r.time_ns, r.subject, "w", b"{}") if r.event is None else r for r in records]
    assert folded(records).digest() == folded(nothing).digest()
    found, expected = tables(records), tables(nothing)
    assert sum(events for _, events, *_ in found.pop("unreadable_events")) == len(strange)
    del expected["unreadable_events"], found["events"], expected["events"]
    assert found == expected
    state = folded(records)
    assert {row[0] for row in found["agents"]} == set(state.agents)
    assert {row[1]: row[3] for row in found["leaderboard"]} == {
        row.agent: row.rating for row in leaderboard_rows(state)
    }
    assert len(found["configurations"]) == 2
    assert [row[0] for row in found["workers"]] == ["rater-1"]
    assert found["workers"][0][-1] == "done"


def test_attached_segments_hold_nothing_from_wrong_subjects_either(tmp_path: Path) -> None:
    records, _ = mixed(5)
    cut = len(records) * 2 // 3
    marks = DedupIndex()
    segment = write_segment(1, cut, [records[:cut]], marks, tmp_path)
    with Projection() as projection:
        projection.attach([segment], marks)
        projection.apply(records[cut:])
        found = {name: projection.query(f"FROM {name} ORDER BY ALL") for name in [*TABLES, *VIEWS]}
    assert found == tables(records)
