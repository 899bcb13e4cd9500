"""The history as tables: whatever the batches, whenever the process was killed, the same rows."""

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from league.log.base import RecordedEvent
from league.projections import load
from league.projections import projection as projection_module
from league.projections.load import Loader
from league.projections.projection import Projection, catch_up
from league.projections.statements import Statement
from league.projections.tables import TABLES, VERSION, VIEWS
from league.ratings.fold import RatingFold
from league.state import LeagueState
from schemas.codec import decode_event, encode_event
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, PolicyConfig, RatingsConfig
from schemas.errors import LeagueError, UsageError
from schemas.events import (
    AgentActivated,
    AgentRetired,
    CheckpointAdded,
    CheckpointPromoted,
    MatchFailed,
    MatchFinished,
    MatchVoided,
    SessionOpened,
)
from schemas.subjects import event_subject
from tests.memory_log import MemoryLog
from tests.simulated_history import Simulation, leaderboard_rows

SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
GOLDEN = Path(__file__).parents[2] / "golden" / "events" / "v2.jsonl"


def golden_history() -> list[RecordedEvent]:
    lines = [msgspec.json.decode(line) for line in GOLDEN.read_bytes().splitlines()]
    events = [decode_event(msgspec.json.encode(line["event"])) for line in lines]
    return [RecordedEvent(i, i * 1_000_000, "s", "w", encode_event(event)) for i, event in enumerate(events, start=1)]


def with_copies_and_strangers(records: list[RecordedEvent]) -> list[RecordedEvent]:
    """The history with later copies of every fifth event, events of unknown types, and bytes that are no event."""
    found: list[RecordedEvent] = []
    for place, recorded in enumerate(records):
        found += [recorded, recorded] if place % 5 == 0 else [recorded]
    retired = AgentRetired(agent="main@10", reason="again")
    early = CheckpointPromoted(agent="main@10", rating=1.0)
    failed = MatchFailed(match_id="rollout-0-0", purpose="training", worker="w", error="too late")
    lost = MatchFailed(match_id="rollout-9-0", purpose="training", worker="w", error="lost")
    more = [RecordedEvent(0, 5, "s", "w", encode_event(event)) for event in (retired, failed, lost)]
    strange = [RecordedEvent(0, 5, "s", "w", b'{"type":"SeasonBegun","n":1}'), RecordedEvent(0, 5, "s", "w", b"\xff{")]
    first = [RecordedEvent(0, 5, "s", "w", encode_event(early))]
    renumbered = enumerate(first + found + more + strange, start=1)
    return [RecordedEvent(sequence, r.time_ns, r.subject, r.producer, r.payload) for sequence, r in renumbered]


HISTORY = with_copies_and_strangers(Simulation(SMALL).run_with_voids(12) + golden_history())


def dump(projection: Projection) -> dict[str, list[tuple[Any, ...]]]:
    return {name: projection.query(f"FROM {name} ORDER BY ALL") for name in [*TABLES, *VIEWS]}


def projected(records: list[RecordedEvent], cuts: list[int]) -> dict[str, list[tuple[Any, ...]]]:
    with Projection() as projection:
        for start, end in zip([0, *cuts], [*cuts, len(records)], strict=True):
            projection.apply(records[max(0, start - 3) : end])
        return dump(projection)


WHOLE = projected(HISTORY, [])


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(0, len(HISTORY)), max_size=5))
def test_any_split_into_batches_gives_the_same_tables(cuts: list[int]) -> None:
    assert projected(HISTORY, sorted(cuts)) == WHOLE


def test_one_event_at_a_time_gives_the_same_tables() -> None:
    few = HISTORY[:30] + HISTORY[-24:]
    assert projected(few, list(range(1, len(few)))) == projected(few, [])


def test_every_table_is_filled() -> None:
    # The rows of `decisions` are in files, which are attached (test_decisions).
    assert {name for name, rows in WHOLE.items() if not rows} == {"decisions"}


