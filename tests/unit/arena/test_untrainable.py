"""What may not be trained on reaches no batch: random trees with all there is that a call can be left out for.

What should be in a batch is worked out from the plan of a tree alone. Arena and league have to agree with it: the one
by ``Arena.build_training_batch``, the other by what workers harvest and the trainer takes apart again.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

import arena.training_records
from arena.arena import Arena
from arena.clients import ScriptedClient
from arena.episodes import Episode
from arena.model_call import EpisodeContext, Limits
from arena.rubrics import Rubric
from arena.training_records import TrainedSeat, TrajectoryExtract, to_trajectory
from models.model_config import DecoderShape
from schemas.batches import apply_credit
from schemas.config import Plugin, TrainerConfig
from schemas.episodes import (
    EpisodeRequest,
    EpisodeState,
    GenerateResult,
    Message,
    ModelResponse,
    Role,
    Rollout,
    unconstrained_model_call,
)
from schemas.trajectories import ModelCall
from trainer.advantages.total_reward import CREDIT_ASSIGNERS
from trainer.credit import AdvantagePipeline, AdvantageState, credit_units

JUDGE = ""
SEATS = (("A",), ("B", "C"))
"""Roles by seat of the match that a tree can be."""
ENDS = ("well", "well", "well", "reply", "raises", "nan", "judge")
SHAPE = DecoderShape(
    "qwen3", 1000, 16, intermediate_size=24, layers=1, heads=2, kv_heads=1, head_dim=8, tied=True, qk_norm=True
)
TRAINER = TrainerConfig(reward=Plugin("outcome"), advantage=Plugin("group_relative"))
Call = tuple[str, int]
"""Id of an episode, and the number of a call in it."""


class Node(NamedTuple):
    """How an episode goes."""

    calls: tuple[tuple[str, bool], ...]
    """Who is asked, and whether the reply comes with its tokens."""
    scored: tuple[str, ...]
    """Roles for which the reward function speaks."""
    ends: str
    """``reply``: by an empty one, before others are asked for. ``raises``: after that. The others: when scored."""
    keeps: bool
    """Whether the episodes asked for are handed back."""
    children: tuple[tuple[bool, "Node"], ...] = ()
    """With whether they may be trained on."""


Trees = list[tuple[bool, Node]]


def trees() -> st.SearchStrategy[Trees]:
    nodes = st.recursive(_node(st.just(())), lambda below: _node(_flagged(below).map(tuple)), max_leaves=6)
    return _flagged(nodes, least=1)


def _flagged(nodes: st.SearchStrategy[Node], least: int = 0) -> st.SearchStrategy[Trees]:
    return st.lists(st.tuples(st.sampled_from((True, True, False)), nodes), min_size=least, max_size=3)


def _node(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Node]:
    calls = st.lists(st.tuples(st.sampled_from(("A", "B", "C", JUDGE)), st.booleans()), max_size=4).map(tuple)
    scored = st.lists(st.sampled_from(("A", "B", "C")), unique=True).map(tuple)
    return st.builds(Node, calls, scored, st.sampled_from(ENDS), st.booleans(), children)


def permitted(trees: Trees, ids: Sequence[str]) -> set[Call]:
    """By the plan alone."""
    found: set[Call] = set()
    for id, (trainable, node) in zip(ids, trees, strict=True):
        if not trainable:
            continue
        if node.ends == "well":
            found |= {(id, at) for at, (who, tokens) in enumerate(node.calls) if tokens and who in node.scored}
        if node.keeps and node.ends != "reply":
            found |= permitted(list(node.children), [f"{id}.{at}" for at in range(len(node.children))])
    return found


async def scored(rollout: Rollout, arena: Arena) -> dict[str, float]:
    node: Node = rollout.artifact
    await arena.call_model([Message("user", f"judge {'fails' if node.ends == 'judge' else 'well'}")])
    if node.ends == "nan":
        return dict.fromkeys(node.scored or ("A",), float("nan"))
    return {role: float(at + rollout.depth) for at, role in enumerate(node.scored)}


class Grown(Episode):
    """An episode by plan."""

    episode_type = "grown"
    rubric = Rubric([scored])

    async def rollout(self, arena: Arena, artifact: Node, state: EpisodeState) -> EpisodeState:
        for at, (who, tokens) in enumerate(artifact.calls):
            asked = [Message("user", f"{state.rollout_id} {at} {'tokens' if tokens else 'bare'}")]
            await arena.call_model(asked, who or None)
        if artifact.ends == "reply":
            await self.call_model("A", "say nothing", arena)
        requests = [EpisodeRequest("grown", below, is_trainable=flag) for flag, below in artifact.children]
        results = await arena.generate_rollouts(requests)
        state.child_results += results if artifact.keeps else []
        if artifact.ends == "raises":
            raise RuntimeError("the environment broke")
        return state


class Numbering(ScriptedClient):
    """Gives every reply a token of its own, judges' too, and remembers for which call it was."""

    def __init__(self) -> None:
        super().__init__()
        self._reply = self.reply
        self.of: dict[int, Call] = {}

    def reply(self, messages: Sequence[Message]) -> ModelResponse:
        first, second, *rest = messages[-1].content.split()
        if second == "nothing":
            return ModelResponse(" ")
        if second == "fails":
            raise TimeoutError("the judge is away")
        if rest == ["bare"]:
            return ModelResponse("said")
        number = 1 + len(self.of)
        self.of[number] = (first, int(second)) if rest else ("judge", number)
        return ModelResponse("said", unconstrained_model_call([0], [number], [-0.5]))

    def which(self, steps: Sequence[ModelCall]) -> list[Call]:
        return [self.of[number] for step in steps for number in step.completion_ids]


