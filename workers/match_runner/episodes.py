"""Episodes as matches of the league: agents play the roles of their seats.

The inference client of a role is that of its seat's agent: a model, a bot, a remote agent or a person.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import isfinite
from random import Random
from typing import NamedTuple

import msgspec
import structlog
import zstandard

from arena.arena import Arena
from arena.clients import InferenceClient
from arena.clients.improviser import Improviser
from arena.environments import ArenaOptions, ArenaSpec
from arena.games.base import Outcome, ranks, sole_leader
from arena.games.texts import evaluation_spec
from arena.model_call import JUDGE, EpisodeContext, Limits
from arena.observer import LoggingObserver
from arena.records import encode_record
from arena.training_records import (
    UNTRAINED_PREFIX,
    TrainedSeat,
    count_completion_tokens,
    count_model_calls,
    make_tombstone,
    to_trajectory,
)
from league.state.saved_state import PublishedVersion
from players.policy import BackendClient
from players.remote.remote_player import RemoteAgentClient, RemoteAgents
from schemas.decisions import DecisionNote
from schemas.episodes import EpisodeRequest, GenerateResult
from schemas.errors import ConfigError, EpisodeError, RemoteError
from schemas.events import ArtifactStored
from schemas.ids import derive_seed, policy_of, split_agent
from schemas.jobs import PlayMatch
from schemas.trajectories import ModelCall, Trajectory
from workers.logs import logs_episodes
from workers.match_runner.completed import CompletedMatch
from workers.match_runner.episode_requests import Curriculum, EpisodeRequestStream, resolve_group_share
from workers.policy_weights import ModelManager, provide_base_model
from workers.runtime import Context

TRAINING = "training"
SCORED_REASON = "scored"
"""The reason in the result of every completed episode."""

HumanClientLookup = Callable[[PlayMatch, int], InferenceClient | None]
"""Client of the human player in a seat of a match; None for an agent's seat."""


class RoleClients(NamedTuple):
    """The inference clients of one match."""

    clients: Mapping[str, InferenceClient]
    """Clients by role id; the judge's under ``JUDGE``."""
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


class _TrainingArena(NamedTuple):
    arena: Arena
    requests: EpisodeRequestStream
    curriculum: Curriculum


class CompletedEpisode(CompletedMatch, frozen=True, kw_only=True):
    """A ``CompletedMatch`` of an arena."""

    spec: ArenaSpec
    result: GenerateResult
    clients: RoleClients
    untrained_counts: dict[int, dict[str, int]] = msgspec.field(default_factory=dict)
    """Model calls left out of a seat's trajectory, by reason; filled in by ``make_trajectory``."""

    def make_trajectory(self, seat: int, policy: str) -> Trajectory | None:
        """The trainable model calls of the seat's roles in the whole tree of episodes."""
        trained_seat = TrainedSeat(
            match_id=self.job.match_id,
            game=self.spec.name,
            policy=policy,
            number=seat,
            name=self.spec.seats[seat],
            roles=self.spec.roles_in(seat),
            scores=self.outcome.scores,
            rank=self.outcome.ranks[seat],
        )
        trajectory, self.untrained_counts[seat] = to_trajectory(self.result, trained_seat)
        return trajectory

    def decisions(self, seat: int) -> Sequence[tuple[ModelCall, DecisionNote | None]]:
        """The calls of ``make_trajectory``, without notes: their replies are not parsed as moves."""
        trajectory = self.make_trajectory(seat, policy_of(self.job.seats[seat]))
        return [] if trajectory is None else [(call, None) for call in trajectory.steps]

    def seat_metrics(self, seat: int) -> dict[str, float]:
        """Metrics of the seat's clients and, after ``make_trajectory``, its untrained calls by reason."""
        untrained = self.untrained_counts.get(seat, {})
        return self.clients.metrics(seat) | {UNTRAINED_PREFIX + why: float(count) for why, count in untrained.items()}


