"""Trajectories of trees of episodes, split by member: the units that rewards, transforms and estimators compare.

A member becomes a trajectory of its own (its episode type as game, its role, its group, its reward as score), so that
every plugin treats it like a seat of a match. The results are then merged back to where its steps were.

Shape suffix: S step of a rollout.
"""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.trajectories import RoleSegment, Trajectory
from trainer.buffer import without_choices

Array = NDArray[np.float64]


class CreditUnit(NamedTuple):
    """The unit of comparison: a whole trajectory, or one member of it."""

    at: int
    """Index of its trajectory in the batch."""
    rollout: Trajectory
    """As plugins see it."""
    steps: Sequence[int]
    """Indices of its steps in its trajectory; fewer than ``rollout.steps`` only for a member without a model call."""


def credit_units(rollouts: Sequence[Trajectory]) -> list[CreditUnit]:
    """The members of every trajectory, in order; a trajectory without members as it is."""
    return [share for at, rollout in enumerate(rollouts) for share in _trajectory_units(at, rollout)]


def _trajectory_units(at: int, rollout: Trajectory) -> list[CreditUnit]:
    if not rollout.members:
        return [CreditUnit(at, rollout, range(len(rollout.steps)))]
    return [CreditUnit(at, _member_trajectory(rollout, member), member.steps) for member in rollout.members]


def _member_trajectory(rollout: Trajectory, member: RoleSegment) -> Trajectory:
    # A role that was rewarded without a model call still counts in its group; nothing of it is trained on.
    steps = [rollout.steps[place] for place in member.steps] or [
        msgspec.structs.replace(without_choices(rollout.steps[0]), completion_ids=[])
    ]
    return msgspec.structs.replace(
        rollout,
        game=member.episode_type,
        role=member.role,
        group=member.group,
        score=member.reward,
        scores=[],
        members=[],
        steps=steps,
    )


def merge_units(of: Sequence[CreditUnit], values: Sequence[Array], rollouts: Sequence[Trajectory]) -> list[Array]:
    """Merge the values of units to [S] per trajectory; 0 for a step that no member has.

    Args:
        of: from ``credit_units`` of the trajectories.
        values: [steps] of each unit.
        rollouts: the batch.
    """
    whole = [np.zeros(len(rollout.steps)) for rollout in rollouts]
    for share, values_S in zip(of, values, strict=True):
        whole[share.at][list(share.steps)] = values_S[: len(share.steps)]
    return whole
