"""Client of a server of OpenEnv: the environment's description over HTTP, and sessions over WebSocket.

``/reset`` and ``/step`` over HTTP keep nothing from one request to the next, hence a session over ``/ws``: ``reset``,
then ``step``. Every failure on the way is an ``EpisodeError`` that names the server.
"""

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx2
import msgspec

from schemas.errors import EpisodeError

_RETRY_S = 0.1
"""Seconds between attempts to open a session of a server that has none free."""
_MAX_MESSAGE = 64 * 2**20
"""Most bytes of a server's message."""
_MAX_SHOWN = 300


class ServerError(EpisodeError):
    """An error that the server reports, with its code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Result(msgspec.Struct, frozen=True):
    """Result of a reset or a step."""

    observation: dict[str, Any]
    reward: float | bool | None = None
    done: bool = False


class Description(NamedTuple):
    """A server's description of its environment."""

    text: str
    """Its name and its description."""
    fields: dict[str, Any]
    """JSON schemas of an action's fields, by name."""


class Server:
    """An environment's server."""

    def __init__(self, url: str, timeout_s: float) -> None:
        """``timeout_s``: seconds that the server has for an answer, or to have a session free."""
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s
        self.where = f"openenv, {url}"

    async def describe(self) -> Description:
        """The environment's description and actions, from ``/metadata`` and ``/schema`` of an OpenEnv server."""
        async with self.translate_errors(), httpx2.AsyncClient(base_url=self._url, timeout=None) as client:
            answers = []
            for path in ("/metadata", "/schema"):
                response = await client.get(path)
                response.raise_for_status()
                answers.append(_replace_surrogates(response.json()))
        try:
            metadata, schema = answers
            fields = {name: each for name, each in schema["action"]["properties"].items() if name != "metadata"}
            return Description(f"{metadata['name']}: {metadata['description']}", fields)
        except (KeyError, TypeError, AttributeError) as error:
            raise EpisodeError(
                f"{self.where}: found no {error} in /metadata and /schema; expected those of an OpenEnv server"
            ) from None

    @asynccontextmanager
    async def open_session(self, reset: Mapping[str, Any]) -> "AsyncIterator[tuple[Session, Result]]":
        """A session after its reset with these arguments, and its first result. Waits for a free one."""
        from websockets.asyncio.client import connect

        address = re.sub(r"^http", "ws", self._url) + "/ws"
        socket = None
        try:
            async with self.translate_errors():
                while True:
                    socket = await connect(address, open_timeout=None, close_timeout=_RETRY_S, max_size=_MAX_MESSAGE)
                    session = Session(self, socket)
                    try:
                        first = await session.exchange("reset", reset)
                        break
                    except ServerError as error:
                        if error.code != "CAPACITY_REACHED":
                            raise
                    await socket.close()
                    await asyncio.sleep(_RETRY_S)
            yield session, first
        finally:
            if socket is not None:
                await socket.close()

    @asynccontextmanager
    async def translate_errors(self) -> AsyncIterator[None]:
        """A time limit, and an ``EpisodeError`` for all that can go wrong on the way to the server."""
        from websockets.exceptions import WebSocketException

        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError:
            raise EpisodeError(f"{self.where}: no answer within {self._timeout_s:g} s") from None
        except (OSError, httpx2.HTTPError, WebSocketException) as error:
            raise EpisodeError(f"{self.where}: the server is away ({type(error).__name__}: {error})") from error
        except json.JSONDecodeError as error:
            raise EpisodeError(f"{self.where}: expected JSON ({error})") from error


@dataclass
class Session:
    """An open session; ``Server.open_session`` makes one."""

    _server: Server
    _socket: Any

    async def step(self, action: Mapping[str, Any]) -> Result:
        """Apply an action; ``ServerError`` if the server rejects it, or its environment raises."""
        async with self._server.translate_errors():
            return await self.exchange("step", action)

    async def exchange(self, kind: str, data: Mapping[str, Any]) -> Result:
        """Send a message and wait for the server's answer."""
        from websockets.exceptions import ConnectionClosed

        # A server without a free session answers before it reads a message, and closes.
        with suppress(ConnectionClosed):
            await self._socket.send(json.dumps({"type": kind, "data": data}))
        return parse_message(await self._socket.recv(), self._server.where)


def parse_message(text: str | bytes, where: str) -> Result:
    """The result in a message of the server; ``ServerError`` for an error in it, ``EpisodeError`` for anything else."""
    try:
        # Unlike msgspec, it reads NaN, so that the message can name it.
        fields = _replace_surrogates(json.loads(text))
        data = fields["data"]
        if fields["type"] == "error":
            details = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in data.get("errors", ())]
            message = "; ".join([str(data.get("message", "")), *details])[:_MAX_SHOWN]
            raise ServerError(f"{where}: {message}", str(data.get("code", "")))
        result = msgspec.convert(data, Result)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, EpisodeError):
            raise
        raise EpisodeError(
            f"{where}: found {str(text)[:_MAX_SHOWN]!r} ({error}); expected observation, reward and done, as OpenEnv "
            "sends them"
        ) from None
    if not math.isfinite(result.reward or 0.0):
        raise EpisodeError(f"{where}: reward {result.reward}; expected a finite number")
    return result


def _replace_surrogates(value: Any) -> Any:
    """The same JSON with question marks for halves of surrogate pairs, which no record of a match can hold."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
