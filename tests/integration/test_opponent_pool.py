"""The opponent pool over HTTP: a real broker, a real inference worker, a real model; sessions survive kills."""

import asyncio
import contextlib
import itertools
import json
import math
import os
import random
import runpy
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import torch

import schemas.events as e
from arena.games import make_game
from inference.http_server import RefusedError
from inference.server.openai_types import ChatCompletionRequest, StructuredOutputs
from inference.server.opponent_pool import SessionRequest
from league.history.corrections import apply_checked, pending_events
from league.history.replay import verify_log
from league.log.base import append_in_batches
from league.log.server import EmbeddedServer, free_port
from league.matchmaking.audit import explain_draw, total_variation
from league.projections.projection import Projection
from league.ratings.fold import RatingFold
from league.run import Run
from league.samplers import agent_probabilities
from league.state import LeagueState
from lifecycle.control import add_agent
from lifecycle.open import open_league
from models.adapter_bundle import pack_folder
from models.adapters import LoraConfig, create, save
from models.decoder import Decoder
from schemas.codec import canonical_json
from schemas.config import AgentConfig, InferenceConfig, LeagueConfig, convert, to_builtins
from schemas.errors import UsageError
from schemas.ids import digest
from workers.opponent_pool import LeagueOpponents
from workers.policy_weights import ModelManager
from workers.runtime import Context, beside

CONFIG = {
    "name": "rps",
    "game": {"name": "rock_paper_scissors"},
    "agents": {
        "base_model": {"kind": "base", "rating": 1000.0, "baseline": True},
        "random_bot": {"kind": "bot", "rating": 800.0, "baseline": True},
    },
    "ratings": {"purposes": ["evaluation", "session"]},
    "model": {"cloning": {"sequences": 32}, "lora_rank": 4},
}
SAID = {"messages": [{"role": "user", "content": "rock"}], "max_tokens": 1, "temperature": 0}


USUAL = {
    "max_tokens": 512,
    "temperature": 1.0,
    "top_p": 1.0,
    "n": 1,
    "seed": None,
    "stop": [],
    "logprobs": False,
    "return_token_ids": False,
    "response_format": {"type": "text"},
}
"""What clients send that ask for nothing in particular."""
UNSUPPORTED: list[tuple[str, str, Any]] = [
    ("n", "n", 2),
    ("allowed_token_ids", "allowed_token_ids", [9]),
    ("logprobs", "logprobs", True),
    ("return_token_ids", "return_token_ids", True),
    ("response_format", "response_format", {"type": "json_object"}),
    ("guided_regex", "structured_outputs", "M.*"),
    ("guided_choice", "structured_outputs", []),
]
"""Fields of requests that neither bots nor remote agents can honour, and their names in the error."""

TOKEN = "a token"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module", autouse=True)
def token() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEAGUE_INFERENCE_TOKEN", TOKEN)
        yield


