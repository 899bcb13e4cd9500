"""Matchmaking: pure functions of (standings, configuration, random draw).

- ``matchmaker``   makes training matches
- ``roles``        opponents by policy role, and resets of exploiters
- ``schedule``     admission and retirement of versions, the end of training; the agents at the league's opening
- ``pool``         the active pool, the limit of distinct adapters per match, and pauses of remote agents over budget
- ``sessions``     virtual models of the opponent pool: draws and results of matches that are played elsewhere
- ``audit``        recomputes recorded draws and evaluation matches, and compares realised with target shares
"""
