"""Environments of verifiers v1, single- and multi-agent, with their own rewards: each agent is a seat.

Their protocol and rewards run here, and their agents call this arena's model. An environment sees agents with the
methods ``run`` and ``interaction`` and finished traces. It gets no program, no container and no tools: one that needs
them is rejected. There is no default environment, so this is not among ``arena_names``.
"""

import inspect
import itertools
import re
import warnings
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from arena.arena import Arena
from arena.environments import DatasetSpec, register
from arena.episodes import Episode
from arena.games.third_party import require_package
from arena.rubrics import Rubric
from schemas.episodes import GREEDY_TEMPERATURE, EpisodeState, Message, Role, Rollout
from schemas.errors import ConfigError, EpisodeError
from schemas.numbers import PositiveInt

with require_package("verifiers", "verifiers"), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import verifiers.v1 as vf
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.dialects import parse_message
    from verifiers.v1.state import state_cls
    from verifiers.v1.types import content_text
    from verifiers.v1.utils.decorators import invoke
    from verifiers.v1.utils.loaders import load_environment, resolve_env_config

_BRACKETED = re.compile(r"\[([^\[\]\n]{1,40})\]")


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[game]`` settings."""

    taskset: str
    """Id of the taskset, an installed module: ``kuhn-poker``."""
    env: str = ""
    """Id of the environment, where it is not the taskset's own."""
    taskset_options: dict[str, Any] = {}
    """The taskset's configuration."""
    options: dict[str, Any] = {}
    """The environment's configuration: ``{ invalid_retries = 0 }``. An agent's ``sampling`` and ``max_turns`` hold."""
    tasks: PositiveInt = 100
    """Number of tasks, from the taskset's first on."""
    group_size: PositiveInt = 1
    """Attempts at a task that are compared with each other."""
    batch_size: PositiveInt = 4
    """Tasks of a batch."""


class Exchange:
    """One conversation of an agent with an environment: what ``agent.interaction`` yields."""

    def __init__(self, arena: Arena, name: str, config: vf.AgentConfig, task: vf.Task) -> None:
        self._arena = arena
        self._name = name
        self._task = task
        self._max_turns = config.max_turns
        self._stops = task.hooks("stop")
        self._messages: list[Any] = []
        info = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        state = state_cls(type(task))()
        self.trace = vf.Trace(task=info, agent=vf.AgentInfo(config=config, name=name), state=state)

    async def turn(self, message: Any = None) -> vf.Segment:
        """The agent's reply to a message, or to the task's prompt; a terminated segment once a limit or stop is met.

        ``EpisodeError`` if the model gave no usable reply.
        """
        if self.trace.stop_condition is not None:
            return vf.Segment(messages=[], terminated=True)
        # Parsed first: a message that cannot be read leaves the conversation as it is.
        told = [parse_message(one) if isinstance(one, dict) else one for one in _as_messages(message)]
        if not self._messages:
            data = self._task.data
            if data.system_prompt:
                self._append(vf.SystemMessage(content=data.system_prompt), False)
            for entry in _as_messages(data.prompt):
                self._append(entry, False)
        for entry in told:
            self._append(entry, False)
        prompt = [Message(entry.role, content_text(entry.content or "")) for entry in self._messages]
        reply = vf.AssistantMessage(content=(await self._arena.call_model(prompt, self._name)).text)
        self._append(reply, True)
        if self._max_turns is not None and self.trace.num_turns >= self._max_turns:
            self.trace.stop("max_turns")
        for stop in self._stops:
            if await invoke(stop, {"trace": self.trace, "task": self._task.data}):
                self.trace.stop(stop.__name__)
        return vf.Segment(messages=[reply], root_reply=reply.content)

    async def finish(self, condition: str) -> vf.Trace:
        """End the exchange, and score it by its task's rewards."""
        self.trace.stop(condition)
        await invoke(self._task.finalize, {"trace": self.trace, "runtime": None})
        await self._task.score(self.trace)
        self.trace.ok = True
        return self.trace

    def _append(self, message: Any, sampled: bool) -> None:
        parent = len(self.trace.nodes) - 1 if self.trace.nodes else None
        self.trace.nodes.append(vf.MessageNode(parent=parent, message=message, sampled=sampled))
        self._messages.append(message)


