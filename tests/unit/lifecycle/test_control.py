"""What a running league can be told, and what it refuses: decisions from its state, as events."""

import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from league.state import LeagueState
from lifecycle import control
from lifecycle.reconfigure import with_later_agents, with_settings
from schemas import events as e
from schemas.config import AgentConfig, LeagueConfig, RemoteAgentConfig, load_config
from schemas.errors import ConfigError, UsageError
from tests.simulated_history import Simulation
from workers.compatibility import RESTART_KEYS, restart_keys

TINY = load_config(Path(__file__).parents[3] / "configs" / "nim-tiny.toml")
SERVER = RemoteAgentConfig(url="http://127.0.0.1:9/v1", model="m")


def simulated() -> Simulation:
    simulation = Simulation(TINY, seats=3)
    simulation.open()
    simulation.publish(0)
    simulation.publish(1)
    return simulation


def after(state: LeagueState, *events: e.Event) -> LeagueState:
    for event in events:
        state.apply(state.sequence + 1, event)
    return state


def test_a_pause_holds_until_it_is_taken_back_and_is_said_once() -> None:
    state = simulated().state
    (paused,) = control.pause(state, "", "warm")
    assert control.pause(after(state, paused), "", "again") == []
    assert state.pauses.active_pause("main") is not None
    (resumed,) = control.resume(state, "", "")
    assert after(state, resumed).pauses.active_pause() is None
    assert control.resume(state, "", "") == []
    with pytest.raises(UsageError, match=r"--policy nobody: no such policy; expected 'main'"):
        control.pause(state, "nobody", "")


