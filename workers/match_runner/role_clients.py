"""The inference clients of an episode's roles: the models, bots and remote agents of the seats, and the judge."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from arena.clients import InferenceClient
from arena.clients.improviser import Improviser
from arena.environments import ArenaSpec
from arena.model_call import JUDGE
from league.state.saved_state import PublishedVersion
from players.policy import BackendClient
from players.remote.remote_player import RemoteAgentClient, RemoteAgents
from schemas.errors import RemoteError
from schemas.jobs import PlayMatch
from workers.policy_weights import ModelManager, provide_base_model
from workers.runtime import Context

HumanClientLookup = Callable[[PlayMatch, int], InferenceClient | None]
"""Returns the client of the human player in a seat of a match; None for an agent's seat."""


class RoleClients(NamedTuple):
    """The inference clients of one match."""

    clients: Mapping[str, InferenceClient]
    """By role id; the judge's under ``JUDGE``."""
    spec: ArenaSpec

    def metrics(self, seat: int) -> dict[str, float]:
        """Requests and costs of the remote agent in a seat; empty where there is none."""
        # All roles of a seat have its agent.
        client = next((self.clients[role] for role in self.spec.roles_in(seat)), None)
        return client.metrics() if isinstance(client, RemoteAgentClient) else {}

    def find_remote_error(self, failure: str) -> RemoteError | None:
        """The error of a remote agent's server that made an episode fail, if one did."""
        errors = (client.failure for client in self.clients.values() if isinstance(client, RemoteAgentClient))
        return next((error for error in errors if error is not None and str(error) == failure), None)


class RoleClientFactory:
    """Makes the inference clients of an arena's matches in one process."""

    def __init__(
        self,
        context: Context,
        models: ModelManager,
        spec: ArenaSpec,
        remotes: RemoteAgents,
        people: HumanClientLookup | None = None,
    ) -> None:
        """Make the base model's client.

        Raises:
            ModelError: the model cannot hold a conversation.
        """
        config = context.config
        self._context = context
        self._spec = spec
        self._remotes = remotes
        self._models = models
        self._find_human_client = people
        prompts = config.prompts
        self.base_client = BackendClient(
            models.backend,
            models.tokenizer,
            provide_base_model,
            prompts,
            max_tokens=prompts.reply_tokens,
            top_p=config.inference.top_p,
        )
        """The base model's client, for roles without a seat."""

    async def make_role_clients(self, job: PlayMatch, fixed: Mapping[int, PublishedVersion]) -> RoleClients:
        """The clients of all roles and of the judge.

        In training each role has its own temperature; in evaluation all but the judge are sampled at
        ``inference.evaluation_temperature``. ``fixed`` versions, by seat, do not change during the match.

        Raises:
            RemoteError: a remote agent's budget is spent.
        """
        clients: dict[str, InferenceClient] = {}
        for seat, agent in enumerate(job.seats):
            roles, person = self._spec.roles_in(seat), self.get_human_client(job, seat)
            if person is not None:
                clients |= dict.fromkeys(roles, person)
            else:
                clients |= await self._make_seat_clients(agent, roles, job, fixed.get(seat))
        return RoleClients(clients | {JUDGE: await self._make_judge_client(job)}, self._spec)

    def get_human_client(self, job: PlayMatch, seat: int) -> InferenceClient | None:
        """The client of the human player in a seat; None for an agent's seat."""
        return None if self._find_human_client is None else self._find_human_client(job, seat)

    async def _make_seat_clients(
        self, agent: str, roles: Sequence[str], job: PlayMatch, fixed: PublishedVersion | None
    ) -> dict[str, InferenceClient]:
        kind = self._models.agent_kind(agent)
        if kind == "bot":
            return {role: Improviser(self._spec, role) for role in roles}
        if kind == "remote":
            return dict.fromkeys(roles, await self._remotes.make_client(agent, job.match_id))
        inference = self._context.config.inference
        temperature = None if job.purpose == "training" else inference.evaluation_temperature
        provider = self._models.make_adapter_provider(agent, fixed)
        return dict.fromkeys(roles, self.base_client.with_policy(provider, temperature))

    async def _make_judge_client(self, job: PlayMatch) -> InferenceClient:
        name = self._context.config.episodes.judge
        kind = self._models.agent_kind(name)
        if kind == "bot":
            return Improviser(self._spec, None)
        if kind == "remote":
            return await self._remotes.make_client(name, job.match_id)
        return self.base_client
