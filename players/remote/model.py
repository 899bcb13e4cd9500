"""Requests to one remote agent: a server with OpenAI's chat interface, with retries and within a budget.

Requests are counted and priced: tokens as servers count them, at the configured prices. An agent that has spent its
budget, by the history and by what this process has not recorded yet, is sent no more of them.

The package ``openai`` 3.54 was weighed as the client and left out: 43 MiB more on disk, 0.7 s and 48 MiB to import
(httpx2: 0.1 s and 24 MiB), and it reads bodies of any length and quotes them whole, secrets included, in its errors.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec

from players.remote.http_client import HttpClient, HttpResponse, RequestFailedError, parse_retry_after
from schemas.codec import DECODE_ERRORS
from schemas.config import RemoteAgentConfig
from schemas.episodes import Message
from schemas.errors import ConfigError, RemoteError
from schemas.retry import Backoff

_FIRST_PAUSE_S = 0.5
_MAX_PAUSE_S = 30.0
_MAX_WAIT_S = 120.0
"""A server that asks to wait for longer fails the match at once."""
_RETRYABLE_STATUSES = frozenset((408, 409, 425, 429))
"""Statuses below 500 after which another try may succeed."""
_AUTH_STATUSES = frozenset((401, 403))
"""Statuses whose text may hold a part of the key."""
_MISSING_PAGE_STATUSES = frozenset((404, 405))
"""Statuses of a missing page; the second is vLLM's, which has other methods under any path."""
_MAX_EXCERPT_CHARS = 200
_MAX_TOKEN_COUNT = 1 << 53


class TokenUsage(msgspec.Struct, frozen=True):
    """Token usage of one request, as its server counts it."""

    prompt: int
    completion: int
    total: int
    """Total, at least the sum of the two; more where the server does not break it down."""

    def cost(self, config: RemoteAgentConfig) -> float:
        """Cost in the currency of the prices; tokens that are not broken down cost the higher price."""
        other = self.total - self.prompt - self.completion
        dearer = max(config.prompt_price, config.completion_price)
        money = self.prompt * config.prompt_price + self.completion * config.completion_price + other * dearer
        return money / 1e6


class RemoteUsage(msgspec.Struct):
    """Totals of several requests; fields as in ``RemoteAsked``."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens: int = 0
    uncounted: int = 0
    cost: float = 0.0

    def add(self, other: "RemoteUsage") -> None:
        """Add other totals."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class _UsageResponse(msgspec.Struct):
    usage: Any = None


def parse_usage(data: bytes) -> TokenUsage | None:
    """The token usage in an answer; None where it does not say how many tokens there were."""
    try:
        usage = msgspec.json.decode(data, type=_UsageResponse).usage
    except DECODE_ERRORS:
        return None
    if not isinstance(usage, dict):
        return None
    counts = [usage.get(f"{part}_tokens") for part in ("prompt", "completion", "total")]
    prompt, completion, total = (
        count if type(count) is int and 0 <= count < _MAX_TOKEN_COUNT else None for count in counts
    )
    if total is None and (prompt is None or completion is None):
        return None
    counted = (prompt or 0) + (completion or 0)
    return TokenUsage(prompt or 0, completion or 0, max(total or 0, counted))


class RemoteReply(NamedTuple):
    """A remote model's reply, and how long it took, failed tries included."""

    text: str
    seconds: float
    finish_reason: str


class CompletionMessage(msgspec.Struct):
    """The message of a choice."""

    content: str | None = None


class CompletionChoice(msgspec.Struct):
    """A choice, as far as it is read for its text."""

    message: CompletionMessage
    finish_reason: str | None = None

    @property
    def finish(self) -> str:
        """``length`` for a reply that was truncated, else ``stop``."""
        return "length" if self.finish_reason == "length" else "stop"


class ChatCompletion(msgspec.Struct):
    """A chat completion, as far as it is read for its text."""

    choices: Sequence[CompletionChoice]