class Pool:
    """An open league, and its inference worker."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        options = ["--run", str(self.run.folder), "--name", "inference-1", "--port", str(self.port)]
        command = [sys.executable, "-m", "ui", "worker", "inference", *options]
        with (self.run.folder / "inference-1.out").open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def restart(self) -> None:
        """Kill the worker, whatever it does now, and start another one of its name."""
        self.kill()
        self.process = self.start()


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with serving_pool(tmp_path_factory.mktemp("pool") / "run", CONFIG) as serving:
        yield serving


@contextlib.contextmanager
def serving_pool(folder: Path, config: dict[str, Any]) -> Iterator[Pool]:
    """A league with three checkpoints, one of which has the highest rating of all agents."""
    with EmbeddedServer(folder / "nats"):
        run = Run(folder)

        async def opened() -> None:
            async with run.connect("test") as client:
                await open_league(run, client, convert(config, LeagueConfig, ""), lambda *_: None)
            async with following(run) as context:
                for version in (1, 2, 3):
                    await add_checkpoint(context, folder / f"adapter-{version}", version)

        asyncio.run(opened())
        serving = Pool(run)
        try:
            yield serving
        finally:
            serving.kill()


async def add_checkpoint(context: Context, folder: Path, version: int) -> None:
    lora = create(Decoder.load(context.run.model).shape, LoraConfig(rank=4), seed=version)
    with torch.no_grad():
        lora.flat_P.add_(0.3 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(version)))
    save(lora, folder)
    adapter = await context.blobs.put(pack_folder(folder))
    name = f"main@{version}"
    await context.append(e.PolicyPublished(policy="main", version=version, adapter=adapter, parent="base_model"))
    joined = e.CheckpointAdded(
        agent=name,
        policy="main",
        version=version,
        parent="base_model",
        reason="recent",
        adapter=adapter,
        rating=1000.0 + 300 * (version == 2),
    )
    await context.wait_for_sequence(await context.append(joined))


@contextlib.asynccontextmanager
async def following(run: Run) -> AsyncIterator[Context]:
    async with run.open_log("test") as history:
        context = Context(run, history.client, history, "test")
        await context.load_snapshot()
        async with beside(context.follow()):
            await context.wait_for_sequence(await history.last_sequence())
            yield context


async def persistent(client: httpx2.AsyncClient, path: str, body: dict[str, Any]) -> httpx2.Response:
    """The first answer of a server that is up; a client that knows nothing of the server's deaths asks again."""
    async with asyncio.timeout(600):
        while True:
            with contextlib.suppress(httpx2.HTTPError):
                answer = await client.post(path, json=body)
                if answer.status_code != 503:
                    return answer
            await asyncio.sleep(0.05)


Ask = Callable[[Context, httpx2.AsyncClient], Awaitable[None]]


def asking(pool: Pool, ask: Ask) -> None:
    async def run() -> None:
        limits = httpx2.Limits(max_connections=100)
        async with (
            following(pool.run) as context,
            httpx2.AsyncClient(base_url=pool.url, timeout=300, limits=limits, headers=HEADERS) as client,
        ):
            await ask(context, client)

    asyncio.run(run())


async def settled(context: Context) -> LeagueState:
    """The state once everything that is recorded by now is folded."""
    await context.wait_for_sequence(await context.log.last_sequence())
    return context.state


def test_a_session_keeps_its_opponent_and_is_reported_once(pool: Pool) -> None:
    async def ask(context: Context, client: httpx2.AsyncClient) -> None:
        assert (await persistent(client, "/v1/league/agents", {"agent": "grpo"})).json() == {
            "agent": "grpo@0",
            "created": True,
        }
        headers = {"X-League-Session": "game 1", "X-League-Agent": "grpo", "X-League-Seat": "1"}
        body = SAID | {"model": "league/uniform"}
        first = (await client.post("/v1/chat/completions", json=body, headers=headers)).json()
        again = (await client.post("/v1/chat/completions", json=body, headers=headers)).json()
        assert first["league"] == again["league"]
        assert first["model"] == first["league"]["opponent"]
        assert first["choices"][0]["message"]["content"] == again["choices"][0]["message"]["content"]
        report = {"session": "game 1", "agent": "grpo", "scores": [0.0, 1.0], "reason": "rounds", "length": 3}
        told = (await client.post("/v1/league/results", json=report)).json()
        twice = (await client.post("/v1/league/results", json=report)).json()
        assert (told["created"], twice["created"]) == (True, False)
        assert told | {"created": False} == twice
        other = await client.post("/v1/league/results", json=report | {"scores": [1.0, 0.0]})
        assert (other.status_code, "[0.0, 1.0]" in other.text, "[1.0, 0.0]" in other.text) == (409, True, True)
        state = await settled(context)
        [result] = [r.event async for r in context.log.match_ends("session")]
        assert isinstance(result, e.MatchFinished)
        assert [(seat.role, seat.agent, seat.rank) for seat in result.seats] == [
            ("P1", first["league"]["opponent"], 2),
            ("P2", "grpo@0", 1),
        ]
        assert (result.winner, result.reason, result.length) == (1, "rounds", 3)
        assert state.standings().records["grpo"][result.seats[0].agent].wins == 1

    asking(pool, ask)


