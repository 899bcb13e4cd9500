"""Entry point of the ``league`` command."""

import signal
import sys

from schemas.errors import DiskError, ExitCode, LeagueError, translate_missing_package
from schemas.loggers import configure_with_first_line
from ui.cli import LeaguePanels, app


def main() -> None:
    """Run the command line and exit. Errors are one paragraph on stderr; exit code 2 is wrong usage, 1 all others.

    Ctrl-C and SIGTERM end a command after it has cleaned up, with 130 and 143, except where a command has an end of its
    own for them, as ``league up`` has.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    configure_with_first_line(_configure_logging)
    if sys.stdout.isatty() or sys.stderr.isatty():
        from league.queries.terminal import guard_terminal

        guard_terminal()
    try:
        with translate_missing_package():
            app()
    except BrokenPipeError:
        # The reader closed our output early (``league events | head``).
        sys.stderr.close()
    except Exception as error:  # the boundary of the process
        explained = error if isinstance(error, LeagueError) else None
        if isinstance(error, OSError) and explained is None:
            explained = DiskError.of(error)
        if explained is None:
            from schemas.plugins import is_plugins_fault, locate_error

            if not is_plugins_fault(error):
                raise
            explained = LeagueError(locate_error(error))
        # Imported on use: what prints in colour takes long to import.
        from ui.output import print_error

        print_error(explained)
        sys.exit(explained.exit_code)
    finally:
        # All is cleaned up: a further signal must not interrupt Python's own end, which would print a traceback.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)


def _configure_logging() -> None:
    """Send warnings to stderr; workers configure logs of their own."""
    from workers.logs import configure_command_logging

    configure_command_logging()


def _interrupt(*_: object) -> None:
    """End a command as Ctrl-C does, by an exception or by cancelling its task; only the exit code differs."""
    LeaguePanels.exit_code = ExitCode.TERMINATED
    signal.raise_signal(signal.SIGINT)
