"""Answers in replies: numbers and short texts, compared by what they mean rather than by how they are written."""

import re
from fractions import Fraction

MARK = "####"
"""Stands before the answer to a word problem, as in GSM8K."""

_LONGEST = 100
"""Characters of a number; longer ones are no answers, and Python would refuse to read them."""
_NUMBER = re.compile(r"(?<![\w.])-?\$?\d[\d,]*(?:\.\d+)?")
_ENDS_MARKED = re.compile(rf"{MARK}\s*-?\$?\d[\d,]*(?:\.\d+)?\.?\s*\Z")
_ARTICLES = frozenset({"a", "an", "the"})


def number_in(reply: str) -> Fraction | None:
    """The number that a reply comes to: the first after the last mark, or else the last of all; None for none."""
    _, mark, answer = reply.rpartition(MARK)
    found = _NUMBER.findall(answer if mark else reply)
    return None if not found else as_number(found[0] if mark else found[-1])


def as_number(text: str) -> Fraction | None:
    """The number that a text is, with or without thousands marks, dollar and a full stop; None where it is none."""
    bare = text.strip().rstrip(".").replace(",", "").replace("$", "")
    sound = len(bare) <= _LONGEST and re.fullmatch(r"-?\d+(\.\d+)?", bare, re.ASCII)
    return Fraction(bare) if sound else None


def is_marked(reply: str) -> bool:
    """Whether a reply ends with a mark and a number, and has no other mark."""
    return reply.count(MARK) == 1 and _ENDS_MARKED.search(reply) is not None


def labelled(reply: str, label: str) -> str:
    """What stands behind ``label:`` at the beginning of a line, to its end; of several the last; empty for none."""
    found = re.findall(rf"^[ \t]*{re.escape(label)}[ \t]*:[ \t]*(.*)$", reply, re.MULTILINE | re.IGNORECASE)
    return found[-1].strip() if found else ""


def plain(text: str) -> str:
    """A short answer without what does not matter: case, punctuation, articles, spaces."""
    words = re.findall(r"[^\W_]+", text.casefold())
    return " ".join(word for word in words if word not in _ARTICLES) or " ".join(words)


def is_same(answer: str, other: str) -> bool:
    """Whether two short answers say the same; numbers are compared as numbers, and nothing equals an empty answer."""
    numbers = as_number(answer), as_number(other)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return plain(answer) == plain(other) != ""
