"""No process of ours executes Python files of its working directory; one that hides a package of ours is named."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from league.projections.query import QueryProcess

ROOT = Path(__file__).parents[2]
PACKAGES = ("arena", "inference", "league", "lifecycle", "models", "players", "schemas", "trainer", "ui", "workers")
SPAWN = """
import os, sys
from multiprocessing import get_context
from ui.__main__ import main
if __name__ == "__main__":
    child = get_context("spawn").Process(target=print, args=("spawned",))
    child.start()
    child.join()
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files named as modules that our processes import; each says so when it is executed."""
    folder = tmp_path / "downloads"
    names = ("duckdb", "models/__init__", "schemas", "signal", "multiprocessing", "msgspec", "pathlib", "sitecustomize")
    for name in names:
        path = folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"import os\nopen({str(tmp_path / 'executed')!r}, 'a').write({name!r})\n", encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def test_queries_do_not_execute_the_working_directory(hostile: Path) -> None:
    query = QueryProcess(hostile / "projection.duckdb")
    try:
        assert query.position() is None
    finally:
        query.close()
    assert not (hostile / "executed").exists()


def test_the_command_does_not_execute_the_working_directory(hostile: Path) -> None:
    # Imported by ``runpy`` itself, before anything of ours runs.
    for name in ("pathlib", "multiprocessing", "sitecustomize"):
        Path(f"{name}.py").unlink()
    done = subprocess.run([sys.executable, "-m", "ui", "--version"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("league "), done.stderr
    assert not (hostile / "executed").exists()


def test_spawned_processes_do_not_execute_the_working_directory(hostile: Path) -> None:
    script = hostile / "command.py"
    script.write_text(SPAWN, encoding="utf-8")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.stdout == "spawned\n", done.stderr
    assert not (hostile / "executed").exists()


def test_every_python_process_of_ours_is_started_with_a_safe_path() -> None:
    unsafe = []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.List) and "sys.executable" in map(ast.unparse, node.elts):
                    words = {ast.unparse(each) for each in node.elts}
                    unsafe += [] if words & {"'-P'", "'-I'"} else [f"{path.relative_to(ROOT)}:{node.lineno}"]
    assert unsafe == []


@pytest.mark.parametrize("name", ["models/__init__.py", "schemas.py", "arena.py"])
def test_a_file_that_hides_a_package_of_ours_is_named(name: str, tmp_path: Path) -> None:
    script, hiding = tmp_path / "train.py", tmp_path / name
    script.write_text("import league\n", encoding="utf-8")
    hiding.parent.mkdir(exist_ok=True)
    hiding.touch()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    shown = hiding.parent if hiding.name == "__init__.py" else hiding
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        f"ImportError: {shown}: expected {ROOT / hiding.relative_to(tmp_path).parts[0].split('.')[0]}"
    )
    assert "give it another name" in last
