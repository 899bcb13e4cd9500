"""Loads batches of events: DuckDB parses them while Python reads on, and nothing is done row by row here.

The batch is registered as ``batch``, a NumPy array per column, which DuckDB scans about as fast as Arrow. Every event
type in it is parsed into a temporary table of the type's name, in the order of the history; duplicates are removed from
there (``DedupIndex``); then the statements run.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt

from league.fold_primitives import ConfigFold
from league.log.base import RecordedEvent
from league.projections.dedup_index import DedupIndex, IdKind
from league.projections.statements import (
    BULKY_STATEMENTS,
    DECODED,
    READABLE,
    SMALL_STATEMENTS,
    doubtful_statement,
    parse_statement,
)
from league.projections.tables import RECORDED_EVENTS
from schemas.codec import SCHEMA_VERSION, encode_event
from schemas.events import EVENT_TYPES, LeagueConfigured, LeagueOpened

Columns = dict[str, npt.NDArray[Any]]
"""Arrays of one length by column; texts are arrays of objects."""

_BATCH = ("sequence", "time_ns", "subject", "producer", "schema")
_FACTS = ("sequence", "time_ns", "type", "payload")

_KNOWN = ", ".join(f"'{name}'" for name in sorted(EVENT_TYPES))

_INCOMING = f"""
    CREATE OR REPLACE TEMP TABLE incoming AS
    SELECT sequence, time_ns, CASE WHEN valid THEN coalesce(head, payload->>'$.type') END AS type,
           subject, producer, schema, payload, CASE WHEN NOT valid THEN encode(payload) END AS raw,
           coalesce(valid AND schema = {SCHEMA_VERSION} AND head IN ({_KNOWN}), false) AS readable
    FROM (
        SELECT *, nullif(regexp_extract(payload, '^{{"type":"(\\w+)"', 1), '') AS head,
               is_text AND json_valid(payload) AS valid
        FROM batch
    )
"""
"""Payloads that begin as we write them are of a known type; Python judges the rest."""

_KEEP_BYTES = """
    UPDATE incoming SET raw = bytes FROM (SELECT unnest(?::BIGINT[]) AS place, unnest(?::BLOB[]) AS bytes)
    WHERE sequence = place
"""
"""Restore payloads that are not text."""

_RENAME = """
    UPDATE incoming SET type = facts.type FROM facts
    WHERE facts.sequence = incoming.sequence AND facts.type IS DISTINCT FROM incoming.type
"""

_EVENTS = """
    INSERT INTO kept.events
    SELECT sequence, time_ns, type, subject, producer, schema,
           CASE WHEN raw IS NULL THEN payload ELSE to_json(payload)::VARCHAR END, raw FROM incoming
"""

_UNREADABLE = """
    INSERT INTO kept.unreadable SELECT sequence, type FROM incoming
    WHERE sequence IN (SELECT unnest(?)) ORDER BY sequence
"""

_RATED = """
    SELECT sequence, game, system, match_sequence AS upto FROM RatingUpdated
    UNION ALL SELECT sequence, game, system, through AS upto FROM RatingsCorrected
