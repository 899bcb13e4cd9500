"""The application: routes, bounds, address; health and statistics for people, load balancers and Prometheus."""

import asyncio
import hmac
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from inference import http_server
from inference.base import BackendStats
from inference.http_server import Metric, RefusedError, Sample
from inference.remote import CONTENT_TYPE, GENERATE, GENERATE_MANY, TOKEN_VARIABLE, token_headers
from inference.server import ServedModels
from inference.server.admission import WAITING_PHASES, AdmissionControl, ServerPhase
from inference.server.generate_route import GenerateRoutes
from inference.server.openai_routes import OpenAIRoutes
from inference.server.openai_types import ERROR_STATUSES, render_error
from inference.server.opponent_pool import OpponentPool, PoolRoutes
from inference.server.output_constraints import TextCodec
from inference.statistics import RateMeter
from schemas.config.base import is_loopback
from schemas.errors import UsageError

RATE_WINDOW_S = 10.0
"""Window of ``tokens_per_second``."""

_GAUGES = {
    "tokens_per_second": f"Completion tokens a second, over {RATE_WINDOW_S:g} s.",
    "queued": "Requests that wait for their prompt to be read.",
    "running": "Requests that are sampled.",
    "adapters": "Adapters loaded now.",
    "slots": "Adapters that one batch can hold; 0 for no limit.",
    "cache_bytes": "Memory that holds keys and values.",
}
_COUNTERS = {
    "requests": "Requests finished or failed.",
    "prompt_tokens": "Prompt tokens of those requests.",
    "cached_tokens": "Of the prompt tokens, those not computed again.",
    "sampled_tokens": "Completion tokens that were drawn.",
    "forced_tokens": "Completion tokens that left no choice.",
    "seconds": "Time spent computing.",
    "swaps": "Adapters loaded, or replaced in place.",
    "passes": "Passes through the model.",
}


MAX_BODY_BYTES = 8 * 1024 * 1024
"""Most bytes of one request's body."""
MAX_BYTES_IN_FLIGHT = 256 * 1024 * 1024
"""Most bytes of the bodies of all requests in flight; further ones get 503."""
MAX_IN_FLIGHT = 4096
"""Most completions in flight; further ones get 503."""
_SHUTDOWN_TIMEOUT_S = 10.0
"""Time-out of the requests in flight when the server stops."""


