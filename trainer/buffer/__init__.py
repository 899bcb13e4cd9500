"""Trajectories that wait to be trained on. Here are the strategies that draw a batch of them, and drawn batches.

- ``buffer``  the trajectories: bounded, filled in the order of the stream, emptied by recorded steps only
- ``groups``  trajectories that wait for the others of their group, and for how long

To add a strategy, write one file with ``@register("name")``; the contract tests find it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random
from statistics import fmean
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import msgspec

from schemas.events import DroppedTrajectories, PartialTrajectory
from schemas.numbers import NonNegativeFloat, PositiveFloat, Ranges, to_ranges
from schemas.plugins import PluginStruct, Registry
from schemas.trajectories import ModelCall, Trajectory


class Unit(NamedTuple):
    """The unit of drawing: a trajectory, or one of its steps at step level."""

    sequence: int
    """Sequence in the stream ``EXPERIENCE``: the order of arrival."""
    step: int
    """Index in the trajectory; -1 for all of it."""
    game: str
    role: str
    lag: int
    """Policy versions since the trajectory's oldest step, or since this step."""
    score: float


class Strategy(Protocol):
    """The order in which units are drawn."""

    def __call__(self, units: Sequence[Unit], rng: Random) -> list[Unit]:
        """Order all units for drawing; given by sequence and step. Pure in its arguments.

        ``rng`` is a fresh one for every batch, so that a restarted trainer draws the same.
        """


STRATEGIES: Registry[Strategy] = Registry("trainer.buffer.strategy", "trainer.buffer")
register = STRATEGIES.register


def select_units(
    order: Sequence[Unit], count: int, shares: dict[str, float], bundles: Mapping[int, str] = MappingProxyType({})
) -> list[Unit]:
    """The first ``count`` units, or all where there are fewer; by sequence and step.

    A bundle, named by sequence, is taken whole, where its first unit stands. One for which there is not room enough is
    passed over, so that there may be fewer than ``count``; one of more than ``count`` is taken, and alone, when it is
    the first. ``shares`` are of the batch, by game; others have what these leave. What a game has not enough of goes to
    the others, in their order.
    """
    whole: dict[object, list[Unit]] = {}
    for unit in order:
        whole.setdefault(bundles.get(unit.sequence, unit), []).append(unit)
    selected: list[Unit] = []
    for bundle in _prefer_within_shares(list(whole.values()), count, shares):
        if len(selected) + len(bundle) <= count or not selected:
            selected += bundle
    return sorted(selected)


def _prefer_within_shares(order: list[list[Unit]], count: int, shares: dict[str, float]) -> list[list[Unit]]:
    """Move the bundles that fit their game's share of the batch to the front."""
    capacity = {game: int(count * share) for game, share in shares.items()}
    remaining = count - sum(capacity.values())
    fitting: list[list[Unit]] = []
    passed: list[list[Unit]] = []
    for bundle in order if shares else []:
        game = bundle[0].game
        fits = len(bundle) <= capacity.get(game, remaining)
        (fitting if fits else passed).append(bundle)
        if fits and game in capacity:
            capacity[game] -= len(bundle)
        elif fits:
            remaining -= len(bundle)
    return fitting + passed if shares else order


DROP_REASONS = ("stale", "filtered", "voided", "refused", "given_up", "late", "copy", "failed")
UNCOUNTED_REASONS = ("copy", "failed")
"""Reasons of messages that are not trajectories of their own."""


class BatchItem(NamedTuple):
    """A trajectory of a batch."""

    sequence: int
    trajectory: Trajectory
    steps: list[int]
    """Indices of the steps to train on."""
    left: int
    """Steps that still wait to be trained on."""
    begun: bool = False
    """Whether an earlier batch trained on other steps of it."""

    @property
    def trains_all_steps(self) -> bool:
        """Whether all steps with a choice are trained on now."""
        return len(self.steps) == len(trainable_steps(self.trajectory))

    @property
    def trainable_trajectory(self) -> Trajectory:
        """The trajectory, with the choices of its other steps removed.

        The steps themselves stay, because credit flows through them: rewards and advantages are those of the whole
        trajectory, whichever of its steps are trained on now.
        """
        if self.trains_all_steps:
            return self.trajectory
        trained = set(self.steps)
        steps = [step if at in trained else without_choices(step) for at, step in enumerate(self.trajectory.steps)]
        return msgspec.structs.replace(self.trajectory, steps=steps, counted=self.begun)


def trainable_steps(trajectory: Trajectory) -> list[int]:
    """Indices of the steps with a choice: a token that was sampled rather than forced."""
    return [at for at, step in enumerate(trajectory.steps) if step.branches]


