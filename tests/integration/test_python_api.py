"""``league.open`` on a stopped run, a live one and a broker's address, also inside a running event loop."""

import asyncio
import html
import importlib.metadata
import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import zstandard
from matplotlib.figure import Figure
from typer.testing import CliRunner

import league
from arena.games import make_game
from arena.match import BotPlayer, play
from league.log.jetstream import JetStreamLog
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.run import Run
from schemas import events as e
from schemas.config import (
    CheckpointScheduleConfig,
    EvaluationConfig,
    ExperienceConfig,
    LeagueConfig,
    ModelConfig,
    Plugin,
    load_config,
    to_builtins,
)
from schemas.config.base import toml_document
from schemas.errors import LeagueError, MissingPackageError, NoLeagueError, UsageError
from tests.builders import match_finished
from tests.simulated_history import Simulation
from ui.cli import app

CONFIG = LeagueConfig(
    seed=4,
    game=Plugin("nim", {"seats": 2, "heaps": [1, 2]}),
    schedule=CheckpointScheduleConfig(recent_every=1),
    evaluation=EvaluationConfig(every=2, gatekeeper_games=3, benchmark_games=3),
)
HISTORY = Simulation(CONFIG, seats=2).run(4, 2)
FINISHED = [r.event for r in HISTORY if isinstance(r.event, e.MatchFinished)]
HOSTILE = "<script>alert(1)</script>"


RECORDED = {"nim-1": ("nim", CONFIG.game.settings), "map-1": ("diplomacy", {"max_year": 1901})}
"""Matches whose moves are kept: game and settings."""


