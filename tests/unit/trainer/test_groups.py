"""Rollouts that wait for the others of their group: what is drawn, what is given up, what a restart does to it."""

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from league.state.consumption import ExperiencePosition
from schemas.config import BufferConfig, GroupAssemblyConfig, Plugin, TrainerConfig
from schemas.events import MAX_CLOSED_GROUPS, BufferContents, GradientStepTaken
from schemas.numbers import expand_ranges, to_ranges
from schemas.trajectories import Trajectory
from tests.builders import model_call, trajectory
from trainer.admission import is_stale
from trainer.buffer import Unit, select_units
from trainer.buffer.buffer import BufferCapacity, TrajectoryBuffer
from trainer.buffer.groups import is_grouped


def rollout(n: int, group: str = "", size: int = 0, version: int = 0, failed: bool = False) -> Trajectory:
    steps = [] if failed else [model_call(version)] * 2
    fields = {"game": "debate", "role": "pro", "group": group, "score": float(n % 3), "group_size": size}
    return trajectory(f"m-{n}", steps, **fields)


def config(per_step: int = 4, max_lag: int = 100, least: int | None = None, **buffer: Any) -> TrainerConfig:
    rule = GroupAssemblyConfig(max_open=buffer.pop("max_open", 1_000), least=least)
    return TrainerConfig(
        rollouts_per_step=per_step, max_lag_steps=max_lag, buffer=BufferConfig(**buffer), gathering=rule
    )


class Trainer:
    """A trainer as far as a buffer sees one: it may forget all but what its steps say, and begin again."""

    def __init__(self, settings: TrainerConfig, stream: list[Trajectory], room: BufferCapacity | None = None) -> None:
        self.settings, self.stream, self.room = settings, stream, room
        self.steps: list[GradientStepTaken] = []
        self.metrics: list[dict[str, float]] = []
        self.consumed = ExperiencePosition()
        self.begin()

    def begin(self) -> None:
        self.buffer = TrajectoryBuffer(self.settings, 7, self.consumed.looked_at, self.consumed.gathered, self.room)
        self.rest = [(place, one) for place, one in enumerate(self.stream, 1) if not self.consumed.is_accounted(place)]

    def judge(self, one: Trajectory) -> str | None:
        return "stale" if is_stale(one, len(self.steps), self.settings.max_lag_steps) else None

    def is_short(self) -> bool:
        self.buffer.advance(len(self.steps))
        while self.buffer.is_ready:
            left = self.buffer.unsettled_count
            self.buffer.drop_rejected(self.judge, len(self.steps))
            if self.buffer.unsettled_count == left:
                return False
            self.buffer.advance(len(self.steps))
        return True

    def fill(self) -> bool:
        while self.is_short():
            if not self.rest:
                return False
            place, one = self.rest.pop(0)
            if not self.buffer.was_held(place) and not one.steps:
                self.buffer.drop(place, one.match_id, one.seat, "failed", one)
            elif not self.buffer.was_held(place) and (reason := self.judge(one)):
                self.buffer.drop(place, one.match_id, one.seat, reason, one)
            else:
                self.buffer.add(place, one, self.consumed.steps_of(place))
        return True

    def step(self) -> list[int]:
        number = len(self.steps) + 1
        drawn = self.buffer.draw_batch(number, number - 1)
        self.metrics.append(self.buffer.metrics(drawn, number - 1))
        found = self.buffer.settle_batch(drawn, [], [])
        first, last = self.buffer.examined_range
        taken = GradientStepTaken(
            policy="main",
            step=number,
            batch="",
            matches=found.matches,
            experience_from=first,
            experience_to=last,
            accepted=found.accepted,
            stale=found.dropped_count("stale"),
            refused=0,
            state="",
            floor=self.buffer.floor,
            trained=found.trained,
            dropped=found.dropped,
            parts=found.parts,
            gathered=self.buffer.contents,
        )
        self.buffer.start_next_step()
        self.consumed = self.consumed.advance(taken)
        self.steps.append(taken)
        return [one.sequence for one in drawn]

    def run(self, killed_at: set[int] | None = None) -> list[list[int]]:
        batches = []
        while self.fill():
            if len(batches) in (killed_at or ()):
                self.begin()
                self.fill()
            batches.append(self.step())
        return batches


