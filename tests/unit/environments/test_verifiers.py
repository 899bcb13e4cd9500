"""verifiers in both directions: equal transcripts and rewards on either side, opponents from a pool."""

import asyncio
import json
import os
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import msgspec
import pytest
from aiohttp import web

from arena.clients import ScriptedClient
from arena.clients.improviser import improvised_calls
from arena.environments import ArenaOptions, ArenaSpec, DatasetSpec, make_environment
from arena.model_call import JUDGE, Limits
from schemas.episodes import GREEDY_TEMPERATURE, EpisodeRequest, GenerateResult, Message
from schemas.errors import ConfigError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    vf = pytest.importorskip("verifiers.v1", reason="make test-environments installs verifiers")

PACKAGE = Path(__file__).parents[3] / "environments" / "league_environments"
sys.path.insert(0, str(PACKAGE))

pytestmark = pytest.mark.filterwarnings("ignore")

Reply = Callable[[str, str], str]


def replier(spec: Any) -> Reply:
    """Replies that depend on the role (empty for the judge) and the last message alone."""

    def reply(role: str, said: str) -> str:
        rng = Random(crc32(f"{role} {said}".encode()))
        if isinstance(spec, ArenaSpec):
            return spec.improvise(role or None, [Message("user", said)], rng)
        if "Legal orders" in said:
            return diplomacy_orders(said, rng)
        moves = said.rpartition("Legal moves: ")[2].split(", ")
        return f"MOVE: {rng.choice(moves)}" if len(moves) > 1 else "nothing to say"

    return reply


def diplomacy_orders(question: str, rng: Random) -> str:
    """Legal orders by chance. A line lists the orders of a unit that begin alike; the last order of a unit counts."""
    lines = question.rpartition("Legal orders")[2].splitlines()[1:]
    rng.shuffle(lines)
    orders = []
    for line in lines:
        first, *others = line.split(" | ")
        beginning = " ".join(first.split()[:3])
        orders.append(rng.choice([first, *(f"{beginning} {other}" for other in others)]))
    return "\n".join(orders)


class Server:
    """An OpenAI-compatible server whose models are roles, and a pool's endpoint of results."""

    def __init__(self, reply: Reply) -> None:
        self.requests: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []
        self.sessions: list[dict[str, Any]] = []
        self.result_status = 200
        self.unavailable = 0
        """Requests for replies that are still refused."""
        self._reply = reply

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.unavailable > 0:
            self.unavailable -= 1
            return web.json_response({"error": {"message": "loading"}}, status=503)
        self.requests.append(body)
        role = "" if body["model"] == "judge" else body["model"]
        message = {"role": "assistant", "content": self._reply(role, body["messages"][-1]["content"])}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"], "usage": usage}
        return web.json_response({**answer, "choices": [choice]})

    async def session(self, request: web.Request) -> web.Response:
        self.sessions.append(await request.json())
        return web.json_response({})

    async def result(self, request: web.Request) -> web.Response:
        self.results.append(await request.json())
        return web.json_response({"error": {"message": "another result"}}, status=self.result_status)


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.chat)
    app.router.add_post("/v1/league/results", server.result)
    app.router.add_post("/v1/league/sessions", server.session)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def play(name: str, server: Server, seeds: int, pool: bool = False, **settings: Any) -> list[Any]:
    """verifiers' episodes of the first seeds; each role's model is called as the role."""
    from league_environments import _roles
    from verifiers.v1.utils.generic import concrete_type
    from verifiers.v1.utils.loaders import environment_class, load_environment

    async def run() -> list[Any]:
        async with serving(server) as url:
            env_id = f"league-{name.replace('_', '-')}"
            config = concrete_type(environment_class(env_id), vf.EnvConfig, origin=vf.Env)
            roles = _roles(make_environment(name, settings))
            given = {agent: {"model": role or "judge"} for role, agent in roles.items()}
            if pool:
                given = {"opponent_base_url": url, "opponent_for": "grpo@3", "learner": list(roles.values())[1]}
            env = load_environment(config(taskset={"id": env_id, "settings": settings}, **given))
            ctx = vf.ModelContext("learner", vf.EvalClientConfig(base_url=url, api_key_var="UNSET"))
            async with env.serving():
                tasks = [task for task, _ in zip(env.taskset, range(seeds), strict=False)]
                return [await env.run_episode(task, ctx) for task in tasks]

    return asyncio.run(run())


