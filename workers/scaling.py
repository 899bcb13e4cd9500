"""How many rollout workers a machine should run: a decision from how long the trainer waits for rollouts.

Trainer and players share a machine, so the number moves one at a time, from the mean over several steps, and rests
between moves: what one more worker changes is not seen at once.
"""

from schemas.config import RolloutConfig
from schemas.events import GradientStepTaken

MORE_ABOVE = 0.3
"""Share of its time that the trainer may wait for rollouts before another worker is started."""
FEWER_BELOW = 0.05
"""Below it, play is far enough ahead to go on with one worker less. The gap between the two is what keeps the number
from swinging."""
LEAST_STEPS = 5
"""That a share is the mean of."""
SETTLE_S = 20.0
"""Between moves: a worker loads its model first."""


class Scaler:
    """The number of one machine's rollout workers for ``trainer.policy``."""

    def __init__(self, config: RolloutConfig) -> None:
        self._step = -1
        self._begin_anew(bounded(config.workers, config), 0.0)

    def _begin_anew(self, workers: int, now_s: float) -> None:
        self.workers = workers
        self._since_s = now_s
        self._steps = 0
        self._waited_s = self._took_s = 0.0

    def look(self, now_s: float, config: RolloutConfig, step: GradientStepTaken | None) -> int:
        """How many there should be.

        Args:
            now_s: By a clock that never goes back.
            config: As it is now. Without bounds, ``workers`` decides alone.
            step: The trainer's newest.
        """
        inside = bounded(self.workers if config.workers_max is not None else config.workers, config)
        if inside != self.workers:
            self._begin_anew(inside, now_s)
        if step is not None and step.step != self._step:
            self._take(step)
        if config.workers_max is not None and self._steps >= LEAST_STEPS and now_s - self._since_s >= SETTLE_S:
            share = self._waited_s / self._took_s if self._took_s > 0 else 0.0
            by = 1 if share > MORE_ABOVE else -1 if share < FEWER_BELOW else 0
            self._begin_anew(bounded(self.workers + by, config), now_s)
        return self.workers

    def _take(self, step: GradientStepTaken) -> None:
        # The first one that is seen may have waited for what is long over.
        if self._step >= 0:
            took_s = max(step.metrics.get("wall_s", 0.0), 0.0)
            self._steps += 1
            self._took_s += took_s
            self._waited_s += min(max(step.metrics.get("wait_s", 0.0), 0.0), took_s)
        self._step = step.step


def bounded(workers: int, config: RolloutConfig) -> int:
    """The nearest number within the configured bounds."""
    if config.workers_min is None or config.workers_max is None:
        return workers
    return min(max(workers, config.workers_min), config.workers_max)
