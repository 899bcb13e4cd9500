"""A run's tables are disposable: a damaged file is built anew from the history, and the answer is the same."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import duckdb
from typer.testing import CliRunner

from league.log.base import append_in_batches
from league.log.jetstream import JetStreamLog
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.run import Run
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from tests.simulated_history import Simulation
from ui.cli import app

CONFIG = LeagueConfig(name="league", seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=14))


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:20_000])


def replace_by_text(file: Path) -> None:
    file.write_text("no database\n" * 2_000)


def invert(file: Path) -> None:
    data = bytearray(file.read_bytes())
    for at in range(50_000, len(data), 20_000):
        data[at] ^= 0xFF
    file.write_bytes(data)


def raise_storage_version(file: Path) -> None:
    """As a newer DuckDB writes it: after a checksum and ``DUCK`` the header holds the version of its format."""
    data = bytearray(file.read_bytes())
    data[12:20] = (9_999).to_bytes(8, "little")
    file.write_bytes(data)


def replace_by_other_tables(file: Path) -> None:
    file.unlink()
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE games (name VARCHAR)")


def add_log(file: Path) -> None:
    file.with_name(f"{file.name}.wal").write_bytes(os.urandom(5_000))


def test_damaged_tables_are_built_anew(tmp_path: Path) -> None:
    run = Run(tmp_path)
    said: list[str] = []

    async def body() -> None:
        async with run.connect("test") as client:
            await ensure_streams(client.jetstream(), ExperienceConfig())
            events = [recorded.event for recorded in Simulation(CONFIG).run(6, 1) if recorded.event is not None]
            await append_in_batches(JetStreamLog(client, "league", "test"), events)

    def answer(*command: str) -> str:
        result = CliRunner().invoke(app, [*command, "--run", str(tmp_path)])
        assert result.exit_code == 0, (result.output, result.exception)
        said.append(result.stderr)
        return result.stdout

    questions = [("leaderboard", "--json"), ("sql", "SELECT count(*), sum(score) FROM match_seats", "--json")]
    with EmbeddedServer(tmp_path / "nats"):
        asyncio.run(body())
        before = [answer(*question) for question in questions]
        damages: list[tuple[Callable[[Path], None], int]] = [(cut, 0), (invert, 0), (replace_by_text, 1), (invert, 1)]
        damages += [
            (change, number) for change in (raise_storage_version, replace_by_other_tables) for number in (0, 1)
        ]
        for damage, question in [*damages, (add_log, 0)]:
            damage(run.projection)
            assert answer(*questions[question]) == before[question], damage.__name__
            assert damage is add_log or "rebuilding" in said[-1], damage.__name__
