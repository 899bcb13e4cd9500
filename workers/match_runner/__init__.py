"""Runs the matches of a league.

- ``runner``            the course of every match: seat the players, play, append the result
- ``completed``         a match that has ended with a result
- ``games``             games between agents
- ``episodes``          an arena's episodes, in which agents play the roles by their inference clients
- ``episode_requests``  the order of episodes, and their groups
- ``ngrams``            counts of n-grams of actions, by which the variety of play is measured
"""
