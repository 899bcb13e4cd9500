"""What is remembered, and who plays whom.

- ``log/``          the history: append, read, follow
- ``artifacts/``    adapters, models, game records, snapshots and archives by SHA-256
- ``seals``         closed ranges of the history, chained; ``verifying`` checks them, ``audit`` everything
- ``archive``       closed history as Parquet files; ``garbage`` says which files nothing refers to
- ``snapshots``     saved folds for workers to begin with
- ``state``         the fold that workers decide from: agents, ratings, policies, evaluations
- ``ratings/``      rating systems, one file each, and the fold over match results
- ``samplers/``     opponent samplers, one file each
- ``matchmaker``    makes training matches, and explains recorded ones
- ``explaining``    why a match was what it was
- ``schedule``      which versions join the league and which retire
- ``evaluations``   what is measured, against whom, and when training may stop
- ``projections/``  the history as DuckDB tables, for SQL
- ``replay``        refolds history and compares it with what was recorded
- ``branch``        a league that begins as a copy of another; ``compare`` sets two side by side
- ``importing``     another program's registry as events
- ``analytics``     shares, intervals and other figures for people; ``plots`` draws them
- ``plugins``       registries that find their plugins by themselves
"""
