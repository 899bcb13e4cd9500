"""Python processes that the league starts."""

import sys


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module in a separate process.

    The process looks for no module in its working directory, as ``python -m`` does: a stranger's ``duckdb.py`` or a
    user's own package ``models`` may lie there.
    """
    return [sys.executable, "-P", "-m", module, *arguments]