def test_tables_hold_what_the_state_holds() -> None:
    state = LeagueState()
    for recorded in HISTORY:
        state.apply(recorded.sequence, recorded.event)
    with Projection() as projection:
        projection.apply(HISTORY)
        counted = "FROM matches WHERE voided_sequence IS NULL GROUP BY purpose"
        games = dict(projection.query(f"SELECT purpose, count(*) {counted}"))
        assert games == {purpose: state.finished_matches(purpose) for purpose in games}
        assert projection.query("SELECT count(*) FROM match_failures") == [(state.failed,)]
        assert projection.query("SELECT count(*), max(sequence) FROM events") == [(len(HISTORY), state.sequence)]
        agents = projection.query("SELECT agent, active, reason FROM agents ORDER BY joined_sequence")
        assert agents == [(a.name, a.active, a.reason) for a in state.agents.values()]
        seconds = projection.query("SELECT sum(metrics['wall_s']) FROM gradient_steps")
        assert seconds == [(state.training_seconds("main"),)]
        published = projection.query("SELECT version, adapter FROM policies WHERE policy = 'main' ORDER BY version")
        assert published == [(p.version, p.adapter) for _, p in sorted(state.published["main"].items())]


COLUMNS = "rank, agent, kind, rating, rated_games, active, reason"
BESIDE = msgspec.structs.replace(
    SMALL, ratings=RatingsConfig(system=Plugin(name="trueskill"), also=(Plugin(name="elo"), Plugin(name="openskill")))
)


@pytest.mark.parametrize(("config", "seed"), [*((SMALL, seed) for seed in range(4)), (BESIDE, 5), (BESIDE, 6)])
def test_the_leaderboard_at_any_sequence_says_what_the_state_said_there(config: LeagueConfig, seed: int) -> None:
    records = Simulation(msgspec.structs.replace(config, seed=seed)).run_with_voids(15)
    assert {"MatchVoided", "RatingsCorrected"} < {type(r.event).__name__ for r in records}
    state, checked, unadmitted = LeagueState(), 0, set[str]()
    with Projection() as projection:
        projection.apply(records)
        for recorded in records:
            state.apply(recorded.sequence, recorded.event)
            name = type(recorded.event).__name__
            if name in ("MatchVoided", "RatingsCorrected", "CheckpointAdded") or recorded.sequence % 40 == 0:
                rows = projection.query(f"SELECT {COLUMNS} FROM leaderboard_at({recorded.sequence})")
                assert rows == [
                    (r.rank, r.agent, r.kind, r.rating, r.games, r.active, r.reason) for r in leaderboard_rows(state)
                ], f"at {recorded.sequence}, {name}"
                checked += 1
                unadmitted.update(row[1] for row in rows if row[2] == "version")
        assert checked > 10
        # Newest evaluated versions are listed before they join, and where they never do.
        assert unadmitted
        assert projection.query("FROM leaderboard") == projection.query(f"FROM leaderboard_at({len(records)})")


def test_who_was_never_rated_after_a_reset_stands_where_the_state_puts_it() -> None:
    exploiter = PolicyConfig(role="main_exploiter", reset_steps=3, reset_min_steps=0)
    config = msgspec.structs.replace(SMALL, policies={"exploiter": exploiter})
    records = Simulation(config).run(10, 1)
    state, inherited = LeagueState(), Counter[bool]()
    with Projection() as projection:
        projection.apply(records)
        for recorded in records:
            state.apply(recorded.sequence, recorded.event)
            if isinstance(recorded.event, CheckpointAdded):
                board = f"leaderboard_at({recorded.sequence}) WHERE kind <> 'version'"
                rows = projection.query(f"SELECT agent, rating FROM {board}")
                assert dict(rows) == {name: one.rating for name, one in state.standings().agents.items()}
                joined = recorded.event
                begun = joined.policy in state.policies and bool(state.resets(joined.policy))
                inherited[begun] += not state.rating_table.games.get(joined.agent)
        assert {policy for (policy,) in projection.query("SELECT DISTINCT policy FROM resets")} == {"exploiter"}
        assert inherited[True]


def test_every_system_has_its_ratings_and_deviations_at_any_sequence() -> None:
    records = Simulation(BESIDE).run_with_voids(12)
    state = LeagueState()
    with Projection() as projection:
        projection.apply(records)
        for recorded in records:
            state.apply(recorded.sequence, recorded.event)
            if recorded.sequence % 60 and recorded.sequence < len(records):
                continue
            for table in state.to_snapshot().tables:
                at = f"{recorded.sequence}, under := '{table.system}'"
                found = projection.query(f"SELECT agent, rating, deviation, rated_games, rest FROM ratings_at({at})")
                assert sorted(found) == sorted(
                    (r.agent, r.rating, r.rest[0] if r.rest else None, r.games, r.rest) for r in table.ratings
                ), f"{table.system} at {recorded.sequence}"
                agents = set(projection.query(f"SELECT agent, rating, deviation FROM leaderboard_at({at})"))
                assert {row[:3] for row in found if row[0] in state.agents} <= agents
        assert {table.system for table in state.to_snapshot().tables} == {"elo", "openskill", "trueskill"}
        official = projection.query("SELECT agent, deviation FROM current_ratings ORDER BY agent")
        assert dict(official) == {name: state.rating_table.deviation(name) for name, _ in official}
        for table in ("ratings", "rating_corrections"):
            stated = f"SELECT system, bool_and(deviation > 0) FROM {table} GROUP BY system ORDER BY system"
            assert projection.query(stated) == [("elo", None), ("openskill", True), ("trueskill", True)]


