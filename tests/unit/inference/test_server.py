"""The HTTP server of an inference process, over a real backend with a small model, asked by a real client."""

import asyncio
import json
import math
import re
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import tokenizers
import torch

from arena.constraints.constraint_slices import slice_constraint
from arena.constraints.tagged import UntilStopToken
from arena.constraints.token_walk import ANY_TOKEN, Constraint, ListConstraint
from arena.prompts import make_template
from inference import Generation, InferenceBackend, Request, SamplingParameters, make_backend
from inference.engine import Engine
from inference.remote import (
    CONTENT_TYPE,
    CallResult,
    FrameDecoder,
    GenerateCall,
    GenerateReply,
    encode_calls,
    encode_frame,
)
from inference.remote.load_balancer import ServersConfig
from inference.server.app import MAX_BODY_BYTES, InferenceServer
from inference.server.generate_route import MAX_CALLS
from inference.server.openai_types import CompletionRequest
from inference.server.output_constraints import (
    StopStringConstraint,
    TextCodec,
    TokenTexts,
    split_reasoning,
    truncate_at_stop,
)
from inference.servers import ServersBackend
from models import Tokenizer, make_base
from models.adapters import LoraConfig, create, save
from models.decoder import Decoder
from schemas.config import InferenceConfig, LeagueConfig
from schemas.errors import ConfigError, UsageError
from tests.packed_forward import forward_packed
from tests.servers import LoadedModels
from workers.discover_servers import check_servers
from workers.supervisor import make_worker_specs

SPECIAL = ["<pad>", "<eos>", "<unk>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"]
VOCABULARY = len(SPECIAL) + 256
PLANS = ListConstraint([(50, 90, 30), (50, 90, 40, 70, 71), (50, 90, 40, 70, 80), (60, 100), (110, 120, 130, 140)])
PROMPT = [70, 80, 90, 100]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every byte a token, and the marks of Qwen3's conversations."""
    folder = make_base(tmp_path_factory.mktemp("base"), [f"w{i}" for i in range(VOCABULARY - 3)], seed=1)
    written = tokenizers.ByteLevelBPETokenizer()
    written.train_from_iterator(["a"], vocab_size=VOCABULARY, special_tokens=SPECIAL)
    written.save(str(folder / "tokenizer.json"))
    assert len(Tokenizer(folder)) == VOCABULARY
    return folder


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    lora = create(Decoder.load(base).shape, LoraConfig(rank=4), seed=1)
    with torch.no_grad():
        lora.flat_P.add_(0.2 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(1)))
    folder = tmp_path_factory.mktemp("adapter")
    save(lora, folder)
    return folder


Ask = Callable[[httpx2.AsyncClient, InferenceServer, InferenceBackend], Awaitable[None]]


@pytest.fixture
def served(base: Path, adapter: Path) -> Callable[..., None]:
    """Runs a coroutine function against a server; ``most`` bounds its completions."""

    async def run(ask: Ask, most: int) -> None:
        backend = make_backend("local", base)
        backend.load_adapter("a1", adapter)
        server = InferenceServer("here", most)
        await server.start()
        server.serve(LoadedModels(backend, Tokenizer(base), ["a1"]))
        url, headers = f"http://127.0.0.1:{server.port}", {"Content-Type": CONTENT_TYPE}
        async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=300) as client:
            await ask(client, server, backend)
        await server.stop()
        await backend.close()

    return lambda ask, most=100: asyncio.run(run(ask, most))


async def generate(client: httpx2.AsyncClient, call: GenerateCall) -> GenerateReply:
    answer = await client.post(
        "/generate", content=msgspec.msgpack.encode(call), headers={"Content-Type": CONTENT_TYPE}
    )
    assert answer.status_code == 200, answer.text
    return msgspec.msgpack.decode(answer.content, type=GenerateReply)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


def essence(generation: Generation) -> tuple[Any, ...]:
    rounded = [round(logprob, 5) for logprob in generation.logprobs]
    return generation.completion_ids, generation.branches, rounded, generation.allowed, generation.finish_reason


@pytest.mark.parametrize("adapter_name", [None, "a1"])
@pytest.mark.parametrize("constraint", [PLANS, None])
def test_generate_answers_what_the_backend_itself_samples(served, adapter_name, constraint: Constraint | None):
    async def ask(client, _, backend):
        for seed in range(6):
            sampling = SamplingParameters(0.8, seed, 9, (1.0, 0.7)[seed % 2])
            constraint_slice = None if constraint is None else slice_constraint(constraint, 100)
            reply = await generate(client, GenerateCall(PROMPT, adapter_name, sampling, constraint_slice))
            own = await backend.generate(Request(PROMPT, adapter_name, constraint, sampling))
            assert essence(reply.generation) == essence(own)
            assert not reply.is_truncated

    served(ask)


