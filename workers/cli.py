"""The ``league`` command. Errors are one paragraph on stderr: exit code 2 for wrong usage, 1 for everything else."""

import sys

from rich.console import Console

from schemas.errors import LeagueError
from workers.commands import app


def main() -> None:
    """Run the command line and exit."""
    try:
        app()
    except LeagueError as error:
        message = f"error: {error}"
        Console(stderr=True).print(message, style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output had enough (``league events | head``).
        sys.stderr.close()
