"""Rating systems, and the fold of match results into ratings.

- ``base``       the protocol and registry of rating systems, and the ratings of one game under one system
- ``elo``        pairwise Elo for any number of seats
- ``trueskill``  Gaussian skills, by message passing along the ranking of a match
- ``openskill``  Gaussian skills under the Plackett-Luce model
- ``skills``     parts that the last two share
- ``fold``       the rated matches, and their effect on the tables of every configured system

A new system is one file here: a class with its settings, ``start``, ``inherit`` and ``update``, and
``@SYSTEMS.register("name")``.
"""
