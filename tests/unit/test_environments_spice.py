"""Challenges from a corpus: who sees the document, which questions can be used, and what each role earns."""

import asyncio
import re
from collections.abc import Callable, Sequence
from itertools import count
from math import exp
from random import Random
from typing import Any

import pytest

from arena.arena import Arena
from arena.clients import ScriptedClient
from arena.datasets import PASSAGES, WORD_KINDS
from arena.environments import ArenaOptions, make_arena
from arena.environments.spice import variance_reward
from arena.questions import GAP, QuestionAnswer, make_cloze, parse_challenge, parse_choices
from schemas.config import Plugin
from schemas.episodes import Message
from schemas.errors import ConfigError
from trainer.advantages.total_reward import CREDIT_ASSIGNERS

DOCUMENT = "The heron lives in the pond. The heron eats fish, not the moss."
ASKED = "Question: The heron eats ___. (fish, mice, moss)\nAnswer: fish"


def test_the_challenger_earns_most_where_half_of_the_answers_are_right() -> None:
    # SPICE's formula with its 0.01: the variance at 3/4 is 3/16, 1/16 off the best one.
    assert variance_reward(0.5, 0.01) == 1.0
    assert variance_reward(0.25, 0.01) == variance_reward(0.75, 0.01) == pytest.approx(exp(-(0.0625**2) / 0.02))
    assert variance_reward(0.0, 0.01) == variance_reward(1.0, 0.01) == pytest.approx(exp(-3.125))


@pytest.mark.parametrize(
    ("reply", "options", "why"),
    [
        (ASKED, 3, ""),
        ("Question: What does the heron eat?\nAnswer: Fish.", 0, ""),
        ("Question: Where?\nAnswer: the pond", 0, ""),
        ("What does the heron eat? fish", 0, "no question"),
        ("Question: What does it eat?\nAnswer: ?", 0, "no answer"),
        ("Question: What does it eat?\nAnswer: frogs", 0, "its answer is not in the document"),
        ("Question: What does it eat?\nAnswer: fis", 0, "its answer is not in the document"),
        ("Question: Does the heron eat fish?\nAnswer: fish", 0, "it gives its answer away"),
        ("Question: Fish is ___. (fish, mice, moss)\nAnswer: fish", 3, "it gives its answer away"),
        ("Question: It eats ___. (fish, mice)\nAnswer: fish", 3, "not 3 different choices"),
        ("Question: It eats ___. (fish, mice, Mice)\nAnswer: fish", 3, "not 3 different choices"),
        ("Question: It eats ___. (pond, mice, moss)\nAnswer: fish", 3, "its answer is no choice"),
        ("Question: ___ (fish, mice, moss)\nAnswer: fish", 3, "no question"),
    ],
)
def test_answers_have_to_stand_in_the_document_and_not_in_the_question(reply: str, options: int, why: str) -> None:
    challenge, reason = parse_challenge(reply, DOCUMENT, options)
    assert (challenge is None, reason) == (bool(why), why)


def scripted(challenges: Sequence[str], answers: Sequence[str]) -> Callable[[Sequence[Message]], str]:
    """Challenges and answers, each in turn."""
    asked, answered = count(), count()

    def reply(messages: Sequence[Message]) -> str:
        if messages[0].content.startswith("Ask"):
            return challenges[next(asked) % len(challenges)]
        return answers[next(answered) % len(answers)]

    return reply


def opened(challenges: Sequence[str], answers: Sequence[str], **settings: Any) -> Arena:
    given = {"challenges": 2, "documents_per_batch": 1, "reasoner_rollouts": 4, "options": 3, "documents": [DOCUMENT]}
    opening = ArenaOptions(credit_assigner=CREDIT_ASSIGNERS.build(Plugin(name="grpo")))
    return make_arena("spice", {**given, **settings}).open(
        ScriptedClient.from_function(scripted(challenges, answers)), opening
    )


