"""Protocols of play: how roles interact, when an episode ends, and the facts for its rubric.

- ``base``  ``Episode``: runs, records and scores; failures become recorded ones
- ``chat``  roles that take turns in a conversation, with private observations
- ``game``  any game, each seat a role or a bot

To add an episode: a class in one file with its ``episode_type``, its ``rubric``, and ``rollout`` or the hooks of a
class here.
"""

from arena.episodes.base import Episode
from arena.episodes.chat import AlternatingRolesEpisode, ChatEpisode, MultiTurnEpisode, SingleTurnEpisode
from arena.episodes.game import GameEpisode

__all__ = ["AlternatingRolesEpisode", "ChatEpisode", "Episode", "GameEpisode", "MultiTurnEpisode", "SingleTurnEpisode"]
