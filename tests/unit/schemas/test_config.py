"""Every configuration that ships is one; what is wrong is said where it is."""

from pathlib import Path
from typing import Any

import pytest

from arena.environments import make_environment
from lifecycle.config_checks import check_config
from lifecycle.reconfigure import with_settings
from schemas.config import LeagueConfig, Plugin, convert, load_config, to_builtins
from schemas.errors import ConfigError

CONFIGS = sorted((Path(__file__).parents[3] / "configs").rglob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configurations_are_whole(path):
    config = load_config(path)
    check_config(config)
    assert convert(to_builtins(config), LeagueConfig, "") == config


def test_defaults_are_the_specifications():
    config = LeagueConfig()
    assert {name: agent.rating for name, agent in config.agents.items()} == {
        "base_model": 1000.0,
        "random_bot": 800.0,
        "chaos_bot": 900.0,
    }
    assert (config.schedule.recent_every, config.schedule.recent_window, config.schedule.landmark_every) == (
        10,
        100,
        100,
    )
    assert config.evaluation.every == 50
    assert config.ratings.purposes == ("evaluation",)
    assert config.base_agent == "base_model"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"agents": {}}, "expected exactly one of kind 'base'"),
        (
            {"agents": {"x": {"kind": "human", "rating": 1}}},
            "agents.x.kind: 'human'; expected 'base', 'bot', 'remote' or 'search'",
        ),
        ({"name": "a b"}, "cannot be a name"),
        ({"stop": {"criterion": {"opponent": "random_bot"}}}, "stop.criterion"),
        ({"inference": {"temperature": 0}}, "inference.temperature: 0"),
        ({"inference": {"top_p": 0}}, "inference.top_p: 0.*expected more than 0 and at most 1"),
        ({"inference": {"top_p": 1.5}}, "inference.top_p: 1.5"),
        ({"inference": {"max_lora_rank": 8}}, "inference.max_lora_rank: 8; expected at least model.lora_rank.* 16"),
    ],
)
def test_wrong_values_are_named(value, says):
    with pytest.raises(ConfigError, match=says):
        convert(value, LeagueConfig, "")


@pytest.mark.parametrize(
    ("problems", "says"),
    [
        ({"dataset": "chain_sum", "size": 0}, r"problems\.size: 0; expected 1 or more"),
        ({"dataset": "chain_sum", "sise": 1}, r"problems\.sise: unknown key; expected .*'size'"),
        ([{"question": "1", "answer": "1"}, {"question": 1}], r"problems\[1\]\.question: expected `str`, got `int`"),
        (3, r"problems: expected `str \| .*`, got `int`"),
    ],
)
def test_wrong_values_in_one_of_several_forms_are_named(problems, says):
    with pytest.raises(ConfigError, match=says):
        make_environment("word_problems", {"problems": problems})


@pytest.mark.parametrize("key", ["trainer.max_lag_steps", "trainer.threads", "inference.threads"])
def test_counts_with_which_a_worker_would_end_again_and_again_are_refused(key: str) -> None:
    table, name = key.split(".")
    with pytest.raises(ConfigError, match=rf"{key}: -1; expected (0|1)"):
        convert({table: {name: -1}}, LeagueConfig, "")


def test_a_sampler_that_names_an_agent_there_is_not_is_refused_before_anything_starts():
    named = {"name": "fixed", "settings": {"agents": ["chaos_bot", "kaos_bot"]}}
    config = convert({"matchmaking": {"sampler": named}}, LeagueConfig, "")
    with pytest.raises(ConfigError, match=r"matchmaking.sampler.settings.agents: 'kaos_bot' .*'chaos_bot'"):
        check_config(config)


def test_a_sink_that_is_named_twice_is_refused_since_only_one_would_get_the_rows():
    config = convert({"tracker": {"sinks": ["jsonl", "stdout", "jsonl"]}}, LeagueConfig, "")
    with pytest.raises(ConfigError, match=r"tracker.sinks: 'jsonl' is listed twice; expected distinct sinks"):
        check_config(config)


def test_plugins_are_checked_before_anything_starts():
    config = convert(
        {"game": {"name": "nim"}, "agents": {"base_model": {"kind": "base", "rating": 1}}}, LeagueConfig, ""
    )
    with pytest.raises(ConfigError, match="gatekeepers: 'random_bot' is not an agent"):
        check_config(config)
    broken = convert({**to_builtins(config), "trainer": {"loss": to_builtins(Plugin(name="hope"))}}, LeagueConfig, "")
    with pytest.raises(ConfigError, match=r"trainer.loss.name: 'hope'"):
        check_config(broken)


