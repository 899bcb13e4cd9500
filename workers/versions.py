"""Which processes may work together, so that upgrades can roll.

Everybody reads events of older schemas (``schemas.upcasters``). Whoever decides cannot go on past an event of a newer
one, and nobody joins who would write what a decider cannot read: deciders are upgraded first.
"""

from league.state import LeagueState
from schemas.errors import VersionError
from schemas.upcasters import SCHEMA_VERSION

DECIDERS = ("rater", "trainer", "archivist")
"""Roles whose fold of the history decides what others build on: they must know what every event says."""


def check_versions(state: LeagueState, name: str) -> None:
    """See that those who decide can read what this process is about to write.

    Args:
        state: The history folded.
        name: Of this process's worker; another process of that name is gone.

    Raises:
        VersionError: one of them cannot.
    """
    for other, worker in sorted(state.workers.items()):
        joined = worker.joined
        if other != name and worker.left is None and joined.role in DECIDERS and joined.schema < SCHEMA_VERSION:
            raise VersionError(
                f"{name} writes events of schema version {SCHEMA_VERSION}, and {other} (package {joined.version}, on "
                f"{joined.host}) reads up to {joined.schema}: upgrade {other} first"
            )
