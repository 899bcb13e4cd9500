"""Word problems in the style of GSM8K: several attempts at each question are compared.

The right number earns 1 (Cobbe et al. 2021 mark it with ``####``), the form alone a little. The problems are the 48 of
``arena.datasets``, or given by the settings, also as GSM8K's own JSON lines.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any

import msgspec

from arena.arena import Arena
from arena.datasets import PROBLEMS, ProblemSet, score_answer
from arena.environments import DatasetSpec, register
from arena.questions import (
    ANSWER_MARK,
    QuestionAnswer,
    QuestionEpisode,
    ends_with_marked_number,
    extract_marked,
    extract_number,
    list_questions,
    parse_number,
)
from arena.rubrics import Rubric
from schemas.config import convert
from schemas.config.league import config_path
from schemas.episodes import Artifact, EpisodeRequest, Message, Rollout
from schemas.errors import ConfigError
from schemas.numbers import Count, PositiveInt

SOLVER = "Solver"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[game]`` settings."""

    problems: str | list[QuestionAnswer] | ProblemSet = []
    """A file of JSON lines with ``question`` and ``answer``, or the problems themselves; empty for the built-in ones.
    ``configs/data/NAME`` is the package's own where there is no such file. An answer is a number, or a text with the
    number after ``####``. A table ``{ dataset = "chain_sum", seed = 1 }`` takes problems of reasoning-gym, whose
    verifiers score the answers."""
    first: Count = 0
    """Use only so many of them; 0 for all."""
    held_out: Count = 0
    """The last so many are for evaluation alone, which then draws no others; 0 trains and evaluates on all."""
    group_size: PositiveInt = 8
    """Attempts at a problem that are compared with each other."""
    problems_per_batch: PositiveInt = 4
    format_weight: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.1
    """Reward of the form; the right answer earns 1."""
    max_tokens: PositiveInt = 256
    """Most tokens of an answer."""


def correct(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """1 for the right number; the score of a problem's verifier, if it has one."""
    reply = rollout.steps[-1].completion_text
    question = msgspec.convert(rollout.artifact, QuestionAnswer)
    if question.problem is not None:
        return {SOLVER: score_answer(extract_marked(reply), question.problem)}
    return {SOLVER: float(extract_number(reply) == parse_number(question.answer))}


def form(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """1 if the answer ends with its mark and a number, or any text where a verifier scores it."""
    reply = rollout.steps[-1].completion_text
    if "problem" in rollout.artifact:
        return {SOLVER: float(reply.count(ANSWER_MARK) == 1 and extract_marked(reply) != "")}
    return {SOLVER: float(ends_with_marked_number(reply))}


class WordProblemsSpec(DatasetSpec):
    """One seat: the policy improves at the problems without opponents."""

    name = "word_problems"
    seats = (SOLVER,)
    items, item = "problems", "problem"
    batch = "problems_per_batch"
    settings_type = Settings

    def __init__(self, settings: Settings) -> None:
        """Check the problems, so that a league does not begin with bad ones."""
        super().__init__(settings)
        problems = problems_of(settings)
        if 0 < settings.held_out >= len(problems):
            raise ConfigError(
                f"game.settings.held_out: {settings.held_out} of {len(problems)} problems; "
                "expected fewer, to train on the rest"
            )
        trained = len(problems) - settings.held_out
        self._trained, self._held_out = problems[:trained], problems[trained:]
        answer = "answer" if isinstance(settings.problems, ProblemSet) else "number"
        self.prompts = {SOLVER: f"Solve the problem. End with {ANSWER_MARK} and the {answer}."}

    def make_episodes(self) -> Sequence[QuestionEpisode]:
        """The attempt."""
        rubric = Rubric([correct, form], [1.0, self.settings.format_weight])
        return [QuestionEpisode("word_problem", SOLVER, rubric)]

    def make_items(self) -> Iterable[Any]:
        """The problems to train on."""
        return map(msgspec.to_builtins, self._trained)

    def evaluation_batch(self, arena: Arena) -> Sequence[EpisodeRequest]:
        """An attempt at each problem that is held out; without any, a step's."""
        if not self._held_out:
            return super().evaluation_batch(arena)
        return [
            EpisodeRequest("word_problem", msgspec.to_builtins(problem), meta={"problem": f"held-out-{number}"})
            for number, problem in enumerate(self._held_out)
        ]

    def request(self, episode_type: str, artifact: Artifact) -> EpisodeRequest:
        """An attempt, which names its problem."""
        return EpisodeRequest(episode_type, artifact.data, meta={"problem": artifact.id})

    def improvise(self, role_id: str | None, messages: Sequence[Message], rng: Random) -> str:
        """The right form, with a number that some operations on those in the question result in."""
        return f"{ANSWER_MARK} {rng.choice(reachable_values(messages[-1].content) or [0])}"

    def passed(self, score: float) -> bool:
        """Whether the answer is right, in any form."""
        return score >= 1.0


def problems_of(settings: Settings) -> list[QuestionAnswer]:
    """The problems, with bare numbers for answers unless a verifier scores them.

    Raises:
        ConfigError: an unreadable file, no problems, an answer that is not a number, or a set that cannot be made.
    """
    if isinstance(settings.problems, ProblemSet):
        return list_questions(settings.problems)[: settings.first or None]
    chosen = _read_problems(settings.problems) if isinstance(settings.problems, str) else settings.problems
    chosen = chosen or [QuestionAnswer(question, str(answer)) for question, answer in PROBLEMS]
    problems = []
    for at, problem in enumerate(chosen[: settings.first or None]):
        answer = problem.answer.rpartition(ANSWER_MARK)[2].strip()
        if parse_number(answer) is None or not problem.question.strip():
            raise ConfigError(
                f"game.settings.problems[{at}]: {problem.question!r} with the answer {problem.answer!r}; "
                f"expected a question, and a number for an answer or one behind {ANSWER_MARK}"
            )
        problems.append(QuestionAnswer(problem.question, answer))
    return problems


def _read_problems(path: str) -> list[QuestionAnswer]:
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    at = path
    problems = []
    try:
        # Not by ``splitlines``: texts in JSON may hold other characters that separate lines.
        for number, line in enumerate(config_path(Path(path)).read_text(encoding="utf-8").split("\n"), 1):
            at = f"{path}, line {number}"
            if line.strip():
                problems.append(convert(decode(line), QuestionAnswer, ""))
    except (OSError, UnicodeDecodeError, msgspec.DecodeError, ConfigError) as error:
        raise ConfigError(f"game.settings.problems: {at}: {error}; expected JSON lines of question, answer") from None
    if not problems:
        raise ConfigError(f"game.settings.problems: {path} is empty; expected a problem on each line")
    return problems


def reachable_values(question: str) -> list[int]:
    """Results of the first three numbers of a question from left to right, by every choice of operations.

    Only integers from 0, ascending, each once.
    """
    words = [word.strip(".,?!") for word in question.split()]
    numbers = [int(word) for word in words if word.isdecimal()][:3]
    reached = set(numbers[:1])
    for number in numbers[1:]:
        whole = {had // number for had in reached if number and had % number == 0}
        reached = whole.union(*((had + number, had - number, had * number) for had in reached))
    return sorted(value for value in reached if value >= 0)


make = register("word_problems")(WordProblemsSpec.of)
