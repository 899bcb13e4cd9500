"""``league docs``: the pages of the documentation, which come with the package."""

import sysconfig
from pathlib import Path
from typing import Annotated

import typer
from rich.markdown import Markdown

from league.queries.terminal import Console
from schemas.errors import UsageError

_FOLDERS = (
    Path(__file__).parents[2] / "docs",
    Path(sysconfig.get_path("data")) / "share" / "event-sourced-league" / "docs",
)
"""The pages of a checkout, and those that an installation holds."""


def docs(page: Annotated[str | None, typer.Argument(help="Name of a page, such as tutorial.")] = None) -> None:
    """Show a page of the documentation, or list the pages."""
    pages = {path.stem: path for folder in reversed(_FOLDERS) for path in sorted(folder.glob("*.md"))}
    console = Console()
    if page is None:
        for name, path in pages.items():
            title = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")
            console.print(f"{name:18} {title}")
        return
    if page not in pages:
        raise UsageError(f"{page}: no page; expected one of {', '.join(pages)}")
    with console.pager(styles=True):
        console.print(Markdown(pages[page].read_text(encoding="utf-8")))
