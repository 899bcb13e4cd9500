"""Writes decisions, and the credit that gradient steps gave them, as Parquet segments into the blob store.

Rows are buffered and written beside the work, never awaited by it. A failure loses rows, which a log line states, and
nothing else. A killed worker loses the rows that are not written yet.
"""

import asyncio
import importlib.util
import io
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

from arena.prompts import END_THINK, THINK, mark_thoughts
from models.tokenizer import Tokenizer
from schemas.decisions import CREDIT, DECISIONS, CreditRow, DecisionNote
from schemas.errors import LeagueError
from schemas.events import DecisionsStored
from schemas.jobs import PlayMatch
from schemas.loggers import get_logger
from schemas.trajectories import ModelCall
from workers.runtime import Context

log = get_logger()
T = TypeVar("T")

_MAX_ROWS = 10_000
"""Rows of a segment."""
_MAX_WEIGHT = 2_000_000
"""Tokens of a segment."""
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 20.0, 600.0
_INTERVAL_SHARE = 0.05
"""Share of the process's age after which buffered rows are written: a long run has few segments."""
_PATIENCE_S = 60.0
"""Time for which an unavailable broker is waited for."""
_MAX_BUFFERED = 4
"""Segments' worth of rows that may wait for the broker; further ones are dropped."""


class DecisionRow(NamedTuple):
    """A decision with its tokens, until it is written as text."""

    match: Mapping[str, Any]
    """Columns that all decisions of the seat have in common."""
    call: int
    prompt_ids: "array[int]"
    completion_ids: "array[int]"
    version: int
    clock: int
    logprob: float
    choices: int
    temperature: float
    fault: str
    note: DecisionNote | None


class SegmentWriter(Generic[T]):
    """Buffers rows of one kind and writes them as segments; ``encode`` makes the Parquet file in a thread."""

    def __init__(self, context: Context, kind: str, encode: Callable[[Sequence[T]], bytes]) -> None:
        self._context = context
        self._kind = kind
        self._encode = encode
        self._rows: list[T] = []
        self._weight = 0
        self._started_at = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Task[None] | None = None
        self._dropped = 0
        self.is_enabled = importlib.util.find_spec("pyarrow") is not None
        """Whether rows are written: pyarrow comes with the extras ``train`` and ``arrow``."""
        if not self.is_enabled:
            log.warning("decisions are not kept: pyarrow is not installed", extra="train")

    def add(self, rows: Sequence[T], weight: int = 0) -> None:
        """Buffer rows, which have ``weight`` tokens; they are written later."""
        if not (rows and self.is_enabled):
            return
        if len(self._rows) > _MAX_BUFFERED * _MAX_ROWS or self._weight > _MAX_BUFFERED * _MAX_WEIGHT:
            self._dropped += len(rows)
            return
        self._rows += rows
        self._weight += weight
        if len(self._rows) >= _MAX_ROWS or self._weight >= _MAX_WEIGHT:
            self._start_writing()
        elif self._timer is None:
            age = time.monotonic() - self._started_at
            pause_s = min(max(_INTERVAL_SHARE * age, _MIN_INTERVAL_S), _MAX_INTERVAL_S)
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._start_writing)

    def _start_writing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Write what is buffered."""
        if self._writing is not None:
            await self._writing
        if self._rows:
            self._start_writing()
            assert self._writing is not None
            await self._writing

    async def _write(self) -> None:
        while self._rows:
            rows, self._rows, self._weight = self._rows, [], 0
            try:
                await self._store(rows)
            except LeagueError as error:
                log.error("decisions are lost: they cannot be stored", rows=len(rows), error=str(error))
            except Exception:  # rows for reading only: the worker's own work goes on
                log.exception("decisions are lost: they cannot be written", rows=len(rows))
            if self._dropped:
                log.error("decisions are lost: the store was away for too long", rows=self._dropped)
                self._dropped = 0
            if len(self._rows) < _MAX_ROWS and self._weight < _MAX_WEIGHT:
                break
        if self._rows and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_MIN_INTERVAL_S, self._start_writing)

    async def _store(self, rows: Sequence[T]) -> None:
        context, began = self._context, time.monotonic()
        data = await asyncio.to_thread(self._encode, rows)
        name = await context.persistently(
            lambda: context.blobs.put(data, self._kind), give_up=lambda: time.monotonic() - began > _PATIENCE_S
        )
        await context.append(DecisionsStored(context.name, self._kind, name, len(rows), len(data)))


class DecisionWriter:
    """Writes the decisions of a process's matches."""

    def __init__(self, context: Context, tokenizer: Tokenizer) -> None:
        self._context = context
        self._tokenizer = tokenizer
        self._prompts: dict[tuple[int, ...], array[int]] = {}
        """Prompts that recur are buffered once."""
        self._writer = SegmentWriter(context, DECISIONS, self._encode)

    @property
    def is_enabled(self) -> bool:
        """Whether decisions are written."""
        return self._writer.is_enabled

    def add(
        self, seat_columns: Mapping[str, Any], calls: Sequence[ModelCall], notes: Sequence[DecisionNote | None]
    ) -> None:
        """Buffer the decisions of one seat of a finished match, with the columns that they have in common."""
        rows, weight = [], 0
        for index, (call, note) in enumerate(zip(calls, notes, strict=True)):
            row = DecisionRow(
                match=seat_columns,
                call=index,
                prompt_ids=self._shared_prompt(call.prompt_ids),
                completion_ids=array("i", call.completion_ids),
                version=call.version,
                clock=call.clock,
                logprob=sum(call.logprobs),
                choices=len(call.branches),
                temperature=call.temperature,
                fault=call.fault,
                note=note,
            )
            rows.append(row)
            weight += len(call.prompt_ids) + len(call.completion_ids)
        self._writer.add(rows, weight)

    def _shared_prompt(self, ids: Sequence[int]) -> "array[int]":
        key = tuple(ids)
        if len(self._prompts) >= _MAX_ROWS:
            self._prompts.clear()
        return self._prompts.setdefault(key, array("i", ids))

    async def close(self) -> None:
        """Write what is buffered."""
        await self._writer.close()

    def _encode(self, rows: Sequence[DecisionRow]) -> bytes:
        texts: dict[int, str] = {}
        """Prompts by the identity of their tokens, which the rows keep alive."""
        columns: dict[str, list[Any]] = {name: [] for name in decision_schema().names}
        for row in rows:
            prompt = texts.get(id(row.prompt_ids))
            if prompt is None:
                prompt = texts[id(row.prompt_ids)] = self._tokenizer.decode(row.prompt_ids)
            thoughts, reply = split_thoughts(self._text(row.completion_ids), prompt.rstrip().endswith(THINK))
            note = row.note
            values = {
                **row.match,
                "call": row.call,
                "version": row.version,
                "clock": row.clock,
                "prompt": prompt,
                "thoughts": thoughts,
                "reply": reply,
                "second_reply": self._text(note.second_ids) if note is not None else "",
                "move": note.move if note is not None else None,
                "fault": row.fault,
                "legal_moves": note.legal if note is not None else None,
                "logprob": row.logprob,
                "choices": row.choices,
                "temperature": row.temperature,
            }
            for name, column in columns.items():
                column.append(values[name])
        return write_parquet(columns, decision_schema())

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode([token for token in ids if token not in self._tokenizer.ends]) if ids else ""


