"""A real inference worker: it follows the history, finds adapters by digest, refuses bad ones, drains and leaves."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import msgspec
import pytest
import torch

from arena.constraints.constraint_slices import slice_constraint
from arena.constraints.token_walk import ListConstraint
from inference import InferenceBackend, Request, SamplingParameters, make_backend
from inference.remote import CONTENT_TYPE, AssignedPolicy, GenerateCall, GenerateReply
from league.log.server import EmbeddedServer, free_port
from league.run import Run
from lifecycle.open import open_league
from models.adapter_bundle import pack_folder
from models.adapters import LoraConfig, create, save
from models.decoder import Decoder
from schemas.config import LeagueConfig, convert
from schemas.events import PolicyPublished, WorkerLeft
from workers.inference_server import serve
from workers.runtime import Context, beside

CONFIG = {
    "name": "nim",
    "game": {"name": "nim", "settings": {"seats": 2, "heaps": [2, 3]}},
    "agents": {
        "base_model": {"kind": "base", "rating": 1000.0, "baseline": True},
        "random_bot": {"kind": "bot", "rating": 800.0, "baseline": True},
    },
    "model": {"cloning": {"sequences": 32}, "lora_rank": 4},
    "inference": {"max_adapters": 2},
}
PROMPT, PLANS = [3, 4, 5], ListConstraint([(3, 4), (5, 6, 7), (8,)])


class Serving(NamedTuple):
    """A league, and a worker that serves it."""

    run: Run
    url: str
    process: subprocess.Popen[bytes]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """An open league. Its broker outlives the connections, since the worker is slow to come."""
    folder = tmp_path_factory.mktemp("serving") / "run"
    with EmbeddedServer(folder / "nats"):
        run = Run(folder)

        async def opened() -> None:
            async with run.connect("test") as client:
                await open_league(run, client, convert(CONFIG, LeagueConfig, ""), lambda *_: None)

        asyncio.run(opened())
        yield run


@contextlib.contextmanager
def started(run: Run, name: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker for the length of a block: while one is left, nobody stops the broker."""
    worker = ["worker", "inference", "--run", str(run.folder), "--name", name]
    command = [sys.executable, "-m", "ui", *worker, *arguments]
    with (run.folder / f"{name}.out").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.asynccontextmanager
async def following(run: Run) -> AsyncIterator[Context]:
    async with run.open_log("test") as history:
        context = Context(run, history.client, history, "test")
        await context.load_snapshot()
        async with beside(context.follow()):
            await context.wait_for_sequence(await history.last_sequence())
            yield context


def url_of(run: Run, name: str) -> str:
    async def told() -> str:
        async with following(run) as context, asyncio.timeout(300):
            await context.wait_until(lambda: bool((worker := context.state.workers.get(name)) and worker.url))
            return context.state.workers[name].url

    return asyncio.run(told())


@pytest.fixture(scope="module")
def serving(run: Run) -> Iterator[Serving]:
    with started(run, "inference-1") as process:
        yield Serving(run, url_of(run, "inference-1"), process)


Ask = Callable[[Context, httpx2.AsyncClient], Awaitable[None]]


def asked(serving: Serving, ask: Ask) -> None:
    async def all_of_it() -> None:
        headers = {"Authorization": f"Bearer {serving.run.read_inference_token()}", "Content-Type": CONTENT_TYPE}
        async with (
            following(serving.run) as context,
            httpx2.AsyncClient(base_url=serving.url, timeout=300, headers=headers) as client,
        ):
            await ask(context, client)

    asyncio.run(all_of_it())


def made_adapter(run: Run, folder: Path, seed: int) -> bytes:
    lora = create(Decoder.load(run.model).shape, LoraConfig(rank=4), seed=seed)
    with torch.no_grad():
        lora.flat_P.add_(0.3 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(seed)))
    save(lora, folder)
    return pack_folder(folder)


async def publish(context: Context, adapter: bytes) -> AssignedPolicy:
    """What is to be served once the next version of the policy is."""
    digest, live = await context.blobs.put(adapter), context.state.live_version("main")
    version = 1 if live is None else live.version + 1
    published = PolicyPublished(policy="main", version=version, adapter=digest, parent="base_model")
    await context.wait_for_sequence(await context.append(published))
    return AssignedPolicy("main", version, digest)


