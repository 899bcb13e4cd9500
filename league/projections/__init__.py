"""Projections of the history into DuckDB tables: always disposable, always rebuildable.

- ``schema.sql``   the tables, and the macros and views that people query, with their comments
- ``analysis.sql`` macros and views for payoffs, ratings over time and benchmarks
- ``tables``       reads the schema, with its version; opens a projection's file
- ``load``         turns a batch of events into rows
- ``statements``   SQL per event type: its parsing and its rows
- ``dedup_index``  matches that were recorded before
- ``projection``   one file, or memory, with its position; ``catch_up`` brings it to the newest event
- ``segments``     closed history as Parquet files that projections attach; ``decision_files`` those of decisions
- ``export``       all tables as Parquet, and copies of a projection's file
- ``query``        SQL by people in a child process (``query_child``) with limits, whose only files are ``table_files``
"""
