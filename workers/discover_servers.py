"""Find the inference servers of a league (``league worker inference``) in its configuration and history."""

import asyncio
import contextlib

import msgspec

from inference.base import RemoteBackend
from inference.remote import OWNER, TOKEN_VARIABLE, token_headers
from inference.remote.load_balancer import ServersConfig
from inference.servers import ServersBackend
from league.run import TOKEN_FILE
from schemas.config import LeagueConfig, convert
from schemas.errors import ConfigError
from workers.runtime import Context

PROBE_TIMEOUT_S = 5.0
"""Time-out of the list of models, which a server answers at once, whatever it computes."""


def uses_inference_servers(config: LeagueConfig) -> bool:
    """Whether playing workers send inference requests to servers."""
    return config.inference.servers > 0 or bool(config.inference.urls)


def server_urls(context: Context) -> list[str]:
    """URLs of the current servers: the configured ones, and inference workers that have not left."""
    announced = [worker.url for worker in context.state.workers.values() if worker.url and worker.left is None]
    return [*context.config.inference.urls, *announced]


def make_servers_config(config: LeagueConfig) -> ServersConfig:
    """Make the client configuration for the league's inference workers; ``ConfigError`` for a bad URL or time."""
    inference = config.inference
    # Slow machines that get more time for a request also get more time between signs of life.
    settings = {
        "urls": inference.urls,
        "timeout_s": inference.request_timeout_s,
        "patience_s": inference.patience_s,
        "silence_s": inference.request_timeout_s / 10,
    }
    return convert(settings, ServersConfig, "inference")


async def connect_servers(context: Context) -> RemoteBackend:
    """Wait for a server (or for the worker to be stopped) and return a backend that uses the league's servers.

    A model may take minutes to load: waiting here keeps matches from failing meanwhile.
    """
    await context.wait_until(lambda: bool(server_urls(context)))
    token = context.run.read_inference_token()
    return ServersBackend(make_servers_config(context.config), lambda: server_urls(context), token)


class _Model(msgspec.Struct):
    owned_by: str


class _Models(msgspec.Struct):
    data: list[_Model]


async def check_servers(config: LeagueConfig) -> None:
    """Raise ``ConfigError`` if a configured server is no inference worker of a league.

    Those that do not answer are skipped, since they may start later.
    """
    await asyncio.gather(*(_check_server(url) for url in config.inference.urls))


async def _check_server(url: str) -> None:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, headers=token_headers()) as session,
            session.get(f"{url.rstrip('/')}/v1/models") as response,
        ):
            status, answer = response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError):
        return
    owners = set[str]()
    if status == 200:
        with contextlib.suppress(msgspec.MsgspecError):
            owners = {model.owned_by for model in msgspec.json.decode(answer, type=_Models).data}
    if status >= 500 or owners == {OWNER}:
        return
    finding = f"a list of models owned by {sorted(owners)}" if owners else f"{status} and no list of models"
    hint = f" that takes the token in {TOKEN_VARIABLE} (by default its run's {TOKEN_FILE})" if status == 401 else ""
    raise ConfigError(
        f"inference.urls: {url}/v1/models answers {finding}; expected an inference worker of a league "
        f"(league worker inference){hint}"
    )
