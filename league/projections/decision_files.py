"""Segments of decisions beside a projection: the views of ``decisions`` read their Parquet files in place."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from league.blobs import CachedBlobStore
from league.projections.projection import Projection
from league.projections.tables import decision_view_statements
from schemas.errors import ArtifactError
from schemas.loggers import get_logger

log = get_logger()


class _AttachedFile(NamedTuple):
    kind: str
    artifact: str
    path: str
    """Name in the tables (``Projection.file_name``)."""
    size: int

    def is_at(self, path: Path) -> bool:
        """Whether it is there and whole."""
        return path.exists() and path.stat().st_size == self.size


async def attach_decisions(projection: Projection, blobs: CachedBlobStore) -> bool:
    """Have ``decisions`` read all segments that the tables know of; returns whether these are others than before.

    Missing ones are fetched into the cache. A segment that the store has lost is left out, with a warning.
    """
    held = [
        _AttachedFile(*row) for row in projection.query("SELECT kind, artifact, path, size FROM kept.decision_files")
    ]
    known = {file.artifact: file for file in held if file.is_at(projection.file_path(file.path))}
    stored = projection.query(
        "SELECT kind, artifact FROM decision_segments WHERE dropped_sequence IS NULL ORDER BY sequence, artifact"
    )
    files = []
    for kind, artifact in stored:
        if artifact not in known:
            try:
                path = await blobs.fetch(artifact)
            except ArtifactError as error:
                log.warning("a segment of decisions is left out", error=str(error))
                continue
            known[artifact] = _AttachedFile(kind, artifact, projection.file_name(path), path.stat().st_size)
        files.append(known[artifact])
    if files != held:
        _replace_files(projection, files)
    return files != held


def _replace_files(projection: Projection, files: Sequence[_AttachedFile]) -> None:
    connection = projection.connection
    connection.begin()
    try:
        connection.execute("DELETE FROM kept.decision_files")
        if files:
            connection.executemany("INSERT INTO kept.decision_files VALUES (?, ?, ?, ?)", files)
        paths = {kind: [file.path for file in files if file.kind == kind] for kind in {file.kind for file in files}}
        for statement in decision_view_statements(paths):
            connection.execute(statement)
        connection.commit()
    except BaseException:  # raised again; an open transaction would take no other statement
        connection.rollback()
        raise
