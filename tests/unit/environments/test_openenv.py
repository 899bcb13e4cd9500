"""Environments of OpenEnv: episodes on a server of the package ``openenv-core``, in a process of its own."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from arena.clients import ScriptedClient
from arena.environments import ArenaOptions, make_environment
from arena.environments.openenv import AGENT, parse_action
from arena.environments.openenv.client import Server, ServerError, parse_message
from arena.model_call import Limits
from schemas.episodes import EpisodeRequest, GenerateResult, Message
from schemas.errors import ConfigError, EpisodeError

pytest.importorskip("websockets", reason="make test-environments installs websockets")

PYTHON = Path(__file__).parents[3] / "build" / "openenv" / "bin" / "python"
APPLES = {"unit": "apples"}

SERVER = '''
import os, random, socket, sys, time
import uvicorn
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Guess(Action):
    number: int
    unit: str = "none"


class Hint(Observation):
    hint: str
    legal_actions: list[int] = [0, 1, 2, 3]


class Guessing(Environment):
    """A number below four, to be guessed in three attempts."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, fault="", **unused):
        self.fault, self.attempts = fault, 0
        self.number = random.Random(seed).randrange(4)
        return Hint(hint="Guess.")

    def step(self, action, timeout_s=None, **unused):
        self.attempts += 1
        if self.fault == "raises":
            raise RuntimeError("the number is gone")
        if self.fault == "hangs":
            time.sleep(3600)
        if self.fault == "exits":
            os._exit(1)
        assert action.unit == "apples", action
        is_right = action.number == self.number
        reward = "much" if self.fault == "text" else 1.0 if is_right else -0.25
        hint = "Right." if is_right else "Lower." if action.number > self.number else "Higher."
        done = is_right or self.attempts == 3
        return Hint.model_construct(hint=hint, legal_actions=[0, 1, 2, 3], done=done, reward=reward)

    @property
    def state(self):
        return State(step_count=self.attempts)


