"""A rollout that was a tree of episodes is credited member by member, as the tree itself would be."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.training_records import TrainedSeat, build_batch, to_trajectory
from models.adapters import LoraConfig, create
from models.decoder import Decoder
from models.model_config import DecoderShape
from schemas.batches import apply_credit, scored_rollouts
from schemas.config import Plugin, TrainerConfig, TransformsConfig
from schemas.episodes import GenerateResult, Message, unconstrained_model_call
from schemas.episodes import Rollout as Episode
from schemas.episodes import Step as Call
from schemas.trajectories import ModelCall, RoleSegment, Trajectory
from trainer.admission import rejection_reason
from trainer.advantages.total_reward import CREDIT_ASSIGNERS
from trainer.backends.native import NativeAdapter
from trainer.buffer import BatchItem
from trainer.credit import AdvantagePipeline, AdvantageState, CreditedBatch, reward_uses_score
from trainer.learner import Learner

SHAPE = DecoderShape(
    "qwen3", 1000, 16, intermediate_size=24, layers=1, heads=2, kv_heads=1, head_dim=8, tied=True, qk_norm=True
)
ROLES = ("Proposer", "Solver", "Critic")
ALIKE = [
    ("grpo", {}, "group_relative", {}),
    ("grpo", {"normalize": True}, "group_relative", {"normalize": True}),
    ("grpo", {"positive_only": True}, "group_relative", {"positive_only": True}),
    ("leave_one_out", {}, "leave_one_out", {}),
    ("rae", {"decay": 0.75}, "rae", {"decay": 0.75}),
    ("constant", {"value": 0.5}, "constant", {"value": 0.5}),
    ("episodic", {}, "episodic", {}),
]


def tree(rng: Random, id: str, depth: int = 0, silent: bool = True) -> GenerateResult:
    """A random tree, in which some episodes failed, and some roles spoke without earning or earned without a word."""
    spoke = [rng.choice(ROLES) for _ in range(rng.randrange(4))]
    failed = rng.random() < 0.2
    rewards = (
        {}
        if failed
        else {role: rng.choice([-1.0, 0.0, 0.3, 1.0]) for role in (rng.sample(ROLES, 2) if silent else spoke[:2])}
    )
    calls = [
        Call(
            role,
            [Message("user", "?")],
            [Message("assistant", "!")],
            unconstrained_model_call([1, 2], [3], [-0.5]),
            rewards.get(role, 0.0),
        )
        for role in spoke
    ]
    episode = Episode(
        id,
        rng.choice(["propose", "solve"]),
        None,
        calls,
        rewards=rewards,
        parent=id.rpartition(".")[0],
        depth=depth,
        failure="why" if failed else "",
        group=rng.choice(["", "", "asked"]),
    )
    children = range(rng.randrange(4) if depth < 2 else 0)
    return GenerateResult(episode, [tree(rng, f"{id}.{n}", depth + 1, silent) for n in children])


def flat(result: GenerateResult) -> tuple[Trajectory | None, list[tuple[str, int]]]:
    """The tree as one rollout with members, and which call of which episode each of its steps was."""
    steps: list[ModelCall] = []
    keys: list[tuple[str, int]] = []
    members: list[RoleSegment] = []
    for episode, role in scored_rollouts([result]):
        mine = [at for at, call in enumerate(episode.steps) if call.role_id == role]
        places = list(range(len(steps), len(steps) + len(mine)))
        steps += [call.tokens for call in episode.steps if call.role_id == role and call.tokens is not None]
        keys += [(episode.id, at) for at in mine]
        group, kind, reward = episode.comparison_group(role), episode.episode_type, episode.rewards[role]
        members.append(RoleSegment(episode.id, kind, role, episode.parent, group, reward, places))
    top = result.rollout
    made = Trajectory(top.id, "arena", "main", 0, "seat", "", steps, 1, 0.0, 0.0, 1, scores=[0.0, 0.0], members=members)
    return (made if steps else None), keys


def trainer(
    name: str, filter_zero: bool = False, transforms: TransformsConfig | None = None, **of: Any
) -> AdvantagePipeline:
    config = TrainerConfig(
        reward=Plugin(name="outcome"),
        advantage=Plugin(name=name, settings=of),
        transforms=transforms or TransformsConfig(),
    )
    return AdvantagePipeline(config, SHAPE, filter_zero)


@pytest.mark.parametrize(("assigner", "theirs", "estimator", "ours"), ALIKE)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_members_get_the_credit_that_the_trees_get(
    assigner: str, theirs: dict[str, Any], estimator: str, ours: dict[str, Any], seed: int
) -> None:
    rng = Random(seed)
    # Whoever is not sent, because nothing was said in all of a tree, cannot be compared with: such a tree is left out.
    trees = [one for n in range(5) if flat(one := tree(rng, f"m-{n}"))[0] is not None]
    state = {"solve/Solver": 0.25, "propose/Critic": -1.0}
    expected = CREDIT_ASSIGNERS.build(Plugin(name=assigner, settings=theirs)).compute(trees, state)
    flats = [flat(one) for one in trees]
    found = trainer(estimator, **ours)([one for one, _ in flats if one is not None], AdvantageState(state))
    weights = {
        key: float(value)
        for (_, keys), values_S in zip(flats, found.advantages, strict=True)
        for key, value in zip(keys, values_S, strict=True)
    }
    assert found.refused == []
    assert weights == pytest.approx(expected.weights, abs=1e-12)
    assert found.memory.baselines == pytest.approx(expected.state, abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_harvested_in_a_league_is_credited_as_an_arena_does_by_itself(seed: int) -> None:
    rng = Random(seed)
    trees = [tree(rng, f"m-{n}", silent=False) for n in range(5)]
    weights = CREDIT_ASSIGNERS.build(Plugin(name="grpo")).compute(trees, {}).weights
    records = build_batch(apply_credit(trees, weights), weights).records
    seats = [TrainedSeat(one.rollout.id, "arena", "main", 0, "seat", ROLES, (0.0,), 1) for one in trees]
    rollouts = [found for one, seat in zip(trees, seats, strict=True) if (found := to_trajectory(one, seat).trajectory)]
    credited_now = trainer("group_relative")(rollouts, AdvantageState())
    found = {
        (member.id, member.role, nth): float(advantage_S[at])
        for one, advantage_S in zip(rollouts, credited_now.advantages, strict=True)
        for member in one.members
        for nth, at in enumerate(member.steps)
    }
    counted: Counter[tuple[str, str]] = Counter()
    expected = {}
    for record in records:
        expected[record.rollout_id, record.role_id, counted[record.rollout_id, record.role_id]] = record.advantage
        counted[record.rollout_id, record.role_id] += 1
    assert found == pytest.approx(expected, abs=1e-12)


def played(n: int, *members: tuple[str, float, list[int]], steps: int = 4) -> Trajectory:
    made = [ModelCall([1, 2], [3], [0], [-0.5], [[3, 4]], 0, at % 2, 0.0) for at in range(steps)]
    of = [RoleSegment(f"m-{n}", "talk", role, "", f"g|{role}", reward, places) for role, reward, places in members]
    return Trajectory(f"m-{n}", "debate", "main", 1, "con", "g", made, 1, 0.0, 9.0, 1, scores=[-9.0, 9.0], members=of)


BATCH = [played(0, ("A", 1.0, [0, 2]), ("B", 0.0, [1, 3])), played(1, ("A", 0.0, [0, 1]), ("B", 4.0, [2]))]


def test_a_role_is_compared_with_itself_and_the_seats_score_plays_no_part() -> None:
    found = trainer("group_relative")(BATCH, AdvantageState())
    assert [a_S.tolist() for a_S in found.advantages] == [[0.5, -2.0, 0.5, -2.0], [-0.5, -0.5, 2.0, 0.0]]
    assert found.reward_mean == pytest.approx(1.25)
    assert found.advantage_std == pytest.approx(np.concatenate(found.advantages).std())


def test_baselines_are_named_by_episode_type_and_role() -> None:
    memory = trainer("rae")(BATCH, AdvantageState()).memory
    assert memory.baselines == pytest.approx({"talk/A": 0.025, "talk/B": 0.1})
    assert trainer("rae")(BATCH, memory).memory.baselines == pytest.approx(
        {"talk/A": 0.95 * 0.025 + 0.025, "talk/B": 0.95 * 0.1 + 0.1}
    )


def test_a_trainer_that_begins_again_has_the_baselines_of_before(tmp_path: Path) -> None:
    def learner() -> Learner:
        decoder = Decoder.random(SHAPE, seed=0).requires_grad_(False)
        config = TrainerConfig(reward=Plugin(name="outcome"), advantage=Plugin(name="rae"))
        return Learner(NativeAdapter(decoder, create(SHAPE, LoraConfig(rank=2, alpha=4), seed=1)), config, 5)

    through, again = learner(), learner()
    through.step(BATCH)
    through.save_state(tmp_path / "state")
    again.load_state(tmp_path / "state")
    assert again.memory.baselines == pytest.approx({"talk/A": 0.025, "talk/B": 0.1})
    reports = [one.step(BATCH) for one in (through, again)]
    assert reports[0].advantage_std == reports[1].advantage_std
    assert through.memory == again.memory
    assert through.adapter.flat_P.tolist() == again.adapter.flat_P.tolist()


def test_transformations_act_on_what_members_earned() -> None:
    final = TransformsConfig(final=(Plugin(name="role_advantage"),))
    found = trainer("episodic", transforms=final)(BATCH, AdvantageState(transforms={"0.role_advantage/A": 0.5}))
    assert [a_S.tolist() for a_S in found.advantages] == [[0.5, 0.0, 0.5, 0.0], [-0.5, -0.5, 4.0, 0.0]]


def test_a_rollout_is_filtered_where_none_of_its_members_learns() -> None:
    dull = [played(n, ("A", 1.0, [0]), ("B", 2.0, [1])) for n in (2, 3)]
    found = trainer("group_relative", filter_zero=True)([dull[0], *BATCH[:0], dull[1]], AdvantageState())
    assert (found.trajectories, found.filtered) == ([], [0, 1])
    mixed = trainer("group_relative", filter_zero=True)([*dull, *BATCH], AdvantageState())
    assert mixed.trajectories == [*dull, *BATCH], "compared with others, they teach something"


def test_steps_left_for_later_do_not_change_the_credit_of_those_trained_on_now() -> None:
    drawn = BatchItem(1, BATCH[0], [1], 3)
    now = trainer("group_relative")([drawn.trainable_trajectory, BATCH[1]], AdvantageState())
    assert now.advantages[0].tolist() == trainer("group_relative")(BATCH, AdvantageState()).advantages[0].tolist()


@pytest.mark.parametrize("name", ["clock_leave_one_out", "gae", "step_reward"])
def test_other_estimators_take_each_member_for_a_rollout_of_its_own(name: str) -> None:
    """Bit for bit what they make of the members as separate rollouts."""
    apart = [
        msgspec.structs.replace(
            one,
            match_id=f"{one.match_id}/{m.role}",
            game=m.episode_type,
            role=m.role,
            group=m.group,
            score=m.reward,
            scores=[],
            members=[],
            steps=[one.steps[at] for at in m.steps],
        )
        for one in BATCH
        for m in one.members
    ]
    together, alone = (trainer(name)(batch, AdvantageState()) for batch in (BATCH, apart))
    pieces = [together.advantages[at // 2][BATCH[at // 2].members[at % 2].steps] for at in range(4)]
    assert [piece.tolist() for piece in pieces] == [a_S.tolist() for a_S in alone.advantages]


def test_a_seat_of_a_game_is_credited_as_before_beside_episodes() -> None:
    games = [
        msgspec.structs.replace(one, members=[], scores=[], score=one.members[0].reward, steps=one.steps[::2])
        for one in BATCH
    ]
    found: list[CreditedBatch] = [
        trainer("group_relative")(batch, AdvantageState()) for batch in (games, [*games, *BATCH])
    ]
    assert [a_S.tolist() for a_S in found[0].advantages] == [[0.5, 0.5], [-0.5, -0.5]]
    assert [a_S.tolist() for a_S in found[1].advantages[:2]] == [a_S.tolist() for a_S in found[0].advantages]


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([("A", float("nan"), [0])], "member 0 (A in m-5): reward nan is not a finite number"),
        ([("A", 1.0, [0]), ("B", 1.0, [4])], "member 1 (B in m-5): steps [4] do not ascend within the trajectory's 4"),
        ([("A", 1.0, [-1])], "steps [-1] do not ascend"),
        ([("A", 1.0, [1, 1])], "steps [1, 1] do not ascend"),
        ([("A", 1.0, [2, 1])], "steps [2, 1] do not ascend"),
        ([("A", 1.0, [0, 1]), ("B", 1.0, [1, 2])], "member 1 (B in m-5): step 1 has another member"),
        ([("A", 1.0, [0, 1]), ("B", 1.0, [2]), ("C", 1.0, [3])], None),
        ([("A", 1.0, [1, 2])], "clocks of the steps decrease"),
    ],
)
def test_damaged_members_are_refused_with_a_reason(
    members: list[tuple[str, float, list[int]]], reason: str | None
) -> None:
    found = rejection_reason(played(5, *members))
    assert found is None if reason is None else found is not None and reason in found
    alone = trainer("group_relative")([played(5, *members), *BATCH], AdvantageState())
    assert len(alone.trajectories) == (3 if reason is None else 2)


def test_a_reward_that_does_not_look_at_scores_is_none_for_episodes() -> None:
    def config(name: str, **of: Any) -> TrainerConfig:
        return TrainerConfig(reward=Plugin(name=name, settings=of))

    assert reward_uses_score(config("outcome"))
    assert reward_uses_score(config("progress", score_weight=1.0))
    assert not reward_uses_score(config("progress"))


@pytest.mark.parametrize("name", ["rae", "clock_lineup"])
def test_running_means_take_in_a_game_once_though_two_batches_train_on_it(name: str) -> None:
    step = ModelCall([1], [2], [0], [-0.5], [[]], 0, 0, 0.0)
    games = [
        Trajectory(f"m{n}", "nim", "main", 0, "r", "g", [step, step], 1, 0.0, score, 1)
        for n, score in ((0, 1.0), (1, 0.0))
    ]
    transforms = TransformsConfig(final=(Plugin("role_advantage"),))
    pipeline = trainer(name, transforms=transforms)
    once = pipeline(games, AdvantageState()).memory
    assert once.baselines
    assert once.transforms
    rest = [msgspec.structs.replace(game, counted=True) for game in games]
    assert pipeline(rest, once).memory == once
    mixed = pipeline([games[0], rest[1]], AdvantageState())
    assert mixed.memory == pipeline(games[:1], AdvantageState()).memory
    assert [len(a_S) for a_S in mixed.advantages] == [2, 2]
