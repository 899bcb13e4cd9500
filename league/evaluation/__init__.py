"""What is measured, and what follows from it: pure functions of the state.

- ``planning``      which matches are to be played, against whom, on which luck; when training may stop
- ``promotion``     who becomes elite, and who fell below a baseline
- ``sprt``          the sequential test that a promotion takes
- ``certificates``  computes a recorded verdict again, from the matches it names
- ``outlook``       what is due and why, for people
"""
