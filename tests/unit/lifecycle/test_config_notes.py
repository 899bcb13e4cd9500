"""Remarks of ``league config check``: defaults by the kind of model, and advantages that compare nothing."""

import pytest

from lifecycle.config_checks import check_config
from lifecycle.config_notes import config_notes
from schemas.config import LeagueConfig, convert
from schemas.errors import ConfigError
from trainer.learner_config import LearnerConfig, resolve_learner

GROUPED = {"advantage": {"name": "group_relative"}}


def config(**tables: object) -> LeagueConfig:
    return convert(tables, LeagueConfig, "")


def test_a_made_model_has_the_defaults_of_the_settings() -> None:
    assert resolve_learner(config()) == LearnerConfig()
    assert config_notes(config()) == ["learning rate 0.003, 2 epochs, about 200 sequences per update: made model"]


def test_a_pretrained_model_learns_slowly_and_once_per_step() -> None:
    pretrained = config(model={"base": "smollm2-135m-instruct"})
    learner = resolve_learner(pretrained)
    assert (learner.learning_rate, learner.epochs) == (1e-4, 1)
    assert config_notes(pretrained) == ["learning rate 0.0001, 1 epoch, one update per epoch: pretrained model"]


def test_what_is_set_wins_over_the_defaults_of_the_kind() -> None:
    given = config(
        model={"base": "some/model"}, trainer={"learner": {"learning_rate": 5e-4, "minibatch_sequences": 64}}
    )
    learner = resolve_learner(given)
    assert (learner.learning_rate, learner.epochs, learner.minibatch_sequences) == (5e-4, 1, 64)
    (note,) = config_notes(given)
    assert note.endswith("; set in trainer.learner: learning_rate, minibatch_sequences")


@pytest.mark.parametrize("name", ["group_relative", "leave_one_out"])
def test_groups_of_one_line_up_are_named_where_every_match_draws_its_own(name: str) -> None:
    advantage = {"advantage": {"name": name}}
    notes = config_notes(config(trainer=advantage))
    assert "rollout.group_size" in notes[1]
    assert name in notes[1]
    assert len(config_notes(config(trainer=advantage, rollout={"group_size": 8}))) == 1
    by_role = {"advantage": {"name": name, "settings": {"by": ["role"]}}}
    assert len(config_notes(config(trainer=by_role))) == 1


def test_a_group_larger_than_a_step_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.group_size: 80; expected at most trainer\.rollouts_per_step"):
        check_config(config(trainer=GROUPED, rollout={"group_size": 80}))


def test_an_environment_whose_moves_cannot_be_listed_is_named() -> None:
    pytest.importorskip("textarena")
    notes = config_notes(
        config(game={"name": "textarena", "settings": {"env": ["Cryptarithm-v0-train", "Chopsticks-v0-train"]}})
    )
    (note,) = [note for note in notes if "forfeits" in note]
    assert "every game of Cryptarithm-v0-train, whose moves cannot be listed" in note
