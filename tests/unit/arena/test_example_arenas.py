"""The arenas of ``examples/plugins``: their rules, and the settings files beside them."""

import asyncio
import importlib
import re
from collections.abc import Callable, Sequence
from itertools import count
from math import exp
from pathlib import Path
from random import Random
from typing import Any

import pytest

import arena.environments
from arena.arena import Arena
from arena.clients import ScriptedClient
from arena.clients.improviser import improvised_calls
from arena.environments import ArenaOptions, arena_names, make_arena
from arena.questions import QuestionAnswer
from schemas.config import Plugin, load_config
from schemas.episodes import Message
from schemas.errors import ConfigError
from trainer.advantages.total_reward import CREDIT_ASSIGNERS

EXAMPLES = Path(__file__).parents[3] / "examples"
NAMES = sorted(path.stem for path in (EXAMPLES / "plugins" / "arena" / "environments").glob("*.py"))
DOCUMENT = "The heron lives in the pond. The heron eats fish, not the moss."
CHALLENGE = "Question: The heron eats ___. (fish, mice, moss)\nAnswer: fish"
WORDS = ["boat", "moon", "rain"]


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena.environments, "__path__", [*arena.environments.__path__])
    monkeypatch.setenv("LEAGUE_PLUGINS", str(EXAMPLES / "plugins"))
    assert set(NAMES) <= set(arena_names())


def module(name: str) -> Any:
    return importlib.import_module(f"arena.environments.{name}")


def opened(name: str, client: ScriptedClient, **settings: Any) -> Arena:
    return make_arena(name, settings).open(
        client, ArenaOptions(credit_assigner=CREDIT_ASSIGNERS.build(Plugin(name="grpo")))
    )


