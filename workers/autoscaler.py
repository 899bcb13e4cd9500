"""Scales the number of workers of a role on one machine.

Rollout workers scale with the share of its time that the trainer waits for trajectories, evaluators with the queue of
matches. The number changes by one at a time, with a cooldown, since the effect of a worker takes time to show. Each
machine decides for itself, from metrics of the whole league.
"""

import math
from typing import NamedTuple

from schemas.config import LeagueConfig
from schemas.events import GradientStepTaken

MORE_ABOVE = 0.3
"""Share of its time that the trainer may wait for trajectories before a worker is added."""
FEWER_BELOW = 0.05
"""Share of waiting below which a worker is removed. The gap between the two prevents oscillation."""
MIN_STEPS = 5
COOLDOWN_S = 20.0
"""Minimum time between changes: a new worker first loads its model."""
LONG_QUEUE = 2.0
"""Queue length, in multiples of what all evaluators play at once: if always exceeded, an evaluator is added."""
SHORT_QUEUE = 0.5
"""Queue length in the same unit: if never exceeded, at most half of the evaluators are busy."""
QUIET_PERIOD_S = 60.0
"""Time for which the queue must be short before an evaluator is removed: evaluations come in bursts."""


class WorkerBounds(NamedTuple):
    """Bounds on the number of workers of a role on a machine."""

    workers: int
    """The fixed number without the other two; the initial number with them."""
    least: int | None = None
    most: int | None = None

    def clamp(self, workers: int) -> int:
        """The nearest number within the bounds."""
        if self.least is None or self.most is None:
            return self.workers
        return min(max(workers, self.least), self.most)

    @property
    def is_adjustable(self) -> bool:
        """Whether the bounds leave a choice."""
        return self.least != self.most


def bounds_of(config: LeagueConfig) -> dict[str, WorkerBounds]:
    """Bounds by role that a configuration sets for a machine that runs the whole league."""
    rollout, evaluation = config.rollout, config.evaluation
    return {
        "evaluator": WorkerBounds(evaluation.workers, evaluation.workers_min, evaluation.workers_max),
        "rollout": WorkerBounds(rollout.workers, rollout.workers_min, rollout.workers_max),
    }


class TrainerWait:
    """The share of its time that a trainer waits for trajectories, over its newest steps."""

    def __init__(self) -> None:
        self._step = -1
        self.reset(0.0)

    def reset(self, now_s: float) -> None:
        """Discard the observations, but not the number of the newest step."""
        self._steps = 0
        self._waited_s = self._took_s = 0.0

    def observe(self, step: GradientStepTaken | None) -> None:
        """Observe the trainer's newest step; repeats are ignored."""
        if step is None or step.step == self._step:
            return
        # The first observed step may have waited for reasons long past.
        if self._step >= 0:
            took_s = max(step.metrics.get("wall_s", 0.0), 0.0)
            self._steps += 1
            self._took_s += took_s
            self._waited_s += min(max(step.metrics.get("wait_s", 0.0), 0.0), took_s)
        self._step = step.step

    def direction(self, now_s: float) -> int | None:
        """1 for a worker more, -1 for one fewer, 0 for neither; None before ``MIN_STEPS`` steps."""
        if self._steps < MIN_STEPS:
            return None
        share = self._waited_s / self._took_s if self._took_s > 0 else 0.0
        return 1 if share > MORE_ABOVE else -1 if share < FEWER_BELOW else 0


class QueueDepth:
    """Length of the queue of matches, in multiples of what all evaluators play at once."""

    def __init__(self) -> None:
        self.reset(0.0)

    def reset(self, now_s: float) -> None:
        """Discard the observations, after a decision."""
        self._since_s = now_s
        self._least = math.inf
        self._most = -math.inf

    def observe(self, jobs: int, at_once: int) -> None:
        """Observe matches requested and not yet played, running ones included, and how many evaluators play at once."""
        rounds = jobs / max(at_once, 1)
        self._least = min(self._least, rounds)
        self._most = max(self._most, rounds)

    def direction(self, now_s: float) -> int | None:
        """As in ``TrainerWait``, from the shortest and longest queue; None without observations of it or too early."""
        if self._least > self._most:
            return None
        if self._least > LONG_QUEUE:
            return 1
        if now_s - self._since_s < QUIET_PERIOD_S:
            return None
        return -1 if self._most <= SHORT_QUEUE else 0


ScalingSignal = TrainerWait | QueueDepth
"""Calls for more or fewer workers of a role."""


class Scaler:
    """Decides the number of one machine's workers of a role."""

    def __init__(self, bounds: WorkerBounds, signal: ScalingSignal) -> None:
        self._signal = signal
        self._reset(bounds.clamp(bounds.workers), 0.0)

    def _reset(self, workers: int, now_s: float) -> None:
        self.workers = workers
        self._since_s = now_s
        self._signal.reset(now_s)

    def decide(self, now_s: float, bounds: WorkerBounds) -> int:
        """Returns how many workers there should be at ``now_s`` of a monotonic clock, within the current bounds."""
        inside = bounds.clamp(self.workers)
        if inside != self.workers:
            self._reset(inside, now_s)
        if bounds.most is not None and now_s - self._since_s >= COOLDOWN_S:
            lean = self._signal.direction(now_s)
            if lean is not None:
                self._reset(bounds.clamp(self.workers + lean), now_s)
        return self.workers
