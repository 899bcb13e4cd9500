"""What a valid configuration comes to: the learner, who is played first, and settings that hardly learn together."""

from contextlib import suppress
from random import Random
from typing import Any, cast

from arena.environments import ArenaSpec, make_environment
from arena.games import make_game
from arena.games.third_party import LetteredGame
from league.matchmaking.roles import sampler_of
from league.samplers import agent_probabilities, make_sampler
from lifecycle.config_checks import opening_standings
from schemas.config import LeagueConfig
from schemas.errors import GameError
from schemas.ids import agent_name
from trainer.advantages.base import ADVANTAGES
from trainer.advantages.total_reward import GroupRelative, LeaveOneOut
from trainer.learner_config import PRETRAINED_DEFAULTS, resolve_learner

_TRIED_GAMES = 3


def config_notes(config: LeagueConfig) -> list[str]:
    """Remarks on settings that hardly learn together, for people."""
    return [*_note_groups(config), *_note_forfeits(config)]


def describe_opponents(config: LeagueConfig) -> list[str]:
    """The training opponents at the opening with their shares, one text per policy; empty for games of one seat."""
    contest = make_environment(config.game.name, config.game.settings)
    if isinstance(contest, ArenaSpec) or len(contest.seats) == 1:
        return []
    standings = opening_standings(config)
    texts = []
    for policy in config.trained_policies:
        shares = agent_probabilities(make_sampler(sampler_of(config, policy)).distribution(standings, policy))
        drawn = sorted((-share, "itself" if name == agent_name(policy, 0) else name) for name, share in shares.items())
        texts.append(
            f"{policy} begins against " + ", ".join(f"{name} ({-share:.0%})" for share, name in drawn if share)
        )
    return texts


def describe_learner(config: LeagueConfig) -> str:
    """Rate, passes and updates, and the kind of model that they are the defaults of."""
    learner = resolve_learner(config)
    kind = "made" if config.model.base == "made" else "pretrained"
    epochs = "1 epoch" if learner.epochs == 1 else f"{learner.epochs} epochs"
    is_whole = learner.minibatch_sequences >= PRETRAINED_DEFAULTS["minibatch_sequences"]
    updates = "one update per epoch" if is_whole else f"about {learner.minibatch_sequences:,} sequences per update"
    given = ", ".join(sorted(config.trainer.learner))
    return f"learning rate {learner.learning_rate:g}, {epochs}, {updates}: {kind} model" + (
        f"; set in trainer.learner: {given}" if given else ""
    )


def _note_groups(config: LeagueConfig) -> list[str]:
    """The remark that group-relative advantages compare matches of one line-up, but that each match draws its own."""
    advantage, contest = (
        ADVANTAGES.build(config.trainer.advantage),
        make_environment(config.game.name, config.game.settings),
    )
    is_grouped = isinstance(advantage, GroupRelative | LeaveOneOut) and "group" in advantage.by
    if not is_grouped or isinstance(contest, ArenaSpec) or config.rollout.group_size > 1 or len(contest.seats) == 1:
        return []
    return [
        f"trainer.advantage {config.trainer.advantage.name!r} compares matches of one line-up, but every match draws "
        "its own opponents, so that most advantages are 0; set rollout.group_size (8, for example), or "
        'trainer.advantage.settings.by = ["role"]'
    ]


def _note_forfeits(config: LeagueConfig) -> list[str]:
    """The remark that random play forfeits: an environment that judges text may show no move that it accepts."""
    if config.game.name != "textarena":
        return []
    ends: dict[str, set[str]] = {}
    for seed in range(_TRIED_GAMES):
        game = cast("LetteredGame[Any]", make_game(config.game.name, config.game.settings).new(seed))
        rng = Random(seed)
        with suppress(GameError):
            while moving := game.to_move():
                game.apply({seat: game.random_action(seat, rng) for seat in moving})
        ends.setdefault(game.label, set()).add(game.reason() if not game.to_move() else "")
    return [
        f"game: random_bot forfeits every game of {name}, whose moves cannot be listed: games won against it show "
        "nothing, and model.cloning would imitate it; name other baselines and benchmark_opponents"
        for name, reasons in ends.items()
        if reasons == {"invalid_move"}
    ]