class EpisodeRunner:
    """Plays an arena's episodes in this process.

    Training matches share one arena, whose stores grow with the history (``Curriculum``). Their episodes are drawn from
    a seed of the worker's name and the sequence at which it started, so that a restarted worker does not repeat them;
    shared groups (``episodes.spread``) are drawn by all workers from one seed, and a restarted worker skips the
    episodes it has played.

    Each evaluation match has a newly opened arena, and all its draws follow from the match's seed: versions are
    compared on equal terms, whatever other matches have added.
    """

    def __init__(
        self, context: Context, models: ModelManager, spec: ArenaSpec, people: HumanClientLookup | None = None
    ) -> None:
        """Check the arena's seats against its roles; episodes of ``people`` have no time limit.

        Raises:
            ConfigError: seats and roles do not match.
            ModelError: the model cannot hold a conversation.
        """
        self._context = context
        self._models = models
        self.environment = spec
        self._find_human_client = people or (lambda job, seat: None)
        self._evaluation_spec = evaluation_spec(spec)
        self._episode_timeout_s = context.config.episodes.episode_s if people is None else None
        prompts = context.config.prompts
        self._base_client = BackendClient(
            models.backend,
            models.tokenizer,
            provide_base_model,
            prompts,
            max_tokens=prompts.reply_tokens,
            top_p=context.config.inference.top_p,
        )
        """The base model's client, for roles without a seat."""
        self._training_arena: _TrainingArena | None = None
        self._training_requests: dict[str, EpisodeRequest] = {}
        """Requests by training match, until ``make_tombstone`` is called for it."""
        self._verbose = LoggingObserver() if logs_episodes() else None
        check_seats(spec, self._open_arena("check", 0))

    def _open_arena(self, name: str, seed: int) -> Arena:
        config = self._context.config.episodes
        limits = Limits(
            config.reply_chars, config.calls, self._episode_timeout_s, needs_tokens=False, empty=config.empty
        )
        arena = self.environment.open(self._base_client, ArenaOptions(name, seed, limits))
        arena.observer = self._verbose
        return arena

    def _get_training_arena(self) -> _TrainingArena:
        """The arena of training matches, opened at the first of them."""
        if self._training_arena is None:
            context = self._context
            name = context.name
            share = resolve_group_share(name, context.config.episodes.spread)
            whose = ("shared", share.block) if share.of > 1 else (name, context.state.sequence)
            arena = self._open_arena(name, derive_seed(context.config.seed, "arena", *whose))
            curriculum = Curriculum(context, arena, share.of)
            requests = EpisodeRequestStream(arena.get_batch, f"{whose[0]}-{whose[1]}", share)
            if share.of > 1:
                requests.skip(context.state.next_match_index(name))
            self._training_arena = _TrainingArena(arena, requests, curriculum)
        return self._training_arena

    async def play(self, job: PlayMatch, live: Collection[int], remotes: RemoteAgents) -> CompletedEpisode:
        """Run the match's episode, with a client for each role."""
        started = time.monotonic()
        people = [seat for seat in range(len(job.seats)) if self._find_human_client(job, seat) is not None]
        with self._open_episode(job) as (arena, request, additions):
            async with self._models.hold_versions(job, live, people) as versions:
                clients = await self._make_role_clients(job, versions, remotes)
                result = await self._generate(job, arena, request, clients)
        spec = self.environment if job.purpose == TRAINING else self._evaluation_spec
        return CompletedEpisode(
            job=job,
            outcome=make_outcome(spec, result),
            record=zstandard.compress(encode_record(spec.name, result)),
            seconds=time.monotonic() - started,
            tokens=count_completion_tokens(result),
            additions=additions,
            tokenizer=self._models.tokenizer,
            spec=spec,
            result=result,
            clients=clients,
        )

    @contextlib.contextmanager
    def _open_episode(self, job: PlayMatch) -> Iterator[tuple[Arena, EpisodeRequest, Sequence[ArtifactStored]]]:
        """The next episode in training; in evaluation, one drawn with the match's seed.

        Additions to the arena's stores are collected during the block: the list grows.
        """
        if job.purpose == TRAINING:
            training = self._get_training_arena()
            training.curriculum.catch_up()
            request = self._training_requests[job.match_id] = training.requests.next()
            with training.curriculum.collect_additions(job.match_id) as additions:
                yield training.arena, request, additions
            return
        arena = self._open_arena(job.match_id, derive_seed(job.seed, "arena"))
        batch = self.environment.evaluation_batch(arena)
        if not batch:
            raise EpisodeError(f"{self.environment.name}: its evaluation_batch is empty; expected at least one episode")
        yield arena, Random(derive_seed(job.seed, "request")).choice(batch), ()

    async def _make_role_clients(
        self, job: PlayMatch, fixed: Mapping[int, PublishedVersion], remotes: RemoteAgents
    ) -> RoleClients:
        """The clients of all roles and of the judge.

        In training each role has its own temperature; in evaluation all but the judge are sampled at
        ``inference.evaluation_temperature``. ``fixed`` versions, by seat, do not change during the match;
        ``RemoteError`` if a remote agent's budget is spent.
        """
        clients: dict[str, InferenceClient] = {}
        inference = self._context.config.inference
        temperature = None if job.purpose == TRAINING else inference.evaluation_temperature
        for seat, agent in enumerate(job.seats):
            roles = self.environment.roles_in(seat)
            if (person := self._find_human_client(job, seat)) is not None:
                clients |= dict.fromkeys(roles, person)
            elif self._models.agent_kind(agent) == "bot":
                clients |= {role: Improviser(self.environment, role) for role in roles}
            elif self._models.agent_kind(agent) == "remote":
                clients |= dict.fromkeys(roles, await remotes.make_client(agent, job.match_id))
            else:
                provider = self._models.make_adapter_provider(agent, fixed.get(seat))
                clients |= dict.fromkeys(roles, self._base_client.with_policy(provider, temperature))
        judge = self._context.config.episodes.judge
        if self._models.agent_kind(judge) == "bot":
            clients[JUDGE] = Improviser(self.environment, None)
        elif self._models.agent_kind(judge) == "remote":
            clients[JUDGE] = await remotes.make_client(judge, job.match_id)
        else:
            clients[JUDGE] = self._base_client
        return RoleClients(clients, self.environment)

    async def _generate(
        self, job: PlayMatch, arena: Arena, request: EpisodeRequest, clients: RoleClients
    ) -> GenerateResult:
        if request.episode_type not in arena.episodes:
            raise EpisodeError(f"{self.environment.name}: no episode {request.episode_type!r}")
        version = max((named[1] for agent in job.seats if (named := split_agent(agent))), default=0)
        context = EpisodeContext(
            id=job.match_id,
            seed=job.seed,
            policy_version=version,
            is_trainable=request.is_trainable,
            role_clients=clients.clients,
        )
        with structlog.contextvars.bound_contextvars(match=job.match_id):
            result = await arena.episodes[request.episode_type].generate(arena, request, context)
            if self._verbose is not None:
                self._verbose.log_result(result)
        if result.failure:
            raise clients.find_remote_error(result.failure) or EpisodeError(f"{request.episode_type}: {result.failure}")
        return result

    def make_tombstone(self, job: PlayMatch, seat: int, policy: str) -> Trajectory | None:
        """The request's tombstone, once; None if no training episode was requested for the match."""
        request = self._training_requests.pop(job.match_id, None)
        if request is None:
            return None
        seats = self.environment.seats
        scores = (0.0,) * len(seats)
        trained_seat = TrainedSeat(
            job.match_id, self.environment.name, policy, seat, seats[seat], (), scores, len(seats)
        )
        return make_tombstone(request, trained_seat)


