"""The inference servers of a league, as its configuration and its history tell them."""

from schemas.config import LeagueConfig
from workers.inference.servers import ServersBackend, ServersConfig
from workers.runtime import Context


def is_served(config: LeagueConfig) -> bool:
    """Whether those who play leave the model to others."""
    return config.inference.servers > 0 or bool(config.inference.urls)


def urls_of(context: Context) -> list[str]:
    """Where requests are taken now: the configured servers, and inference processes that have not left."""
    serving = [worker.url for worker in context.state.workers.values() if worker.url and worker.left is None]
    return [*context.config.inference.urls, *serving]


async def reach_servers(context: Context) -> ServersBackend:
    """A backend that asks the league's servers, once there is one, or the worker is told to stop.

    A model may take minutes to load. Until then nothing is wrong, so no match has to fail.
    """
    await context.until(lambda: bool(urls_of(context)))
    inference = context.config.inference
    config = ServersConfig(timeout_s=inference.request_timeout_s, patience_s=inference.patience_s)
    return ServersBackend(config, lambda: urls_of(context))