def test_generate_stops_at_the_end_of_a_slice_and_says_so(served):
    async def ask(client, *_):
        cut = 0
        for seed in range(12):
            reply = await generate(
                client, GenerateCall(PROMPT, None, SamplingParameters(seed=seed), slice_constraint(PLANS, 2))
            )
            said = reply.generation.completion_ids
            whole = any(tuple(said) == plan for plan in ((50, 90, 30), (60, 100), (110, 120, 130, 140)))
            assert reply.is_truncated != whole
            cut += reply.is_truncated
        assert cut

    served(ask)


def test_completions_are_those_of_their_seed_with_logprobs_of_every_token(served):
    async def ask(client, _, backend):
        asked = {"model": "a1", "prompt": PROMPT, "max_tokens": 8, "seed": 5, "temperature": 0.7, "logprobs": 1}
        body = (await client.post("/v1/completions", json=asked | {"n": 2, "return_token_ids": True})).json()
        assert (body["model"], body["object"], len(body["choices"])) == ("a1", "text_completion", 2)
        for index, choice in enumerate(body["choices"]):
            own = await backend.generate(Request(PROMPT, "a1", None, SamplingParameters(0.7, 5 + index, 8)))
            assert (choice["token_ids"], choice["prompt_token_ids"]) == (own.completion_ids, PROMPT)
            assert choice["logprobs"]["token_logprobs"] == pytest.approx(own.logprobs, abs=1e-5)
            assert choice["finish_reason"] == own.finish_reason
        said = sum(len(choice["token_ids"]) for choice in body["choices"])
        assert body["usage"]["prompt_tokens"] == len(PROMPT)
        assert (body["usage"]["completion_tokens"], body["usage"]["total_tokens"]) == (said, said + len(PROMPT))

    served(ask)


def test_several_prompts_of_text_are_answered_in_order(served, base):
    async def ask(client, *_):
        asked = {
            "model": "base_model",
            "prompt": ["north", "sea"],
            "max_tokens": 5,
            "seed": 1,
            "return_token_ids": True,
        }
        body = (await client.post("/v1/completions", json=asked)).json()
        prompts = [Tokenizer(base).encode_text(text) for text in ("north", "sea")]
        assert [choice["prompt_token_ids"] for choice in body["choices"]] == prompts
        alone = (await client.post("/v1/completions", json=asked | {"prompt": "sea"})).json()
        assert alone["choices"][0]["token_ids"] == body["choices"][1]["token_ids"]

    served(ask)


def test_temperature_zero_takes_the_likeliest_token_whatever_the_seed(served, base):
    async def ask(client, *_):
        decoder, said = Decoder.load(base), []
        for seed in range(3):
            asked = {"model": "base_model", "prompt": PROMPT, "max_tokens": 4, "seed": seed, "temperature": 0}
            body = (await client.post("/v1/completions", json=asked | {"return_token_ids": True})).json()
            said.append(body["choices"][0]["token_ids"])
        ids = list(PROMPT)
        with torch.no_grad():
            for _ in range(4):
                logits_TV = decoder.logits(forward_packed(decoder, torch.tensor(ids), [len(ids)], None))
                ids.append(int(logits_TV[-1].argmax()))
        assert said == [ids[len(PROMPT) :]] * 3

    served(ask)


def test_only_listed_tokens_are_sampled_and_the_end_only_if_it_is_listed(served):
    async def ask(client, *_):
        asked = {"model": "base_model", "prompt": PROMPT, "max_tokens": 12, "return_token_ids": True}
        for seed in range(8):
            body = await client.post("/v1/completions", json=asked | {"allowed_token_ids": [9, 20, 30], "seed": seed})
            (choice,) = body.json()["choices"]
            assert (set(choice["token_ids"]) <= {9, 20, 30}, len(choice["token_ids"])) == (True, 12)
            body = await client.post("/v1/completions", json=asked | {"allowed_token_ids": [9, 1], "seed": seed})
            (choice,) = body.json()["choices"]
            assert (choice["finish_reason"] == "stop") == (choice["token_ids"][-1] == 1)
            assert 1 not in choice["token_ids"][:-1]

    served(ask)


def test_a_conversation_follows_the_familys_template(served, base):
    async def ask(client, _, backend):
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Go"}]},
        ]
        asked = {"model": "a1", "messages": messages, "seed": 3, "max_tokens": 6, "logprobs": True}
        body = (await client.post("/v1/chat/completions", json=asked | {"return_token_ids": True})).json()
        (choice,) = body["choices"]
        prompt = Tokenizer(base).decode(choice["prompt_token_ids"])
        assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nGo<|im_end|>\n")
        own = await backend.generate(Request(choice["prompt_token_ids"], "a1", None, SamplingParameters(1.0, 3, 6)))
        assert choice["token_ids"] == own.completion_ids
        assert choice["message"]["role"] == "assistant"
        assert prompt.endswith("assistant\n<think>\n\n</think>\n\n")
        asked["chat_template_kwargs"] = {"enable_thinking": True}
        body = (await client.post("/v1/chat/completions", json=asked | {"return_token_ids": True})).json()
        assert Tokenizer(base).decode(body["choices"][0]["prompt_token_ids"]).endswith("assistant\n")
        told = [one["logprob"] for one in choice["logprobs"]["content"]]
        assert told == pytest.approx(own.logprobs, abs=1e-5)

    served(ask)


