"""The trainer's buffer: what is drawn, what leaves, what a trainer that begins again draws."""

from collections import Counter
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from league.state.consumption import ExperiencePosition
from schemas.config import BufferConfig, LeagueConfig, Plugin, TrainerConfig, convert
from schemas.errors import ConfigError
from schemas.events import GradientStepTaken
from schemas.trajectories import ModelCall, Trajectory
from tests.builders import model_call, trajectory
from trainer.admission import fresh_step_indices, is_stale
from trainer.buffer import STRATEGIES, Unit, select_units
from trainer.buffer.buffer import TrajectoryBuffer


def step(version: int, sampled: bool = True) -> ModelCall:
    return model_call(version, branches=[0] * sampled, logprobs=[-0.5] * sampled, allowed=[[3, 4]] * sampled)


def rollout(n: int, *versions: int, game: str = "nim", score: float = 0.0) -> Trajectory:
    return trajectory(f"m-{n}", [step(version) for version in versions or (0,)], game=game, score=score)


def config(rollouts: int = 4, max_lag: int = 100, **buffer: object) -> TrainerConfig:
    made = convert(buffer, BufferConfig, "")
    return TrainerConfig(rollouts_per_step=rollouts, max_lag_steps=max_lag, buffer=made)


class Trainer:
    """A trainer as far as a buffer sees one: it may forget all but what its steps say, and begin again."""

    def __init__(self, settings: TrainerConfig, stream: list[Trajectory]) -> None:
        self.settings, self.stream = settings, stream
        self.steps: list[GradientStepTaken] = []
        self.consumed = ExperiencePosition()
        self.begin()

    def begin(self) -> None:
        self.buffer = TrajectoryBuffer(self.settings, 7, self.consumed.looked_at)
        self.rest = [(place, one) for place, one in enumerate(self.stream, 1) if not self.consumed.is_accounted(place)]

    def fill(self) -> bool:
        version = len(self.steps)

        def judge(one: Trajectory) -> str | None:
            return "stale" if is_stale(one, version, self.settings.max_lag_steps) else None

        while True:
            if self.buffer.is_ready:
                self.buffer.drop_rejected(judge, version)
            if self.buffer.is_ready:
                return True
            if not self.rest:
                return False
            place, one = self.rest.pop(0)
            if judge(one):
                self.buffer.drop(place, one.match_id, one.seat, "stale", one)
            else:
                self.buffer.add(place, one, self.consumed.steps_of(place))

    def step(self) -> list[tuple[int, list[int]]]:
        number = len(self.steps) + 1
        drawn = self.buffer.draw_batch(number, number - 1)
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
        )
        self.buffer.start_next_step()
        self.consumed = self.consumed.advance(taken)
        self.steps.append(taken)
        return [(one.sequence, one.steps) for one in drawn]

    def run(self, killed_at: set[int] | None = None) -> list[list[tuple[int, list[int]]]]:
        batches = []
        while self.fill():
            if len(batches) in (killed_at or ()):
                self.begin()
                self.fill()
            batches.append(self.step())
        return batches


