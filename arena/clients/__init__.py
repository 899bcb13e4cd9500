"""Clients that complete conversations for an arena: the contract, and one with scripted replies.

``improviser`` is ``ArenaSpec.improvise`` as a client: an arena's scripted agents. Clients that need a model or a
network are in ``players``.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Protocol, Self, runtime_checkable
from zlib import crc32

import msgspec

from schemas.episodes import Message, ModelResponse, unconstrained_model_call


class InferenceClient(Protocol):
    """Completes conversations; it may batch concurrent calls."""

    async def complete(
        self,
        messages: Sequence[Message],
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        seed: int = 0,
    ) -> ModelResponse:
        """Complete a conversation, whose last message is the user's; ``LeagueError`` if there is no reply.

        ``max_tokens`` None is the client's own bound. ``return_tokens`` requests token ids and log-probabilities; a
        client that lacks any of them returns the text alone. ``seed`` is this call's; a client may leave the parameter
        out.
        """

    async def get_policy_version(self) -> int:
        """Version of the policy that the next call would be sampled from; 0 where there is only one."""
        return 0


@runtime_checkable
class SupportsChoices(Protocol):
    """A client that can constrain a model to one of several replies."""

    async def choose(
        self,
        messages: Sequence[Message],
        choices: Sequence[str],
        temperature: float = 1.0,
        return_tokens: bool = True,
        seed: int = 0,
    ) -> ModelResponse:
        """Sample one of the choices, all different, by the model's probabilities among them.

        All else is as in ``InferenceClient.complete``; log-probabilities are those among the choices.
        """


VOCABULARY_SIZE = 1_000
"""Token ids of words are below this."""
_LOGPROB = -0.5


class ScriptedCall(msgspec.Struct, frozen=True):
    """A recorded call."""

    messages: list[Message]
    temperature: float
    max_tokens: int | None
    return_tokens: bool
    seed: int


ReplyFunction = Callable[[Sequence[Message]], str | ModelResponse]


class ScriptedClient(InferenceClient):
    """An ``InferenceClient`` without a model, with predetermined replies. Its tokens are words."""

    def __init__(self, *replies: str, latency_s: float = 0.0, version: int = 0) -> None:
        """Reply with each of these in turn, and again from the first; without any, with the empty text."""
        self.version = version
        """The policy version that it reports."""
        self.calls: list[ScriptedCall] = []
        """All calls, in order; unset ``keep_calls`` where that would be too many."""
        self.keep_calls = True
        self._latency_s = latency_s
        texts = cycle(replies or ("",))
        self._reply: ReplyFunction = lambda _: next(texts)

    @classmethod
    def from_function(cls, reply: ReplyFunction, latency_s: float = 0.0, version: int = 0) -> Self:
        """A client whose replies depend on the conversation."""
        client = cls(latency_s=latency_s, version=version)
        client._reply = reply
        return client

    async def complete(
        self,
        messages: Sequence[Message],
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        seed: int = 0,
    ) -> ModelResponse:
        """The next predetermined reply, after the configured latency."""
        if self.keep_calls:
            self.calls.append(ScriptedCall(list(messages), temperature, max_tokens, return_tokens, seed))
        reply = self._reply(messages)
        await asyncio.sleep(self._latency_s)
        if isinstance(reply, ModelResponse):
            return reply
        return self._respond_with_tokens(reply, messages, temperature) if return_tokens else ModelResponse(reply)

    async def get_policy_version(self) -> int:
        """The configured version."""
        return self.version

    def _respond_with_tokens(self, text: str, messages: Sequence[Message], temperature: float) -> ModelResponse:
        prompt_ids = [token for message in messages for token in word_token_ids(message.content)] or [0]
        completion_ids = word_token_ids(text)
        logprobs = [_LOGPROB] * len(completion_ids)
        tokens = unconstrained_model_call(prompt_ids, completion_ids, logprobs, self.version, temperature)
        return ModelResponse(text, tokens)


def word_token_ids(text: str) -> list[int]:
    """A token id for every word; equal words have equal ids."""
    return [crc32(word.encode()) % VOCABULARY_SIZE for word in text.split()]
