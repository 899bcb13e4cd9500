"""Additions to an arena's stores, as the fold of the history keeps them."""

import asyncio
from itertools import zip_longest
from math import inf, isfinite, nan
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.stores import ArtifactStore
from league.blobs import CachedBlobStore, FolderBlobStore
from league.history.branch import copy_history
from league.integrity.archive import archive_history, fetch_attachable
from league.integrity.garbage import BlobReferences
from league.integrity.snapshots import load_state_at, take_snapshot
from league.integrity.verify import verify_history
from league.log.base import RecordedEvent
from league.projections.projection import Projection
from league.ratings.fold import RatingFold
from league.state import LeagueState, LeagueStateSnapshot
from league.state.artifacts import MAX_ARTIFACT_BYTES, MAX_STORE_BYTES, MAX_STORES
from schemas import events as e
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, LeagueConfig
from schemas.episodes import Artifact, ArtifactAdded
from tests.builders import fold_events
from tests.memory_log import MemoryLog
from tests.simulated_history import Simulation

SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))


def stored(
    number: int, artifact: str = "a", data: Any = "x", weight: float = 1.0, store: str = "questions", match: int = 0
) -> e.ArtifactStored:
    return e.ArtifactStored(store, artifact, data, weight, f"rollout-0-{match}", number, "rollout-0")


def folded(events: list[e.ArtifactStored]) -> LeagueState:
    return fold_events(*events)


def held(state: LeagueState, store: str | None = None) -> list[tuple[str, str, Any, float]]:
    return [(a.store, a.artifact.id, a.artifact.data, a.artifact.weight) for a in state.artifacts.additions(store)]


def through_a_snapshot(state: LeagueState) -> LeagueState:
    raw = msgspec.msgpack.encode(state.to_snapshot())
    return LeagueState.from_snapshot(msgspec.msgpack.decode(raw, type=LeagueStateSnapshot))


EVENTS = st.lists(
    st.builds(
        stored,
        number=st.integers(0, 3),
        artifact=st.sampled_from("abc"),
        data=st.one_of(st.integers(0, 9), st.text(max_size=3), st.just("y" * (MAX_ARTIFACT_BYTES + 1))),
        weight=st.sampled_from([0.0, 0.5, 2.0, -1.0, nan, inf]),
        store=st.sampled_from(["questions", "topics"]),
        match=st.integers(0, 3),
    ),
    max_size=20,
)

FITTING = st.lists(
    st.builds(
        stored,
        number=st.integers(0, 9),
        artifact=st.sampled_from("abcd"),
        data=st.integers(0, 9),
        match=st.integers(0, 9),
    ),
    max_size=20,
)


def test_what_has_the_id_of_an_earlier_artifact_takes_its_place_in_the_order() -> None:
    state = folded([stored(0, "a"), stored(1, "b"), stored(2, "a", "new", 3.0)])
    assert held(state) == [("questions", "a", "new", 3.0), ("questions", "b", "x", 1.0)]


def test_an_addition_that_is_told_again_changes_nothing_even_where_another_took_its_place_since() -> None:
    state = folded([stored(0, "a", "old"), stored(1, "a", "new"), stored(0, "a", "old")])
    assert held(state) == [("questions", "a", "new", 1.0)]


@pytest.mark.parametrize(
    "odd", [stored(1, weight=nan), stored(1, weight=-1.0), stored(1, data="y" * MAX_ARTIFACT_BYTES)]
)
def test_what_no_store_can_hold_is_counted_and_leaves_what_was_there(odd: e.ArtifactStored) -> None:
    state = folded([stored(0), odd])
    assert held(state) == [("questions", "a", "x", 1.0)]
    assert state.artifacts.refused == 1


def test_a_store_is_bounded_and_still_lets_what_it_holds_be_replaced() -> None:
    large = "y" * (MAX_ARTIFACT_BYTES - 100)
    state = folded([stored(n, f"{n}", large) for n in range(70)])
    fitting = len(held(state))
    assert 0 < fitting <= MAX_STORE_BYTES // len(large)
    assert state.artifacts.refused == 70 - fitting
    state.apply(100, stored(100, "0", "small"))
    assert held(state)[0] == ("questions", "0", "small", 1.0)
    state.apply(101, stored(101, "more", large))
    assert len(held(state)) == fitting + 1


def test_stores_beyond_the_limit_are_left_out() -> None:
    state = folded([stored(n, store=f"s{n:02}") for n in range(MAX_STORES + 1)])
    assert [name for name, *_ in held(state)] == [f"s{n:02}" for n in range(MAX_STORES)]


@given(EVENTS, st.integers(0, 20))
def test_a_snapshot_anywhere_goes_on_to_the_same_bits(events: list[e.ArtifactStored], at: int) -> None:
    state = through_a_snapshot(folded(events[:at]))
    for sequence, event in enumerate(events[at:], start=len(events[:at]) + 1):
        state.apply(sequence, event)
    assert state.digest() == folded(events).digest()
    assert held(state) == held(folded(events))


@given(EVENTS)
def test_an_arenas_store_draws_the_same_from_the_fold_as_from_the_additions_as_they_came(
    events: list[e.ArtifactStored],
) -> None:
    followed, state = ArtifactStore("questions", seed=5), LeagueState()
    for sequence, event in enumerate(events, start=1):
        before = held(state, "questions")
        state.apply(sequence, event)
        if held(state, "questions") != before:
            followed.replay(a for a in state.artifacts.additions("questions") if a.artifact.id == event.artifact)
    restarted = ArtifactStore("questions", seed=5)
    restarted.replay(state.artifacts.additions())
    assert restarted.count() == followed.count()
    if restarted.count():
        assert restarted.sample(7) == followed.sample(7)