STREAM = [rollout(n, *([n // 6] * (1 + n % 5)), score=float(n % 3)) for n in range(60)]
KINDS = {
    "oldest": {},
    "late": {"batch_delay": 2.0},
    "uniform": {"strategy": Plugin(name="uniform"), "batch_delay": 2.5},
    "prioritised": {"strategy": Plugin(name="prioritised"), "batch_delay": 2.0},
    "steps": {"level": "step", "steps_per_batch": 7, "strategy": Plugin(name="uniform"), "batch_delay": 1.5},
    "fresh steps": {"drop_old_steps": True, "batch_delay": 2.0},
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10, deadline=None)
@given(killed=st.sets(st.integers(0, 14), max_size=5))
def test_a_killed_trainer_draws_the_same_batches(kind: str, killed: set[int]) -> None:
    settings = config(max_lag=6, **{k: _plain(v) for k, v in KINDS[kind].items()})
    assert Trainer(settings, STREAM).run(killed) == Trainer(settings, STREAM).run()


def _plain(value: object) -> object:
    return {"name": value.name} if isinstance(value, Plugin) else value


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_of_every_rollout_leaves_once(kind: str) -> None:
    trainer = Trainer(config(max_lag=6, **{k: _plain(v) for k, v in KINDS[kind].items()}), STREAM)
    batches = trainer.run()
    trained = Counter((place, at) for batch in batches for place, steps in batch for at in steps)
    assert set(trained.values()) == {1}
    done = {place for s in trainer.steps for first, last in s.trained for place in range(first, last + 1)}
    stale = {place for s in trainer.steps for d in s.dropped for f, t in d.sequences for place in range(f, t + 1)}
    assert not done & stale
    looked = trainer.steps[-1].experience_to
    waiting = {place for place in range(1, looked + 1) if not trainer.consumed.is_accounted(place)}
    assert done | stale | waiting == set(range(1, looked + 1))
    assert sum(s.accepted + s.stale for s in trainer.steps) == looked - len(waiting)


def test_by_default_batches_are_taken_as_they_come() -> None:
    batches = Trainer(config(), STREAM).run()
    assert [[place for place, _ in batch] for batch in batches[:2]] == [[1, 2, 3, 4], [5, 6, 7, 8]]


def test_nothing_is_drawn_before_enough_wait() -> None:
    buffer = TrajectoryBuffer(config(batch_delay=1.5), 1)
    for n in range(5):
        buffer.add(n + 1, rollout(n), [])
        assert not buffer.is_ready
    buffer.add(6, rollout(5), [])
    assert buffer.is_ready
    assert [one.sequence for one in buffer.draw_batch(1, 0)] == [1, 2, 3, 4]


def test_uniform_draws_everything_equally_often() -> None:
    units = [Unit(n, -1, "nim", "r", 0, 0.0) for n in range(10)]
    first = Counter(STRATEGIES.build(Plugin(name="uniform"))(units, Random(s))[0].sequence for s in range(4000))
    assert all(330 < first[n] < 470 for n in range(10))


@pytest.mark.parametrize("by", ["surprise", "freshness"])
def test_priorities_give_shares_in_proportion_to_their_weights(by: str) -> None:
    # One is fresh and surprising, the other three are neither: (1 + 0.05) against 0.05 + 1/3, or 1 against 1/4.
    units = [Unit(0, -1, "nim", "r", 0, 4.0), *(Unit(n, -1, "nim", "r", 3, 0.0) for n in (1, 2, 3))]
    chosen = STRATEGIES.build(Plugin(name="prioritised", settings={"by": by, "alpha": 1.0}))
    share = sum(chosen(units, Random(s))[0].sequence == 0 for s in range(4000)) / 4000
    expected = 1.05 / (1.05 + 3 * (0.05 + 1 / 3)) if by == "surprise" else 1 / (1 + 3 / 4)
    assert share == pytest.approx(expected, abs=0.03)


def test_a_batch_holds_every_games_share_and_what_one_lacks_goes_to_the_others() -> None:
    units = [Unit(n, -1, game, "r", 0, 0.0) for n, game in enumerate("aaaaaaaabbcc")]
    assert Counter(u.game for u in select_units(units, 8, {"a": 0.5, "b": 0.25})) == {"a": 4, "b": 2, "c": 2}
    assert Counter(u.game for u in select_units(units, 8, {"b": 0.75})) == {"b": 2, "a": 6}
    assert Counter(u.game for u in select_units(units, 3, {})) == {"a": 3}


def test_a_part_of_a_rollout_keeps_the_whole_for_credit() -> None:
    buffer = TrajectoryBuffer(config(rollouts=1, level="step", steps_per_batch=2), 1)
    buffer.add(1, rollout(1, 0, 0, 0), [])
    (drawn,) = buffer.draw_batch(1, 0)
    assert (drawn.steps, drawn.left) == ([0, 1], 1)
    assert [bool(s.branches) for s in drawn.trainable_trajectory.steps] == [True, True, False]
    assert len(drawn.trainable_trajectory.steps) == 3
    found = buffer.settle_batch([drawn], [], [])
    assert (found.accepted, found.parts[0].left, len(buffer)) == (0, 1, 1)
    (rest,) = buffer.draw_batch(2, 1)
    assert [drawn.trainable_trajectory.counted, rest.trainable_trajectory.counted] == [False, True]
    again = TrajectoryBuffer(config(rollouts=1, level="step", steps_per_batch=2), 1)
    again.add(1, rollout(1, 0, 0, 0), [[0, 1]])
    assert again.draw_batch(2, 1)[0].trainable_trajectory.counted, "a restarted trainer knows it too"


def test_what_the_learner_left_out_is_named_by_reason() -> None:
    buffer = TrajectoryBuffer(config(), 1)
    for n in range(4):
        buffer.add(n + 1, rollout(n), [])
    found = buffer.settle_batch(buffer.draw_batch(1, 0), filtered=[0, 2], refused=[3])
    assert (found.matches, found.trained, found.accepted) == (["m-1"], [[2, 2]], 1)
    assert {d.reason: d.matches for d in found.dropped} == {"filtered": ["m-0", "m-2"], "refused": ["m-3"]}
    assert (len(buffer), buffer.floor) == (0, 4)


def test_seats_of_one_match_wait_and_leave_apart() -> None:
    buffer = TrajectoryBuffer(config(), 1)
    for n in range(4):
        buffer.add(n + 1, msgspec.structs.replace(rollout(n // 2), seat=n % 2), [])
    assert [buffer.is_waiting("m-0", seat) for seat in range(3)] == [True, True, False]
    found = buffer.settle_batch(buffer.draw_batch(1, 0), filtered=[0], refused=[3])
    assert (found.matches, found.seats, found.trained) == (["m-0", "m-1"], [1, 0], [[2, 3]])
    assert [(d.reason, d.matches, d.seats) for d in found.dropped] == [
        ("filtered", ["m-0"], [0]),
        ("refused", ["m-1"], [1]),
    ]


def test_a_long_game_is_judged_by_the_version_that_is_asked_for() -> None:
    long = rollout(1, 0, 1, 2, 3, 9)
    assert [is_stale(long, 9, 4, judged_by=by) for by in ("oldest", "mean", "newest")] == [True, True, False]
    assert not is_stale(long, 7, 4, judged_by="mean")
    assert is_stale(long, 9, 4, first_version=1, judged_by="newest")
    assert fresh_step_indices(long, 6, 4) == [2, 3, 4]


def test_old_steps_are_left_out_and_the_rest_is_trained_on() -> None:
    buffer = TrajectoryBuffer(config(rollouts=1, max_lag=4, drop_old_steps=True), 1)
    buffer.add(1, rollout(1, 0, 1, 5, 6), [])
    buffer.drop_rejected(lambda one: None, 6)
    (drawn,) = buffer.draw_batch(7, 6)
    assert drawn.steps == [2, 3]
    found = buffer.settle_batch([drawn], [], [])
    assert (found.trained, found.parts[0].steps, found.parts[0].left) == ([[1, 1]], [[2, 3]], 0)


def test_lengths_that_came_in_stand_beside_those_that_are_trained_on() -> None:
    buffer = TrajectoryBuffer(config(rollouts=1), 1)
    buffer.drop(1, "m-9", 0, "stale", rollout(9, *[0] * 9))
    buffer.add(2, rollout(1, 0, 1), [])
    numbers = buffer.metrics(buffer.draw_batch(1, 3), 3)
    assert (numbers["length_generated_mean"], numbers["length_trained_mean"]) == (5.5, 2.0)
    assert (numbers["length_generated_p90"], numbers["lag_max"], numbers["lag_mean"]) == (pytest.approx(8.3), 3, 2.5)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"level": "word"}, "level: 'word'; expected 'episode' or 'step'"),
        ({"level": "step"}, "steps_per_batch: expected at level 'step'"),
        ({"batch_delay": 0.5}, "batch_delay: 0.5; expected 1 or more"),
        ({"batch_delay": 2.5}, "expected at most rollout.ahead_steps, 2.0"),
        ({"shares": {"a": 0.7, "b": 0.7}}, "a sum of at most 1"),
        ({"capacity": 70}, "expected more than the 70 drawn from"),
        ({"staleness": "median"}, "expected 'mean', 'newest' or 'oldest'"),
    ],
)
def test_a_buffer_that_could_never_give_a_batch_is_refused(settings: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        convert({"trainer": {"buffer": settings}}, LeagueConfig, "")
