"""Evaluations and the decisions that follow from them: pure functions of the state.

- ``plan``          matches to play, with opponents and seeds
- ``promotion``     promotions of candidates to elite, by a sequential test; and regressions below a baseline
- ``benchmarks``    benchmarks on request: an agent against one opponent in all other seats
- ``certificates``  recomputes a recorded verdict from the matches that it names
- ``outlook``       pending decisions with reasons, for display
"""
