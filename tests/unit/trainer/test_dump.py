"""Batches on disk: what a learner is about to train on, as it will."""

from pathlib import Path

import msgspec
import numpy as np
import pyarrow.parquet as pq

from models import adapters
from models.decoder import Decoder
from models.model_config import DecoderShape
from schemas.config import BufferConfig, TrainerConfig
from schemas.decisions import WHOLE_TRAJECTORY
from schemas.events import DroppedTrajectories
from schemas.trajectories import ModelCall, Trajectory
from tests.builders import model_call, trajectory
from trainer.backends.native import NativeAdapter
from trainer.buffer import BatchItem
from trainer.buffer.buffer import TrajectoryBuffer
from trainer.credit import TrajectoryCredit
from trainer.learner import Learner
from trainer.learner_config import LearnerConfig
from trainer.report import StepReport, make_credit_rows, write_batch

SHAPE = DecoderShape(
    "qwen3", 30, 16, intermediate_size=24, layers=1, heads=2, kv_heads=1, head_dim=8, tied=True, qk_norm=True
)
CONFIG = TrainerConfig(dump="batches", dump_files=2)


def learner() -> Learner:
    decoder = Decoder.random(SHAPE, seed=0).requires_grad_(False)
    return Learner(
        NativeAdapter(decoder, adapters.create(SHAPE, adapters.LoraConfig(rank=4, alpha=8), seed=1)), CONFIG, 5
    )


def drawn(n: int, progress: float, steps: int = 2) -> BatchItem:
    made = [ModelCall([1, 2, 3 + n], [4 + at], [0], [-0.7], [[4 + at, 9]], at, at, float(at)) for at in range(steps)]
    rollout = Trajectory(f"m-{n}", "nim", "main", 0, "first", "g", made, steps, progress, progress, 1)
    return BatchItem(10 + n, rollout, [0, 1], steps - 2)


def test_a_batch_is_written_as_it_is_trained_on(tmp_path: Path) -> None:
    batch, trained = [drawn(0, 5.0), drawn(1, 2.0, steps=3)], learner()
    rows = pq.read_table(write_batch(tmp_path / "batches", "main", trained, batch, CONFIG)).to_pylist()
    assert [(row["match_id"], row["index"], row["version"], row["sequence"]) for row in rows] == [
        ("m-0", 0, 0, 10),
        ("m-0", 1, 1, 10),
        ("m-1", 0, 0, 11),
        ("m-1", 1, 1, 11),
    ]
    assert (rows[3]["prompt_ids"], rows[3]["completion_ids"], rows[3]["logprobs"]) == ([1, 2, 4], [5], [-0.7])
    expected = np.concatenate(
        [a_S[:2] for a_S in trained.assign_credit([one.trainable_trajectory for one in batch]).advantages]
    )
    assert [row["advantage"] for row in rows] == expected.tolist()
    assert rows[0]["advantage"] > 0 > rows[2]["advantage"]
    assert trained.steps == 0


def test_seats_of_one_match_have_their_own_advantages(tmp_path: Path) -> None:
    first, second = drawn(0, 5.0, steps=3), drawn(1, 2.0)
    second = second._replace(trajectory=msgspec.structs.replace(second.trajectory, match_id="m-0", seat=1))
    first = first._replace(steps=[0, 1, 2], left=0)
    trained = learner()
    rows = pq.read_table(write_batch(tmp_path, "main", trained, [first, second], CONFIG)).to_pylist()
    expected = trained.assign_credit([first.trajectory, second.trajectory]).advantages
    assert [row["advantage"] for row in rows] == np.concatenate(expected).tolist()
    assert rows[0]["advantage"] > 0 > rows[3]["advantage"]


def outcomes(batch: list[BatchItem], report: StepReport, config: LearnerConfig) -> dict[tuple[str, int], str]:
    dropped = [
        DroppedTrajectories("stale", [[3, 3]], ["m-9"], [0]),
        DroppedTrajectories("copy", [[4, 4]], ["m-8"], [0]),
    ]
    rows = make_credit_rows("main", batch, report, dropped, 1.0, config)
    return {(row.match_id, row.call): row.outcome for row in rows}


