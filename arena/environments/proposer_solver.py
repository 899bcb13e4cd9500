"""A proposer asks, solvers try: questions that half of the solvers can answer earn most, and are kept.

The proposer earns 1 - 2 |pass rate - target|, or -1 for an unusable question. Answers to arithmetic are computed, not
taken from the proposer. Kept questions are practised later and shown to proposers: the curriculum. Practice updates
their weights.

With ``populations`` teachers and students are different agents: a seat for the solvers, and one for the proposer.
"""

from collections.abc import Iterable, Sequence
from random import Random
from typing import Annotated, Any

import msgspec

from arena.arena import Arena
from arena.datasets import ProblemSet
from arena.environments import ArenaSpec, DatasetArena, register
from arena.episodes import Episode
from arena.questions import (
    ProposalEpisode,
    ProposalSpec,
    QuestionAnswer,
    QuestionEpisode,
    QuestionRules,
    list_questions,
    parse_question,
    random_arithmetic,
)
from arena.rubrics import Rubric
from schemas.episodes import Artifact, EpisodeRequest, EpisodeState, GenerateResult, Message, Rollout
from schemas.errors import ConfigError
from schemas.ids import derive_seed
from schemas.numbers import Count, PositiveInt, Share

PROPOSER, SOLVER = "Proposer", "Solver"
STORE = "questions"
EVALUATION_QUESTIONS = 64
"""Questions from which evaluations are drawn."""
UNUSABLE_REWARD = -1.0


class Settings(QuestionRules, frozen=True):
    """The ``[game]`` settings."""

    questions: tuple[QuestionAnswer, ...] | ProblemSet = (
        QuestionAnswer("2 + 3 = ?", "5"),
        QuestionAnswer("7 - 4 = ?", "3"),
    )
    """The initial questions. A table ``{ dataset = "chain_sum", seed = 1 }`` takes problems of reasoning-gym, whose
    verifiers score the answers; evaluations then draw from problems of the next seed."""
    proposals: Count = 4
    """Proposals of a batch: the group in which proposers are compared."""
    practice: Count = 4
    """Known questions of a batch, to practise."""
    solver_rollouts: PositiveInt = 8
    """Attempts at a question: the group in which solvers are compared."""
    solvers_trainable: bool = True
    """Whether attempts at proposed questions are trained on; those at known ones are."""
    target: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.5
    """Pass rate that earns most."""
    keep: tuple[Share, Share] = (0.2, 0.8)
    """Range of pass rates in which a proposed question is kept."""
    examples: Count = 1
    """Known questions in a proposer's prompt."""
    near: Count = 2
    """Greatest error of improvised answers."""
    max_tokens: PositiveInt = 128
    """Most tokens of a reply."""
    populations: bool = False
    """Whether solvers and proposer are seats of their own, 0 and 1, for populations of students and of teachers
    (``matchmaking.seats``). Evaluations are of solvers alone."""

    def __post_init__(self) -> None:
        if self.populations and self.practice:
            raise ConfigError(
                f"practice: {self.practice} with populations; expected 0, since no teacher is in a practice"
            )
        if not self.proposals + self.practice:
            raise ConfigError("proposals and practice: both 0; expected one of them to be 1 or more")
        if not self.questions:
            raise ConfigError("questions: none; expected at least one to begin with")
        if self.keep[0] > self.keep[1]:
            raise ConfigError(f"keep: {list(self.keep)}; expected two ascending shares")
        if not self.operations or set(self.operations) - set("+-*"):
            raise ConfigError(f"operations: {self.operations!r}; expected some of '+-*'")


def curriculum_weight(rate: float, target: float) -> float:
    """Weight of a question in the store: 1 at the target pass rate, falling linearly to 0.02 at 0 and 1.

    It stays above 0, so that questions that were too hard or are forgotten are tried again now and then.
    """
    return max(0.02, 1.0 - abs(rate - target) / (target if rate < target else 1.0 - target))


SOLVE = QuestionEpisode("solve", SOLVER)