def test_virtual_models_draw_from_the_standings(pool: Pool) -> None:
    async def ask(context: Context, client: httpx2.AsyncClient) -> None:
        async def opponent(model: str, session: str) -> str:
            found = await persistent(client, "/v1/league/sessions", {"model": model, "session": session})
            return str(found.json()["opponent"])

        assert await opponent("league/best", "a") == "main@2"
        assert await opponent("league/main@1", "b") == "main@1"
        assert await opponent("league/main", "c") == "main@3"
        assert await opponent("league/base_model", "d") == "base_model"
        names = [one["id"] for one in (await client.get("/v1/models")).json()["data"]]
        assert {"league/pfsp", "league/uniform", "league/best", "main"} <= set(names)
        drawn = Counter([await opponent("league/uniform", f"draw {number}") for number in range(60)])
        assert set(drawn) == {"base_model", "main@1", "main@2", "main@3"}
        opened = [r.event async for r in context.log.read(only=e.SessionOpened)]
        uniform = [one for one in opened if isinstance(one, e.SessionOpened) and one.session.startswith("draw")]
        assert all(one.probabilities == dict.fromkeys(sorted(drawn), 0.25) for one in uniform)
        draws = [r.event async for r in context.log.read(only=e.OpponentsSampled)]
        assert {one.match_id for one in opened} == {one.match_id for one in draws}  # type: ignore[union-attr]

    asking(pool, ask)


def test_requests_that_cannot_be_served_say_what_was_expected(pool: Pool) -> None:
    async def ask(_: Context, client: httpx2.AsyncClient) -> None:
        await persistent(client, "/v1/league/sessions", {"model": "league/best", "session": "kept"})
        chat, sessions, results = "/v1/chat/completions", "/v1/league/sessions", "/v1/league/results"
        cases: list[tuple[str, dict[str, Any], int, str]] = [
            (chat, SAID | {"model": "league/pfps"}, 400, "league/pfsp"),
            (chat, SAID | {"model": "league/random_bot"}, 400, "where requests carry league_position"),
            (sessions, {"model": "league/best", "session": "x", "agent": "nobody"}, 404, "no such external agent"),
            (sessions, {"model": "league/best", "session": "x", "seat": 2}, 400, "seat 2; expected 0 to 1"),
            (sessions, {"model": "league/best", "session": "x", "roles": ["a", "b", "c"]}, 400, "3 seats; expected 2"),
            (sessions, {"model": "league/best", "session": ""}, 400, "session"),
            (sessions, {"model": "league/uniform", "session": "kept"}, 409, "opened for 'league/best'"),
            (sessions, {"model": "league/lagged", "session": "x"}, 400, "answers these requests"),
            (results, {"session": "never", "scores": [1, 0]}, 404, "unknown to this agent"),
            (results, {"session": "kept", "scores": [1]}, 400, "found 1; expected 2"),
            ("/v1/league/agents", {"agent": "main"}, 400, "the league has an agent of that name"),
            ("/v1/league/agents", {"agent": "a b"}, 400, "cannot be a name"),
        ]
        for path, body, status, words in cases:
            answer = await client.post(path, json=body)
            assert (answer.status_code, words in answer.text) == (status, True), (path, body, answer.text)

    asking(pool, ask)


