"""Finds the inference servers of a league in its configuration and history.

Servers are either inference workers (``league worker inference``) or vLLM's (``league vllm``); they report their type,
and all must be of one type.
"""

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from inference.base import RemoteBackend, backend_settings, common_settings
from inference.remote import ServerType, common_server_type, detect_server_types
from inference.servers import ServersBackend, ServersConfig
from schemas.config import LeagueConfig, convert
from schemas.errors import ConfigError
from workers.runtime import Context

if TYPE_CHECKING:
    from inference.vllm.server import VllmServerConfig

_POLL_S = 1.0
VLLM_SERVER = "vllm_server"


def uses_inference_servers(config: LeagueConfig) -> bool:
    """Whether playing workers send inference requests to servers."""
    return config.inference.servers > 0 or bool(config.inference.urls)


def server_urls(context: Context) -> list[str]:
    """URLs of the current servers: the configured ones, and inference workers that have not left."""
    return [*context.config.inference.urls, *_registered_urls(context)]


def make_servers_config(config: LeagueConfig) -> ServersConfig:
    """Make the client configuration for the league's inference workers; ``ConfigError`` for a bad URL or time."""
    # Slow machines that get more time for a request also get more time between signs of life.
    silence_s = config.inference.request_timeout_s / 10
    return convert(_common_client_settings(config) | {"silence_s": silence_s}, ServersConfig, "inference")


def make_vllm_servers_config(config: LeagueConfig) -> "VllmServerConfig":
    """Make the client configuration for vLLM servers; ``ConfigError`` for a bad URL or option.

    Backend options apply if the backend is ``vllm_server``.
    """
    from inference.vllm.server import VllmServerConfig

    known = backend_settings(config) if config.inference.backend == VLLM_SERVER else common_settings(config)
    return convert(known | _common_client_settings(config), VllmServerConfig, "inference")


def _common_client_settings(config: LeagueConfig) -> dict[str, Any]:
    inference = config.inference
    return {"urls": inference.urls, "timeout_s": inference.request_timeout_s, "patience_s": inference.patience_s}


async def check_servers(config: LeagueConfig) -> None:
    """Raise ``ConfigError`` unless the configured servers are of one type, and of one that the configuration allows.

    Those that do not answer are skipped, since they may start later.
    """
    inference = config.inference
    kinds = await detect_server_types(inference.urls)
    kind = common_server_type(kinds)
    required = _required_server_type(config)
    if required is None or kind in (None, required):
        return
    key = f"inference.servers is {inference.servers}" if inference.servers else f"inference.backend is {VLLM_SERVER!r}"
    url = next(url for url, server_type in kinds.items() if server_type is kind)
    raise ConfigError(f"inference.urls: {url} is {kind.value}, but {key}; expected {required.value}")


async def connect_servers(context: Context, folder: Path) -> RemoteBackend:
    """Wait for a server (or for the worker to be stopped) and return a backend that uses the league's servers.

    A model may take minutes to load: waiting here keeps matches from failing meanwhile. ``folder`` is the base model's;
    ``ConfigError`` if the servers are not of one type.
    """
    kind = _required_server_type(context.config)
    while kind is None and not (context.stopping.is_set() or _registered_urls(context)):
        kind = common_server_type(await detect_server_types(context.config.inference.urls))
        if kind is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(context.stopping.wait(), _POLL_S)
    if kind is ServerType.VLLM:
        from inference.vllm.server import VllmServerBackend

        return VllmServerBackend(folder, make_vllm_servers_config(context.config))
    await context.wait_until(lambda: bool(server_urls(context)))
    return ServersBackend(make_servers_config(context.config), lambda: server_urls(context))


def _required_server_type(config: LeagueConfig) -> ServerType | None:
    """The server type that the configuration requires; None if it allows both."""
    if config.inference.servers > 0 or not config.inference.urls:
        return ServerType.LEAGUE
    return ServerType.VLLM if config.inference.backend == VLLM_SERVER else None


def _registered_urls(context: Context) -> list[str]:
    return [worker.url for worker in context.state.workers.values() if worker.url and worker.left is None]