def play_here(name: str, seed: int, **settings: Any) -> GenerateResult:
    from league_environments import _roles, open_episode

    spec = make_environment(name, settings)
    reply = replier(spec)

    def client(role: str) -> ScriptedClient:
        return ScriptedClient.from_function(lambda messages: reply(role, messages[-1].content))

    arena, request = open_episode(spec, {role or JUDGE: client(role) for role in _roles(spec)}, seed)
    (result,) = asyncio.run(arena.generate_rollouts([request]))
    return result


CASES = [
    ("kuhn_poker", {}),
    ("rock_paper_scissors", {}),
    ("debate", {}),
    ("word_problems", {}),
    ("proposer_solver", {"solver_rollouts": 2}),
    ("diplomacy", {"max_year": 1901}),
]


Transcripts = list[tuple[str, str, list[str], float]]
"""Episode, role, messages without the system's, and reward of each conversation."""


def transcripts_of(episodes: Sequence[Any]) -> Transcripts:
    """Those of verifiers' episodes, without the judge's."""
    found = []
    for trace in (trace for episode in episodes for trace in episode.traces if trace.agent.name != "judge"):
        league = trace.info["league"]
        texts = [node.message.content for node in trace.nodes if node.message.role != "system"]
        found.append((league["episode"], league["role"], texts, trace.reward))
    return sorted(found)


def transcripts_here(name: str, seeds: int, **settings: Any) -> Transcripts:
    """Those of the league's own episodes of the first seeds."""
    found = []
    for result in (play_here(name, seed, **settings) for seed in range(seeds)):
        for rollout in [result.rollout, *(child.rollout for child in result.children)]:
            assert not rollout.failure
            for role in dict.fromkeys(step.role_id for step in rollout.steps):
                steps = [step for step in rollout.steps if step.role_id == role]
                texts = [text for step in steps for text in (step.prompt[-1].content, step.completion_text)]
                found.append((rollout.id, role, texts, rollout.rewards.get(role, 0.0)))
    return sorted(found)


@pytest.mark.parametrize(("name", "settings"), CASES, ids=[name for name, _ in CASES])
def test_equal_seeds_and_replies_give_the_transcripts_and_rewards_of_the_league(name: str, settings: dict[str, Any]):
    if name == "diplomacy":
        pytest.importorskip("diplomacy")
    episodes = play(name, Server(replier(make_environment(name, settings))), 2, **settings)
    assert [(episode.ok, episode.errors) for episode in episodes] == [(True, [])] * 2
    assert transcripts_of(episodes) == transcripts_here(name, 2, **settings)


def test_the_pool_plays_all_other_seats_and_gets_each_result_once():
    server = Server(replier(make_environment("kuhn_poker", {})))
    episodes = play("kuhn_poker", server, 2, pool=True)
    assert [episode.ok for episode in episodes] == [True, True]
    by_name = {trace.agent.name: trace for trace in episodes[0].traces}
    assert (by_name["p1"].agent.trainable, by_name["p2"].agent.trainable) == (False, True)
    asked = [body for body in server.requests if "league_session" in body]
    assert {body["model"] for body in asked} == {"league/pfsp"}
    assert {(body["league_agent"], body["league_seat"], body["league_game"]) for body in asked} == {
        ("grpo@3", 1, "kuhn_poker")
    }
    # What a bot of the pool replies to.
    spec = make_environment("kuhn_poker", {})
    assert {body["league_role"] for body in asked} == {"P1"}
    assert all(list(spec.load(body["league_position"].encode()).to_move()) == [0] for body in asked)
    assert len(server.results) == 2
    assert {result["session"] for result in server.results} == {body["league_session"] for body in asked}
    # Opened before the first turn, since an episode may end without one of the opponent's.
    fields = ("model", "agent", "game", "seat", "roles", "position")
    assert [[opened[name] for name in fields] for opened in server.sessions] == [
        ["league/pfsp", "grpo@3", "kuhn_poker", 1, ["P1", "P2"], True]
    ] * 2
    assert server.results[0]["scores"] == [by_name["p1"].reward, by_name["p2"].reward]


def test_a_refused_result_and_a_failed_model_fail_the_episode_with_the_reason():
    server = Server(replier(make_environment("kuhn_poker", {})))
    server.result_status = 409
    (episode,) = play("kuhn_poker", server, 1, pool=True)
    assert not episode.ok
    assert "409" in episode.errors[-1].message
    assert "another result" in episode.errors[-1].message

    def fail(role: str, said: str) -> str:
        raise RuntimeError("out of memory")

    (episode,) = play("kuhn_poker", Server(fail), 1)
    assert not episode.ok


