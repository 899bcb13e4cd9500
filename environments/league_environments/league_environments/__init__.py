"""Games and environments of the league in verifiers: seats are agents, seeds are tasks, rewards are the league's.

``export`` makes a taskset and an environment; the modules ``league_NAME`` beside this package have those of all
registered games and environments, for ``vf-eval league-kuhn-poker`` and trainers. An episode is the league's own,
played by an ``arena.arena.Arena``: only the replies come from verifiers' agents.

With ``opponent_base_url``, all seats but the learner's are played by the opponent pool of a running league, which draws
an opponent for each episode and records its result.
"""

import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx
import pydantic
import verifiers.v1 as vf
from league_chat import post_json

from arena.arena import Arena
from arena.clients import InferenceClient
from arena.environments import ArenaOptions, ArenaSpec, make_environment
from arena.episodes.game import GameEpisode, GameState
from arena.model_call import JUDGE, Limits, current_episode
from schemas.episodes import EpisodeRequest, GenerateResult, Message, ModelResponse, Role
from schemas.errors import ConfigError, EpisodeError

JUDGE_AGENT = "judge"
"""Name of the agent that judges, in environments other than games."""
SILENCE = "(nothing)"
"""Stands for an empty reply, which is a turn without a move: as a failed episode it would cost nothing."""
TOKEN_VARIABLE = "LEAGUE_INFERENCE_TOKEN"
"""Environment variable with the token of the opponent pool."""


class SeedData(vf.TaskData):
    """A task: the seed of an episode."""

    seed: int


class SeatData(vf.TaskData):
    """The task of one seat."""

    body: dict[str, Any] = {}
    """Fields added to its requests: the session of the opponent pool, and the position."""


class LeagueTasksetConfig(vf.TasksetConfig):
    """Selection of the episodes to play."""

    settings: dict[str, Any] = {}
    """The environment's settings, as under ``[game]`` of a league; they must not change the seats."""
    first_seed: int = 0


class LeagueEnvConfig(vf.EnvConfig):
    """Agents of the seats; each seat is a field of the environment's own subclass."""

    learner: str = ""
    """Name of the trained seat's agent where the others are opponents; empty for the first."""
    opponent_base_url: str = ""
    """Address of an opponent pool, ``http://127.0.0.1:8000/v1``; empty where the run's model plays all seats."""
    opponent_model: str = "league/pfsp"
    """The pool's virtual model."""
    opponent_for: str = "guest"
    """The external agent to which the pool gives the result, a version as ``grpo@40``."""


def agent_name(seat: str) -> str:
    """A seat's or role's name as the name of an agent of verifiers: ``Player 0`` is ``player_0``."""
    return "".join(letter if letter.isalnum() else "_" for letter in seat.lower())