def test_other_settings_are_in_force_once_they_are_folded() -> None:
    state = simulated().state
    told = control.configure(
        state, ["rollout.ahead_steps=1.5", "stop.steps=", "stop.minutes=30", "ratings.system.name=trueskill"]
    )
    config = after(state, *told).config
    assert config is not None
    assert (config.rollout.ahead_steps, config.stop.steps, config.stop.minutes) == (1.5, None, 30.0)
    assert config.ratings.system.name == "trueskill"
    assert control.configure(state, ["rollout.ahead_steps=1.5"]) == []


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("seed=4", "another seed .*every recorded draw derives from it"),
        ("game.settings.seats=2", "another game"),
        ("agents.random_bot.rating=5.0", "another agents .*league agent add"),
        ("rollout.ahead=1", "rollout.ahead: unknown key"),
        ("rollout.ahead_steps=fast", "rollout.ahead_steps: expected `float`, got `str`"),
        ("rollout.ahead_steps=-1.0", "rollout.ahead_steps: -1.0; expected more than 0"),
        ("rollout.workers.most=1", "rollout.workers.most: 'workers' is not a table"),
        ('evaluation.gatekeepers=["nobody"]', "evaluation.gatekeepers: 'nobody' is not an agent"),
        ("trainer.loss.name=guess", "trainer.loss"),
        ("rollout", "expected KEY=VALUE"),
    ],
)
def test_settings_that_cannot_be_are_refused_with_the_reason(setting: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        control.configure(simulated().state, [setting])


def test_names_with_dots_are_found_in_tables() -> None:
    agents = {**TINY.agents, "gpt-4.1": AgentConfig("remote", 900.0, remote=SERVER)}
    config = with_settings(msgspec.structs.replace(TINY, agents=agents), ["agents.gpt-4.1.remote.timeout_s=5.0"])
    assert config.agents["gpt-4.1"].remote == msgspec.structs.replace(SERVER, timeout_s=5.0)


def test_keys_that_running_processes_keep_are_named() -> None:
    changed = with_settings(
        TINY, ["trainer.rollouts_per_step=4", "rollout.ahead_steps=1.0", "rollout.games_in_flight=2"]
    )
    assert restart_keys(TINY, changed) == {"rollout.games_in_flight": ("rollout",), "trainer": ("trainer",)}


def test_the_documentation_names_the_same_keys() -> None:
    text = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    rows = re.findall(r"^\| (`[^|]+`) \| (.+?) \| (?:at|when) ", text, re.MULTILINE)
    found = {key: re.findall(r"`(.+?)`", roles) for keys, roles in rows for key in re.findall(r"`(.+?)`", keys)}
    assert found == {key: list(roles) for key, roles in RESTART_KEYS.items()}


def test_an_agent_that_enters_is_configured_and_registered() -> None:
    state = simulated().state
    told = control.add_agent(state, "gpt", AgentConfig("remote", 950.0, remote=SERVER))
    after(state, *told)
    assert [type(event).__name__ for event in told] == ["LeagueConfigured", "AgentRegistered", "AgentRetired"]
    assert (state.agents["gpt"].kind, state.agents["gpt"].active, state.rating("gpt")) == ("remote", False, 950.0)
    assert state.config is not None
    assert state.config.agents["gpt"].remote == SERVER
    with pytest.raises(UsageError, match="the name is taken"):
        control.add_agent(state, "gpt", AgentConfig("bot", 900.0))
    with pytest.raises(ConfigError, match="nim has no such bot; expected 'random_bot'"):
        control.add_agent(state, "chaos_bot", AgentConfig("bot", 900.0))


def test_a_settings_file_need_not_know_of_agents_that_entered_later() -> None:
    state = simulated().state
    opened = msgspec.to_builtins(TINY)
    after(state, *control.add_agent(state, "gpt", AgentConfig("remote", 950.0, remote=SERVER)))
    now: LeagueConfig = state.config  # type: ignore[assignment]
    assert with_later_agents(opened, now, TINY) == now
    founding_missing = msgspec.structs.replace(TINY, agents={"base_model": TINY.agents["base_model"]})
    # Who was there from the beginning cannot be left out.
    assert set(with_later_agents(opened, now, founding_missing).agents) == {"base_model", "gpt"}


def test_a_retired_agent_is_drawn_no_more_until_it_is_activated() -> None:
    state = simulated().state
    after(state, *control.retire(state, "random_bot", "too weak"))
    assert not state.standings().agents["random_bot"].active
    assert control.retire(state, "random_bot", "again") == []
    after(state, *control.activate(state, "random_bot", ""))
    assert state.standings().agents["random_bot"].active
    with pytest.raises(UsageError, match="not in this league"):
        control.retire(state, "nobody", "x")


def test_requested_matches_have_seeds_of_their_own_and_rotate_where_asked() -> None:
    state = simulated().state
    jobs = control.make_requested_jobs(state, ["main", "main@0", "random_bot"], 6, "exhibition", rotate=True, name="r")
    assert [job.seats for job in jobs[:3]] == [
        ["main@1", "main@0", "random_bot"],
        ["random_bot", "main@1", "main@0"],
        ["main@0", "random_bot", "main@1"],
    ]
    assert Counter(job.seats[0] for job in jobs) == {"main@1": 2, "main@0": 2, "random_bot": 2}
    assert len({job.seed for job in jobs}) == len({job.match_id for job in jobs}) == 6
    assert {job.purpose for job in jobs} == {"exhibition"}


@pytest.mark.parametrize(
    ("seats", "said"),
    [
        (["main", "random_bot"], "found 2; expected an agent for each of 3 seats"),
        (["main", "nobody", "random_bot"], "'nobody' is not an agent; expected 'base_model', 'main', 'main@1' or"),
        (["main@9", "random_bot", "random_bot"], "'main@9' is not an agent"),
    ],
)
def test_seats_that_nobody_can_take_are_refused(seats: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        control.make_requested_jobs(simulated().state, seats, 1, "exhibition", rotate=False, name="r")


def test_versions_of_external_agents_join_in_order() -> None:
    state = simulated().state
    (added,) = control.add_external_version(state, "grpo", 40)
    assert added == e.ExternalVersionAdded(agent="grpo@40", policy="grpo", version=40, worker="operator")
    state = after(state, added)
    assert state.agents["grpo@40"].kind == "external"
    assert control.add_external_version(state, "grpo", 40) == []
    with pytest.raises(UsageError, match=r"version 3; expected more than 40"):
        control.add_external_version(state, "grpo", 3)
    with pytest.raises(UsageError, match=r"expected at most 1000000040"):
        control.add_external_version(state, "grpo", 2**63 - 1)
    with pytest.raises(UsageError, match=r"the league has an agent of that name"):
        control.add_external_version(state, "main", 1)
