"""Looks at a whole configuration before anything is started: every plugin's own settings included."""

from arena.games import make_game
from league.ratings.base import make_rating_system
from league.samplers.base import make_sampler
from schemas.config import LeagueConfig, convert
from schemas.errors import ConfigError, one_of
from schemas.standings import Agent, Live, Standings
from trainer.advantages.base import ADVANTAGES
from trainer.learner import LearnerConfig
from trainer.losses.base import LOSSES
from trainer.model import BaseShape
from trainer.model.cloning import CloningConfig
from trainer.rewards.base import REWARDS
from workers.inference import backend_names


def check_config(config: LeagueConfig) -> None:
    """Build every plugin once.

    Raises:
        ConfigError: a plugin's name or setting, or an agent that nobody can play; the message names the key.
    """
    game = make_game(config.game.name, config.game.settings)
    for plugin in config.ratings.systems:
        make_rating_system(plugin)
    # Drawing from the league as it opens shows whether the settings name agents that there are.
    make_sampler(config.matchmaking.sampler).distribution(_opening(config), config.trainer.policy)
    REWARDS.build(config.trainer.reward)
    ADVANTAGES.build(config.trainer.advantage)
    LOSSES.build(config.trainer.loss)
    convert(config.trainer.learner, LearnerConfig, "trainer.learner")
    convert(config.model.shape, BaseShape, "model.shape")
    convert(config.model.cloning, CloningConfig, "model.cloning")
    if config.inference.backend not in backend_names():
        raise ConfigError(f"inference.backend: {config.inference.backend!r}; expected {one_of(backend_names())}")
    for name, agent in config.agents.items():
        if agent.kind == "bot" and name not in game.bots:
            raise ConfigError(f"agents.{name}: {config.game.name} has no such bot; expected {one_of(game.bots)}")
    if config.model.clone_bot not in game.bots:
        raise ConfigError(f"model.clone_bot: {config.model.clone_bot!r}; expected {one_of(game.bots)}")
    for key, names in {
        "evaluation.gatekeepers": set(config.evaluation.gatekeepers) - {"previous_best", "recent"},
        "evaluation.benchmark_opponents": set(config.evaluation.benchmark_opponents),
    }.items():
        for unknown in sorted(names - set(config.agents)):
            raise ConfigError(f"{key}: {unknown!r} is no agent of this league; expected {one_of(config.agents)}")


def _opening(config: LeagueConfig) -> Standings:
    """The standings before the first match."""
    agents = {name: Agent(name, a.kind, a.rating, 0, baseline=a.baseline) for name, a in config.agents.items()}
    return Standings(0, agents, {config.trainer.policy: Live(config.trainer.policy, 0, None, 0.0)}, {})
