"""The inference worker: serves the base model and all adapters of the league over HTTP (``inference.server``).

Rollout and evaluator workers find it in the history; other clients can use it too.
"""

import contextlib
import ipaddress
import socket
from collections.abc import Sequence

from inference.base import SleepingBackend
from inference.http_server import RefusedError
from inference.remote import AssignedPolicy
from inference.server import DIGEST, ResolvedModel, unknown_model
from inference.server.admission import AdmissionControl, ServerPhase
from inference.server.app import InferenceServer
from league.run import TOKEN_FILE
from schemas.config import PromptsConfig
from schemas.errors import format_choices
from schemas.events import InferenceServing
from schemas.ids import agent_name, split_agent
from schemas.loggers import get_logger
from workers.device_turns import POLL_S, DeviceTurns
from workers.opponent_pool import LeagueOpponents
from workers.policy_weights import ModelManager
from workers.runtime import Context, beside

log = get_logger()


class LeagueModels:
    """The models of a league, according to its history; ``ModelManager.follow`` keeps them up to date."""

    def __init__(self, context: Context, models: ModelManager) -> None:
        self.backend = models.backend
        self.tokenizer = models.tokenizer
        self._context = context
        self._models = models

    @property
    def prompts(self) -> PromptsConfig:
        """The league's template and thinking setting; the system prompt is left to the client."""
        own = self._context.config.prompts
        return PromptsConfig(template=own.template, thinking=own.thinking)

    def names(self) -> Sequence[str]:
        """The base model, the policies, the checkpoints and the digests of loaded adapters."""
        config = self._context.config
        checkpoints = [agent.name for agent in self._context.state.checkpoints]
        return [config.base_agent, *config.trained_policies, *checkpoints, *self._models.adapter_cache.loaded]

    def resolve(self, name: str) -> ResolvedModel:
        """Resolve the base model, a policy (its live version), a version of a policy, or an adapter's digest."""
        if name == self._context.config.base_agent:
            return ResolvedModel(name, None)
        if name in self._context.config.trained_policies:
            served = self.assigned_version(name)
            return ResolvedModel(agent_name(name, served.version), served.adapter)
        policy, version = split_agent(name) or ("", 0)
        if (published := self._context.state.published.get(policy, {}).get(version)) is not None:
            return ResolvedModel(name, published.adapter)
        if DIGEST.fullmatch(name):
            return ResolvedModel(name, name)
        policies = [self._context.config.base_agent, *self._context.config.trained_policies]
        raise unknown_model(name, policies, ", a published version like 'main@20', or an adapter's digest")

    def assigned_version(self, policy: str | None) -> AssignedPolicy:
        """The version of a policy that ``ModelManager`` has loaded; version 0, without an adapter, before the first."""
        name = policy or self._context.config.trainer.policy
        if name not in (policies := self._context.config.trained_policies):
            raise RefusedError(404, f"policy {name!r}: not trained here; expected {format_choices(policies)}")
        version, adapter = self._models.adapter_provider(name)()
        return AssignedPolicy(name, version, adapter)

    async def acquire(self, adapter: str, leases: contextlib.ExitStack) -> None:
        """Load an adapter, fetched from the league's blobs where necessary."""
        if not DIGEST.fullmatch(adapter):
            raise RefusedError(404, f"adapter {adapter[:80]!r}: no such one; expected the SHA-256 digest of one")
        await self._models.ensure(adapter, leases)

    def unload(self, adapter: str) -> None:
        """Unload an adapter that is neither live nor in use."""
        if adapter not in self._models.adapter_cache.loaded:
            raise RefusedError(404, f"adapter {adapter[:80]!r}: not loaded")
        if not self._models.adapter_cache.unload(adapter):
            raise RefusedError(400, f"adapter {adapter!r}: in use; expected an idle one")


async def serve(context: Context, port: int = 0, host: str | None = None) -> None:
    """Serve until the worker is stopped; then finish running requests and reject new ones.

    Port 0 takes a free one; without a ``host`` it is ``inference.host``.

    Raises:
        UsageError: address or port is not available, or other machines reach it and there is no token.
    """
    host = host or context.config.inference.host
    server = InferenceServer(context.name, token=context.run.read_inference_token())
    await server.start(host, port)
    turns = DeviceTurns(context.run.folder) if context.config.inference.colocate else None
    try:
        if turns is not None and not await turns.acquire(context.stopping.is_set):
            return
        # While the model loads, requests are rejected with that reason.
        models = await ModelManager.load(context)
        await models.load_newest()
        await context.fold_through(await context.persistently(context.log.last_sequence))
        pool = LeagueOpponents(context, models)
        following = models.follow() if turns is None else serve_in_turns(context, server.admission, models, turns)
        async with beside(following, server.update_rates(), pool.follow(), pool.expire()):
            server.serve(LeagueModels(context, models), pool)
            url = f"http://{_advertised_host(context, host)}:{server.port}"
            backend = context.config.inference.backend
            slots = models.backend.stats().slots
            await context.announce(InferenceServing(context.name, context.incarnation, url, backend, slots))
            log.info("serving", url=url, token=f"LEAGUE_INFERENCE_TOKEN, else {context.run.folder / TOKEN_FILE}")
            await context.stopping.wait()
            await server.admission.drain()
        await pool.close()
        await models.close()
    finally:
        await server.stop()


async def serve_in_turns(
    context: Context, admission: AdmissionControl, models: ModelManager, turns: DeviceTurns
) -> None:
    """Load new versions as they are published, and sleep while another process has its turn; runs until cancelled.

    Requests that arrive meanwhile wait. This process has its turn at the beginning.
    """
    backend = models.untimed_backend
    assert isinstance(backend, SleepingBackend), "checked with the configuration"
    while True:
        await models.load_newest()
        if turns.is_requested():
            await admission.pause()
            await backend.sleep()
            turns.release()
            admission.show(ServerPhase.ASLEEP)
            await turns.acquire()
            admission.show(ServerPhase.WAKING)
            await backend.wake()
            # What was trained meanwhile may be recorded, and not folded yet.
            await context.fold_through(await context.persistently(context.log.last_sequence))
            await models.load_newest()
            admission.resume()
        # Short, since nothing signals a request for the turn.
        await context.wait_for_event(timeout_s=2 * POLL_S)


def _advertised_host(context: Context, host: str) -> str:
    """The host that other machines reach this one by; for a wildcard address, the one that the broker sees."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if address.is_unspecified:
        # The source address of this machine's packets to the broker; found without sending any.
        broker = context.client.connected_url
        name, port = (broker.hostname, broker.port) if broker is not None else ("127.0.0.1", 4222)
        family, kind, _, _, target = socket.getaddrinfo(name, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            address = ipaddress.ip_address(probe.getsockname()[0])
    return f"[{address}]" if address.version == 6 else str(address)
