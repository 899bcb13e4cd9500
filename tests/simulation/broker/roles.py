"""Permissions of the simulated broker's clients: those of the table that makes credentials, by the role of a worker."""

import re
from collections.abc import Callable, Iterable

from league.auth.permissions import permissions


class Role:
    """What one client may do.

    Args:
        worker: Its name, ``ROLE-NUMBER``.
        league: Name of the league.
        report: Called with a line for each act that is refused.
    """

    def __init__(self, worker: str, league: str, report: Callable[[str], None]) -> None:
        granted = permissions(worker.partition("-")[0], worker, league)
        self._worker = worker
        self._allowed = {"publish": _compile(granted.publish), "subscribe": _compile(granted.subscribe)}
        self._report = report

    def may(self, act: str, subject: str) -> bool:
        """Whether a ``publish`` or ``subscribe`` is permitted; reported if not."""
        if self._allowed[act].fullmatch(subject):
            return True
        self._report(f"workers_keep_to_their_role: {self._worker} tried to {act} on {subject}")
        return False


def _compile(patterns: Iterable[str]) -> re.Pattern[str]:
    tokens = {"*": r"[^.]+", ">": r".+"}
    found = (r"\.".join(tokens.get(token, re.escape(token)) for token in pattern.split(".")) for pattern in patterns)
    return re.compile("|".join(found))
