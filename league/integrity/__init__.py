"""Integrity of the history: archive, verification, recovery, snapshots and garbage collection.

- ``archive``     the history as Parquet files in the blob store, sealed by the digests in its manifest
- ``verify``      checks the stream against the archive; ``blob_scrub`` checks the blobs that events refer to
- ``recovery``    a history from its archive and what is left of the stream
- ``snapshots``   saved folds for workers to start from
- ``garbage``     unreferenced blobs; ``decision_segments`` beyond the limits of ``history.decisions``
"""