@pytest.mark.parametrize("name", NAMES)
def test_an_example_is_played_by_its_scripted_agent(name: str) -> None:
    calls = improvised_calls(make_arena(name, {}), 3)
    assert all(next(calls).reply for _ in range(12))


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_file_of_an_example_has_room_for_every_group_of_a_batch(name: str) -> None:
    league = load_config(EXAMPLES / f"{name.replace('_', '-')}.toml")
    assert league.game.name == name
    requests = make_arena(name, league.game.settings).open(ScriptedClient()).get_batch()
    sizes = [request.group_size for request in requests if request.group]
    assert all(league.trainer.rollouts_per_step >= size for size in sizes)
    assert league.episodes.empty == "count", "who says nothing does not escape from losing"


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("head_to_head", {"prompts": [" "]}, "each a text"),
        ("head_to_head", {"prompt": "Why?"}, "prompt"),
        ("refine", {"wanted": 0}, r"game\.settings\.wanted: 0; expected 1 or more"),
        ("refine", {"longest": 2}, "longest: 2; expected 3 or more"),
        ("refine", {"bonus": 0.5}, r"bonus: 0\.5; expected from 0 to below 0\.5"),
        ("refine", {"words": ["two words", "b", "c"]}, "expected single words"),
        ("refine", {"words": ["a", "b", "b"]}, "2 different ones; expected 3"),
        ("spice", {"reasoner_rollouts": 1}, r"game\.settings\.reasoner_rollouts: 1; expected 2 or more"),
        ("spice", {"options": 1}, "options: 1; expected 2 or more"),
        ("spice", {"documents": ["a", " "]}, "documents: one is empty"),
    ],
)
def test_bad_settings_are_refused_with_what_was_expected(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_arena(name, settings)


# Head to head


def test_neither_side_sees_the_other_and_the_judge_does_not_know_whose_an_answer_is() -> None:
    replies = iter(["worse", "better"])

    def reply(messages: Sequence[Message]) -> str:
        if not messages[0].content.startswith("You compare"):
            return next(replies)
        return f"Winner: {'First' if 'First: better' in messages[-1].content else 'Second'}"

    client = ScriptedClient.from_function(reply)
    pairs = opened("head_to_head", client, prompts=["Why?"], batch_size=1)
    result = asyncio.run(pairs.generate_rollouts(pairs.get_batch()))[0]

    prompt = [Message("system", "Answer in one sentence."), Message("user", "Why?")]
    assert [(step.role_id, step.prompt) for step in result.rollout.steps] == [("A", prompt), ("B", prompt)]
    assert [call.messages[-1].content for call in client.calls[2:]] == [
        "Prompt: Why?\nFirst: worse\nSecond: better\nWhich is better?",
        "Prompt: Why?\nFirst: better\nSecond: worse\nWhich is better?",
    ]
    assert result.rewards == {"A": -1.0, "B": 1.0}
    assert make_arena("head_to_head", {}).score(result) == (-1.0, 1.0)


def test_a_judge_that_always_prefers_the_first_answer_makes_draws() -> None:
    def reply(messages: Sequence[Message]) -> str:
        return "Winner: First" if messages[0].content.startswith("You compare") else "words"

    batch = asyncio.run(opened("head_to_head", ScriptedClient.from_function(reply), batch_size=2).step())
    assert [record.reward for record in batch.records] == [0.0] * 4


# Refine


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
def test_the_score_of_a_draft_is_its_share_of_the_required_words_unless_it_is_too_long(
    draft: str, value: float
) -> None:
    refine = module("refine")
    assert refine.score_draft(draft, refine.Task(WORDS, 8)) == pytest.approx(value)


def test_both_roles_earn_the_score_of_the_last_draft_and_a_bonus_for_its_gain() -> None:
    # Two attempts at once: first drafts, comments, revisions.
    replies = ["The boat.", "Boat, moon, rain.", "Use moon and rain.", "Fine.", "Boat, moon, rain.", "The moon, rain."]
    batch = asyncio.run(opened("refine", ScriptedClient(*replies), words=WORDS, group_size=2, tasks_per_batch=1).step())
    # 1 + 0.1 · 2/3 where one word became three; 2/3 - 0.1 · 1/3 where three became two.
    first, second = 1 + 0.1 * 2 / 3, 2 / 3 - 0.1 / 3
    half = (first - second) / 2
    assert [record.role_id for record in batch.records] == ["Writer", "Critic", "Writer"] * 2
    assert [record.reward for record in batch.records] == pytest.approx([first] * 3 + [second] * 3)
    assert [record.advantage for record in batch.records] == pytest.approx([half] * 3 + [-half] * 3)


def test_the_critic_reads_the_draft_and_the_writer_the_comment() -> None:
    client = ScriptedClient("The boat.", "Use moon.", "The moon.")
    asyncio.run(opened("refine", client, words=WORDS, group_size=1, tasks_per_batch=1).step())
    draft, comment, revision = ([message.content for message in call.messages[1:]] for call in client.calls)
    task = draft[0]
    assert task.startswith("Words: ")
    assert comment == [f"{task}\n\nWriter: The boat."]
    assert revision == [task, "The boat.", "Critic: Use moon."]


def test_tasks_can_be_few_and_the_same_for_all_seeds() -> None:
    spec = make_arena("refine", {"tasks": 3, "group_size": 1, "tasks_per_batch": 5})
    first, second = (
        [request.artifact["words"] for request in spec.open(ScriptedClient(), ArenaOptions(seed=seed)).get_batch()]
        for seed in (1, 2)
    )
    assert first == second
    assert len({tuple(words) for words in first}) == 3


# SPICE


def test_the_challenger_earns_most_where_half_of_the_answers_are_right() -> None:
    # SPICE's formula with its 0.01: the variance at 3/4 is 3/16, 1/16 off the best one.
    reward = module("spice").variance_reward
    assert reward(0.5, 0.01) == 1.0
    assert reward(0.25, 0.01) == reward(0.75, 0.01) == pytest.approx(exp(-(0.0625**2) / 0.02))
    assert reward(0.0, 0.01) == reward(1.0, 0.01) == pytest.approx(exp(-3.125))


@pytest.mark.parametrize(
    ("reply", "options", "reason"),
    [
        (CHALLENGE, 3, ""),
        ("Question: What does the heron eat?\nAnswer: Fish.", 0, ""),
        ("What does the heron eat? fish", 0, "no question"),
        ("Question: What does it eat?\nAnswer: ?", 0, "no answer"),
        ("Question: What does it eat?\nAnswer: fis", 0, "its answer is not in the document"),
        ("Question: Does the heron eat fish?\nAnswer: fish", 0, "it gives its answer away"),
        ("Question: It eats ___. (fish, mice, Mice)\nAnswer: fish", 3, "not 3 different choices"),
        ("Question: It eats ___. (pond, mice, moss)\nAnswer: fish", 3, "its answer is no choice"),
        ("Question: ___ (fish, mice, moss)\nAnswer: fish", 3, "no question"),
    ],
)
def test_the_answer_must_be_in_the_document_and_not_in_the_question(reply: str, options: int, reason: str) -> None:
    challenge, found = module("spice").parse_challenge(reply, DOCUMENT, options)
    assert (challenge is None, found) == (bool(reason), reason)


def scripted(challenges: Sequence[str], answers: Sequence[str]) -> Callable[[Sequence[Message]], str]:
    """Challenges and answers, each in turn."""
    asked, answered = count(), count()

    def reply(messages: Sequence[Message]) -> str:
        if messages[0].content.startswith("Ask"):
            return challenges[next(asked) % len(challenges)]
        return answers[next(answered) % len(answers)]

    return reply


def asked_about_document(challenges: Sequence[str], answers: Sequence[str]) -> Arena:
    settings = {"challenges": 2, "documents_per_batch": 1, "reasoner_rollouts": 4, "options": 3}
    client = ScriptedClient.from_function(scripted(challenges, answers))
    return opened("spice", client, **settings, documents=[DOCUMENT])


def test_rewards_and_advantages_are_those_worked_out_by_hand() -> None:
    answers = ["Answer: fish", "mice", "The fish!", "Answer: moss"]
    batch = asyncio.run(asked_about_document([CHALLENGE, "no idea"], answers).step())
    # One challenge that half can answer earns 1, an unusable one -0.1, with a mean of 0.45.
    assert [(record.role_id, record.group, record.reward) for record in batch.records] == [
        ("Challenger", "0|document-1|challenge|Challenger", 1.0),
        *(("Reasoner", "1|arena-0|reason|Reasoner", reward) for reward in (1.0, 0.0, 1.0, 0.0)),
        ("Challenger", "0|document-1|challenge|Challenger", -0.1),
    ]
    assert [record.advantage for record in batch.records] == pytest.approx([0.55, 0.5, -0.5, 0.5, -0.5, -0.55])


def test_only_the_challenger_sees_the_document() -> None:
    asking = asked_about_document([CHALLENGE], ["Answer: fish"])
    asyncio.run(asking.step())
    client = asking.client
    assert isinstance(client, ScriptedClient)
    seen = [DOCUMENT in "".join(message.content for message in call.messages) for call in client.calls]
    assert seen == [call.messages[0].content.startswith("Ask") for call in client.calls]
    assert (seen.count(True), seen.count(False)) == (2, 8)


@pytest.mark.parametrize("options", [0, 4])
def test_improvised_challenges_are_usable_and_improvised_answers_right_by_chance(options: int) -> None:
    spice, spec = module("spice"), make_arena("spice", {"options": options})
    rng, right = Random(1), 0
    for document in list(spice.PASSAGES) * 20:
        challenge, reason = spice.parse_challenge(
            spec.improvise("Challenger", [Message("user", document)], rng), document, options
        )
        assert challenge is not None, reason
        right += spec.improvise("Reasoner", [Message("user", challenge.question)], rng) == f"Answer: {challenge.answer}"
    assert right / 240 == pytest.approx(0.25 if options else 0.0, abs=0.06)


def test_gaps_are_whole_words_in_every_script() -> None:
    document = "Herr Müller wohnt in Köln. Die Straße führt über die Brücke. Room B12abc is empty."
    words, spice = set(re.findall(r"\w+", document)), module("spice")
    for seed in range(40):
        challenge = spice.make_cloze(document, 4, Random(seed))
        assert spice.GAP in challenge.question
        assert {challenge.answer, *spice.parse_choices(challenge.question)} <= words
    assert spice.make_cloze("...", 0, Random(1)) == QuestionAnswer("___", "unknown")


def test_reasoners_are_evaluated_on_given_problems() -> None:
    pytest.importorskip("reasoning_gym")
    evaluation = {"dataset": "spell_backward", "seed": 3, "size": 6}
    spec = make_arena("spice", {"evaluation": evaluation})
    reasoning = spec.open(ScriptedClient("Answer: tuobnrut"), ArenaOptions(seed=5))
    results = asyncio.run(reasoning.generate_rollouts(spec.evaluation_batch(reasoning)))
    right = [result.rollout.rewards["Reasoner"] == 1.0 for result in results]
    assert right == [result.rollout.artifact["answer"] == "tuobnrut" for result in results]
