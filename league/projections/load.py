"""Batches of events as rows: Python decodes each event once, as every fold does, and DuckDB inserts in bulk.

What a later event repeats (``DedupIndex``) and what cannot be decoded is left out here. The events that count are
written again with all their fields, by type, into temporary tables of the types' names, from which ``statements``
fills the tables: text of our own encoder, which DuckDB cannot misread.
"""

import contextlib
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import duckdb
import msgspec
import numpy as np

from league.fold_primitives import ConfigFold
from league.log.base import RecordedEvent
from league.projections.dedup_index import DedupIndex
from league.projections.statements import BULKY_STATEMENTS, SMALL_STATEMENTS, parse_statement
from league.projections.tables import RECORDED_EVENTS
from schemas.codec import DECODE_ERRORS
from schemas.errors import DecodeError
from schemas.events import Event, LeagueConfigured, LeagueOpened

_EVENTS = """
    INSERT INTO kept.events
    SELECT sequence, time_ns, type, subject, producer, schema,
           CASE WHEN is_text AND valid THEN payload ELSE to_json(payload)::VARCHAR END,
           CASE WHEN is_text AND NOT valid THEN encode(payload) END
    FROM (SELECT *, json_valid(payload) AS valid FROM incoming)
"""
_KEEP_BYTES = """
    UPDATE kept.events SET raw = bytes FROM (SELECT unnest(?::BIGINT[]) AS damaged, unnest(?::BLOB[]) AS bytes)
    WHERE sequence = damaged
"""
"""Restores payloads that are not text."""
_UNREADABLE = "INSERT INTO kept.unreadable SELECT unnest(?::BIGINT[]), unnest(?::VARCHAR[])"

MAX_UNREADABLE_BYTES = 8_192
"""Beginning of a message that is no event, which tables for queries keep; the archive keeps all of it."""

_encoder = msgspec.json.Encoder()


class _Facts:
    """Columns of the events of one type."""

    def __init__(self) -> None:
        self.sequence: list[int] = []
        self.time: list[int] = []
        """Microseconds since 1970."""
        self.fields: list[str] = []
        """JSON of the whole event, with fields at their defaults."""

    def add(self, recorded: RecordedEvent, event: Event) -> None:
        """Add an event."""
        self.sequence.append(recorded.sequence)
        self.time.append(recorded.time_ns // 1000)
        self.fields.append(_encoder.encode(event).decode())


class Loader:
    """Loads batches into a projection's tables; the caller owns the transaction.

    With ``cut``, payloads that no event may have are kept without their ends, by ``MAX_UNREADABLE_BYTES``.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, *, cut: bool = True) -> None:
        self._connection = connection
        self._cut = cut
        self._opening: int | None = None

    def load(self, batch: Sequence[RecordedEvent], dedup: DedupIndex | None, *, small: bool = True) -> None:
        """Load a batch, in order of sequence and not empty; ``small`` is whether to fill the small tables.

        ``dedup`` is advanced; None leaves out the events and all bulky tables.
        """
        statements = [*(BULKY_STATEMENTS if dedup is not None else ()), *(SMALL_STATEMENTS if small else ())]
        types = {name for statement in statements for name in statement.events}
        kinds: list[str | None] = []
        facts: dict[str, _Facts] = defaultdict(_Facts)
        unreadable: dict[int, str | None] = {}
        configurations = []
        # Events are not kept: garbage collection of so many objects would take most of the time.
        for recorded in batch:
            try:
                event = recorded.decode()
            except DecodeError:
                unreadable[recorded.sequence] = kind = _stated_type(recorded.payload)
                kinds.append(kind)
                continue
            kind = type(event).__name__
            kinds.append(kind)
            if kind in types and (dedup is None or dedup.add(event)):
                facts[kind].add(recorded, event)
            if isinstance(event, LeagueOpened | LeagueConfigured):
                configurations.append((recorded, event))
        for kind, columns in facts.items():
            self._insert(vars(columns), f"CREATE OR REPLACE TEMP TABLE {kind} AS {parse_statement(kind)}")
        if dedup is not None:
            self._insert_events(batch, kinds, unreadable.keys())
            if unreadable:
                self._connection.execute(_UNREADABLE, [list(unreadable), list(unreadable.values())])
        for recorded, event in configurations if small else ():
            self._insert_configuration(recorded, event)
        for statement in statements:
            if facts.keys() & statement.events:
                self._connection.execute(statement.sql)

    def _insert_events(
        self, batch: Sequence[RecordedEvent], kinds: Sequence[str | None], unreadable: Collection[int]
    ) -> None:
        """Store events as they were written; ``kinds`` are their types; of ``unreadable`` ones see ``cut``."""
        texts: list[str] = []
        damaged: dict[int, bytes] = {}
        for recorded in batch:
            payload = recorded.payload
            if self._cut and recorded.sequence in unreadable:
                payload = payload[:MAX_UNREADABLE_BYTES]
            try:
                texts.append(payload.decode())
            except UnicodeDecodeError:
                texts.append(payload.decode("utf-8", "replace"))
                damaged[recorded.sequence] = payload
        columns: dict[str, list[Any]] = {
            "sequence": [recorded.sequence for recorded in batch],
            "time_ns": [recorded.time_ns for recorded in batch],
            "type": list(kinds),
            "subject": [recorded.subject for recorded in batch],
            "producer": [recorded.producer for recorded in batch],
            "schema": [recorded.schema for recorded in batch],
            "payload": texts,
            "is_text": [recorded.sequence not in damaged for recorded in batch],
        }
        self._insert(columns, _EVENTS)
        if damaged:
            self._connection.execute(_KEEP_BYTES, [list(damaged), list(damaged.values())])

    def _insert(self, columns: Mapping[str, Sequence[Any]], statement: str) -> None:
        """Run a statement over columns as the table ``incoming``."""
        arrays = {name: np.array(c, type(c[0]) if isinstance(c[0], int) else object) for name, c in columns.items()}
        self._connection.register("incoming", arrays)
        try:
            self._connection.execute(statement)
        finally:
            # After an error, which it would hide, the transaction takes no statement any more.
            with contextlib.suppress(duckdb.TransactionException):
                self._connection.unregister("incoming")

    def _insert_configuration(self, recorded: RecordedEvent, event: LeagueOpened | LeagueConfigured) -> None:
        """Store a configuration that takes effect and that this version can read, like ``LeagueState``."""
        opened = 0 < self._opened_at(recorded.sequence) < recorded.sequence
        # All rows: a result that is not read to its end keeps the connection busy.
        [(since,)] = self._connection.execute("SELECT max(sequence) FROM configurations").fetchall()
        config = ConfigFold(opened=opened, since=since).apply(recorded.sequence, event)
        if config is None:
            return
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


def _stated_type(payload: bytes) -> str | None:
    """Type that an event without a meaning here states; None if it states none."""
    with contextlib.suppress(*DECODE_ERRORS):
        kind = msgspec.json.decode(payload, type=dict[str, Any]).get("type")
        return kind if isinstance(kind, str) else None
    return None
