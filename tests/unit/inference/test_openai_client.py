"""Servers with OpenAI's interface as clients of episodes: tokens only where all is told, patience, and no lost keys."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from inference import make_backend
from inference.remote import OWNER
from inference.server.app import InferenceServer
from models import Tokenizer, make_base
from players.policy import BackendClient
from players.remote.openai_client import OPENAI_URL, OPENROUTER_URL, OpenAIClient, OpenAIClientConfig
from schemas.episodes import Message
from schemas.errors import ConfigError, RemoteError
from tests.servers import LoadedModels

SPECIAL = ["<pad>", "<eos>", "<unk>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
TALK = [Message("user", "hello")]
QUICK = OpenAIClientConfig(timeout_s=60.0, tries=2, first_pause_s=0.01, asks_tokens=True)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every byte a token, and the marks of Qwen3's conversations."""
    size = len(SPECIAL) + 256
    folder = make_base(tmp_path_factory.mktemp("base"), [f"w{i}" for i in range(size - 3)], seed=1)
    written = tokenizers.ByteLevelBPETokenizer()
    written.train_from_iterator(["a"], vocab_size=size, special_tokens=SPECIAL)
    written.save(str(folder / "tokenizer.json"))
    return folder


def asking(
    url: str, work: Callable[[OpenAIClient], Awaitable[Any]], manner: OpenAIClientConfig = QUICK, model: str = "m"
) -> Any:
    async def run() -> Any:
        client = OpenAIClient(None, model, url, manner=manner)
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())


def told(**other: Any) -> bytes:
    choice = {
        "message": {"content": "yes"},
        "finish_reason": "stop",
        "token_ids": [4, 5],
        "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1.5}]},
        **other,
    }
    return json.dumps({"choices": [choice], "prompt_token_ids": [1, 2, 3]}).encode()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_our_own_server_tells_the_tokens_that_the_model_samples_in_process(base, temperature):
    async def run() -> None:
        backend, server = make_backend("local", base), InferenceServer()
        await server.start()
        server.serve(LoadedModels(backend, Tokenizer(base)))
        client = OpenAIClient.for_local(server.port)
        near = await BackendClient(backend, Tokenizer(base)).complete(TALK, temperature, 12, seed=7)
        far = await client.complete(TALK, temperature, 12, seed=7)
        assert far.tokens is not None
        assert near.tokens is not None
        assert far.text == near.text
        assert far.tokens.prompt_ids == near.tokens.prompt_ids
        assert far.tokens.completion_ids == near.tokens.completion_ids
        assert far.tokens.logprobs == pytest.approx(near.tokens.logprobs, abs=1e-5)
        assert (far.finish_reason, far.tokens.temperature) == (near.finish_reason, temperature)
        assert await client.get_policy_version() == 0
        await client.close()
        await server.stop()
        await backend.close()

    asyncio.run(run())


def test_tokens_that_are_told_in_full_come_with_the_reply(chat_server, say):
    server = chat_server(lambda *_: say(raw=told()))
    reply = asking(server.url, lambda client: client.complete(TALK, seed=11))
    assert (reply.tokens.prompt_ids, reply.tokens.completion_ids) == ([1, 2, 3], [4, 5])
    assert reply.tokens.logprobs == [-0.5, -1.5]
    body = server.asked[0].body
    assert (body["seed"], body["return_token_ids"], body["logprobs"], body["top_p"]) == (11, True, True, 1.0)


@pytest.mark.parametrize(
    "missing",
    [
        {"token_ids": None},
        {"logprobs": None},
        {"logprobs": {"content": None}},
        {"logprobs": {"content": [{"logprob": -0.5}]}},
        {"logprobs": {"content": [{"logprob": -0.5}, {"logprob": 0.5}]}},
    ],
)
def test_a_reply_whose_tokens_are_not_all_told_is_text_alone(chat_server, say, missing):
    server = chat_server(lambda *_: say(raw=told(**missing)))
    reply = asking(server.url, lambda client: client.complete(TALK))
    assert (reply.text, reply.tokens) == ("yes", None)


def test_log_probabilities_of_another_temperature_than_sampled_are_not_trained_on(chat_server, say):
    server = chat_server(lambda *_: say(raw=told()))
    reply = asking(server.url, lambda client: client.complete(TALK, temperature=0.5))
    assert (reply.text, reply.tokens) == ("yes", None)


