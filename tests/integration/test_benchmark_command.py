"""``league benchmark``: on stopped runs and beside evaluators, against bots that are no agents, killed and resumed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from league.integrity.snapshots import load_state_at
from league.log.jetstream import JetStreamLog
from league.log.metrics import MetricsStream
from league.run import Run
from league.state import LeagueState
from schemas import events as e
from schemas.config import load_config
from schemas.errors import ConfigError, UsageError
from ui.cli import app

ROOT = Path(__file__).parents[2]
POWERS = 7


def league(run: Path, *words: str) -> Result:
    return CliRunner().invoke(app, [*words, "--run", str(run)])


def measured(run: Path, *words: str, code: int = 0) -> list[dict[str, Any]]:
    result = league(run, "benchmark", *words, "--json")
    assert result.exit_code == code, result.output + repr(result.exception)
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


async def _with_history(run: Path, work: Callable[[Run, JetStreamLog], Awaitable[Any]]) -> Any:
    place = Run(run)
    async with place.open_log("test") as history:
        return await work(place, history)


def state_of(run: Path) -> LeagueState:
    async def work(place: Run, history: JetStreamLog) -> LeagueState:
        return await load_state_at(history, place.open_blob_store(history.client))

    state: LeagueState = asyncio.run(_with_history(run, work))
    return state


async def heartbeats(_: Run, history: JetStreamLog) -> Any:
    return await MetricsStream(history.client, history.league).newest()


def played(run: Path) -> list[e.MatchFinished]:
    async def work(_: Run, history: JetStreamLog) -> list[e.MatchFinished]:
        ends = [recorded.event async for recorded in history.match_ends("benchmark")]
        return [end for end in ends if isinstance(end, e.MatchFinished)]

    found: list[e.MatchFinished] = asyncio.run(_with_history(run, work))
    return found


def opened(folder: Path, game: str) -> Path:
    """An open league of a two-seat game without workers."""
    config = (ROOT / "configs" / "nim-tiny.toml").read_text()
    config = config.replace('name = "nim"\nsettings = { seats = 3, heaps = [2, 3] }', game)
    config = config.replace("[trainer]", '[trainer]\nreward = "outcome"')
    (folder / "league.toml").write_text(config)
    assert load_config(folder / "league.toml").game.name in game
    assert league(folder / "run", "up", "--no-workers", "--config", str(folder / "league.toml")).exit_code == 0
    return folder / "run"


@pytest.fixture(scope="module")
def kuhn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return opened(tmp_path_factory.mktemp("kuhn"), 'name = "kuhn_poker"')


@pytest.fixture
def nim(tmp_path: Path) -> Path:
    return opened(tmp_path, 'name = "nim"\nsettings = { seats = 2, heaps = [2, 3] }')


@pytest.fixture(scope="module")
def champion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("champion") / "run"
    assert league(run, "import", str(ROOT / "release" / "diplomacy")).exit_code == 0
    return run


def test_a_policy_with_search_is_added_and_measured(nim: Path) -> None:
    settings = ("samples=8", "rollouts=8", "horizon=0", "bot=random_bot")
    added = league(nim, "agent", "add", "searcher", "--kind", "search", *(w for s in settings for w in ("--set", s)))
    assert added.exit_code == 0, added.output
    agent = state_of(nim).agents["searcher"]
    assert (agent.kind, agent.active) == ("search", False)
    (found,) = measured(nim, "--agent", "searcher", "--against", "random_bot", "--games", "6")
    assert (found["failed"], found["rows"][-1]["games"]) == (0, 6)
    for match in played(nim):
        shown = json.loads(league(nim, "match", "show", match.match_id, "--json").stdout)
        [role] = [seat.role for seat in match.seats if seat.agent == "searcher"]
        moves = ["; ".join(turn["moves"][role]) for turn in shown["turns"] if role in turn["moves"]]
        # Of the samples of a turn the one that was played.
        decided = [decision["move"].split(":") for decision in shown["decisions"]]
        assert [f"takes {count} from heap {heap}" for heap, count in decided] == moves
    refused = league(nim, "agent", "add", "other", "--kind", "search", "--set", "bot=kaos_bot")
    assert isinstance(refused.exception, ConfigError)
    assert "agents.other.search.bot: nim has no bot 'kaos_bot'" in str(refused.exception)


def test_an_agent_meets_a_bot_that_is_no_agent_and_stays_none(kuhn: Path) -> None:
    before = state_of(kuhn)
    (found,) = measured(kuhn, "kuhn_poker", "--agent", "base_model", "--games", "6")
    assert (found["agent"], found["opponent"], found["settings"]) == ("base_model", "kuhn_equilibrium", {})
    *by_seat, overall = found["rows"]
    assert ([row["games"] for row in by_seat], overall["games"], overall["seat"]) == ([3, 3], 6, "")
    matches, after = played(kuhn), state_of(kuhn)
    assert {match.purpose for match in matches} == {"benchmark"}
    assert Counter(match.seed for match in matches).most_common(1)[0][1] == 2
    assert (after.agents, after.finished_matches("benchmark")) == (before.agents, 6)
    assert after.standings().records == before.standings().records

    assert measured(kuhn, "--agent", "base_model", "--games", "6") == [found]
    assert len(played(kuhn)) == 6
    (more,) = measured(kuhn, "--agent", "base_model", "--games", "8")
    assert (more["rows"][-1]["games"], len(played(kuhn))) == (8, 8)
    table = league(kuhn, "benchmark", "--agent", "base_model", "--games", "8")
    assert "base_model in one seat, kuhn_equilibrium in all others: kuhn_poker, seed 0, 8 of 8 games" in table.stdout
    checked = league(kuhn, "verify")
    assert checked.exit_code == 0, checked.output
    assert "0 rated matches: identical\nsound; " in checked.stdout


def test_diplomacy_is_measured_to_another_year_than_the_leagues(champion: Path) -> None:
    words = ("diplomacy", "--agent", "greedy", "--against", "mover", "--games", str(POWERS), "--until", "1901")
    (found,) = measured(champion, *words)
    assert found["settings"] == {"max_year": 1901}
    assert [row["games"] for row in found["rows"]] == [1] * POWERS + [POWERS]
    overall = found["rows"][-1]
    assert set(overall["shares"]) == {"won", "tied", "solo", "survived"}
    assert overall["shares"]["survived"]["count"] == POWERS
    assert 3 < overall["means"]["centers"] < 8
    # A year of spring, autumn and winter, each with retreats at most.
    assert max(match.length for match in played(champion)) <= 5
    assert measured(champion, *words) == [found]


def test_a_killed_benchmark_goes_on_where_it_was(nim: Path) -> None:
    words = ["benchmark", "--agent", "base_model", "--against", "random_bot", "--games", "200", "--run", str(nim)]
    process = subprocess.Popen(
        [sys.executable, "-m", "ui", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 300
        while not played(nim) and process.poll() is None:
            assert time.monotonic() < deadline, "no game within two minutes"
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    before = played(nim)
    (found,) = measured(nim, "--agent", "base_model", "--against", "random_bot", "--games", "200")
    assert found["rows"][-1]["games"] == 200
    matches = played(nim)
    assert matches[: len(before)] == before
    places = Counter((match.seed, [seat.agent for seat in match.seats].index("base_model")) for match in matches)
    assert (len(places), set(places.values())) == (200, {1})


def test_the_evaluators_of_a_league_play(nim: Path) -> None:
    words = ["worker", "evaluator", "--name", "evaluator-1", "--run", str(nim)]
    worker = subprocess.Popen(
        [sys.executable, "-m", "ui", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 300
        while not asyncio.run(_with_history(nim, heartbeats)):
            assert worker.poll() is None
            assert time.monotonic() < deadline, "no evaluator within two minutes"
            time.sleep(0.2)
        (found,) = measured(nim, "--agent", "base_model", "--against", "random_bot", "--games", "4")
        assert found["rows"][-1]["games"] == 4
        assert {match.worker for match in played(nim)} == {"evaluator-1"}
    finally:
        worker.terminate()
        worker.wait(300)


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (["--against", "dumbbot"], UsageError, "--against: 'dumbbot' is not an agent; expected .*'kuhn_equilibrium'"),
        (["--agent", "main@7"], UsageError, "--agent: 'main@7' is not an agent; expected"),
        (["--until", "1901"], UsageError, "--until 1901: kuhn_poker has no last year"),
        (["diplomacy"], UsageError, "plays kuhn_poker; expected a run of it"),
        (["main@7"], UsageError, "main@7: an agent, not a game; expected --agent main@7"),
    ],
)
def test_a_benchmark_that_cannot_be_played_is_refused(
    kuhn: Path, words: list[str], kind: type[Exception], said: str
) -> None:
    before = len(played(kuhn))
    with pytest.raises(kind, match=said):
        _raise(league(kuhn, "benchmark", *words))
    assert len(played(kuhn)) == before


def test_a_year_that_cannot_be_played_and_a_paused_league_are_refused(champion: Path) -> None:
    with pytest.raises(ConfigError, match="max_year: 1800"):
        _raise(league(champion, "benchmark", "--until", "1800"))
    assert league(champion, "pause", "--reason", "maintenance").exit_code == 0
    with pytest.raises(UsageError, match="paused \\(maintenance\\); expected it resumed"):
        _raise(league(champion, "benchmark", "--games", "70"))
    assert league(champion, "resume").exit_code == 0


def _raise(result: Result) -> None:
    assert result.exception is not None, result.output
    raise result.exception