class InferenceServer:
    """One server. It listens from ``start`` on, and serves from ``serve`` on; in between it answers that it is loading.

    ``name`` is the label of its metrics; ``most`` completions and ``most_bytes`` of request bodies may be in flight.
    On a loopback address ``token`` is required where ``LEAGUE_INFERENCE_TOKEN`` is not set; empty requires none.
    """

    def __init__(
        self, name: str = "inference", most: int = MAX_IN_FLIGHT, most_bytes: int = MAX_BYTES_IN_FLIGHT, token: str = ""
    ) -> None:
        self.admission = AdmissionControl(most, most_bytes)
        self.port = 0
        """Port, once the server listens."""
        self._name = name
        self._token = token
        self._stats: Callable[[], BackendStats] | None = None
        self._rate = RateMeter(RATE_WINDOW_S)
        self._routes: dict[tuple[str, str], Handler] = {}
        self._runner: web.AppRunner | None = None

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes a free one.

        Raises:
            UsageError: the port is taken, the address is not one of this machine, or other machines reach it and there
                is no token.
        """
        guard = _request_guard(check_token(host, "inference.host", self._token), is_loopback(host))
        boundary = http_server.error_boundary(ERROR_STATUSES, render_error)
        app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[boundary, guard])
        app.router.add_get("/health", self._health)
        app.router.add_get("/stats", self._report)
        app.router.add_get("/metrics", self._metrics)
        for route in _MODEL_ROUTES:
            for path in (route[1], f"{route[1]}/"):
                app.router.add_route(route[0], path, partial(self._dispatch, route))
        # A client that disconnects cancels its request and frees its capacity.
        self._runner = await http_server.listen(
            app, host, port, "inference: cannot listen on", shutdown_s=_SHUTDOWN_TIMEOUT_S, cancels_handlers=True
        )
        self.port = http_server.port_of(self._runner)

    def serve(self, models: ServedModels, pool: OpponentPool | None = None) -> None:
        """Serve these models from now on, and the virtual ones of a pool."""
        texts = TextCodec(models.tokenizer)
        openai, own = OpenAIRoutes(models, texts, self.admission, pool), GenerateRoutes(models, self.admission)
        sessions = PoolRoutes(pool, self.admission)
        handlers = (
            own.generate,
            own.generate_many,
            openai.list_models,
            openai.find_model,
            openai.create_completion,
            openai.create_chat_completion,
            own.version,
            own.load,
            own.unload,
            sessions.open,
            sessions.report,
            sessions.add_version,
        )
        self._routes = dict(zip(_MODEL_ROUTES, handlers, strict=True))
        self._stats = models.backend.stats
        self.admission.open()

    async def update_rates(self) -> None:
        """Update the token rate every second, without end."""
        while True:
            await asyncio.sleep(1.0)
            self._collect()

    async def stop(self) -> None:
        """Stop listening; requests in flight are cut off."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        """200 while requests are admitted, at once or after a pause, else 503."""
        phase = self.admission.phase
        status = 200 if phase in (ServerPhase.SERVING, *WAITING_PHASES) else 503
        return web.json_response({"status": phase.value, "inside": self.admission.completions.count}, status=status)

    async def _report(self, _: web.Request) -> web.Response:
        """All statistics as JSON."""
        return web.Response(body=msgspec.json.encode(self._collect()), content_type="application/json")

    async def _metrics(self, _: web.Request) -> web.Response:
        """All statistics in Prometheus' text format, version 0.0.4."""
        figures, labels = self._collect(), {"server": self._name if self._stats is not None else ""}

        def metric(name: str, kind: str, described: str, value: float) -> Metric:
            return Metric(f"league_inference_{name}", kind, described, [Sample(labels, value)])

        metrics = [
            metric("up", "gauge", "Whether requests are taken.", int(figures["status"] == "serving")),
            metric("inside", "gauge", "Completions under way, of all requests.", figures["inside"]),
            metric("refused_total", "counter", "Requests sent away unserved.", figures["refused"]),
        ]
        if self._stats is not None:
            metrics += [metric(field, "gauge", text, figures[field]) for field, text in _GAUGES.items()]
            metrics += [metric(f"{field}_total", "counter", text, figures[field]) for field, text in _COUNTERS.items()]
        return http_server.metrics_response(metrics)

    def _collect(self) -> dict[str, Any]:
        """All statistics; called about once a second, for the rate of tokens."""
        figures: dict[str, Any] = {"status": self.admission.phase.value, "inside": self.admission.completions.count}
        figures["refused"] = self.admission.refused
        if self._stats is not None:
            stats = self._stats()
            rate = self._rate.rate(stats.sampled_tokens + stats.forced_tokens)
            figures |= {"name": self._name, "tokens_per_second": rate} | msgspec.structs.asdict(stats)
        return figures

    async def _dispatch(self, route: tuple[str, str], request: web.Request) -> web.StreamResponse:
        handler = self._routes.get(route)
        if handler is None:
            raise RefusedError(503, "the server is loading its model; another one may serve")
        async with self.admission.enter():
            with self.admission.hold_body(request):
                return await handler(request)


def check_token(host: str, setting: str, local_token: str = "") -> dict[str, str]:
    """The header that requests must have; empty where only this machine reaches the server and there is no token.

    Raises ``UsageError`` where others reach it, and do not have the ``local_token``; ``setting`` is the option that
    names the host, for the message.
    """
    is_local = is_loopback(host)
    expected = token_headers(local_token if is_local else "")
    if not expected and not is_local:
        raise UsageError(
            f"{setting} {host}: other machines reach it, and {TOKEN_VARIABLE} is not set; expected one token in the "
            "environment of all servers and players of the league (openssl rand -hex 24), or the address 127.0.0.1"
        )
    return expected


def _request_guard(expected: Mapping[str, str], is_local: bool) -> Middleware:
    """Reject what web pages send, and requests without the token, except for ``/health``, which tells nothing."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        http_server.check_origin(request, is_local, (*http_server.BODY_TYPES, CONTENT_TYPE))
        for name, value in expected.items():
            credentials = request.headers.get(name, "").encode("utf-8", "surrogateescape")
            if request.path != "/health" and not hmac.compare_digest(credentials, value.encode()):
                raise RefusedError(401, f"{request.path}: expected the server's token, {name}: Bearer …")
        return await handler(request)

    return guard


_MODEL_ROUTES = (
    ("POST", GENERATE),
    ("POST", GENERATE_MANY),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model:.+}"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/adapters/version"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/v1/unload_lora_adapter"),
    ("POST", "/v1/league/sessions"),
    ("POST", "/v1/league/results"),
    ("POST", "/v1/league/agents"),
)
