"""Integrity of the history: sealing, verification, archiving, recovery and garbage collection.

- ``seals``         events that close ranges of the history, chained by digests
- ``verification``  checks events against seals; ``audit`` checks everything, the archive included
- ``references``    checks that events refer only to what the history held before them
- ``blob_scrub``    checks that the blobs are there that events refer to
- ``archive``       sealed history as Parquet files in the blob store; ``recovery`` restores a history from it
- ``snapshots``     saved folds for workers to start from
- ``garbage``       unreferenced blobs
"""