def test_bots_reply_to_the_position_or_to_the_legal_replies(pool: Pool) -> None:
    position = make_game("rock_paper_scissors", {}).new(1).save().decode()
    listed = SAID | {"structured_outputs": {"choice": ["paper", "scissors"]}}

    async def ask(context: Context, client: httpx2.AsyncClient) -> None:
        async def chat(session: str, body: dict[str, Any], status: int = 200, **fields: Any) -> dict[str, Any]:
            named = {"model": "league/random_bot", "league_session": session}
            answer = await persistent(client, "/v1/chat/completions", body | named | fields)
            assert answer.status_code == status, answer.text
            return dict(answer.json())

        async def reply(session: str, body: dict[str, Any], **fields: Any) -> str:
            answer = await chat(session, body, **fields)
            assert answer["model"] == "random_bot"
            return str(answer["choices"][0]["message"]["content"])

        first = await reply("b1", SAID, league_position=position)
        assert first in ("MOVE: rock", "MOVE: paper", "MOVE: scissors")
        assert await reply("b1", SAID, league_position=position) == first
        assert (await reply("b1", SAID, league_position=json.loads(position))).startswith("MOVE: ")
        assert await reply("b1", SAID | USUAL, league_position=position) == first
        (cut,) = (await chat("b1", SAID, league_position=position, stop=[":"]))["choices"]
        assert (cut["message"]["content"], cut["finish_reason"], cut["stop_reason"]) == ("MOVE", "stop", ":")
        assert await reply("b2", listed) in ("paper", "scissors")
        refused: list[tuple[str, dict[str, Any], str]] = [
            ("b3", {}, "a bot of the league's game, where requests carry league_position"),
            ("b1", {}, "the request carries no league_position"),
            ("b1", {"league_position": "{}"}, "for the bot random_bot"),
            ("b1", {"league_position": position, "league_role": "P3"}, "expected 'P2'"),
            *(
                ("b1", {"league_position": position, name: value}, f"{field}: random_bot is a bot agent")
                for name, field, value in UNSUPPORTED
            ),
        ]
        for session, fields, words in refused:
            assert words in (await chat(session, SAID, 400, **fields))["error"]["message"]
        result = await client.post("/v1/league/results", json={"session": "b1", "scores": [1, 0]})
        assert result.json()["opponent"] == "random_bot"
        assert "ended at event" in (await chat("b1", SAID, 409, league_position=position))["error"]["message"]
        fields = {"model": "league/uniform", "session": "b4", "position": True}
        match_id = (await persistent(client, "/v1/league/sessions", fields)).json()["match_id"]
        opened = (await settled(context)).sessions.open[match_id]
        assert opened.eligible == ["random_bot"]
        assert opened.probabilities == dict.fromkeys(["base_model", "main@1", "main@2", "main@3", "random_bot"], 0.2)

    asking(pool, ask)


def test_an_agent_that_searches_replies_to_the_position(tmp_path: Path) -> None:
    """Its opponent left one heap of three stones, all of which win at once."""
    searcher = {"kind": "search", "search": {"samples": 32, "rollouts": 8, "horizon": 0, "bot": "random_bot"}}
    nim = {"name": "nim", "settings": {"seats": 2, "heaps": [3, 1], "shuffle": False}}
    config = CONFIG | {"name": "nim", "game": nim, "agents": CONFIG["agents"] | {"searcher": searcher}}  # type: ignore[operator]
    game = make_game("nim", nim["settings"]).new(0)
    game.apply({0: ("2:1",)})

    async def ask(context: Context) -> None:
        models = await ModelManager.load(context)
        opponents = LeagueOpponents(context, models)
        async with beside(opponents.follow()):
            named = {"model": "league/searcher", "session": "s1"}
            with pytest.raises(UsageError, match="an agent that searches or a bot"):
                await opponents.open(SessionRequest(**named))
            session = await opponents.open(SessionRequest(**named, position=True))
            body = msgspec.convert(SAID | {"model": session.opponent}, ChatCompletionRequest)
            positioned = msgspec.structs.replace(body, league_position=game.save().decode())
            replies = [await opponents.reply(session, positioned) for _ in range(2)]
            assert [reply and reply.text for reply in replies] == ["MOVE 1:3"] * 2
            with pytest.raises(RefusedError, match="carries no league_position"):
                await opponents.reply(session, body)
            shaped = msgspec.structs.replace(positioned, structured_outputs=StructuredOutputs(regex="M.*"))
            with pytest.raises(RefusedError, match="structured_outputs: searcher is a search agent"):
                await opponents.reply(session, shaped)
        await opponents.close()
        await models.close()

    in_process(tmp_path, config, ask)


