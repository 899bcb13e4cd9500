"""Questions from a corpus: a challenger reads a document and asks; reasoners, who do not see it, answer.

After SPICE (Liu et al. 2025, arXiv 2510.24684): one policy plays both, reasoners earn 1 for the right answer, and the
challenger earns most where their answers vary most. Only the challenger sees the document, which must contain the
answer, so that it cannot invent one; a question that gives its answer away or is otherwise unusable is penalised.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import exp
from random import Random
from typing import Annotated, Any

import msgspec

from arena.arena import Arena
from arena.datasets import ProblemSet
from arena.environments import register
from arena.episodes import Episode
from arena.questions import (
    ProposalEpisode,
    ProposalSpec,
    QuestionAnswer,
    QuestionEpisode,
    extract_labelled,
    list_questions,
    normalise_answer,
)
from arena.rubrics import Rubric
from schemas.config.base import Table
from schemas.episodes import EpisodeRequest, EpisodeState, Message, Rollout
from schemas.errors import ConfigError
from schemas.numbers import Count, PositiveFloat, PositiveInt

CHALLENGER, REASONER = "Challenger", "Reasoner"
EVALUATION_QUESTIONS_PER_DOCUMENT = 8
"""Questions about each document from which evaluations are drawn."""

PASSAGES: Sequence[str] = (
    "The heron stands in the pond. The heron eats fish. The heron builds its nest of sticks.",
    "The mole lives in the soil. The mole eats worms. The mole digs in the dark.",
    "The goat climbs on the rocks. The goat eats grass. The goat gives milk.",
    "The bee flies in the garden. The bee drinks nectar. The bee gives honey.",
    "The owl sits in the barn. The owl eats mice. The owl hunts at night.",
    "The salmon swims in the river. The salmon eats shrimp. The salmon lays its eggs in gravel.",
    "The miller works at dawn. The miller grinds wheat. The miller sells flour.",
    "The potter works at noon. The potter shapes clay. The potter sells bowls.",
    "The weaver works at dusk. The weaver spins wool. The weaver sells shawls.",
    "The smith works by day. The smith heats iron. The smith sells nails.",
    "The ferry leaves in the morning. The ferry carries coal. The ferry lands at the quay.",
    "The baker works at midnight. The baker kneads dough. The baker sells bread.",
)
"""The built-in corpus: short documents of facts."""
WORD_KINDS: Mapping[str, Sequence[str]] = {
    "place": ("pond", "soil", "rocks", "garden", "barn", "river", "quay", "gravel"),
    "food": ("fish", "worms", "grass", "nectar", "mice", "shrimp"),
    "ware": ("milk", "honey", "flour", "bowls", "shawls", "nails", "bread"),
    "time": ("dark", "night", "dawn", "noon", "dusk", "day", "morning", "midnight"),
    "matter": ("sticks", "wheat", "clay", "wool", "iron", "coal", "dough"),
}
"""Words of the corpus by kind: a gap's choices are words of one kind."""
GAP = "___"
_CHOICES = re.compile(r"\(([^()]*)\)\s*\Z")


class Settings(Table, frozen=True):
    """The ``[game]`` settings."""

    documents: tuple[str, ...] = ()
    """The corpus; empty for the built-in one."""
    evaluation: ProblemSet | None = None
    """Problems of evaluation matches, of reasoning-gym: ``{ dataset = "chain_sum", seed = 1 }``; None for sentences of
    the corpus with a gap."""
    challenges: PositiveInt = 4
    """Challenges from a document: the group in which challengers are compared."""
    documents_per_batch: PositiveInt = 2
    reasoner_rollouts: Annotated[int, msgspec.Meta(ge=2)] = 8
    """Attempts at a challenge: the group in which reasoners are compared."""
    reasoners_trainable: bool = True
    options: Count = 4
    """Choices that a question must offer; 0 for free answers."""
    sharpness: PositiveFloat = 0.01
    """Variance (of the variance of answers) of the reward's bell curve; see ``variance_reward``."""
    unusable: Annotated[float, msgspec.Meta(ge=-10, le=0)] = -0.1
    """Reward of an unusable challenge."""
    max_tokens: PositiveInt = 256
    """Most tokens of a reply."""

    def __post_init__(self) -> None:
        if self.options == 1:
            raise ConfigError("options: 1; expected 2 or more to choose from, or 0")
        if not all(document.strip() for document in self.documents):
            raise ConfigError("documents: one is empty; expected text")


def parse_choices(question: str) -> list[str]:
    """The choices of a question, in brackets at its end."""
    match = _CHOICES.search(question)
    return [choice.strip() for choice in match[1].split(",")] if match else []


def parse_challenge(reply: str, document: str, options: int) -> tuple[QuestionAnswer | None, str]:
    """The question after ``Question:`` and the answer after ``Answer:``; or None and why they are unusable.

    The document must contain the answer, as whole words. The question must offer so many different ``options``, the
    answer among them; with 0 it offers none, and must not contain the answer.
    """
    question, answer = extract_labelled(reply, "Question"), extract_labelled(reply, "Answer")
    if not question or not normalise_answer(answer):
        return None, "no question" if not question else "no answer"
    if not _contains_answer(document, answer):
        return None, "its answer is not in the document"
    choices = [normalise_answer(choice) for choice in parse_choices(question)]
    if options and (len(choices) != options or len(set(choices)) != options or "" in choices):
        return None, f"not {options} different choices"
    if options and normalise_answer(answer) not in choices:
        return None, "its answer is no choice"
    stem = _CHOICES.sub("", question) if options else question
    if not normalise_answer(stem):
        return None, "no question"
    if _contains_answer(stem, answer):
        return None, "it gives its answer away"
    return QuestionAnswer(question, answer), ""