def test_decisions_are_trained_on_only_where_a_step_learned_from_them() -> None:
    batch = [drawn(0, 5.0), drawn(1, 2.0, steps=3), drawn(2, 1.0)]
    cut = msgspec.structs.replace(batch[0].trajectory.steps[1], truncated=True)
    batch[0].trajectory.steps[1] = cut
    credits = [TrajectoryCredit(at, np.ones(3), np.ones(3)) for at in range(3)]
    report, masks = StepReport(1, credits=credits, filtered=[2]), LearnerConfig(mask_truncated=True)
    expected = {
        ("m-0", 0): "trained",
        ("m-0", 1): "trained",
        ("m-1", 0): "trained",
        ("m-1", 1): "trained",
        ("m-2", 0): "filtered",
        ("m-2", 1): "filtered",
        ("m-9", WHOLE_TRAJECTORY): "stale",
    }
    assert outcomes(batch, report, LearnerConfig()) == expected
    assert outcomes(batch, report, masks) == expected | {("m-0", 1): "masked"}
    skipped = {key: "skipped" if outcome == "trained" else outcome for key, outcome in expected.items()}
    assert outcomes(batch, msgspec.structs.replace(report, skipped="gradient norm is nan"), LearnerConfig()) == skipped
    # Prompts of three tokens leave no room for a reply.
    masked = {key: "masked" if key[1] >= 0 else outcome for key, outcome in expected.items()}
    assert outcomes(batch, report, LearnerConfig(max_train_len=3)) == masked


def test_decisions_that_became_too_old_while_they_waited_are_stale() -> None:
    config = TrainerConfig(rollouts_per_step=1, max_lag_steps=4, buffer=BufferConfig(drop_old_steps=True))
    buffer, calls = TrajectoryBuffer(config, 7), [model_call(version) for version in (0, 0, 9, 10)]
    calls[1] = msgspec.structs.replace(calls[1], branches=[], logprobs=[], allowed=[])
    buffer.add(1, trajectory("m-0", calls), [])
    buffer.drop_rejected(lambda trajectory: None, 10)
    batch = buffer.draw_batch(11, 10)
    report = StepReport(11, credits=[TrajectoryCredit(0, np.ones(4), np.ones(4))])
    rows = make_credit_rows("main", batch, report, buffer.settle_batch(batch, [], []).dropped, 1.0, LearnerConfig())
    # The second was forced.
    expected = {WHOLE_TRAJECTORY: "stale", 1: "trained", 2: "trained", 3: "trained"}
    assert {row.call: row.outcome for row in rows} == expected


def test_what_is_left_of_a_filtered_trajectory_is_filtered_with_it() -> None:
    config = TrainerConfig(rollouts_per_step=1, buffer=BufferConfig(level="step", steps_per_batch=1))
    buffer = TrajectoryBuffer(config, 7)
    buffer.add(1, trajectory("m-0", [model_call(), model_call()]), [])
    batch = buffer.draw_batch(1, 0)
    report = StepReport(1, credits=[TrajectoryCredit(0, np.zeros(2), np.zeros(2))], filtered=[0])
    rows = make_credit_rows("main", batch, report, buffer.settle_batch(batch, [0], []).dropped, 1.0, LearnerConfig())
    assert {row.call: row.outcome for row in rows} == {0: "filtered", WHOLE_TRAJECTORY: "filtered"}


def test_only_the_newest_files_are_kept(tmp_path: Path) -> None:
    other = tmp_path / "mine.parquet"
    other.write_bytes(b"")
    trained = learner()
    for step in range(4):
        trained.steps = step
        write_batch(tmp_path, "main", trained, [drawn(0, 5.0), drawn(1, 2.0)], CONFIG)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "main-00000003.parquet",
        "main-00000004.parquet",
        "mine.parquet",
    ]
