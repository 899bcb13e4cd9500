"""``league leaderboard``, ``league payoff`` and ``league matchmaking audit``, on a real broker's files."""

import asyncio
import csv
import io
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


def test_the_same_matrix_comes_as_table_json_csv_and_picture(run: Path, tmp_path: Path) -> None:
    found = json.loads(command(run, "payoff", "--most", "4", "--json").stdout)
    agents = found["payoff"]["agents"]
    assert len(agents) == 4 < found["agents"]
    text = command(run, "payoff", "--most", "4").stdout
    assert all(agent in text for agent in agents)
    assert f"4 of {found['agents']} agents" in text
    assert "Cyclic share" in text
    assert f"{found['payoff']['share'][0][1]:.2f}" in text
    rows = list(csv.DictReader(io.StringIO(command(run, "payoff", "--most", "4", "--format", "csv").stdout)))
    assert len(rows) == 12
    assert (rows[0]["agent"], rows[0]["opponent"]) == (agents[0], agents[1])
    assert float(rows[0]["share"]) == found["payoff"]["share"][0][1]
    picture = tmp_path / "payoff.png"
    assert "4 of" in command(run, "payoff", "--most", "4", "--format", "png", "-o", str(picture)).stdout
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_pairs_that_never_met_are_shown_and_can_be_taken_for_even(run: Path) -> None:
    text = command(run, "payoff", "--purpose", "evaluation").stdout
    assert "never met" in text
    assert "--unmet-even" in text
    assert "equal agents" in command(run, "payoff", "--purpose", "evaluation", "--unmet-even").stdout


def test_an_audit_is_a_table_or_json(run: Path) -> None:
    found = json.loads(command(run, "matchmaking", "audit", "--window", "4", "--json").stdout)
    assert [one["first_step"] for one in found["windows"]] == [0, 4, 8]
    assert found["whole"]["draws"] == 18
    text = command(run, "matchmaking", "audit", "--window", "4", "--draws", "3").stdout
    assert "4–7" in text
    assert "baselines" in text
    assert "Targets are from 3 of 18 draws" in text


def test_a_league_without_matches_and_wrong_options_are_refused(opened: Path, run: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (("payoff",), "expected played matches"),
        (("matchmaking", "audit"), "no opponents were drawn yet"),
    ):
        with pytest.raises(UsageError, match=message):
            CliRunner().invoke(app, [*arguments, "--run", str(opened)], catch_exceptions=False)
    for extra, message in (
        (("--format", "png"), "expected -o FILE"),
        (("-o", str(tmp_path / "none" / "x.csv")), "cannot be written"),
        (("--game", "go"), "no match of the game 'go'"),
    ):
        with pytest.raises(UsageError, match=message):
            CliRunner().invoke(app, ["payoff", *extra, "--run", str(run)], catch_exceptions=False)


def test_the_leaderboard_says_where_its_numbers_are_from(run: Path) -> None:
    text = command(run, "leaderboard").stdout
    assert "elo (official) in diplomacy, as recorded: " in text
    assert "95 % interval" in text
    assert "200 resampled histories" in text
    assert "deviation" not in text
    text = command(run, "leaderboard", "--system", "trueskill", "--draws", "10").stdout
    assert "trueskill in diplomacy, computed now, not recorded: " in text
    assert "deviation" in text
    assert "10 resampled histories" in text
    assert "interval" not in command(run, "leaderboard", "--no-intervals").stdout.lower()


def test_the_leaderboard_is_of_seats_and_kinds_too(run: Path) -> None:
    rows = json.loads(command(run, "leaderboard", "--by", "seat", "--json", "--draws", "5").stdout)
    assert {"agent", "seat", "low", "high", "rated_games", "mean_rank"} < set(rows[0])
    assert {row["seat"] for row in rows} == {f"SEAT{n}" for n in range(7)}
    rows = json.loads(command(run, "leaderboard", "--by", "kind", "--json").stdout)
    assert {row["kind"] for row in rows} == {"base", "bot", "checkpoint"}
    assert "agent" not in rows[0]
    text = command(run, "leaderboard", "--system", "bradley_terry", "--by", "seat", "--draws", "5").stdout
    assert "What a seat is worth by itself" in text
    assert "5 resamplings of whole matches" in text


def test_the_leaderboard_is_the_same_without_a_broker_and_with_one(run: Path) -> None:
    first, second = (command(run, "leaderboard").stdout for _ in range(2))
    assert first == second == command(run, "leaderboard", "--at", str(len(HISTORY))).stdout


def test_a_league_without_matches_has_a_leaderboard(opened: Path) -> None:
    rows = json.loads(command(opened, "leaderboard", "--json").stdout)
    assert [(row["rank"], row["rating"], row["low"]) for row in rows] == [(1, 1000.0, None), (2, 800.0, None)]
    text = command(opened, "leaderboard", "--system", "plackett_luce").stdout
    assert "0 rated matches" in text
    assert "random_bot" in text


def test_a_leaderboard_that_cannot_be_is_refused(run: Path) -> None:
    for extra, message in (
        (("--system", "elo2"), "expected 'bradley_terry', 'elo'"),
        (("--game", "go"), "no match of it was played; expected 'diplomacy'"),
        (("--no-intervals", "--draws", "3"), "expected without --draws"),
    ):
        with pytest.raises(UsageError, match=message):
            CliRunner().invoke(app, ["leaderboard", *extra, "--run", str(run)], catch_exceptions=False)
