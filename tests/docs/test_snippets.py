"""What the pages show can be used as it stands: settings, statements of SQL, and the example of the Python interface.

Commands are checked by ``test_commands_named``, the plugins of ``extending`` by ``test_extending``, the questions of
``commands`` by ``test_questions``, and the tutorial by ``test_tutorial``.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from league.projections.projection import Projection
from schemas.config import EvaluationConfig, LeagueConfig, convert, to_builtins
from schemas.errors import ConfigError
from tests.simulated_history import Simulation

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DEFAULTS = to_builtins(LeagueConfig())
KEYS = DEFAULTS.keys()
OF_OTHER_PROGRAMS = {"orchestrator"}
"""Tables of settings files that are not a league's."""


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def inline_spans(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`]+)`", " ".join(text.split()))


def inline_settings(page: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Spans that are TOML of a known table: ``a.b = 1``, ``[game] name = "nim"``, ``rival = { kind = "bot" }``."""
    for span in inline_spans(page):
        try:
            # The name of a table stands in a line of its own in a file, and so does each key after it.
            found = tomllib.loads(re.sub(r"^(\[[\w.]+\]) ", r"\1\n", span).replace("`, `", "\n"))
        except tomllib.TOMLDecodeError:
            continue
        if any(isinstance(value, dict) and "kind" in value for value in found.values()) and not KEYS & found.keys():
            found = {"agents": found}
        elif "." not in span.partition("=")[0] and not span.startswith("["):
            # A key alone, whose table is named in the text around it.
            continue
        yield span, found


def merged(whole: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """A settings file that holds the shown part besides others."""
    both = {name: merged(whole[name], part[name]) for name in part if isinstance(whole.get(name), dict)}
    return {**whole, **part, **both}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_settings_are_settings(page: Path) -> None:
    found = [(text, tomllib.loads(text)) for text in blocks(page, "toml")]
    for text, settings in [*found, *inline_settings(page)]:
        if settings.keys() & OF_OTHER_PROGRAMS or not settings.keys() & KEYS:
            continue
        for policy in settings.get("policies", {}).values():
            # A text about one key of a policy leaves its role out.
            policy.setdefault("role", "population")
        assert isinstance(convert(merged(DEFAULTS, settings), LeagueConfig, ""), LeagueConfig), text


def test_settings_in_the_text_are_found() -> None:
    spans = {span for page in PAGES for span, settings in inline_settings(page) if settings.keys() & KEYS}
    assert len(spans) > 15
    assert any("kind = " in span for span in spans)
    with pytest.raises(ConfigError, match="kind"):
        convert(merged(DEFAULTS, {"agents": {"rival": {"kind": "unknown"}}}), LeagueConfig, "")


def statements(page: Path) -> list[str]:
    """SQL in blocks, and of ``league sql`` in blocks and in the text."""
    text = page.read_text(encoding="utf-8")
    return [*blocks(page, "sql"), *re.findall(r'league sql (?:--\S+ \S+ )?"([^"]+)"', text)]


@pytest.fixture(scope="module")
def projection() -> Iterator[Projection]:
    config = LeagueConfig(seed=4, evaluation=EvaluationConfig(every=5, gatekeeper_games=14, benchmark_games=7))
    with Projection() as projection:
        projection.apply(Simulation(config).run_with_voids(12))
        yield projection


def test_statements_are_answered(projection: Projection) -> None:
    found = [statement for page in PAGES for statement in statements(page) if page.stem != "commands"]
    assert len(found) >= 7
    for statement in found:
        projection.query(statement.replace("\\", ""))


@pytest.mark.slow
def test_the_example_of_the_python_interface_runs(tmp_path: Path) -> None:
    """As a script beside a settings file: a league that is trained, read, and another one that is trained."""
    [example] = blocks(ROOT / "docs" / "python.md", "python")
    settings = (ROOT / "configs" / "nim-tiny.toml").read_text(encoding="utf-8")
    (tmp_path / "league.toml").write_text(settings, encoding="utf-8")
    train = 'import league\n\nleague.up("league.toml", ".league")\n'
    for script in (train, example):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"},
            capture_output=True,
            text=True,
            timeout=1800,
        )
        assert done.returncode == 0, done.stderr[-3_000:]
