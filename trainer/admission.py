"""Validation and staleness of trajectories: pure functions, so that every rejection has a reason.

An invalid trajectory is rejected alone; the rest of the batch is trained on.
"""

import math
from itertools import pairwise

from schemas.trajectories import ModelCall, Trajectory


def is_stale(
    trajectory: Trajectory, current_version: int, max_lag: int, first_version: int = 0, judged_by: str = "oldest"
) -> bool:
    """Whether a valid trajectory is more than ``max_lag`` versions behind the one that the next step starts from.

    Judged by its oldest step, a game that lasts longer than ``max_lag`` steps of training is never trained on; by its
    mean or newest step it is, and what is too far off the policy is left to the loss's bound on the ratio, or to
    ``fresh_step_indices``. Trajectories from before ``first_version``, when the policy was reset, are another model's.
    """
    versions = [step.version for step in trajectory.steps]
    if min(versions) < first_version:
        return True
    if judged_by == "mean":
        return current_version - sum(versions) / len(versions) > max_lag
    return current_version - (max(versions) if judged_by == "newest" else min(versions)) > max_lag


def fresh_step_indices(trajectory: Trajectory, current_version: int, max_lag: int) -> list[int]:
    """Indices of the steps that are not stale, each judged by its own version."""
    return [at for at, step in enumerate(trajectory.steps) if current_version - step.version <= max_lag]


def rejection_reason(
    trajectory: Trajectory, vocab_size: int | None = None, max_positions: int | None = None
) -> str | None:
    """Reason for which a trajectory cannot be trained on; None when it can. A bound that is None is not checked."""
    if not trajectory.steps:
        return "no steps"
    if not math.isfinite(trajectory.score) or not math.isfinite(trajectory.final_progress):
        return f"score {trajectory.score} or final progress {trajectory.final_progress} is not a finite number"
    if (reason := _check_members(trajectory)) is not None:
        return reason
    for steps in [member.steps for member in trajectory.members] or [list(range(len(trajectory.steps)))]:
        if any(trajectory.steps[later].clock < trajectory.steps[earlier].clock for earlier, later in pairwise(steps)):
            return "clocks of the steps decrease"
    for index, step in enumerate(trajectory.steps):
        if (reason := _check_step(step, vocab_size, max_positions)) is not None:
            return f"step {index}: {reason}"
    return None


def _check_members(trajectory: Trajectory) -> str | None:
    taken: set[int] = set()
    for at, member in enumerate(trajectory.members):
        where = f"member {at} ({member.role} in {member.id})"
        if not math.isfinite(member.reward):
            return f"{where}: reward {member.reward} is not a finite number"
        if any(later <= earlier for earlier, later in pairwise([-1, *member.steps, len(trajectory.steps)])):
            return f"{where}: steps {member.steps} do not ascend within the trajectory's {len(trajectory.steps)}"
        if twice := taken.intersection(member.steps):
            return f"{where}: step {min(twice)} has another member"
        taken.update(member.steps)
    return None


def _check_step(step: ModelCall, vocab_size: int | None, max_positions: int | None) -> str | None:
    counts = [len(step.branches), len(step.logprobs), len(step.allowed)]
    length = len(step.prompt_ids) + len(step.completion_ids)
    if len(set(counts)) > 1:
        return f"branches, logprobs and allowed have different lengths: {', '.join(map(str, counts))}"
    # A step that is not trained on now has lost its choices; others are still compared with its credit.
    fits = not step.branches or len(step.credits) == len(step.branches)
    if step.credits and not (fits and all(map(math.isfinite, step.credits))):
        return f"credits {step.credits} are not a finite number for each of {len(step.branches)} branches"
    if not step.prompt_ids:
        return "the prompt is empty"
    if max_positions is not None and length > max_positions:
        return f"{length} tokens, the model has {max_positions} positions"
    if not math.isfinite(step.progress) or not (math.isfinite(step.temperature) and step.temperature > 0):
        return f"progress {step.progress} or temperature {step.temperature} is not usable"
    lists = [tokens for tokens in (step.prompt_ids, step.completion_ids, *step.allowed) if tokens]
    lowest, highest = min(map(min, lists)), max(map(max, lists))
    if lowest < 0 or (vocab_size is not None and highest >= vocab_size):
        return f"token ids from {lowest} to {highest}, the model has {vocab_size}"
    return _check_choices(step)


def _check_choices(step: ModelCall) -> str | None:
    size, last = len(step.completion_ids), -1
    for at, logprob, allowed in zip(step.branches, step.logprobs, step.allowed, strict=True):
        if not last < at < size:
            return f"branch position {at} is out of order or beyond the completion's {size} tokens"
        if not (math.isfinite(logprob) and logprob <= 1e-4):
            return f"log-probability {logprob} at position {at}"
        if allowed and (allowed.count(step.completion_ids[at]) != 1 or len(set(allowed)) != len(allowed)):
            return f"sampled token {step.completion_ids[at]} is not exactly once among the allowed at {at}"
        last = at
    return None
