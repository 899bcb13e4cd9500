"""The history as DuckDB tables: always disposable, always rebuildable.

- ``tables``      what the tables and views are, and their version
- ``load``        how a batch of events becomes rows
- ``projection``  one file (or memory) with the position it has reached
- ``connect``     opens a DuckDB file, and says in words why it cannot
- ``query``       SQL by people, in a child process (``query_child``) with limits
- ``render``      results as a table, CSV or JSON
"""
