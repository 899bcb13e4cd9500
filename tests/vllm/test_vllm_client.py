"""Episodes on the real vLLM by OpenAI's interface: all tokens told, with the probabilities sampled from."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from arena.prompts import make_template
from inference.vllm.serve import AdapterSource
from inference.vllm.settings import VllmConfig
from models import Tokenizer
from models.decoder import Decoder
from models.make import BaseShape, make_text_base
from players.policy import make_conversation_encoder
from players.remote.openai_client import OpenAIClient, OpenAIClientConfig
from schemas.config import PromptsConfig
from schemas.episodes import Message, ModelResponse
from tests.servers import run_vllm_server
from trainer.loss_inputs import recompute_logprobs

TALK = [Message("system", "Be brief."), Message("user", "Which number comes after 7?")]
CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


@pytest.fixture(scope="module")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights that can write any text, and says how it is talked to."""
    template = make_template("qwen3")
    texts = ["system\nuser\nassistant\n", *(message.content for message in TALK)]
    shape = BaseShape(max_positions=512, init_std=0.3)
    folder = make_text_base(tmp_path_factory.mktemp("model"), texts, template.marks, template.end, shape, seed=3)
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": CHAT}))
    return folder


@pytest.fixture(scope="module")
def port(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder, log = tmp_path_factory.mktemp("adapters"), tmp_path_factory.mktemp("log") / "vllm.log"
    config = VllmConfig(max_loras=1, max_cpu_loras=1, max_rows=16)
    # A league talks to its servers in tokens; a conversation wants the model's own tokenizer.
    with run_vllm_server(config, speaker, AdapterSource(str(folder)), log, ["--no-skip-tokenizer-init"]) as url:
        yield urlsplit(url).port or 0


def asking(port: int, work: Callable[[OpenAIClient], Awaitable[Any]], **manner: Any) -> Any:
    async def run() -> Any:
        client = OpenAIClient.for_local(port, manner=OpenAIClientConfig(asks_tokens=True, **manner))
        try:
            return await work(client)
        finally:
            await client.close()

    return asyncio.run(run())


def said(port: int, temperature: float, *seeds: int, **manner: Any) -> list[ModelResponse]:
    async def all_of(client: OpenAIClient) -> list[ModelResponse]:
        return list(await asyncio.gather(*(client.complete(TALK, temperature, 24, seed=seed) for seed in seeds)))

    found: list[ModelResponse] = asking(port, all_of, **manner)
    return found


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_tokens_are_told_in_full_and_are_as_probable_as_the_learner_computes(speaker, port, temperature):
    replies = said(port, temperature, 1, 2, 3, 4, processed_logprobs=True)
    steps = [reply.tokens for reply in replies]
    assert all(steps)
    tokenizer = Tokenizer(speaker)
    prompt = make_conversation_encoder(tokenizer, PromptsConfig()).encode(TALK)
    for reply, step in zip(replies, steps, strict=True):
        assert step.prompt_ids == prompt
        assert len(step.logprobs) == len(step.completion_ids) == len(step.branches)
        assert (step.version, step.temperature) == (0, temperature)
        ended = step.completion_ids[-1] == tokenizer.eos
        assert (reply.finish_reason, len(step.completion_ids) == 24) in (("stop", ended), ("length", True))
    learnt_W, stated_W = recompute_logprobs(Decoder.load(speaker), None, steps)
    assert len(stated_W) == sum(len(step.completion_ids) for step in steps)
    assert stated_W == pytest.approx(learnt_W, abs=1e-3)


def test_a_seed_says_the_same_again_and_another_one_does_not(port):
    first, again, other = (reply.text for reply in said(port, 1.0, 7, 7, 8))
    assert first == again != other


def test_vllm_is_not_believed_at_other_temperatures_unless_it_is_known_how_it_tells_them(port):
    (reply,) = said(port, 0.7, 1)
    assert reply.text
    assert reply.tokens is None


def test_vllm_speaks_of_no_versions_and_names_its_model(speaker, port):
    async def look(client: OpenAIClient) -> tuple[int, str]:
        version = await client.get_policy_version()
        await client.complete(TALK, max_tokens=1)
        return version, client.model

    assert asking(port, look) == (0, str(speaker))