def make_outcome(spec: ArenaSpec, result: GenerateResult) -> Outcome:
    """An episode's result by seat. A single seat wins if its score passes.

    ``EpisodeError`` if the arena does not give every seat a finite score, or a metric is not finite.
    """
    scores = tuple(spec.score(result))
    metrics = dict(spec.metrics(result))
    if len(scores) != len(spec.seats):
        raise EpisodeError(f"{spec.name}: {len(scores)} scores; expected one for each of {len(spec.seats)} seats")
    if odd := [value for value in (*scores, *metrics.values()) if not isfinite(value)]:
        raise EpisodeError(f"{spec.name}: {odd[0]} among scores and metrics; expected finite numbers")
    has_winner = len(scores) > 1 or spec.passed(scores[0])
    return Outcome(
        scores=scores,
        ranks=ranks(scores),
        winner=sole_leader(scores) if has_winner else None,
        metrics=tuple(dict(metrics) for _ in scores),
        reason=SCORED_REASON,
        length=count_model_calls(result),
    )


def check_seats(spec: ArenaSpec, arena: Arena) -> None:
    """Check that the roles of all seats exist, and that no role has two seats; raises ``ConfigError``."""
    taken: dict[str, int] = {}
    for seat, name in enumerate(spec.seats):
        for role in spec.roles_in(seat):
            if role not in arena.roles:
                raise ConfigError(f"arena {spec.name}: seat {name!r} speaks for {role!r}, which is not a role")
            if role in taken:
                raise ConfigError(f"arena {spec.name}: role {role!r} has the seats {taken[role]} and {seat}")
            taken[role] = seat
