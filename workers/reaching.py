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


def servers_config(config: LeagueConfig) -> ServersConfig:
    """How a league's servers are asked.

    Raises:
        ConfigError: a URL is none, or a time is not more than 0.
    """
    inference = config.inference
    return ServersConfig(
        inference.urls,
        inference.request_timeout_s,
        inference.patience_s,
        # Whoever gives slow machines more time for a request gives them more to say that they live.
        silence_s=inference.request_timeout_s / 10,
    )


async def reach_servers(context: Context) -> ServersBackend:
    """A backend that asks the league's servers, once there is one, or the worker is told to stop.

    A model may take minutes to load. Until then nothing is wrong, so no match has to fail.
    """
    await context.until(lambda: bool(urls_of(context)))
    return ServersBackend(servers_config(context.config), lambda: urls_of(context))
