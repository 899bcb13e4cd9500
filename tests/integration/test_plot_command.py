"""``league plot``: every kind of picture of a real history, as every kind of file."""

import asyncio
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.plots.charts import payoff_picture, wins_picture
from league.plots.render import write_picture
from league.plots.series import WinRateSeries, WinRateWindow, draw_windows, measure_throughput, policies_at, win_rates
from league.queries.tables import open_tables
from league.run import Run
from schemas import events as e
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig
from schemas.errors import UsageError
from tests.simulated_history import Simulation
from ui.cli import app

HISTORY = Simulation(
    LeagueConfig(seed=4, evaluation=EvaluationConfig(every=4, gatekeeper_games=7, benchmark_games=7))
).run(8, 4)
UPTO = HISTORY[-1].sequence
FINISHED = [r.event for r in HISTORY if isinstance(r.event, e.MatchFinished)]
HOSTILE = "$\\frac{<script>alert(1)</script>\x1b[31m\u202e"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")

    async def body() -> None:
        async with Run(folder, name="league").connect("test") as client:
            await ensure_streams(client.jetstream(), ExperienceConfig())
            await JetStreamLog(client, "league", "test").copy(HISTORY)

    asyncio.run(body())
    return folder


def plotted(run: Path, kind: str, to: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["plot", kind, "-o", str(to), "--run", str(run), *options], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("kind", ["elo", "winrate", "payoff", "pfsp", "throughput"])
def test_every_kind_is_drawn_with_a_title_and_a_caption_that_speaks_of_its_intervals(
    run: Path, kind: str, tmp_path: Path
) -> None:
    said = plotted(run, kind, tmp_path / "a.svg")
    assert f"up to event {UPTO:,}" in said
    assert "95 %" in said
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_past_is_drawn_as_it_was_and_the_same_bytes_each_time(run: Path, tmp_path: Path) -> None:
    middle = str(UPTO // 2)
    for name in ("one.svg", "two.svg"):
        assert f"up to event {UPTO // 2:,}" in plotted(run, "elo", tmp_path / name, "--at", middle)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_chosen_agents_are_drawn_as_a_png(run: Path, tmp_path: Path) -> None:
    assert "Bradley–Terry" in plotted(run, "elo", tmp_path / "a.png", "--agents", "random_bot,base_model")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["elo", "-o", "a.gif"], ".svg"),
        (["pfsp", "-o", "a.svg", "--agents", "base_model"], "expected it with 'elo'"),
        (["elo", "-o", "a.svg", "--agents", "nobody"], "--agents nobody: not in the league"),
        (["winrate", "-o", "a.svg", "--policy", "other"], "expected 'main'"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_what_could_be(run: Path, arguments: list[str], expected: str) -> None:
    result = CliRunner().invoke(app, ["plot", *arguments, "--run", str(run)])
    assert isinstance(result.exception, UsageError)
    assert expected in str(result.exception)


def test_opponents_drawn_are_those_of_the_history(run: Path) -> None:
    async def body() -> None:
        async with Run(run).open_log() as history, open_tables(Run(run), history) as tables:
            windows = draw_windows(tables.connection, UPTO, ["main"], 4)
            drawn = [pick for r in HISTORY if isinstance(r.event, e.OpponentsSampled) for pick in r.event.picks]
            assert sum(sum(window.picks.values()) for window in windows) == len(drawn)
            assert 1 < len(windows) <= 4

    asyncio.run(body())


def test_wins_and_matches_are_those_of_the_history(run: Path) -> None:
    async def body() -> None:
        async with Run(run).open_log() as history, open_tables(Run(run), history) as tables:
            connection = tables.connection
            assert policies_at(connection, UPTO) == ["main"]
            lines = win_rates(connection, UPTO, FINISHED[0].game, ["main"])
            trained = next(line for line in lines if line.against == "training")
            own = [m for m in FINISHED if m.purpose == "training"]
            assert sum(w.games for w in trained.windows) == len(own)
            won = sum(m.winner is not None and m.seats[m.winner].trainable for m in own)
            assert sum(w.wins for w in trained.windows) == won
            pace = measure_throughput(connection, UPTO, ["main"])
            minutes = (pace.token_hours[1] - pace.token_hours[0]) * 60
            assert sum(sum(p.per_minute) for p in pace.matches) * minutes == pytest.approx(len(FINISHED))
            assert sum(sum(p.per_minute) for p in pace.steps) * minutes == pytest.approx(9)
            assert all(
                low <= mid <= high
                for p in pace.matches
                for low, mid, high in zip(p.low, p.per_minute, p.high, strict=True)
            )

    asyncio.run(body())


@pytest.mark.parametrize("ending", [".png", ".svg"])
def test_hostile_names_are_drawn_as_letters(ending: str, tmp_path: Path) -> None:
    pair = {"agent": HOSTILE, "opponent": "_b", "games": 4, "share": 0.5, "low": 0.1, "high": 0.9}
    write_picture(payoff_picture([HOSTILE, "_b"], [pair], HOSTILE, 1), tmp_path / f"payoff{ending}")
    line = WinRateSeries(HOSTILE, "training", [WinRateWindow(0, 1, 4, 2, 0.5, 0.1, 0.9)], math.nan)
    write_picture(wins_picture([line], HOSTILE, 1), tmp_path / f"wins{ending}")
    for file in tmp_path.iterdir():
        # A PNG says its title as data, which nobody reads as markup.
        assert ending == ".png" or b"<script" not in file.read_bytes()
        assert b"\x1b[31m" not in file.read_bytes()
        assert "\u202e".encode() not in file.read_bytes()


def test_picture_without_series_is_drawn_without_a_legend() -> None:
    assert not wins_picture([], "game", 1).figure.legends