def in_process(folder: Path, config: dict[str, Any], ask: Callable[[Context], Awaitable[None]]) -> None:
    """Open a league without workers, and ask what follows its history."""
    with EmbeddedServer(folder / "nats"):
        run = Run(folder)

        async def opened() -> None:
            async with run.connect("test") as client:
                await open_league(run, client, convert(config, LeagueConfig, ""), lambda *_: None)
            async with following(run) as context:
                await ask(context)

        asyncio.run(opened())


def test_a_bot_of_an_environment_of_roles_keeps_to_choices(tmp_path: Path) -> None:
    config = CONFIG | {"name": "deals", "game": {"name": "negotiation"}}

    async def ask(context: Context) -> None:
        models = await ModelManager.load(context)
        opponents = LeagueOpponents(context, models)
        async with beside(opponents.follow()):
            session = await opponents.open(SessionRequest(model="league/random_bot", session="s1"))
            body = msgspec.convert(SAID | {"model": session.opponent}, ChatCompletionRequest)
            for number in range(4):
                listed = StructuredOutputs(choice=["accept", "reject"])
                said = await opponents.reply(
                    session, msgspec.structs.replace(body, seed=number, structured_outputs=listed)
                )
                assert said is not None
                assert said.text in ("accept", "reject")
        await opponents.close()
        await models.close()

    in_process(tmp_path, config, ask)


def test_a_remote_agent_is_sent_the_conversation_and_its_cost_recorded(
    pool: Pool, chat_server: Callable[..., Any], say: Callable[..., Any]
) -> None:
    choice = {"message": {"content": "MOVE: paper"}, "finish_reason": "length"}
    cut = json.dumps({"choices": [choice], "usage": {"total_tokens": 10}}).encode()
    answers = {1: say("paper"), 2: say(raw=cut)}
    server = chat_server(lambda _, number: answers.get(number) or say("no", status=400))
    remote = {"url": server.url, "model": "m", "prompt_price": 1e6, "completion_price": 1e6}

    async def ask(context: Context, client: httpx2.AsyncClient) -> None:
        agent = convert({"kind": "remote", "remote": remote}, AgentConfig, "")
        for event in add_agent(context.state, "hosted", agent):
            await context.wait_for_sequence(await context.append(event))
        # Recorded after the agent, and answered once it is folded.
        await persistent(client, "/v1/league/agents", {"agent": "customer"})
        body = SAID | {"model": "league/hosted", "league_session": "r", "league_agent": "customer"}
        answer = (await persistent(client, "/v1/chat/completions", body)).json()
        assert (answer["model"], answer["choices"][0]["message"]["content"]) == ("hosted", "paper")
        # By its own temperature and limit, as it is rated.
        sent = {"model": "m", "messages": SAID["messages"], "temperature": 1.0, "max_tokens": 1024}
        assert server.asked[0].body == sent
        other = {"max_tokens": 0, "temperature": -1, "top_p": 0.9, "seed": 3}
        (choice,) = (await client.post("/v1/chat/completions", json=body | other)).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("MOVE: paper", "length")
        assert server.asked[1].body == sent
        for name, field, value in [*UNSUPPORTED, ("guided_choice", "structured_outputs", ["rock"])]:
            refused = await client.post("/v1/chat/completions", json=body | {name: value})
            assert (refused.status_code, f"{field}: hosted is a remote agent" in refused.text) == (400, True)
        chosen = {"model": "league/hosted", "session": "chosen", "choices": True}
        assert "where requests list no choices" in (await client.post("/v1/league/sessions", json=chosen)).text
        failed = await client.post("/v1/chat/completions", json=body)
        assert (failed.status_code, "hosted" in failed.text) == (502, True)
        spending = (await settled(context)).spending["hosted"]
        assert (spending.requests, spending.tokens, spending.cost >= 30) == (3, 30, True)

    asking(pool, ask)


