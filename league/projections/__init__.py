"""The history as DuckDB tables: always disposable, always rebuildable.

- ``tables``      what is stored, and its version
- ``views``       what people ask: views and table macros over it
- ``comments``    a word on each of them
- ``parse``       how DuckDB reads our events
- ``load``        how a batch of events becomes rows; ``statements`` says per type which
- ``marks``       what was seen before, in a bit per match
- ``projection``  one file (or memory) with the position it has reached
- ``segments``    closed history as Parquet files that projections attach
- ``catch_up``    a projection up to the newest event
- ``export``      all tables as Parquet
- ``connect``     opens a DuckDB file, and says in words why it cannot
- ``query``       SQL by people, in a child process (``query_child``) with limits
- ``render``      results as a table, CSV or JSON
"""
