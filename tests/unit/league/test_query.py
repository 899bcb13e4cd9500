"""SQL by people: answers, limits, refusals, and the forms that results are printed in."""

import csv
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from league.projections.dedup_index import DedupIndex
from league.projections.projection import Projection
from league.projections.segments import write_segment
from league.queries.text_table import render_rows
from schemas.config import EvaluationConfig, LeagueConfig
from schemas.errors import LeagueError, UsageError
from schemas.events import CheckpointAdded
from tests.builders import run_query
from tests.simulated_history import Simulation

SMALL = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
HISTORY = Simulation(SMALL).run(6, 1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("query") / "league.duckdb"
    with Projection(file) as projection:
        projection.apply(HISTORY)
    return file


def test_a_query_gives_columns_types_and_rows(path: Path) -> None:
    result = run_query(
        path, "SELECT kind, count(*) AS n, max(rating) AS best FROM leaderboard GROUP BY kind ORDER BY 1"
    )
    assert result.columns == ["kind", "n", "best"]
    assert result.types == ["VARCHAR", "BIGINT", "DOUBLE"]
    joined = sum(isinstance(recorded.event, CheckpointAdded) for recorded in HISTORY)
    assert [row[:2] for row in result.rows] == [("base", 1), ("bot", 2), ("checkpoint", joined)]


@pytest.mark.parametrize(
    "sql",
    ["SHOW TABLES", "DESCRIBE matches", "SUMMARIZE agents", "FROM position", "EXPLAIN FROM matches", "VALUES (1)"],
)
def test_all_statements_that_read_are_taken(path: Path, sql: str) -> None:
    assert run_query(path, sql).rows


def test_values_of_every_kind_come_back(path: Path) -> None:
    sql = (
        "SELECT 170141183460469231731687303715884105727::HUGEINT, 1.5::DECIMAL(4,2), now(), [1, NULL], {'a': 'b'}, NULL"
    )
    (row,) = run_query(path, sql).rows
    assert row[0] == 2**127 - 1
    assert row[3:] == ([1, None], {"a": "b"}, None)


REFUSED = [
    "DELETE FROM matches",
    "CREATE TABLE x AS SELECT 1",
    "CREATE TEMP TABLE x AS SELECT 1",
    "COPY matches TO '/tmp/matches.csv'",
    "SET memory_limit = '100GB'",
    "ATTACH '/tmp/other.duckdb'",
    "DETACH stored",
    "USE stored",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SELECT 1; SELECT 2",
    "",
    "SELECT * FROM read_text('/etc/hostname')",
    "SELECT * FROM '/etc/hostname'",
    "FROM '~/x.csv'",
    "FROM read_text('~/x')",
    "FROM glob('/*')",
    "FROM glob('*')",
    "FROM glob('league://*')",
    "FROM read_csv('/etc/passwd')",
    "FROM sniff_csv('/etc/passwd')",
    "FROM read_parquet('/tmp/*.parquet')",
    "FROM read_csv('http://127.0.0.1:1/x.csv')",
    "FROM read_text('league://../x')",
    "PRAGMA enable_external_access",
    "PRAGMA database_list",
    "CALL pragma_database_size()",
    "EXPLAIN ANALYZE COPY matches TO '/tmp/matches.csv'",
    "FROM query('COPY matches TO ''/tmp/matches.csv''')",
    "FROM query/**/('SET lock_configuration = false')",
    "FROM json_execute_serialized_sql('{}')",
    "FROM duckdb_extensions()",
]
TOLD = [
    "SELECT current_setting('allowed_paths')",
    "SELECT system.main.\"Current_Setting\"/**/('secret_directory')",
    "EXPLAIN SELECT current_setting('allowed_paths')",
    "EXPLAIN ANALYZE SELECT current_setting/**/('allowed_paths')",
    "SELECT 'ü', value FROM duckdb_settings()",
    "FROM pg_catalog.pg_settings",
    "SHOW allowed_paths",
    'SHOW "allowed_paths"',
    "SHOW DATABASES",
    "SHOW ALL TABLES",
    "FROM duckdb_databases()",
    "FROM 'duckdb_databases'",
    "SUMMARIZE pragma_database_list",
    "FROM query('SELECT current_' || 'setting(''allowed_paths'')')",
    "FROM query/**/('SELECT current_setting(''allowed_paths'')')",
    "EXPLAIN /* x */ FROM query('SELECT 1')",
    "FROM query_table('duckdb_' || 'databases')",
    "FROM duckdb_secrets()",
    "FROM duckdb_tables()",
    "FROM duckdb_views()",
    "FROM stored.kept.attached",
    "FROM stored.kept.decision_files",
    "SELECT view_definition FROM information_schema.views",
    "SELECT sql FROM sqlite_master",
    "FROM duckdb_external_file_cache()",
    "FROM duckdb_logs()",
    "FROM duckdb_temporary_files()",
]
"""Statements about DuckDB itself. They may be answered, as there is nothing to tell."""


@pytest.fixture(scope="module")
def attached(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file whose tables read those of a segment."""
    folder, dedup, half = tmp_path_factory.mktemp("server") / "private", DedupIndex(), len(HISTORY) // 2
    folder.mkdir()
    segment = write_segment(1, half, [HISTORY[:half]], dedup, folder / "artifacts")
    with Projection(folder / "league.duckdb") as projection:
        projection.attach([segment], dedup)
        projection.apply(HISTORY)
    return folder / "league.duckdb"


@pytest.mark.parametrize("sql", REFUSED)
def test_everything_that_writes_or_leaves_the_tables_is_refused(path: Path, sql: str) -> None:
    before = path.read_bytes()
    with pytest.raises(UsageError, match=r"^SQL: "):
        run_query(path, sql)
    assert path.read_bytes() == before


def test_no_statement_tells_a_path_of_this_machine(attached: Path) -> None:
    for sql in [*TOLD, *REFUSED]:
        try:
            said = str(run_query(attached, sql).rows)
        except UsageError as error:
            said = str(error)
        for name in ("/tmp/matches.csv", "/tmp/other.duckdb", "/tmp/*.parquet"):
            said = said.replace(name, "")
        for place in (str(attached.parent), f"{Path.home()}/", str(Path.cwd()), tempfile.gettempdir()):
            assert place not in said, (sql, said)


def test_a_query_reads_the_file_and_its_segments(path: Path, attached: Path) -> None:
    for table in ("events", "matches", "match_seats", "ratings", "leaderboard", "agents"):
        one, other = (run_query(each, f"FROM {table} ORDER BY ALL").rows for each in (path, attached))
        assert one == other, table


def test_a_long_statement_is_read(path: Path) -> None:
    assert run_query(path, f"SELECT {'1 + ' * 400}1 AS n").rows == [(401,)]


def test_a_mistake_is_pointed_at(path: Path) -> None:
    with pytest.raises(UsageError) as error:
        run_query(path, "SELECT match_id\nFORM matches")
    assert 'syntax error at or near "matches"' in str(error.value)
    assert "LINE 2: FORM matches" in str(error.value)
    with pytest.raises(UsageError, match=r"(?s)no_such.*LINE 1"):
        run_query(path, "SELECT no_such FROM matches")


def test_a_query_that_runs_too_long_is_stopped(path: Path) -> None:
    with pytest.raises(LeagueError, match="longer than 1 s"):
        run_query(path, "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b", timeout_s=1.0)


@pytest.mark.parametrize(
    "sql",
    [
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t",
        "SELECT levenshtein(repeat('a', 300000), repeat('b', 300000))",
    ],
)
def test_a_query_that_cannot_be_interrupted_is_stopped_too(path: Path, sql: str) -> None:
    with pytest.raises(LeagueError, match="longer than 1 s"):
        run_query(path, sql, timeout_s=1.0)


@pytest.mark.parametrize(
    "sql",
    ["SELECT list(range) FROM range(30000000)", "SELECT sum(length(repeat('x', 100000000 + range))) FROM range(2048)"],
)
def test_a_query_that_wants_too_much_memory_is_stopped(path: Path, sql: str) -> None:
    with pytest.raises(LeagueError, match="more than 50MB of memory"):
        run_query(path, sql, memory="50MB")


def test_macros_travel_in_time(path: Path) -> None:
    (newest,) = run_query(path, "SELECT sequence FROM position").rows[0]
    now, then = (run_query(path, f"FROM leaderboard_at({at})").rows for at in (newest, 5))
    assert now == run_query(path, "FROM leaderboard").rows
    assert len(then) < len(now)


def test_the_process_itself_may_not_write_files(path: Path, tmp_path: Path) -> None:
    program = """
import sys
from league.projections.query import QueryLimits
from league.projections.query_child import limit_process
limit_process(QueryLimits(1.0, "1GB", 1))
try:
    with open(sys.argv[1], "w") as file:
        file.write("x")
except OSError as error:
    print(error.strerror)
try:
    bytearray(2 * 10**10)
except MemoryError:
    print("no memory")
"""
    command = [sys.executable, "-c", program, str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "File too large\nno memory\n"
    assert not (tmp_path / "x").read_bytes()


@pytest.mark.parametrize("memory", ["lots", "5", "0GB", "-1GB", "1 parsec", "99999999999GB", "9" * 400 + "GB"])
def test_a_limit_that_says_nothing_is_refused(path: Path, memory: str) -> None:
    with pytest.raises(UsageError, match=r"expected a size with its unit, e\.g\. 512MB"):
        run_query(path, "SELECT 1", memory=memory)
    for timeout_s in (0.0, 1e8, 1e300):
        with pytest.raises(UsageError, match="expected seconds"):
            run_query(path, "SELECT 1", timeout_s=timeout_s)


def test_a_statement_that_is_no_text_is_refused_with_its_place(path: Path) -> None:
    with pytest.raises(UsageError, match="SQL: no text at character 9; expected UTF-8"):
        run_query(path, "SELECT '\udcff'")


def test_a_result_of_too_many_rows_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match="more than 10 rows"):
        run_query(path, "FROM range(11)", max_rows=10)
    assert len(run_query(path, "FROM range(10)", max_rows=10).rows) == 10


def test_a_file_in_use_is_named(path: Path, tmp_path: Path) -> None:
    with Projection(tmp_path / "used.duckdb"), pytest.raises(LeagueError, match="another process has this projection"):
        run_query(tmp_path / "used.duckdb", "SELECT 1")


COLUMNS, TYPES = ["agent", "rating", "note"], ["VARCHAR", "DOUBLE", "VARCHAR"]
ROWS = [("main@10", 1234.56789, 'says "hi", [bold]'), ("random_bot", 800.0, None)]


def test_a_table_is_readable_and_takes_nothing_for_markup() -> None:
    text = render_rows(COLUMNS, TYPES, ROWS)
    assert all(word in text for word in ("agent", "main@10", "1234.57", "[bold]", "random_bot"))
    assert len({len(line) for line in text.splitlines()}) == 1


def test_csv_reads_back() -> None:
    read = list(csv.reader(io.StringIO(render_rows(COLUMNS, TYPES, ROWS, "csv"))))
    assert read == [COLUMNS, ["main@10", "1234.56789", 'says "hi", [bold]'], ["random_bot", "800.0", ""]]


def test_json_reads_back() -> None:
    read = json.loads(render_rows(COLUMNS, TYPES, ROWS, "json"))
    assert read == [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]


def test_another_form_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="'csv', 'json' or 'table'"):
        render_rows(COLUMNS, TYPES, ROWS, "xml")
