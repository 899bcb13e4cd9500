"""Loads matches from a projection's tables into arrays, streamed: ten million seven-seat matches need 3 GB."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from league.fold_primitives import ConfigFold, SeenIds
from league.ratings.arrays import MatchArrays, RatingRule, Reset, StartRating
from league.ratings.base import StartRatings
from league.ratings.fold import is_rated
from schemas import events as e
from schemas.config import LeagueConfig, RatingsConfig, convert
from schemas.errors import ConfigError

NOT_VOIDED = "voided_sequence IS NULL"
"""SQL condition on ``matches``: results that were not voided."""

Array = NDArray[Any]


def load_matches(connection: Any, where: str = NOT_VOIDED, *, with_roles: bool = False) -> MatchArrays:
    """Load matches with their seats from the tables ``matches``, ``match_seats``, ``agents``, ``configurations``.

    A match that lists a seat twice gets no seats, since its results can be neither rated nor compared. ``where`` is an
    SQL condition on the columns of ``matches``, inserted into a query as it is: never pass untrusted text.
    """
    rows = _Rows(connection, "matches", where)
    names = {"game": rows.names("game"), "purpose": rows.names("purpose")}
    batches = list(rows.batches(("sequence", *names), names))
    sequence_M = _concatenate([batch[0] for batch in batches], np.int64)
    game_M, purpose_M = (_concatenate([batch[place] for batch in batches], np.int32) for place in (1, 2))
    # Tables are kept in the order of the history, but a query need not return them so.
    order = slice(None) if (np.diff(sequence_M) > 0).all() else np.argsort(sequence_M, kind="stable")
    sequence_M = sequence_M[order]
    seats = _load_seats(connection, with_roles) or _load_seats(connection, with_roles, " ORDER BY sequence, seat")
    assert seats is not None
    place_M = np.searchsorted(seats.sequence_U, sequence_M)
    there_M = np.append(seats.sequence_U, -1)[place_M] == sequence_M
    there_M &= ~np.isin(sequence_M, seats.twice)
    return MatchArrays(
        sequence_M=sequence_M,
        game_M=game_M[order],
        purpose_M=purpose_M[order],
        begin_M=np.where(there_M, seats.begin_U[place_M], 0),
        end_M=np.where(there_M, np.append(seats.begin_U[1:], 0)[place_M], 0),
        agent_S=seats.agent_S,
        score_S=seats.score_S,
        agents=seats.agents,
        games=names["game"],
        purposes=names["purpose"],
        starts=_load_starts(connection),
        base=_load_base(connection),
        rules=load_rules(connection),
        role_S=seats.role_S,
        roles=seats.roles,
        resets=_load_resets(connection),
    )


class _SeatColumns(NamedTuple):
    """Seats and their matches; U matches."""

    sequence_U: Array
    begin_U: Array
    """First seat of each match, and finally the number of seats."""
    agent_S: Array
    score_S: Array
    role_S: Array
    """Empty unless roles were requested."""
    twice: Array
    """Sequences of matches that list a seat twice."""
    agents: list[str]
    roles: list[str]


_SPAN = 2**18
"""Sequences whose rows are fetched at a time, so that text and copies of a long history are never in memory at once."""


class _Rows:
    """Rows of a table, by sequence, as of now: others may append to it meanwhile."""

    def __init__(self, connection: Any, table: str, condition: str = "true") -> None:
        self._connection = connection
        self._table = table
        self._condition = condition
        [(first, self._last)] = connection.execute(f"SELECT min(sequence), max(sequence) FROM {table}").fetchall()
        self._starts = range(first, self._last + 1, _SPAN) if first is not None else range(0)

    def names(self, column: str, order: str = "min(sequence)") -> list[str]:
        """Distinct texts of a column, in the order of first appearance."""
        select = f"SELECT {column} FROM {self._table} WHERE {self._condition} AND sequence <= ?"
        rows = self._connection.execute(f"{select} GROUP BY {column} ORDER BY {order}", [self._last])
        return [name for (name,) in rows.fetchall()]

    def batches(self, columns: Sequence[str], names: Mapping[str, list[str]], order: str = "") -> Iterator[list[Array]]:
        """Arrays of the columns, span by span; those in ``names`` as int32 codes: places in the list."""
        chosen = ", ".join(f"{column}_code" if column in names else column for column in columns)
        joined = "".join(
            f" JOIN (SELECT unnest(?::VARCHAR[]) AS {name}, unnest(range(?))::INTEGER AS {name}_code) USING ({name})"
            for name in names
        )
        lists = [parameter for listed in names.values() for parameter in (listed, len(listed))]
        span = f"WHERE {self._condition} AND sequence BETWEEN ? AND ?"
        for start in self._starts:
            reader = self._connection.execute(
                f"SELECT {chosen} FROM {self._table}{joined} {span}{order}",
                [*lists, start, min(start + _SPAN - 1, self._last)],
            )
            yield list(reader.fetchnumpy().values())


def _concatenate(pieces: list[Array], kind: type[np.generic]) -> Array:
    whole: Array = np.concatenate([np.empty(0, kind), *pieces])
    pieces.clear()
    return whole


def _load_seats(connection: Any, with_roles: bool, order: str = "") -> _SeatColumns | None:
    """Seats in the order of the history; None when the query returned them in another."""
    pieces: defaultdict[str, list[Array]] = defaultdict(list)
    count, last = 0, (-1, -1)
    rows = _Rows(connection, "match_seats")
    names = {
        column: rows.names(column, "min(sequence), arg_min(seat, sequence)")
        for column in ("agent", *(["role"] * with_roles))
    }
    for match_S, seat_S, score_S, agent_S, *role_S in rows.batches(("sequence", "seat", "score", *names), names, order):
        if not len(match_S):
            continue
        step, seat_step = np.diff(match_S, prepend=last[0]), np.diff(seat_S, prepend=last[1])
        if ((step < 0) | ((step == 0) & (seat_step < 0))).any():
            return None
        begins = np.flatnonzero(step)
        pieces["sequence_U"].append(match_S[begins])
        pieces["begin_U"].append(begins + count)
        pieces["agent_S"].append(agent_S)
        pieces["score_S"].append(score_S)
        pieces["role_S"] += role_S
        pieces["twice"].append(match_S[(step == 0) & (seat_step == 0)])
        count, last = count + len(match_S), (int(match_S[-1]), int(seat_S[-1]))
    return _SeatColumns(
        sequence_U=_concatenate(pieces["sequence_U"], np.int64),
        begin_U=np.append(_concatenate(pieces["begin_U"], np.int64), count),
        agent_S=_concatenate(pieces["agent_S"], np.int32),
        score_S=_concatenate(pieces["score_S"], np.float64),
        role_S=_concatenate(pieces["role_S"], np.int32),
        twice=_concatenate(pieces["twice"], np.int64),
        agents=names["agent"],
        roles=names.get("role", []),
    )


def load_start_ratings(connection: Any, upto: int) -> StartRatings:
    """Starting ratings of registered agents, as known after an event."""
    ratings = {agent: s.rating for agent, s in _load_starts(connection).items() if s.sequence <= upto}
    resets = {
        policy: sorted(reset.version for reset in resets if reset.sequence <= upto)
        for policy, resets in _load_resets(connection).items()
    }
    base = _load_base(connection)
    return StartRatings(ratings, base if base in ratings else None, resets)


def _load_starts(connection: Any) -> dict[str, StartRating]:
    rows = connection.execute("SELECT agent, start_rating, joined_sequence FROM agents WHERE start_rating IS NOT NULL")
    return {agent: StartRating(rating, sequence) for agent, rating, sequence in rows.fetchall()}


def _load_resets(connection: Any) -> dict[str, list[Reset]]:
    resets_of: dict[str, list[Reset]] = {}
    for policy, version, sequence in connection.execute("SELECT policy, version, sequence FROM resets").fetchall():
        resets_of.setdefault(policy, []).append(Reset(version, sequence))
    return resets_of


def _load_base(connection: Any) -> str | None:
    row = connection.execute(
        "SELECT agent FROM agents WHERE kind = 'base' AND start_rating IS NOT NULL ORDER BY joined_sequence LIMIT 1"
    ).fetchone()
    return None if row is None else row[0]


def load_rules(connection: Any) -> list[RatingRule]:
    """The configurations of the history that this version can read, in order."""
    rows = connection.execute("SELECT sequence, config FROM configurations WHERE sequence > 0 ORDER BY sequence")
    rules = []
    for sequence, config in rows.fetchall():
        try:
            rules.append(RatingRule(sequence, convert(json.loads(config), LeagueConfig, "").ratings))
        except ConfigError:
            # Written by a newer version; the one before stays in force, as in ``RatingFold``.
            continue
    return rules


class MatchArrayBuilder:
    """Builds ``MatchArrays`` from the events of a history in order, with the semantics of ``RatingFold``.

    The matches of ``skip`` are left out, as if never played.
    """

    def __init__(self, skip: Collection[str]) -> None:
        self.sequence = 0
        self.skipped_counts: dict[tuple[str, str], int] = {}
        """Number of matches of ``skip`` that would have counted, by game and system."""
        self._skip = skip
        self._seen = SeenIds()
        self._rules = [RatingRule(0, RatingsConfig())]
        self._starts: dict[str, StartRating] = {}
        self._resets: dict[str, list[Reset]] = {}
        self._base: str | None = None
        self._config = ConfigFold()
        self._codes: tuple[dict[str, int], dict[str, int], dict[str, int]] = ({}, {}, {})
        self._matches: list[tuple[int, int, int, int]] = []
        self._agents: list[int] = []
        self._scores: list[float] = []

    def apply(self, sequence: int, event: e.Event | None) -> None:
        """Add one event; sequences at or below the last one do nothing."""
        if sequence <= self.sequence:
            return
        self.sequence = sequence
        if isinstance(event, e.MatchFinished):
            if self._seen.add(event.match_id):
                self._add_match(event)
        elif isinstance(event, e.MatchFailed):
            self._seen.add(event.match_id)
        elif isinstance(event, e.AgentRegistered | e.CheckpointAdded):
            if self._seen.add(f"joined:{event.agent}") and event.rating is not None:
                self._starts.setdefault(event.agent, StartRating(event.rating, sequence))
                if isinstance(event, e.AgentRegistered) and event.kind == "base" and self._base is None:
                    self._base = event.agent
        elif isinstance(event, e.PolicyReset):
            if self._seen.add(event.key):
                self._resets.setdefault(event.policy, []).append(Reset(event.version, sequence))
        elif isinstance(event, e.LeagueOpened | e.LeagueConfigured):
            config = self._config.apply(sequence, event)
            if config is not None:
                self._rules.append(RatingRule(sequence, config.ratings))

    def build(self) -> MatchArrays:
        """Returns the matches so far."""
        agents, games, purposes = self._codes
        sequence_M, game_M, purpose_M, end_M = np.array(self._matches, np.int64).reshape(-1, 4).T
        return MatchArrays(
            sequence_M=sequence_M,
            game_M=game_M.astype(np.int32),
            purpose_M=purpose_M.astype(np.int32),
            begin_M=np.concatenate([[0], end_M[:-1]]).astype(np.int64),
            end_M=end_M,
            agent_S=np.array(self._agents, np.int32),
            score_S=np.array(self._scores, np.float64),
            agents=list(agents),
            games=list(games),
            purposes=list(purposes),
            starts=self._starts,
            base=self._base,
            rules=self._rules[1:],
            resets=self._resets,
        )

    def _add_match(self, match: e.MatchFinished) -> None:
        ratings = self._rules[-1].ratings
        if not is_rated(match, ratings):
            return
        if match.match_id in self._skip:
            for plugin in ratings.systems:
                place = (match.game, plugin.name)
                self.skipped_counts[place] = self.skipped_counts.get(place, 0) + 1
            return
        agents, games, purposes = self._codes
        self._agents += [agents.setdefault(seat.agent, len(agents)) for seat in match.seats]
        self._scores += [seat.score for seat in match.seats]
        game, purpose = games.setdefault(match.game, len(games)), purposes.setdefault(match.purpose, len(purposes))
        self._matches.append((self.sequence, game, purpose, len(self._agents)))
