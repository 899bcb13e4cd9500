"""Evaluations and the decisions that follow from them: pure functions of the state.

- ``plan``          matches to play, with opponents and seeds
- ``promotion``     promotions of candidates to elite, by high score or a sequential test
- ``benchmarks``    benchmarks on request: an agent against one opponent in all other seats
"""
