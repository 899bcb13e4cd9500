"""Protocols of play: how roles interact, when it ends, what the rubric gets to see.

- ``base``     ``Episode``: run, record, score; what fails becomes a recorded failure
- ``running``  where in the tree of episodes a piece of code is at
- ``chat``     roles that take turns in a conversation, with what only one of them sees
- ``game``     any game, each seat a role or a bot

A new episode is a class in one file: what it is called, its rubric, and ``rollout`` or the hooks of a class here.
"""

from arena.episodes.base import Episode
from arena.episodes.chat import AlternatingRolesEpisode, ChatEpisode, MultiTurnEpisode, SingleTurnEpisode
from arena.episodes.game import GameEpisode

__all__ = [
    "AlternatingRolesEpisode",
    "ChatEpisode",
    "Episode",
    "GameEpisode",
    "MultiTurnEpisode",
    "SingleTurnEpisode",
]
