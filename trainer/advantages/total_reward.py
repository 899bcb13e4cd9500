"""Estimators that compare total rewards, for matches and for trees of episodes.

They are registered for both, by ``@ADVANTAGES.register`` and by ``@CREDIT_ASSIGNERS.register``. The protocol that an
arena is handed, ``CreditAssigner``, is in ``schemas.batches``.

Shape suffix: G sample (a trajectory, or a role of an episode).
"""

from collections.abc import Sequence

import numpy as np

from schemas.batches import NO_STATE, Credit, CreditAssigner, CreditState, scored_rollouts, spread_to_steps
from schemas.episodes import GenerateResult, Rollout
from schemas.numbers import Share
from schemas.plugins import PluginStruct, Registry
from schemas.trajectories import Trajectory
from trainer.advantages import base
from trainer.advantages.base import ADVANTAGES, Array, Estimate, State

CREDIT_ASSIGNERS: Registry[CreditAssigner] = Registry("arena.credit", "trainer.advantages")
register = CREDIT_ASSIGNERS.register


class TotalRewardEstimator(PluginStruct, frozen=True):
    """Base of estimators that look at total rewards only: all steps of a sample get the sample's advantage."""

    def estimate(self, samples: Sequence[Trajectory], totals_G: Array, state: State) -> tuple[Array, State]:
        """Advantages [G] of samples (those of a tree have no steps) with these total rewards, and what to remember.

        Pure in its arguments; ``state`` is what the last call returned, empty at first.
        """
        raise NotImplementedError

    def __call__(self, trajectories: Sequence[Trajectory], rewards: Sequence[Array], state: State) -> Estimate:
        """Estimate from total rewards, and give all steps of a trajectory its advantage."""
        advantages_G, after = self.estimate(trajectories, base.total_rewards(rewards), state)
        return Estimate(base.spread_to_steps(advantages_G, trajectories), after)

    def compute(self, results: Sequence[GenerateResult], state: CreditState = NO_STATE) -> Credit:
        """Compute the advantage of each role that was scored in a trainable episode: these are the samples."""
        scored = list(scored_rollouts(results))
        totals_G = np.array([rollout.rewards[role] for rollout, role in scored], dtype=np.float64)
        advantages_G, after = self.estimate([_role_sample(*sample) for sample in scored], totals_G, state)
        keys = [(rollout.id, role) for rollout, role in scored]
        return Credit(spread_to_steps(dict(zip(keys, advantages_G.tolist(), strict=True)), results), dict(after))


def _role_sample(rollout: Rollout, role: str) -> Trajectory:
    return Trajectory(
        match_id=rollout.id,
        game=rollout.episode_type,
        policy="",
        seat=0,
        role=role,
        group=rollout.comparison_group(role),
        steps=[],
        final_clock=0,
        final_progress=0.0,
        score=rollout.rewards[role],
        rank=1,
    )


@ADVANTAGES.register("constant")
@CREDIT_ASSIGNERS.register("constant")
class Constant(TotalRewardEstimator, frozen=True):
    """A = value, whatever was earned: imitation of all that was played, the self-play engine's constant credit."""

    value: float = 1.0

    def estimate(self, samples: Sequence[Trajectory], totals_G: Array, state: State) -> tuple[Array, State]:
        """``value`` for every sample."""
        return np.full(len(samples), self.value), state


@ADVANTAGES.register("episodic")
@CREDIT_ASSIGNERS.register("episodic")
class Episodic(TotalRewardEstimator, frozen=True):
    """A = R, the total reward, without a baseline (Williams 1992): the self-play engine's episodic reward credit."""

    def estimate(self, samples: Sequence[Trajectory], totals_G: Array, state: State) -> tuple[Array, State]:
        """The total rewards themselves."""
        return totals_G, state


@ADVANTAGES.register("group_relative")
@CREDIT_ASSIGNERS.register("grpo")
class GroupRelative(TotalRewardEstimator, frozen=True):
    """A_i = R_i - mean(R of i's group) (Shao et al. 2024, section 4.1.2); a group of one learns nothing.

    In a tree of episodes, a group is what agrees in level of the tree, parent, episode type and role: all episodes
    without a parent are compared with each other, and each parent's children among themselves (unless a request names
    its group). Roles are never compared with other roles.
    """

    by: tuple[str, ...] = ("group",)
    """What trajectories of a group agree in: some of game, group (the same start, seat and line-up where
    ``rollout.group_size`` is above 1, else role and line-up), policy, role and seat."""
    normalize: bool = False
    """Divide by the group's (population) standard deviation; groups without spread stay at zero."""
    positive_only: bool = False
    """Clamp negative advantages to 0."""

    def __post_init__(self) -> None:
        base.check_group_keys(self.by)

    def estimate(self, samples: Sequence[Trajectory], totals_G: Array, state: State) -> tuple[Array, State]:
        """Total rewards less the means of their groups."""
        group_G = base.group_indices(samples, self.by)
        return base.group_relative(totals_G, group_G, self.normalize, self.positive_only), state


@ADVANTAGES.register("leave_one_out")
@CREDIT_ASSIGNERS.register("leave_one_out")
class LeaveOneOut(TotalRewardEstimator, frozen=True):
    """A_i = R_i - mean(R of the others in i's group) (Kool et al. 2019; RLOO, Ahmadian et al. 2024, section 2.3).

    Unlike the group's mean, this baseline does not depend on what it judges. A group of one learns nothing. Groups in
    a tree of episodes are those of ``group_relative``.
    """

    by: tuple[str, ...] = ("group",)
    """What trajectories of a group agree in: some of game, group (the same start, seat and line-up where
    ``rollout.group_size`` is above 1, else role and line-up), policy, role and seat."""

    def __post_init__(self) -> None:
        base.check_group_keys(self.by)

    def estimate(self, samples: Sequence[Trajectory], totals_G: Array, state: State) -> tuple[Array, State]:
        """Total rewards less the means of the others in their groups."""
        return base.leave_one_out(totals_G, base.group_indices(samples, self.by)), state


@ADVANTAGES.register("rae")
@CREDIT_ASSIGNERS.register("rae")
class Rae(TotalRewardEstimator, frozen=True):
    """A_i = R_i - baseline[role], then baseline <- decay * baseline + (1 - decay) * batch mean.

    Liu et al. 2025 (SPIRAL), role-conditioned advantage estimation: roles differ in what they can win. The baseline is
    updated after it was used, so that it does not depend on the samples it judges. The state holds one baseline per
    ``game/role``, or ``episode type/role``, 0 at first; roles not in the batch keep theirs.
    """

    decay: Share = 0.95
    """Weight of the old baseline."""

    def estimate(self, samples: Sequence[Trajectory], totals_G: Array, state: State) -> tuple[Array, State]:
        """Total rewards less the running means of their roles, which are the state."""
        return base.subtract_running_mean([f"{s.game}/{s.role}" for s in samples], totals_G, state, self.decay)
