"""The protocol of an advantage estimator, the registry, and the formulas that estimators share.

Not in the package itself: two of the formulas have the names that estimators' modules had.

Shape suffixes: S step of a trajectory, G sample (a trajectory, or a role of an episode), U group.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import msgspec
import numpy as np
from numpy.typing import NDArray

from schemas.errors import ConfigError, format_choices
from schemas.numbers import PositiveFloat, PositiveInt
from schemas.plugins import Registry
from schemas.trajectories import Trajectory

Array = NDArray[np.float64]

State = Mapping[str, float]
"""State of an estimator between batches, by name: plain data that is saved with the learner."""


class Estimate(NamedTuple):
    """Advantages of a batch, and the state after it."""

    advantages: list[Array]
    """One array [S] per trajectory, in the batch's order."""
    state: State


class Advantage(Protocol):
    """Estimates how much better each step was than expected."""

    def __call__(self, trajectories: Sequence[Trajectory], rewards: Sequence[Array], state: State) -> Estimate:
        """Estimate the advantages of a batch; pure in its arguments.

        Every trajectory has at least one step, ``rewards`` are [S] for each, and ``state`` is what the last call
        returned, empty at first.
        """


class CriticConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value function: a separate adapter on the policy's base, and a linear head on the prompt's last token."""

    rank: PositiveInt = 8
    alpha: PositiveFloat = 16.0
    learning_rate: PositiveFloat = 1e-3
    """Constant: the critic has to keep up to the end."""
    epochs: PositiveInt = 1
    """Passes over a step's trajectories."""
    grad_clip: PositiveFloat = 1.0


class CriticEstimate(NamedTuple):
    """Advantages [S] per trajectory, and returns [S] that the critic learns."""

    advantages: list[Array]
    returns: list[Array]


@runtime_checkable
class UsesCritic(Protocol):
    """An advantage estimator with a learned critic."""

    @property
    def critic(self) -> CriticConfig:
        """Settings of the critic."""

    def estimate(self, rewards: Sequence[Array], values: Sequence[Array]) -> CriticEstimate:
        """Compute advantages and returns from rewards and the critic's values before each step, [S] per trajectory."""


ADVANTAGES: Registry[Advantage] = Registry("trainer.advantage", "trainer.advantages")
register = ADVANTAGES.register


def total_rewards(rewards: Sequence[Array]) -> Array:
    """Total reward [G] of each trajectory."""
    return np.array([rewards_S.sum() for rewards_S in rewards])


def spread_to_steps(values_G: Array, trajectories: Sequence[Trajectory]) -> list[Array]:
    """Give every step of a trajectory the trajectory's value."""
    return [np.full(len(r.steps), value) for value, r in zip(values_G, trajectories, strict=True)]


GROUP_KEYS = ("game", "group", "policy", "role", "seat")
"""Fields of a trajectory that groups can be formed by."""


def check_group_keys(by: Sequence[str]) -> None:
    """Raise ``ConfigError`` for no key, or an unknown one."""
    if not by or set(by) - set(GROUP_KEYS):
        raise ConfigError(f"by: {list(by)}; expected some of {format_choices(GROUP_KEYS)}")


def group_indices(trajectories: Sequence[Trajectory], by: Sequence[str]) -> NDArray[np.int64]:
    """Number [G] of each trajectory's group: those that agree in all fields of ``by``."""
    return key_indices([tuple(getattr(trajectory, field) for field in by) for trajectory in trajectories])


def key_indices(keys: Sequence[Hashable]) -> NDArray[np.int64]:
    """Number [G] of each key, in the order in which they first come."""
    index: dict[Hashable, int] = {}
    return np.array([index.setdefault(key, len(index)) for key in keys], dtype=np.int64)


def group_relative(
    returns_G: Array, group_G: NDArray[np.int64], normalize: bool = False, positive_only: bool = False
) -> Array:
    """A_i = R_i - mean(R of i's group) (Shao et al. 2024, section 4.1.2); a group of one gets 0.

    Groups are numbered from 0 without gaps. Options as in ``GroupRelative``.
    """
    counts_U = np.bincount(group_G)
    means_U = np.bincount(group_G, weights=returns_G) / counts_U
    advantages_G: Array = returns_G - means_U[group_G]
    if normalize:
        deviations_U = np.sqrt(np.bincount(group_G, weights=advantages_G**2) / counts_U)
        scales_U = np.divide(1.0, deviations_U, out=np.zeros_like(means_U), where=deviations_U > 1e-9)
        advantages_G = advantages_G * scales_U[group_G]
    return np.maximum(advantages_G, 0.0) if positive_only else advantages_G


def leave_one_out(returns_G: Array, group_G: NDArray[np.int64]) -> Array:
    """A_i = R_i - mean(R of the others in i's group) (Kool et al. 2019); a group of one gets 0."""
    counts_G = np.bincount(group_G)[group_G]
    others_G = np.bincount(group_G, weights=returns_G)[group_G] - returns_G
    return np.where(counts_G == 1, 0.0, returns_G - others_G / np.maximum(counts_G - 1, 1))


def subtract_running_mean(
    keys: Sequence[str], values_G: Array, state: Mapping[str, float], decay: float
) -> tuple[Array, dict[str, float]]:
    """Values less the running mean of their key, and the means after: decay * mean + (1 - decay) * batch mean.

    A mean is used before it is updated, so that it does not depend on its own samples (Liu et al. 2025, SPIRAL,
    role-conditioned advantage estimation). Means are 0 at first; keys that do not occur keep theirs.
    """
    after = dict(state)
    for key in sorted(set(keys)):
        mean = float(values_G[[other == key for other in keys]].mean())
        after[key] = decay * state.get(key, 0.0) + (1 - decay) * mean
    return values_G - np.array([state.get(key, 0.0) for key in keys]), after