def test_a_server_that_is_away_for_a_moment_fails_no_episode():
    server = Server(replier(make_environment("kuhn_poker", {})))
    server.unavailable = 2
    (episode,) = play("kuhn_poker", server, 1, pool=True)
    assert (episode.ok, server.unavailable, len(server.results)) == (True, 0, 1)


def test_an_empty_reply_is_a_turn_without_a_move():
    server = Server(lambda role, said: "")
    (episode,) = play("kuhn_poker", server, 1, pool=True)
    assert (episode.ok, sum(server.results[0]["scores"])) == (True, 0.0)


def test_settings_that_change_the_seats_are_refused():
    pytest.importorskip("diplomacy")
    with pytest.raises(ValueError, match=r"change the seats to.*export it with these settings"):
        play("diplomacy", Server(replier(None)), 1, powers=["AUSTRIA", "FRANCE"])


def test_every_module_is_listed_and_exports_its_environment():
    from arena.environments import arena_names
    from arena.games import game_names

    modules = {path.stem.removeprefix("league_") for path in PACKAGE.glob("league_*.py")} - {"chat"}
    assert modules == {*game_names(), *arena_names()}
    listed = (PACKAGE / "pyproject.toml").read_text()
    assert all(f'"league_{name}"' in listed for name in [*modules, "chat"])


def run_evaluation(name: str, server: Server, folder: Path, **settings: Any) -> subprocess.CompletedProcess[bytes]:
    """Two episodes by the command of verifiers; each role's model is called as the role."""
    from league_environments import _roles

    command = Path(sys.executable).with_name("vf-eval")
    if not command.exists():
        pytest.skip("the command vf-eval is not beside this interpreter")
    agents = _roles(make_environment(name, settings)).items()
    models = [f"[env.{agent}]\nmodel = {json.dumps(role or 'judge')}" for role, agent in agents]
    values = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    config = folder / "evaluation.toml"
    env_id = f"league-{name.replace('_', '-')}"
    taskset = ["[env.taskset]", f'id = "{env_id}"', "[env.taskset.settings]", *values]
    config.write_text("\n".join([*taskset, *models]))

    async def evaluate() -> subprocess.CompletedProcess[bytes]:
        async with serving(server) as url:
            options = f"-n 2 -r 1 -c 1 -m m --client.base-url {url} --client.api-key-var NONE --no-push --no-rich"
            process = await asyncio.create_subprocess_exec(
                command,
                *("@", str(config), *options.split(), "-o", str(folder / "evaluation")),
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(PACKAGE), str(PACKAGE.parents[1])])},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            output, _ = await process.communicate()
            return subprocess.CompletedProcess([], process.returncode or 0, output)

    return asyncio.run(evaluate())


@pytest.mark.parametrize(
    ("name", "settings"), [("kuhn_poker", {}), ("debate", {"rounds": 1}), ("diplomacy", {"max_year": 1901})]
)
def test_the_evaluation_command_of_verifiers_gives_the_transcripts_and_rewards_of_the_league(
    name: str, settings: dict[str, Any], tmp_path: Path
):
    from verifiers.v1.episode import WireEpisode

    if name == "diplomacy":
        pytest.importorskip("diplomacy")
    done = run_evaluation(name, Server(replier(make_environment(name, settings))), tmp_path, **settings)
    assert done.returncode == 0, done.stdout.decode()[-2000:]
    (written,) = tmp_path.rglob("traces.jsonl")
    episodes = [WireEpisode.model_validate_json(line) for line in written.read_text().splitlines()]
    assert [episode.ok for episode in episodes] == [True, True]
    assert transcripts_of(episodes) == transcripts_here(name, 2, **settings)


