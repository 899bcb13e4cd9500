"""Decisions for people to read: segments in the store as the view ``decisions``, and the limits that drop them."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from league.blobs import CachedBlobStore, FolderBlobStore
from league.integrity.decision_segments import DecisionSegments
from league.integrity.garbage import BlobReferences
from league.log.base import RecordedEvent
from league.projections.decision_files import attach_decisions
from league.projections.projection import Projection
from league.projections.query import QueryProcess, names_decisions
from league.projections.tables import column_names
from schemas.config import DecisionsConfig
from schemas.decisions import WHOLE_TRAJECTORY, CreditRow, is_kept
from schemas.errors import UsageError
from schemas.events import DecisionsDropped, DecisionsStored, Event
from tests.builders import encode_decisions, match_finished, record_events, run_query
from workers.decisions import decision_schema, encode_credit, split_thoughts

DAY_NS = 86_400 * 10**9


def store(folder: Path, *segments: tuple[str, bytes]) -> tuple[CachedBlobStore, list[Event]]:
    """A store with these segments, and the events that record them."""
    blobs = CachedBlobStore(FolderBlobStore(folder / "store"), FolderBlobStore(folder / "cache"))
    names = [asyncio.run(blobs.store.put(data)) for _, data in segments]
    return blobs, [DecisionsStored("w", kind, n, 1, len(data)) for n, (kind, data) in zip(names, segments, strict=True)]


def attached(folder: Path, blobs: CachedBlobStore, events: list[RecordedEvent]) -> Path:
    with Projection(folder / "p.duckdb") as projection:
        projection.apply(events)
        asyncio.run(attach_decisions(projection, blobs))
    return folder / "p.duckdb"


def position_for_decisions(path: Path) -> int | None:
    query = QueryProcess(path, decisions=True)
    with contextlib.closing(query):
        return query.position()


def test_a_segment_has_the_columns_of_its_table() -> None:
    assert decision_schema().names == column_names("kept.decisions")
    assert list(CreditRow.__struct_fields__) == column_names("kept.credit")


def test_decisions_have_the_credit_of_their_last_step_once(tmp_path: Path) -> None:
    first = encode_decisions(
        {"match_id": "m-0", "worker": "w", "reply": "bet"},
        {"match_id": "m-0", "worker": "w", "reply": "raise", "call": 1},
        # A second evaluator played it too, whose result was not recorded.
        {"match_id": "m-0", "worker": "other", "reply": "check"},
        {"match_id": "m-1", "worker": "w", "reply": "I fold.", "move": None, "legal_moves": None},
        {"match_id": "m-2", "worker": "w", "reply": "call"},
    )
    step = encode_credit([CreditRow("m-0", 0, 0, "main", 2, "trained", 1.0, 0.5)])
    # A killed trainer took the same step again, and dropped another trajectory.
    again = encode_credit(
        [
            CreditRow("m-0", 0, 0, "main", 2, "trained", 1.0, 0.5),
            CreditRow("m-1", 0, WHOLE_TRAJECTORY, "main", 2, "stale"),
            # What was left of this one became too old.
            CreditRow("m-0", 0, WHOLE_TRAJECTORY, "main", 3, "stale"),
        ]
    )
    blobs, stored = store(tmp_path, ("decisions", first), ("credit", step), ("credit", again))
    matches = [match_finished(("main@1", 1.0), match_id=f"m-{n}") for n in range(3)]
    path = attached(tmp_path, blobs, record_events([*matches, *stored]))
    rows = run_query(path, "SELECT match_id, reply, step, outcome, reward, advantage FROM decisions ORDER BY 1, 2").rows
    assert rows == [
        ("m-0", "bet", 2, "trained", 1.0, 0.5),
        ("m-0", "raise", 3, "stale", None, None),
        ("m-1", "I fold.", 2, "stale", None, None),
        ("m-2", "call", None, None, None, None),
    ]


def test_no_other_file_becomes_readable(tmp_path: Path) -> None:
    blobs, stored = store(tmp_path, ("decisions", encode_decisions({"match_id": "m-0", "worker": "w", "reply": "bet"})))
    other = tmp_path / "cache" / "ab" / ("ab" * 32)
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_bytes(encode_decisions({"match_id": "secret", "worker": "w", "reply": "x"}))
    path = attached(tmp_path, blobs, record_events([match_finished(("main@1", 1.0), match_id="m-0"), *stored]))
    assert run_query(path, "SELECT count(*) FROM decisions").rows == [(1,)]
    for source in (f"read_parquet('{other}')", f"read_parquet('{tmp_path}/cache/*/*')", f"read_text('{__file__}')"):
        with pytest.raises(UsageError, match="Permission"):
            run_query(path, f"FROM {source}")


def test_a_lost_segment_is_left_out_and_a_dropped_one_is_read_no_more(tmp_path: Path) -> None:
    segments = [encode_decisions({"match_id": f"m-{n}", "worker": "w", "reply": "bet"}) for n in range(3)]
    blobs, stored = store(tmp_path, *(("decisions", data) for data in segments))
    matches = [match_finished(("main@1", 1.0), match_id=f"m-{n}") for n in range(3)]
    events = [*matches, *stored]
    path = attached(tmp_path, blobs, record_events(events))
    assert run_query(path, "SELECT count(*) FROM decisions").rows == [(3,)]
    assert position_for_decisions(path) == len(events)
    # The cache is emptied, and the store has lost one.
    for event in stored:
        assert isinstance(event, DecisionsStored)
        blobs.cache.path(event.artifact).unlink()
    assert isinstance(stored[1], DecisionsStored)
    assert isinstance(stored[2], DecisionsStored)
    blobs.store.path(stored[1].artifact).unlink()  # type: ignore[attr-defined]
    assert run_query(path, "SELECT count(*) FROM matches").rows == [(3,)]
    assert position_for_decisions(path) is None, "the others are fetched first"
    events.append(DecisionsDropped(first=stored[2].artifact, artifacts=[stored[2].artifact], bytes=1))
    attached(tmp_path, blobs, record_events(events))
    assert run_query(path, "SELECT match_id FROM decisions").rows == [("m-0",)]
    [(dropped,)] = run_query(path, "SELECT count(*) FROM decision_segments WHERE dropped_sequence IS NOT NULL").rows
    assert dropped == 1


def test_limits_drop_the_oldest_segments_and_verify_does_not_miss_them() -> None:
    stored = [DecisionsStored("w", "decisions", f"{n:064d}", 1, 100) for n in range(5)]
    records = record_events(stored, interval_ns=DAY_NS)
    newest = records[-1].time_ns

    def fold() -> DecisionSegments:
        segments = DecisionSegments()
        for recorded in records:
            segments.apply(recorded, recorded.event)
        return segments

    assert fold().drop(DecisionsConfig(), newest) is None
    aged = fold().drop(DecisionsConfig(days=2.5), newest)
    assert aged is not None
    assert aged.artifacts == [each.artifact for each in stored[:2]]
    assert aged.bytes == 200
    sized = fold().drop(DecisionsConfig(bytes=150), newest)
    # The newest is too young to be dropped.
    assert sized is not None
    assert sized.artifacts == [each.artifact for each in stored[:4]]
    references = BlobReferences()
    references.apply_batch([*records, *record_events([aged])])
    assert set(references.required_blobs()) == {each.artifact for each in stored[2:]}
    # A copy of a dropped segment's event does not bring it back.
    references.apply_batch(records[:1])
    assert set(references.required_blobs()) == {each.artifact for each in stored[2:]}


def test_the_share_of_matches_is_chosen_by_their_ids() -> None:
    ids = [f"rollout-1-{n}" for n in range(2_000)]
    kept = {share: [name for name in ids if is_kept(name, share)] for share in (0.0, 0.25, 1.0)}
    assert not kept[0.0]
    assert kept[1.0] == ids
    assert 400 < len(kept[0.25]) < 600


@pytest.mark.parametrize(
    ("reply", "thoughts", "answer"),
    [
        ("I bet.", "", "I bet."),
        ("<think>\nA king.\n</think>\n\nbet", "A king.", "bet"),
        ("A king.</think> bet", "A king.", "bet"),
        ("<think>\nNever ends", "Never ends", ""),
        ("<|channel|>analysis<|message|>A king.<|end|><|channel|>final<|message|>bet", "A king.", "bet"),
    ],
)
def test_thoughts_are_told_apart_from_the_answer(reply: str, thoughts: str, answer: str) -> None:
    assert split_thoughts(reply) == (thoughts, answer)
    assert split_thoughts("Never ends", begun=True) == ("Never ends", "")
    assert split_thoughts("A king.</think> bet", begun=True) == ("A king.", "bet")


def test_statements_that_name_decisions_are_recognised() -> None:
    assert names_decisions("SELECT reply FROM Decisions")
    assert names_decisions('FROM "decisions"')
    assert not names_decisions("SELECT * FROM matches")
    assert not names_decisions("FROM decision_segments")
