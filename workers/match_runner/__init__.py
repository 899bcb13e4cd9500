"""Runs the matches of a league.

- ``runner``            the course of every match: seat the players, play, append the result
- ``games``             games between agents
- ``episodes``          an arena's episodes, in which agents play the roles by their inference clients
- ``episode_requests``  the order of episodes, and their groups
- ``ngrams``            counts of n-grams of actions, by which the variety of play is measured
"""

from arena.environments import ArenaSpec, EnvironmentSpec
from players.remote.remote_player import RemoteAgents
from workers.match_runner.episodes import EpisodeRunner
from workers.match_runner.games import GameRunner
from workers.match_runner.runner import MatchRunner, MatchRunnerFactory
from workers.policy_weights import ModelManager
from workers.runtime import Context


def between_agents(context: Context, models: ModelManager) -> MatchRunnerFactory:
    """Make a factory of match runners without human players."""

    def make_runner(environment: EnvironmentSpec, remotes: RemoteAgents) -> MatchRunner:
        if isinstance(environment, ArenaSpec):
            return EpisodeRunner(context, models, environment, remotes)
        return GameRunner(context, models, environment, remotes)

    return make_runner
