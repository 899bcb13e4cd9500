"""The arena: registers roles, episodes and stores, runs episodes, and turns them into training batches."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from arena.clients import InferenceClient
from arena.model_call import JUDGE, CallOptions, CompletedCall, EpisodeContext, Limits, current_episode, request_reply
from arena.observer import LoggingObserver
from arena.stores import ArtifactStore, Sink
from arena.training_records import build_batch, format_batch
from schemas.batches import CreditAssigner, StepKey, TrainingBatch, apply_credit
from schemas.episodes import EpisodeRequest, GenerateResult, Messages, ModelResponse, Role, Step, as_messages
from schemas.errors import EpisodeError, UsageError, format_choices
from schemas.ids import derive_seed
from schemas.loggers import get_logger

if TYPE_CHECKING:
    from arena.episodes import Episode

DEFAULT_CONCURRENCY = 8
"""Concurrent episodes."""
log = get_logger()


class Arena:
    """Registers roles, episodes and stores, each name once; runs episodes and makes training batches of them.

    Subclasses override ``get_batch``, which lists the episodes of the next step, and any of the hooks.
    """

    def __init__(
        self,
        client: InferenceClient,
        credit_assigner: CreditAssigner | None = None,
        *,
        name: str = "arena",
        seed: int = 0,
        limits: Limits | None = None,
        verbose: bool = False,
    ) -> None:
        """An arena without roles, episodes and stores; with ``verbose`` it prints every batch.

        Without a credit assigner, advantages stay 0. ``name`` is the prefix of its episodes' ids and must differ
        between processes that play for the same trainer.
        """
        self.name = name
        self.seed = seed
        self.roles: dict[str, Role] = {}
        self.episodes: dict[str, Episode] = {}
        self.stores: dict[str, ArtifactStore] = {}
        self.client = client
        self.credit_assigner = credit_assigner
        self.limits = limits or Limits()
        self.verbose = verbose
        self.role_clients: Mapping[str, InferenceClient] = {}
        """Clients of single roles in place of the arena's, such as a frozen judge's."""
        self.observer: LoggingObserver | None = None
        self.credit_state: dict[str, float] = {}
        """State of the credit assigner; set it to the recorded one to continue after a restart."""
        self.steps = 0
        self._started = 0
        self._has_warned = False

    def add_role(self, role: Role) -> None:
        """Register a role; ``UsageError`` if its id is registered already."""
        _register(self.roles, role.id, role, "role")

    add_actor = add_role

    @property
    def actors(self) -> dict[str, Role]:
        """The same as ``roles``."""
        return self.roles

    def add_episode(self, episode_type: str, episode: "Episode") -> None:
        """Register an episode under the name that requests use; ``UsageError`` if it is registered already."""
        _register(self.episodes, episode_type, episode, "episode type")

    def add_store(self, name: str, store: ArtifactStore | None = None, sink: Sink | None = None) -> ArtifactStore:
        """Register a store under a new name; by default an empty one that passes its additions on to ``sink``."""
        store = ArtifactStore(name, self.seed, sink) if store is None else store
        _register(self.stores, name, store, "store")
        return store

    def role(self, role_id: str) -> Role:
        """The role of that id; ``EpisodeError`` if there is none."""
        if role_id not in self.roles:
            raise EpisodeError(f"arena {self.name}: no role {role_id!r}; expected {format_choices(self.roles)}")
        return self.roles[role_id]

    async def resolve_artifact(self, request: EpisodeRequest) -> Any:
        """The request's own artifact, or else a draw from its store; ``EpisodeError`` if that is unknown or empty."""
        if request.artifact is not None or not request.store:
            return request.artifact
        if request.store not in self.stores:
            raise EpisodeError(f"arena {self.name}: no store {request.store!r}; expected {format_choices(self.stores)}")
        running = current_episode()
        # Seeded by the episode, so that the draw does not depend on the order of concurrent episodes.
        rng = None if running is None else Random(derive_seed(running.context.seed, "artifact"))
        return self.stores[request.store].sample(1, request.weighted, rng)[0].data

    async def call_model(
        self,
        messages: Messages,
        role_id: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        return_tokens: bool | None = None,
    ) -> ModelResponse:
        """Complete a conversation, whose last message is the user's.

        The call of a role enters the trajectory of the running episode; one without a role, as a judge's, is not
        trained on. By default, temperature and most tokens are the role's, or else 1 and the client's own bound, and
        token ids are requested for roles. ``EpisodeError`` for an unknown role, too many calls, or an unusable reply.
        """
        return (await self.ask(messages, role_id, temperature, max_tokens, return_tokens)).response

    async def ask(
        self,
        messages: Messages,
        role_id: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        return_tokens: bool | None = None,
        choices: Sequence[str] = (),
    ) -> CompletedCall:
        """Call the model like ``call_model``, with ``choices``; the result can be amended after reading the reply."""
        role = None if role_id is None else self.role(role_id)
        messages = as_messages(messages)
        running = current_episode()
        context = None if running is None else running.context
        number = 0 if running is None else next(running.call_numbers)
        if number >= self.limits.calls:
            raise EpisodeError(f"arena {self.name}: more than {self.limits.calls} model calls in one episode")
        if temperature is None:
            temperature = 1.0 if role is None else role.temperature
        if max_tokens is None and role is not None:
            max_tokens = role.max_tokens
        if return_tokens is None:
            return_tokens = role is not None
        seed = derive_seed(self.seed if context is None else context.seed, "call", number)
        clients = {} if context is None else context.role_clients
        client = clients.get(JUDGE if role_id is None else role_id, self.client)
        options = CallOptions(temperature, max_tokens, return_tokens, seed, choices)
        began = time.perf_counter()
        is_trained = role is not None and context is not None and context.is_trainable
        needs_tokens = is_trained and self.limits.needs_tokens
        response = await request_reply(client, messages, options, self.limits, needs_tokens)
        if is_trained and response.missing_tokens:
            self._warn_once(role_id, response.missing_tokens)
        if role is not None and running is not None:
            tokens = response.tokens and msgspec.structs.replace(response.tokens, clock=number)
            running.insert_step(number, Step(role.id, messages, response.completion, tokens))
        if self.observer is not None:
            self.observer.model_called(context, number, role_id, messages, response, time.perf_counter() - began)
        return CompletedCall(response, number, running)

    def _warn_once(self, role_id: str | None, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning("replies without tokens: nothing can be trained on them", role=role_id, reason=reason)

    def get_batch(self) -> list[EpisodeRequest]:
        """Requests for the episodes of the next step; overridden."""
        raise UsageError(f"{type(self).__name__}: no get_batch; expected a subclass that says what is to be played")

    def new_context(self, request: EpisodeRequest) -> EpisodeContext:
        """The context of the next episode: a child of the running one, or a top-level one."""
        running = current_episode()
        if running is not None:
            return running.context.make_child(next(running.child_numbers), request)
        id = f"{self.name}-{self._started}"
        self._started += 1
        seed = derive_seed(self.seed, "episode", id)
        return EpisodeContext(id, "", 0, seed, request.policy_version, request.is_trainable, self.role_clients)

    async def run_episode(
        self, episode_type: str, artifact: Any = None, meta: Mapping[str, Any] | None = None
    ) -> GenerateResult:
        """Run one episode; ``UsageError`` for an unknown type."""
        (result,) = await self.generate_rollouts([EpisodeRequest(episode_type, artifact, meta=dict(meta or {}))])
        return result

    async def generate_rollouts(
        self, requests: Sequence[EpisodeRequest], concurrency: int = DEFAULT_CONCURRENCY
    ) -> list[GenerateResult]:
        """Run episodes concurrently, from inside an episode as its children; failed results hold the reason.

        ``concurrency`` is the most of these at a time; children have a bound of their own, so that no parent waits for
        a slot that it occupies itself. No episode is run if a type is unknown (``UsageError``).
        """
        if unknown := {request.episode_type for request in requests} - set(self.episodes):
            expected = format_choices(self.episodes)
            raise UsageError(f"arena {self.name}: no episode {min(unknown)!r}; expected {expected}")
        contexts = [self.new_context(request) for request in requests]
        slots = asyncio.Semaphore(concurrency)

        async def run(request: EpisodeRequest, context: EpisodeContext) -> GenerateResult:
            async with slots:
                return await self.episodes[request.episode_type].generate(self, request, context)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(*pair)) for pair in zip(requests, contexts, strict=True)]
        return [task.result() for task in tasks]

    def build_training_batch(
        self, results: Sequence[GenerateResult], weights: Mapping[StepKey, float] | None = None, verbose: bool = False
    ) -> TrainingBatch:
        """The trainable model calls of these trees; see ``arena.training_records.build_batch``."""
        batch = build_batch(results, weights)
        if verbose:
            self.sanity_check_batch(results, batch)
        return batch

    def sanity_check_batch(
        self, results: Sequence[GenerateResult], batch: TrainingBatch, num_examples: int = 2
    ) -> None:
        """Print a summary of a batch with examples; ``EpisodeError`` for a record that is not its step's, or twice."""
        print(format_batch(results, batch, num_examples))

    async def step(self, concurrency: int = DEFAULT_CONCURRENCY, verbose: bool | None = None) -> TrainingBatch:
        """Play one batch and assign credit to its model calls."""
        version = await self.client.get_policy_version()
        requests = [
            msgspec.structs.replace(
                request, policy_version=version, meta={**(request.meta or {}), "policy_version": version}
            )
            for request in self.get_batch()
        ]
        if self.observer is not None:
            self.observer.step_started(self.steps, requests)
        results = await self.generate_rollouts(requests, concurrency)
        weights = None
        if self.credit_assigner is not None:
            credit = self.credit_assigner.compute(results, self.credit_state)
            weights, self.credit_state = credit.weights, credit.state
            results = apply_credit(results, weights)
        batch = msgspec.structs.replace(
            self.build_training_batch(results, weights),
            step=self.steps,
            policy_version=version,
            credit_state=dict(self.credit_state),
        )
        self.steps += 1
        if self.observer is not None:
            self.observer.step_ended(results, batch)
        await self.on_step_end(results, batch)
        if self.verbose if verbose is None else verbose:
            self.sanity_check_batch(results, batch)
        return batch

    async def run(
        self, num_steps: int | None = None, concurrency: int = DEFAULT_CONCURRENCY, verbose: bool | None = None
    ) -> AsyncGenerator[TrainingBatch, None]:
        """Yield a training batch for each of ``num_steps`` steps, or without end; close the iterator to stop."""
        if self.observer is not None:
            self.observer.run_started(self.name, num_steps, list(self.roles), self.seed)
        await self.startup()
        try:
            await self.on_train_start()
            for _ in count() if num_steps is None else range(num_steps):
                yield await self.step(concurrency, verbose)
            await self.on_train_end()
        finally:
            await self.shutdown()

    async def startup(self) -> None:
        """Hook before everything else; does nothing by default."""

    async def shutdown(self) -> None:
        """Hook at the end of a run, also after a failure; does nothing by default."""

    async def on_train_start(self) -> None:
        """Hook before the first step, to fill stores or warm up; does nothing by default."""

    async def on_train_end(self) -> None:
        """Hook after the last step of a run without a failure; does nothing by default."""

    async def on_step_end(self, results: Sequence[GenerateResult], batch: TrainingBatch) -> None:
        """Hook after each step, to advance a curriculum by its results; does nothing by default."""


def _register(registry: dict[str, Any], name: str, item: Any, kind: str) -> None:
    if name in registry:
        raise UsageError(f"arena: {kind} {name!r} is registered twice")
    registry[name] = item
