"""Questions from a corpus: a challenger reads a document and asks; reasoners, who do not see it, answer.

After SPICE (Liu et al. 2025, arXiv 2510.24684): one policy plays both, reasoners earn 1 for the right answer, and the
challenger earns most where their answers vary most. Only the challenger sees the document, which must contain the
answer, so that it cannot invent one; a question that gives its answer away or is otherwise unusable is penalised.
"""

from collections.abc import Iterable, Sequence
from math import exp
from random import Random
from typing import Annotated, Any

import msgspec

from arena.arena import Arena
from arena.datasets import PASSAGES, ProblemSet
from arena.environments import register
from arena.episodes import Episode
from arena.questions import (
    ProposalEpisode,
    ProposalSpec,
    QuestionEpisode,
    list_questions,
    make_cloze,
    parse_challenge,
    parse_choices,
)
from arena.rubrics import Rubric
from schemas.config.base import Table
from schemas.episodes import EpisodeRequest, EpisodeState, Message, Rollout
from schemas.errors import ConfigError
from schemas.numbers import Count, PositiveFloat, PositiveInt

CHALLENGER, REASONER = "Challenger", "Reasoner"
EVALUATION_QUESTIONS_PER_DOCUMENT = 8
"""Questions about each document from which evaluations are drawn."""


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
