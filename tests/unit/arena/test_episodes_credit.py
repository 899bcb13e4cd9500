"""Credit over trees of episodes, against what was worked out by hand; and the learner's view of the same."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from arena.arena import Arena
from arena.clients import ScriptedClient
from arena.episodes import Episode
from arena.episodes.chat import SingleTurnEpisode
from arena.rubrics import Rubric
from models.model_config import DecoderShape
from schemas.batches import Credit, CreditAssigner, TrainingBatch, apply_credit
from schemas.codec import decode_trajectory, encode_trajectory
from schemas.config import Plugin, TrainerConfig
from schemas.episodes import (
    EpisodeRequest,
    EpisodeState,
    GenerateResult,
    Message,
    Role,
    Rollout,
    Step,
    unconstrained_model_call,
)
from schemas.errors import ConfigError
from tests.builders import model_call, trajectory
from trainer.advantages.total_reward import CREDIT_ASSIGNERS
from trainer.buffer.groups import BufferedGroups, BufferedTrajectory, GroupAssembler
from trainer.credit import AdvantagePipeline, AdvantageState

SHAPE = DecoderShape(
    "qwen3", 1000, 16, intermediate_size=24, layers=1, heads=2, kv_heads=1, head_dim=8, tied=True, qk_norm=True
)


def credit(name: str, **settings: Any) -> CreditAssigner:
    return CREDIT_ASSIGNERS.build(Plugin(name=name, settings=settings))


def step(role: str, reward: float = 0.0) -> Step:
    said = [Message("assistant", "words")]
    return Step(
        role, [Message("user", "?")], said, unconstrained_model_call([1, 2], [3, 4], [-0.5, -0.25]), reward=reward
    )


def rollout(id: str, kind: str, rewards: dict[str, float], roles: Sequence[str] = (), **rest: Any) -> Rollout:
    parent = id.rpartition(".")[0]
    steps = [step(role, rewards.get(role, 0.0)) for role in roles or rewards]
    return Rollout(id, kind, None, steps, rewards=rewards, parent=parent, depth=id.count("."), **rest)


# The example of the seed: proposers, and solvers under each


class Propose(Episode):
    """A question, four attempts at it; best where half of them succeed."""

    episode_type = "propose"
    rubric = Rubric([lambda rollout, arena: {"Proposer": 1.0 - 2.0 * abs(rollout.extras["pass_rate"] - 0.5)}])

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        await self.call_model("Proposer", "Ask something", arena)
        requests = [EpisodeRequest("solve", solved) for solved in artifact]
        state.child_results.extend(await arena.generate_rollouts(requests))
        return state

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        return {"pass_rate": sum(r.rewards["Solver"] for r in state.child_results) / len(state.child_results)}


class Solve(SingleTurnEpisode):
    """Solved or not, as it was said beforehand."""

    episode_type = "solve"
    rubric = Rubric([lambda rollout, arena: {"Solver": float(rollout.artifact)}])

    def get_prompt(self, artifact: Any) -> str:
        return "Solve it"


class Curriculum(Arena):
    """Two questions with four attempts each, and two attempts that nobody proposed."""

    def get_batch(self) -> list[EpisodeRequest]:
        proposed = [EpisodeRequest("propose", solved) for solved in ([1, 0, 0, 0], [1, 1, 0, 0])]
        return [*proposed, EpisodeRequest("solve", 1), EpisodeRequest("solve", 0)]


def curriculum(assigner: CreditAssigner | None, kind: type[Curriculum] = Curriculum) -> Curriculum:
    arena = kind(ScriptedClient("an answer", version=7), assigner)
    arena.add_role(Role("Proposer"))
    arena.add_role(Role("Solver"))
    arena.add_episode("propose", Propose())
    arena.add_episode("solve", Solve("Solver"))
    return arena


def test_the_hierarchical_example_has_the_groups_and_advantages_worked_out_by_hand() -> None:
    arena = curriculum(credit("grpo"))
    batch = asyncio.run(arena.step())
    found = {(r.rollout_id, r.role_id): (r.group, r.reward, r.advantage) for r in batch.records}
    # Pass rates 1/4 and 1/2: rewards 0.5 and 1, mean 0.75. Solvers: means 1/4, 1/2, and 1/2 for those at the top.
    proposers, first, second = "0||propose|Proposer", "1|arena-0|solve|Solver", "1|arena-1|solve|Solver"
    top = "0||solve|Solver"
    assert found == {
        ("arena-0", "Proposer"): (proposers, 0.5, -0.25),
        ("arena-0.0", "Solver"): (first, 1.0, 0.75),
        ("arena-0.1", "Solver"): (first, 0.0, -0.25),
        ("arena-0.2", "Solver"): (first, 0.0, -0.25),
        ("arena-0.3", "Solver"): (first, 0.0, -0.25),
        ("arena-1", "Proposer"): (proposers, 1.0, 0.25),
        ("arena-1.0", "Solver"): (second, 1.0, 0.5),
        ("arena-1.1", "Solver"): (second, 1.0, 0.5),
        ("arena-1.2", "Solver"): (second, 0.0, -0.5),
        ("arena-1.3", "Solver"): (second, 0.0, -0.5),
        ("arena-2", "Solver"): (top, 1.0, 0.5),
        ("arena-3", "Solver"): (top, 0.0, -0.5),
    }
    assert batch.policy_version == 7
    assert {record.step.version for record in batch.records} == {7}
    assert batch.counts.records == batch.counts.episodes == 12


class Annotated(Solve):
    """Marks its calls with user data."""

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        state = await super().rollout(arena, artifact, state)
        assert state.last_step is not None
        state.last_step.info.update({"tools": ["search"], "source": Random, "formatted": True})
        return state


def test_user_data_of_a_call_reaches_credit_and_learner() -> None:
    seen: list[Any] = []

    class Watching:
        def compute(self, results: Sequence[GenerateResult], state: Any) -> Credit:
            seen.extend(step.info for result in results for step in result.rollout.steps)
            return Credit({(result.rollout.id, 0): 1.0 for result in results}, {})

    class Tagged(Curriculum):
        def get_batch(self) -> list[EpisodeRequest]:
            return [EpisodeRequest("solve", 1, meta={"split": "train", "tools": []}), EpisodeRequest("solve", 0)]

    arena = Tagged(ScriptedClient("an answer"), Watching())
    arena.add_role(Role("Solver"))
    arena.add_episode("solve", Annotated("Solver"))
    batch = asyncio.run(arena.step())
    assert [info["tools"] for info in seen] == [["search"], ["search"]]
    # Facts of the call itself are no user data, and values that cannot be published are their text.
    data = {"tools": ["search"], "source": repr(Random)}
    assert [record.step.info for record in batch.records] == [data, data]
    assert (batch.records[0].meta["split"], batch.records[0].meta["tools"]) == ("train", ["search"])
    published = [decode_trajectory(encode_trajectory(each)) for each in batch.to_trajectories("main")]
    assert [each.steps[0].info for each in published] == [data, data]


def test_every_episode_of_a_step_is_tagged_with_the_policys_version() -> None:
    seen: list[Rollout] = []

    class Watched(Curriculum):
        async def on_step_end(self, results: Sequence[GenerateResult], batch: TrainingBatch) -> None:
            seen.extend(rollout for result in results for rollout in result.all_rollouts())

    asyncio.run(curriculum(None, Watched).step())
    assert {rollout.policy_version for rollout in seen} == {7}
    assert len(seen) == 12


def test_the_learner_trains_on_a_batch_as_it_was_credited() -> None:
    batch = asyncio.run(curriculum(credit("grpo")).step())
    config = TrainerConfig(reward=Plugin("outcome"), advantage=Plugin("episodic"))
    rollouts = batch.to_trajectories("main")
    found = AdvantagePipeline(config, SHAPE, filter_zero=False)(rollouts, AdvantageState())
    assert (found.refused, len(found.trajectories)) == ([], 12)
    expected = {r.rollout_id: r.advantage for r in batch.records}
    assert {
        r.match_id.split("/")[0]: a.tolist() for r, a in zip(found.trajectories, found.advantages, strict=True)
    } == {id: [advantage] for id, advantage in expected.items()}
    assert [r.steps for r in rollouts] == [[record.step] for record in batch.records]


def test_the_trainers_own_estimator_finds_the_same_groups() -> None:
    batch = asyncio.run(curriculum(credit("grpo")).step())
    config = TrainerConfig(reward=Plugin("outcome"), advantage=Plugin("group_relative"))
    found = AdvantagePipeline(config, SHAPE, filter_zero=False)(
        batch.to_trajectories("main", credited=False), AdvantageState()
    )
    assert [a.tolist() for a in found.advantages] == [[record.advantage] for record in batch.records]


# Assigners


def test_roles_types_and_parents_are_never_compared_with_each_other() -> None:
    results = [
        GenerateResult(rollout("a-0", "game", {"A": 1.0, "B": -1.0}, ["A", "B", "A"])),
        GenerateResult(rollout("a-1", "game", {"A": 0.0, "B": 0.0})),
        GenerateResult(rollout("a-2", "talk", {"A": 9.0})),
    ]
    weights = credit("grpo").compute(results, {}).weights
    assert weights == {
        ("a-0", 0): 0.5,
        ("a-0", 1): -0.5,
        ("a-0", 2): 0.5,
        ("a-1", 0): -0.5,
        ("a-1", 1): 0.5,
        ("a-2", 0): 0.0,
    }


def test_grpo_can_normalize_and_keep_only_the_better_half() -> None:
    results = [GenerateResult(rollout(f"a-{n}", "game", {"A": reward})) for n, reward in enumerate((1.0, 5.0))]
    same = [GenerateResult(rollout(f"b-{n}", "other", {"A": 0.1})) for n in range(3)]
    normal = credit("grpo", normalize=True).compute([*results, *same], {}).weights
    assert list(normal.values()) == [-1.0, 1.0, 0.0, 0.0, 0.0]
    assert list(credit("grpo", positive_only=True).compute(results, {}).weights.values()) == [0.0, 2.0]


def test_requests_of_one_group_are_compared_with_each_other_only() -> None:
    results = [
        GenerateResult(rollout(f"w{n}-0", "game", {"A": reward}, group=group, group_size=2))
        for n, (group, reward) in enumerate((("x", 0.0), ("y", 5.0), ("x", 1.0), ("y", 7.0)))
    ]
    assert list(credit("grpo").compute(results, {}).weights.values()) == [-0.5, -1.0, 0.5, 1.0]


@pytest.mark.parametrize("name", CREDIT_ASSIGNERS.names())
def test_failed_and_untrainable_episodes_and_unscored_roles_count_for_nothing(name: str) -> None:
    good = [GenerateResult(rollout(f"a-{n}", "game", {"A": float(n)}, ["A", "B"])) for n in range(2)]
    bad = [
        GenerateResult(rollout("a-2", "game", {}, ["A"], failure="why")),
        GenerateResult(rollout("a-3", "game", {"A": 100.0}, is_trainable=False)),
    ]
    alone, together = (credit(name).compute(results, {}) for results in (good, [*good, *bad]))
    assert alone == together
    assert set(together.weights) == {("a-0", 0), ("a-1", 0)}


@pytest.mark.parametrize("name", CREDIT_ASSIGNERS.names())
def test_an_assigner_is_pure_and_an_empty_batch_changes_nothing(name: str) -> None:
    results = [GenerateResult(rollout(f"a-{n}", "game", {"A": n / 3})) for n in range(4)]
    state, before = {"game/A": 0.25, "game/C": 1.0}, msgspec.msgpack.encode(results)
    assert credit(name).compute(results, state) == credit(name).compute(results, state)
    assert (state, msgspec.msgpack.encode(results)) == ({"game/A": 0.25, "game/C": 1.0}, before)
    nothing = credit(name).compute([], state)
    assert (nothing.weights, nothing.state) == ({}, state)
    with pytest.raises(ConfigError):
        credit(name, nonsense=1)


def test_rae_judges_by_the_baseline_from_before_and_then_moves_it() -> None:
    results = [
        GenerateResult(rollout(f"a-{n}", "game", {"A": reward, "B": -reward})) for n, reward in enumerate((1, 3))
    ]
    first = credit("rae").compute(results, {})
    assert list(first.weights.values()) == [1.0, -1.0, 3.0, -3.0]
    assert first.state == pytest.approx({"game/A": 0.1, "game/B": -0.1})
    second = credit("rae").compute(results, first.state)
    assert list(second.weights.values()) == pytest.approx([0.9, -0.9, 2.9, -2.9])
    assert second.state == pytest.approx({"game/A": 0.95 * 0.1 + 0.05 * 2, "game/B": -(0.95 * 0.1 + 0.05 * 2)})


def test_rae_goes_on_after_a_restart_from_what_its_last_batch_recorded() -> None:
    whole = curriculum(credit("rae"))
    batches = [asyncio.run(whole.step()) for _ in range(3)]
    recorded = msgspec.json.decode(msgspec.json.encode(batches[1]), type=TrainingBatch)
    restarted = curriculum(credit("rae"))
    restarted.credit_state = dict(recorded.credit_state)
    again = asyncio.run(restarted.step())
    assert [r.advantage for r in again.records] == [r.advantage for r in batches[2].records]
    assert again.credit_state == batches[2].credit_state
    assert again.credit_state.keys() == {"propose/Proposer", "solve/Solver"}


def test_constant_and_episodic_credit() -> None:
    results = [GenerateResult(rollout("a-0", "game", {"A": 2.0, "B": -1.0}, ["A", "B", "A"]))]
    assert list(credit("episodic").compute(results, {}).weights.values()) == [2.0, -1.0, 2.0]
    assert list(credit("constant", value=0.5).compute(results, {}).weights.values()) == [0.5, 0.5, 0.5]


def test_applying_credit_changes_advantages_and_nothing_else() -> None:
    child = GenerateResult(rollout("a-0.0", "solve", {"Solver": 1.0}))
    tree = GenerateResult(rollout("a-0", "game", {"A": 2.0}, ["A", "B"]), [child])
    (applied,) = apply_credit([tree], {("a-0", 0): 0.5, ("a-0.0", 0): -1.0})
    assert [step.advantage for step in applied.rollout.steps] == [0.5, 0.0]
    assert applied.rollout.advantages == {"A": 0.5, "B": 0.0}
    assert applied.children[0].rollout.advantages == {"Solver": -1.0}
    assert apply_credit([applied], {}) == [tree]


# Groups from several workers


def member(group: str, number: int, version: int = 0, size: int = 3) -> BufferedTrajectory:
    made = trajectory(f"w{number}-{group}", [model_call(version=version)], group=group, group_size=size)
    return BufferedTrajectory(number, made, [0])


def names(groups: list[list[BufferedTrajectory]]) -> list[list[str]]:
    return [[one.trajectory.match_id for one in group] for group in groups]


def test_a_group_is_complete_when_all_its_members_came_in_any_order() -> None:
    gathering = GroupAssembler()
    assert gathering.add(member("x", 2)).released == []
    assert gathering.add(member("y", 0)).released == []
    assert gathering.add(member("x", 0)).released == []
    outcome = gathering.add(member("x", 1))
    assert names(outcome.released) == [["w0-x", "w1-x", "w2-x"]]
    assert +gathering.counts == {"complete": 1, "members_complete": 3}
    assert len(gathering.items) == 1


def test_an_episode_without_a_group_is_complete_by_itself() -> None:
    assert len(BufferedGroups(TrainerConfig()).add(member("", 0, size=0)).released) == 1


def test_a_group_is_given_up_when_the_policy_has_gone_on_and_what_comes_then_is_late() -> None:
    gathering = GroupAssembler(max_lag=2)
    gathering.add(member("x", 0, version=5))
    gathering.advance(7)
    assert +gathering.counts == {}
    gathering.advance(8)
    assert +gathering.counts == {"given_up": 1, "members_given_up": 1}
    assert gathering.add(member("x", 1, version=5)).late
    assert +gathering.counts == {"given_up": 1, "members_given_up": 1, "late": 1}
    assert gathering.items == []


def test_a_group_that_is_given_up_can_be_handed_on_with_what_it_has() -> None:
    gathering = GroupAssembler(max_lag=0, least=2)
    gathering.add(member("x", 1))
    gathering.add(member("x", 0))
    gathering.add(member("y", 0))
    outcome = gathering.advance(1)
    assert names(outcome.released) == [["w0-x", "w1-x"]]
    assert +gathering.counts == {"given_up": 2, "handed_on": 1, "members_handed_on": 2, "members_given_up": 1}


def test_the_oldest_group_is_given_up_where_too_many_wait() -> None:
    gathering = GroupAssembler(max_open=2)
    for name in "abc":
        gathering.add(member(name, 0))
    assert gathering.counts["given_up"] == 1
    assert gathering.add(member("a", 1)).late
    gathering.add(member("c", 0))
    assert +gathering.counts == {"given_up": 1, "members_given_up": 1, "late": 1, "duplicate": 1}


def test_a_failed_member_is_a_member_and_teaches_nothing() -> None:
    gathering = GroupAssembler()
    gathering.mark_missing(member("x", 9, size=2).trajectory)
    assert names(gathering.add(member("x", 0, size=2)).released) == [["w0-x"]]
    failed = GenerateResult(rollout("w9-x", "game", {}, ["A"], group="x", group_size=2, failure="why"))
    played = GenerateResult(rollout("w0-x", "game", {"A": 1.0}, group="x", group_size=2))
    assert list(credit("grpo").compute([failed, played], {}).weights.items()) == [(("w0-x", 0), 0.0)]


@given(st.integers(0, 2**32), st.integers(1, 5), st.sampled_from([None, 1, 2]))
@settings(max_examples=60, deadline=None)
def test_every_arrival_is_accounted_for_and_the_same_arrivals_end_the_same(
    seed: int, most: int, least: int | None
) -> None:
    rng = Random(seed)
    arrivals = [member(rng.choice("abcdefg"), rng.randrange(4), rng.randrange(5)) for _ in range(60)]

    def gathered() -> tuple[dict[str, int], list[list[str]], int]:
        gathering, released = GroupAssembler(max_lag=2, max_open=most, least=least), []
        for arrival in arrivals:
            released += gathering.add(arrival).released
        return dict(gathering.counts), names(released), len(gathering.items)

    counts, ids, waiting = gathered()
    members = ("members_complete", "members_handed_on", "members_given_up", "late", "duplicate")
    assert sum(counts.get(name, 0) for name in members) + waiting == len(arrivals)
    assert sum(map(len, ids)) == counts.get("members_complete", 0) + counts.get("members_handed_on", 0)
    assert gathered() == (counts, ids, waiting)


def test_a_lag_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gathering\.max_lag"):
        BufferedGroups(TrainerConfig(max_lag_steps=-1))
