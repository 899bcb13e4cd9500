"""Matches of people against agents, for the terminal and the browser.

- ``human_match``  one match, from the first question to its recorded result, and the lobby: all of one process
- ``opponents``    runners of such matches: for games, and for environments
- ``terminal``     playing in a terminal or from a script
"""
