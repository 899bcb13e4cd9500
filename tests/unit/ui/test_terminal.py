"""The league in a terminal: what is drawn at 80 × 24, and what keys do."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from textual._context import active_app
from typer.testing import CliRunner

from league.log.jetstream import JetStreamLog
from league.log.metrics import MetricsStream
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.queries.live_league import open_live_league
from league.run import Run
from schemas import events as e
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from schemas.metrics import Heartbeat
from tests.simulated_history import Simulation
from ui.cli import app as commands
from ui.terminal.app import DashboardApp
from ui.terminal.views import ViewOptions, single_line
from workers.runtime import beside

HOSTILE = "[red]x\x1b[2J\x07\u202ex\x9b31m" + "w" * 300
CONFIG = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=2, gatekeeper_games=3, benchmark_games=6))


class Screen:
    """A dashboard over a real broker, and somebody at its keyboard."""

    def __init__(self, app: DashboardApp, pilot: Any, log: JetStreamLog) -> None:
        self.app = app
        self.log = log
        self._pilot = pilot

    def lines(self) -> list[str]:
        """What stands on the screen."""
        return [strip.text for strip in self.app.screen._compositor.render_strips()]

    async def shows(self, *texts: str) -> list[str]:
        """Wait until all of these stand somewhere."""
        async with asyncio.timeout(300):
            while not all(text in "\n".join(self.lines()) for text in texts):
                await self._pilot.pause(0.02)
        return self.lines()

    async def press(self, *keys: str) -> None:
        await self._pilot.press(*keys)

    async def resize(self, width: int, height: int) -> None:
        await self._pilot.resize_terminal(width, height)


@contextlib.asynccontextmanager
async def screen_of(folder: Path, records: Any, nats: str | None = None) -> AsyncIterator[Screen]:
    run = Run(folder, name="league", nats=nats)
    async with run.connect("test") as client:
        log = JetStreamLog(client, "league", "test")
        await ensure_streams(client.jetstream(), ExperienceConfig())
        await log.copy(records)
        async with open_live_league(run, log) as league, beside(league.follow(), league.apply_events()):
            await league.wait_for_sequence(records[-1].sequence)
            app = DashboardApp(league)
            async with app.run_test(size=(80, 24)) as pilot:
                yield Screen(app, pilot, log)


@pytest.fixture
def simulated() -> Simulation:
    simulation = Simulation(CONFIG, seats=3)
    simulation.run(6, 4)
    return simulation


@pytest.fixture
def on_screen(tmp_path: Path) -> Callable[[Any, Callable[[Screen], Coroutine[Any, Any, None]]], None]:
    def run(records: Any, body: Callable[[Screen], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            async with screen_of(tmp_path / "run", records) as screen:
                await body(screen)

        asyncio.run(main())

    return run


def test_every_view_is_drawn_at_80_by_24_and_when_the_terminal_is_made_smaller(
    simulated: Simulation, on_screen: Callable[..., None]
) -> None:
    said = {
        "league": "games       ",
        "training": "tokens per reply",
        "board": "Bradley–Terry ratings",
        "ratings": "rating under",
        "payoff": "points won",
        "opponents": "target",
        "workers": "dead letters",
        "events": "MatchFinished",
    }

    async def body(screen: Screen) -> None:
        assert [view.title for view in screen.app.views] == list(said)
        for number, text in enumerate(said.values()):
            await screen.press(str(number + 1))
            shown = await screen.shows(text)
            assert len(shown) == 24
            assert {cell_len(line) for line in shown} == {80}
            assert "? help" in shown[-1]
            assert "q quit" in shown[-1]
        await screen.resize(40, 10)
        for number, title in enumerate(said):
            await screen.press(str(number + 1))
            shown = await screen.shows(f"[{number + 1} {title}]", "? help  q quit")
            assert (len(shown), {cell_len(line) for line in shown}) == (10, {40})

    on_screen(simulated.history, body)


def test_an_event_shows_without_a_key(simulated: Simulation, on_screen: Callable[..., None]) -> None:
    async def body(screen: Screen) -> None:
        await screen.shows("MatchFinished")
        await screen.log.append(e.LeaguePaused(policy="main", reason="somebody looks"))
        await screen.shows("LeaguePaused", "paused (somebody looks)")

    on_screen(simulated.history, body)


def test_a_league_with_a_process_is_live(
    simulated: Simulation, on_screen: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ui.terminal.app._PROCESSES_INTERVAL_S", 0.1)

    simulated.append(
        e.WorkerJoined(worker="rollout-0", role="rollout", incarnation="1", host="host", pid=7, version="1")
    )

    async def body(screen: Screen) -> None:
        await screen.shows("training done  event")
        beat = Heartbeat("rollout-0", "rollout", "1", "host", 7, 60.0, 2**20, 0.5, 3, 1, 2)
        await MetricsStream(screen.log.client, "league").publish(beat)
        await screen.shows("live  event")

    on_screen(simulated.history, body)


def test_the_slider_shows_the_past_and_n_comes_back(simulated: Simulation, on_screen: Callable[..., None]) -> None:
    newest = simulated.history[-1].sequence
    first = newest - newest // 40

    async def body(screen: Screen) -> None:
        await screen.press("left_square_bracket")
        await screen.shows(f"PAST  event {first:,} of {newest:,}", f" {first:,}  ")
        await screen.press("left_curly_bracket")
        await screen.shows(f"PAST  event {first - 1:,} of")
        await screen.press("n")
        assert screen.app.as_of is None
        await screen.shows(f"training done  event {newest:,}", f" {newest:,}  ")
        screen.app.action_event(-10 * newest)
        await screen.shows("PAST  event 1 of")
        screen.app.action_event(10 * newest)
        assert screen.app.as_of is None

    on_screen(simulated.history, body)


def test_search_narrows_the_rows_and_escape_ends_it(simulated: Simulation, on_screen: Callable[..., None]) -> None:
    async def body(screen: Screen) -> None:
        await screen.press("3")
        await screen.shows("random_bot", "base_model")
        await screen.press("slash", *"rando", "enter")
        shown = await screen.shows("filter 'rando'", "random_bot")
        assert not any("base_model" in line for line in shown)
        await screen.press("escape")
        await screen.shows("base_model")

    on_screen(simulated.history, body)


def test_help_lists_the_keys_and_q_leaves(simulated: Simulation, on_screen: Callable[..., None]) -> None:
    async def body(screen: Screen) -> None:
        await screen.press("question_mark")
        await screen.shows("another view", "q, Ctrl-C")
        await screen.press("question_mark")
        await screen.shows("MatchFinished")
        await screen.press("q")
        assert not screen.app.is_running
        assert screen.app.return_code == 0

    on_screen(simulated.history, body)


def test_names_and_payloads_with_control_characters_are_shown_as_text(
    simulated: Simulation, on_screen: Callable[..., None]
) -> None:
    simulated.append(e.AgentRegistered(agent=HOSTILE, kind="bot", baseline=False, rating=900.0))
    simulated.append(e.LeaguePaused(policy="", reason=HOSTILE))
    simulated.append(e.WorkerJoined(worker="one", role=HOSTILE, incarnation="1", host=HOSTILE, pid=1, version="1"))

    async def body(screen: Screen) -> None:
        for key in "12345678":
            await screen.press(key)
            shown = await screen.shows("[red]x\\u001b") if key in "178" else await screen.shows("[" + key)
            assert all(letter.isprintable() for line in shown for letter in line)
            assert {cell_len(line) for line in shown} == {80}

    on_screen(simulated.history, body)


def test_a_broker_that_goes_away_is_said_and_waited_for(simulated: Simulation, tmp_path: Path) -> None:
    async def main() -> None:
        with contextlib.ExitStack() as broker:
            url = broker.enter_context(EmbeddedServer(tmp_path / "nats")).url
            async with screen_of(tmp_path / "run", simulated.history, url) as screen:
                await screen.shows("training done", "MatchFinished")
                broker.close()
                shown = await screen.shows("connection to the broker lost; reconnecting")
                assert any("random_bot" in line for line in shown)
                broker.enter_context(EmbeddedServer(tmp_path / "nats", int(url.rpartition(":")[2])))
                await screen.shows("training done")
                await screen.log.append(e.LeaguePaused(policy="main", reason="it is back"))
                await screen.shows("paused (it is back)")

    asyncio.run(main())


@pytest.mark.parametrize(("text", "shown"), [("a\nb", "a\\u000ab"), ("\u202eab", "\\u202eab"), ("日" * 9, "日日…")])
def test_a_text_becomes_one_visible_line(text: str, shown: str) -> None:
    assert single_line(text, 10 if text[0] != "日" else 5) == shown


def test_numbers_are_sorted_from_the_largest_and_what_is_missing_stands_last() -> None:
    rows = [{"agent": "b", "rating": 1.0}, {"agent": "a", "rating": None}, {"agent": "c", "rating": 2.0}]

    def order(**looking: Any) -> str:
        return "".join(row["agent"] for row in ViewOptions(80, 20, **looking).select_rows(rows, "agent"))

    assert order() == "bac"
    assert order(sort="rating") == "cba"
    assert order(sort="rating", backwards=True) == "bca"
    assert order(sort="agent") == "abc"
    assert order(search="C") == "c"


def test_without_a_terminal_it_says_what_prints_once(tmp_path: Path) -> None:
    answered = CliRunner().invoke(commands, ["dash", "--run", str(tmp_path)])
    assert answered.exit_code != 0
    assert "league status" in str(answered.exception)


def test_a_timer_that_fires_after_the_screen_is_gone_changes_nothing(
    simulated: Simulation, on_screen: Callable[..., None]
) -> None:
    apps = []

    async def body(screen: Screen) -> None:
        apps.append(screen.app)

    on_screen(simulated.history, body)
    active_app.set(apps[0])
    apps[0]._update_frame()
