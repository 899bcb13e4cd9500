"""``league docs``: the pages of the documentation, which come with the package."""

import sysconfig
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from league.queries.terminal import Console
from schemas.errors import UsageError, format_choices

_ROOT = Path(__file__).parents[2]
_FOLDER = (
    _ROOT / "docs"
    if (_ROOT / "pyproject.toml").is_file()
    else Path(sysconfig.get_path("data")) / "share" / "event-sourced-league" / "docs"
)
"""The pages of the checkout, else of the installation; another package's ``docs`` may be beside the installed ones."""


def docs(page: Annotated[str | None, typer.Argument(help="Name of a page, such as tutorial.")] = None) -> None:
    """Show a page of the documentation, or list the pages."""
    pages = {path.stem: path.read_text(encoding="utf-8") for path in sorted(_FOLDER.glob("*.md"))}
    console = Console()
    if page is None:
        for name, text in pages.items():
            title = text.partition("\n")[0].lstrip("# ")
            console.print(f"{name:18} {title}", highlight=False)
    elif page in pages:
        console.print(Markdown(pages[page]))
    else:
        raise UsageError(f"{page}: no page; expected {format_choices(pages, page)}")
