"""Batches as Parquet files for inspection: ``SELECT * FROM 'batches/*.parquet'`` in DuckDB."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from schemas.config import TrainerConfig
from schemas.errors import translate_missing_package
from trainer.buffer import BatchItem
from trainer.learner import Learner
from trainer.multi_agent_credit import credit_units, merge_units
from trainer.rewards import REWARDS


def write_batch(folder: Path, policy: str, learner: Learner, batch: Sequence[BatchItem], config: TrainerConfig) -> Path:
    """Write the batch that a learner is about to train on, a row per step, and delete the oldest files.

    ``reward`` is the reward before transforms; ``advantage`` is what the learner will use, empty where it uses none.
    Steps of an episode's member have its episode type, role, group and reward.

    Args:
        folder: made if need be.
        policy: whose batch; part of the file's name, with the number of the step.
        learner: before the step; it is not changed.
        batch: the batch.
        config: of the trainer.

    Returns:
        The file.

    Raises:
        OSError: it cannot be written.
        MissingPackageError: pyarrow is not installed.
    """
    # Imported here: only dumps need Arrow.
    with translate_missing_package():
        import pyarrow as pa
        import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{policy}-{learner.steps + 1:08d}.parquet"
    draft = path.with_suffix(".part")
    try:
        pq.write_table(pa.Table.from_pylist(list(_batch_rows(learner, batch, config))), draft, compression="zstd")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    for old in sorted(folder.glob(f"{policy}-????????.parquet"))[: -config.dump_files]:
        old.unlink(missing_ok=True)
    return path


def _batch_rows(learner: Learner, batch: Sequence[BatchItem], config: TrainerConfig) -> Iterator[dict[str, Any]]:
    credited = learner.assign_credit([one.trainable_trajectory for one in batch])
    advantages = {r.match_id: a_S for r, a_S in zip(credited.rollouts, credited.advantages, strict=True)}
    reward = REWARDS.build(config.reward)
    for one in batch:
        rollout, advantage_S = one.rollout, advantages.get(one.rollout.match_id)
        parts = credit_units([rollout])
        (rewards_S,) = merge_units(parts, [reward(part.rollout) for part in parts], [rollout])
        whose = {at: part.rollout for part in parts for at in part.steps}
        for at in one.steps:
            step, by = rollout.steps[at], whose.get(at, rollout)
            yield {
                "step": learner.steps + 1,
                "sequence": one.sequence,
                "match_id": rollout.match_id,
                "game": by.game,
                "role": by.role,
                "group": by.group,
                "score": by.score,
                "index": at,
                "version": step.version,
                "clock": step.clock,
                "reward": float(rewards_S[at]),
                "advantage": None if advantage_S is None else float(advantage_S[at]),
                "prompt_ids": step.prompt_ids,
                "completion_ids": step.completion_ids,
                "branches": step.branches,
                "logprobs": step.logprobs,
                "temperature": step.temperature,
            }