def test_who_is_drawn_follows_every_retirement_and_activation() -> None:
    begun = Simulation(SMALL)
    begun.run(2, 1)
    agent = "other@1"
    joined = CheckpointAdded(agent=agent, policy="other", version=1, parent="", reason="recent", adapter="")
    begun.append(joined)
    retired = len(begun.history) + 1
    later = [
        AgentRetired(agent=agent, reason="the pool is full"),
        AgentRetired(agent=agent, reason="a copy"),
        AgentActivated(agent=agent, reason="a peer", after=retired),
        AgentActivated(agent=agent, reason="a copy", after=retired),
        AgentRetired(agent=agent, reason="full again", after=retired + 2),
        AgentRetired(agent="nobody@1", reason="never joined"),
        CheckpointPromoted(agent=agent, rating=1500.0),
        AgentRetired(agent="random_bot", reason="too weak"),
    ]
    for event in later:
        begun.append(event)
    state = LeagueState()
    with Projection() as projection:
        projection.apply(begun.history[: retired - 1])
        for recorded in begun.history:
            state.apply(recorded.sequence, recorded.event)
            if recorded.sequence >= retired:
                projection.apply([recorded])
                active = {name: one.active for name, one in state.agents.items()}
                assert dict(projection.query("SELECT agent, active FROM agents")) == active
        at = [
            dict(projection.query(f"SELECT agent, active FROM leaderboard_at({sequence})"))[agent]
            for sequence in range(retired - 1, retired + 7)
        ]
        assert at == [True, False, False, True, True, False, False, True]
        changes = projection.query("SELECT change, reason FROM activations WHERE agent = ? ORDER BY sequence", [agent])
        assert changes[-4:] == [
            ("retired", "the pool is full"),
            ("activated", "a peer"),
            ("retired", "full again"),
            ("promoted", "elite"),
        ]


def test_verdicts_and_resets_are_rows() -> None:
    with Projection() as projection:
        projection.apply(golden_history())
        assert projection.query(
            "SELECT candidate, incumbent, verdict, pairs, score, elo1, len(matches) FROM promotions"
        ) == [("main@20", "main@1", "keep", 2, 0.875, 30.0, 2)]
        assert projection.query(
            "SELECT policy, version, operator, seed, list_transform(parents, lambda p: p.agent), settings->>'$.noise' "
            "FROM resets"
        ) == [("exploiter", 40, "", 0, [], None), ("rogue", 12, "crossover", 7, ["main@10", "exploiter@40"], "0.01")]


@pytest.mark.parametrize("seed", range(3))
def test_wins_and_ranks_are_of_the_matches_that_a_fold_without_the_voided_ones_rates(seed: int) -> None:
    config = msgspec.structs.replace(SMALL, seed=seed)
    simulation = Simulation(config)
    records = simulation.run_with_voids(12)
    fold, rated = RatingFold(config, without={r.event.match.match_id for r in records if is_void(r)}), set()
    for recorded in records:
        rated.update(update.match_id for update in fold.apply(recorded.sequence, recorded.event))
    matches = [r.event for r in records if isinstance(r.event, MatchFinished) and r.event.match_id in rated]
    wins = Counter(match.seats[match.winner].agent for match in matches if match.winner is not None)
    with Projection() as projection:
        projection.apply(records)
        assert {name for (name,) in projection.query(f"SELECT match_id FROM rated_matches_at({len(records)})")} == rated
        rows = projection.query("SELECT agent, wins FROM leaderboard WHERE wins > 0")
        agents = {name for (name,) in projection.query("SELECT agent FROM leaderboard")}
        assert dict(rows) == {agent: n for agent, n in wins.items() if agent in agents}


def is_void(recorded: RecordedEvent) -> bool:
    return isinstance(recorded.event, MatchVoided)