def test_taking_back_a_match_leaves_what_it_added() -> None:
    state = folded([stored(0)])
    finished = e.MatchFinished(
        match_id="rollout-0-0",
        game="proposer_solver",
        purpose="training",
        worker="rollout-0",
        seed=0,
        seats=[],
        winner=None,
        reason="",
        length=1,
        seconds=0.0,
    )
    state.apply(2, finished)
    state.apply(3, e.MatchVoided(finished, 2, "old engine"))
    assert held(state) == [("questions", "a", "x", 1.0)]


@given(EVENTS)
@settings(max_examples=5, deadline=None)
def test_sql_shows_every_addition_once_and_the_newest_of_an_id_is_what_the_fold_holds(
    events: list[e.ArtifactStored],
) -> None:
    whole = [event for event in events if isfinite(event.weight)]
    records = [RecordedEvent(at, at * 1_000, "s", "w", encode_event(event)) for at, event in enumerate(whole, start=1)]
    state = folded(whole)
    newest = f"""
        SELECT store, artifact, arg_max(data, sequence)::VARCHAR, arg_max(weight, sequence)
        FROM artifacts WHERE weight >= 0 AND strlen(data) <= {MAX_ARTIFACT_BYTES} GROUP BY ALL
    """
    with Projection() as projection:
        projection.apply(records)
        kept = {(event.match_id, event.number): event for event in reversed(whole)}
        assert projection.query("SELECT count(*) FROM artifacts") == [(len(kept),)]
        rows = [
            (store, name, msgspec.json.decode(data), weight) for store, name, data, weight in projection.query(newest)
        ]
        assert sorted(rows, key=repr) == sorted(held(state), key=repr)


def test_archive_snapshot_and_branch_keep_what_matches_added(tmp_path: Path) -> None:
    artifacts = CachedBlobStore(FolderBlobStore(tmp_path / "store"), FolderBlobStore(tmp_path / "cache"))
    simulated = [r.event for r in Simulation(SMALL).run(3, 2) if r.event is not None]
    added = [stored(n, f"{n}", {"question": n, "answers": [n, None]}, match=n // 3) for n in range(30)]
    events = [event for pair in zip_longest(simulated, added) for event in pair if event is not None]

    async def main() -> None:
        log, copy = MemoryLog(), MemoryLog()
        await log.append_batch(events)
        await archive_history(log, artifacts, 60)
        assert (await verify_history(log, artifacts)).damage == []
        state, ratings = LeagueState(), RatingFold()
        async for recorded in log.read():
            for fold in (state, ratings):
                fold.apply(recorded.sequence, recorded.event)
        assert [(a.artifact.id, a.artifact.data["question"]) for a in state.artifacts.additions()] == [
            (f"{n}", n) for n in range(30)
        ]
        await log.append(await take_snapshot(state, ratings, artifacts))
        assert (await load_state_at(log, artifacts)).artifacts.additions() == state.artifacts.additions()
        with Projection() as attached, Projection() as loaded:
            found = await fetch_attachable(log, artifacts, 0)
            assert found is not None
            attached.attach(found.segments, found.marks)
            attached.apply([r async for r in log.read(attached.position + 1)])
            loaded.apply([r async for r in log.read()])
            rows = attached.query("FROM artifacts ORDER BY sequence")
            assert rows == loaded.query("FROM artifacts ORDER BY sequence")
            assert len(rows) == 30
        await copy_history(log, copy, len(events), lambda done: None)
        assert (await load_state_at(copy, artifacts)).artifacts.additions() == state.artifacts.additions()

    asyncio.run(main())


@given(FITTING, st.lists(st.integers(0, 20), max_size=4), st.booleans())
def test_a_store_that_follows_holds_and_draws_what_one_holds_that_was_opened_later(
    events: list[e.ArtifactStored], cuts: list[int], weighted: bool
) -> None:
    """Also where what comes in takes the place of initial content, whenever the store looked."""

    def opened() -> ArtifactStore:
        store = ArtifactStore("questions", seed=5)
        store.replay([ArtifactAdded("questions", Artifact("first", name)) for name in ("b", "z")])
        return store

    state, following = LeagueState(), opened()
    watch = state.artifacts.subscribe()
    for sequence, event in enumerate(events, start=1):
        state.apply(sequence, event)
        if sequence in cuts:
            following.replay(watch.drain())
    following.replay(watch.drain())
    assert watch.drain() == []
    later = opened()
    later.replay(through_a_snapshot(state).artifacts.subscribe().drain())
    assert following.count() == later.count()
    assert following.sample(9, weighted, Random(1)) == later.sample(9, weighted, Random(1))


def test_a_store_that_was_handed_over_has_an_addition_when_it_comes_back() -> None:
    told: list[ArtifactAdded] = []
    store = ArtifactStore("questions")
    store.hand_over(told.append)
    kept = store.add(Artifact("x"))
    assert (store.count(), [added.artifact for added in told]) == (0, [kept])
    store.replay(told)
    assert store.get(kept.id) == kept


def test_a_result_that_nests_without_end_keeps_what_it_names() -> None:
    name = "ab" * 32
    payload = b'{"type":"MatchFinished","record":"%s","x":%s}' % (name.encode(), b"[" * 100_000 + b"]" * 100_000)
    references = BlobReferences()
    references.apply_batch([RecordedEvent(1, 1, "league.nim.match.training.finished.w", "w", payload)])
    assert references.optional == {name}
