"""``league leaderboard``, on a real broker's files."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.run import Run
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from schemas.errors import UsageError
from tests.simulated_history import Simulation
from ui.cli import app

HISTORY = Simulation(
    LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=7, benchmark_games=7))
).run(8, 2)


def made(folder: Path, records: Sequence[RecordedEvent]) -> Path:
    async def body() -> None:
        async with Run(folder).connect("test") as client:
            await ensure_streams(client.jetstream(), ExperienceConfig())
            await JetStreamLog(client, "league", "test").copy(records)

    asyncio.run(body())
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("league"), HISTORY)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("opened"), HISTORY[:3])


def command(run: Path, *arguments: str) -> Result:
    result = CliRunner().invoke(app, [*arguments, "--run", str(run)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_the_leaderboard_shows_bradley_terry_beside_elo_and_ranks_by_either(run: Path) -> None:
    text = command(run, "leaderboard").stdout
    assert "diplomacy, by Bradley–Terry rating: " in text
    assert "95 % interval" in text
    rows = json.loads(command(run, "leaderboard", "--json").stdout)
    assert {"agent", "rating", "low", "high", "online", "rated_games", "mean_rank"} < set(rows[0])
    assert [row["rank"] for row in rows if row["rating"] is not None] == list(
        range(1, 1 + sum(row["rating"] is not None for row in rows))
    )
    rows = json.loads(command(run, "leaderboard", "--system", "elo", "--json").stdout)
    assert [row["online"] for row in rows] == sorted((row["online"] for row in rows), reverse=True)
    with pytest.raises(UsageError, match="system 'trueskill': not recorded in this history"):
        CliRunner().invoke(app, ["leaderboard", "--system", "trueskill", "--run", str(run)], catch_exceptions=False)


def test_the_leaderboard_is_the_same_without_a_broker_and_with_one(run: Path) -> None:
    first, second = (command(run, "leaderboard").stdout for _ in range(2))
    assert first == second == command(run, "leaderboard", "--at", str(len(HISTORY))).stdout


def test_a_league_without_matches_has_a_leaderboard(opened: Path) -> None:
    rows = json.loads(command(opened, "leaderboard", "--json").stdout)
    assert [(row["rank"], row["rating"], row["online"]) for row in rows] == [(None, None, 1000.0), (None, None, 800.0)]
    assert "0 rated matches" in command(opened, "leaderboard").stdout


def test_a_leaderboard_that_cannot_be_is_refused(run: Path) -> None:
    for extra, message in (
        (("--system", "elo2"), "expected 'bradley_terry' or 'elo'; did you mean 'elo'"),
        (("--game", "go"), "no match of it was played; expected 'diplomacy'"),
    ):
        with pytest.raises(UsageError, match=message):
            CliRunner().invoke(app, ["leaderboard", *extra, "--run", str(run)], catch_exceptions=False)
