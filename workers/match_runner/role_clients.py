"""The inference clients of an episode's roles: the models, bots and remote agents of the seats, and the judge."""

from collections.abc import Callable, Mapping
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
        self._context, self._models, self._spec, self._remotes = context, models, spec, remotes
        self._find_human_client = people
        prompts, top_p = context.config.prompts, context.config.inference.top_p
        self.base_client = BackendClient(
            models.backend, models.tokenizer, provide_base_model, prompts, max_tokens=prompts.reply_tokens, top_p=top_p
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
        inference = self._context.config.inference
        temperature = None if job.purpose == "training" else inference.evaluation_temperature
        for seat, agent in enumerate(job.seats):
            roles, person = self._spec.roles_in(seat), self.get_human_client(job, seat)
            if person is not None:
                clients |= dict.fromkeys(roles, person)
            elif self._models.agent_kind(agent) == "bot":
                clients |= {role: Improviser(self._spec, role) for role in roles}
            elif self._models.agent_kind(agent) == "remote":
                clients |= dict.fromkeys(roles, await self._remotes.make_client(agent, job.match_id))
            else:
                provider = self._models.make_adapter_provider(agent, fixed.get(seat))
                clients |= dict.fromkeys(roles, self.base_client.with_policy(provider, temperature))
        judge = self._context.config.episodes.judge
        if (kind := self._models.agent_kind(judge)) == "bot":
            clients[JUDGE] = Improviser(self._spec, None)
        elif kind == "remote":
            clients[JUDGE] = await self._remotes.make_client(judge, job.match_id)
        else:
            clients[JUDGE] = self.base_client
        return RoleClients(clients, self._spec)

    def get_human_client(self, job: PlayMatch, seat: int) -> InferenceClient | None:
        """The client of the human player in a seat; None for an agent's seat."""
        return None if self._find_human_client is None else self._find_human_client(job, seat)
