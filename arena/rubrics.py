"""Scoring of episodes: weighted reward functions, which may call judges."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable, iscoroutine
from math import isfinite
from typing import Any, NamedTuple

from arena.arena import Arena
from schemas.episodes import Rollout
from schemas.errors import EpisodeError, UsageError, format_choices

RewardFn = Callable[[Rollout, Arena], Mapping[str, float] | Awaitable[Mapping[str, float]]]
"""Reward by role; omitted roles get none. It must not change the rollout."""


class Scores(NamedTuple):
    """Scores of an episode."""

    rewards: dict[str, float]
    """Weighted sum by role over the functions that score it."""
    metrics: dict[str, float]
    """Unweighted value by ``function/role``."""


class Rubric:
    """Weighted reward functions, sync or async; async ones run concurrently."""

    def __init__(
        self, funcs: Sequence[RewardFn], weights: Sequence[float] | None = None, timeout_s: float | None = None
    ) -> None:
        """A rubric of these functions, each with a weight, by default 1; ``UsageError`` for other numbers of weights.

        The functions' names name the metrics; a second one of the same name is ``name#2``. ``timeout_s`` limits the
        time of all functions together, for judges that never answer.
        """
        self.funcs = list(funcs)
        self.weights = [1.0] * len(self.funcs) if weights is None else [float(weight) for weight in weights]
        self.timeout_s = timeout_s
        if len(self.weights) != len(self.funcs) or not all(map(isfinite, self.weights)):
            raise UsageError(f"rubric: weights {weights} for {len(self.funcs)} functions; expected a finite one each")
        self.names: list[str] = []
        seen: Counter[str] = Counter()
        for func in self.funcs:
            name = getattr(func, "__name__", type(func).__name__)
            seen[name] += 1
            self.names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")

    async def score(self, rollout: Rollout, arena: Arena) -> Scores:
        """Score a rollout, which is not changed.

        Raises:
            EpisodeError: a value that is not a number, an unknown role, or a timeout.
            Exception: raised by a function.
        """
        try:
            async with asyncio.timeout(self.timeout_s) as limit:
                values = await self._call_functions(rollout, arena)
        except TimeoutError as error:
            if not limit.expired():
                raise
            raise EpisodeError(
                f"rubric of {rollout.episode_type}: {', '.join(self.names)} did not end within {self.timeout_s:g} s"
            ) from error
        rewards: dict[str, float] = {}
        metrics: dict[str, float] = {}
        for name, weight, result in zip(self.names, self.weights, values, strict=True):
            for role, value in _validate_rewards(name, result, rollout, arena).items():
                rewards[role] = rewards.get(role, 0.0) + weight * value
                metrics[f"{name}/{role}"] = value
        if odd := {role: reward for role, reward in rewards.items() if not isfinite(reward)}:
            raise EpisodeError(f"rubric of {rollout.episode_type}: rewards add up to {odd}; expected finite numbers")
        return Scores(rewards, metrics)

    async def _call_functions(self, rollout: Rollout, arena: Arena) -> list[Any]:
        """The value of each function, in their order."""
        values: list[Any] = []
        try:
            values.extend(func(rollout, arena) for func in self.funcs)
        except BaseException:  # raised again; a coroutine that is never awaited is a warning
            for coroutine in filter(iscoroutine, values):
                coroutine.close()
            raise
        waiting = [at for at, value in enumerate(values) if isawaitable(value)]
        if len(waiting) == 1:
            values[waiting[0]] = await values[waiting[0]]
        elif waiting:
            async with asyncio.TaskGroup() as group:
                tasks = [(at, group.create_task(_await_value(values[at]))) for at in waiting]
            for at, task in tasks:
                values[at] = task.result()
        return values


async def _await_value(value: Awaitable[Any]) -> Any:
    return await value


def _validate_rewards(name: str, result: object, rollout: Rollout, arena: Arena) -> dict[str, float]:
    """The rewards by role; ``EpisodeError`` for other values."""
    where = f"reward function {name} of {rollout.episode_type}"
    if not isinstance(result, Mapping):
        raise EpisodeError(f"{where}: {result!r}; expected rewards by role")
    rewards: dict[str, float] = {}
    for role, value in result.items():
        if role not in arena.roles:
            expected = format_choices(arena.roles)
            raise EpisodeError(f"{where}: a reward for {role!r}, which is not a role; expected {expected}")
        try:
            rewards[role] = float(value)
        except (TypeError, ValueError):
            raise EpisodeError(f"{where}: {value!r} for {role!r}; expected a number") from None
        if not isfinite(rewards[role]):
            raise EpisodeError(f"{where}: {rewards[role]} for {role!r}; expected a finite number")
    return rewards
