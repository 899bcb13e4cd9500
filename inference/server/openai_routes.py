"""OpenAI's interface to the checkpoints: requests, and responses with texts, tokens, log-probabilities and usage."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import msgspec
from aiohttp import web

from arena.prompts import Template
from inference.base import Generation, Request, SamplingParameters
from inference.chat_template import encode_conversation, may_think, resolve_template, turn_ends
from inference.http_server import RefusedError, off_loop
from inference.remote import OWNER
from inference.server import ResolvedModel, ServedModels
from inference.server.admission import AdmissionControl
from inference.server.openai_stream import send_stream
from inference.server.openai_types import (
    ChatCompletionRequest,
    CommonRequest,
    CompletionRequest,
    conversation,
    decode_request,
)
from inference.server.opponent_pool import MODEL_PREFIX, OpponentPool, chat_session
from inference.server.output_constraints import TextCodec, is_structured, split_reasoning, truncate_at_stop
from schemas.episodes import GREEDY_TEMPERATURE, ModelResponse

Json = dict[str, Any]


class CompletionChoice(NamedTuple):
    """One completion of one prompt."""

    prompt_ids: list[int]
    generation: Generation


def completion_response(
    body: CompletionRequest, named: str, choices: Sequence[CompletionChoice], texts: TextCodec
) -> Json:
    """The response of ``/v1/completions``."""
    results: list[Json] = []
    for choice in choices:
        text, stop = truncate_at_stop(texts.read(choice.generation.completion_ids, body), body.stop_strings)
        logprobs: Json | None = None
        if body.logprobs is not None:
            tokens = _token_logprobs(choice.generation, texts)
            logprobs = {
                "tokens": [token.text for token in tokens],
                "token_logprobs": [token.logprob for token in tokens],
                "top_logprobs": [{token.text: token.logprob} for token in tokens],
                "text_offset": texts.find_offsets(choice.generation.completion_ids, body),
            }
        results.append({"index": len(results), "text": text, "logprobs": logprobs} | _finish_fields(body, choice, stop))
    return _make_response("cmpl", "text_completion", named, results, choices)


def chat_response(
    body: ChatCompletionRequest,
    named: str,
    choices: Sequence[CompletionChoice],
    texts: TextCodec,
    template: Template,
    thinking: bool,
) -> Json:
    """The response of ``/v1/chat/completions``, with reasoning apart from the content, as vLLM does."""
    results: list[Json] = []
    ends = turn_ends(texts.tokenizer, template)
    for choice in choices:
        ids = choice.generation.completion_ids
        # The end of a turn may be a token with a text.
        unmarked = [token for token in ids if token not in ends]
        turn = texts.read(unmarked, body) if is_structured(body) else texts.decode_turn(ids, template)
        reply, stop = truncate_at_stop(turn, body.stop_strings)
        content, thoughts = (reply, None) if is_structured(body) else split_reasoning(reply, template, thinking)
        logprobs: Json | None = None
        if body.logprobs:
            tokens = _token_logprobs(choice.generation, texts)
            logprobs = {
                "content": [
                    {"token": token.text, "logprob": token.logprob, "bytes": [*token.raw], "top_logprobs": []}
                    for token in tokens
                ]
            }
        message = {"role": "assistant", "content": content, "reasoning_content": thoughts}
        choice_fields = {"index": len(results), "message": message, "logprobs": logprobs}
        results.append(choice_fields | _finish_fields(body, choice, stop))
    return _make_response("chatcmpl", "chat.completion", named, results, choices)


def text_response(body: ChatCompletionRequest, reply: ModelResponse) -> Json:
    """The response of ``/v1/chat/completions`` for a reply without tokens: a bot's, or a remote agent's."""
    text, stop = truncate_at_stop(reply.text, body.stop_strings)
    message = {"role": "assistant", "content": text, "reasoning_content": None}
    reason = reply.finish_reason if stop is None else "stop"
    choice: Json = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason, "stop_reason": stop}
    return _make_response("chatcmpl", "chat.completion", body.model, [choice], ())


def _finish_fields(body: CommonRequest, choice: CompletionChoice, stop: str | None) -> Json:
    reason = choice.generation.finish_reason if stop is None else "stop"
    ended: Json = {"finish_reason": reason, "stop_reason": stop}
    if body.return_token_ids:
        ended |= {"token_ids": choice.generation.completion_ids, "prompt_token_ids": choice.prompt_ids}
    return ended


class TokenLogprob(NamedTuple):
    """A sampled token."""

    raw: bytes
    """Its text, which may be a part of a character."""
    logprob: float
    """Under the distribution that was sampled; 0 for a forced token."""

    @property
    def text(self) -> str:
        """The text, with a replacement character for parts of one."""
        return self.raw.decode(errors="replace")


def _token_logprobs(generation: Generation, texts: TextCodec) -> list[TokenLogprob]:
    logprobs = dict(zip(generation.branches, generation.logprobs, strict=True))
    ids = generation.completion_ids
    return [TokenLogprob(texts.token_bytes(token), logprobs.get(at, 0.0)) for at, token in enumerate(ids)]


def _make_response(
    prefix: str, kind: str, named: str, results: list[Json], choices: Sequence[CompletionChoice]
) -> Json:
    prompts = {id(choice.prompt_ids): choice.prompt_ids for choice in choices}.values()
    read, generated = sum(map(len, prompts)), sum(len(choice.generation.completion_ids) for choice in choices)
    cached = sum(choice.generation.timing.cached_tokens for choice in choices if choice.generation.timing)
    return {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": named,
        # Clients infer from it that log-probabilities are those sampled from, and that ``model`` never changes.
        "system_fingerprint": OWNER,
        "choices": results,
        "usage": {
            "prompt_tokens": read,
            "completion_tokens": generated,
            "total_tokens": read + generated,
            "prompt_tokens_details": {"cached_tokens": cached},
        },
    }


MAX_CHOICES = 64
"""Most completions of one request."""
_DEFAULT_MAX_TOKENS = 16
"""``max_tokens`` of a completion that names none, as OpenAI has it; a conversation may fill the model's room."""
_UNLIMITED_TOKENS = 1 << 20


