"""Questions with answers: parsing proposed ones, comparing answers, and the episodes that put them to solvers.

The answer to an arithmetic question is computed here. All other answers are taken from the proposal.
"""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from random import Random
from typing import Annotated, Any

import msgspec

from arena.arena import Arena
from arena.datasets import Problem, ProblemSet, score_answer
from arena.environments import DatasetSpec
from arena.episodes import Episode
from arena.episodes.chat import SingleTurnEpisode
from arena.rubrics import Rubric
from schemas.config.base import Table
from schemas.episodes import EpisodeRequest, EpisodeState, GenerateResult, Rollout
from schemas.errors import EpisodeError
from schemas.numbers import PositiveInt

ANSWER_MARK = "####"
"""Precedes the answer to a word problem, as in GSM8K."""

_MAX_NUMBER_LENGTH = 100
"""Characters of a number; longer ones are no answers, and Python does not convert them."""
_NUMBER = re.compile(r"(?<![\w.])-?\$?\d[\d,]*(?:\.\d+)?")
_MARKED_ENDING = re.compile(rf"{ANSWER_MARK}\s*-?\$?\d[\d,]*(?:\.\d+)?\.?\s*\Z")
_ARTICLES = frozenset({"a", "an", "the"})


def extract_number(reply: str) -> Fraction | None:
    """The number in a reply: the first after the last mark, or else the last one; None if there is none."""
    _, mark, answer = reply.rpartition(ANSWER_MARK)
    numbers = _NUMBER.findall(answer if mark else reply)
    return None if not numbers else parse_number(numbers[0] if mark else numbers[-1])


def parse_number(text: str) -> Fraction | None:
    """The value of a number, with or without thousands separators, dollar sign and full stop; None for other texts."""
    bare = text.strip().rstrip(".").replace(",", "").replace("$", "")
    is_number = len(bare) <= _MAX_NUMBER_LENGTH and re.fullmatch(r"-?\d+(\.\d+)?", bare, re.ASCII)
    return Fraction(bare) if is_number else None


def ends_with_marked_number(reply: str) -> bool:
    """Whether a reply ends with a mark and a number and has no other mark."""
    return reply.count(ANSWER_MARK) == 1 and _MARKED_ENDING.search(reply) is not None


def extract_marked(reply: str) -> str:
    """The text after the last mark, or the whole reply without one."""
    return reply.rpartition(ANSWER_MARK)[2].strip()


def extract_labelled(reply: str, label: str) -> str:
    """The text after ``label:`` at the beginning of a line, up to its end; the last of several, empty for none."""
    lines = re.findall(rf"^[ \t]*{re.escape(label)}[ \t]*:[ \t]*(.*)$", reply, re.MULTILINE | re.IGNORECASE)
    return lines[-1].strip() if lines else ""


def normalise_answer(text: str) -> str:
    """A short answer in lower case, without punctuation, articles and extra spaces."""
    words = re.findall(r"[^\W_]+", text.casefold())
    return " ".join(word for word in words if word not in _ARTICLES) or " ".join(words)


def is_equivalent_answer(answer: str, other: str) -> bool:
    """Whether two short answers are equal, numbers by value; an empty answer equals none."""
    numbers = parse_number(answer), parse_number(other)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return normalise_answer(answer) == normalise_answer(other) != ""


_ARITHMETIC_PATTERN = re.compile(
    r"(?:what\s+is\s+)?([0-9]{1,12}(?:\s*[-+*×]\s*[0-9]{1,12})+)\s*(?:=\s*\??|\?)?", re.IGNORECASE
)


class QuestionAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A question with its answer."""

    question: str
    answer: str
    problem: Problem | None = None
    """The problem that it is, where a verifier scores replies; ``answer`` may then be empty."""


def list_questions(source: Sequence[QuestionAnswer] | ProblemSet, seed_offset: int = 0) -> list[QuestionAnswer]:
    """The questions given, or the problems of a set, of its seed plus an offset; ``ConfigError`` if it has none."""
    if isinstance(source, ProblemSet):
        return [QuestionAnswer(*problem) for problem in source.problems(seed_offset)]
    return list(source)


class QuestionRules(Table, frozen=True):
    """Rules for admissible questions."""

    operations: str = "+-*"
    """Operators allowed in arithmetic."""
    largest: PositiveInt = 999
    """Largest number in arithmetic."""
    terms: Annotated[int, msgspec.Meta(ge=2)] = 4
    """Most numbers in arithmetic."""
    trust: bool = False
    """Whether other questions than arithmetic are allowed, with the answers of their proposers."""


def parse_question(reply: str, rules: QuestionRules) -> tuple[QuestionAnswer | None, str]:
    """The question after ``Question:`` in a reply, with its true answer; or None and why it is not allowed."""
    question, claimed = extract_labelled(reply, "Question"), extract_labelled(reply, "Answer")
    match = _ARITHMETIC_PATTERN.fullmatch(question)
    if match is None:
        if not (question and rules.trust and claimed):
            return None, "no question" if not question else "no answer" if rules.trust else "no arithmetic"
        return QuestionAnswer(question, claimed), ""
    terms = re.findall(r"[0-9]+|[-+*]", match[1].replace("×", "*"))
    numbers, operations = [int(term) for term in terms[::2]], terms[1::2]
    if len(numbers) > rules.terms or max(numbers) > rules.largest or not set(operations) <= set(rules.operations):
        return None, "arithmetic beyond the rules"
    answer = str(_evaluate(numbers, operations))
    if claimed and not is_equivalent_answer(claimed, answer):
        return None, "its answer is wrong"
    written = " ".join([str(numbers[0]), *(f"{op} {n}" for op, n in zip(operations, numbers[1:], strict=True))])
    return QuestionAnswer(f"{written} = ?", answer), ""


def random_arithmetic(rules: QuestionRules, rng: Random) -> str:
    """Arithmetic of two random numbers."""
    first, second = rng.randint(0, rules.largest), rng.randint(0, rules.largest)
    return f"{first} {rng.choice(rules.operations)} {second} = ?"


def _evaluate(numbers: Sequence[int], operations: Sequence[str]) -> int:
    """Products first, then sums and differences from left to right."""
    parts = [numbers[0]]
    for operation, number in zip(operations, numbers[1:], strict=True):
        if operation == "*":
            parts[-1] *= number
        else:
            parts.append(number if operation == "+" else -number)
    return sum(parts)


class QuestionEpisode(SingleTurnEpisode):
    """One attempt at a question, by default with the reward ``right``.

    It is 1 if the text after ``Answer:``, or else the whole reply, is the answer; a verifier's score if there is one.
    """

    def __init__(self, episode_type: str, role_id: str, rubric: Rubric | None = None) -> None:
        super().__init__(role_id)
        self.episode_type = episode_type

        def right(rollout: Rollout, arena: Arena) -> dict[str, float]:
            reply = rollout.steps[-1].completion_text
            answer = extract_labelled(reply, "Answer") or reply
            question = msgspec.convert(rollout.artifact, QuestionAnswer)
            if question.problem is not None:
                return {role_id: score_answer(answer.strip(), question.problem)}
            return {role_id: float(is_equivalent_answer(answer, question.answer))}

        self.rubric = rubric or Rubric([right])

    def get_prompt(self, artifact: Any) -> str:
        """The question alone."""
        question: str = artifact["question"]
        return question


class ProposalEpisode(Episode):
    """An episode that puts a question to solvers, as its children."""

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """The question, why it cannot be used if so, and the pass rate."""
        return dict(state.data)

    async def run_attempts(
        self,
        arena: Arena,
        state: EpisodeState,
        question: QuestionAnswer,
        solver: QuestionEpisode,
        count: int,
        trainable: bool = True,
    ) -> float:
        """Run concurrent attempts at a question; the pass rate of those that did not fail, which enters the state."""
        attempt = EpisodeRequest(solver.episode_type, msgspec.to_builtins(question), is_trainable=trainable)
        state.child_results += await arena.generate_rollouts([attempt] * count, concurrency=count)
        scored = [result.rewards[solver.role_id] for result in state.child_results if not result.failure]
        if not scored:
            failure = state.child_results[0].failure
            raise EpisodeError(f"none of {len(state.child_results)} attempts came to a result: {failure}")
        rate: float = sum(scored) / len(scored)
        state.data["pass_rate"] = rate
        return rate


class ProposalSpec(DatasetSpec):
    """An arena of ``ProposalEpisode``s."""

    def metrics(self, result: GenerateResult) -> Mapping[str, float]:
        """Add the pass rate, and whether a proposal was usable, as far as the episode has them."""
        extras = result.rollout.extras
        rate = {"pass_rate": extras["pass_rate"]} if "pass_rate" in extras else {}
        usable = {"usable": float(not extras["unusable"])} if "unusable" in extras else {}
        return {**super().metrics(result), **rate, **usable}