def played(name: str, settings: dict[str, Any]) -> tuple[str, int, bytes]:
    """A game of random bots: its name, the version of its rules, and its record."""
    spec = make_game(name, settings)
    game = spec.new(5)
    asyncio.run(play(game, [BotPlayer(spec.bot("random_bot")) for _ in spec.seats], 5))
    return name, spec.rules_version, game.record()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped run with matches whose moves are kept."""
    folder = tmp_path_factory.mktemp("run")
    records = {match_id: played(name, settings) for match_id, (name, settings) in RECORDED.items()}

    async def body() -> None:
        run = Run(folder, name="league")
        async with run.connect("test") as client:
            await ensure_streams(client.jetstream(), ExperienceConfig())
            log = JetStreamLog(client, "league", "test")
            await log.copy(HISTORY)
            for match_id, (game, rules, record) in records.items():
                kept = await run.open_blob_store(client, "league").put(zstandard.compress(record))
                match = match_finished(("random_bot", 1.0), (HOSTILE, 0.0), match_id=match_id, rules=rules, game=game)
                await log.append(msgspec.structs.replace(match, record=kept))

    asyncio.run(body())
    return folder


def command(folder: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--run", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_leaderboard_is_that_of_the_command_and_the_broker_ends_with_the_call(folder: Path) -> None:
    run = league.open(folder)
    found = run.leaderboard()
    assert list(found) == json.loads(command(folder, "leaderboard", "--json"))
    assert "Bradley–Terry" in found.title
    assert not (folder / "nats" / "server.json").exists()


def test_earlier_events_and_other_systems_can_be_asked_for(folder: Path) -> None:
    run, half = league.open(folder), len(HISTORY) // 2
    assert f"up to event {half:,}" in run.leaderboard(at=half).title
    at = datetime.fromtimestamp(HISTORY[half - 1].time_ns / 1e9, tz=UTC)
    assert run.leaderboard(at=at).title == run.leaderboard(at=half).title
    assert run.leaderboard(system="elo").columns[:3] == ["rank", "agent", "kind"]


def test_steps_have_a_column_per_metric_and_the_settings_are_those_in_force(folder: Path) -> None:
    run = league.open(folder)
    steps, taken = run.steps(), list(run.events("GradientStepTaken"))
    assert steps["step"] == [recorded.event.step for recorded in taken]
    measured = {name for recorded in taken for name in recorded.event.metrics}
    assert measured
    assert measured <= set(steps.columns)
    for row, recorded in zip(steps, taken, strict=True):
        assert {name: row[name] for name in recorded.event.metrics} == recorded.event.metrics
    assert run.steps(policy="main")["step"] == steps["step"]
    with pytest.raises(LeagueError, match=r"policy 'mian': not trained in this run; expected .*did you mean 'main'"):
        run.steps(policy="mian")
    assert run.config["game"]["settings"] == {"seats": 2, "heaps": [1, 2]}
    assert {"base_model", "main@2"} <= set(run.agents()["agent"])


def test_tables_are_indexed_by_row_and_by_column(folder: Path) -> None:
    board = league.open(folder).leaderboard()
    assert [board[place] for place in range(len(board))] == list(board)
    assert board[-1] == list(board)[-1]
    assert board["agent"] == [row["agent"] for row in board]
    with pytest.raises(IndexError, match=r"expected one of \d+ rows"):
        board[len(board)]
    with pytest.raises(KeyError, match=r"did you mean 'agent'"):
        board["agnet"]


def test_what_there_is_not_is_named(folder: Path, tmp_path: Path) -> None:
    run = league.open(folder)
    with pytest.raises(LeagueError, match=r"figure 'eloo': unknown; .*did you mean 'elo'"):
        run.figure("eloo")  # type: ignore[arg-type]
    with pytest.raises(LeagueError, match="system 'glicko': not recorded"):
        run.leaderboard(system="glicko")
    with pytest.raises(LeagueError, match=r"\Amain@99: no agent"):
        run.adapter("main@99", tmp_path / "adapter")


def test_elo_has_a_row_per_version_by_gradient_step_and_the_figure_draws_it(folder: Path) -> None:
    run = league.open(folder)
    steps = [row["step"] for row in run.elo() if row["policy"] == "main"]
    assert steps == sorted(steps)
    assert len(steps) > 1
    figure = run.figure()
    assert isinstance(figure, Figure)
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]


def test_tables_are_arrow_and_become_pandas(folder: Path) -> None:
    run = league.open(folder)
    matches = run.matches()
    assert [row["match_id"] for row in matches] == [f.match_id for f in FINISHED] + [*RECORDED]
    assert str(matches.arrow.schema.field("time").type) == "timestamp[us]"
    assert matches.to_pandas().match_id.tolist() == matches.arrow.column("match_id").to_pylist()
    assert pa.table(matches).num_rows == len(matches)
    assert list(run.sql("SELECT 1 AS one, NULL::DOUBLE AS none")) == [{"one": 1, "none": None}]
    assert run.sql("SELECT agent FROM agents WHERE false").columns == ["agent"]


def test_without_arrow_tables_hold_the_same_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = league.open(folder)
    calls = [run.matches, run.leaderboard, run.match("nim-1").seats.__iter__]
    with_arrow = [list(call()) for call in calls]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert [list(call()) for call in calls] == with_arrow
    matches = run.matches()
    assert len(matches) == len(with_arrow[0])
    assert matches.to_pandas().match_id.tolist() == [row["match_id"] for row in with_arrow[0]]
    assert "<td>nim-1</td>" in matches._repr_html_()
    with pytest.raises(MissingPackageError, match=r"Arrow tables need pyarrow.*event-sourced-league\[arrow\]"):
        matches.arrow  # noqa: B018


@pytest.mark.parametrize(("method", "package"), [("to_pandas", "pandas"), ("to_polars", "polars")])
def test_a_missing_package_is_named(folder: Path, method: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=f"{method}: {package} is not installed; expected `pip install {package}`"):
        getattr(league.Table(pa.table({"a": [1]})), method)()


def test_events_are_typed_in_order_and_may_be_left_early(folder: Path) -> None:
    run = league.open(folder)
    assert [r.event for r in run.events(e.MatchFinished)][:-2] == FINISHED
    assert [r.sequence for r in run.events(first=len(HISTORY))] == [len(HISTORY) + extra for extra in range(3)]
    for recorded in run.events("LeagueOpened", "AgentRegistered"):
        assert isinstance(recorded.event, e.LeagueOpened)
        break
    assert not (folder / "nats" / "server.json").exists()
    with pytest.raises(UsageError, match=r"events: no type 'MatchFinish'; expected .*; did you mean 'MatchFinished'\?"):
        run.events("MatchFinish")


def test_a_match_has_its_turns_and_shows_them_under_a_slider_as_text(folder: Path) -> None:
    match = league.open(folder).match("nim-1")
    assert match.events.result is not None
    assert [turn.title for turn in match.turns] == [f"turn {n + 1}" for n in range(len(match.turns))]
    page = match._repr_html_()
    assert page.count("<section") == len(match.turns) > 1
    assert page.count("<section>") == 1
    assert 'type="range"' in page
    assert HOSTILE not in page
    assert html.escape(HOSTILE) in page


def test_maps_are_in_a_frame_of_their_own_that_loads_nothing(folder: Path) -> None:
    match = league.open(folder).match("map-1")
    page = match._repr_html_()
    assert page.count("<iframe") == 1
    assert 'sandbox="allow-scripts"' in page
    inner = html.unescape(page.partition('srcdoc="')[2].partition('"></iframe>')[0])
    assert inner.count("<section") == len(match.replay.pictures) == len(match.turns) + 1
    document, data, code = re.split(r"<script>const \[lines, runs\] = |;\n", inner, maxsplit=2)
    lines, runs = json.loads(data)
    assert len(runs) == document.count("<img alt=") == len(match.replay.pictures)
    # Pictures get their source from the script, out of lines that the maps share.
    assert "image.src = `data:image/svg+xml," in code
    assert sum('id="MapLayer"' in line for line in lines) == 1
    loads = r"<script|<link|<image|@import|(?:src|href)=\"(?!#)"
    assert not re.search(loads, document + code + "\n".join(lines))
    # The base map once, and some kilobytes a phase.
    assert len(page) < 300_000


def test_a_match_without_a_record_says_why(folder: Path) -> None:
    match = league.open(folder).match(FINISHED[0].match_id)
    assert match.turns == []
    assert "has no record" in match.problem
    assert "No moves to show" in match._repr_html_()


def test_lineage_leads_from_the_base_model_to_the_agent(folder: Path) -> None:
    rows = list(league.open(folder).lineage("main@4"))
    assert rows[0]["agent"] == "base_model"
    assert (rows[-1]["agent"], rows[-1]["last_step"], rows[-1]["tainted"]) == ("main@4", 4, False)
    assert sum(row["matches"] for row in rows) > 0


def test_it_works_inside_a_running_loop_on_a_live_run_and_by_address(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def body() -> None:
        with EmbeddedServer(folder / "nats") as server:
            boards = [list(league.open(source).leaderboard()) for source in (folder, server.url)]
            assert boards[0] == boards[1]
            assert league.open(server.url, league="league").match("nim-1").turns
            with pytest.raises(NoLeagueError, match="no league 'other' was opened here"):
                league.open(server.url, league="other")

    asyncio.run(body())


def test_a_notebook_shows_a_run_as_its_leaderboard(folder: Path) -> None:
    page = league.open(folder)._repr_html_()
    assert "<td>main@4</td>" in page
    assert "up to event" in page


def test_a_folder_without_a_league_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoLeagueError, match=r"no league here; expected the folder of a run"):
        league.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_configuration_is_the_command_s_error(tmp_path: Path) -> None:
    with pytest.raises(LeagueError, match=r"\A\S+: gmae: unknown key"):
        league.up({"gmae": {"name": "nim"}}, tmp_path / "run")


def test_settings_survive_the_file_that_they_are_written_to(tmp_path: Path) -> None:
    config = load_config(Path(__file__).parents[2] / "configs" / "nim-tiny.toml")
    file = tmp_path / "league.toml"
    file.write_text(toml_document({**to_builtins(config), "model": {"base": 'n"\n'}}))
    assert load_config(file) == msgspec.structs.replace(config, model=ModelConfig(base='n"\n'))


def loaded_by(statement: str) -> str:
    """Those of some large packages that a statement imports."""
    check = f"import sys; {statement}; print(*sorted({{'duckdb', 'numpy', 'pyarrow', 'torch'}} & set(sys.modules)))"
    return subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_the_package_loads_neither_tables_nor_torch() -> None:
    assert loaded_by("import league") == ""
    assert "torch" not in loaded_by("import league; league.open")
    assert league.__version__ == importlib.metadata.version("event-sourced-league")
    with pytest.raises(AttributeError, match="'league' has no attribute 'opne'"):
        league.opne  # noqa: B018
