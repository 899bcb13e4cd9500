"""Remarks on a valid configuration: defaults that follow from the model, and settings that hardly learn together."""

from arena.environments import ArenaSpec, make_environment
from schemas.config import LeagueConfig
from trainer.advantages.base import ADVANTAGES
from trainer.advantages.total_reward import GroupRelative, LeaveOneOut
from trainer.learner_config import PRETRAINED_DEFAULTS, resolve_learner


def config_notes(config: LeagueConfig) -> list[str]:
    """One text per remark, for people."""
    return [_describe_learner(config), *_note_groups(config)]


def _describe_learner(config: LeagueConfig) -> str:
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
