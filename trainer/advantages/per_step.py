"""Estimators that look at the reward of each step: as it is, with a critic, by prompt, or along the game's clock.

Shape suffixes: S step of a trajectory, T step of all trajectories, C distinct clock of a trajectory, X (trajectory,
clock) cell of the batch.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.numbers import PositiveFloat, Share
from schemas.plugins import PluginStruct
from schemas.trajectories import Trajectory
from trainer.advantages import base
from trainer.advantages.base import Array, CriticConfig, CriticEstimate, Estimate, State, register


@register("step_reward")
class StepReward(PluginStruct, frozen=True):
    """A = r of the step, after all transformations: what Unstable Baselines trains on.

    With ``outcome`` and its ``every_step``, role advantages as final and ``normalise_by_env`` as sampling
    transformation, it is their algorithm.
    """

    def __call__(self, trajectories: Sequence[Trajectory], rewards: Sequence[Array], state: State) -> Estimate:
        """The rewards themselves."""
        return Estimate([np.array(rewards_S, dtype=np.float64) for rewards_S in rewards], state)


@register("gae")
class Gae(PluginStruct, frozen=True):
    """A sum of later surprises, each step ahead discounted by ``gamma * lam``.

    ``A_t = delta_t + gamma lam A_(t+1)`` with ``delta_t = r_t + gamma V_(t+1) - V_t`` (Schulman et al. 2016, eq. 16);
    there is nothing after the last step. With the ``reinforce`` loss it makes A2C.
    """

    gamma: Share = 1.0
    lam: Share = 0.95
    normalize: bool = True
    """Subtract the mean over the batch's steps, and divide by the standard deviation."""
    critic: CriticConfig = CriticConfig()

    def __call__(self, trajectories: Sequence[Trajectory], rewards: Sequence[Array], state: State) -> Estimate:
        """Advantages where the critic expects nothing yet."""
        return Estimate(self.estimate(rewards, [np.zeros(len(r.steps)) for r in trajectories]).advantages, state)

    def estimate(self, rewards: Sequence[Array], values: Sequence[Array]) -> CriticEstimate:
        """Advantages by discounted surprises, and returns: advantages plus values, before normalisation."""
        advantages = [self._discounted(r_S, v_S) for r_S, v_S in zip(rewards, values, strict=True)]
        returns = [a_S + v_S for a_S, v_S in zip(advantages, values, strict=True)]
        if self.normalize:
            whole = np.concatenate(advantages)
            advantages = [(a_S - whole.mean()) / (whole.std() + 1e-8) for a_S in advantages]
        return CriticEstimate(advantages, returns)

    def _discounted(self, rewards_S: Array, values_S: Array) -> Array:
        advantages_S = rewards_S + self.gamma * np.append(values_S[1:], 0.0) - values_S
        for step in range(len(advantages_S) - 2, -1, -1):
            advantages_S[step] += self.gamma * self.lam * advantages_S[step + 1]
        return advantages_S


@register("anchor_state")
class AnchorState(PluginStruct, frozen=True):
    """A = G(step) - (others' sum + p prior) / (others + p), where the others are steps with the same prompt.

    A prompt is an anchor state, as in the step-level part of GiGPO (Feng et al. 2025); the baseline is that of RLOO
    (Kool et al. 2019). What a card or a position is worth does not count, the move alone does. For games whose states
    come again, as in Kuhn poker; a prompt that was asked once is compared with the prior alone.

    ``G`` is the reward to go. The prior is its mean over all steps of the role's other trajectories. Nothing of a
    trajectory's own is in its baseline.
    """

    gamma: Share = 1.0
    """Discount per step."""
    prior: PositiveFloat = 1.0
    """Steps that the prior counts for."""

    def __call__(self, trajectories: Sequence[Trajectory], rewards: Sequence[Array], state: State) -> Estimate:
        """Estimate each step by itself; 0 where its role has no other trajectory."""
        to_go_T = np.concatenate([self._to_go(rewards_S) for rewards_S in rewards])
        trajectory_T = np.repeat(np.arange(len(trajectories)), [len(rewards_S) for rewards_S in rewards])
        prompts = [(r.game, r.role, tuple(step.prompt_ids)) for r in trajectories for step in r.steps]
        roles = [(r.game, r.role) for r in trajectories for _ in r.steps]
        sums_T, others_T = _others(to_go_T, base.key_indices(prompts), trajectory_T)
        role_sums_T, role_others_T = _others(to_go_T, base.key_indices(roles), trajectory_T)
        prior_T = role_sums_T / np.maximum(role_others_T, 1)
        expected_T = (sums_T + self.prior * prior_T) / (others_T + self.prior)
        advantage_T = np.where(role_others_T > 0, to_go_T - expected_T, 0.0)
        return Estimate(np.split(advantage_T, np.flatnonzero(np.diff(trajectory_T)) + 1), state)

    def _to_go(self, rewards_S: Array) -> Array:
        to_go_S = np.array(rewards_S, dtype=np.float64)
        for step in range(len(to_go_S) - 2, -1, -1):
            to_go_S[step] += self.gamma * to_go_S[step + 1]
        return to_go_S