def test_a_session_is_explained_by_its_draw(pool: Pool) -> None:
    async def ask(context: Context, client: httpx2.AsyncClient) -> None:
        fields = {"model": "league/pfsp", "session": "explained", "position": True}
        match_id = (await persistent(client, "/v1/league/sessions", fields)).json()["match_id"]
        opened = (await settled(context)).sessions.open[match_id]
        draws = [r.event async for r in context.log.read(only=e.OpponentsSampled)]
        [drawn] = [one for one in draws if isinstance(one, e.OpponentsSampled) and one.match_id == match_id]
        explained = await explain_draw(context.log, context.blobs, drawn, None)
        assert explained.agrees, explained.differences
        assert agent_probabilities(explained.explanation.distribution) == opened.probabilities
        assert [pick.agent for pick in explained.explanation.picks] == [opened.opponent]

    asking(pool, ask)


def test_versions_join_in_order_and_stand_on_the_board(pool: Pool) -> None:
    async def ask(context: Context, client: httpx2.AsyncClient) -> None:
        for version in (0, 5, 9):
            await persistent(client, "/v1/league/agents", {"agent": "learner", "version": version})
        assert (await client.post("/v1/league/agents", json={"agent": "learner", "version": 7})).status_code == 409
        again = await client.post("/v1/league/agents", json={"agent": "learner", "version": 5})
        assert again.json() == {"agent": "learner@5", "created": False}
        found = await client.post(
            "/v1/league/sessions", json={"model": "league/best", "session": "v", "agent": "learner"}
        )
        assert found.json()["agent"] == "learner@9"
        state = await settled(context)
        member = state.agents["learner@9"]
        assert (member.kind, member.active, member.policy, member.version) == ("external", False, "learner", 9)
        assert state.external_versions["learner"] == 9

    asking(pool, ask)


def test_a_client_that_names_no_session_gets_one_by_its_opening(pool: Pool) -> None:
    async def ask(_: Context, client: httpx2.AsyncClient) -> None:
        async def chat(*texts: str, **fields: Any) -> dict[str, Any]:
            roles = ("user", "assistant", "user")
            messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
            body = SAID | {"model": "league/uniform", "messages": messages} | fields
            return dict((await persistent(client, "/v1/chat/completions", body)).json()["league"])

        first = await chat("two heaps")
        assert await chat("two heaps", "one", "three heaps") == first
        assert (await chat("one heap"))["match_id"] != first["match_id"]
        assert (await chat("two heaps", user="me"))["session"] == "me"
        for number in (1, 2, 3):
            now = await chat("two heaps")
            assert now["session"] == first["session"] + (f" {number}" if number > 1 else "")
            ended = await client.post("/v1/league/results", json={"session": now["session"], "scores": [1, 0]})
            assert ended.json()["created"]

    asking(pool, ask)


def test_a_session_without_a_result_expires_and_takes_none_afterwards(pool: Pool) -> None:
    async def ask(context: Context, client: httpx2.AsyncClient) -> None:
        before = context.config
        await configure(context, msgspec.structs.replace(before, inference=InferenceConfig(session_s=0.1)))
        # Recorded after the configuration, and answered once it is folded.
        await persistent(client, "/v1/league/agents", {"agent": "forgetful"})
        wanted = {"model": "league/best", "session": "forgotten"}
        match_id = (await persistent(client, "/v1/league/sessions", wanted)).json()["match_id"]
        async with asyncio.timeout(300):
            await context.wait_until(lambda: match_id in context.state.sessions.ended)
        ended = context.state.sessions.ended[match_id]
        assert ended.error == "abandoned: no result within 0.1 s"
        late = await client.post("/v1/league/results", json={"session": "forgotten", "scores": [1, 0]})
        assert (late.status_code, "abandoned" in late.text, "[1.0, 0.0]" in late.text) == (409, True, True)
        await configure(context, before)

    asking(pool, ask)


async def configure(context: Context, config: LeagueConfig) -> None:
    """Put a configuration in force, for the worker too: a session that is opened from now on has its settings."""
    fields = to_builtins(config)
    after = context.state.config_sequence
    changed = e.LeagueConfigured(config=fields, config_digest=digest(canonical_json(fields)), after=after)
    await context.wait_for_sequence(await context.append(changed))