app = create_app(Guessing, Guess, Hint, env_name="guessing", max_concurrent_envs=int(sys.argv[1]))
'''
OPENSPIEL = """
import socket
import uvicorn
from openspiel_env.server.app import app
"""
RUN = """
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
"""


@contextmanager
def serving(folder: Path, sessions: int = 1, server: str = SERVER) -> Iterator[str]:
    """The address of a server, which has loaded its packages."""
    if not PYTHON.exists():
        pytest.skip("make test-environments installs openenv-core")
    (folder / "server.py").write_text(server + RUN)
    command = [str(PYTHON), str(folder / "server.py"), str(sessions)]
    env = {**os.environ, "PYTHONPATH": ""}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("openenv"), sessions=8) as address:
        yield address


Reply = Callable[[Sequence[Message]], str]


def play(url: str, reply: Reply, seeds: int = 1, **settings: Any) -> list[GenerateResult]:
    """Episodes of the first seeds, one after the other."""
    spec = make_environment("openenv", {"url": url, "action": APPLES, "timeout_s": 600, **settings})
    arena = spec.open(ScriptedClient.from_function(reply), ArenaOptions(limits=Limits(needs_tokens=False)))
    requests = [EpisodeRequest("openenv", {"seed": seed}) for seed in range(seeds)]
    return asyncio.run(arena.generate_rollouts(requests, concurrency=1))


def number_of(seed: int) -> int:
    return Random(seed).randrange(4)


def test_an_episode_earns_what_the_server_pays(url: str) -> None:
    results = play(url, lambda messages: f"I take {(len(messages) - 1) // 2}.", seeds=6)
    for seed, result in enumerate(results):
        number, rollout = number_of(seed), result.rollout
        wrong = min(number, 3)
        assert rollout.failure == ""
        assert rollout.rewards == {AGENT: (1.0 if number < 3 else 0.0) - 0.25 * wrong}
        assert len(rollout.steps) == min(number + 1, 3)
        assert rollout.extras["invalid"] == 0
        assert rollout.extras["is_truncated"] is False
    opening = results[0].rollout.steps[0].prompt[0].content
    assert opening.startswith("Guessing: Guessing environment\nEach reply is one action")
    assert '"number"' in opening
    assert "unit" not in opening
    assert opening.endswith("hint: Guess.\nlegal_actions: [0, 1, 2, 3]")


def test_random_play_is_legal_and_follows_from_its_seed(url: str) -> None:
    def rewards() -> list[dict[str, float]]:
        spec, rng = make_environment("openenv", {"url": url}), Random(3)
        results = play(url, lambda messages: spec.improvise(AGENT, messages, rng), seeds=4)
        assert [result.rollout.failure for result in results] == [""] * 4
        assert [result.rollout.extras["invalid"] for result in results] == [0] * 4
        return [result.rollout.rewards for result in results]

    assert rewards() == rewards()


def test_a_batch_is_scored_by_seat(url: str) -> None:
    spec = make_environment(
        "openenv", {"url": url, "action": APPLES, "timeout_s": 600, "group_size": 2, "batch_size": 2}
    )
    arena = spec.open(ScriptedClient.from_function(lambda _: "1"), ArenaOptions(limits=Limits(needs_tokens=False)))
    results = asyncio.run(arena.generate_rollouts(arena.get_batch()))
    assert len(results) == 4
    assert len({result.rollout.group for result in results}) == 2
    for result in results:
        assert spec.score(result) == (result.rollout.rewards[AGENT],)
        assert spec.metrics(result)["turns"] == len(result.rollout.steps)


def test_an_invalid_reply_is_answered_with_the_reason(url: str) -> None:
    replies = iter(["nothing at all", '{"number": "many"}', f'{{"number": {number_of(0)}}}'])
    (result,) = play(url, lambda _: next(replies))
    answers = [step.prompt[-1].content for step in result.rollout.steps]
    assert answers[1].startswith("No action of this environment: expected a JSON object")
    assert "number: Input should be a valid integer" in answers[2]
    assert (result.rollout.rewards[AGENT], result.rollout.extras["invalid"]) == (1.0, 2)


def test_an_agent_cannot_replace_what_all_actions_have(url: str) -> None:
    (result,) = play(url, lambda _: f'{{"number": {number_of(0)}, "unit": "pears"}}')
    assert (result.rollout.failure, result.rollout.rewards) == ("", {AGENT: 1.0})


def test_random_play_reads_legal_actions_that_are_no_json_as_text() -> None:
    spec = make_environment("openenv", {"url": "http://127.0.0.1:1"})
    rules = 'Each reply is one action, a JSON object with these fields: {"move": {"type": "string"}}'
    question = Message("user", f"Walk.\n{rules}\nlegal_actions: [up, down]")
    assert '"move": ' in spec.improvise(AGENT, [question], Random(0))


def test_the_maximum_number_of_turns_ends_an_episode(url: str) -> None:
    (result,) = play(url, lambda _: "hm", max_turns=2, rules="Guess a number below four.")
    assert result.rollout.steps[0].prompt[0].content.startswith("Guess a number below four.\n")
    assert (result.rollout.failure, result.rollout.rewards) == ("", {AGENT: 0.0})
    assert result.rollout.extras == {"reward": 0.0, "turns": 2, "invalid": 2, "is_truncated": True}


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raises", "the number is gone"),
        ("hangs", "no answer within 5 s"),
        ("text", "expected observation, reward and done"),
    ],
)
def test_a_fault_of_the_environment_fails_the_episode(url: str, fault: str, reason: str) -> None:
    # Its answers come at once, so that only the one that never comes is late.
    (result,) = play(url, lambda _: "1", reset={"fault": fault}, **({"timeout_s": 5} if fault == "hangs" else {}))
    assert result.rollout.failure.startswith(f"openenv, {url}: ")
    assert reason in result.rollout.failure
    assert result.rollout.rewards == {}


def test_a_server_with_one_session_is_waited_for_and_its_end_fails_the_episode(tmp_path: Path) -> None:
    async def take_turns(spec: Any) -> GenerateResult:
        arena = spec.open(ScriptedClient.from_function(lambda _: "1"), ArenaOptions(limits=Limits(needs_tokens=False)))
        async with Server(address, 600).open_session({}):
            waiting = asyncio.create_task(arena.generate_rollouts([EpisodeRequest("openenv", {"seed": 0})]))
            with pytest.raises(EpisodeError, match="no answer within"):
                async with Server(address, 0.5).open_session({}):
                    pass
        return (await waiting)[0]

    with serving(tmp_path, sessions=1) as address:
        spec = make_environment("openenv", {"url": address, "action": APPLES, "timeout_s": 600})
        assert asyncio.run(take_turns(spec)).rollout.failure == ""
        (result,) = play(address, lambda _: "1", reset={"fault": "exits"})
        assert "the server is away" in result.rollout.failure


def test_a_game_of_openenvs_own_openspiel_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its opponent moves at random, so that random play wins, loses and draws."""
    found = "import importlib.util as u, sys; sys.exit(u.find_spec('openspiel_env') is None)"
    if not PYTHON.exists() or subprocess.run([PYTHON, "-c", found], check=False).returncode:
        pytest.skip("make test-environments fetches openspiel_env from OpenEnv's repository")
    monkeypatch.setenv("OPENSPIEL_GAME", "tic_tac_toe")
    action = {"game_name": "tic_tac_toe", "game_params": {}}
    with serving(tmp_path, server=OPENSPIEL) as address:
        spec, rng = make_environment("openenv", {"url": address, "action": action}), Random(1)
        results = play(address, lambda messages: spec.improvise(AGENT, messages, rng), seeds=20, action=action)
    assert [(result.rollout.failure, result.rollout.extras["invalid"]) for result in results] == [("", 0)] * 20
    assert all(3 <= len(result.rollout.steps) <= 5 for result in results)
    rewards = {result.rollout.rewards[AGENT] for result in results}
    assert rewards <= {-1.0, 0.0, 1.0}
    assert len(rewards) > 1


def test_a_server_that_is_away_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
    (result,) = play(address, lambda _: "1")
    assert result.rollout.failure.startswith(f"openenv, {address}: the server is away")


@pytest.mark.parametrize("reward", ["NaN", "Infinity"])
def test_a_reward_that_is_not_finite_is_refused(reward: str) -> None:
    text = f'{{"type": "observation", "data": {{"observation": {{}}, "reward": {reward}, "done": false}}}}'
    with pytest.raises(EpisodeError, match="expected a finite number"):
        parse_message(text, "here")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"type": "observation"}',
        '{"type": "observation", "data": {"reward": 1}}',
        "[" * 100_000,
        "null",
        b"\xff",
    ],
)
def test_other_messages_are_refused(text: str | bytes) -> None:
    with pytest.raises(EpisodeError, match="here: found"):
        parse_message(text, "here")


def test_half_a_surrogate_pair_is_replaced() -> None:
    """Python's JSON reads it, and no record can hold it."""
    text = '{"type": "observation", "data": {"observation": {"a\\ud800": ["\\udc00", "\\ud83d\\ude00"]}}}'
    assert parse_message(text, "here").observation == {"a?": ["?", "😀"]}


def test_an_error_keeps_its_code() -> None:
    with pytest.raises(ServerError, match="here: full") as raised:
        parse_message('{"type": "error", "data": {"message": "full", "code": "CAPACITY_REACHED"}}', "here")
    assert raised.value.code == "CAPACITY_REACHED"


@pytest.mark.parametrize(
    ("reply", "schema", "action"),
    [
        ('First {"a": 1}, then {"a": {"b": 2}}.', {"type": "string"}, {"a": {"b": 2}}),
        ("<think>7</think>column 3, or 4", {"type": "integer"}, {"a": 4}),
        ("-0.5", {"type": "number"}, {"a": -0.5}),
        ("Yes: TRUE", {"type": "boolean"}, {"a": True}),
        (" left ", {"anyOf": [{"type": "string"}, {"type": "null"}]}, {"a": "left"}),
        ("none", {"type": "integer"}, None),
        ("9" * 400, {"type": "integer"}, None),
        ("9" * 400, {"type": "number"}, None),
        ("{" * 5_000, {"type": "integer"}, None),
    ],
)
def test_an_action_is_read_from_a_reply(reply: str, schema: dict[str, Any], action: dict[str, Any] | None) -> None:
    assert parse_action(reply, {"a": schema}) == action
    if action is None or "b" not in str(action):
        assert parse_action("no object", {"a": schema, "c": schema}) is None


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "websockets.asyncio.client", None)
    with pytest.raises(ConfigError, match=r"pip install 'event-sourced-league\[openenv\]'"):
        make_environment("openenv", {"url": "http://127.0.0.1:8000"})


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "url"),
        ({"url": "127.0.0.1:8000"}, "expected the address of a server"),
        ({"url": "http://127.0.0.1:99999"}, "expected the address of a server"),
        ({"url": "http://127.0.0.1:port"}, "expected the address of a server"),
        ({"url": "http://[::1"}, "expected the address of a server"),
        ({"url": "http://127.0.0.1:8000", "sessions": 0}, "sessions"),
        ({"url": "http://127.0.0.1:8000", "timeout_s": 0}, "timeout_s: 0"),
        ({"url": "http://127.0.0.1:8000", "port": 1}, "port"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_environment("openenv", settings)
