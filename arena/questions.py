"""Questions that somebody proposed: which can be asked, and what their answer is.

Arithmetic is computed here rather than believed. Everything else stands on the word of who asks.
"""

import re
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import msgspec

from arena.answers import is_same, labelled

_ARITHMETIC = re.compile(
    r"(?:what\s+is\s+)?([0-9]{1,12}(?:\s*[-+*×]\s*[0-9]{1,12})+)\s*(?:=\s*\??|\?)?",
    re.IGNORECASE,
)


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A question with its answer."""

    question: str
    answer: str


class Rules(NamedTuple):
    """What may be asked."""

    operations: str = "+-*"
    largest: int = 999
    """Largest number in arithmetic."""
    terms: int = 4
    """Most numbers in arithmetic."""
    trust: bool = False
    """Whether what is no arithmetic may be asked, and the answer that came with it is believed."""


def verified(reply: str, rules: Rules) -> tuple[Question | None, str]:
    """The question behind ``Question:`` in a reply, with its true answer; or None and why it cannot be asked."""
    asked, said = labelled(reply, "Question"), labelled(reply, "Answer")
    found = _ARITHMETIC.fullmatch(asked)
    if found is None:
        return _believed(asked, said, rules.trust)
    terms = re.findall(r"[0-9]+|[-+*]", found[1].replace("×", "*"))
    numbers, operations = [int(term) for term in terms[::2]], terms[1::2]
    if len(numbers) > rules.terms or max(numbers) > rules.largest or not set(operations) <= set(rules.operations):
        return None, "arithmetic beyond the rules"
    answer = str(_value(numbers, operations))
    if said and not is_same(said, answer):
        return None, "its answer is wrong"
    written = " ".join([str(numbers[0]), *(f"{op} {n}" for op, n in zip(operations, numbers[1:], strict=True))])
    return Question(f"{written} = ?", answer), ""


def arithmetic(rules: Rules, rng: Random) -> str:
    """Any arithmetic of two numbers."""
    first, second = rng.randint(0, rules.largest), rng.randint(0, rules.largest)
    return f"{first} {rng.choice(rules.operations)} {second} = ?"


def _believed(asked: str, said: str, trust: bool) -> tuple[Question | None, str]:
    if not asked:
        return None, "no question"
    if not trust:
        return None, "no arithmetic"
    return (Question(asked, said), "") if said else (None, "no answer")


def _value(numbers: Sequence[int], operations: Sequence[str]) -> int:
    """Products first, then sums and differences from left to right."""
    parts = [numbers[0]]
    for operation, number in zip(operations, numbers[1:], strict=True):
        if operation == "*":
            parts[-1] *= number
        else:
            parts.append(number if operation == "+" else -number)
    return sum(parts)