def export(name: str, settings: Mapping[str, Any] | None = None) -> tuple[type[vf.Taskset], type[vf.Env]]:
    """The taskset and the environment of verifiers for a registered game or environment of the league.

    A taskset's settings come on top of these. ``ConfigError`` for an unknown name, a missing package or a bad setting.
    """
    values = dict(settings or {})
    roles = _roles(make_environment(name, values))

    class LeagueTaskset(vf.Taskset[vf.Task[SeedData], LeagueTasksetConfig]):
        """A task for each seed, without end."""

        INFINITE = True

        def load(self) -> Iterator[vf.Task[SeedData]]:
            for seed in count(self.config.first_seed):
                yield vf.Task[SeedData](SeedData(name=f"{name} seed {seed}", seed=seed))

    # A seat that is not configured is the run's model, asked in this process.
    defaults = {
        agent: vf.AgentConfig(harness={"id": "league_chat"}, runtime={"type": "subprocess"}) for agent in roles.values()
    }
    config_type = pydantic.create_model(
        "LeagueEnvironmentConfig",
        __base__=LeagueEnvConfig,
        **{agent: (vf.AgentConfig, default) for agent, default in defaults.items()},
    )

    class LeagueEnv(vf.Env[config_type]):  # type: ignore[valid-type]
        """One episode of the league for each task."""

        def __init__(self, config: Any) -> None:
            self.spec = make_environment(name, {**values, **config.taskset.settings})
            if _roles(self.spec) != roles:
                raise ConfigError(
                    f"{name}: the settings {config.taskset.settings} change the seats to {list(_roles(self.spec))}; "
                    f"expected {list(roles)}: export it with these settings instead"
                )
            super().__init__(_with_opponents(config, roles))

        async def setup(self, agents: vf.Agents) -> None:
            """Train no opponent and no judge."""
            for agent in set(roles.values()) - _trained(self.config, roles):
                getattr(agents, agent).trainable = False

        async def run(self, task: vf.Task[SeedData], agents: vf.Agents) -> None:
            """Play the episode; a failed one raises with its reason."""
            session = _session(self.config, roles, name, task.data.seed)
            if session:
                # Before the first turn: an episode may end without one of the opponent's.
                fields = {key.removeprefix("league_"): value for key, value in session.items()}
                fields |= {"model": self.config.opponent_model, "position": not isinstance(self.spec, ArenaSpec)}
                await _post(self.config, "sessions", fields)
            async with AsyncExitStack() as stack:
                opponents = set(roles.values()) - _trained(self.config, roles) - {JUDGE_AGENT}
                bodies = {role: session for role, agent in roles.items() if agent in opponents}
                talks = Conversations(agents, roles, stack, bodies)
                clients = {role or JUDGE: AgentClient(talks, role or None) for role in roles}
                arena, request = open_episode(self.spec, clients, task.data.seed)
                (result,) = await arena.generate_rollouts([request])
            if result.rollout.failure:
                raise EpisodeError(f"{name}, seed {task.data.seed}: {result.rollout.failure}")
            talks.reward(result)
            if session:
                ids = {"session": session["league_session"], "agent": session["league_agent"]}
                await _post(self.config, "results", {**ids, "scores": seat_scores(self.spec, result)})

    return LeagueTaskset, LeagueEnv


def open_episode(spec: Any, clients: Mapping[str, Any], seed: int) -> tuple[Arena, EpisodeRequest]:
    """The arena and the episode of a seed; equal seeds and replies give equal episodes, wherever they are played.

    Clients are by role, the judge's under ``JUDGE``.
    """
    options = ArenaOptions(seed=seed, limits=Limits(needs_tokens=False))
    if isinstance(spec, ArenaSpec):
        arena = spec.open(next(iter(clients.values())), options)
        request = arena.get_batch()[0]
    else:
        arena = Arena(next(iter(clients.values())), name=options.name, seed=seed, limits=options.limits)
        for seat in spec.seats:
            arena.add_role(Role(seat))
        arena.add_episode(spec.name, GameEpisode(spec, spec.seats))
        request = EpisodeRequest(spec.name)
    arena.role_clients = dict(clients)
    return arena, request


def seat_scores(spec: Any, result: GenerateResult) -> list[float]:
    """Scores by seat, as the league would record them."""
    if isinstance(spec, ArenaSpec):
        return list(spec.score(result))
    return [result.rollout.rewards[seat] for seat in spec.seats]


@dataclass(eq=False)
class Conversations:
    """The exchanges of an episode with verifiers' agents: one for each role in each of the league's episodes.

    The roles are names of agents by role, the bodies fields added to an agent's requests.
    """

    _agents: vf.Agents
    _roles: Mapping[str, str]
    _stack: AsyncExitStack
    _bodies: Mapping[str, dict[str, Any]]
    _open: dict[tuple[str, str], vf.Interaction] = field(default_factory=dict)
    _data: dict[tuple[str, str], SeatData] = field(default_factory=dict)

    async def reply(self, role: str, messages: Sequence[Message]) -> str:
        """The reply of a role's agent to the last message; earlier ones are in its exchange already.

        ``EpisodeError`` if the exchange is over, by a limit or a failure of the model.
        """
        running = current_episode()
        key = (running.context.id if running else "", role)
        if key not in self._open:
            system = messages[0].content if messages[0].role == "system" else None
            data = self._data[key] = SeatData(system_prompt=system, body=self._bodies.get(role, {}))
            agent = getattr(self._agents, self._roles[role])
            self._open[key] = await self._stack.enter_async_context(agent.interaction(vf.Task(data)))
        if role in self._bodies:
            # For bots of the pool, the position of a game; the harness reads the fields at each turn.
            state = running.state if running else None
            position = state.game.save().decode() if isinstance(state, GameState) and state.game else None
            self._data[key].body.update(league_role=role, league_position=position)
        segment = await self._open[key].turn(messages[-1].content)
        if segment.terminated:
            trace = self._open[key].trace
            reason = trace.errors[-1].message if trace.errors else trace.stop_condition
            raise EpisodeError(f"agent {self._roles[role]}: no reply: {reason}")
        return segment.last_reply

    async def verdict(self, messages: Sequence[Message]) -> str:
        """The judge's reply to a conversation of its own; ``EpisodeError`` if its model failed."""
        prompt = [{"role": message.role, "content": message.content} for message in messages]
        trace = await self._agents.judge.run(vf.Task(SeatData(prompt=prompt)))
        if not trace.ok:
            raise EpisodeError(f"agent {JUDGE_AGENT}: no reply: {trace.errors[-1].message if trace.errors else ''}")
        return trace.assistant_messages[-1].content or ""

    def reward(self, result: GenerateResult) -> None:
        """Record rewards and metrics of an episode, and of those below it, with the exchanges of their roles."""
        for rollout in result.all_rollouts():
            for role in self._roles:
                if (exchange := self._open.get((rollout.id, role))) is None:
                    continue
                exchange.trace.record_reward("score", rollout.rewards.get(role, 0.0))
                exchange.trace.info["league"] = {"episode": rollout.id, "type": rollout.episode_type, "role": role}
                for metric, value in rollout.metrics.items():
                    exchange.trace.record_metric(metric.replace("/", "."), value)