def _as_messages(prompt: Any) -> list[Any]:
    return [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else list(prompt or [])


@dataclass(eq=False)
class SeatAgent:
    """An agent of an environment, played by a seat."""

    _arena: Arena
    name: str
    config: vf.AgentConfig
    _finished: list[vf.Trace]
    trainable: bool = True

    async def run(self, task: vf.Task, **unused: Any) -> vf.Trace:
        """One reply to the task's prompt."""
        async with self._converse(task, "agent_completed") as exchange:
            await exchange.turn()
        return exchange.trace

    def interaction(self, task: vf.Task, **unused: Any) -> AbstractAsyncContextManager[Exchange]:
        """A conversation, turn by turn; it is scored at its end."""
        return self._converse(task, "user_closed")

    @asynccontextmanager
    async def _converse(self, task: vf.Task, condition: str) -> AsyncIterator[Exchange]:
        exchange = Exchange(self._arena, self.name, self.config, task)
        await invoke(task.setup, {"trace": exchange.trace, "runtime": None})
        yield exchange
        self._finished.append(await exchange.finish(condition))


def reward(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """The sum of the rewards of a seat's traces."""
    return dict(rollout.extras["rewards"])


class VerifiersEpisode(Episode):
    """One episode of an environment."""

    episode_type = "verifiers"
    rubric = Rubric([reward])

    def __init__(self, env: vf.Env, tasks: Sequence[vf.Task]) -> None:
        self._env = env
        self._tasks = tasks

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        """Play the task of the artifact; ``EpisodeError`` if the environment ran no agent."""
        task = self._tasks[artifact["index"]]
        info = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        episode = vf.Episode(env=vf.EnvInfo(id=self._env.config.env_id), task=info)
        agents = vf.Agents(self._env.config, lambda name, config: SeatAgent(arena, name, config, episode.traces))
        await self._env.setup(agents)
        await self._env.run(task, agents)
        if not episode.traces:
            raise EpisodeError(f"verifiers, {self._env.config.env_id}: run() ran no agent")
        episode.ok = True
        await self._env.finalize(task, episode)
        rewards = dict.fromkeys(agent_config_fields(self._env.config), 0.0)
        metrics: dict[str, float] = {}
        for trace in episode.traces:
            rewards[trace.agent.name] += trace.reward
            metrics |= {
                f"{name}.{trace.agent.name}": value for name, value in trace.metrics.items() if value is not None
            }
        state.data = {"rewards": rewards, "metrics": metrics}
        return state

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """Rewards by seat, and metrics."""
        return dict(state.data)


class VerifiersSpec(DatasetSpec):
    """An environment with a seat for each of its agents."""

    name = "verifiers"
    item = "task"
    settings_type = Settings

    def __init__(self, settings: Settings) -> None:
        """Make the environment and read its tasks.

        Raises:
            ConfigError: no such environment, a bad configuration, no tasks, or one that needs tools or a runtime.
        """
        super().__init__(settings)
        options = {"id": settings.env, "taskset": {**settings.taskset_options, "id": settings.taskset}}
        where = f"game.settings.taskset: {settings.taskset!r}"
        try:
            self.env: Any = load_environment(resolve_env_config({**settings.options, **options}))
            self.tasks: list[Any] = list(itertools.islice(self.env.taskset, settings.tasks))
        except Exception as error:  # environments are third-party code and may raise anything
            reason = " ".join(str(error).split())[:300]
            raise ConfigError(f"{where} cannot be made ({type(error).__name__}: {reason})") from error
        if not self.tasks:
            raise ConfigError(f"{where} has no tasks; expected at least one")
        if needed := _unmet_needs(self.env.taskset, self.tasks[0]):
            raise ConfigError(f"{where} needs {needed}; expected an environment of text alone")
        self.seats = tuple(agent_config_fields(self.env.config))

    def make_roles(self) -> Sequence[Role]:
        """The agents, sampled as they are configured."""
        roles = []
        for name, config in agent_config_fields(self.env.config).items():
            sampling = config.sampling or vf.SamplingConfig()
            temperature = 1.0 if sampling.temperature is None else sampling.temperature or GREEDY_TEMPERATURE
            roles.append(Role(name, temperature=temperature, max_tokens=sampling.max_tokens))
        return roles

    def make_episodes(self) -> Sequence[VerifiersEpisode]:
        """The environment's."""
        return [VerifiersEpisode(self.env, self.tasks)]

    def make_items(self) -> Iterable[Any]:
        """The tasks, by index."""
        return ({"index": index, "key": task.key} for index, task in enumerate(self.tasks))

    def improvise(self, role_id: str | None, messages: Sequence[Message], rng: Random) -> str:
        """One of the texts in square brackets in the last message, as many environments offer moves; else a number."""
        offered = _BRACKETED.findall(messages[-1].content)
        return f"[{rng.choice(offered)}]" if offered else str(rng.randint(0, 99))

    def metrics(self, result: Any) -> Mapping[str, float]:
        """Add the environment's own metrics."""
        return {**super().metrics(result), **result.rollout.extras.get("metrics", {})}


def _unmet_needs(taskset: vf.Taskset, task: vf.Task) -> str:
    """Missing requirements of an environment; empty if it has all."""
    if task.toolsets(task.config) or taskset.toolsets(taskset.config):
        return "tools"
    if task.NEEDS_CONTAINER or task.data.image:
        return "a container"
    for hook in (*task.hooks("reward"), *task.hooks("metric"), *task.hooks("stop")):
        runtime = inspect.signature(hook).parameters.get("runtime")
        if runtime is not None and runtime.default is inspect.Parameter.empty:
            return "a runtime for its rewards"
    return ""


make = register("verifiers")(VerifiersSpec.of)
