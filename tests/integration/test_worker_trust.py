"""``league void --worker``, on a real broker's files."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.run import Run
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from schemas.errors import UsageError
from schemas.events import MatchFinished, MatchVoided
from schemas.subjects import event_subject
from tests.simulated_history import Simulation
from ui.cli import app

HISTORY = Simulation(
    LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
).run(8, 2)


def by_another(recorded: RecordedEvent) -> RecordedEvent:
    """A result under the name of another worker, which changes no rating."""
    event = msgspec.structs.replace(recorded.event, worker="guest")  # type: ignore[type-var]
    assert isinstance(event, MatchFinished)
    subject = event_subject("league", event)
    return RecordedEvent(recorded.sequence, recorded.time_ns, subject, "guest", encode_event(event))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """With ten evaluation matches of the worker ``guest``."""
    theirs = [r for r in HISTORY if isinstance(r.event, MatchFinished) and r.event.purpose == "evaluation"][::2][:10]
    changed = {r.sequence: by_another(r) for r in theirs}

    async def body() -> None:
        async with Run(tmp_path).connect("test") as client:
            await ensure_streams(client.jetstream(), ExperienceConfig())
            await JetStreamLog(client, "league", "test").copy([changed.get(r.sequence, r) for r in HISTORY])

    asyncio.run(body())
    return tmp_path


def command(run: Path, *arguments: str) -> Result:
    result = CliRunner().invoke(app, [*arguments, "--run", str(run)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_a_worker_whose_matches_are_voided_counts_for_nothing(run: Path) -> None:
    with pytest.raises(UsageError, match="--reason: empty"):
        CliRunner().invoke(app, ["void", "--worker", "guest", "--run", str(run)], catch_exceptions=False)
    said = command(run, "void", "--worker", "guest", "--reason", "lies").stdout
    assert "10 matches voided" in said
    assert "league auth revoke guest" in said

    async def voided() -> list[MatchVoided]:
        async with Run(run).open_log() as history:
            return [r.event async for r in history.read() if isinstance(r.event, MatchVoided)]

    assert [(event.match.worker, event.reason) for event in asyncio.run(voided())] == [("guest", "lies")] * 10
