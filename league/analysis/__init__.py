"""Statistics over a whole history of matches, for people: no decision of a worker depends on them.

- ``bradley_terry``  maximum-likelihood strengths with intervals, from the results of matches
- ``leaderboard``    the one leaderboard: these strengths beside the recorded ratings, by SQL

Shares of points between agents are SQL: ``payoff_at`` in ``league/projections/analysis.sql``.
"""
