"""Drafts, comments and revisions: what a draft is worth, what both earn, and who reads what."""

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from arena.arena import Arena
from arena.clients import ScriptedClient
from arena.environments import ArenaOptions, make_arena
from arena.environments.refine import Task, score_draft
from schemas.config import Plugin
from schemas.episodes import Message
from schemas.errors import ConfigError
from trainer.advantages.total_reward import CREDIT_ASSIGNERS

WORDS = ["boat", "moon", "rain"]


@pytest.mark.parametrize(
    ("draft", "value"),
    [
        ("The boat and the moon and the rain.", 1.0),
        ("RAIN, moon; boat", 1.0),
        ("The boat, the boat, the boat.", 1 / 3),
        ("The boats in moonlight.", 0.0),
        ("The boat and the moon and the rain and so on.", 0.0),
        ("", 0.0),
    ],
)
def test_a_draft_is_worth_the_wanted_words_that_stand_in_it_unless_it_is_too_long(draft: str, value: float) -> None:
    assert score_draft(draft, Task(WORDS, 8)) == pytest.approx(value)


def opened(said: Sequence[str], **settings: Any) -> Arena:
    given = {"words": WORDS, "group_size": 2, "tasks_per_batch": 1, **settings}
    opening = ArenaOptions(credit_assigner=CREDIT_ASSIGNERS.build(Plugin(name="grpo")))
    return make_arena("refine", given).open(ScriptedClient(*said), opening)


def test_both_roles_earn_what_the_last_draft_is_worth_and_a_bonus_for_what_it_gained() -> None:
    # Two attempts side by side: first drafts, comments, revisions.
    said = ["The boat.", "Boat, moon, rain.", "Use moon and rain.", "Fine.", "Boat, moon, rain.", "The moon and rain."]
    arena = opened(said)
    batch = asyncio.run(arena.step())

    # 1 + 0.1 · 2/3 where one word became three; 2/3 - 0.1 · 1/3 where three became two.
    first, second = 1 + 0.1 * 2 / 3, 2 / 3 - 0.1 / 3
    roles = ["Writer", "Critic", "Writer"]
    assert [record.role_id for record in batch.records] == roles * 2
    assert [record.reward for record in batch.records] == pytest.approx([first] * 3 + [second] * 3)
    half = (first - second) / 2
    assert [record.advantage for record in batch.records] == pytest.approx([half] * 3 + [-half] * 3)
    assert {record.group for record in batch.records} == {f"0|task-1|refine|{role}" for role in roles}


def test_the_critic_reads_the_draft_and_the_writer_the_comment() -> None:
    arena = opened(["The boat.", "Use moon.", "The moon."], group_size=1)
    asyncio.run(arena.step())
    client = arena.client
    assert isinstance(client, ScriptedClient)
    draft, comment, revision = ([message.content for message in call.messages[1:]] for call in client.calls)

    task = draft[0]
    assert task.startswith("Words: ")
    assert task.endswith(". At most 10 words.")
    assert comment == [f"{task}\n\nWriter: The boat."]
    assert revision == [task, "The boat.", "Critic: Use moon."]


def test_more_rounds_are_more_comments_and_none_is_a_draft_alone() -> None:
    for rounds, calls in ((0, 1), (1, 3), (3, 7)):
        batch = asyncio.run(opened(["The boat."], rounds=rounds, group_size=1).step())
        assert len(batch.records) == calls


def test_attempts_of_a_group_have_the_same_task_and_groups_have_others() -> None:
    arena = make_arena("refine", {"group_size": 3, "tasks_per_batch": 20}).open(ScriptedClient())
    requests = arena.get_batch()
    tasks = {request.group: request.artifact["words"] for request in requests}

    assert len(requests) == 60
    assert len(tasks) == 20
    assert all(request.artifact["words"] == tasks[request.group] for request in requests)
    assert len({tuple(sorted(words)) for words in tasks.values()}) > 15


def test_tasks_can_be_few_and_the_same_for_everybody() -> None:
    spec = make_arena("refine", {"tasks": 3, "group_size": 1, "tasks_per_batch": 5})
    asked = [
        [request.artifact["words"] for request in spec.open(ScriptedClient(), ArenaOptions(seed=seed)).get_batch()]
        for seed in (1, 2)
    ]

    assert asked[0] == asked[1]
    assert len({tuple(words) for words in asked[0]}) == 3


def test_only_a_complete_draft_counts_as_passed() -> None:
    spec = make_arena("refine", {"bonus": 0.49})
    arena = spec.open(ScriptedClient())
    task = arena.get_batch()[0].artifact
    for held, passed in ((task["words"][:2], False), (task["words"], True)):
        arena = spec.open(ScriptedClient("none", "Use all.", " ".join(held)))
        result = asyncio.run(arena.run_episode("refine", task))
        assert spec.passed(spec.score(result)[0]) is passed
        assert spec.metrics(result)["finished"] == pytest.approx(len(held) / 3)


def test_improvised_drafts_hold_most_of_the_words_and_seldom_all() -> None:
    spec = make_arena("refine", {})
    rng = Random(1)
    asked = [Message("system", "Write."), Message("user", "Words: boat, moon, rain. At most 10 words.")]
    worths = [score_draft(spec.improvise("Writer", asked, rng), Task(WORDS, 10)) for _ in range(300)]
    comments = {spec.improvise("Critic", asked, rng) for _ in range(50)}

    assert 0.65 < sum(worths) / 300 < 0.78
    assert 0.25 < worths.count(1.0) / 300 < 0.45
    assert comments == {"Use boat.", "Use moon.", "Use rain."}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"wanted": 0}, r"game\.settings\.wanted: 0; expected 1 or more"),
        ({"longest": 2}, "longest: 2; expected 3 or more"),
        ({"bonus": 0.5}, r"bonus: 0\.5; expected from 0 to below 0\.5"),
        ({"words": ["two words", "b", "c"]}, "expected single words"),
        ({"words": ["a", "b", "b"]}, "2 different ones; expected 3"),
        ({"round": 1}, "round"),
    ],
)
def test_bad_settings_are_refused_with_what_was_expected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_arena("refine", settings)
