"""Rating systems, and the fold of match results into ratings.

- ``base``            the protocol of a rating system, the effect of a single match, the registry of systems, and the
                      ratings of one game under one system, with those of unrated agents
- ``elo``             pairwise Elo for any number of seats
- ``trueskill``       Gaussian skills, by message passing along the ranking of a match
- ``openskill``       Gaussian skills under the Plackett-Luce model
- ``glicko2``         rating, deviation and volatility; every match is a rating period
- ``fold``            the selection of rated matches, and their effect on the tables of every configured system
- ``arrays``          the same fold over millions of matches, bit for bit; ``compiled`` compiles its loop
- ``rating_history``  the same fold with intermediate states, and over resampled histories for intervals
- ``load``            the arrays, from a projection's tables or from events

A new system is one file here: a struct of its settings with ``start``, ``inheritance`` and ``constants``, the one
function ``update``, and ``@SYSTEMS.register("name")``.
"""