"""

_ENDS, _RATINGS = ("MatchFinished", "MatchFailed"), ("RatingUpdated", "RatingsCorrected")
"""Types that share their duplicates: where one occurs, both have a table."""

_ONCE: tuple[tuple[IdKind, tuple[str, ...]], ...] = (("played", _ENDS), ("sampled", ("OpponentsSampled",)))
"""Types of which the first event with a match id counts."""


def _decode_payloads(batch: Sequence[RecordedEvent]) -> tuple[list[str], list[bool]]:
    """Payloads as texts, and which of them are UTF-8; the others have replacement characters."""
    try:
        return [recorded.payload.decode() for recorded in batch], [True] * len(batch)
    except UnicodeDecodeError:
        texts = [recorded.payload.decode("utf-8", "replace") for recorded in batch]
        return texts, [text.encode() == recorded.payload for recorded, text in zip(batch, texts, strict=True)]


def _columns(names: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> Columns:
    """Rows that are whole numbers and texts as an array for each column; there must be one row at least."""
    return {
        name: np.array(column, np.int64 if isinstance(column[0], int) else object)
        for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }


class Loader:
    """Loads batches into a projection's tables; the caller owns the transaction."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._batch: Sequence[RecordedEvent] = ()
        self._sequences = np.empty(0, np.int64)
        self._unreadable: list[int] = []
        self._opening: int | None = None

    def load(self, batch: Sequence[RecordedEvent], marks: DedupIndex | None, *, small: bool = True) -> None:
        """Load a batch, in order of sequence and not empty; ``small`` is whether to fill the small tables.

        ``marks``, the dedup index, is advanced; None leaves out the events and all bulky tables.
        """
        columns = _columns(_BATCH, ((r.sequence, r.time_ns, r.subject, r.producer, r.schema) for r in batch))
        payloads, is_text = _decode_payloads(batch)
        self._batch = batch
        self._sequences = columns["sequence"]
        self._unreadable = []
        statements = [*(BULKY_STATEMENTS if marks is not None else ()), *(SMALL_STATEMENTS if small else ())]
        self._connection.register(
            "batch", {**columns, "payload": np.array(payloads, object), "is_text": np.array(is_text)}
        )
        try:
            self._connection.execute(_INCOMING)
            if not all(is_text):
                damaged = [r for r, decoded in zip(batch, is_text, strict=True) if not decoded]
                self._connection.execute(_KEEP_BYTES, [[r.sequence for r in damaged], [r.payload for r in damaged]])
            # Storing the events includes recording those of any type that cannot be decoded.
            types = {name for statement in statements for name in statement.events}
            present = self._parse(set(EVENT_TYPES) if marks is not None else types)
            if marks is not None:
                self._connection.execute(_EVENTS)
                self._drop_seen(marks, present)
                self._connection.execute(_UNREADABLE, [self._unreadable])
            if small:
                self._insert_configurations()
            for statement in statements:
                if present.intersection(statement.events):
                    self._connection.execute(statement.sql)
        finally:
            # After an error, which it would hide, the transaction takes no statement any more.
            with contextlib.suppress(duckdb.TransactionException):
                self._connection.unregister("batch")

    def _parse(self, types: set[str]) -> set[str]:
        """Create the temporary tables of the types that occur; returns their names."""
        facts = self._decode_in_python(self._column("SELECT sequence FROM incoming WHERE NOT readable"))
        source, decoded = READABLE, set()
        if facts:
            self._connection.register("facts", facts)
            self._connection.execute(_RENAME)
            source, decoded = f"{READABLE} UNION ALL {DECODED}", set(facts["type"])
        names = self._connection.execute("SELECT DISTINCT type FROM incoming WHERE readable").fetchall()
        present = types & ({name for (name,) in names} | decoded)
        for name in sorted(present.union(*(pair for pair in (_ENDS, _RATINGS) if present.intersection(pair)))):
            self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {parse_statement(name, source)}")
        if facts:
            self._connection.unregister("facts")
        for name in sorted(present):
            if self._resolve_doubtful(name) or facts:
                # Python appended the rows that it decoded; all others are in order.
                self._connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS FROM {name} ORDER BY sequence")
        return present

    def _resolve_doubtful(self, name: str) -> bool:
        """Decode in Python what DuckDB may have misread; returns whether there was any.

        Missing fields take defaults, invalid events are dropped.
        """
        places = self._column(doubtful_statement(name))
        if not len(places):
            return False
        self._delete(name, places)
        if facts := self._decode_in_python(places):
            self._connection.register("facts", facts)
            self._connection.execute(f"INSERT INTO {name} {parse_statement(name, DECODED)}")
            self._connection.unregister("facts")
        return True

    def _events_at(self, sequences: npt.NDArray[np.int64]) -> Iterator[RecordedEvent]:
        return (self._batch[place] for place in np.searchsorted(self._sequences, np.sort(sequences)).tolist())

    def _decode_in_python(self, sequences: npt.NDArray[np.int64]) -> Columns:
        """Events at these sequences, re-encoded by this version; empty when none can be decoded."""
        rows = []
        for recorded in self._events_at(sequences):
            if recorded.event is None:
                self._unreadable.append(recorded.sequence)
                continue
            text = encode_event(recorded.event).decode()
            rows.append((recorded.sequence, recorded.time_ns, type(recorded.event).__name__, text))
        return _columns(_FACTS, rows) if rows else {}

    def _drop_seen(self, marks: DedupIndex, present: set[str]) -> None:
        for kind, tables in _ONCE:
            if present.intersection(tables):
                ids = " UNION ALL ".join(f"SELECT sequence, match_id FROM {table}" for table in tables)
                rows = self._fetch(f"{ids} ORDER BY sequence")
                new = marks.add(kind, rows["match_id"].tolist())
                for table in tables:
                    self._delete(table, rows["sequence"][~new])
        if not present.intersection(_RATINGS):
            return
        rows = self._fetch(f"{_RATED} ORDER BY sequence")
        for game, system in sorted(set(zip(rows["game"].tolist(), rows["system"].tolist(), strict=True))):
            own = (rows["game"] == game) & (rows["system"] == system)
            new = marks.advance_rated((game, system), rows["upto"][own])
            for table in _RATINGS:
                self._delete(table, rows["sequence"][own][~new])

    def _insert_configurations(self) -> None:
        """Store configurations that take effect and that this version can read, like ``LeagueState``."""
        sequences = self._column("SELECT sequence FROM incoming WHERE type IN ('LeagueOpened', 'LeagueConfigured')")
        for recorded in self._events_at(sequences):
            event = recorded.event
            if not isinstance(event, LeagueOpened | LeagueConfigured):
                continue
            opened = 0 < self._opened_at(recorded.sequence) < recorded.sequence
            # All rows: a result that is not read to its end keeps the connection busy.
            [(since,)] = self._connection.execute("SELECT max(sequence) FROM configurations").fetchall()
            config = ConfigFold(opened=opened, since=since).apply(recorded.sequence, event)
            if config is None:
                continue
            ratings = config.ratings
            self._connection.execute(
                "INSERT INTO configurations VALUES (?, make_timestamp(?), ?, ?, ?, ?, ?)",
                [
                    recorded.sequence,
                    recorded.time_ns // 1000,
                    config.game.name,
                    ratings.system.name,
                    [plugin.name for plugin in ratings.systems],
                    list(ratings.purposes),
                    msgspec.json.encode(event.config).decode(),
                ],
            )

    def _opened_at(self, upto: int) -> int:
        """Sequence of the event that opened the league; invalid openings are skipped."""
        if self._opening is None:
            result = self._connection.execute(
                f"{RECORDED_EVENTS} WHERE type = 'LeagueOpened' AND sequence <= ? ORDER BY sequence", [upto]
            )
            while row := result.fetchone():
                event = RecordedEvent(*row).event
                if isinstance(event, LeagueOpened) and event.league:
                    self._opening = row[0]
                    break
        return self._opening or 0

    def _column(self, select: str) -> npt.NDArray[np.int64]:
        return self._fetch(select)["sequence"]

    def _fetch(self, select: str) -> Columns:
        columns: Columns = self._connection.execute(select).fetchnumpy()
        return columns

    def _delete(self, table: str, sequences: npt.NDArray[np.int64]) -> None:
        if len(sequences):
            self._connection.execute(f"DELETE FROM {table} WHERE sequence IN (SELECT unnest(?))", [sequences.tolist()])
