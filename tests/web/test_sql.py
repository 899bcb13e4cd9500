"""The SQL page's server: answers as `league sql` gives them, writes refused, a few questions at a time."""

import asyncio
import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from schemas.events import AgentRegistered
from tests.simulated_history import Simulation
from tests.web.conftest import Site
from ui.web.actions import MAX_CONCURRENT, MAX_ROWS

ROOT = Path(__file__).parents[2]
HOSTILE = '=1+1,"<b>x</b>"\n\u202e\'; DROP TABLE matches; --'
ENDLESS = "SELECT count(*) FROM range(10000000000) a, range(10000000000) b"


async def asked(site: Site, statement: str, status: int = 200, page: str = "p", **more: Any) -> Any:
    """An answer's JSON."""
    body = {"statement": statement, "page": page, **more}
    async with site.client.post("/api/sql", json=body) as response:
        assert response.status == status, await response.text()
        return await response.json()


def test_a_statement_is_answered_as_of_the_newest_event_and_tables_are_listed(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    async def body(site: Site) -> None:
        found = await asked(site, "SELECT count(*) AS n, max(time) AS t FROM events")
        assert found["columns"] == ["n", "t"]
        assert found["types"] == ["BIGINT", "TIMESTAMP"]
        assert found["rows"][0][0] == len(simulated.history) == found["position"]
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}", found["rows"][0][1])
        added = await site.log.append(AgentRegistered(agent=HOSTILE, kind="bot", baseline=False, rating=900.0))
        # A copy of the tables that took long to make, as on a busy machine, is given again for a while.
        async with asyncio.timeout(300):
            while found["position"] < added:
                found = await asked(site, "SELECT agent FROM agents ORDER BY joined_sequence DESC LIMIT 1")
        assert found["rows"] == [[HOSTILE]]
        found = await site.get("/sql/tables")
        tables = {table["name"]: table for table in found["tables"]}
        assert tables["matches"]["comment"].startswith("one row per match")
        assert {"name": "match_id", "type": "VARCHAR"} in tables["matches"]["columns"]
        assert [c["name"] for c in tables["leaderboard"]["columns"]][:3] == ["rank", "agent", "kind"]
        assert "leaderboard_at(sequence)" in [macro["name"] for macro in found["macros"]]

    on_site(simulated.history, body)


def test_what_writes_or_reads_files_is_refused_with_the_reason(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    async def body(site: Site) -> None:
        for statement, why in {
            "DELETE FROM matches": "type DELETE; expected one that reads",
            "DROP TABLE matches": "type DROP; expected one that reads",
            "COPY matches TO '/tmp/x.csv'": "type COPY; expected one that reads",
            "SELECT 1; DROP TABLE matches": "2 statements; expected one",
            "FROM read_text('/etc/hostname')": "disabled by configuration",
            "SELECT nothing FROM matches": "nothing",
        }.items():
            assert why in (await asked(site, statement, 400))["error"], statement
        assert "\nLINE 1: SELECT nothing" in (await asked(site, "SELECT nothing FROM matches", 400))["error"]
        assert (await asked(site, "SELECT count(*) > 0 FROM matches"))["rows"] == [[True]]
        assert "form" in (await asked(site, "SELECT 1", 400, form="xml"))["error"]
        assert "statement" in (await asked(site, "", 400))["error"]
        assert "length <= 20000" in (await asked(site, "x" * 20_001, 400))["error"]
        folder = site.league.run.folder
        assert [path.name for path in folder.glob("*.duckdb")] != ["web.duckdb"], "asked in a copy"
        assert not site.league.run.projection.exists(), "the history is loaded once"
        await site.client.server.close()
        assert [path.name for path in folder.glob("*.duckdb")] == ["web.duckdb"], "the copy goes with the server"

    on_site(simulated.history, body)


def test_a_page_gets_the_first_rows_as_it_can_show_them_and_a_file_all_of_them(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    async def body(site: Site) -> None:
        found = await asked(
            site,
            "SELECT 9007199254740993 AS big, 'nan'::DOUBLE AS nan, NULL AS nothing, ['nan'::DOUBLE, 2] AS list, "
            "{'a': TIMESTAMP '2026-01-31 12:00:00'} AS struct, 1.50::DECIMAL(4, 2) AS exact, '\\x00'::BLOB AS bytes",
        )
        assert found["rows"] == [
            ["9007199254740993", "nan", None, "[NaN,2.0]", '{"a":"2026-01-31T12:00:00"}', "1.50", r"b'\x00'"]
        ]
        long = await asked(site, "SELECT repeat('x', 5000) AS long")
        assert long["rows"][0][0].endswith("… (5,000 characters)")

        statement = f"SELECT i, '{HOSTILE.replace(chr(39), chr(39) * 2)}' AS name FROM range({MAX_ROWS + 5}) r(i)"
        found = await asked(site, statement)
        assert (len(found["rows"]), found["more"]) == (MAX_ROWS, True)
        async with site.client.post("/api/sql", json={"statement": statement, "page": "p", "form": "csv"}) as response:
            assert response.content_type == "text/csv"
            assert "attachment" in response.headers["Content-Disposition"]
            rows = list(csv.reader(io.StringIO(await response.text())))
        assert len(rows) == 1 + MAX_ROWS + 5
        assert rows[1] == ["0", f"'{HOSTILE}"]

    on_site(simulated.history, body)


def test_a_page_asks_one_question_at_a_time_and_may_stop_it(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    async def endless(site: Site, page: str) -> None:
        while True:
            async with site.client.post("/api/sql", json={"statement": ENDLESS, "page": page}) as response:
                text = await response.text()
            # A query that ran for too long before the others had begun, as on a busy machine, is asked again.
            if response.status != 503 and "ran longer" not in text:
                assert "at the request of its page" in text
                return

    async def body(site: Site) -> None:
        pages = [f"page {n}" for n in range(MAX_CONCURRENT)]
        async with asyncio.TaskGroup() as group:
            for page in pages:
                group.create_task(endless(site, page))
            async with asyncio.timeout(300):
                while "other queries" not in await said(site, "late"):
                    pass
            assert "still running" in await said(site, pages[-1])
            for page in pages:
                async with site.client.post("/api/sql/stop", json={"page": page}) as response:
                    assert (await response.json())["stopped"]
        assert (await asked(site, "SELECT 1", page="late"))["rows"] == [[1]]

    on_site(simulated.history, body)


async def said(site: Site, page: str) -> str:
    """What a page is told that asks now."""
    async with site.client.post("/api/sql", json={"statement": "SELECT 1", "page": page}) as response:
        return await response.text()


def test_the_shipped_questions_are_those_of_the_documentation() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    documented = re.findall(r"^### ([^\n]*)\n\n```sql\n(.*?)\n```\n", page, re.DOTALL | re.MULTILINE)
    shipped = json.loads((ROOT / "ui/web/static/questions.json").read_text())
    assert [(one["title"], one["statement"]) for one in shipped] == documented
    assert len(shipped) > 10
    for one in shipped:
        (statement,) = duckdb.extract_statements(one["statement"])
        assert statement.type == duckdb.StatementType.SELECT, one["title"]
