"""The league: its history, its state, its ratings, and which agents play each other.

``import league`` is also the public Python interface: ``league.open``, ``league.up`` and ``league.__version__`` (see
``api``). All else in this package may change between releases.

- ``api``                the public Python interface
- ``log/``               the history: append, read and follow events; the work queue and the trajectory stream
- ``blobs/``             immutable files by SHA-256: adapters, models, game records, snapshots, archives
- ``integrity/``         archive and snapshots of the history, verification and recovery
- ``state/``             the fold that workers decide from: agents, ratings, policies, evaluations
- ``ratings/``           rating systems, one file each, and the fold over match results
- ``samplers/``          opponent samplers
- ``matchmaking/``       training matches, roles, the checkpoint schedule, the active pool
- ``evaluation/``        evaluation plans, promotion tests, benchmarks
- ``success_criteria/``  criteria that a league is judged by
- ``auth/``              keys, tokens and permissions of a broker's users
- ``projections/``       the history as DuckDB tables, for SQL
- ``history/``           replay, counterfactuals, lineage, branches, comparisons, corrections
- ``analysis/``          the leaderboard by maximum likelihood, with intervals
- ``queries/``           what terminal, browser and command line read of a league
- ``plots/``             charts
- ``run``                a run's folder and the connection to its broker
- ``fold_primitives``    versioned mappings, sets of ids, and the configuration in force
"""

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from league.api import Match, RunReader, Table, __version__, up
    from league.api import open_run as open

_SIBLINGS = ("arena", "inference", "lifecycle", "models", "players", "schemas", "trainer", "ui", "workers")


def _check_siblings() -> None:
    """Raise ``ImportError`` where a file beside the user's script hides a package of ours, and name the file."""
    packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name in _SIBLINGS:
        found = importlib.util.find_spec(name)
        places = [] if found is None else [found.origin or "", *(found.submodule_search_locations or ())]
        if not any(os.path.abspath(place).startswith(os.path.join(packages, name)) for place in places):
            raise ImportError(
                f"{places[-1] if places else name}: expected {os.path.join(packages, name)}; the league needs its "
                f"package {name!r}, which this file or folder hides: give it another name, or run your script from "
                "another folder"
            )


_check_siblings()

__all__ = ["Match", "RunReader", "Table", "__version__", "open", "up"]


def __getattr__(name: str) -> Any:
    """The public interface, on first use: every worker imports this package, and none needs DuckDB or Arrow for it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("league.api"), "open_run" if name == "open" else name)