def stream(seed: int, length: int = 120) -> list[Trajectory]:
    """Groups of two to five whose members come between each other, some failed, some never, some too often."""
    rng = Random(seed)
    asked = [(f"g-{n}", rng.randint(1, 5)) for n in range(60)]
    parts = [(n, group, size) for n, (group, size) in enumerate(asked) for _ in range(size) if rng.random() > 0.03]
    parts.sort(key=lambda part: part[0] + rng.random() * 4)
    made = []
    for at, (n, group, size) in enumerate(parts[:length]):
        made.append(rollout(at, group, size, version=n // 4, failed=size > 1 and rng.random() < 0.05))
    return made


KINDS: dict[str, dict[str, Any]] = {
    "oldest": {},
    "late": {"batch_delay": 2.0},
    "uniform": {"strategy": Plugin(name="uniform"), "batch_delay": 2.5},
    "prioritised": {"strategy": Plugin(name="prioritised"), "batch_delay": 2.0},
    "steps": {"level": "step", "steps_per_batch": 5, "strategy": Plugin(name="uniform"), "batch_delay": 1.5},
    "few open": {"max_open": 2},
    "least": {"max_open": 2, "least": 2},
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    killed=st.sets(st.integers(0, 20), max_size=6),
    room=st.sampled_from([None, BufferCapacity(14, 1_000), BufferCapacity(1_000, 14)]),
)
def test_a_killed_trainer_draws_the_same_groups_and_says_the_same_of_the_others(
    kind: str, seed: int, killed: set[int], room: BufferCapacity | None
) -> None:
    through, again = (Trainer(config(max_lag=3, **KINDS[kind]), stream(seed), room) for _ in range(2))
    assert again.run(killed) == through.run()
    assert again.steps == through.steps
    names = [name for name in (through.metrics or [{}])[-1] if name.startswith(("groups", "members"))]
    assert [[m[n] for n in names] for m in again.metrics] == [[m[n] for n in names] for m in through.metrics]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "steps"])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_rollout_leaves_once_and_groups_whole(kind: str, seed: int) -> None:
    arrivals = stream(seed)
    trainer = Trainer(config(max_lag=3, **KINDS[kind]), arrivals)
    batches = trainer.run()
    left = Counter(place for batch in batches for place in batch)
    for taken in trainer.steps:
        left.update(place for group in taken.dropped for place in expand_ranges(group.sequences))
    assert not left or max(left.values()) == 1
    looked = trainer.steps[-1].experience_to if trainer.steps else 0
    held = {place for place in range(1, looked + 1) if not trainer.consumed.is_accounted(place)}
    assert left.keys() | held == set(range(1, looked + 1))
    assert trainer.steps == [] or held == set(expand_ranges(_held(trainer.steps[-1].gathered)))
    trained_in: dict[str, set[int]] = {}
    for number, batch in enumerate(batches):
        for place in batch:
            if is_grouped(arrivals[place - 1]):
                trained_in.setdefault(arrivals[place - 1].group, set()).add(number)
    assert all(len(numbers) == 1 for numbers in trained_in.values())


def _held(gathered: BufferContents | None) -> list[list[int]]:
    return [] if gathered is None else [*gathered.waiting, *(r for group in gathered.open for r in group.sequences)]


def test_a_group_is_drawn_once_all_of_it_is_there() -> None:
    arrivals = [rollout(n, "ab"[n % 2], 4) for n in range(8)]
    trainer = Trainer(config(), arrivals)
    assert trainer.run() == [[1, 3, 5, 7], [2, 4, 6, 8]]
    assert [m["groups_complete"] for m in trainer.metrics] == [1.0, 1.0]
    assert trainer.metrics[0]["members_waiting"] == 3.0


def test_a_group_that_does_not_fit_waits_for_the_next_batch_and_one_that_is_too_large_goes_alone() -> None:
    arrivals = [rollout(n, f"g{n // 3}", 3) for n in range(6)]
    assert Trainer(config(per_step=4), [*arrivals, rollout(6), *arrivals[:0]]).run() == [[1, 2, 3], [4, 5, 6, 7]]
    assert Trainer(config(per_step=2), arrivals).run() == [[1, 2, 3], [4, 5, 6]]


def test_bundles_are_taken_whole_in_their_order_within_the_shares_of_their_games() -> None:
    units = [Unit(n, -1, game, "r", 0, 0.0) for n, game in enumerate("aaaabbcc")]
    bundles = {0: "x", 1: "x", 2: "y", 3: "y"}
    assert [u.sequence for u in select_units(units, 3, {}, bundles)] == [0, 1, 4]
    assert [u.sequence for u in select_units(units, 4, {"a": 0.5}, bundles)] == [0, 1, 4, 5]
    assert [u.sequence for u in select_units(units, 4, {"c": 0.5}, bundles)] == [0, 1, 6, 7]
    assert [u.sequence for u in select_units(units, 1, {}, bundles)] == [0, 1]


def test_what_failed_is_a_member_and_what_comes_then_is_late() -> None:
    arrivals = [rollout(0, "g", 3), rollout(1, "g", 3, failed=True), rollout(2, "g", 3), rollout(3, "g", 3)]
    trainer = Trainer(config(per_step=2), [*arrivals, rollout(4), rollout(5)])
    assert trainer.run() == [[1, 3], [5, 6]]
    assert [(d.reason, d.matches) for d in trainer.steps[0].dropped] == [("failed", ["m-1"])]
    assert [(d.reason, d.matches) for d in trainer.steps[1].dropped] == [("late", ["m-3"])]
    assert trainer.metrics[1]["members_late"] == 1.0