SCHEMA = {
    "type": "object",
    "properties": {"move": {"enum": ["hold", "retreat"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["move", "count"],
    "additionalProperties": False,
}
MOVES = {"hold", "retreat"}


def is_order(text: str) -> bool:
    found = json.loads(text)
    return set(found) == {"move", "count"} and found["move"] in MOVES and 0 <= found["count"] < 100


@pytest.mark.parametrize(
    ("limit", "holds"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "order", "schema": SCHEMA}}}, is_order),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, is_order),
        ({"structured_outputs": {"regex": "[a-c]{3}-[0-9]"}}, re.compile("[a-c]{3}-[0-9]").fullmatch),
        (
            {"structured_outputs": {"choice": ["north (sea)", "north", "a.b|c"]}},
            {"north (sea)", "north", "a.b|c"}.__contains__,
        ),
    ],
)
def test_replies_keep_to_schemas_expressions_and_choices(served, limit, holds):
    async def ask(client, *_):
        asked = {"model": "base_model", "messages": [{"role": "user", "content": "Order?"}], **limit}
        said = set()
        for seed in range(8):
            body = (await client.post("/v1/chat/completions", json=asked | {"seed": seed})).json()
            (choice,) = body["choices"]
            assert choice["finish_reason"] == "stop"
            assert holds(choice["message"]["content"]), choice["message"]["content"]
            said.add(choice["message"]["content"])
        assert len(said) > 1

    served(ask)


