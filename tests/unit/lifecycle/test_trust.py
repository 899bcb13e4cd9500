"""What settings from elsewhere reach is found by key, and left off unless it is trusted."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from lifecycle.trust import find_reaches, trusted_settings
from schemas.config import LeagueConfig, convert, to_builtins
from schemas.errors import ConfigError, UsageError

AGENTS = {
    "base_model": {"kind": "base"},
    "random_bot": {"kind": "bot"},
    "gpt": {"kind": "remote", "remote": {"url": "https://attacker.example/v1", "model": "m", "key_variable": "SECRET"}},
}
HOSTILE: dict[str, Any] = {
    "agents": AGENTS,
    "evaluation": {"gatekeepers": ["random_bot", "gpt"], "benchmark_opponents": ["gpt"]},
    "episodes": {"judge": "gpt"},
    "inference": {"urls": ["http://attacker.example"], "host": "0.0.0.0", "options": {"template": "/etc/passwd"}},
    "trainer": {"dump": "/home/me", "backend": {"name": "peft", "settings": {"remote_code": True}}},
    "tracker": {"sinks": ["wandb", "jsonl"], "forward": [{"to": "https://attacker.example/x", "token_variable": "T"}]},
    "alarms": {"webhook_variable": "SECRET"},
    "blobs": {"url": "s3://attacker/x", "endpoint": "https://attacker.example"},
    "history": {"copy_to": "s3://attacker/y"},
    "model": {"adapter": "~/private"},
}


def league(**tables: Any) -> LeagueConfig:
    return convert(tables, LeagueConfig, "")


def test_everything_that_settings_reach_is_named_and_left_off() -> None:
    hostile = league(**HOSTILE)
    found = dict(find_reaches(hostile))
    assert list(found) == [
        *("agents.gpt", "alarms.webhook_variable", "blobs.endpoint", "blobs.url", "history.copy_to", "inference.host"),
        *("inference.options.template", "inference.urls", "model.adapter", "tracker.forward", "tracker.sinks"),
        *("trainer.backend", "trainer.dump"),
    ]
    assert found["agents.gpt"] == ("sends prompts to https://attacker.example/v1, with the environment variable SECRET")
    assert found["trainer.backend"] == "peft: runs Python code that comes with the model"
    safe, left_off = trusted_settings(hostile, [])
    assert dict(left_off) == found
    assert find_reaches(safe) == []
    assert sorted(safe.agents) == ["base_model", "random_bot"]
    assert (safe.evaluation.gatekeepers, safe.evaluation.benchmark_opponents) == (("random_bot",), ())
    assert safe.episodes.judge == ""


def test_what_is_trusted_by_name_stays() -> None:
    config, left_off = trusted_settings(league(**HOSTILE), ["agents.gpt", "trainer.backend"])
    assert config.agents["gpt"].remote is not None
    assert config.trainer.backend.settings == {"remote_code": True}
    assert "agents.gpt" not in dict(left_off)
    with pytest.raises(UsageError, match=r"--trust agents.gtp: .*did you mean 'agents.gpt'"):
        trusted_settings(league(**HOSTILE), ["agents.gtp"])


@pytest.mark.parametrize(
    ("tables", "key"),
    [
        ({"game": {"name": "openenv", "settings": {"url": "http://attacker.example"}}}, "game"),
        ({"game": {"name": "verifiers", "settings": {"taskset": "kuhn-poker"}}}, "game"),
        ({"game": {"name": "nim", "settings": {"file": "/etc/passwd"}}}, "game"),
        ({"model": {"base": "/home/me/private"}}, "model.base"),
    ],
)
def test_a_league_that_cannot_do_without_asks_for_trust(tables: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError, match=f"expected --trust {key}"):
        trusted_settings(league(**tables), [])
    config, left_off = trusted_settings(league(**tables), [key])
    assert (config, left_off) == (league(**tables), [])


def test_lists_of_agents_may_be_left_off_too() -> None:
    config, left_off = trusted_settings(league(evaluation={"gatekeepers": ["/etc/passwd"]}, agents=AGENTS), [])
    assert [reach.name for reach in left_off] == ["agents.gpt", "evaluation.gatekeepers"]
    assert config.evaluation.gatekeepers == LeagueConfig().evaluation.gatekeepers


def test_usual_settings_reach_nothing() -> None:
    usual = {
        "model": {"base": "HuggingFaceTB/SmolLM2-135M-Instruct"},
        "prompts": {"system": "You play and/or win. See https://example.org"},
        "game": {"name": "debate", "settings": {"topics": ["Cats are better than dogs / birds"]}},
        "tracker": {"sinks": ["jsonl", "stdout"]},
    }
    assert find_reaches(league(**usual)) == []


def leaves(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(value, Mapping):
        if "settings" in value:
            return  # A plugin: its name is among the registered ones.
        for name, part in value.items():
            yield from leaves(part, (*place, name))
    elif isinstance(value, str):
        yield place


@pytest.mark.parametrize("value", ["/etc/passwd", "https://attacker.example/x", "s3://attacker/x"])
@pytest.mark.parametrize("place", list(leaves(to_builtins(LeagueConfig()))), ids=".".join)
def test_a_place_in_any_setting_is_found(place: tuple[str, ...], value: str) -> None:
    plain = to_builtins(LeagueConfig())
    table = plain
    for name in place[:-1]:
        table = table[name]
    table[place[-1]] = value
    try:
        config = convert(plain, LeagueConfig, "")
    except ConfigError:
        return  # No value of this kind can stand there.
    names = [reach.name for reach in find_reaches(config)]
    assert place == ("prompts", "system") or any(".".join(place).startswith(name) for name in names)
