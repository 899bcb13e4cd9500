r"""The answer in a reply: what stands in ``\boxed{}``, or between tags.

The rules are those of UnstableBaselines' action extraction: of several answers the last one counts, an empty one is
none, and a reply without an answer stands for itself but is not well formed (its format reward asks for that).
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from schemas.errors import UsageError, one_of

_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")


class Extracted(NamedTuple):
    """The answer in a reply."""

    text: str
    """The answer, or the whole reply where it has none."""
    well_formed: bool
    """Whether the reply has the form that was asked for; a format reward pays for it."""


Extractor = Callable[[str], Extracted]


def boxed(reply: str) -> Extracted:
    r"""What the last ``\boxed{}`` holds; braces in it may nest once."""
    found = _BOXED.findall(reply)
    answer = found[-1].strip() if found else ""
    return Extracted(answer, True) if answer else Extracted(reply, False)


def bracketed(reply: str) -> Extracted:
    r"""As ``boxed``, in the square brackets that TextArena's games look for."""
    found = boxed(reply)
    if not found.well_formed or "[" in found.text:
        return found
    return Extracted(f"[{found.text}]", True)


def tagged(tag: str) -> Extractor:
    """What stands between the last ``<tag>`` and its end.

    A tag that was opened and not closed (a reply that was cut off) gives what follows it, not well formed.
    """
    pattern = re.compile(rf"<{re.escape(tag)}>((?:(?!<{re.escape(tag)}>).)*?)(</{re.escape(tag)}>|\Z)", re.DOTALL)

    def extract(reply: str) -> Extracted:
        found = pattern.findall(reply)
        answer, end = (found[-1][0].strip(), found[-1][1]) if found else ("", "")
        return Extracted(answer, bool(end)) if answer else Extracted(reply, False)

    return extract


def whole(reply: str) -> Extracted:
    """The reply as it stands, for games that say themselves how they are answered."""
    return Extracted(reply, bool(reply.strip()))


EXTRACTORS: Mapping[str, Extractor] = {
    "boxed": boxed,
    "default": bracketed,
    "orders": tagged("orders"),
    "whole": whole,
}
"""By name; ``default`` is that of UnstableBaselines."""

IN_A_BOX = r"Think step by step. Then give your move as \boxed{move}."
ASKS_FOR: Mapping[str, str] = {"boxed": IN_A_BOX, "default": IN_A_BOX}
"""What the model is told, by name, where the game's rules do not ask for the form themselves."""


def extractor_named(name: str) -> Extractor:
    """The extractor of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in EXTRACTORS:
        raise UsageError(f"extractor: none is called {name!r}; expected {one_of(EXTRACTORS)}")
    return EXTRACTORS[name]