def test_a_plugin_without_settings_may_be_given_by_its_name_alone():
    short = {
        "game": "nim",
        "ratings": {"also": ["trueskill", {"name": "openskill", "settings": {"tau": 0.4}}]},
        "policies": {"hunter": {"role": "main_exploiter", "sampler": "uniform"}},
        "trainer": {"backend": "native", "reward": "outcome", "buffer": {"strategy": "uniform"}},
    }
    config = convert(short, LeagueConfig, "")
    assert config.trainer.backend == Plugin(name="native")
    assert config.policies["hunter"].sampler == Plugin(name="uniform")
    assert config.ratings.also[0] == Plugin(name="trueskill")
    assert config.ratings.also[1].settings == {"tau": 0.4}
    assert config.trainer.buffer.strategy == Plugin(name="uniform")
    with pytest.raises(ConfigError, match=r"trainer\.loss: expected `object`, got `int`"):
        convert({"trainer": {"loss": 3}}, LeagueConfig, "")


def test_a_rating_that_is_left_out_is_that_of_the_kind() -> None:
    tables = {
        "base_model": {"kind": "base"},
        "race_expert": {"kind": "bot"},
        "gpt": {"kind": "remote", "remote": {"url": "https://host/v1", "model": "m"}},
    }
    found = convert({"agents": tables}, LeagueConfig, "")
    assert {name: agent.rating for name, agent in found.agents.items()} == {
        "base_model": 1000.0,
        "race_expert": 900.0,
        "gpt": 1000.0,
    }
    assert convert(to_builtins(found), LeagueConfig, "") == found


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"agents": {"a": {"kind": "base"}, "b": {"rating": 1.0}}}, "agents.b: object missing required field `kind`"),
        ({"agents": {"a": {"kind": "bot", "rating": "x"}}}, "agents.a.rating: expected `float`, got `str`"),
        ({"agents": {"a": {"kidn": "bot"}}}, "agents.a.kidn: unknown key; expected .*; did you mean 'kind'?"),
        ({"agents": {"a": {"kind": "remote", "remote": {"ulr": "x"}}}}, "agents.a.remote.ulr: unknown key.*'url'?"),
        ({"gmae": {"name": "nim"}}, "gmae: unknown key; expected .*; did you mean 'game'?"),
    ],
)
def test_errors_name_the_agent_and_the_key_that_was_probably_meant(tables: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        convert(tables, LeagueConfig, "")


@pytest.mark.parametrize(
    "setting",
    ["\udcff.x=1", "trainer.loss.settings.x=\udcff", "name=" + "[" * 5000, "name=" + "9" * 5000],
    ids=["key of other bytes", "value of other bytes", "nested without end", "thousands of digits"],
)
def test_a_setting_that_cannot_be_read_is_refused_in_words(setting: str) -> None:
    with pytest.raises(ConfigError) as refused:
        with_settings(LeagueConfig(), [setting])
    assert str(refused.value).isascii()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = " + "[" * 100_000 + "]" * 100_000, "not TOML: maximum recursion depth exceeded"),
        ("seed = " + "9" * 5_000, "not TOML: Exceeds the limit"),
        ("[stop]\nsteps = 100000000000000000000", "stop.steps: an integer of 67 bits; expected one of 64"),
        ("[stop]\nsteps = -1", "stop.steps: -1; expected 0 or more"),
        ("[stop]\nminutes = -1.0", "stop.minutes: -1.0; expected 0 or more"),
        ("[rollout]\ngames_in_flight = 1000000000000000000", "rollout.games_in_flight: .*; expected 1 to 100,000"),
        ("[rollout]\nworkers = -1", "rollout.workers: -1; expected 0 to 1,000,000"),
        ("[model.shape]\ninit_std = nan", "model.shape.init_std: nan; expected a finite number"),
        ("[trainer.learner]\nlearning_rate = inf", "trainer.learner.learning_rate: inf; expected a finite number"),
        (
            "[trainer.loss.settings]\nlist = [1, -9223372036854775809]",
            "trainer.loss.settings.list.1.: an integer of 64",
        ),
    ],
)
def test_numbers_and_nesting_beyond_all_use_are_refused_with_key_and_range(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "league.toml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(tmp_path / "league.toml")
