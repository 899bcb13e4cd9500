"""Training records and trajectories from trees of episodes; excluded model calls are counted by reason."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from schemas import trajectories
from schemas.batches import BatchCounts, StepKey, TrainingBatch, TrainingRecord, mean_rewards
from schemas.episodes import EpisodeRequest, GenerateResult, Rollout, Step
from schemas.errors import EpisodeError
from schemas.trajectories import RoleSegment


def build_batch(results: Sequence[GenerateResult], weights: Mapping[StepKey, float] | None) -> TrainingBatch:
    """The trainable model calls of trees with their credit applied, children included.

    ``weights`` are of the steps with credit; None includes all, with their advantages.
    """
    rollouts = [rollout for result in results for rollout in result.all_rollouts()]
    counts: Counter[str] = Counter(
        episodes=len(rollouts),
        failed=sum(bool(rollout.failure) for rollout in rollouts),
        untrainable=sum(not rollout.is_trainable for rollout in rollouts),
    )
    records = []
    for rollout in rollouts:
        for at, step in enumerate(rollout.steps):
            if reason := exclusion_reason(rollout, at, weights):
                counts[reason] += 1
                continue
            assert step.tokens is not None
            record = TrainingRecord(
                role_id=step.role_id,
                rollout_id=rollout.id,
                step_index=at,
                episode_type=rollout.episode_type,
                group=rollout.comparison_group(step.role_id),
                step=step.tokens,
                reward=step.reward,
                advantage=step.advantage,
                meta=rollout.meta | step.tokens.info,
            )
            records.append(record)
    counts["records"] = len(records)
    return TrainingBatch(
        records=records,
        counts=BatchCounts(**counts),
        rewards=mean_rewards(results),
        failures={rollout.id: rollout.failure for rollout in rollouts if rollout.failure},
    )


def exclusion_reason(rollout: Rollout, at: int, weights: Mapping[StepKey, float] | None = None) -> str:
    """The field of ``BatchCounts`` that counts an excluded step; empty for a step that is trained on."""
    step = rollout.steps[at]
    if not rollout.is_trainable:
        return "of_untrainable"
    if rollout.failure:
        return "of_failed"
    if step.role_id not in rollout.rewards:
        return "unscored"
    if step.tokens is None:
        return "without_tokens"
    return "" if weights is None or (rollout.id, at) in weights else "uncredited"


_MAX_TEXT_LENGTH = 300


def format_batch(results: Sequence[GenerateResult], batch: TrainingBatch, num_examples: int = 2) -> str:
    """A summary of a batch of these trees, with examples of its model calls from as many groups as possible.

    A record that differs from its step, or occurs twice, is an ``EpisodeError``.
    """
    steps = {
        (rollout.id, at): step
        for result in results
        for rollout in result.all_rollouts()
        for at, step in enumerate(rollout.steps)
    }
    _check_records(batch, steps)
    counts = ", ".join(f"{name} {getattr(batch.counts, name)}" for name in batch.counts.__struct_fields__)
    lines = [f"step {batch.step}, policy version {batch.policy_version}: {counts}"]
    lines += [f"  {name}: mean reward {value:+.3f}" for name, value in batch.rewards.items()]
    lines += [f"  failed {id}: {reason}" for id, reason in batch.failures.items()]
    firsts = {record.group: record for record in reversed(batch.records)}
    ordered = sorted(firsts.values(), key=_key_of)
    chosen = set(map(_key_of, ordered))
    others = (record for record in batch.records if _key_of(record) not in chosen)
    for record in [*ordered, *others][:num_examples]:
        step, tokens = steps[_key_of(record)], record.step
        lines.append(
            f"── {record.role_id} in {record.rollout_id}, step {record.step_index}: reward {record.reward:+.3f}, "
            f"advantage {record.advantage:+.3f}, {len(tokens.prompt_ids)} + {len(tokens.completion_ids)} tokens, "
            f"{sum(record.action_mask)} chosen, version {tokens.version}"
        )
        lines += [f"   {message.role}: {_shorten(message.content)}" for message in [*step.prompt, *step.completion]]
    return "\n".join(lines)


def _key_of(record: TrainingRecord) -> StepKey:
    return record.rollout_id, record.step_index


def _check_records(batch: TrainingBatch, steps: Mapping[StepKey, Step]) -> None:
    seen: set[StepKey] = set()
    for record in batch.records:
        key = _key_of(record)
        step = steps.get(key)
        where = f"record of {record.rollout_id}, step {record.step_index}"
        if key in seen:
            raise EpisodeError(f"{where}: it is in the batch twice")
        if step is None or step.tokens != record.step or step.role_id != record.role_id:
            raise EpisodeError(f"{where}: it is not what that step says")
        if sum(record.action_mask) != len(record.logprobs):
            raise EpisodeError(f"{where}: {len(record.logprobs)} log-probabilities, {sum(record.action_mask)} actions")
        seen.add(key)


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    half = _MAX_TEXT_LENGTH // 2
    return line if len(line) <= _MAX_TEXT_LENGTH else f"{line[:half]} … {line[-half:]}"


UNTRAINED_PREFIX = "left_"
"""Prefix of the metrics that count a seat's excluded model calls by reason."""


