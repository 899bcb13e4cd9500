"""Estimators that look at the reward of each step.

Shape suffix: S step of a rollout.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from schemas.numbers import Share
from schemas.plugins import PluginStruct
from schemas.trajectories import Trajectory
from trainer.advantages.base import CriticConfig, CriticEstimate, Estimate, State, register


@register("step_reward")
class StepReward(PluginStruct, frozen=True):
    """A = r of the step, after all transformations: what Unstable Baselines trains on.

    With ``outcome`` and its ``every_step``, role advantages as final and ``normalise_by_env`` as sampling
    transformation, it is the seed's algorithm.
    """

    def __call__(
        self, rollouts: Sequence[Trajectory], rewards: Sequence[NDArray[np.float64]], state: State
    ) -> Estimate:
        """The rewards themselves."""
        return Estimate([np.array(rewards_S, dtype=np.float64) for rewards_S in rewards], state)


Array = NDArray[np.float64]


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

    def __call__(self, rollouts: Sequence[Trajectory], rewards: Sequence[Array], state: State) -> Estimate:
        """Advantages where the critic expects nothing yet."""
        return Estimate(self.estimate(rewards, [np.zeros(len(r.steps)) for r in rollouts]).advantages, state)

    def estimate(self, rewards: Sequence[Array], values: Sequence[Array]) -> CriticEstimate:
        """Advantages and returns.

        Args:
            rewards: [S] per rollout.
            values: [S] per rollout, the critic's, before each step.
        """
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
