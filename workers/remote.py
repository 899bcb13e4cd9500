"""Remote agents: models behind a server with OpenAI's chat interface, in the seats of fixed opponents.

At its turn a remote agent is told the rules and the position in plain language (``arena.games.base.Words``) and
answers in kind. Every request stands for itself: nothing is remembered between turns, and what the agent is asked
follows from the position alone. A reply that makes no sense costs the seat its say, not the match: the game's default
stands in, and is counted. A server that gives no reply at all costs the match, once it was asked often enough.
"""

import asyncio
import os
import random
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from arena.games.base import Action, Game, Words
from schemas.config import AgentConfig, LeagueConfig, RemoteConfig
from schemas.errors import ConfigError, RemoteError, UsageError, one_of

if TYPE_CHECKING:
    import httpx2

METRICS = "remote_"
"""How the names of a remote seat's metrics begin. They tell how it was asked, not how the game went."""

LARGEST_ANSWER = 4 * 1024 * 1024
"""Bytes of one answer, above which no more of it is read."""

_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 30.0
_LONGEST_WAIT_S = 120.0
"""A server that wants to be left alone for longer fails the match at once."""
_PASSING = frozenset((408, 409, 425, 429))
"""Statuses below 500 that another try may get over."""
_ABOUT_KEYS = frozenset((401, 403))
"""Statuses whose text may hold a part of the key."""
_EXCERPT = 200


class Reply(NamedTuple):
    """What a remote model wrote, and what it took."""

    text: str
    requests: int
    """Tries included."""
    tokens: int
    """Of prompt and reply as the server counts them; 0 when it does not."""
    seconds: float


class _FailedError(Exception):
    """One request without a reply."""

    def __init__(self, why: str, passing: bool = True, wait_s: float = 0.0) -> None:
        super().__init__(why)
        self.passing = passing and wait_s <= _LONGEST_WAIT_S
        self.wait_s = wait_s


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Completion(msgspec.Struct):
    """As much of a chat completion as we read."""

    choices: list[_Choice]
    usage: Any = None


class RemoteModel:
    """The connection of one process to one remote agent."""

    def __init__(self, agent: str, config: RemoteConfig, first_pause_s: float = _FIRST_PAUSE_S) -> None:
        """Prepare to ask; nothing is sent yet.

        Args:
            agent: Its name, for messages.
            config: Where it is and how it is asked.
            first_pause_s: Before the second try; doubled for each further one, with jitter.

        Raises:
            ConfigError: the variable that should hold its key does not.
        """
        # Here and not above: workers of leagues without remote agents never need it.
        import httpx2

        self._where = f"agent {agent!r} at {urlsplit(config.url).netloc}"
        self._config = config
        self._key = _key(agent, config)
        # No time-outs of its own: they are for each read, and a reply that trickles in would never meet one.
        self._client = httpx2.AsyncClient(auth=self._sign if self._key else None, timeout=None)
        self._url = f"{config.url.rstrip('/')}/chat/completions"
        self._first_pause_s = first_pause_s
        self._free = asyncio.Semaphore(config.requests)
        self._resume_at = 0.0

    async def ask(self, rules: str, question: str) -> Reply:
        """The model's answer to a question.

        A try that fails for a reason that may pass (the network, a time-out, 408, 409, 425, 429, 5xx, an answer that
        is no completion) is followed by another after a pause, or after as long as the server asks for.

        Raises:
            RemoteError: no reply after ``tries`` requests, or one that trying again does not mend; the message names
                agent, host and what the server said, never the key.
        """
        body = self._body(rules, question)
        async with self._free:
            started = time.monotonic()
            for attempt in range(1, self._config.tries + 1):
                await asyncio.sleep(max(self._resume_at - time.monotonic(), 0.0))
                try:
                    text, tokens = await self._request(body)
                    return Reply(text, attempt, tokens, time.monotonic() - started)
                except _FailedError as failure:
                    if not failure.passing or attempt == self._config.tries:
                        times = "1 request" if attempt == 1 else f"{attempt} requests"
                        raise RemoteError(f"{self._where}: {failure} ({times}); expected a chat completion") from None
                    await self._pause(attempt, failure.wait_s)
        raise AssertionError("tries is at least 1")

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()

    def _body(self, rules: str, question: str) -> dict[str, Any]:
        return {
            "model": self._config.model,
            "messages": [{"role": "system", "content": rules}, {"role": "user", "content": question}],
            "temperature": self._config.temperature,
            self._config.limit_field: self._config.max_tokens,
            **self._config.extra,
        }

    def _sign(self, request: "httpx2.Request") -> "httpx2.Request":
        # Here and not among the client's headers: the key is in no local variable that a logged traceback would show.
        request.headers["Authorization"] = f"Bearer {self._key}"
        return request

    async def _pause(self, attempt: int, wait_s: float) -> None:
        if wait_s:
            # Said to one request, meant for all.
            self._resume_at = max(self._resume_at, time.monotonic() + wait_s)
        pause_s = min(self._first_pause_s * 2 ** (attempt - 1), _LONGEST_PAUSE_S)
        # Jitter, so that those who were refused together don't come back together.
        await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))

    async def _request(self, body: dict[str, Any]) -> tuple[str, int]:
        """One try: the text, and its tokens."""
        import httpx2

        try:
            async with (
                asyncio.timeout(self._config.timeout_s),
                self._client.stream("POST", self._url, json=body) as response,
            ):
                data = await _read(response)
        except TimeoutError:
            raise _FailedError(f"no reply within {self._config.timeout_s:g} s") from None
        except (httpx2.HTTPError, httpx2.StreamError, httpx2.InvalidURL, OSError, ValueError) as error:
            raise _FailedError(f"no connection or a broken one, {type(error).__name__}") from None
        if not response.is_success:
            raise self._refusal(response, data)
        return _completion(data)

    def _refusal(self, response: "httpx2.Response", data: bytes) -> _FailedError:
        status = response.status_code
        why = f"status {status}"
        if status not in _ABOUT_KEYS and (said := self._excerpt(data)):
            why += f", {said!r}"
        wait_s = _wait_s(response.headers.get("Retry-After", ""))
        if wait_s > _LONGEST_WAIT_S:
            why += f", asks to wait {wait_s:.0f} s"
        return _FailedError(why, status in _PASSING or status >= 500, wait_s)

    def _excerpt(self, data: bytes) -> str:
        # The key is taken out before the text is cut, so that no part of it can stay.
        said = data.decode(errors="replace")
        if self._key:
            said = said.replace(self._key, "…")
        return " ".join(said.split())[:_EXCERPT]