def _others(values_T: Array, group_T: NDArray[np.int64], trajectory_T: NDArray[np.int64]) -> tuple[Array, Array]:
    """Sum and number, over the steps of a step's group that other trajectories have."""
    own_T = base.key_indices(list(zip(group_T.tolist(), trajectory_T.tolist(), strict=True)))
    sums_T, counts_T = (
        (np.bincount(group_T, weights_T)[group_T] - np.bincount(own_T, weights_T)[own_T]).astype(np.float64)
        for weights_T in (values_T, np.ones_like(values_T))
    )
    return sums_T, counts_T


MIN_EVIDENCE = 0.25
"""Weight, in trajectories, below which a line-up is forgotten."""


class Cells(NamedTuple):
    """The (trajectory, clock) cells of a batch, trajectory after trajectory."""

    clocks: list[NDArray[np.int64]]
    """Distinct clocks [C] of each trajectory."""
    step_cells: list[NDArray[np.int64]]
    """Index [S] of each step's clock, by trajectory."""
    to_go_X: Array
    """Discounted reward-to-go from each cell on."""

    def keys(self, trajectories: Sequence[Trajectory]) -> Iterator[tuple[Trajectory, int]]:
        """Trajectory and clock of each cell."""
        return ((r, int(clock)) for r, clocks_C in zip(trajectories, self.clocks, strict=True) for clock in clocks_C)

    def to_steps(self, values_X: Array, normalize: bool) -> list[Array]:
        """Values of cells as [S] per trajectory, divided by their root mean square with ``normalize``."""
        rms = float(np.sqrt(np.mean(values_X**2)))
        if normalize and rms > 1e-9:
            values_X = values_X / rms
        parts = np.split(values_X, np.cumsum([len(clocks_C) for clocks_C in self.clocks])[:-1])
        return [part_C[cell_S] for part_C, cell_S in zip(parts, self.step_cells, strict=True)]


def batch_cells(trajectories: Sequence[Trajectory], rewards: Sequence[Array], gamma: float) -> Cells:
    """Group a batch with rewards [S] per trajectory into cells."""
    cells = Cells([], [], np.zeros(0))
    to_go: list[Array] = []
    for trajectory, rewards_S in zip(trajectories, rewards, strict=True):
        clocks_C, cell_S = np.unique([step.clock for step in trajectory.steps], return_inverse=True)
        to_go_C = np.bincount(cell_S, weights=rewards_S).astype(np.float64)
        for i in range(len(clocks_C) - 2, -1, -1):
            to_go_C[i] += gamma ** (clocks_C[i + 1] - clocks_C[i]) * to_go_C[i + 1]
        cells.clocks.append(clocks_C)
        cells.step_cells.append(cell_S)
        to_go.append(to_go_C)
    return cells._replace(to_go_X=np.concatenate(to_go))