def test_a_grpo_loop_trains_against_the_pool_and_its_versions_stand_on_the_leaderboard(pool: Pool) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "grpo_opponent_pool.py"))
    settings = {"model": "league/uniform", "agent": "example", "steps": 2, "group": 3, "every": 1, "seed": 0}

    async def ask(context: Context, client: httpx2.AsyncClient) -> None:
        await persistent(client, "/v1/league/agents", {"agent": "example"})
        policy = await asyncio.to_thread(example["train"], Namespace(url=pool.url, **settings))
        assert policy.shape == (4, 3)
        assert policy.abs().max() > 0
        fold = RatingFold()
        async for recorded in context.log.read():
            apply_checked(fold, recorded)
        await append_in_batches(context.log, await pending_events(context.log, fold))
        with Projection() as projection:
            projection.apply([recorded async for recorded in context.log.read()])
            rows = projection.query(
                "SELECT agent, rated_games, active FROM leaderboard WHERE kind = 'external' AND agent LIKE 'example@%'"
            )
            [[sessions]] = projection.query(
                "SELECT count(*) FROM sessions JOIN matches USING (match_id) WHERE sessions.agent LIKE 'example@%' "
                "AND abs(list_sum(map_values(probabilities)) - 1) < 1e-9"
            )
        assert sorted(map(tuple, rows)) == [("example@0", 3, False), ("example@1", 3, False), ("example@2", 0, False)]
        assert sessions == 6

    asking(pool, ask)


async def under_kills(
    pool: Pool, play: Callable[[int], Awaitable[Any]], sessions: int, kills: int, at_once: int
) -> list[Any]:
    """What the sessions of the numbers below ``sessions`` returned, while the server is killed now and then."""
    rng, waiting, done = random.Random(7), list(range(sessions)), list[Any]()

    async def player() -> None:
        while waiting:
            done.append(await play(waiting.pop()))

    async def killer() -> None:
        for number in range(kills):
            # After a share of the sessions, in the middle of others.
            while len(done) < sessions * (number + rng.random()) / (kills + 1):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            pool.restart()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(at_once):
            tasks.create_task(player())
        tasks.create_task(killer())
    return done


async def check_sessions(context: Context, agent: str, sessions: int) -> None:
    """Every session of an agent ended once, opponents were drawn as often as expected, and a replay is identical."""
    await settled(context)
    opened = [r.event async for r in context.log.read(only=e.SessionOpened)]
    mine = [one for one in opened if isinstance(one, e.SessionOpened) and one.agent == agent]
    ids = {one.match_id for one in mine}
    ends = [r.event async for r in context.log.match_ends("session")]
    results = [one for one in ends if isinstance(one, e.MatchFinished) and one.match_id in ids]
    assert len(mine) == len(ids) == sessions
    assert Counter(one.match_id for one in results) == Counter(ids)
    expected: Counter[str] = Counter()
    for one in mine:
        expected.update({name: probability / sessions for name, probability in one.probabilities.items()})
    drawn = Counter(one.opponent for one in mine)
    distance = total_variation({name: count / sessions for name, count in drawn.items()}, expected)
    # Of a multinomial sample: the mean over agents of the normal distribution's mean deviation.
    noise = sum(math.sqrt(p * (1 - p) / (2 * math.pi * sessions)) for p in expected.values())
    report = await verify_log(context.log)
    print(f"{sessions} sessions, {dict(drawn)}: total variation {distance:.4f}, by chance {noise:.4f}; {report.digest}")
    assert distance < (0.02 if sessions >= 5000 else 4 * noise), drawn
    assert report.is_identical, report.summary


def play_under_kills(pool: Pool, sessions: int, kills: int, at_once: int) -> None:
    """Play sessions from a client that repeats what is not answered, while the server is killed; check what is left."""
    agent = f"resilient-{sessions}"

    async def play(client: httpx2.AsyncClient, number: int) -> str:
        name = f"session {number}"
        ask = {"model": "league/uniform", "league_session": name, "league_agent": agent} | SAID
        opponents = {
            (await persistent(client, "/v1/chat/completions", ask)).json()["league"]["opponent"] for _ in range(2)
        }
        scores = [float(number % 3 == 0), float(number % 3 == 1)]
        report = {"session": name, "agent": agent, "scores": scores}
        answer = await persistent(client, "/v1/league/results", report)
        assert answer.status_code == 200, answer.text
        [opponent] = opponents
        return opponent

    async def ask(context: Context, client: httpx2.AsyncClient) -> None:
        await persistent(client, "/v1/league/agents", {"agent": agent})
        done = await under_kills(pool, partial(play, client), sessions, kills, at_once)
        await check_sessions(context, f"{agent}@0", sessions)
        assert len(done) == sessions

    asking(pool, ask)


