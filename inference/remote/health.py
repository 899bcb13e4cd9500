"""State of an inference server, as one client knows it, and the types of servers."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from inference.remote import OWNER, TOKEN_VARIABLE, token_headers
from schemas.errors import ConfigError

if TYPE_CHECKING:
    import aiohttp

CONNECT_S = 5.0


def loop_time() -> float:
    """The clock of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()


@dataclass(eq=False)
class ServerState:
    """State of a server."""

    url: str
    running: int = 0
    """Requests of this client in flight there."""
    down: bool = False
    """Whether it failed, and has not answered a probe since."""
    busy_until: float = 0.0
    """It takes no requests until then, by the event loop's clock."""
    sent: int = 0
    """Requests sent so far."""

    def is_open(self, now: float) -> bool:
        """Whether it takes requests now."""
        return not self.down and now >= self.busy_until


PROBE_TIMEOUT_S = 5.0
"""Time-out of the list of models, which vLLM and our processes answer at once, whatever they compute."""


class ServerType(Enum):
    """The implementation of a server."""

    LEAGUE = "an inference process of a league"
    VLLM = "a server of vLLM's own"


_OWNERS = {OWNER: ServerType.LEAGUE, "vllm": ServerType.VLLM}


class _Model(msgspec.Struct):
    owned_by: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def detect_server_types(urls: Sequence[str]) -> dict[str, ServerType | None]:
    """The type of each server, by URL; None for one that does not answer, or not yet.

    Raises:
        ConfigError: a server answers, and is of neither type.
    """
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout, headers=token_headers()) as session:
        types = await asyncio.gather(*(_detect_server_type(session, url) for url in urls))
    return dict(zip(urls, types, strict=True))


def common_server_type(kinds: Mapping[str, ServerType | None]) -> ServerType | None:
    """The type of all servers that answered; None where none did.

    Raises:
        ConfigError: the types differ. Both sample the same distribution, but by different draws, so that a request
            sent again elsewhere would give another completion.
    """
    first: dict[ServerType, str] = {}
    for url, kind in kinds.items():
        if kind is not None:
            first.setdefault(kind, url)
    if len(first) > 1:
        types = " and ".join(f"{url} is {kind.value}" for kind, url in first.items())
        raise ConfigError(f"inference.urls: {types}; expected servers of one kind")
    return next(iter(first), None)


async def _detect_server_type(session: "aiohttp.ClientSession", url: str) -> ServerType | None:
    import aiohttp

    try:
        async with session.get(f"{url.rstrip('/')}/v1/models") as response:
            status, answer = response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    if status >= 500:
        return None
    owners: list[str] = []
    if status == 200:
        with contextlib.suppress(msgspec.MsgspecError):
            owners = [model.owned_by for model in msgspec.json.decode(answer, type=_Models).data]
    kinds = {_OWNERS.get(owner) for owner in owners}
    if len(kinds) != 1 or None in kinds:
        finding = f"a list of models owned by {sorted(set(owners))}" if owners else f"{status} and no list of models"
        hint = f" that takes the token in {TOKEN_VARIABLE}" if status == 401 else ""
        kinds_text = " or ".join(kind.value for kind in ServerType)
        raise ConfigError(f"inference.urls: {url}/v1/models answers {finding}; expected {kinds_text}{hint}")
    return kinds.pop()
