"""Matches from a projection's tables into arrays; streamed, so that ten million seven-seat matches need 3 GB."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from league.ratings.arrays import MatchArrays, Reset, Rule, Start
from league.ratings.table import Starts
from schemas.config import LeagueConfig, convert
from schemas.errors import ConfigError

HOLDING = "voided_sequence IS NULL"
"""Condition on ``matches``: results that were not taken back."""

Array = NDArray[Any]


def load_matches(projection: Any, where: str = HOLDING, *, with_roles: bool = False) -> MatchArrays:
    """Matches with their seats, from the tables ``matches``, ``match_seats``, ``agents``, ``configurations``.

    A match that lists a seat twice has no seats here: it says nothing that could be rated or compared.

    Args:
        projection: A projection, or a DuckDB connection to one.
        where: SQL condition on the columns of ``matches``. It goes into a query as it is: it must be ours.
        with_roles: Fill ``role_S`` and ``roles`` too.
    """
    connection = getattr(projection, "connection", projection)
    agents, games, purposes, roles = _Names(), _Names(), _Names(), _Names()
    sequence_M, game_M, purpose_M = _matches(connection, where, games, purposes)
    told = roles if with_roles else None
    seats = _seats(connection, agents, told)
    if seats is None:
        seats = _seats(connection, agents, told, " ORDER BY sequence, seat")
    assert seats is not None
    place_M = np.searchsorted(seats.sequence_U, sequence_M)
    there_M = np.append(seats.sequence_U, -1)[place_M] == sequence_M
    there_M &= ~np.isin(sequence_M, seats.twice)
    return MatchArrays(
        sequence_M=sequence_M,
        game_M=game_M,
        purpose_M=purpose_M,
        begin_M=np.where(there_M, seats.begin_U[place_M], 0),
        end_M=np.where(there_M, np.append(seats.begin_U[1:], 0)[place_M], 0),
        agent_S=seats.agent_S,
        score_S=seats.score_S,
        agents=list(agents.codes),
        games=list(games.codes),
        purposes=list(purposes.codes),
        starts=_starts(connection),
        base=_base(connection),
        rules=rules_of(connection),
        role_S=seats.role_S,
        roles=list(roles.codes),
        resets=_resets(connection),
    )


class _Seats(NamedTuple):
    """Seats, and the matches that they belong to; U of them."""

    sequence_U: Array
    begin_U: Array
    """First seat of each, and at the end their number."""
    agent_S: Array
    score_S: Array
    role_S: Array
    """Empty where roles were not asked for."""
    twice: Array
    """Sequences of matches that list a seat twice."""


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


def _batches(connection: Any, query: str) -> Iterator[list[Any]]:
    """The columns of a result in pieces, so that its text is never in memory as a whole."""
    import pyarrow as pa

    for batch in pa.RecordBatchReader.from_stream(connection.sql(query)):
        yield batch.columns


def _numbers(column: Any, kind: type[np.generic]) -> Array:
    # A copy: a view would keep the whole piece of the result in memory, text and all.
    found: Array = column.to_numpy(zero_copy_only=False).astype(kind)
    return found


def _joined(pieces: list[Array], kind: type[np.generic]) -> Array:
    whole: Array = np.concatenate([np.empty(0, kind), *pieces])
    pieces.clear()
    return whole


def _matches(connection: Any, where: str, games: _Names, purposes: _Names) -> tuple[Array, Array, Array]:
    sequences: list[Array] = []
    game_codes: list[Array] = []
    purpose_codes: list[Array] = []
    for sequence, game, purpose in _batches(connection, f"SELECT sequence, game, purpose FROM matches WHERE {where}"):
        sequences.append(_numbers(sequence, np.int64))
        game_codes.append(games.encode(game))
        purpose_codes.append(purposes.encode(purpose))
    sequence_M = _joined(sequences, np.int64)
    # Tables are kept in the order of the history, but a query need not give them so.
    order = slice(None) if (np.diff(sequence_M) > 0).all() else np.argsort(sequence_M, kind="stable")
    return sequence_M[order], _joined(game_codes, np.int32)[order], _joined(purpose_codes, np.int32)[order]


def _seats(connection: Any, agents: _Names, roles: _Names | None, order: str = "") -> _Seats | None:
    """Seats in the order of the history; None when the query gave them in another."""
    sequences: list[Array] = []
    firsts: list[Array] = []
    codes: list[Array] = []
    scores: list[Array] = []
    role_codes: list[Array] = []
    twice: list[Array] = []
    count, last = 0, (-1, -1)
    columns = "sequence, seat, agent, score" + (", role" if roles is not None else "")
    for match, seat, agent, score, *role in _batches(connection, f"SELECT {columns} FROM match_seats{order}"):
        match_S, seat_S = _numbers(match, np.int64), _numbers(seat, np.int64)
        step, seat_step = np.diff(match_S, prepend=last[0]), np.diff(seat_S, prepend=last[1])
        if ((step < 0) | ((step == 0) & (seat_step < 0))).any():
            return None
        twice.append(match_S[(step == 0) & (seat_step == 0)])
        begins = np.flatnonzero(step)
        sequences.append(match_S[begins])
        firsts.append(begins + count)
        codes.append(agents.encode(agent))
        scores.append(_numbers(score, np.float64))
        if roles is not None:
            role_codes.append(roles.encode(role[0]))
        count, last = count + len(match_S), (int(match_S[-1]), int(seat_S[-1]))
    return _Seats(
        sequence_U=_joined(sequences, np.int64),
        begin_U=np.append(_joined(firsts, np.int64), count),
        agent_S=_joined(codes, np.int32),
        score_S=_joined(scores, np.float64),
        role_S=_joined(role_codes, np.int32),
        twice=_joined(twice, np.int64),
    )


def starts_at(connection: Any, upto: int) -> Starts:
    """Where registered agents' ratings start, as it was known after an event."""
    starts = Starts()
    starts.ratings = {agent: start.rating for agent, start in _starts(connection).items() if start.sequence <= upto}
    base = _base(connection)
    starts.base = base if base in starts.ratings else None
    for policy, resets in _resets(connection).items():
        starts.resets[policy] = sorted(reset.version for reset in resets if reset.sequence <= upto)
    return starts


def _starts(connection: Any) -> dict[str, Start]:
    rows = connection.execute("SELECT agent, start_rating, joined_sequence FROM agents WHERE start_rating IS NOT NULL")
    return {agent: Start(rating, sequence) for agent, rating, sequence in rows.fetchall()}


def _resets(connection: Any) -> dict[str, list[Reset]]:
    found: dict[str, list[Reset]] = {}
    for policy, version, sequence in connection.execute("SELECT policy, version, sequence FROM resets").fetchall():
        found.setdefault(policy, []).append(Reset(version, sequence))
    return found


def _base(connection: Any) -> str | None:
    row = connection.execute(
        "SELECT agent FROM agents WHERE kind = 'base' AND start_rating IS NOT NULL ORDER BY joined_sequence LIMIT 1"
    ).fetchone()
    return None if row is None else row[0]


def rules_of(connection: Any) -> list[Rule]:
    """The configurations of the history that this version can read, in its order."""
    rows = connection.execute("SELECT sequence, config FROM configurations WHERE sequence > 0 ORDER BY sequence")
    rules = []
    for sequence, config in rows.fetchall():
        try:
            rules.append(Rule(sequence, convert(json.loads(config), LeagueConfig, "").ratings))
        except ConfigError:
            # Written by a newer version; the one before stays in force, as it does for ``RatingFold``.
            continue
    return rules
