"""``league docs``: pages of the documentation in the terminal."""

from pathlib import Path

from typer.testing import CliRunner

from ui.cli.main import app

DOCS = Path(__file__).parents[3] / "docs"


def test_all_pages_are_listed_and_shown_by_name() -> None:
    listed = CliRunner().invoke(app, ["docs"]).stdout
    assert [line.split()[0] for line in listed.splitlines()] == sorted(path.stem for path in DOCS.glob("*.md"))
    assert "The game is Thirteen" in CliRunner().invoke(app, ["docs", "tutorial"]).stdout


def test_an_unknown_page_names_those_that_there_are() -> None:
    refused = CliRunner().invoke(app, ["docs", "tutorials"])
    assert "tutorials: no page; expected 'architecture', " in str(refused.exception)
    assert str(refused.exception).endswith("did you mean 'tutorial'?")
