"""Discounted reward-to-go along the game's clock, against what was to be expected of the role beside these opponents.

``clock_leave_one_out`` compares a role's rollouts with any other players at the table. Where some opponents are much
stronger than others, most of what it sees is then the draw. Here the rollouts of the same line-up count for more, those
of the batches before among them: few of one batch are alike.

Shape suffixes: X (rollout, clock) cell of the batch, as in ``clock_leave_one_out``.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.errors import ConfigError
from schemas.plugins import PluginStruct
from schemas.trajectories import Trajectory
from trainer.advantages.base import Estimate, State, key_indices, leave_one_out, register
from trainer.advantages.clock_leave_one_out import clock_returns

MIN_EVIDENCE = 0.25
"""Rollouts' worth of memory below which a line-up is forgotten."""


@register("clock_lineup")
class ClockLineup(PluginStruct, frozen=True):
    """A = G(clock) - (w m + others' sum + p prior) / (w + others + p), over one global scale.

    ``m`` is the mean of what the line-up's rollouts of earlier batches got from this clock on, of fading weight ``w``;
    the others are those of this batch; the prior is the mean of the role's other rollouts of the batch, whatever their
    line-up. Nothing of a rollout's own is in its baseline, which therefore adds no bias (Kool et al. 2019).
    """

    gamma: float = 0.8
    """Discount per unit of the clock."""
    memory: float = 0.85
    """What is left of an earlier rollout's weight with each batch."""
    prior: float = 2.0
    """Rollouts that the prior counts for."""

    def __post_init__(self) -> None:
        if not (0 <= self.gamma <= 1 and 0 <= self.memory < 1 and self.prior > 0):
            values = f"gamma {self.gamma}, memory {self.memory}, prior {self.prior}"
            raise ConfigError(f"{values}; expected 0 to 1, 0 to below 1, and more than 0")

    def __call__(
        self, rollouts: Sequence[Trajectory], rewards: Sequence[NDArray[np.float64]], state: State
    ) -> Estimate:
        """All steps of one clock share its advantage; where nothing tells what to expect it is 0."""
        cells = [clock_returns(r, rewards_S, self.gamma) for r, rewards_S in zip(rollouts, rewards, strict=True)]
        to_go_X = np.concatenate([to_go_C for _, to_go_C, _ in cells])
        clocks = [clocks_C for clocks_C, _, _ in cells]
        lineups = [
            f"{r.game}|{r.role}|{r.group}|{int(c)}"
            for r, clock_C in zip(rollouts, clocks, strict=True)
            for c in clock_C
        ]
        roles = [(r.game, r.role, int(c)) for r, clock_C in zip(rollouts, clocks, strict=True) for c in clock_C]
        values_X = self._advantages(to_go_X, lineups, key_indices(roles), state)
        rms = float(np.sqrt(np.mean(values_X**2)))
        if rms > 1e-9:
            values_X = values_X / rms
        parts = np.split(values_X, np.cumsum([len(clocks_C) for clocks_C, _, _ in cells])[:-1])
        advantages = [part_C[cell_S] for part_C, (_, _, cell_S) in zip(parts, cells, strict=True)]
        return Estimate(advantages, dict(self._lineup_means(to_go_X, lineups, state)))

    def _advantages(
        self, to_go_X: NDArray[np.float64], lineups: Sequence[str], role_X: NDArray[np.int64], state: State
    ) -> NDArray[np.float64]:
        cell_X = key_indices(lineups)
        others_X = np.bincount(cell_X)[cell_X] - 1
        sums_X = np.bincount(cell_X, weights=to_go_X)[cell_X] - to_go_X
        weight_X = np.array([state.get(f"weight/{key}", 0.0) for key in lineups])
        mean_X = np.array([state.get(f"mean/{key}", 0.0) for key in lineups])
        is_alone_X = np.bincount(role_X)[role_X] == 1
        prior_X = np.where(is_alone_X, 0.0, self.prior)
        role_mean_X = to_go_X - leave_one_out(to_go_X, role_X)
        known_X = weight_X + others_X + prior_X
        expected_X = (weight_X * mean_X + sums_X + prior_X * role_mean_X) / np.maximum(known_X, 1e-12)
        return np.where(known_X > 0, to_go_X - expected_X, 0.0)

    def _lineup_means(
        self, to_go_X: NDArray[np.float64], lineups: Sequence[str], state: State
    ) -> Iterator[tuple[str, float]]:
        """Mean and weight of every line-up and clock, this batch's rollouts at full weight."""
        weights = {k.removeprefix("weight/"): self.memory * v for k, v in state.items() if k.startswith("weight/")}
        sums = {key: weight * state.get(f"mean/{key}", 0.0) for key, weight in weights.items()}
        for key, value in zip(lineups, to_go_X.tolist(), strict=True):
            weights[key] = weights.get(key, 0.0) + 1.0
            sums[key] = sums.get(key, 0.0) + value
        for key, weight in weights.items():
            if weight >= MIN_EVIDENCE:
                yield f"weight/{key}", weight
                yield f"mean/{key}", sums[key] / weight