@dataclass
class OpenAIRoutes:
    """Answers ``/v1/models``, ``/v1/models/{id}``, ``/v1/completions`` and ``/v1/chat/completions``."""

    models: ServedModels
    texts: TextCodec
    admission: AdmissionControl
    pool: OpponentPool | None = None

    async def list_models(self, request: web.Request) -> web.Response:
        """Names of the models."""
        names = dict.fromkeys([*self.models.names(), *(self.pool.names() if self.pool is not None else ())])
        return web.json_response({"object": "list", "data": [_describe_model(name) for name in names]})

    async def find_model(self, request: web.Request) -> web.Response:
        """One model by name, also one that is not listed, as a digest; raises ``RefusedError`` for none (404)."""
        name = request.match_info["model"].rstrip("/")
        if self.pool is None or name not in self.pool.names():
            self.models.resolve(name)
        return web.json_response(_describe_model(name))

    async def create_completion(self, request: web.Request) -> web.StreamResponse:
        """Completions of texts, or of tokens."""
        data = await self.admission.read(request)
        body = await off_loop(len(data), decode_request, data, CompletionRequest)
        if body.logprobs is not None and body.logprobs not in (0, 1):
            raise RefusedError(400, "logprobs: only the sampled token's is returned; expected 0 or 1", "logprobs")
        limit = _DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        named = self.models.resolve(body.model)
        prompts = await off_loop(len(data), self._tokenize_prompts, body)
        completions = await self._generate(body, named, prompts, limit)
        return await _send(request, body, completion_response(body, named.name, completions, self.texts))

    async def create_chat_completion(self, request: web.Request) -> web.StreamResponse:
        """Replies in a conversation."""
        data = await self.admission.read(request)
        body = await off_loop(len(data), decode_request, data, ChatCompletionRequest)
        if body.top_logprobs:
            raise RefusedError(400, "top_logprobs: only the sampled token's is returned; expected 0", "top_logprobs")
        conversation(body)
        if self.pool is None or not body.model.startswith(MODEL_PREFIX):
            return await _send(request, body, await self._complete_chat(body, len(data)))
        if body.continue_final_message:
            raise RefusedError(
                400, "continue_final_message: opponents write whole replies; leave it out", "continue_final_message"
            )
        session = await self.pool.open(chat_session(body, request.headers))
        body = msgspec.structs.replace(body, model=session.opponent)
        with self.admission.admit():
            reply = await self.pool.reply(session, body)
        answer = await self._complete_chat(body, len(data)) if reply is None else text_response(body, reply)
        answer["league"] = msgspec.to_builtins(session)
        return await _send(request, body, answer)

    async def _complete_chat(self, body: ChatCompletionRequest, size: int) -> Json:
        """The answer to a request of so many bytes."""
        named, messages = self.models.resolve(body.model), conversation(body)
        self.texts.check_length(sum(len(message.content) for message in messages), "messages")
        prompts, thinking = self.models.prompts, body.chat_template_kwargs.enable_thinking
        if thinking is not None:
            prompts = msgspec.structs.replace(prompts, thinking=thinking)
        tokenizer = self.texts.tokenizer
        continues = bool(body.continue_final_message)
        ids = await off_loop(size, encode_conversation, tokenizer, messages, prompts, continues)
        limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        template = resolve_template(tokenizer, prompts)
        limit = _UNLIMITED_TOKENS if limit is None else limit
        completions = await self._generate(body, named, [ids], limit, template)
        thinks = not continues and may_think(tokenizer, prompts)
        return chat_response(body, named.name, completions, self.texts, template, thinks)

    def _tokenize_prompts(self, body: CompletionRequest) -> Sequence[list[int]]:
        encode, texts = self.texts.tokenizer.encode_prompt, [body.prompt, *body.prompt]
        for text in texts:
            if isinstance(text, str):
                self.texts.check_length(len(text), "prompt")
        if isinstance(body.prompt, str):
            return [encode(body.prompt)]
        tokens = [token for token in body.prompt if isinstance(token, int)]
        if len(tokens) == len(body.prompt):
            return [tokens]
        if tokens:
            raise RefusedError(400, "prompt: found tokens beside prompts; expected a prompt, or several", "prompt")
        if len(body.prompt) > MAX_CHOICES:
            raise RefusedError(400, f"prompt: {len(body.prompt)} prompts; expected at most {MAX_CHOICES}", "prompt")
        return [encode(prompt) if isinstance(prompt, str) else cast("list[int]", prompt) for prompt in body.prompt]

    async def _generate(
        self,
        body: CommonRequest,
        named: ResolvedModel,
        prompts: Sequence[list[int]],
        limit: int,
        template: Template | None = None,
    ) -> Sequence[CompletionChoice]:
        """Completions of every prompt, ``n`` of each, side by side; with a conversation's ``template``, turns."""
        constraint = self.texts.make_constraint(body, template)
        each = 1 if body.n is None else body.n
        if not 0 < each * len(prompts) <= MAX_CHOICES:
            raise RefusedError(400, f"n: {each} of {len(prompts)} prompts; expected 1 to {MAX_CHOICES} in all", "n")
        first = secrets.randbits(62) if body.seed is None else body.seed
        temperature = (1.0 if body.temperature is None else body.temperature) or GREEDY_TEMPERATURE
        top_p = 1.0 if body.top_p is None else body.top_p
        samplings = [SamplingParameters(temperature, first + index, limit, top_p) for index in range(each)]
        with self.admission.admit(each * len(prompts)), contextlib.ExitStack() as leases:
            if named.adapter is not None:
                await self.models.acquire(named.adapter, leases)
            requests = [
                Request(prompt, named.adapter, constraint, sampling) for prompt in prompts for sampling in samplings
            ]
            tasks = [asyncio.ensure_future(self.models.backend.generate(request)) for request in requests]
            try:
                completions = await asyncio.gather(*tasks)
            finally:
                # Where one fails, the results of the others would not be used.
                for task in tasks:
                    task.cancel()
        repeated = (prompt for prompt in prompts for _ in samplings)
        return [CompletionChoice(prompt, completion) for prompt, completion in zip(repeated, completions, strict=True)]


def _describe_model(name: str) -> Json:
    return {"id": name, "object": "model", "created": 0, "owned_by": OWNER}


async def _send(request: web.Request, body: CommonRequest, answer: Json) -> web.StreamResponse:
    """Send an answer, whole or as a stream."""
    if body.stream:
        return await send_stream(request, answer, body.stream_options)
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")
