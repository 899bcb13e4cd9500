"""A simulated league on a real broker, and the web server over it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.queries.live_league import LiveLeague, open_live_league
from league.run import Run
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from tests.simulated_history import Simulation
from ui.web.server import RequestGuard, make_application
from workers.runtime import beside

CONFIG = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=2, gatekeeper_games=3, benchmark_games=6))


class Site:
    """A league, its log, and a client of its pages.

    Args:
        league: As the pages see it.
        log: To append to.
        client: Of the server.
    """

    def __init__(self, league: LiveLeague, log: JetStreamLog, client: "TestClient[Any, Any]") -> None:
        self.league = league
        self.log = log
        self.client = client

    async def get(self, path: str, status: int = 200) -> Any:
        """An answer's JSON."""
        async with self.client.get(f"/api{path}") as response:
            assert response.status == status, await response.text()
            return await response.json()


@contextlib.asynccontextmanager
async def site_of(folder: Path, records: Any, token: str | None = None) -> AsyncIterator[Site]:
    """A site over a history."""
    run = Run(folder, name="league")
    async with run.connect("test") as client:
        log = JetStreamLog(client, "league", "test")
        await ensure_streams(client.jetstream(), ExperienceConfig())
        await log.copy(records)
        async with open_live_league(run, log) as league, beside(league.follow(), league.apply_events()):
            server = TestServer(make_application({"run": league}, RequestGuard("127.0.0.1", token)))
            async with TestClient(server, cookie_jar=aiohttp.CookieJar(unsafe=True)) as web:
                await league.wait_for_sequence(records[-1].sequence)
                yield Site(league, log, web)


@pytest.fixture
def simulated() -> Simulation:
    """A league that has trained for some steps."""
    simulation = Simulation(CONFIG, seats=3)
    simulation.run(6, 4)
    return simulation


@pytest.fixture
def on_site(tmp_path: Path) -> Callable[..., None]:
    """Runs a coroutine function with a site over a history."""

    def run(records: Any, body: Callable[[Site], Coroutine[Any, Any, None]], token: str | None = None) -> None:
        async def main() -> None:
            async with site_of(tmp_path / "run", records, token) as site:
                await body(site)

        asyncio.run(main())

    return run