def test_payoffs_pool_to_the_records_of_the_state() -> None:
    records = Simulation(SMALL).run_with_voids(12)
    state = LeagueState()
    for recorded in records:
        state.apply(recorded.sequence, recorded.event)
    pooled = """
        SELECT opponent, sum(wins)::BIGINT, sum(draws)::BIGINT, sum(losses)::BIGINT FROM payoff
        WHERE agent LIKE 'main@%' GROUP BY opponent
    """
    with Projection() as projection:
        projection.apply(records)
        rows = {opponent: tuple(counts) for opponent, *counts in projection.query(pooled)}
    expected = {name: (r.wins, r.draws, r.losses) for name, r in state.standings().records["main"].items()}
    assert rows == {name: counts for name, counts in expected.items() if counts != (0, 0, 0)}


def test_a_sequence_is_found_by_time() -> None:
    records = Simulation(SMALL).run(3, 1)
    with Projection() as projection:
        projection.apply(records)
        at = "SELECT sequence_at(make_timestamp(?))"
        for nth in (0, 5, len(records) - 1):
            microseconds = records[nth].time_ns // 1000
            assert projection.query(at, [microseconds]) == [(records[nth].sequence,)]
            assert projection.query(at, [microseconds - 1]) == [(records[nth].sequence - 1,)]
        assert projection.query("SELECT sequence_at('2001-01-01')") == [(0,)]
        by_time = "FROM leaderboard_at(sequence_at('2023-11-14 22:13:20.020'))"
        assert projection.query(by_time) == projection.query("FROM leaderboard_at(20)")


def test_an_unrated_agent_stands_where_the_state_puts_it() -> None:
    unrated = [r for r in HISTORY if type(r.event).__name__ != "RatingUpdated"]
    state = LeagueState()
    with Projection() as projection:
        projection.apply(unrated)
        for recorded in unrated:
            state.apply(recorded.sequence, recorded.event)
        rows = projection.query("SELECT agent, rating FROM leaderboard")
        assert rows == [(r.agent, r.rating) for r in leaderboard_rows(state)]


def test_unknown_events_and_damage_are_kept_as_they_are() -> None:
    with Projection() as projection:
        projection.apply(HISTORY)
        strange = projection.query("SELECT type, payload::VARCHAR FROM events ORDER BY sequence DESC LIMIT 2")
        assert strange == [(None, '"\ufffd{"'), ("SeasonBegun", '{"type":"SeasonBegun","n":1}')]


def test_a_closed_file_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "league.duckdb"
    half = len(HISTORY) // 2
    with Projection(path) as projection:
        assert projection.apply(HISTORY[:half]) == half
    with Projection(path) as projection:
        assert projection.position == half
        assert projection.rebuild_reason == ""
        assert projection.apply(HISTORY) == len(HISTORY) - half
        assert projection.apply(HISTORY) == 0
        assert dump(projection) == WHOLE


def test_a_batch_that_fails_half_way_leaves_nothing_behind() -> None:
    class Interrupted(BaseException):
        pass

    class Interrupting:
        """Stands in for the connection: dies in the middle of the third batch's statements."""

        def __init__(self, inner: duckdb.DuckDBPyConnection) -> None:
            self.inner = inner

        def execute(self, sql: str, *args: Any) -> Any:
            if "INSERT INTO kept.match_seats" in sql:
                raise Interrupted
            return self.inner.execute(sql, *args)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    with Projection() as projection:
        projection.apply(HISTORY[:5])
        connection = projection.connection
        projection._loader = Loader(Interrupting(connection))  # type: ignore[arg-type]
        with pytest.raises(Interrupted):
            projection.apply(HISTORY[5:])
        projection._loader = Loader(connection)
        assert projection.position == 5
        assert projection.query("SELECT count(*) FROM events") == [(5,)]
        projection.apply(HISTORY[5:])
        assert dump(projection) == WHOLE


def test_a_killed_process_leaves_a_file_that_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "league.duckdb"
    program = """
import os, sys
from pathlib import Path
from league.projections.projection import Projection
from league.ratings.fold import RatingFold
from tests.simulated_history import Simulation
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, RatingsConfig
config = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
records = Simulation(config).run(12, 1)
projection = Projection(Path(sys.argv[1]))
projection.apply(records[:40])
projection.apply(records[40:90], commit=False)
os._exit(9)
"""
    records = Simulation(SMALL).run(12, 1)
    assert subprocess.run([sys.executable, "-c", program, str(path)], check=False).returncode == 9
    with Projection(path) as projection:
        assert projection.position == 40
        projection.apply(records)
        assert dump(projection) == projected(records, [])