class TrainedSeat(NamedTuple):
    """The trained seat and its result."""

    match_id: str
    game: str
    policy: str
    """Name of the policy, without a version."""
    number: int
    name: str
    roles: Collection[str]
    """Ids of the roles that its agent played."""
    scores: tuple[float, ...]
    """Scores of every seat."""
    rank: int


class TrajectoryExtract(NamedTuple):
    """The trainable part of an episode."""

    trajectory: trajectories.Trajectory | None
    """None if there is nothing to train on."""
    left_out: dict[str, int]
    """Counts of the seat's excluded model calls, by the fields of ``BatchCounts``; zeros are omitted."""


def to_trajectory(result: GenerateResult, seat: TrainedSeat) -> TrajectoryExtract:
    """The trainable model calls of a seat in a whole tree, with the role segments to credit for them.

    A call is excluded if its episode failed or only informs another, if its role was not scored, or if its tokens are
    unknown, as in ``build_batch``. Segments are in tree order, those of one episode by role; a scored role has one even
    without trainable calls, since the other members of its group are compared with it.

    Calls of other seats are neither included nor counted.
    """
    steps: list[trajectories.ModelCall] = []
    members: list[RoleSegment] = []
    left: Counter[str] = Counter()
    for rollout in result.all_rollouts():
        calls_by_role: dict[str, list[trajectories.ModelCall]] = defaultdict(list)
        for at, step in enumerate(rollout.steps):
            if step.role_id not in seat.roles:
                continue
            if reason := exclusion_reason(rollout, at):
                left[reason] += 1
                continue
            assert step.tokens is not None
            calls_by_role[step.role_id].append(step.tokens)
        if rollout.failure or not rollout.is_trainable:
            continue
        for role in sorted(role for role in rollout.rewards if role in seat.roles):
            calls = calls_by_role[role]
            members.append(
                RoleSegment(
                    id=rollout.id,
                    episode_type=rollout.episode_type,
                    role=role,
                    parent=rollout.parent,
                    group=rollout.comparison_group(role),
                    reward=rollout.rewards[role],
                    steps=list(range(len(steps), len(steps) + len(calls))),
                )
            )
            steps += calls
    top = result.rollout
    trajectory = _make_trajectory(seat, top.group, top.group_size, steps, members) if steps else None
    return TrajectoryExtract(trajectory, dict(sorted(left.items())))


def make_tombstone(request: EpisodeRequest, seat: TrainedSeat) -> trajectories.Trajectory | None:
    """The trajectory of an episode that failed or has no trainable calls, so that its group, if any, need not wait."""
    if request.group_size <= 1 or not request.group:
        return None
    return _make_trajectory(seat, request.group, request.group_size, [], [])


def _make_trajectory(
    seat: TrainedSeat, group: str, group_size: int, steps: list[trajectories.ModelCall], members: list[RoleSegment]
) -> trajectories.Trajectory:
    return trajectories.Trajectory(
        match_id=seat.match_id,
        game=seat.game,
        policy=seat.policy,
        seat=seat.number,
        role=seat.name,
        group=group,
        steps=steps,
        final_clock=max((step.clock for step in steps), default=-1) + 1,
        final_progress=0.0,
        score=seat.scores[seat.number],
        rank=seat.rank,
        scores=list(seat.scores),
        members=members,
        group_size=group_size,
    )


def count_model_calls(result: GenerateResult) -> int:
    """Number of model calls by roles in a whole tree."""
    return sum(len(rollout.steps) for rollout in result.all_rollouts())


def count_completion_tokens(result: GenerateResult) -> int:
    """Number of known completion tokens in a whole tree."""
    counts = (step.tokens for rollout in result.all_rollouts() for step in rollout.steps)
    return sum(len(tokens.completion_ids) for tokens in counts if tokens is not None)
