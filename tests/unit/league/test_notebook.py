"""``examples/analyse.ipynb`` answers its questions about an exported league, and is kept without its outputs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import nbformat
import pytest
from nbclient import NotebookClient

from league.projections.export import export_tables
from league.projections.projection import Projection
from schemas.config import EvaluationConfig, LeagueConfig, MatchmakingConfig, Plugin
from tests.simulated_history import Simulation

NOTEBOOK = Path(__file__).parents[3] / "examples" / "analyse.ipynb"
CONFIG = LeagueConfig(
    seed=4,
    evaluation=EvaluationConfig(every=5, gatekeeper_games=14, benchmark_games=7),
    matchmaking=MatchmakingConfig(
        sampler=Plugin("pfsp", {"mirror": 0.3, "peers": 0.4, "exploitable": 0.2, "baselines": 0.1})
    ),
)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A league with checkpoints that met, voided results and corrections, as ``league export`` writes it."""
    folder = tmp_path_factory.mktemp("exported")
    with Projection(folder / "projection.duckdb") as projection:
        projection.apply(Simulation(CONFIG).run_with_voids(42))
    export_tables(folder / "projection.duckdb", folder / "tables")
    return folder / "tables"


@pytest.fixture(scope="module")
def executed(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The notebook after a run, and its outputs."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("home")
        patch.setenv("LEAGUE_TABLES", str(tables))
        patch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR"):
            patch.setenv(variable, str(home / variable.lower()))
        notebook = nbformat.read(NOTEBOOK, as_version=4)
        NotebookClient(notebook, timeout=300, startup_timeout=300, kernel_name="python3").execute()
        yield notebook


def shown(notebook: Any, begins: str) -> str:
    """What the cell printed that holds a text."""
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code" and begins in cell.source)
    return "".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs)


def test_it_is_kept_without_outputs_and_is_a_valid_notebook() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) > 10
    assert not [cell for cell in code if cell.outputs or cell.execution_count]


def test_every_cell_runs_on_an_exported_league_and_says_something(executed: Any) -> None:
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert [cell.source for cell in code if not cell.outputs] == []
    pictures = [output for cell in code for output in cell.outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 4


def test_its_ratings_payoffs_and_shares_are_those_of_the_tables(executed: Any, tables: Path) -> None:
    with duckdb.connect() as connection:

        def one(question: str) -> Any:
            return connection.execute(question.replace("{}", str(tables))).fetchall()[0]

        first, rating = one(
            "SELECT agent, round(rating)::INT FROM '{}/leaderboard/*.parquet' b ORDER BY b.rank LIMIT 1"
        )
        bucket, seats = one(
            "SELECT bucket, count(*) FROM '{}/opponents_sampled/*.parquet' GROUP BY bucket ORDER BY 2 DESC LIMIT 1"
        )
    top = shown(executed, "leaderboard = ask(").splitlines()[1].split()
    assert (top[2], float(top[4])) == (first, rating)
    drawn = shown(executed, "asked_for").splitlines()[1].split()
    assert (drawn[1], int(drawn[2])) == (bucket, seats)
    assert float(drawn[4]) == {"mirror": 0.3, "peers": 0.4, "exploitable": 0.2, "baselines": 0.1}[bucket]


def test_it_finds_two_checkpoints_of_which_one_loses_to_the_other(executed: Any) -> None:
    words = shown(executed, "A = B = None").splitlines()[1].split()
    assert "@" in words[1]
    assert "@" in words[2]
    assert float(words[4]) < 0.5
    lines = shown(executed, "by_seat = ask(").splitlines()
    assert len(lines) > 1
    assert shown(executed, "ORDER BY a.score - b.score")