class CreditWriter:
    """Writes the credit of a trainer's steps."""

    def __init__(self, context: Context) -> None:
        self._writer: SegmentWriter[CreditRow] = SegmentWriter(context, CREDIT, encode_credit)

    @property
    def is_enabled(self) -> bool:
        """Whether credit is written."""
        return self._writer.is_enabled

    def add(self, rows: Sequence[CreditRow]) -> None:
        """Buffer rows of a recorded step."""
        self._writer.add(rows)

    async def close(self) -> None:
        """Write what is buffered."""
        await self._writer.close()


def split_thoughts(text: str, begun: bool = False) -> tuple[str, str]:
    """The thoughts before the last end-of-thought mark, without marks, and the answer after it.

    ``begun`` is whether the prompt has opened a thought, so that a reply without that mark is nothing else.
    """
    text = mark_thoughts(text)
    thoughts, mark, answer = text.rpartition(END_THINK)
    if begun and not mark:
        return text.strip(), ""
    if not mark:
        return ("", text) if THINK not in text else (text.partition(THINK)[2].strip(), "")
    return thoughts.strip().removeprefix(THINK).strip(), answer.strip()


def seat_columns(
    job: PlayMatch,
    seat: int,
    worker: str,
    policy: str,
    opponents: Sequence[str],
    ratings: Sequence[float | None],
    score: float,
    rank: int,
) -> dict[str, Any]:
    """The columns that all decisions of a seat have in common."""
    return {
        "match_id": job.match_id,
        "purpose": job.purpose,
        "time": time.time_ns() // 1000,
        "worker": worker,
        "seat": seat,
        "agent": job.seats[seat],
        "policy": policy,
        "opponents": list(opponents),
        "ratings": list(ratings),
        "score": score,
        "rank": rank,
    }


@lru_cache(maxsize=1)
def decision_schema() -> Any:
    """Arrow schema of a segment of decisions: the columns of ``kept.decisions`` in ``schema.sql``."""
    import pyarrow as pa  # slow to import, and an extra

    texts = pa.list_(pa.string())
    return pa.schema(
        {
            "match_id": pa.string(),
            "purpose": pa.string(),
            "time": pa.timestamp("us"),
            "worker": pa.string(),
            "seat": pa.int64(),
            "agent": pa.string(),
            "policy": pa.string(),
            "call": pa.int64(),
            "version": pa.int64(),
            "clock": pa.int64(),
            "prompt": pa.string(),
            "thoughts": pa.string(),
            "reply": pa.string(),
            "second_reply": pa.string(),
            "move": pa.string(),
            "fault": pa.string(),
            "legal_moves": texts,
            "logprob": pa.float64(),
            "choices": pa.int64(),
            "temperature": pa.float64(),
            "opponents": texts,
            "ratings": pa.list_(pa.float64()),
            "score": pa.float64(),
            "rank": pa.int64(),
        }
    )


def encode_credit(rows: Sequence[CreditRow]) -> bytes:
    """Credit rows as a Parquet file."""
    import pyarrow as pa  # slow to import, and an extra

    schema = pa.schema(
        {
            "match_id": pa.string(),
            "seat": pa.int64(),
            "call": pa.int64(),
            "policy": pa.string(),
            "step": pa.int64(),
            "outcome": pa.string(),
            "reward": pa.float64(),
            "advantage": pa.float64(),
        }
    )
    return write_parquet({name: [getattr(row, name) for row in rows] for name in schema.names}, schema)


def write_parquet(columns: Mapping[str, Sequence[Any]], schema: Any) -> bytes:
    """Columns as a zstd Parquet file, in which texts that repeat are written once."""
    import pyarrow as pa  # slow to import, and an extra
    import pyarrow.parquet as pq

    file = io.BytesIO()
    pq.write_table(pa.table(dict(columns), schema=schema), file, compression="zstd")
    return file.getvalue()