def test_a_leagues_own_server_is_believed_and_says_which_version_spoke(chat_server, say):
    raw = json.dumps({**json.loads(told()), "system_fingerprint": OWNER, "model": "main@7"}).encode()
    server = chat_server(lambda *_: say(raw=raw))
    tokens = asking(server.url, lambda client: client.complete(TALK, temperature=0.5), model="main").tokens
    assert (tokens.version, tokens.temperature) == (7, 0.5)
    other = chat_server(lambda *_: say(raw=raw.replace(OWNER.encode(), b"fp_1")))
    assert asking(other.url, lambda client: client.complete(TALK), model="main").tokens.version == 0
    assert asking(other.url, lambda client: client.get_policy_version(), model="main@12") == 12


def test_a_server_that_is_not_known_to_understand_tokens_is_not_asked_for_them(chat_server, say):
    server = chat_server(lambda *_: say("yes"))
    manner = OpenAIClientConfig(tries=1)
    reply = asking(server.url, lambda client: client.complete(TALK), manner)
    assert (reply.text, reply.tokens) == ("yes", None)
    assert set(server.asked[0].body) == {"model", "messages", "temperature", "max_tokens", "seed"}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"raw": b"oops", "status": 500}, "status 500"),
        ({"raw": b'{"choices": [{"mess'}, "no chat completion"),
        ({"raw": b'{"x": ' + b"[" * 100_000}, "no chat completion"),
        ({"raw": b'{"choices": []}'}, "without any choice"),
        ({"raw": b'{"choices": [{"message": {"content": 7}}]}'}, "no chat completion"),
        ({"raw": told(token_ids=["a"])}, "no chat completion"),
        ({"text": "late", "after_s": 5.0}, "no reply within"),
        ({"raw": b"x" * 65536, "endless": True}, "bytes"),
        ({"text": "cut", "headers": {"Content-Length": "5000"}}, "connection"),
    ],
)
def test_a_server_that_misbehaves_is_asked_again_and_then_named(chat_server, say, bad, why):
    server = chat_server(lambda *_: say(**bad))
    manner = OpenAIClientConfig(
        timeout_s=0.5 if "after_s" in bad else 60.0, tries=2, first_pause_s=0.01, asks_tokens=True
    )
    with pytest.raises(RemoteError, match=why) as caught:
        asking(server.url, lambda client: client.complete(TALK), manner)
    assert server.url.split("/")[2] in str(caught.value)
    # A request is counted when its turn comes, which may be after its client has gone.
    deadline = time.monotonic() + 300
    while len(server.asked) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(server.asked) == 2


def test_a_server_that_recovers_gives_its_reply_after_as_long_as_it_asked_for(chat_server, say):
    busy = say("busy", status=429, headers={"Retry-After": "0.2"})
    server = chat_server(lambda _, number: busy if number == 1 else say(raw=told()))
    assert asking(server.url, lambda client: client.complete(TALK)).text == "yes"
    assert len(server.asked) == 2


def test_null_content_is_an_empty_reply(chat_server, say):
    server = chat_server(lambda *_: say(None))
    assert asking(server.url, lambda client: client.complete(TALK)).text == ""


def test_no_more_requests_are_under_way_than_allowed(chat_server, say):
    server = chat_server(lambda *_: say("yes", after_s=0.02))

    async def many(client: OpenAIClient) -> None:
        await asyncio.gather(*(client.complete(TALK) for _ in range(12)))

    asking(server.url, many, OpenAIClientConfig(concurrency=3))
    assert server.most_at_once <= 3


def test_keys_are_found_by_name_and_never_told(monkeypatch, chat_server, say):
    for name in ("OPENROUTER_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="OPENROUTER_API_KEY or OPENAI_API_KEY"):
        OpenAIClient.for_openrouter(model="openai/some")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-hidden-1234567890")
    there = OpenAIClient.for_openrouter(model="openai/some")
    assert (there._url, there.model) == (OPENAI_URL, "some")
    monkeypatch.setenv("OPENROUTER_API_KEY", "sk-other-1234567890")
    assert OpenAIClient.for_openrouter(model="openai/some")._url == OPENROUTER_URL
    assert OpenAIClient()._url == OPENROUTER_URL
    server = chat_server(lambda asked, _: say(raw=str(asked.headers).encode(), status=400))
    client = OpenAIClient("sk-hidden-1234567890", "m", server.url, manner=QUICK)
    with pytest.raises(RemoteError) as caught:
        asyncio.run(client.complete(TALK))
    assert server.asked[0].headers["Authorization"] == "Bearer sk-hidden-1234567890"
    assert "sk-hidden" not in str(caught.value)
