"""The worked questions of ``docs/commands.md`` give answers, and its list of tables is true."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from league.log.base import RecordedEvent
from league.projections.projection import Projection
from league.projections.tables import MACRO_COMMENTS, MACROS, TABLES, VIEWS
from schemas.codec import encode_event
from schemas.config import (
    AgentConfig,
    EvaluationConfig,
    LeagueConfig,
    MatchmakingConfig,
    Plugin,
    RatingsConfig,
    RemoteAgentConfig,
    to_builtins,
)
from schemas.events import ArtifactStored, LeagueConfigured, MatchFailed, MatchFinished, RemoteAsked
from tests.simulated_history import Simulation

COMMENT = """
    SELECT comment FROM duckdb_tables() WHERE schema_name = 'main' AND table_name = ?
    UNION ALL SELECT comment FROM duckdb_views() WHERE schema_name = 'main' AND view_name = ?
"""
PAGE = Path(__file__).parents[3] / "docs" / "commands.md"
QUESTIONS = re.findall(r"^### ([^\n]*)\n\n```sql\n(.*?)```\n", PAGE.read_text(), re.DOTALL | re.MULTILINE)
SHARES = {"mirror": 0.3, "peers": 0.4, "exploitable": 0.2, "baselines": 0.1}
SMALL = LeagueConfig(
    seed=4,
    evaluation=EvaluationConfig(every=5, gatekeeper_games=14, benchmark_games=7),
    matchmaking=MatchmakingConfig(sampler=Plugin(name="pfsp", settings=SHARES)),
    ratings=RatingsConfig(also=(Plugin(name="trueskill"),)),
)

GPT = RemoteAgentConfig(url="https://host/v1", model="m", completion_price=2.0, budget=10.0)
WITH_GPT = msgspec.structs.replace(
    SMALL, agents={**SMALL.agents, "gpt": AgentConfig(kind="remote", rating=900.0, remote=GPT)}
)


def slower(records: list[RecordedEvent]) -> Iterator[RecordedEvent]:
    """Simulated matches take no time; these take some."""
    for r in records:
        payload = r.payload.replace(b'"seconds":0.0', f'"seconds":{r.sequence % 7}.5'.encode())
        yield RecordedEvent(r.sequence, r.time_ns, r.subject, r.producer, payload)


def with_a_hosted_model(simulation: Simulation) -> list[RecordedEvent]:
    """A simulation asks nobody and adds nothing; here a match that ended and one that failed say that they did."""
    records = simulation.run_with_voids(42)
    ended = next(r.event for r in records if isinstance(r.event, MatchFinished))
    simulation.append(LeagueConfigured(config=to_builtins(WITH_GPT), config_digest="d", after=1))
    simulation.append(MatchFailed(match_id="eval-x-0", purpose="evaluation", worker="evaluator-0", error="status 503"))
    for number, match_id in enumerate([ended.match_id, "eval-x-0"]):
        simulation.append(asked(number, match_id))
        added = ArtifactStored("questions", "3f2a", {"question": "2 + 2?"}, number + 1.0, ended.match_id, number, "w")
        simulation.append(added)
    return simulation.history


def asked(number: int, match_id: str) -> RemoteAsked:
    return RemoteAsked(
        agent="gpt",
        match_id=match_id,
        worker="evaluator-0",
        since=9,
        number=number,
        requests=3,
        prompt_tokens=2000,
        completion_tokens=100,
        tokens=2100,
        uncounted=number,
        cost=0.25,
    )


@pytest.fixture(scope="module")
def projection() -> Iterator[Projection]:
    with Projection() as projection:
        projection.apply(list(slower(with_a_hosted_model(Simulation(SMALL)))))
        yield projection


def test_there_are_ten_questions() -> None:
    assert len(QUESTIONS) >= 10


@pytest.mark.parametrize(("question", "sql"), QUESTIONS, ids=[question for question, _ in QUESTIONS])
def test_a_question_is_answered(projection: Projection, question: str, sql: str) -> None:
    rows = projection.query(sql)
    assert rows, question
    columns = [name for name, *_ in projection.connection.description or []]
    empty = {name for place, name in enumerate(columns) if all(row[place] is None for row in rows)}
    assert empty == set(), question


def test_the_page_lists_every_table_with_its_columns(projection: Projection) -> None:
    listed = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", PAGE.read_text(), re.MULTILINE)
    assert [name for name, *_ in listed] == sorted([*TABLES, *VIEWS])
    for name, text, columns in listed:
        found = [row[0] for row in projection.query(f"DESCRIBE {name}")]
        assert re.findall(r"`(\w+)`", columns) == found, name
        assert [(text,)] == projection.query(COMMENT, [name, name])
    for macro, text in MACRO_COMMENTS.items():
        assert f"| `{macro}` | {text} |" in PAGE.read_text()
    assert set(MACROS) == {name.split("(")[0] for name in MACRO_COMMENTS}


def test_every_table_has_a_comment_in_the_database(projection: Projection) -> None:
    tables = projection.query("SELECT table_name, comment FROM duckdb_tables() WHERE schema_name = 'main'")
    views = projection.query("SELECT view_name, comment FROM duckdb_views() WHERE schema_name = 'main'")
    assert {name for name, text in [*tables, *views] if text} == {*TABLES, *VIEWS}


def test_spending_is_summed_by_agent_and_a_copy_is_counted_once(projection: Projection) -> None:
    before = projection.query("FROM spending")
    assert before == [("gpt", 2, 6, 4000, 200, 4200, 1, 0.5, 10.0)]
    (last,) = projection.query("SELECT max(sequence) FROM events")[0]
    copy = RecordedEvent(last + 1, 0, "league.league.remote.asked.evaluator-0", "w", encode_event(asked(1, "eval-x-0")))
    projection.apply([copy])
    assert projection.query("FROM spending") == before
