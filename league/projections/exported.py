"""Events as ``league export`` and ``league events --json`` wrote them: raw, so that they can be checked elsewhere."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import msgspec

from league.log.base import Recorded
from league.projections.segments import BATCH, in_batches
from league.projections.views import quoted
from schemas.errors import UsageError


class _Line(msgspec.Struct):
    """Of ``league events --json``."""

    sequence: int
    subject: str
    producer: str
    event: msgspec.Raw


def exported(path: Path) -> Iterator[list[Recorded]]:
    """The events of an export, in order, some thousand at a time.

    Args:
        path: A folder that ``league export`` wrote, or a file of lines that ``league events --json`` printed. Neither
            says a schema version, so it is today's.

    Raises:
        UsageError: it is neither.
    """
    return _tables(path) if path.is_dir() else in_batches(_lines(path), BATCH)


def _tables(folder: Path) -> Iterator[list[Recorded]]:
    files = quoted(str(folder / "events" / "**" / "*.parquet"))
    try:
        with duckdb.connect(":memory:") as connection:
            source = f"read_parquet({files}, hive_partitioning = false)"
            found = connection.execute(f"SELECT sequence, subject, producer, payload FROM {source} ORDER BY sequence")
            while rows := found.fetchmany(BATCH):
                yield [_event(*row) for row in rows]
    except duckdb.Error as error:
        raise UsageError(f"{folder}: no events here; expected a folder that `league export` wrote ({error})") from None


def _event(sequence: int, subject: str, producer: str, payload: str) -> Recorded:
    return Recorded(sequence, 0, subject, producer, payload.encode())


def _lines(path: Path) -> Iterator[Recorded]:
    decoder = msgspec.json.Decoder(_Line)
    try:
        with path.open("rb") as file:
            for line in file:
                found = decoder.decode(line)
                yield Recorded(found.sequence, 0, found.subject, found.producer, bytes(found.event))
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: expected lines that `league events --json` printed ({error})") from None