def without_choices(step: ModelCall) -> ModelCall:
    """Copy a step without its choices, so that nothing is trained on."""
    return msgspec.structs.replace(step, branches=[], logprobs=[], allowed=[])


class DroppedItem(NamedTuple):
    """A trajectory that left the buffer without being fully trained on."""

    sequence: int
    match_id: str
    reason: str
    seat: int = -1
    """Seat in the match; -1 where the message does not say."""


class BatchAccounting(msgspec.Struct, frozen=True):
    """Accounting of a step: the fields of ``GradientStepTaken`` of the same names."""

    matches: list[str]
    seats: list[int]
    accepted: int
    trained: Ranges
    dropped: list[DroppedTrajectories]
    parts: list[PartialTrajectory]

    def dropped_count(self, reason: str) -> int:
        """Number of trajectories that left for a reason."""
        return sum(len(group.matches) for group in self.dropped if group.reason == reason)


def make_accounting(batch: Sequence[BatchItem], dropped: Sequence[DroppedItem]) -> BatchAccounting:
    """Account for trajectories that were trained on (``batch``, by sequence) and for the others that left."""
    done = [item for item in batch if not item.left]
    return BatchAccounting(
        matches=[item.trajectory.match_id for item in batch],
        seats=[item.trajectory.seat for item in batch],
        accepted=len(done),
        trained=to_ranges(item.sequence for item in done),
        dropped=[
            DroppedTrajectories(
                reason=reason,
                sequences=to_ranges(item.sequence for item in items),
                matches=[item.match_id for item in items],
                seats=[item.seat for item in items],
            )
            for reason in DROP_REASONS
            if (items := sorted(item for item in dropped if item.reason == reason))
        ],
        parts=[
            PartialTrajectory(
                item.sequence, item.trajectory.match_id, to_ranges(item.steps), item.left, item.trajectory.seat
            )
            for item in batch
            if not item.trains_all_steps
        ],
    )


@register("oldest")
class Oldest(PluginStruct, frozen=True):
    """Oldest first, in the order of the stream."""

    def __call__(self, units: Sequence[Unit], rng: Random) -> list[Unit]:
        """Keep the order."""
        return list(units)


@register("uniform")
class Uniform(PluginStruct, frozen=True):
    """A random order: all that waits has the same probability, without replacement.

    It breaks up matches that were played side by side, which share a version and often opponents; that needs more to
    wait than a batch takes (``trainer.buffer.batch_delay`` above 1).
    """

    def __call__(self, units: Sequence[Unit], rng: Random) -> list[Unit]:
        """Shuffle the units."""
        return rng.sample(units, len(units))


@register("prioritised")
class Prioritised(PluginStruct, frozen=True):
    """A random order in which units with a larger expected learning signal tend to come first.

    Each unit's turn is ``u ** (1 / weight)`` with a uniform ``u``, the highest first: weighted sampling without
    replacement (Efraimidis and Spirakis 2006, "Weighted random sampling with a reservoir", algorithm A). Weights are
    ``p ** alpha`` as in prioritised experience replay (Schaul et al. 2016, equation 1). Here nothing is replayed: all
    that waits is trained on sooner or later unless it grows too old, so priorities change when, not how often, and
    there are no importance weights to undo them.
    """

    by: Literal["surprise", "freshness"] = "surprise"
    """Priority. ``surprise``: distance of the score from the mean of waiting units of the same game and role, a
    stand-in for the size of the advantage, which is known only within a batch. ``freshness``: newer versions first."""
    alpha: NonNegativeFloat = 0.6
    """Exponent of the priorities; 0 is uniform."""
    epsilon: PositiveFloat = 0.05
    """Constant added to priorities, relative to the largest, so that no unit starves."""

    def __call__(self, units: Sequence[Unit], rng: Random) -> list[Unit]:
        """Draw without replacement by weight."""
        weights = self._surprises(units) if self.by == "surprise" else [1 / (1 + max(u.lag, 0)) for u in units]
        turns = [(rng.random() ** (weight**-self.alpha), unit) for weight, unit in zip(weights, units, strict=True)]
        return [unit for _, unit in sorted(turns, key=lambda turn: (-turn[0], turn[1]))]

    def _surprises(self, units: Sequence[Unit]) -> list[float]:
        scores: dict[tuple[str, str], list[float]] = defaultdict(list)
        for unit in units:
            scores[unit.game, unit.role].append(unit.score)
        means = {key: fmean(of) for key, of in scores.items()}
        gaps = [abs(unit.score - means[unit.game, unit.role]) for unit in units]
        largest = max(gaps, default=0.0)
        return [(gap / largest if largest > 0 else 0.0) + self.epsilon for gap in gaps]