COMPLETION = {"model": "base_model", "prompt": PROMPT, "max_tokens": 2}
CHAT = {"model": "base_model", "messages": [{"role": "user", "content": "Go"}], "max_tokens": 2}
REFUSED: dict[str, tuple[str, Any, int, str]] = {
    "no JSON": ("/v1/completions", b"{", 400, "1 bytes are no request"),
    "not UTF-8": ("/v1/completions", b'{"model": "\xff"}', 400, "no request"),
    "a list": ("/v1/completions", [1], 400, "Expected `object`"),
    "no model": ("/v1/completions", {"prompt": "a"}, 400, "`model`"),
    "unknown model": (
        "/v1/completions",
        COMPLETION | {"model": "mian"},
        404,
        "model 'mian': no such one; expected 'a1'",
    ),
    "no prompt": ("/v1/completions", COMPLETION | {"prompt": ""}, 400, "the prompt has 0 tokens"),
    "no prompts": ("/v1/completions", COMPLETION | {"prompt": []}, 400, "the prompt has 0 tokens"),
    "mixed prompts": ("/v1/completions", COMPLETION | {"prompt": [3, "a"]}, 400, "tokens beside prompts"),
    "long prompt": (
        "/v1/completions",
        COMPLETION | {"prompt": [9] * 5000},
        400,
        "5000 tokens; the model takes 1 to 2047",
    ),
    "strange tokens": ("/v1/completions", COMPLETION | {"prompt": [9, 100000]}, 400, "token 100000 is outside"),
    "negative tokens": ("/v1/completions", COMPLETION | {"allowed_token_ids": [-4, 5]}, 400, "token -4 is outside"),
    "no tokens at all": ("/v1/completions", COMPLETION | {"allowed_token_ids": []}, 400, "allows no token at all"),
    "NaN": ("/v1/completions", b'{"model": "a1", "prompt": "a", "temperature": NaN}', 400, "no request"),
    "cold": ("/v1/completions", COMPLETION | {"temperature": -1}, 400, "positive temperature"),
    "top_p": ("/v1/completions", COMPLETION | {"top_p": 0}, 400, "top_p 0.0"),
    "no room": ("/v1/completions", COMPLETION | {"max_tokens": 0}, 400, "at least one token"),
    "too many": ("/v1/completions", COMPLETION | {"n": 1000}, 400, "1000 of 1 prompts; expected 1 to 64"),
    "unknown field": ("/v1/completions", COMPLETION | {"temprature": 0}, 400, "did you mean 'temperature'"),
    "unknown switch": (
        "/v1/chat/completions",
        CHAT | {"chat_template_kwargs": {"enable_thoughts": True}},
        400,
        "enable_thoughts",
    ),
    "two guides": ("/v1/completions", COMPLETION | {"guided_regex": "a", "guided_choice": ["a"]}, 400, "guided_choice"),
    "guided grammar": ("/v1/completions", COMPLETION | {"guided_grammar": "root ::= a"}, 400, "guided_grammar"),
    "tools": ("/v1/chat/completions", CHAT | {"tools": [{"type": "function"}]}, 400, "tools: not supported"),
    "a tool's call": (
        "/v1/chat/completions",
        CHAT | {"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]},
        400,
        "call of a tool",
    ),
    "options of no stream": (
        "/v1/completions",
        COMPLETION | {"stream_options": {"include_usage": True}},
        400,
        "stream_options: without stream",
    ),
    "statistics in chunks": (
        "/v1/completions",
        COMPLETION | {"stream": True, "stream_options": {"continuous_usage_stats": True}},
        400,
        "continuous_usage_stats",
    ),
    "nothing to continue": (
        "/v1/chat/completions",
        CHAT | {"continue_final_message": True},
        400,
        "continue_final_message: the last message is the user's",
    ),
    "no prompt for a reply": (
        "/v1/chat/completions",
        CHAT | {"add_generation_prompt": False},
        400,
        "add_generation_prompt",
    ),
    "no such model": ("/v1/completions/", COMPLETION | {"model": "a2"}, 404, "model 'a2'"),
    "penalty": ("/v1/chat/completions", CHAT | {"presence_penalty": 0.5}, 400, "presence_penalty: not supported"),
    "stop texts": ("/v1/chat/completions", CHAT | {"stop": ["a"] * 17}, 400, "stop: 17 texts; expected at most 16"),
    "a long stop": ("/v1/completions", COMPLETION | {"stop": "a" * 300}, 400, "of 256 characters"),
    "other logprobs": ("/v1/completions", COMPLETION | {"logprobs": 5}, 400, "expected 0 or 1"),
    "no messages": ("/v1/chat/completions", CHAT | {"messages": []}, 400, "found none"),
    "strange role": ("/v1/chat/completions", CHAT | {"messages": [{"role": "god", "content": "a"}]}, 400, "role 'god'"),
    "a picture": (
        "/v1/chat/completions",
        CHAT | {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        "part of type 'image_url'",
    ),
    "bad expression": ("/v1/completions", COMPLETION | {"structured_outputs": {"regex": "(a"}}, 400, "cannot be kept"),
    "nothing matches": ("/v1/completions", COMPLETION | {"structured_outputs": {"regex": ""}}, 400, "allows nothing"),
    "no choice": ("/v1/completions", COMPLETION | {"structured_outputs": {"choice": []}}, 400, "allows nothing"),
    "no JSON schema": ("/v1/completions", COMPLETION | {"structured_outputs": {"json": "[1"}}, 400, "json"),
    "two limits": (
        "/v1/completions",
        COMPLETION | {"structured_outputs": {"regex": "a"}, "allowed_token_ids": [9]},
        400,
        "expected one of them",
    ),
    "no call": ("/generate", b"\xc1 nonsense", 400, "no call"),
    "wrong call": ("/generate", msgspec.msgpack.encode({"prompt_ids": "a"}), 400, "no call"),
    "unsound slice": (
        "/generate",
        msgspec.msgpack.encode(
            {
                "prompt_ids": PROMPT,
                "adapter": None,
                "sampling": {},
                "constraint_slice": {"allowed": [[5, 4]], "next": [[0, 0]]},
            }
        ),
        400,
        "ascending",
    ),
    "hot call": (
        "/generate",
        msgspec.msgpack.encode(GenerateCall(PROMPT, None, SamplingParameters(temperature=math.nan))),
        400,
        "positive temperature",
    ),
    "unknown adapter": (
        "/generate",
        msgspec.msgpack.encode(GenerateCall(PROMPT, "../../etc", SamplingParameters())),
        404,
        "'../../etc'",
    ),
    "a path": ("/v1/load_lora_adapter", {"lora_name": "a2", "lora_path": "/etc"}, 400, "no files are read"),
    "no adapter": ("/v1/load_lora_adapter", {"lora_name": "a2"}, 404, "'a2'"),
    "elsewhere": ("/v1/embeddings", {}, 404, "/v1/embeddings"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_requests_are_explained_and_the_server_goes_on(served, case):
    path, body, status, message = REFUSED[case]

    async def ask(client, *_):
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = await client.post(path, **sent)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (status, status), error
        assert message in error["message"]
        assert error["type"]
        assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200

    served(ask)


def test_a_completion_ends_with_the_token_that_completes_a_stop_text(served, base):
    tokenizer = Tokenizer(base)
    letters = [token for token in range(VOCABULARY) if tokenizer.decode([token]) in list("abc")]

    async def ask(client, _, backend):
        asked = {"model": "a1", "prompt": PROMPT, "max_tokens": 200, "return_token_ids": True}
        asked |= {"allowed_token_ids": letters, "stop": ["ab", "cca"], "logprobs": 1}
        stops = set()
        for seed in range(12):
            (choice,) = (await client.post("/v1/completions", json=asked | {"seed": seed})).json()["choices"]
            text = tokenizer.decode(choice["token_ids"])
            assert choice["finish_reason"] == "stop"
            assert text == choice["text"] + choice["stop_reason"]
            assert not {"ab", "cca"} & {text[at : at + size] for at in range(len(text) - 1) for size in (2, 3)} - {
                choice["stop_reason"]
            }
            assert len(choice["logprobs"]["tokens"]) == len(choice["token_ids"])
            allowed = Request(
                PROMPT, "a1", UntilStopToken((), letters), SamplingParameters(1.0, seed, len(choice["token_ids"]))
            )
            assert (await backend.generate(allowed)).completion_ids == choice["token_ids"]
            stops.add(choice["stop_reason"])
        assert stops == {"ab", "cca"}
        free = {"model": "a1", "prompt": PROMPT, "max_tokens": 1500, "seed": 1, "stop": "a", "return_token_ids": True}
        (choice,) = (await client.post("/v1/completions", json=free)).json()["choices"]
        assert choice["finish_reason"] == "stop"
        assert choice["token_ids"][-1] in (letters[0], tokenizer.eos)

    served(ask)


def test_every_end_token_of_the_model_ends_a_completion_with_stop_texts(base: Path, tmp_path: Path):
    folder = Path(shutil.copytree(base, tmp_path / "base"))
    ends = [1, *range(len(SPECIAL), VOCABULARY, 2)]
    (folder / "generation_config.json").write_bytes(msgspec.json.encode({"eos_token_id": ends}))
    body = CompletionRequest(model="", prompt="", stop="never written")
    constraint = TextCodec(Tokenizer(folder)).make_constraint(body)

    async def complete(seed: int) -> None:
        sampling = SamplingParameters(1.0, seed, 200)
        free = await backend.generate(Request(PROMPT, None, None, sampling))
        assert free.completion_ids[-1] in ends
        stopping = await backend.generate(Request(PROMPT, None, constraint, sampling))
        assert (stopping.completion_ids, stopping.finish_reason) == (free.completion_ids, "stop")

    backend = make_backend("local", folder)
    for seed in range(4):
        asyncio.run(complete(seed))


def test_stop_texts_are_found_between_whole_words_and_across_sub_words():
    words = StopStringConstraint([b"b c"], TokenTexts([b"a", b"b", b"c"], b" ", ()))
    parts = StopStringConstraint([b"bca"], TokenTexts([b"a", b"b", b"c"], b"", ()))
    for stopping, ids in ((words, [0, 1, 1, 2]), (parts, [0, 2, 1, 2, 0])):
        place: Constraint = stopping
        for token in ids:
            assert place.allowed() is ANY_TOKEN
            place = place.advance(token)
        assert not place.allowed()
    assert truncate_at_stop("a, b; c", [";", ","]) == ("a", ",")
    assert truncate_at_stop("abc", ["x"]) == ("abc", None)


@pytest.mark.parametrize(
    ("turn", "answer", "thoughts"),
    [
        ("<think>Which way?</think>North.<|im_end|>", "North.", "Which way?"),
        ("Which way?</think> North.", "North.", "Which way?"),
        ("<think>\nStill at it", "", "Still at it"),
        ("Still at it", "", "Still at it"),
        ("North.<|im_end|>", "North.", None),
        ("<|channel|>analysis<|message|>Which?assistant<|channel|>final<|message|>North.", "North.", "Which?"),
        ("<|channel|>analysis<|message|>Still at it", "", "Still at it"),
        ("[THINK]Which?[/THINK]North.", "North.", "Which?"),
        ("word " * 9000, ("word " * 9000).strip(), None),
    ],
)
def test_thoughts_are_told_apart_from_the_answer(turn, answer, thoughts):
    thinking = turn == "Still at it"
    assert split_reasoning(turn, make_template("qwen3"), thinking) == (answer, thoughts)


def test_a_turn_keeps_the_marks_of_thoughts_and_no_others(tmp_path):
    special = [*SPECIAL, "<|start|>", "<|end|>", "<|channel|>", "<|message|>", "[THINK]", "[/THINK]"]
    size = len(special) + 256
    folder = make_base(tmp_path / "base", [f"w{i}" for i in range(size - 3)], seed=1)
    written = tokenizers.ByteLevelBPETokenizer()
    written.train_from_iterator(["a"], vocab_size=size, special_tokens=special)
    (folder / "tokenizer.json").write_text(written.to_str())
    tokenizer, plain = Tokenizer(folder), make_template("plain")
    turn = "<|channel|>analysis<|message|>Which?<|end|><|start|>assistant<|channel|>final<|message|>North.<eos>"
    read = TextCodec(tokenizer).decode_turn(tokenizer.encode_text(turn), plain)
    assert split_reasoning(read, plain, False) == ("North.", "Which?")


def test_a_chat_tells_thoughts_apart_and_counts_all_that_was_sampled(served, base):
    tokenizer = Tokenizer(base)

    async def ask(client, *_):
        body = {"model": "base_model", "messages": [{"role": "user", "content": "Go"}], "return_token_ids": True}
        mark = tokenizer.encode_text("</think>")
        letters = [token for token in range(VOCABULARY) if tokenizer.decode([token]) in list("ab")]
        body |= {
            "allowed_token_ids": [*mark, *letters],
            "max_tokens": 12,
            "chat_template_kwargs": {"enable_thinking": True},
        }
        thinking = 0
        for seed in range(8):
            answer = (await client.post("/v1/chat/completions", json=body | {"seed": seed})).json()
            (choice,) = answer["choices"]
            whole = tokenizer.decode(choice["token_ids"])
            thoughts, end, said = whole.rpartition("</think>")
            if not end:
                thoughts, said = said, ""
            message = choice["message"]
            assert message["content"] == said
            assert (message["reasoning_content"] or "") == thoughts.replace("</think>", "")
            assert answer["usage"]["completion_tokens"] == len(choice["token_ids"]) == 12
            thinking += message["reasoning_content"] is not None
        assert thinking

    served(ask)


def test_bodies_under_way_are_bounded_together(base):
    async def run() -> None:
        backend, server = make_backend("local", base), InferenceServer(most_bytes=1000)
        await server.start()
        server.serve(LoadedModels(backend, Tokenizer(base)))
        asked = COMPLETION | {"model": "base_model", "allowed_token_ids": [9, 20], "max_tokens": 300, "user": "x" * 500}
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=300) as client:
            first = asyncio.create_task(client.post("/v1/completions", json=asked))
            await until(lambda: server.admission.completions.count == 1)
            second = await client.post("/v1/completions", json=asked)
            assert (second.status_code, "bytes are under way" in second.text) == (503, True)
            assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200
            assert (await first).status_code == 200
            assert (await client.post("/v1/completions", json=asked)).status_code == 200
            assert server.admission.body_bytes == 0
        await server.stop()
        await backend.close()

    asyncio.run(run())


def test_bodies_that_are_only_announced_keep_nobody_out(base):
    async def run() -> None:
        backend, server = make_backend("local", base), InferenceServer(most_bytes=1000)
        await server.start()
        server.serve(LoadedModels(backend, Tokenizer(base)))
        head = "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        idle = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(32)]
        for _, writer in idle:
            writer.write(f"{head}Content-Length: 900\r\n\r\n".encode())
        idle[0][1].write(b"x" * 800)
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=300) as client:
            await until(lambda: server.admission.body_bytes == 800)
            # Bytes that have come make room for those of a newer request.
            asked = COMPLETION | {"user": "x" * 500}
            assert (await client.post("/v1/completions", json=asked)).status_code == 200
        assert b"503" in await idle[0][0].readline()
        for _, writer in idle:
            writer.close()
        await until(lambda: server.admission.body_bytes == 0)
        await server.stop()
        await backend.close()

    asyncio.run(run())


def test_nested_calls_are_refused(served):
    async def ask(client, *_):
        for nested in (b"\x91" * 100_000, msgspec.msgpack.encode([msgspec.Raw(b"\x91" * 100_000 + b"\xc0")])):
            answer = await client.post("/generate/many", content=nested)
            assert b"nest" in answer.content or answer.status_code == 400, answer.content

    served(ask)


def test_a_huge_prompt_is_refused_before_it_is_tokenized(served):
    async def ask(client, *_):
        text = "a b " * 1_900_000
        for path, body in (
            ("/v1/completions", {"prompt": text}),
            ("/v1/completions", {"prompt": ["x"] * 100_000}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
        ):
            refused = asyncio.create_task(client.post(path, json={"model": "base_model", **body}))
            longest = 0.0
            while not refused.done():
                began = time.monotonic()
                await client.get("/health")
                longest = max(longest, time.monotonic() - began)
            answer = refused.result()
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(body))), answer.text
            assert longest < 2.0

    served(ask)


def test_a_body_too_large_is_refused_and_the_server_goes_on(served):
    async def ask(client, *_):
        answer = await client.post("/generate", content=b"x" * (MAX_BODY_BYTES + 1))
        assert (answer.status_code, answer.json()["error"]["type"]) == (413, "too_large_error")
        assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200

    served(ask)


def test_a_request_beyond_the_bound_is_sent_elsewhere(served):
    async def ask(client, server, _):
        asked = COMPLETION | {"allowed_token_ids": [9, 20], "max_tokens": 300}
        first = asyncio.create_task(client.post("/v1/completions", json=asked | {"n": 2}))
        await until(lambda: server.admission.completions.count == 2)
        second = await client.post("/v1/completions", json=asked)
        assert (second.status_code, second.headers["Retry-After"]) == (503, "1")
        assert "2 completions are under way; the server takes 2" in second.json()["error"]["message"]
        assert (await first).status_code == 200
        assert (await client.post("/v1/completions", json=asked)).status_code == 200
        assert (await client.get("/stats")).json()["refused"] == 1

    served(ask, 2)


def test_a_server_that_drains_finishes_what_it_has_and_takes_no_more(served):
    async def ask(client, server, _):
        asked = COMPLETION | {"allowed_token_ids": [9, 20], "max_tokens": 300}
        first = asyncio.create_task(client.post("/v1/completions", json=asked))
        await until(lambda: server.admission.completions.count == 1)
        draining = asyncio.create_task(server.admission.drain())
        await asyncio.sleep(0)
        assert (await client.post("/v1/completions", json=asked)).status_code == 503
        health = await client.get("/health")
        assert (health.status_code, health.json()) == (503, {"status": "draining", "inside": 1})
        assert (await first).json()["usage"]["completion_tokens"] == 300
        await draining

    served(ask)


def test_a_server_without_its_model_says_that_it_is_loading():
    async def run() -> None:
        server = InferenceServer()
        await server.start()
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{server.port}") as client:
            assert (await client.get("/health")).json()["status"] == "loading"
            answer = await client.post("/v1/completions", json=COMPLETION)
            assert (answer.status_code, "loading" in answer.json()["error"]["message"]) == (503, True)
            assert "league_inference_up" in (await client.get("/metrics")).text
        await server.stop()

    asyncio.run(run())


def test_whoever_hangs_up_makes_room(served):
    async def ask(client, server, backend):
        asked = COMPLETION | {"allowed_token_ids": [9, 20], "max_tokens": 2000}
        with pytest.raises(httpx2.TimeoutException):
            await client.post("/v1/completions", json=asked, timeout=0.05)
        await until(lambda: not (server.admission.completions.count or backend.stats().running))
        assert backend.stats().sampled_tokens < 2000

    served(ask)


def test_a_taken_port_is_named():
    async def run() -> None:
        first, second = InferenceServer(), InferenceServer()
        await first.start()
        with pytest.raises(UsageError, match=f"cannot listen on 127.0.0.1:{first.port}"):
            await second.start(port=first.port)
        await first.stop()

    asyncio.run(run())


def test_models_and_versions_are_listed(served):
    async def ask(client, *_):
        listed = (await client.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["base_model", "a1"]
        assert {model["owned_by"] for model in listed["data"]} == {"event-sourced-league"}
        version = (await client.get("/adapters/version")).json()
        assert version == {"policy": "base_model", "version": 0, "adapter": None}
        assert (await client.get("/adapters/version?policy=main")).status_code == 404

    served(ask)


METRIC = re.compile(r'league_inference_([a-z_]+)\{server="here"\} ([0-9.e+-]+)')


def test_metrics_are_prometheus_text_that_counts_what_was_done(served):
    async def ask(client, *_):
        for seed in range(3):
            await client.post("/v1/completions", json=COMPLETION | {"seed": seed})
        answer = await client.get("/metrics")
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        lines = answer.text.splitlines()
        samples = {found[1]: float(found[2]) for line in lines[2::3] if (found := METRIC.fullmatch(line))}
        assert len(samples) == len(lines) / 3
        for about, kind, sample in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
            name = sample.partition("{")[0]
            assert about.startswith(f"# HELP {name} ")
            assert kind == f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}"
        assert (samples["up"], samples["requests_total"], samples["adapters"]) == (1, 3, 1)
        assert samples["prompt_tokens_total"] == 3 * len(PROMPT)
        assert samples["tokens_per_second"] > 0
        stats = (await client.get("/stats")).json()
        assert (stats["requests"], stats["running"], stats["inside"], stats["name"]) == (3, 0, 0, "here")

    served(ask)


def test_inference_processes_start_before_and_stop_after_everybody_who_asks_them():
    config = LeagueConfig(inference=InferenceConfig(servers=2))
    names = [process.name for process in make_worker_specs(config)]
    assert names.index("rater-1") < names.index("inference-1") < names.index("inference-2")
    assert names.index("inference-2") < min(names.index(f"{role}-1") for role in ("trainer", "evaluator", "rollout"))
    assert not [process for process in make_worker_specs(LeagueConfig()) if process.role == "inference"]


async def many(client: httpx2.AsyncClient, calls: list[bytes]) -> dict[int, CallResult]:
    sent = {"Content-Type": CONTENT_TYPE}
    answer = await client.post("/generate/many", content=encode_calls(calls), headers=sent)
    assert answer.status_code == 200, answer.text
    return {found.index: found for found in FrameDecoder().feed(answer.content)}


def test_more_calls_than_any_client_sends_are_refused_at_once(served):
    async def ask(client, *_):
        answer = await client.post("/generate/many", content=msgspec.msgpack.encode([None] * (MAX_CALLS + 1)))
        assert answer.status_code == 400
        assert f"{MAX_CALLS + 1} calls; expected at most {MAX_CALLS}" in answer.json()["error"]["message"]
        assert {found.status for found in (await many(client, [b"\xc0"] * MAX_CALLS)).values()} == {400}

    served(ask)


def test_each_of_many_calls_is_answered_as_if_it_came_alone(served):
    async def ask(client, *_):
        calls = [GenerateCall(PROMPT, (None, "a1")[seed % 2], SamplingParameters(0.8, seed, 9)) for seed in range(12)]
        bad = [
            msgspec.msgpack.encode({"prompt_ids": "a"}),
            msgspec.msgpack.encode(GenerateCall([], None, SamplingParameters())),
        ]
        bad.append(msgspec.msgpack.encode(GenerateCall(PROMPT, "../../etc", SamplingParameters())))
        answers = await many(client, [*bad, *map(msgspec.msgpack.encode, calls)])
        assert sorted(answers) == list(range(15))
        assert [answers[index].status for index in range(3)] == [400, 400, 404]
        assert "the prompt has 0 tokens" in json.loads(answers[1].body)["error"]["message"]
        for index, call in enumerate(calls, start=3):
            own, alone = msgspec.msgpack.decode(answers[index].body, type=GenerateReply), await generate(client, call)
            assert own.generation.completion_ids == alone.generation.completion_ids
            assert own.generation.logprobs == pytest.approx(alone.generation.logprobs, abs=1e-5)
        assert await many(client, []) == {}

    served(ask)


def test_calls_beyond_the_bound_are_sent_elsewhere_and_the_others_served(served):
    async def ask(client, server, _):
        calls = [msgspec.msgpack.encode(GenerateCall(PROMPT, None, SamplingParameters(seed=seed))) for seed in range(5)]
        answers = await many(client, calls)
        assert [answers[index].status for index in range(5)] == [200, 200, 503, 503, 503]
        assert server.admission.refused == 3

    served(ask, 2)


@pytest.mark.parametrize("piece", [1, 3, 7, 1000])
def test_frames_are_whole_whatever_the_pieces_they_come_in(piece):
    answers = [CallResult(index, 200, bytes(range(index * 5))) for index in range(20)]
    sent, frames, found = b"".join(map(encode_frame, answers)), FrameDecoder(), []
    for first in range(0, len(sent), piece):
        found += frames.feed(sent[first : first + piece])
    assert found == answers


def test_an_engine_that_breaks_over_a_request_is_the_servers_fault(served, monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("a kernel failed")

    async def ask(client, *_):
        with monkeypatch.context() as patched:
            patched.setattr(Engine, "_run_pass", broken)
            answer = await client.post("/v1/completions", json=COMPLETION)
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (500, "server_error")
        assert "a pass over 1 rows failed" in error["message"]
        assert (await client.post("/v1/completions", json=COMPLETION)).status_code == 200

    served(ask)


def test_a_server_that_other_machines_reach_does_not_start_without_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEAGUE_INFERENCE_TOKEN", raising=False)
    for host in ("0.0.0.0", "::", "192.0.2.1", "host.example"):
        with pytest.raises(UsageError, match=f"inference.host {host}: .*LEAGUE_INFERENCE_TOKEN is not set"):
            asyncio.run(InferenceServer().start(host))


def test_a_server_with_a_token_answers_those_that_send_it(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEAGUE_INFERENCE_TOKEN", "s3cret")

    async def body() -> None:
        backend, server = make_backend("local", base), InferenceServer()
        await server.start()
        server.serve(LoadedModels(backend, Tokenizer(base), []))
        url = f"http://127.0.0.1:{server.port}"
        async with httpx2.AsyncClient(base_url=url, timeout=300) as client:
            for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "s3cret"}):
                for path in ("/v1/models", "/stats", "/metrics", "/adapters/version"):
                    assert (await client.get(path, headers=headers)).status_code == 401
                refused = await client.post("/generate", json={}, headers=headers)
                assert refused.status_code == 401
                assert "expected the server's token" in refused.json()["error"]["message"]
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/stats", headers={"Authorization": "Bearer s3cret"})).status_code == 200
        # Our own clients send it.
        config = LeagueConfig(inference=InferenceConfig(urls=(url,)))
        await check_servers(config)
        players = ServersBackend(ServersConfig(urls=(url,)), lambda: [url])
        sampling = SamplingParameters(1.0, 1, 4)
        assert (await players.generate(Request(PROMPT, None, None, sampling))).completion_ids
        await players.close()
        monkeypatch.setenv("LEAGUE_INFERENCE_TOKEN", "another")
        with pytest.raises(
            ConfigError, match=r"answers 401 .*expected .* that takes the token in LEAGUE_INFERENCE_TOKEN"
        ):
            await check_servers(config)
        await server.stop()
        await backend.close()

    asyncio.run(body())
