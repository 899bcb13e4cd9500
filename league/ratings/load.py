"""Matches from a projection's tables into arrays; streamed, so that ten million seven-seat matches need 2 GB."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from league.ratings.arrays import MatchArrays, Rule, Start
from schemas.config import LeagueConfig, convert
from schemas.errors import ConfigError

HOLDING = "voided_sequence IS NULL"
"""Condition on ``matches``: results that were not taken back."""

Array = NDArray[Any]


def load_matches(projection: Any, where: str = HOLDING) -> MatchArrays:
    """Matches with their seats, from the tables ``matches``, ``match_seats``, ``agents``, ``configurations``.

    Args:
        projection: A projection, or a DuckDB connection to one.
        where: SQL condition on the columns of ``matches``. It goes into a query as it is: it must be ours.
    """
    connection = getattr(projection, "connection", projection)
    agents, games, purposes = _Names(), _Names(), _Names()
    sequence_M, game_M, purpose_M = _columns(
        connection,
        f"SELECT sequence, game, purpose FROM matches WHERE {where}",
        (_numbers(np.int64), games.encode, purposes.encode),
    )
    order = _order(sequence_M)
    sequence_M, game_M, purpose_M = sequence_M[order], game_M[order], purpose_M[order]
    match_S, seat_S, agent_S, score_S = _columns(
        connection,
        "SELECT sequence, seat, agent, score FROM match_seats",
        (_numbers(np.int64), _numbers(np.int16), agents.encode, _numbers(np.float64)),
    )
    order = _order(match_S, seat_S)
    match_S, agent_S, score_S = match_S[order], agent_S[order], score_S[order]
    starts = _starts(connection)
    return MatchArrays(
        sequence_M=sequence_M,
        game_M=game_M,
        purpose_M=purpose_M,
        begin_M=np.searchsorted(match_S, sequence_M, "left"),
        end_M=np.searchsorted(match_S, sequence_M, "right"),
        agent_S=agent_S,
        score_S=score_S,
        agents=list(agents.codes),
        games=list(games.codes),
        purposes=list(purposes.codes),
        starts=starts,
        base=_base(connection),
        rules=_rules(connection),
    )


class _Names:
    """Codes for names, in the order in which they first appear."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def encode(self, column: Any) -> Array:
        """A column's codes."""
        encoded = column.dictionary_encode()
        mine = [self.codes.setdefault(name, len(self.codes)) for name in encoded.dictionary.to_pylist()]
        codes: Array = np.array(mine, np.int32)[encoded.indices.to_numpy(zero_copy_only=False)]
        return codes


def _numbers(kind: type[np.generic]) -> Callable[[Any], Array]:
    def taken(column: Any) -> Array:
        found: Array = column.to_numpy(zero_copy_only=False).astype(kind)
        return found

    return taken


def _columns(connection: Any, query: str, take: tuple[Callable[[Any], Array], ...]) -> list[Array]:
    """The columns of a result as arrays, taken in pieces so that its text is never in memory as a whole."""
    import pyarrow as pa

    pieces: list[list[Array]] = [[] for _ in take]
    for batch in pa.RecordBatchReader.from_stream(connection.sql(query)):
        for piece, taken, column in zip(pieces, take, batch.columns, strict=True):
            piece.append(taken(column))
    columns = []
    for piece, taken in zip(pieces, take, strict=True):
        columns.append(np.concatenate(piece) if piece else taken(pa.array([], pa.string())))
        piece.clear()
    return columns


def _order(*keys: Array) -> Array | slice:
    """The order of the history. Tables are kept in it; whatever comes out of them otherwise is sorted."""
    first, *rest = keys
    step = np.diff(first)
    if (step >= 0).all() and all(((step > 0) | (np.diff(key) > 0)).all() for key in rest):
        return slice(None)
    return np.lexsort(keys[::-1])


def _starts(connection: Any) -> dict[str, Start]:
    rows = connection.execute("SELECT agent, start_rating, joined_sequence FROM agents WHERE start_rating IS NOT NULL")
    return {agent: Start(rating, sequence) for agent, rating, sequence in rows.fetchall()}


def _base(connection: Any) -> str | None:
    row = connection.execute(
        "SELECT agent FROM agents WHERE kind = 'base' AND start_rating IS NOT NULL ORDER BY joined_sequence LIMIT 1"
    ).fetchone()
    return None if row is None else row[0]


def _rules(connection: Any) -> list[Rule]:
    rows = connection.execute("SELECT sequence, config FROM configurations WHERE sequence > 0 ORDER BY sequence")
    rules = []
    for sequence, config in rows.fetchall():
        try:
            rules.append(Rule(sequence, convert(json.loads(config), LeagueConfig, "").ratings))
        except ConfigError:
            # Written by a newer version; the one before stays in force, as it does for ``RatingFold``.
            continue
    return rules
