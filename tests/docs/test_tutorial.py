"""The tutorial, and the learner of the opponent pool's page, are followed to the letter, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from league.log.server import free_port

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
FILES: dict[str, str] = dict(re.findall(r"^`([\w/.]+)`\n\n```\w+\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
COMMANDS: list[str] = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
POOL = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8").partition("## Your own learner")[2]
SHOWN: list[str] = re.findall(r"^```text\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


def follow(folder: Path, script: str) -> str:
    """What a shell prints that runs the commands one after the other and ends at the first that fails."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEAGUE")}
    output = folder / "output"
    with output.open("w") as log:
        ended = subprocess.run(
            ["bash", "-ec", script],
            cwd=folder,
            env={**environment, "PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "150"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            timeout=1800,
        )
    said = output.read_text(encoding="utf-8")
    assert ended.returncode == 0, said[-4_000:]
    return said


def test_its_files_and_commands_are_found() -> None:
    assert list(FILES) == [
        "plugins/arena/games/thirteen.py",
        "plugins/arena/bots/thirteen_expert.py",
        "rehearse.py",
        "league.toml",
    ]
    commands = " ".join(COMMANDS)
    for command in ("config check", "up --config league.toml", "leaderboard", "match show", "sql", "replay --verify"):
        assert f"league {command}" in commands


def test_the_rehearsal_prints_what_the_page_shows_and_the_settings_are_right(folder: Path) -> None:
    rehearsal, check, *_ = COMMANDS
    assert follow(folder, rehearsal).splitlines() == SHOWN[0].splitlines()
    assert "a league 'thirteen' of thirteen" in follow(folder, f"export LEAGUE_PLUGINS=plugins\n{check}")
    kept = follow(folder, "export LEAGUE_PLUGINS=plugins\nleague game check thirteen").splitlines()
    assert kept == [line for line in kept if line.startswith("ok ")] != []


@pytest.mark.slow
def test_the_whole_of_it_ends_with_a_trained_model_on_the_leaderboard(folder: Path) -> None:
    said = follow(folder, "".join(COMMANDS))

    # What `league up` prints at its end, and then what each command of the last section does.
    up, _, asked = said.partition("Try next:")
    assert re.search(r"│ base_model +│ random_bot +│", up)
    assert re.search(r"│ main@40 +│ random_bot +│ +\d+ of 100 │", up)
    board = asked.partition("turn 1")[0]
    assert all(name in board for name in ("thirteen_expert", "random_bot", "base_model", "main@40"))
    assert "identical" in asked
    # By play that is no better than chance this happens once in a thousand runs.
    assert _benchmark(up, "main@40") > 34
    assert _benchmark(up, "base_model") < 66


@pytest.mark.slow
def test_the_learner_of_the_opponent_pool_stands_on_the_leaderboard(tmp_path: Path) -> None:
    settings = re.findall(r"^```toml\n(.*?)^```$", POOL, re.DOTALL | re.MULTILINE)[0]
    commands = re.findall(r"^```sh\n(.*?)^```$", POOL, re.DOTALL | re.MULTILINE)[0]
    (tmp_path / "pool.toml").write_text(settings, encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    printed = follow(tmp_path, commands.replace("8000", str(free_port())).replace("--steps 20", "--steps 6"))
    assert re.findall(r"^step (\d+): mean score", printed, re.MULTILINE) == [str(step) for step in range(6)]
    board = printed.rpartition("step 5: mean score")[2]
    assert all(re.search(rf"\b{name}\b", board) for name in ("grpo@0", "grpo@5", "grpo@6", "random_bot", "base_model"))


def _benchmark(printed: str, agent: str) -> int:
    found = re.search(rf"│ {agent} +│ random_bot +│ +(\d+) of 100 │", printed)
    assert found is not None
    return int(found[1])