def test_rewards_groups_and_advantages_are_those_worked_out_by_hand() -> None:
    batch = asyncio.run(opened([ASKED, "no idea"], ["Answer: fish", "mice", "The fish!", "Answer: moss"]).step())

    # One challenge that half can answer earns 1, one that cannot be used -0.1, with a mean of 0.45.
    assert [(record.role_id, record.group, record.reward) for record in batch.records] == [
        ("Challenger", "0|document-1|challenge|Challenger", 1.0),
        *(("Reasoner", "1|arena-0|reason|Reasoner", reward) for reward in (1.0, 0.0, 1.0, 0.0)),
        ("Challenger", "0|document-1|challenge|Challenger", -0.1),
    ]
    assert [record.advantage for record in batch.records] == pytest.approx([0.55, 0.5, -0.5, 0.5, -0.5, -0.55])


def test_evaluations_ask_the_same_about_every_document_and_no_challenger_is_heard() -> None:
    spec = make_arena("spice", {"documents": [DOCUMENT, *PASSAGES[:2]], "options": 3})
    asked = spec.evaluation_batch(opened([], []))

    assert asked == spec.evaluation_batch(opened([], []))
    assert {request.episode_type for request in asked} == {"reason"}
    for request in asked:
        assert request.artifact["answer"] in parse_choices(request.artifact["question"])
    assert len({request.artifact["question"] for request in asked}) > 12


def test_only_the_challenger_sees_the_document() -> None:
    arena = opened([ASKED], ["Answer: fish"])
    asyncio.run(arena.step())
    client = arena.client
    assert isinstance(client, ScriptedClient)

    saw = [any(DOCUMENT in message.content for message in call.messages) for call in client.calls]
    asked = [call.messages[0].content.startswith("Ask") for call in client.calls]
    assert saw == asked
    assert saw.count(True) == 2
    assert saw.count(False) == 8


def test_reasoners_that_are_not_to_be_trained_stay_out_of_the_batch() -> None:
    batch = asyncio.run(opened([ASKED], ["Answer: fish"], reasoners_trainable=False).step())
    assert {record.role_id for record in batch.records} == {"Challenger"}
    assert batch.counts.of_untrainable == 8


@pytest.mark.parametrize("options", [0, 4])
def test_improvised_challenges_can_be_used_and_improvised_answers_are_right_by_chance(options: int) -> None:
    spec = make_arena("spice", {"options": options})
    rng, right = Random(1), 0
    for document in list(PASSAGES) * 20:
        said = spec.improvise("Challenger", [Message("user", document)], rng)
        challenge, why = parse_challenge(said, document, options)
        assert challenge is not None, why
        answer = spec.improvise("Reasoner", [Message("user", challenge.question)], rng)
        right += answer == f"Answer: {challenge.answer}"

    assert right / 240 == pytest.approx(0.25 if options else 0.0, abs=0.06)


def test_gaps_are_of_words_that_facts_are_about_with_choices_of_their_kind() -> None:
    words = {word: kind for kind, found in WORD_KINDS.items() for word in found}
    assert len(words) == sum(map(len, WORD_KINDS.values()))
    for seed, document in enumerate(list(PASSAGES) * 5):
        challenge = make_cloze(document, 4, Random(seed))
        assert len({words[choice] for choice in parse_choices(challenge.question)}) == 1


def test_gaps_are_of_whole_words_in_every_script() -> None:
    document = "Herr Müller wohnt in Köln. Die Straße führt über die Brücke. Room B12abc is empty."
    words = set(re.findall(r"\w+", document))
    for seed in range(40):
        challenge = make_cloze(document, 4, Random(seed))
        assert GAP in challenge.question
        assert {challenge.answer, *parse_choices(challenge.question)} <= words


def test_documents_of_other_words_are_asked_about_too() -> None:
    challenge = make_cloze("Ravens steal spoons from kitchens.", 3, Random(1))
    assert parse_challenge(
        f"Question: {challenge.question}\nAnswer: {challenge.answer}", "Ravens steal spoons from kitchens.", 3
    )
    assert make_cloze("...", 0, Random(1)) == QuestionAnswer("___", "unknown")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reasoner_rollouts": 1}, r"game\.settings\.reasoner_rollouts: 1; expected 2 or more"),
        ({"options": 1}, "options: 1; expected 2 or more"),
        ({"sharpness": 0.0}, "sharpness: 0.0"),
        ({"unusable": 1.0}, "unusable: 1.0"),
        ({"documents": ["a", " "]}, "documents: one is empty"),
        ({"corpus": []}, "corpus"),
    ],
)
def test_bad_settings_are_refused_with_what_was_expected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_arena("spice", settings)