HAGGLE = """
import verifiers.v1 as vf

class Data(vf.TaskData):
    worth: int

class HaggleTask(vf.Task[Data]):
    @vf.reward
    async def short(self, trace) -> float:
        return 1.0 / len(trace.last_reply)

    @vf.metric
    async def turns(self, trace) -> float:
        return float(trace.num_turns)

class HaggleTaskset(vf.Taskset[HaggleTask, vf.TasksetConfig]):
    def load(self):
        return [HaggleTask(Data(worth=worth, prompt=None)) for worth in (3, 5, 8)]

class HaggleConfig(vf.EnvConfig):
    buyer: vf.AgentConfig = vf.AgentConfig(harness={"id": "league_chat"}, runtime={"type": "subprocess"})
    seller: vf.AgentConfig = vf.AgentConfig(
        harness={"id": "league_chat"}, runtime={"type": "subprocess"}, max_turns=2
    )
    rounds: int = 2
    broken: str = ""

class HaggleEnv(vf.Env[HaggleConfig]):
    async def run(self, task, agents):
        said = f"It is worth {task.data.worth} to you. [buy] or [wait]?"
        seller_task = task.with_data(system_prompt="You sell.")
        async with agents.buyer.interaction(task) as buyer, agents.seller.interaction(seller_task) as seller:
            for _ in range(self.config.rounds):
                said = (await buyer.turn(said)).last_reply
                answer = await seller.turn([{"role": "user", "content": said}])
                if answer.terminated:
                    break
                said = answer.last_reply
        if self.config.broken == "raises":
            raise RuntimeError("the market is closed")
        alone = await agents.seller.run(task.with_data(prompt=f"You sold for {said}. [good] or [bad]?"))
        alone.record_metric("sold", 1.0)

    async def finalize(self, task, episode):
        nan = self.config.broken == "nan"
        for trace in episode.traces:
            trace.record_reward("deal", float("nan") if nan else 0.5, weight=2.0)

__all__ = ["HaggleEnv", "HaggleTaskset"]
"""


@pytest.fixture
def haggle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Id of an installed environment of two agents with rewards of the task and of the whole episode."""
    (tmp_path / "haggle.py").write_text(HAGGLE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "haggle", raising=False)
    return "haggle"


def bracketed(role: str, said: str) -> str:
    """A reply that depends on the role and the last message alone, now and then an illegal one."""
    rng = Random(crc32(f"{role} {said}".encode()))
    return f"I say [{rng.choice(['check', 'bet', 'fold', 'call', 'buy', 'wait', 'no'])}]"


def in_verifiers(taskset: str, agents: Sequence[str], tasks: int, **options: Any) -> list[list[tuple[Any, ...]]]:
    """What each finished conversation of the first tasks was: agent, messages, reward, metrics."""
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    seat = {"harness": {"id": "league_chat"}, "runtime": {"type": "subprocess"}}
    given = {agent: {**seat, "model": agent} for agent in agents}

    async def run() -> list[Any]:
        async with serving(Server(bracketed)) as url:
            env = load_environment(resolve_env_config({"taskset": {"id": taskset}, **given, **options}))
            ctx = vf.ModelContext("learner", vf.EvalClientConfig(base_url=url, api_key_var="UNSET"))
            async with env.serving():
                return [await env.run_episode(task, ctx) for task, _ in zip(env.taskset, range(tasks), strict=False)]

    episodes = asyncio.run(run())
    assert [episode.errors for episode in episodes] == [[]] * len(episodes)
    return [sorted(map(conversation, episode.traces)) for episode in episodes]


def conversation(trace: Any) -> tuple[Any, ...]:
    said = [(node.message.role, node.message.content) for node in trace.nodes]
    return trace.agent.name, said, trace.reward, sorted(trace.metrics.items())


def imported(taskset: str, tasks: int, reply: Reply, **options: Any) -> tuple[list[GenerateResult], list[Any]]:
    """The league's episodes of the same tasks, and the traces that the environment saw."""
    from arena.environments import verifiers as adapter

    spec = make_environment("verifiers", {"taskset": taskset, "tasks": tasks, "options": options})
    assert isinstance(spec, ArenaSpec)
    traces: list[Any] = []

    class Watched(adapter.Exchange):
        async def finish(self, condition: str) -> Any:
            traces.append(self.trace)
            return await super().finish(condition)

    def client(role: str) -> ScriptedClient:
        return ScriptedClient.from_function(lambda messages: reply(role, messages[-1].content))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "Exchange", Watched)
        arena = spec.open(client(""), ArenaOptions(limits=Limits(needs_tokens=False)))
        arena.role_clients = {seat: client(seat) for seat in spec.seats}
        requests = [EpisodeRequest("verifiers", {"index": index}) for index in range(tasks)]
        return asyncio.run(arena.generate_rollouts(requests, concurrency=1)), traces