def test_a_killed_server_loses_and_doubles_nothing(pool: Pool) -> None:
    play_under_kills(pool, sessions=40, kills=1, at_once=8)


@pytest.mark.slow
def test_twenty_kills_in_five_thousand_sessions(pool: Pool) -> None:
    play_under_kills(pool, sessions=5000, kills=20, at_once=32)


EXPORT = """
from league_environments import export
OwnTaskset, OwnEnv = export({name!r}, {settings!r})
__all__ = ["OwnEnv", "OwnTaskset"]
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("package", ["league_environments", "kuhn_poker"])
def test_verifiers_plays_against_the_pool(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment of the league's, or Kuhn poker of verifiers, which is in its repository and not in its package.

    A made model plays the first seat, and the pool the other one. LEAGUE_SESSIONS and LEAGUE_KILLS make it longer.
    """
    vf = pytest.importorskip("verifiers.v1", reason="make test-environments installs verifiers")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "environments" / "league_environments"))
    pytest.importorskip(package)
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

    sessions, kills = int(os.environ.get("LEAGUE_SESSIONS", "16")), int(os.environ.get("LEAGUE_KILLS", "1"))
    is_own = package == "league_environments"
    name = "negotiation" if is_own else "verifiers"
    settings: dict[str, Any] = {} if is_own else {"taskset": package}
    (tmp_path / "own_environment.py").write_text(EXPORT.format(name=name, settings=settings))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_environment", raising=False)

    async def ask(context: Context, client: httpx2.AsyncClient) -> None:
        await persistent(client, "/v1/league/agents", {"agent": "learner", "version": 3})
        url = f"{pool.url}/v1"
        seat: dict[str, Any] = {"harness": {"id": "league_chat"}, "runtime": {"type": "subprocess"}}
        seat |= {"sampling": {"max_tokens": 16}}
        seats = {"player0": seat, "player1": seat}
        options = {"opponent_base_url": url, "opponent_for": "learner", "learner": "player0"}
        env = load_environment(resolve_env_config({"taskset": {"id": "own_environment"}, **seats, **options}))
        model = vf.ModelContext("base_model", vf.EvalClientConfig(base_url=url, api_key_var="LEAGUE_INFERENCE_TOKEN"))
        async with env.serving():
            tasks = list(itertools.islice(env.taskset, sessions))

            async def play(number: int) -> Any:
                episode = await env.run_episode(tasks[number], model)
                assert episode.ok, episode.errors
                return episode

            await under_kills(pool, play, sessions, kills, at_once=8)
        await check_sessions(context, "learner@3", sessions)
        if is_own:
            await evaluate(url, tmp_path)
            await check_sessions(context, "guest@0", 2)

    game = {"name": name, "settings": settings}
    with serving_pool(tmp_path / "run", CONFIG | {"game": game}) as pool:
        asking(pool, ask)


async def evaluate(url: str, folder: Path) -> None:
    """Two episodes by the command of verifiers, with the pool as the second player."""
    options = f"-n 2 -r 1 -c 1 -m base_model --client.base-url {url} --no-push --no-rich"
    options += " --client.api-key-var LEAGUE_INFERENCE_TOKEN"
    limits = " ".join(f"--env.player{seat}.sampling.max-tokens 16" for seat in (0, 1))
    process = await asyncio.create_subprocess_exec(
        Path(sys.executable).with_name("vf-eval"),
        *f"league-negotiation {options} {limits} --env.opponent-base-url {url} -o {folder / 'evaluation'}".split(),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-2000:]
