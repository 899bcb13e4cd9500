"""What ``league config check`` says: the learner by kind of model, who is played, advantages that compare nothing."""

from pathlib import Path
from typing import Any

import pytest

from lifecycle.config_checks import check_config
from lifecycle.config_notes import config_notes, describe_learner, describe_opponents
from schemas.config import LeagueConfig, convert, load_config
from schemas.errors import ConfigError
from trainer.learner_config import LearnerConfig, resolve_learner

CONFIGS = Path(__file__).parents[3] / "configs"
GROUPED = {"advantage": {"name": "group_relative"}}


def config(**tables: object) -> LeagueConfig:
    return convert(tables, LeagueConfig, "")


def test_a_made_model_has_the_defaults_of_the_settings() -> None:
    assert resolve_learner(config()) == LearnerConfig()
    assert describe_learner(config()) == "learning rate 0.003, 2 epochs, about 200 sequences per update: made model"
    assert config_notes(config()) == []


def test_a_pretrained_model_learns_slowly_and_once_per_step() -> None:
    pretrained = config(model={"base": "smollm2-135m-instruct"})
    learner = resolve_learner(pretrained)
    assert (learner.learning_rate, learner.epochs) == (1e-4, 1)
    assert describe_learner(pretrained) == "learning rate 0.0001, 1 epoch, one update per epoch: pretrained model"


def test_what_is_set_wins_over_the_defaults_of_the_kind() -> None:
    given = config(
        model={"base": "some/model"}, trainer={"learner": {"learning_rate": 5e-4, "minibatch_sequences": 64}}
    )
    learner = resolve_learner(given)
    assert (learner.learning_rate, learner.epochs, learner.minibatch_sequences) == (5e-4, 1, 64)
    assert describe_learner(given).endswith("; set in trainer.learner: learning_rate, minibatch_sequences")


@pytest.mark.parametrize("name", ["group_relative", "leave_one_out"])
def test_groups_of_one_line_up_are_named_where_every_match_draws_its_own(name: str) -> None:
    advantage = {"advantage": {"name": name}}
    notes = config_notes(config(trainer=advantage))
    assert "rollout.group_size" in notes[0]
    assert name in notes[0]
    assert not config_notes(config(trainer=advantage, rollout={"group_size": 8}))
    by_role = {"advantage": {"name": name, "settings": {"by": ["role"]}}}
    assert not config_notes(config(trainer=by_role))


def test_who_is_played_at_first_is_named_a_bot_that_was_meant_for_evaluation_too() -> None:
    shares = {"mirror": 0.4, "peers": 0.6, "exploitable": 0.0, "baselines": 0.0}
    settings: dict[str, Any] = shares | {"peer_range": 2000.0, "baseline_weights": {"base_model": 0.0}}
    sampler = {"name": "pfsp", "settings": settings}
    base = {"kind": "base", "baseline": True}

    def begins(**equilibrium: object) -> list[str]:
        agents = {"base_model": base, "kuhn_equilibrium": {"kind": "bot", **equilibrium}}
        return describe_opponents(config(game={"name": "kuhn_poker"}, agents=agents, matchmaking={"sampler": sampler}))

    assert begins() == ["main begins against kuhn_equilibrium (60%), itself (40%)"]
    settings["baseline_weights"]["kuhn_equilibrium"] = 0.0
    assert begins(baseline=True) == ["main begins against itself (100%)"]


@pytest.mark.parametrize("name", ["smollm2-kuhn", "smollm2-nim", "smollm2-tic-tac-toe", "tic-tac-toe"])
def test_configured_leagues_of_self_play_meet_no_bot(name: str) -> None:
    self_play = load_config(CONFIGS / f"{name}.toml")
    assert describe_opponents(self_play) == ["main begins against itself (100%)"]


def test_a_group_larger_than_a_step_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.group_size: 80; expected at most trainer\.rollouts_per_step"):
        check_config(config(trainer=GROUPED, rollout={"group_size": 80}))


def test_groups_are_refused_where_batches_divide_them() -> None:
    buffer = {"level": "step", "steps_per_batch": 16}
    with pytest.raises(ConfigError, match=r"rollout\.group_size: 8, but batches of trainer\.buffer\.level 'step'"):
        check_config(config(trainer={"buffer": buffer}, rollout={"group_size": 8}))


def test_an_environment_whose_moves_cannot_be_listed_is_named() -> None:
    pytest.importorskip("textarena")
    notes = config_notes(
        config(game={"name": "textarena", "settings": {"env": ["Cryptarithm-v0-train", "Chopsticks-v0-train"]}})
    )
    (note,) = [note for note in notes if "forfeits" in note]
    assert "every game of Cryptarithm-v0-train, whose moves cannot be listed" in note