@pytest.mark.parametrize("taskset", ["haggle", "kuhn_poker"])
def test_equal_tasks_and_replies_give_the_transcripts_and_rewards_of_verifiers(taskset: str, haggle: str):
    """``kuhn_poker`` is in the repository of verifiers, not in its package: it runs where that folder is installed."""
    pytest.importorskip(taskset)
    tasks = 3 if taskset == "haggle" else 20
    spec = make_environment("verifiers", {"taskset": taskset, "tasks": tasks})
    results, traces = imported(taskset, tasks, bracketed)
    assert [result.rollout.failure for result in results] == [""] * tasks
    theirs = in_verifiers(taskset, spec.seats, tasks)
    assert sorted(map(conversation, traces)) == sorted(one for episode in theirs for one in episode)
    for result, episode in zip(results, theirs, strict=True):
        for seat in spec.seats:
            rewards = [reward for name, _, reward, _ in episode if name == seat]
            assert result.rollout.rewards[seat] == pytest.approx(sum(rewards))


def test_agents_without_temperature_are_sampled_as_greedily_as_a_model_can_be(haggle: str):
    options = {"buyer": {"sampling": {"temperature": 0}}, "seller": {"sampling": {"temperature": 0.5}}}
    spec = make_environment("verifiers", {"taskset": haggle, "options": options})
    assert isinstance(spec, DatasetSpec)
    assert [role.temperature for role in spec.make_roles()] == [GREEDY_TEMPERATURE, 0.5]


def test_improvised_play_of_an_imported_environment_is_well_formed(haggle: str):
    spec = make_environment("verifiers", {"taskset": haggle})
    assert isinstance(spec, ArenaSpec)
    calls = improvised_calls(spec, 3)
    assert {next(calls).role_id for _ in range(10)} == {"buyer", "seller"}


@pytest.mark.parametrize(
    ("broken", "reason"), [("raises", "RuntimeError: the market is closed"), ("nan", "expected a finite number")]
)
def test_an_environment_that_raises_or_rewards_no_number_fails_the_episode(broken: str, reason: str, haggle: str):
    results, _ = imported(haggle, 1, bracketed, broken=broken)
    assert reason in results[0].rollout.failure


def test_an_environment_that_hangs_fails_the_episode_in_time(haggle: str):
    spec = make_environment("verifiers", {"taskset": haggle})
    assert isinstance(spec, ArenaSpec)
    arena = spec.open(ScriptedClient("[buy]", latency_s=3600), ArenaOptions(limits=Limits(episode_s=0.05)))
    (result,) = asyncio.run(arena.generate_rollouts([EpisodeRequest("verifiers", {"index": 0})]))
    assert result.rollout.failure == "not over after 0.05 s"


def test_environments_that_cannot_be_played_here_are_refused(haggle: str):
    with pytest.raises(ConfigError, match=r"'no-such-taskset' cannot be made"):
        make_environment("verifiers", {"taskset": "no-such-taskset"})
    with pytest.raises(ConfigError, match=r"'haggle' cannot be made .*rouns"):
        make_environment("verifiers", {"taskset": haggle, "options": {"rouns": 3}})


def test_an_exported_match_loads_as_an_episode_and_its_file_as_a_result(tmp_path: Path) -> None:
    from verifiers.v1.episode import WireEpisode
    from verifiers.v1.utils.trace_store import write_episode

    from arena.games import make_game
    from league.queries.match_export import played_turns, verifiers_episode
    from lifecycle.external_results import parse_results
    from tests.builders import match_finished

    game, rng = make_game("kuhn_poker", {}).new(5), Random(1)
    while moving := game.to_move():
        game.apply({seat: game.random_action(seat, rng) for seat in moving})
    scores = game.outcome().scores
    match = match_finished(("a", scores[0]), ("b", scores[1]), game="kuhn_poker")
    seats = [msgspec.structs.replace(seat, role=role) for seat, role in zip(match.seats, game.seats, strict=True)]
    match = msgspec.structs.replace(match, seats=seats)
    episode = WireEpisode.model_validate(verifiers_episode(match, played_turns(match, game.record(), None)))
    assert [(trace.agent.config.model, trace.reward) for trace in episode.traces] == [
        ("a", scores[0]),
        ("b", scores[1]),
    ]
    assert sum(trace.num_turns for trace in episode.traces) == game.outcome().length
    write_episode(tmp_path, episode)
    _, (result,) = parse_results((tmp_path / "traces.jsonl").read_bytes(), "traces.jsonl", "verifiers")
    assert [(seat.role, seat.player, seat.score) for seat in result.seats] == [
        (role, agent, score) for role, agent, score in zip(game.seats, "ab", scores, strict=True)
    ]