async def until(client: httpx2.AsyncClient, path: str, holds: Callable[[httpx2.Response], bool]) -> dict[str, Any]:
    async with asyncio.timeout(300):
        while not holds(answer := await client.get(path)):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    found: dict[str, Any] = answer.json()
    return found


async def served(client: httpx2.AsyncClient, published: AssignedPolicy) -> None:
    await until(client, "/adapters/version", lambda answer: answer.json() == msgspec.to_builtins(published))


def test_the_newest_version_is_served_soon_after_it_was_published(serving: Serving, tmp_path: Path) -> None:
    async def ask(context: Context, client: httpx2.AsyncClient) -> None:
        published = await publish(context, made_adapter(serving.run, tmp_path, 1))
        await served(client, published)
        digest, agent = published.adapter, f"main@{published.version}"
        body = {"prompt": PROMPT, "max_tokens": 6, "seed": 2, "return_token_ids": True}
        said = {}
        for model in ("main", agent, digest, "base_model"):
            answer = (await client.post("/v1/completions", json=body | {"model": model})).json()
            said[model] = (answer["model"], answer["choices"][0]["token_ids"])
        assert said["main"] == said[agent]
        assert (said["main"][0], said[digest][1]) == (agent, said["main"][1])
        assert said["base_model"][0] == "base_model"

    asked(serving, ask)


def test_an_adapter_is_found_by_its_digest_and_sampled_from(serving: Serving, tmp_path: Path) -> None:
    async def ask(context: Context, client: httpx2.AsyncClient) -> None:
        digest = await context.blobs.put(made_adapter(serving.run, tmp_path, 2))
        backend = make_backend("local", serving.run.model)
        backend.load_adapter(digest, tmp_path)
        for seed in range(5):
            call = GenerateCall(PROMPT, digest, SamplingParameters(seed=seed), slice_constraint(PLANS, 50))
            answer = await client.post("/generate", content=msgspec.msgpack.encode(call))
            reply = msgspec.msgpack.decode(answer.content, type=GenerateReply)
            own = await backend.generate(Request(PROMPT, digest, PLANS, SamplingParameters(seed=seed)))
            assert reply.generation.completion_ids == own.completion_ids
            assert reply.generation.logprobs == pytest.approx(own.logprobs, abs=1e-5)
        await backend.close()

    asked(serving, ask)


def test_adapters_that_nobody_uses_make_room(serving: Serving, tmp_path: Path) -> None:
    async def ask(context: Context, client: httpx2.AsyncClient) -> None:
        live = await publish(context, made_adapter(serving.run, tmp_path / "live", 9))
        await served(client, live)
        digests = []
        for seed in range(3, 6):
            digests.append(await context.blobs.put(made_adapter(serving.run, tmp_path / str(seed), seed)))
            answer = await client.post("/v1/load_lora_adapter", json={"lora_name": digests[-1]})
            assert (answer.status_code, "Success" in answer.text) == (200, True)
        assert (await client.get("/stats")).json()["adapters"] == 2
        body = {"model": digests[0], "prompt": PROMPT, "max_tokens": 2}
        answers = await asyncio.gather(*(client.post("/v1/completions", json=body | {"model": d}) for d in digests * 3))
        assert {answer.status_code for answer in answers} == {200}
        (last,) = [m["id"] for m in (await client.get("/v1/models")).json()["data"] if m["id"] in digests]
        assert (await client.post("/v1/unload_lora_adapter", json={"lora_name": last})).status_code == 200
        again = await client.post("/v1/unload_lora_adapter", json={"lora_name": last})
        assert (again.status_code, "not loaded" in again.text) == (404, True)
        kept = await client.post("/v1/unload_lora_adapter", json={"lora_name": live.adapter})
        assert (kept.status_code, "in use" in kept.text) == (400, True)

    asked(serving, ask)


def test_missing_and_unsound_adapters_are_refused_and_the_version_before_serves_on(
    serving: Serving, tmp_path: Path
) -> None:
    async def ask(context: Context, client: httpx2.AsyncClient) -> None:
        missing = await client.post("/v1/completions", json={"model": "ab" * 32, "prompt": PROMPT})
        assert (missing.status_code, "is not in" in missing.text) == (404, True)
        torn = await context.blobs.put(made_adapter(serving.run, tmp_path, 7)[:2000])
        answer = await client.post(
            "/generate", content=msgspec.msgpack.encode(GenerateCall(PROMPT, torn, SamplingParameters()))
        )
        assert (answer.status_code, "truncated" in answer.text) == (400, True)
        await publish(context, b"no adapter at all")
        sound = await publish(context, made_adapter(serving.run, tmp_path, 8))
        await served(client, sound)
        await publish(context, b"none again")
        await asyncio.sleep(1.0)
        await served(client, sound)
        assert (await client.post("/v1/completions", json={"model": "main", "prompt": PROMPT})).status_code == 200

    asked(serving, ask)


