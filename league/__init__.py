"""What is remembered, and who plays whom.

- ``log/``          the history: append, read, follow
- ``artifacts/``    adapters, models, game records, snapshots and archives by SHA-256
- ``custody/``      seals, archive and snapshots of closed history, and what checks them
- ``state``         the fold that workers decide from: agents, ratings, policies, evaluations; ``rows``, ``records`` and
                    ``persistent`` keep its standings up to date without copying them
- ``ratings/``      rating systems, one file each, and the fold over match results
- ``samplers/``     opponent samplers, one file each
- ``roles``         whom a policy plays in its role, and when an exploiter begins anew
- ``matchmaker``    makes training matches; ``explaining`` accounts for recorded ones, ``auditing`` for their shares
- ``schedule``      which versions join the league and which retire; ``pool`` says who of them is active at a time, and
                    ``slots`` how many of those a match may seat
- ``promotion``     who becomes elite, by a sequential test (``sprt``), and who fell below a baseline; ``certificates``
                    computes a test's verdict again, ``outlook`` tells people what is due and why
- ``evaluations``   what is measured, against whom, and when training may stop
- ``projections/``  the history as DuckDB tables, for SQL
- ``replay``        refolds history and compares it with what was recorded; ``counterfactual`` under other rules
- ``corrections``   what ratings owe the history after a match was voided
- ``lineage``       from a weight back to the matches that shaped it
- ``branch``        a league that begins as a copy of another; ``compare`` sets two side by side
- ``importing``     another program's registry as events
- ``boards/``       statistics over a whole history: maximum likelihood, payoffs, cycles
- ``leaderboard``   ratings under any system or board, with intervals; ``roster`` is what it is made of
- ``analytics``     shares, intervals and other figures for people; ``plots`` draws them
"""
