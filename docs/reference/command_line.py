"""The command line with every command imported: the plugin of the page *Commands* reads options from it."""

from importlib import import_module
from typing import Any

from typer.core import TyperCommand

from ui.cli import COMMANDS, app
from ui.cli.options import make_command

_collect = TyperCommand.collect_usage_pieces


def collect_usage_pieces(self: TyperCommand, ctx: Any) -> list[str]:
    """The pieces of the usage without brackets, since two pairs side by side are a link in Markdown."""
    return [piece.replace("[", "").replace("]", "") for piece in _collect(self, ctx)]


TyperCommand.collect_usage_pieces = collect_usage_pieces  # type: ignore[method-assign]
for words, target in COMMANDS.items():
    # Typer runs this file twice.
    if isinstance(target, str):
        module, _, function = target.partition(":")
        COMMANDS[words] = make_command(words.rpartition(" ")[2], getattr(import_module(f"ui.cli.{module}"), function))
app.info.epilog = ""
