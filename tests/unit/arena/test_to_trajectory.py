"""From trees of episodes to the trainer's rollouts, and to what is kept of them."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from arena.arena import Arena
from arena.clients import ScriptedClient
from arena.episodes import Episode
from arena.records import decode_record, encode_record, is_episode_record, make_transcript
from arena.rubrics import Rubric
from arena.training_records import TrainedSeat, build_batch, count_completion_tokens, count_model_calls, to_trajectory
from schemas.episodes import EpisodeRequest, EpisodeState, GenerateResult, Role, Rollout
from schemas.errors import EpisodeError


def rewarded(rollout: Rollout, arena: Arena) -> dict[str, float]:
    if rollout.artifact == "fails":
        raise ValueError("no score for this")
    return {step.role_id: float(at + rollout.depth) for at, step in enumerate(rollout.steps) if step.role_id != "Mute"}


class Talk(Episode):
    """Two roles speak in turn; below the top three more such episodes, of which one fails and one only informs."""

    episode_type = "talk"
    rubric = Rubric([rewarded])

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        for role in ("A", "B", "Mute", "A"):
            await self.call_model(role, f"{artifact}?", arena)
        if artifact == "top":
            wanted = [
                EpisodeRequest("talk", "below"),
                EpisodeRequest("talk", "fails"),
                EpisodeRequest("talk", "informs", is_trainable=False),
            ]
            state.child_results += await arena.generate_rollouts(wanted)
        return state


@pytest.fixture(scope="module")
def tree() -> GenerateResult:
    arena = Arena(ScriptedClient.from_function(lambda messages: f"I heard {messages[-1].content}"), name="m")
    for role in ("A", "B", "Mute"):
        arena.add_role(Role(role))
    arena.add_episode("talk", Talk())
    (result,) = asyncio.run(arena.generate_rollouts([EpisodeRequest("talk", "top", group="g", group_size=4)]))
    return result


def seat(*roles: str) -> TrainedSeat:
    return TrainedSeat("m-0", "talks", "main", 1, "second", roles, (0.5, 2.0), 1)


def test_a_harvest_holds_what_a_training_batch_holds(tree: GenerateResult) -> None:
    found = to_trajectory(tree, seat("A", "B", "Mute"))
    assert found.trajectory is not None
    records = build_batch([tree], None).records
    taken = {
        (member.id, member.role, member.group, member.reward, msgspec.json.encode(found.trajectory.steps[at]))
        for member in found.trajectory.members
        for at in member.steps
    }
    assert len(records) == len(found.trajectory.steps) == 6
    assert taken == {
        (record.rollout_id, record.role_id, record.group, record.reward, msgspec.json.encode(record.step))
        for record in records
    }


def test_what_is_left_out_is_counted_by_why(tree: GenerateResult) -> None:
    left = to_trajectory(tree, seat("A", "B", "Mute")).left_out
    assert left == {"of_failed": 4, "of_untrainable": 4, "unscored": 2}
    counts = msgspec.to_builtins(build_batch([tree], None).counts)
    assert left == {name: counts[name] for name in left}


def test_every_step_has_one_member_and_those_of_other_seats_are_nobodys(tree: GenerateResult) -> None:
    found = to_trajectory(tree, seat("B"))
    assert found.trajectory is not None
    assert [(member.id, member.role) for member in found.trajectory.members] == [("m-0", "B"), ("m-0.0", "B")]
    assert [at for member in found.trajectory.members for at in member.steps] == [0, 1]
    assert found.left_out == {"of_failed": 1, "of_untrainable": 1}
    assert (found.trajectory.group, found.trajectory.group_size) == ("g", 4)
    assert (found.trajectory.score, found.trajectory.rank, found.trajectory.role) == (2.0, 1, "second")


def test_of_a_seat_that_said_nothing_to_train_on_there_is_no_rollout(tree: GenerateResult) -> None:
    assert to_trajectory(tree, seat("Mute")).trajectory is None
    assert to_trajectory(tree, seat("nobody")) == (None, {})


def test_without_tokens_a_call_stays_behind(tree: GenerateResult) -> None:
    bare = [msgspec.structs.replace(step, tokens=None) for step in tree.rollout.steps]
    told = GenerateResult(msgspec.structs.replace(tree.rollout, steps=bare))
    found = to_trajectory(told, seat("A"))
    assert found == (None, {"without_tokens": 2})
    assert (count_model_calls(told), count_completion_tokens(told)) == (4, 0)


def test_a_record_is_the_same_for_the_same_play_and_holds_no_tokens(tree: GenerateResult) -> None:
    record = encode_record("talks", tree)
    later = GenerateResult(msgspec.structs.replace(tree.rollout, started_at=1.0, ended_at=2.0), tree.children)
    assert record == encode_record("talks", later)
    assert is_episode_record(record)
    assert "token" not in record.decode()
    assert json.loads(record)["version"] == 1
    assert [child.failure for child in decode_record(record).tree.children] == ["", "ValueError: no score for this", ""]


def test_a_record_is_read_nested_with_who_said_what_and_what_it_earned(tree: GenerateResult) -> None:
    turns = make_transcript(encode_record("talks", tree))
    titles = [turn.title for turn in turns]
    assert titles[:5] == ["m-0: talk", "m-0, call 0", "m-0, call 1", "m-0, call 2", "m-0, call 3"]
    assert "  m-0.1: FAILED" in titles
    assert "  m-0.2: talk, not trained on" in titles
    assert turns[1].moves == {"A": ["I heard top?"]}
    assert turns[-1].notes[:2] == ["A earns 3", "B earns 1"]


def test_what_is_no_json_is_kept_as_python_writes_it() -> None:
    rollout = Rollout("m", "talk", {1, 2}, [], extras={"not": "kept"})
    assert decode_record(encode_record("talks", GenerateResult(rollout))).tree.artifact in ("{1, 2}", [1, 2])


@pytest.mark.parametrize("record", [b"", b"{}", b'{"arena":"a"}', b"\xff"])
def test_what_is_no_record_is_refused(record: bytes) -> None:
    with pytest.raises(EpisodeError, match="record of an episode"):
        decode_record(record)


def test_a_record_of_a_later_version_is_refused(tree: GenerateResult) -> None:
    later = encode_record("talks", tree).replace(b'"version":1', b'"version":2')
    with pytest.raises(EpisodeError, match="version 2; expected 1"):
        decode_record(later)