def test_a_file_of_another_version_is_rebuilt_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "league.duckdb"
    with Projection(path) as projection:
        projection.apply(HISTORY)
        projection.connection.execute("UPDATE kept.position SET schema_version = 0")
        projection.connection.execute("CREATE TABLE of_the_past (x INTEGER)")
    with Projection(path) as projection:
        assert f"tables of version 0 were dropped; this version keeps {VERSION}" in projection.rebuild_reason
        assert projection.position == 0
        projection.apply(HISTORY)
        assert dump(projection) == WHOLE
        assert projection.query("SELECT count(*) FROM duckdb_tables() WHERE table_name = 'of_the_past'") == [(0,)]


def test_a_file_that_another_process_holds_is_named(tmp_path: Path) -> None:
    path = tmp_path / "league.duckdb"
    program = "import sys; from league.projections.projection import Projection; from pathlib import Path\n"
    program += "p = Projection(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(LeagueError, match=rf"league\.duckdb: another process has this .*{holder.pid}"):
            Projection(path)
        holder.communicate("")


def test_files_that_are_no_projection_are_left_alone(tmp_path: Path) -> None:
    foreign, text = tmp_path / "foreign.duckdb", tmp_path / "text.duckdb"
    with duckdb.connect(str(foreign)) as connection:
        connection.execute("CREATE TABLE mine (x INTEGER)")
    text.write_text("this is not a database " * 1000)
    with pytest.raises(UsageError, match="holds other tables"):
        Projection(foreign)
    with pytest.raises(UsageError, match="cannot be opened as a DuckDB file"):
        Projection(text)


@pytest.mark.parametrize("expires", [1e13, 1e300, -1e300])
def test_a_session_that_ends_beyond_all_timestamps_is_in_the_tables(expires: float) -> None:
    opened = SessionOpened("grpo-1", "w", "s", "league/pfsp", "grpo@3", 0, "bot", "nim", ["a"], {}, 1.0, expires)
    with Projection() as projection:
        projection.apply([RecordedEvent(1, 1_000, event_subject("nim", opened), "w", encode_event(opened))])
        assert projection.query("SELECT match_id, expires FROM sessions") == [("grpo-1", None)]


def test_an_error_of_a_statement_is_the_one_that_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Statement(("AgentRetired",), "INSERT INTO kept.unreadable SELECT * FROM kept.no_such")
    with Projection() as projection:
        monkeypatch.setattr(load, "SMALL_STATEMENTS", [wrong])
        with pytest.raises(duckdb.CatalogException):
            projection.apply(HISTORY)
        monkeypatch.undo()
        projection.apply(HISTORY)
        assert dump(projection) == WHOLE


def test_events_that_a_statement_cannot_take_are_skipped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lossy = Statement(("AgentRetired",), "INSERT INTO kept.unreadable SELECT CAST(1e300 AS BIGINT), 's'")
    retired = [r.sequence for r in HISTORY if isinstance(r.event, AgentRetired)]
    with Projection() as projection:
        monkeypatch.setattr(load, "SMALL_STATEMENTS", [lossy])
        projection.apply(HISTORY)
        skipped = projection.query("SELECT sequence FROM kept.events WHERE payload LIKE '\"not loaded: %' ORDER BY 1")
        assert skipped == [(sequence,) for sequence in retired]
        assert projection.query("SELECT count(*) FROM events") == [(len(HISTORY),)]


def test_a_cancelled_catch_up_ends_after_the_thread_that_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, release = threading.Event(), threading.Event()

    class SlowProjection(Projection):
        def apply(self, batch: Sequence[RecordedEvent], *, commit: bool = True) -> int:
            entered.set()
            release.wait()
            return super().apply(batch, commit=commit)

    async def body() -> None:
        log = MemoryLog()
        await log.append_batch([AgentRetired(agent=f"main@{n}", reason="old") for n in range(5)])
        with SlowProjection() as slow:
            task = asyncio.create_task(catch_up(slow, log))
            await asyncio.to_thread(entered.wait)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=0.2)
            release.set()
            assert not done, "the connection would be closed under the thread"
            with pytest.raises(asyncio.CancelledError):
                await task
            assert slow.position == 5

    monkeypatch.setattr(projection_module, "BATCH", 2)
    try:
        asyncio.run(body())
    finally:
        release.set()