class RemotePlayer:
    """A remote agent in one seat of one match."""

    def __init__(self, model: RemoteModel, words: Words) -> None:
        self._model = model
        self._words = words
        self._counted = dict.fromkeys(("requests", "tokens", "seconds", "choices", "illegal"), 0.0)

    async def act(self, game: Game, seat: int, seed: int) -> Action:
        """What the model says, or the game's default where it says nothing legal.

        Raises:
            RemoteError: its server gave no reply.
        """
        reply = await self._model.ask(self._words.rules(), self._words.question(game, seat))
        understood = self._words.understand(game, seat, reply.text, random.Random(seed))
        counted = self._counted
        counted["requests"] += reply.requests
        counted["tokens"] += reply.tokens
        counted["seconds"] += reply.seconds
        counted["choices"] += understood.choices
        counted["illegal"] += understood.illegal
        return understood.action

    def metrics(self) -> dict[str, float]:
        """For ``SeatResult.metrics``.

        ``remote_requests`` that were sent, ``remote_tokens`` that the server counted, ``remote_seconds`` spent waiting,
        ``remote_choices`` the agent had to make and ``remote_illegal``, how many of them the game's default made.
        """
        return {METRICS + name: round(count, 3) for name, count in self._counted.items()}


class Remotes:
    """The remote agents of a league, for one process; each is connected to when it is first played."""

    def __init__(self, agents: Mapping[str, AgentConfig]) -> None:
        self._configs = {name: agent.remote for name, agent in agents.items() if agent.remote is not None}
        self._models: dict[str, RemoteModel] = {}

    def player(self, agent: str, words: Words) -> RemotePlayer:
        """The agent, for one seat of one match.

        Raises:
            UsageError: the configuration does not say where it is.
            ConfigError: the variable that should hold its key does not.
        """
        if agent not in self._configs:
            raise UsageError(f"agents.{agent}: no remote agent of that name; expected {one_of(self._configs)}")
        if agent not in self._models:
            self._models[agent] = RemoteModel(agent, self._configs[agent])
        return RemotePlayer(self._models[agent], words)

    async def close(self) -> None:
        """Let go of all connections."""
        for model in self._models.values():
            await model.close()


def played_in_training(config: LeagueConfig) -> list[str]:
    """Remote agents that samplers may draw."""
    return [name for name, agent in config.agents.items() if agent.remote is not None and agent.remote.training]


def played_in_evaluation(config: LeagueConfig) -> list[str]:
    """Remote agents that evaluations place opponents from."""
    named = {*config.evaluation.gatekeepers, *config.evaluation.benchmark_opponents}
    if config.stop.criterion is not None:
        named.add(config.stop.criterion.opponent)
    return [name for name, agent in config.agents.items() if agent.remote is not None and name in named]


def check_keys(config: LeagueConfig, agents: Collection[str]) -> None:
    """Look for the keys of remote agents before the first of their matches.

    Raises:
        ConfigError: a variable is missing; the message names it and the agent.
    """
    for name in agents:
        remote = config.agents[name].remote
        if remote is not None:
            _key(name, remote)


def _key(agent: str, config: RemoteConfig) -> str:
    variable = config.key_variable
    if not variable:
        return ""
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ConfigError(
            f"agents.{agent}.remote.key_variable: the environment of this process has nothing in {variable}; "
            f"expected the key for {urlsplit(config.url).netloc}"
        )
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"agents.{agent}.remote.key_variable: what {variable} holds is no key; expected one in ASCII")
    return key


async def _read(response: "httpx2.Response") -> bytes:
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > LARGEST_ANSWER:
            raise _FailedError(f"status {response.status_code} with an answer of more than {LARGEST_ANSWER:,} bytes")
    return b"".join(parts)


def _completion(data: bytes) -> tuple[str, int]:
    try:
        completion = msgspec.json.decode(data, type=_Completion)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _FailedError("an answer that is no chat completion") from None
    if not completion.choices:
        raise _FailedError("an answer without any choice")
    return completion.choices[0].message.content or "", _total(completion.usage)


def _total(usage: Any) -> int:
    total = usage.get("total_tokens") if isinstance(usage, dict) else None
    return total if isinstance(total, int) and 0 <= total < 1 << 53 else 0


def _wait_s(header: str) -> float:
    """Seconds that a Retry-After header asks for: a number, or a date (RFC 9110, 10.2.3)."""
    with suppress(ValueError):
        seconds = float(header)
        return seconds if 0 <= seconds < float("inf") else 0.0
    with suppress(ValueError, TypeError):
        return max(parsedate_to_datetime(header).timestamp() - time.time(), 0.0)
    return 0.0