@register("clock_leave_one_out")
class ClockLeaveOneOut(PluginStruct, frozen=True):
    """A = G(clock) - mean of the others' G(clock) at the same role (Kool et al. 2019), over one global scale.

    The estimator that taught a small model Diplomacy fastest: yearly changes of the centre count, 0.8 a year.
    """

    gamma: float = 0.8
    """Discount per unit of the clock."""
    normalize: bool = True
    """Whether to divide by the root mean square over the batch's (trajectory, clock) cells."""

    def __call__(self, trajectories: Sequence[Trajectory], rewards: Sequence[Array], state: State) -> Estimate:
        """Share one advantage among all steps of a clock; 0 if no other trajectory of the role reached it."""
        cells = batch_cells(trajectories, rewards, self.gamma)
        keys = base.key_indices([(r.game, r.role, clock) for r, clock in cells.keys(trajectories)])
        return Estimate(cells.to_steps(base.leave_one_out(cells.to_go_X, keys), self.normalize), state)


@register("clock_lineup")
class ClockLineup(PluginStruct, frozen=True):
    """A = G(clock) - (w m + others' sum + p prior) / (w + others + p), over one global scale.

    ``clock_leave_one_out`` compares a role's trajectories against any opponents alike, so that it mostly sees the draw
    where opponents differ much in strength. Here the trajectories of the same line-up count for more, also those of
    earlier batches: few of one batch are alike.

    ``m`` is the mean return of the line-up's trajectories of earlier batches from this clock on, of fading weight
    ``w``; the others are those of this batch; the prior is the mean of the role's other trajectories of the batch, of
    any line-up. Nothing of a trajectory's own is in its baseline, which therefore adds no bias (Kool et al. 2019).
    """

    gamma: Share = 0.8
    """Discount per unit of the clock."""
    memory: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.85
    """Share of an earlier trajectory's weight that remains after each batch."""
    prior: PositiveFloat = 2.0
    """Trajectories that the prior counts for."""

    def __call__(self, trajectories: Sequence[Trajectory], rewards: Sequence[Array], state: State) -> Estimate:
        """All steps of one clock share its advantage; where nothing tells what to expect it is 0."""
        cells = batch_cells(trajectories, rewards, self.gamma)
        to_go_X = cells.to_go_X
        lineups = [f"{r.game}|{r.role}|{r.group}|{clock}" for r, clock in cells.keys(trajectories)]
        role_X = base.key_indices([(r.game, r.role, clock) for r, clock in cells.keys(trajectories)])
        cell_X = base.key_indices(lineups)
        others_X = np.bincount(cell_X)[cell_X] - 1
        sums_X = np.bincount(cell_X, weights=to_go_X)[cell_X] - to_go_X
        weight_X = np.array([state.get(f"weight/{key}", 0.0) for key in lineups])
        mean_X = np.array([state.get(f"mean/{key}", 0.0) for key in lineups])
        is_alone_X = np.bincount(role_X)[role_X] == 1
        prior_X = np.where(is_alone_X, 0.0, self.prior)
        role_mean_X = to_go_X - base.leave_one_out(to_go_X, role_X)
        known_X = weight_X + others_X + prior_X
        expected_X = (weight_X * mean_X + sums_X + prior_X * role_mean_X) / np.maximum(known_X, 1e-12)
        advantages = cells.to_steps(np.where(known_X > 0, to_go_X - expected_X, 0.0), normalize=True)
        return Estimate(advantages, dict(self._lineup_means(to_go_X, lineups, state)))

    def _lineup_means(self, to_go_X: Array, lineups: Sequence[str], state: State) -> Iterator[tuple[str, float]]:
        """Mean and weight of every line-up and clock, this batch's trajectories at full weight."""
        weights = {k.removeprefix("weight/"): self.memory * v for k, v in state.items() if k.startswith("weight/")}
        sums = {key: weight * state.get(f"mean/{key}", 0.0) for key, weight in weights.items()}
        for key, value in zip(lineups, to_go_X.tolist(), strict=True):
            weights[key] = weights.get(key, 0.0) + 1.0
            sums[key] = sums.get(key, 0.0) + value
        for key, weight in weights.items():
            if weight >= MIN_EVIDENCE:
                yield f"weight/{key}", weight
                yield f"mean/{key}", sums[key] / weight
