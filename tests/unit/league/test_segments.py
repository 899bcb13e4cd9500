"""Closed history in files: the same tables whether it was loaded or attached, and the same events again."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from league.fold_primitives import SeenIds
from league.log.base import RecordedEvent
from league.projections.dedup_index import DedupIndex
from league.projections.projection import Projection
from league.projections.segments import SegmentFiles, read_segment, write_segment
from league.projections.tables import TABLES, VIEWS
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, LeagueConfig
from schemas.errors import DecodeError, UsageError
from schemas.events import AgentRetired, MatchFailed
from tests.builders import run_query
from tests.simulated_history import Simulation

SMALL = LeagueConfig(seed=3, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
EVERYTHING = [*TABLES, *VIEWS]


def odd_history() -> list[RecordedEvent]:
    """Matches, voids and corrections, and among them copies, strangers, damage, and events with a field left out."""
    records = Simulation(SMALL).run_with_voids(10)
    payloads = [(r.payload, r.schema) for place, r in enumerate(records) for _ in range(2 if place % 7 == 0 else 1)]
    odd = [
        b'{"type":"SeasonBegun","n":1}',
        b"\xff{",
        b"not json",
        "\ufffd".encode(),
        b'{"type":"MatchFailed","match_id":7}',
        b'{"type":"MatchFailed","match_id":"short-1","purpose":"training","worker":"w","error":"no evaluation_id"}',
        encode_event(MatchFailed(match_id="rollout-0-0", purpose="training", worker="w", error="too late")),
        encode_event(AgentRetired(agent="nobody", reason="x")),
    ]
    for nth, payload in enumerate(odd):
        payloads.insert(30 + 17 * nth, (payload, 1))
    payloads.insert(60, (encode_event(AgentRetired(agent="random_bot", reason="of the future")), 99))
    return [
        RecordedEvent(n, 1_700_000_000_123_456_789 + n, f"subject.{n % 3}", "w", payload, schema)
        for n, (payload, schema) in enumerate(payloads, 1)
    ]


HISTORY = odd_history()


def loaded() -> dict[str, list[tuple[object, ...]]]:
    with Projection() as projection:
        projection.apply(HISTORY)
        return dump(projection)


def dump(projection: Projection) -> dict[str, list[tuple[object, ...]]]:
    return {name: projection.query(f"FROM {name} ORDER BY ALL") for name in EVERYTHING}


LOADED = loaded()


def cut(folder: Path, ends: list[int]) -> tuple[list[SegmentFiles], DedupIndex]:
    dedup, segments = DedupIndex(), []
    for nth, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
        # Each is written by another process than the one before, as archivists come and go.
        dedup = DedupIndex.from_bytes(dedup.to_bytes())
        batches = [HISTORY[start : (start + end) // 2], HISTORY[(start + end) // 2 : end]]
        segments.append(write_segment(start + 1, end, batches, dedup, folder / str(nth)))
    return segments, dedup


@pytest.mark.parametrize("ends", [[len(HISTORY)], [40, 61, 150], [1, 2, len(HISTORY) - 1]])
def test_attached_and_loaded_history_give_the_same_tables(tmp_path: Path, ends: list[int]) -> None:
    segments, dedup = cut(tmp_path, ends)
    with Projection(tmp_path / "p.duckdb") as projection:
        projection.attach(segments, dedup)
        assert projection.position == ends[-1]
        assert projection.query("SELECT count(*) FROM kept.matches") == [(0,)]
    with Projection(tmp_path / "p.duckdb") as projection:
        assert projection.rebuild_reason == ""
        projection.apply(HISTORY)
        assert dump(projection) == LOADED


def test_segments_can_be_attached_one_after_the_other(tmp_path: Path) -> None:
    segments, _ = cut(tmp_path, [50, 120])
    with Projection() as projection:
        again = DedupIndex()
        for segment in segments:
            write_segment(segment.first, segment.last, read_segment(segment), again, tmp_path / "again")
            projection.attach([segment], DedupIndex.from_bytes(again.to_bytes()))
        projection.apply(HISTORY)
        assert dump(projection) == LOADED


def test_a_segment_gives_the_exact_events_again(tmp_path: Path) -> None:
    segments, _ = cut(tmp_path, [70, len(HISTORY)])
    again = [recorded for segment in segments for batch in read_segment(segment) for recorded in batch]
    assert list(map(fields, again)) == list(map(fields, HISTORY))


def fields(recorded: RecordedEvent) -> tuple[object, ...]:
    return tuple(getattr(recorded, n) for n in ("sequence", "time_ns", "subject", "producer", "schema", "payload"))


def test_the_same_events_give_the_same_files(tmp_path: Path) -> None:
    (first,), _ = cut(tmp_path / "a", [len(HISTORY)])
    (second,), _ = cut(tmp_path / "b", [len(HISTORY)])
    for part, path in first.files.items():
        assert path.read_bytes() == second.files[part].read_bytes(), part


@pytest.mark.parametrize("damage", ["gone", "longer"])
def test_a_lost_file_empties_the_projection_and_says_which(tmp_path: Path, damage: str) -> None:
    (segment,), dedup = cut(tmp_path, [100])
    with Projection(tmp_path / "p.duckdb") as projection:
        projection.attach([segment], dedup)
    path = segment.files["matches"]
    path.unlink() if damage == "gone" else path.write_bytes(path.read_bytes() + b"x")
    with Projection(tmp_path / "p.duckdb") as projection:
        assert str(path) in projection.rebuild_reason
        assert ("no longer exists" if damage == "gone" else "expected") in projection.rebuild_reason
        assert projection.position == 0
        projection.apply(HISTORY)
        assert dump(projection) == LOADED


def test_a_truncated_file_is_told_when_it_is_read_or_attached(tmp_path: Path) -> None:
    (segment,), dedup = cut(tmp_path, [100])
    path = segment.files["events_rest"]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DecodeError, match="events_rest"):
        list(read_segment(segment))
    with Projection() as projection:
        with pytest.raises(DecodeError, match="events_rest"):
            projection.attach([segment], dedup)
        assert projection.position == 0
        projection.apply(HISTORY)
        assert dump(projection) == LOADED


def test_only_what_follows_the_position_is_attached(tmp_path: Path) -> None:
    segments, dedup = cut(tmp_path, [50, 100])
    with Projection() as projection:
        with pytest.raises(UsageError, match="expected one that begins at 1"):
            projection.attach(segments[1:], dedup)
        projection.apply(HISTORY[:50])
        projection.attach(segments[1:], dedup)
        projection.apply(HISTORY)
        assert dump(projection) == LOADED


def test_events_outside_of_the_range_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="event 12 after 11"):
        write_segment(1, 11, [HISTORY[:12]], DedupIndex(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == []


def test_sql_by_people_reads_attached_files_and_no_others(tmp_path: Path) -> None:
    segments, dedup = cut(tmp_path, [50, 100])
    path = tmp_path / "p.duckdb"
    with Projection(path) as projection:
        projection.attach(segments, dedup)
        expected = projection.query("SELECT count(*) FROM match_seats")
    assert run_query(path, "SELECT count(*) FROM match_seats").rows == expected
    other = tmp_path / "0" / "other.parquet"
    other.write_bytes(segments[0].files["matches"].read_bytes())
    with pytest.raises(UsageError, match="disabled"):
        run_query(path, f"FROM read_parquet('{other}')")


names = st.one_of(
    st.builds("{}-{}".format, st.sampled_from(["a", "b-1", "ä\n"]), st.integers(0, 6_000)),
    st.sampled_from(["", "a-", "-5", "a-07", "a-1234567890", "x"]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(names, max_size=30), max_size=5))
def test_a_saved_index_knows_what_was_seen(batches: list[list[str]]) -> None:
    dedup, seen = DedupIndex(), SeenIds()
    for batch in batches:
        failures = [MatchFailed(match_id=name, purpose="training", worker="w", error="") for name in batch]
        assert [dedup.add(failed) for failed in failures] == [seen.add(name) for name in batch]
        dedup = DedupIndex.from_bytes(dedup.to_bytes())


def test_other_bytes_are_no_index() -> None:
    with pytest.raises(DecodeError, match="not the dedup index"):
        DedupIndex.from_bytes(b"x")