def make_cloze(document: str, options: int, rng: Random) -> QuestionAnswer:
    """A sentence of a document with a gap for one of its words, and other words of the same kind as choices.

    A word of no known kind (``WORD_KINDS``) becomes a gap only if there are no others; the choices are then all words
    of the document.
    """
    sentences = filter(None, map(str.strip, re.findall(r"[^.!?]+[.!?]?", document)))
    gaps = [
        (sentence, word)
        for sentence in sentences
        for word in re.findall(r"(?<!\w)[^\W\d_]+(?!\w)", sentence)
        if len(word) > 2 and normalise_answer(word)
    ]
    known = [(sentence, word) for sentence, word in gaps if _words_of_same_kind(word)]
    sentence, word = rng.choice(known or gaps or [(GAP, "unknown")])
    similar = _words_of_same_kind(word) or [word for _, word in gaps]
    others = sorted({other for other in similar if normalise_answer(other) != normalise_answer(word)})
    candidates = [word, *rng.sample(others, min(max(0, options - 1), len(others)))]
    rng.shuffle(candidates)
    gapped = re.sub(rf"\b{re.escape(word)}\b", GAP, sentence)
    return QuestionAnswer(f"{gapped} ({', '.join(candidates)})" if options else gapped, word)


def _contains_answer(text: str, answer: str) -> bool:
    return f" {normalise_answer(answer)} " in f" {normalise_answer(text)} "


def _words_of_same_kind(word: str) -> Sequence[str]:
    return next((words for words in WORD_KINDS.values() if word in words), ())


def variance_reward(rate: float, sharpness: float) -> float:
    """exp(-(Var - 1/4)^2 / (2 sharpness)), with Var = rate (1 - rate) the variance of right and wrong answers.

    SPICE's reward of the challenger: 1 where half of the answers are right, nearly 0 where all or none are.
    """
    return exp(-((rate * (1.0 - rate) - 0.25) ** 2) / (2.0 * sharpness))


REASON = QuestionEpisode("reason", REASONER)
"""One answer to a challenge without the document."""


class ChallengeEpisode(ProposalEpisode):
    """A question from a document, and answers to it."""

    episode_type = "challenge"

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

        def frontier(rollout: Rollout, arena: Arena) -> dict[str, float]:
            rate = rollout.extras.get("pass_rate")
            return {CHALLENGER: settings.unusable if rate is None else variance_reward(rate, settings.sharpness)}

        self.rubric = Rubric([frontier])

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        """Read, ask, and run attempts at the question if it is usable."""
        response = await self.call_model(CHALLENGER, artifact["document"], arena)
        challenge, reason = parse_challenge(response.text, artifact["document"], self.settings.options)
        state.data |= {"question": "" if challenge is None else challenge.question, "unusable": reason}
        if challenge is not None:
            count, trainable = self.settings.reasoner_rollouts, self.settings.reasoners_trainable
            await self.run_attempts(arena, state, challenge, REASON, count, trainable)
        return state


class SpiceSpec(ProposalSpec):
    """One seat: the policy is both the challenger and the reasoners."""

    name = "spice"
    seats = ("Both",)
    items, item = "documents", "document"
    batch, compared = "documents_per_batch", "challenges"
    attempts = "reasoner_rollouts"
    settings_type = Settings

    def __init__(self, settings: Settings) -> None:
        """Check the problems of evaluations, so that a league does not begin with a set that cannot be made."""
        super().__init__(settings)
        list_questions(settings.evaluation or ())
        choices = f" Offer {settings.options} choices in brackets." if settings.options else ""
        task = f"Ask what the text answers in a word.{choices} Question: ... Answer: ..."
        self.prompts = {CHALLENGER: task, REASONER: "Answer in a word. Answer: ..."}

    def make_episodes(self) -> Sequence[Episode]:
        """The challenge, and the answer that it requests."""
        return ChallengeEpisode(self.settings), REASON

    def make_items(self) -> Iterable[Any]:
        """The documents."""
        return ({"document": document} for document in self.settings.documents or PASSAGES)

    def evaluation_batch(self, arena: Arena) -> Sequence[EpisodeRequest]:
        """Single answers to questions that were not proposed: given problems, or sentences of the corpus with a gap."""
        if self.settings.evaluation is not None:
            problems = map(msgspec.to_builtins, list_questions(self.settings.evaluation))
            return [EpisodeRequest(REASON.episode_type, problem) for problem in problems]
        options = self.settings.options
        return [
            EpisodeRequest(REASON.episode_type, msgspec.to_builtins(make_cloze(document, options, Random(seed))))
            for document in self.settings.documents or PASSAGES
            for seed in range(EVALUATION_QUESTIONS_PER_DOCUMENT)
        ]

    def improvise(self, role_id: str | None, messages: Sequence[Message], rng: Random) -> str:
        """A random sentence with a gap; a random choice."""
        if role_id == CHALLENGER:
            challenge = make_cloze(messages[-1].content, self.settings.options, rng)
            return f"Question: {challenge.question}\nAnswer: {challenge.answer}"
        offered = parse_choices(messages[-1].content)
        return f"Answer: {rng.choice(offered) if offered else 'unknown'}"


make = register("spice")(SpiceSpec.of)
