"""``league criteria`` on a real broker's files: its page, its JSON, its exit codes."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from league.log.base import RecordedEvent
from league.log.dead_letters import DeadLetter, DeadLetters
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.run import Run
from schemas.config import CheckpointScheduleConfig, EvaluationConfig, ExperienceConfig, LeagueConfig, PromotionConfig
from schemas.errors import UsageError
from schemas.events import MatchFinished
from schemas.ids import split_agent
from schemas.subjects import LEAGUE_STREAM
from tests.builders import replace_event
from tests.simulated_history import Simulation
from ui.cli import app


def learns(agent: str) -> float:
    named = split_agent(agent)
    return 0.0 if named is None else min(0.4 * named[1], 2.0)


CONFIG = LeagueConfig(
    seed=4,
    promotion=PromotionConfig(rule="high_score"),
    schedule=CheckpointScheduleConfig(recent_every=1),
    evaluation=EvaluationConfig(
        every=2, gatekeepers=("random_bot", "chaos_bot", "base_model"), gatekeeper_games=21, benchmark_games=210
    ),
)


def with_rollout(recorded: RecordedEvent) -> RecordedEvent:
    """A simulated match makes no rollout, though steps say that they were trained on it."""
    event = recorded.event
    if not isinstance(event, MatchFinished) or event.purpose != "training":
        return recorded
    return replace_event(recorded, replace(event, experience="rollout"))


HISTORY = [with_rollout(recorded) for recorded in Simulation(CONFIG, skill=learns).run(8, 80)]


def made(folder: Path, *letters: DeadLetter) -> Path:
    async def body() -> None:
        async with Run(folder).connect("test") as client:
            await ensure_streams(client.jetstream(), ExperienceConfig())
            await JetStreamLog(client, "league", "test").copy(HISTORY)
            for letter in letters:
                await DeadLetters(client, "league").publish(letter)

    asyncio.run(body())
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("league"))


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("troubled"), DeadLetter(LEAGUE_STREAM, 9, "league.league.x", "no JSON"))


def command(run: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["criteria", "--run", str(run), *arguments], catch_exceptions=False)


def figures_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Figures of a report by criterion and name."""
    return {one["name"]: {row["figure"]: row for row in one["figures"]} for one in found["criteria"]}


def test_a_run_that_meets_all_four_exits_with_0(run: Path) -> None:
    result = command(run)
    assert result.exit_code == 0, result.stdout
    assert "All four criteria are met." in result.stdout


def test_the_page_has_a_verdict_for_each_criterion_and_fits_a_terminal(
    troubled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = command(troubled)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    verdicts = [line.split(maxsplit=1) for line in lines if line.startswith((" PASS ", " FAIL "))]
    assert verdicts == [
        ["PASS", "Baseline beat"],
        ["PASS", "No regression"],
        ["PASS", "Diversity"],
        ["FAIL", "Stability"],
    ]
    text = " ".join(result.stdout.split())
    assert "210 of 210 = 100.0 %" in text
    assert "→ league dead-letters" in text
    assert "3 of 4 criteria are met" in text


def test_json_has_every_figure_and_the_same_exit_code(run: Path, troubled: Path) -> None:
    for folder, code in ((run, 0), (troubled, 1)):
        result = command(folder, "--json")
        found = json.loads(result.stdout)
        assert (result.exit_code, found["passed"]) == (code, code == 0)
        figures = figures_of(found)
        assert figures["stability"]["dead letters"]["measured"] == str(code)
        assert figures["baseline_beat"]["games"]["measured"] == "210"
        assert {"base_model", "random_bot", "chaos_bot"} < set(figures["no_regression"])


def test_a_place_in_the_past_is_judged_by_what_was_known_then(run: Path) -> None:
    found = json.loads(command(run, "--json", "--at", "700").stdout)
    assert found["sequence"] == 700
    assert figures_of(found)["baseline_beat"]["version"]["met"] is False
    assert figures_of(found)["stability"]["dead letters"]["met"] is None
    with pytest.raises(UsageError, match="no such event"):
        command(run, "--at", "1000000")


def test_nothing_is_judged_where_there_is_no_league(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no league here"):
        command(tmp_path)