def test_names_that_are_nothing_here_are_told_what_there_is(serving: Serving) -> None:
    async def ask(_: Context, client: httpx2.AsyncClient) -> None:
        for model in ("mian", "main@99", "main@01", "random_bot"):
            answer = await client.post("/v1/completions", json={"model": model, "prompt": PROMPT})
            error = answer.json()["error"]
            assert (answer.status_code, error["param"]) == (404, "model")
            assert f"model {model!r}: no such one; expected 'base_model' or 'main'" in error["message"]

    asked(serving, ask)


def test_it_says_that_it_is_loading_until_its_model_is_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = threading.Event()

    def slowly(*arguments: Any, **settings: Any) -> InferenceBackend:
        assert loaded.wait(300)
        return make_backend(*arguments, **settings)

    async def loads() -> None:
        port = free_port()
        headers = {"Authorization": f"Bearer {run.read_inference_token()}"}
        url = f"http://127.0.0.1:{port}"
        async with following(run) as context, httpx2.AsyncClient(base_url=url, headers=headers) as client:
            worker = asyncio.create_task(serve(context, port))
            async with asyncio.timeout(300):
                while (health := await answer_of(client)) is None:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.02)
            assert (health.status_code, health.json()["status"]) == (503, "loading")
            assert (await client.post("/v1/completions", json={})).status_code == 503
            loaded.set()
            await until(client, "/health", lambda answer: answer.status_code == 200)
            context.stop()
            await worker
            assert await answer_of(client) is None

    monkeypatch.setattr("workers.policy_weights.make_backend", slowly)
    asyncio.run(loads())


async def answer_of(client: httpx2.AsyncClient) -> httpx2.Response | None:
    with contextlib.suppress(httpx2.ConnectError):
        return await client.get("/health")
    return None


def test_a_second_worker_on_the_same_port_says_so_and_leaves(serving: Serving) -> None:
    port = serving.url.rpartition(":")[2]
    with started(serving.run, "inference-2", "--port", port) as other:
        assert other.wait(timeout=600) == 1
    assert f"cannot listen on 127.0.0.1:{port}" in (serving.run.folder / "inference-2.out").read_text()


def test_requests_without_the_runs_token_are_refused(serving: Serving) -> None:
    assert httpx2.post(f"{serving.url}/v1/league/sessions", json={}).status_code == 401
    assert httpx2.get(f"{serving.url}/health").status_code == 200
    assert (serving.run.folder / "inference.token").stat().st_mode & 0o077 == 0


def test_port_is_for_inference_workers_alone(run: Run) -> None:
    command = [sys.executable, "-m", "ui", "worker", "rater", "--run", str(run.folder), "--port", "1"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (result.returncode, "--port 1: expected" in result.stderr) == (2, True)


def test_told_to_stop_it_finishes_what_it_has_and_leaves(serving: Serving) -> None:
    async def ask(context: Context, client: httpx2.AsyncClient) -> None:
        body = {"model": "base_model", "prompt": PROMPT, "max_tokens": 1500, "allowed_token_ids": [3, 4], "seed": 1}
        under_way = asyncio.create_task(client.post("/v1/completions", json=body))
        await until(client, "/health", lambda answer: answer.json()["inside"] == 1)
        os.kill(serving.process.pid, signal.SIGTERM)
        await until(client, "/health", lambda answer: answer.status_code == 503)
        assert (await client.post("/v1/completions", json=body)).status_code == 503
        done = await under_way
        assert (done.status_code, done.json()["usage"]["completion_tokens"]) == (200, 1500)
        assert await asyncio.to_thread(serving.process.wait, 300) == 0
        await context.wait_for_sequence(await context.log.last_sequence())
        assert context.state.workers["inference-1"].left == "done"
        left = await context.log.newest(WorkerLeft)
        assert left is not None

    asked(serving, ask)