class Found(NamedTuple):
    """The calls that each way of making a batch lets through, none twice."""

    permitted: list[Call]
    batch: list[Call]
    """By the arena."""
    credited: list[Call]
    """By the arena, with credit."""
    harvest: list[Call]
    """What the rollouts of a league hold, seat by seat."""
    members: list[Call]
    """The same as the trainer takes it apart."""
    trained: list[Call]
    """What of it the trainer gave credit."""

    def agrees(self) -> bool:
        return all(calls == self.permitted for calls in self)


def found_in(plan: Trees) -> Found:
    client = Numbering()
    arena = Arena(client, limits=Limits(needs_tokens=False))
    for role in ("A", "B", "C"):
        arena.add_role(Role(role))
    arena.add_episode("grown", Grown())
    requests = [EpisodeRequest("grown", node, is_trainable=flag) for flag, node in plan]
    results = asyncio.run(arena.generate_rollouts(requests))
    weights = CREDIT_ASSIGNERS.build(Plugin("grpo")).compute(results, {}).weights
    credited = arena.build_training_batch(apply_credit(results, weights), weights)
    batch = arena.build_training_batch(results)
    harvests = [to_trajectory(result, _seat(result, at)) for result in results for at in range(len(SEATS))]
    _check_counts(results, batch.counts, harvests)
    rollouts = [found.trajectory for found in harvests if found.trajectory]
    made = AdvantagePipeline(TRAINER, SHAPE, filter_zero=False)(rollouts, AdvantageState())
    assert made.refused == []
    parts = [share.trajectory.steps[: len(share.steps)] for share in credit_units(rollouts)]
    return Found(
        sorted(permitted(plan, [result.rollout.id for result in results])),
        *(
            sorted(client.which(steps))
            for steps in (
                [record.step for record in batch.records],
                [record.step for record in credited.records],
                [step for rollout in rollouts for step in rollout.steps],
                [step for part in parts for step in part],
                [step for rollout in made.trajectories for step in rollout.steps],
            )
        ),
    )


def _seat(result: GenerateResult, at: int) -> TrainedSeat:
    return TrainedSeat(result.rollout.id, "grown", "main", at, f"seat-{at}", SEATS[at], (0.0, 0.0), 1)


def _check_counts(results: Sequence[GenerateResult], counts: Any, harvests: Sequence[TrajectoryExtract]) -> None:
    """Every call of a role is somewhere."""
    calls = sum(len(rollout.steps) for result in results for rollout in result.all_rollouts())
    out = (counts.of_failed, counts.of_untrainable, counts.unscored, counts.without_tokens)
    assert counts.records + sum(out) == calls
    left = sum(sum(found.left_out.values()) for found in harvests)
    assert left + sum(len(found.trajectory.steps) for found in harvests if found.trajectory) == calls


@given(trees())
@settings(max_examples=150, deadline=None)
def test_arena_and_league_train_on_the_same_calls_and_on_none_that_they_may_not(plan: Trees) -> None:
    found = found_in(plan)
    assert found == Found(*[found.permitted] * len(found))


def test_every_way_to_be_left_out_is_taken_at_once() -> None:
    heard = (("A", True), ("B", True), (JUDGE, True), ("A", False), ("C", True))
    below = Node(heard, ("A", "B"), "well", True)
    failing = [(True, below._replace(ends=ends)) for ends in ("reply", "raises", "nan", "judge")]
    deep = below._replace(children=((True, below), (False, below._replace(children=((True, below),)))))
    given_up, spoilt = deep._replace(keeps=False), deep._replace(ends="nan")
    plan = [(True, deep), (False, deep), (True, given_up), *failing, (True, spoilt)]
    found = found_in(plan)
    assert found.agrees()
    well = ["arena-0", "arena-0.0", "arena-2", "arena-7.0"]
    assert found.batch == [(id, at) for id in well for at in (0, 1)]


# What lets something through is found


@pytest.mark.parametrize("reason", ["of_untrainable", "of_failed", "unscored"])
def test_a_batch_that_forgets_a_reason_is_found(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = arena.training_records.exclusion_reason

    def lax(*asked: Any) -> str:
        why = strict(*asked)
        forgiven = why == reason and asked[0].steps[asked[1]].tokens is not None
        return "" if forgiven else why

    monkeypatch.setattr(arena.training_records, "exclusion_reason", lax)
    _assert_found()


def test_episodes_that_do_not_inherit_that_they_only_inform_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    inherits = EpisodeContext.make_child

    def forgets(self: EpisodeContext, number: int, request: EpisodeRequest) -> EpisodeContext:
        return inherits(self, number, request)._replace(is_trainable=request.is_trainable)

    monkeypatch.setattr(EpisodeContext, "make_child", forgets)
    _assert_found()


def _assert_found() -> None:
    how = settings(max_examples=500, derandomize=True, database=None, phases=[Phase.generate])
    find(trees(), lambda plan: not _agrees(plan), settings=how)


def _agrees(plan: Trees) -> bool:
    try:
        return found_in(plan).agrees()
    except AssertionError:
        return False