class SolverEpisode(ProposalEpisode):
    """Puts a question to solvers, and stores it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def store_question(self, arena: Arena, question: QuestionAnswer, rate: float) -> None:
        """Add a question to the store, or update its weight, which grows toward the target pass rate."""
        weight = curriculum_weight(rate, self.settings.target)
        arena.stores[STORE].add(Artifact(msgspec.to_builtins(question), weight=weight))


class ProposeEpisode(SolverEpisode):
    """A question and attempts at it."""

    episode_type = "propose"

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)

        def goldilocks(rollout: Rollout, arena: Arena) -> dict[str, float]:
            rate = rollout.extras.get("pass_rate")
            return {PROPOSER: UNUSABLE_REWARD if rate is None else 1.0 - 2.0 * abs(rate - settings.target)}

        self.rubric = Rubric([goldilocks])

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        """Propose a question, with known ones as examples, and run attempts at it if it is usable."""
        settings = self.settings
        examples = arena.stores[STORE].sample(settings.examples, True, Random(state.seed))
        lines = [*(f"Known: {artifact.data['question']}" for artifact in examples), "Write a new question."]
        response = await self.call_model(PROPOSER, "\n".join(lines), arena)
        question, reason = parse_question(response.text, settings)
        state.data |= {"question": "" if question is None else question.question, "unusable": reason}
        if question is not None:
            rate = await self.run_attempts(
                arena, state, question, SOLVE, settings.solver_rollouts, settings.solvers_trainable
            )
            if settings.keep[0] <= rate <= settings.keep[1]:
                self.store_question(arena, question, rate)
        return state


def solved(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """Share of right attempts."""
    return {SOLVER: rollout.extras["pass_rate"]}


class PractiseEpisode(SolverEpisode):
    """Attempts at a known question; the solvers' share of right answers is the episode's reward."""

    episode_type = "practise"
    rubric = Rubric([solved])

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        """Run attempts at the question, and update its weight."""
        question = msgspec.convert(artifact, QuestionAnswer)
        state.data["question"] = question.question
        rate = await self.run_attempts(arena, state, question, SOLVE, self.settings.solver_rollouts)
        self.store_question(arena, question, rate)
        return state


class ProposerSolverSpec(ProposalSpec):
    """One seat: the policy is both the proposer and the solvers. With ``populations`` two."""

    name = "proposer_solver"
    seats: Sequence[str] = ("Both",)
    items, item = "questions", "question"
    batch = "proposals"
    attempts = "solver_rollouts"
    settings_type = Settings

    def __init__(self, settings: Settings) -> None:
        """Check the initial questions, so that a league does not begin with a set that cannot be made."""
        super().__init__(settings)
        list_questions(settings.questions)
        self.seats = (SOLVER, PROPOSER) if settings.populations else ("Both",)
        task = f"Write arithmetic for others to solve, with {' '.join(settings.operations)}, like Question: 2 + 3 = ?"
        free = "Write a question with a short answer. Question: ... Answer: ..."
        self.prompts = {PROPOSER: free if settings.trust else task, SOLVER: "Solve it. Answer: ..."}

    def roles_in(self, seat: int) -> Sequence[str]:
        """Both roles, or the one of the seat's name."""
        return (self.seats[seat],) if self.settings.populations else tuple(self.prompts)

    def make_episodes(self) -> Sequence[Episode]:
        """A proposal, practice, and the attempt that both request."""
        return ProposeEpisode(self.settings), PractiseEpisode(self.settings), SOLVE

    def make_items(self) -> Iterable[Any]:
        """The initial questions."""
        return map(msgspec.to_builtins, list_questions(self.settings.questions))

    def make_batch(self, arena: DatasetArena) -> list[EpisodeRequest]:
        """One group of proposals, and practice, each a group by itself."""
        practise = EpisodeRequest(PractiseEpisode.episode_type, store=STORE, weighted=True)
        propose = EpisodeRequest(ProposeEpisode.episode_type)
        return arena.make_group(propose, "proposals", self.settings.proposals) + [practise] * self.settings.practice

    def for_evaluation(self) -> ArenaSpec:
        """The solvers' seat alone where proposers have their own: what a teacher earns is no point against them."""
        if not self.settings.populations:
            return self
        examined = ProposerSolverSpec(self.settings)
        examined.seats = (SOLVER,)
        return examined

    def score(self, result: GenerateResult) -> tuple[float, ...]:
        """Add the pass rate as what students earn in a proposal, 0 for an unusable question."""
        scores = super().score(result)
        if self.settings.populations and result.rollout.episode_type == ProposeEpisode.episode_type:
            return (float(result.rollout.extras.get("pass_rate", 0.0)), *scores[1:])
        return scores

    def evaluation_batch(self, arena: Arena) -> Sequence[EpisodeRequest]:
        """Single attempts at questions that were not proposed: arithmetic, the initial ones, or unseen problems."""
        settings = self.settings
        drawn = [
            random_arithmetic(settings, Random(derive_seed(0, "examination", number)))
            for number in range(EVALUATION_QUESTIONS)
        ]
        parsed = [parse_question(f"Question: {question}", settings)[0] for question in drawn]
        unseen = isinstance(settings.questions, ProblemSet)
        questions = list_questions(settings.questions, 1) if unseen or settings.trust else filter(None, parsed)
        return [EpisodeRequest(SOLVE.episode_type, msgspec.to_builtins(question)) for question in questions]

    def improvise(self, role_id: str | None, messages: Sequence[Message], rng: Random) -> str:
        """Arithmetic of two random numbers; an answer with a small error."""
        if role_id == PROPOSER:
            return f"Question: {random_arithmetic(self.settings, rng)}"
        # Only arithmetic has an answer that is known to be a number.
        rules = msgspec.structs.replace(self.settings, trust=False)
        question, _ = parse_question(f"Question: {messages[-1].content}", rules)
        near = self.settings.near
        value = int(question.answer) if question else 0
        return f"Answer: {value + rng.randint(-near, near)}"

    def passed(self, score: float) -> bool:
        """A right answer; at least half of the attempts in practice; a proposal that earns half of what it could."""
        return score >= 0.5


make = register("proposer_solver")(ProposerSolverSpec.of)