def test_a_group_is_given_up_when_the_policy_has_gone_on() -> None:
    arrivals = [rollout(0, "g", 3), rollout(1, "g", 3, version=1), *(rollout(n, version=9) for n in range(2, 20))]
    trainer = Trainer(config(per_step=4, max_lag=1), arrivals)
    trainer.run()
    assert [taken.dropped_count("given_up") for taken in trainer.steps] == [0, 0, 2, 0]
    assert trainer.steps[2].dropped[0].matches == ["m-0", "m-1"]
    assert [m["groups_given_up"] for m in trainer.metrics] == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("room", [BufferCapacity(6, 1_000), BufferCapacity(1_000, 6)])
def test_where_nobody_else_can_come_a_batch_is_what_waits_and_otherwise_the_oldest_group_as_it_is(
    room: BufferCapacity,
) -> None:
    # Six may be there before a step: play waits, so neither of the two groups can ever be completed.
    half = [rollout(n, "ab"[n % 2], 4) for n in range(6)]
    trainer = Trainer(config(per_step=4), half, room)
    assert trainer.run() == [[1, 3, 5]]
    assert trainer.metrics[0]["groups_handed_on"] == 1.0
    # With a complete group there, no other one is broken.
    full = [*(rollout(n, "a", 3) for n in range(3)), *(rollout(n, "b", 4) for n in range(3, 6)), rollout(6, "b", 4)]
    assert Trainer(config(per_step=4), full, room).run() == [[1, 2, 3], [4, 5, 6, 7]]
    assert Trainer(config(per_step=4), half).run() == []


def test_what_failed_leaves_play_its_room_but_not_its_place_in_the_stream() -> None:
    arrivals = [rollout(0, "a", 4), rollout(1, "a", 4, failed=True), rollout(2, "a", 4), rollout(3, "a", 4)]
    assert Trainer(config(per_step=3), arrivals, BufferCapacity(3, 1_000)).run() == [[1, 3, 4]]
    assert Trainer(config(per_step=3), arrivals, BufferCapacity(1_000, 3)).run() == [[1, 3]]


def test_a_stream_full_of_what_teaches_nothing_is_released_by_a_step_without_a_batch() -> None:
    arrivals = [*(rollout(n, "a", 9, failed=True) for n in range(6)), *(rollout(n, "b", 2) for n in range(6, 8))]
    trainer = Trainer(config(per_step=2), arrivals, BufferCapacity(1_000, 6))
    assert trainer.run() == [[], [7, 8]]
    assert [taken.dropped_count("failed") for taken in trainer.steps] == [6, 0]
    assert Trainer(config(per_step=2), arrivals, BufferCapacity(6, 1_000)).run() == [[7, 8]]


def test_a_buffer_without_groups_says_nothing_of_them() -> None:
    trainer = Trainer(config(), [rollout(n) for n in range(8)])
    trainer.run()
    assert [taken.gathered for taken in trainer.steps] == [None, None]
    assert not [name for m in trainer.metrics for name in m if name.startswith(("groups", "members"))]


def test_the_history_remembers_the_newest_groups_that_are_over() -> None:
    def taken(number: int, over: list[str]) -> GradientStepTaken:
        gathered = BufferContents(to_ranges([]), [], over)
        return GradientStepTaken("main", number, "", [], 1, 0, 0, 0, 0, "", gathered=gathered)

    consumed = ExperiencePosition()
    for number in range(3):
        consumed = consumed.advance(taken(number, [f"g-{number}-{n}" for n in range(400)]))
    assert consumed.gathered is not None
    assert len(consumed.gathered.over) == MAX_CLOSED_GROUPS
    assert (consumed.gathered.over[0], consumed.gathered.over[-1]) == ("g-0-200", "g-2-399")


def test_a_group_that_begins_with_a_failure_behind_what_the_stream_lost_is_as_old_as_the_policy() -> None:
    """A restarted trainer had taken it for one of version 0, and gave it up."""
    lost = BufferContents(waiting=[[1, 1]])
    buffer = TrajectoryBuffer(config(1, max_lag=4), 7, looked_at=1, gathered=lost)
    buffer.advance(50)
    failed, *others = (rollout(n, "g", 3, version=50, failed=n == 2) for n in (2, 3, 4))
    buffer.drop(2, failed.match_id, failed.seat, "failed", failed)
    for sequence, one in enumerate(others, 3):
        buffer.advance(50)
        buffer.add(sequence, one, ())
    assert sorted(item.sequence for item in buffer.draw_batch(51, 50)) == [3, 4]