CompletionT = TypeVar("CompletionT", bound=ChatCompletion)


class RemoteModel:
    """The connection of one process to one remote agent.

    ``first_pause_s`` passes before the second try, and doubles for each further one. ``left`` returns what is left of
    its budget according to the history. The key is ``api_key``, or else the one of the configured environment variable;
    ``ConfigError`` if that is not set.
    """

    def __init__(
        self,
        agent: str,
        config: RemoteAgentConfig,
        first_pause_s: float = _FIRST_PAUSE_S,
        left: Callable[[], float] = lambda: inf,
        api_key: str | None = None,
    ) -> None:
        self._agent = agent
        self._label = f"agent {agent!r} at {urlsplit(config.url).netloc}"
        self._config = config
        self._budget_left = left
        self._unrecorded_cost = 0.0
        self._http_client = HttpClient(
            config.timeout_s, resolve_api_key(agent, config) if api_key is None else check_api_key(api_key)
        )
        self._url = f"{config.url.rstrip('/')}/chat/completions"
        self._first_pause_s = first_pause_s
        self._request_slots = asyncio.Semaphore(config.requests)
        self._resume_at = 0.0

    @property
    def is_over_budget(self) -> bool:
        """Whether its budget is spent."""
        return self._budget_left() <= self._unrecorded_cost

    def check_budget(self) -> None:
        """Raise ``RemoteError`` if the budget is spent."""
        if self.is_over_budget:
            raise RemoteError(
                f"{self._label}: pauses, since its budget is spent; "
                f"expected agents.{self._agent}.remote.budget to be raised"
            )

    def mark_recorded(self, cost: float) -> None:
        """Mark a cost as contained in the history, and with it in the rest of the budget."""
        self._unrecorded_cost -= cost

    async def ask(self, rules: str, question: str, tally: RemoteUsage) -> RemoteReply:
        """The model's reply to a question; ``chat`` with two messages."""
        return await self.chat([Message("system", rules), Message("user", question)], tally)

    async def chat(self, messages: Sequence[Message], tally: RemoteUsage) -> RemoteReply:
        """The model's next message in a conversation; the usage is added to ``tally``, failed or not.

        A try that fails for a reason that may pass (the network, a time-out, 408, 409, 425, 429, 5xx, an answer that
        is no completion) is followed by another after a pause, or after as long as the server asks for.

        Raises:
            RemoteError: no reply after ``tries`` requests, or a failure that another try does not mend, or the budget
                is spent; the message names agent, host and the server's text, never the key.
        """
        body = {
            "model": self._config.model,
            "messages": list(messages),
            "temperature": self._config.temperature,
            self._config.limit_field: self._config.max_tokens,
            **self._config.extra,
        }
        completion, seconds = await self._request_with_retries(body, tally, ChatCompletion)
        choice = completion.choices[0]
        return RemoteReply(choice.message.content or "", seconds, choice.finish)

    async def request_completion(self, body: dict[str, Any], kind: type[CompletionT]) -> CompletionT:
        """Send a request for a chat completion, with retries and ``RemoteError`` as ``chat``."""
        return (await self._request_with_retries(body, RemoteUsage(), kind))[0]

    async def get_page(self, url: str) -> bytes | None:
        """A page of the same server, requested once; None if there is none, ``RemoteError`` if the server denies it."""
        try:
            response = await self._http_client.send("GET", url)
            if not response.is_success and response.status not in _MISSING_PAGE_STATUSES:
                raise self._make_status_error(response)
        except RequestFailedError as failure:
            raise RemoteError(f"{self._label}: {failure}; expected {urlsplit(url).path}") from None
        return response.body if response.is_success else None

    async def close(self) -> None:
        """Close the connections."""
        await self._http_client.close()

    async def _request_with_retries(
        self, body: dict[str, Any], tally: RemoteUsage, kind: type[CompletionT]
    ) -> tuple[CompletionT, float]:
        # Jitter, so that requests which were rejected together don't come back together.
        backoff = Backoff(self._first_pause_s, _MAX_PAUSE_S, jitter=(0.5, 1.0))
        content = msgspec.json.encode(body)
        async with self._request_slots:
            started = time.monotonic()
            for attempt in range(1, self._config.tries + 1):
                await asyncio.sleep(max(self._resume_at - time.monotonic(), 0.0))
                self.check_budget()
                try:
                    completion = _parse_completion(await self._request_once(content, tally), kind)
                    return completion, time.monotonic() - started
                except RequestFailedError as failure:
                    if not failure.is_retryable or attempt == self._config.tries:
                        times = "1 request" if attempt == 1 else f"{attempt} requests"
                        raise RemoteError(f"{self._label}: {failure} ({times}); expected a chat completion") from None
                    if failure.wait_s:
                        # One request is asked to wait, and all are meant.
                        self._resume_at = max(self._resume_at, time.monotonic() + failure.wait_s)
                    await asyncio.sleep(backoff.next_s())
        raise AssertionError("tries is at least 1")

    async def _request_once(self, body: bytes, tally: RemoteUsage) -> bytes:
        tally.requests += 1
        usage = None
        may_cost = True
        cost = 0.0
        try:
            response = await self._http_client.send("POST", self._url, body)
            usage, may_cost = parse_usage(response.body), response.is_success
        except RequestFailedError as failure:
            may_cost = failure.may_be_billed
            raise
        finally:
            # Also of a request that was cancelled: its server may go on and charge for it.
            if usage is not None:
                cost = usage.cost(self._config)
                tally.prompt_tokens += usage.prompt
                tally.completion_tokens += usage.completion
                tally.tokens += usage.total
            elif may_cost:
                # At most: a token is at least a byte, and the reply is limited.
                most = self._config.max_tokens
                tally.uncounted += 1
                cost = TokenUsage(len(body), most, len(body) + most).cost(self._config)
            tally.cost += cost
            self._unrecorded_cost += cost
        if not response.is_success:
            raise self._make_status_error(response)
        return response.body

    def _make_status_error(self, response: HttpResponse) -> RequestFailedError:
        status = response.status
        why = f"status {status}"
        if status not in _AUTH_STATUSES and (text := self._http_client.quote(response.body)):
            why += f", {text[:_MAX_EXCERPT_CHARS]!r}"
        wait_s = parse_retry_after(response.headers.get("retry-after", "")) or 0.0
        if wait_s > _MAX_WAIT_S:
            why += f", asks to wait {wait_s:.0f} s"
        may_pass = status in _RETRYABLE_STATUSES or status >= 500
        return RequestFailedError(why, may_pass and wait_s <= _MAX_WAIT_S, wait_s)


def resolve_api_key(agent: str, config: RemoteAgentConfig) -> str:
    """The key of a remote agent's server, empty for one without; ``ConfigError`` if its variable holds none."""
    if not (variable := config.key_variable):
        return ""
    if not (key := os.environ.get(variable, "").strip()):
        raise ConfigError(
            f"agents.{agent}.remote.key_variable: the environment of this process has nothing in {variable}; "
            f"expected the key for {urlsplit(config.url).netloc}"
        )
    return check_api_key(key, f"agents.{agent}.remote.key_variable: what {variable} holds")


def check_api_key(key: str, where: str = "api_key") -> str:
    """The key, or ``ConfigError`` where it cannot be one."""
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{where} is no key; expected one in ASCII")
    return key


def _parse_completion(data: bytes, kind: type[CompletionT]) -> CompletionT:
    try:
        completion = msgspec.json.decode(data, type=kind)
    except DECODE_ERRORS:
        raise RequestFailedError("an answer that is no chat completion") from None
    if not completion.choices:
        raise RequestFailedError("an answer without any choice")
    return completion