class AgentClient(InferenceClient):
    """Completes for one role, or for the judge (None); sampling parameters are the agent's own."""

    def __init__(self, conversations: Conversations, role: str | None) -> None:
        self._conversations = conversations
        self._role = role

    async def complete(self, messages: Sequence[Message], *_: Any, **__: Any) -> ModelResponse:
        """Ask the judge for a verdict, or the agent for the role's reply; an empty reply becomes ``SILENCE``."""
        if self._role is None:
            return ModelResponse(await self._conversations.verdict(messages))
        reply = await self._conversations.reply(self._role, messages)
        return ModelResponse(reply if reply.strip() else SILENCE)


def _roles(spec: Any) -> dict[str, str]:
    """Names of agents by role, in the order of the seats; the judge's by the empty role."""
    if not isinstance(spec, ArenaSpec):
        return {seat: agent_name(seat) for seat in spec.seats}
    roles = {role: agent_name(role) for seat in range(len(spec.seats)) for role in spec.roles_in(seat)}
    return {**roles, "": JUDGE_AGENT}


def _trained(config: LeagueEnvConfig, roles: Mapping[str, str]) -> set[str]:
    """Names of the agents that are trained; ``ConfigError`` if none has the learner's name."""
    players = [agent for role, agent in roles.items() if role]
    if not config.opponent_base_url:
        return set(players)
    learner = config.learner or players[0]
    if learner not in players:
        raise ConfigError(f"learner: {learner!r}; expected one of {players}")
    return {learner}


def _with_opponents(config: Any, roles: Mapping[str, str]) -> Any:
    """The configuration with the opponent pool in all seats but the learner's."""
    if not config.opponent_base_url:
        return config
    pool = vf.EvalClientConfig(base_url=config.opponent_base_url, api_key_var=TOKEN_VARIABLE)
    others = {agent for role, agent in roles.items() if role} - _trained(config, roles)
    update = {"model": config.opponent_model, "client": pool}
    return config.model_copy(update={agent: getattr(config, agent).model_copy(update=update) for agent in others})


def _session(config: LeagueEnvConfig, roles: Mapping[str, str], name: str, seed: int) -> dict[str, Any]:
    """Fields that name a new session of the opponent pool; empty without one."""
    if not config.opponent_base_url:
        return {}
    seats = [role for role in roles if role]
    (learner,) = _trained(config, roles)
    return {
        "league_session": f"{name} seed {seed} {uuid.uuid4().hex}",
        "league_agent": config.opponent_for,
        "league_game": name,
        "league_seat": [roles[seat] for seat in seats].index(learner),
        "league_roles": seats,
    }


async def _post(config: LeagueEnvConfig, page: str, body: Mapping[str, Any]) -> None:
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    reply = await post_json(f"{config.opponent_base_url.rstrip('/')}/league/{page}", body, headers)
    if reply.status_code != httpx.codes.OK:
        raise EpisodeError(f"{page} of the pool, {body['session']}: {reply.status_code} {reply.text[:300]}")
