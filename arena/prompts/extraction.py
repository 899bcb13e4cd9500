r"""Extraction of answers from replies (in ``\boxed{}``, between tags), and prompts for observations of text games.

The rules are those of UnstableBaselines' action extraction: the last of several answers counts, an empty one does not,
and a reply without an answer is its own answer but not well formed (for its format reward). Prompts have the names of
its templates: ``zs`` for two players with opposed interests, ``sp`` for one. They request the move in ``\boxed{}``;
those of Qwen that end on ``instruct`` leave the form to the game.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from arena.prompts import Message, make_template
from schemas.errors import UsageError, format_choices

_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")


class ExtractedAnswer(NamedTuple):
    """The answer in a reply."""

    text: str
    """The answer, or the whole reply without one."""
    well_formed: bool
    """Whether the reply has the requested form, for a format reward."""


Extractor = Callable[[str], ExtractedAnswer]


def extract_boxed(reply: str) -> ExtractedAnswer:
    r"""The content of the last ``\boxed{}``, with braces nested at most once."""
    matches = _BOXED.findall(reply)
    answer = matches[-1].strip() if matches else ""
    return ExtractedAnswer(answer, True) if answer else ExtractedAnswer(reply, False)


def extract_bracketed(reply: str) -> ExtractedAnswer:
    r"""As ``extract_boxed``, in the square brackets that TextArena's games look for."""
    boxed = extract_boxed(reply)
    if not boxed.well_formed or "[" in boxed.text:
        return boxed
    return ExtractedAnswer(f"[{boxed.text}]", True)


def make_tag_extractor(tag: str) -> Extractor:
    """An extractor of the text between the last ``<tag>`` and its end.

    After an unclosed tag (of a truncated reply) it is the rest of the reply, not well formed.
    """
    pattern = re.compile(rf"<{re.escape(tag)}>((?:(?!<{re.escape(tag)}>).)*?)(</{re.escape(tag)}>|\Z)", re.DOTALL)

    def extract(reply: str) -> ExtractedAnswer:
        matches = pattern.findall(reply)
        answer, end = (matches[-1][0].strip(), matches[-1][1]) if matches else ("", "")
        return ExtractedAnswer(answer, bool(end)) if answer else ExtractedAnswer(reply, False)

    return extract


def extract_whole(reply: str) -> ExtractedAnswer:
    """The whole reply, for games that define the form themselves."""
    return ExtractedAnswer(reply, bool(reply.strip()))


EXTRACTORS: Mapping[str, Extractor] = {
    "boxed": extract_boxed,
    "default": extract_bracketed,
    "orders": make_tag_extractor("orders"),
    "whole": extract_whole,
}
"""Extractors by name; ``default`` is UnstableBaselines'."""

BOXED_INSTRUCTION = r"Think step by step. Then give your move as \boxed{move}."
INSTRUCTIONS: Mapping[str, str] = {"boxed": BOXED_INSTRUCTION, "default": BOXED_INSTRUCTION}
"""Instructions by name, for games whose rules do not define the form."""


def get_extractor(name: str) -> Extractor:
    """The extractor of that name; ``UsageError`` if there is none."""
    if name not in EXTRACTORS:
        raise UsageError(f"extractor: none is called {name!r}; expected {format_choices(EXTRACTORS)}")
    return EXTRACTORS[name]


_ZERO_SUM = "You are one of two players in a zero-sum game. Make legal moves, and win."
_SINGLE_PLAYER = "You play a game alone. Make legal moves until it is solved."


class ObservationTemplate(msgspec.Struct, frozen=True):
    """A prompt for an observation."""

    family: str
    """A name of ``template_names``."""
    framing: str
    """The kind of game."""
    closing: str = BOXED_INSTRUCTION
    """Follows the observation; empty if the game defines the form."""
    system: bool = False
    """Whether the framing is the system message rather than the user's."""

    def render(self, observation: str) -> str:
        """The text that the model continues with its thinking and its move."""
        lines = [f"Observation: {observation}", *([self.closing] if self.closing else [])]
        if self.system:
            messages = [Message("system", self.framing), Message("user", "\n".join(lines))]
        else:
            messages = [Message("user", "\n".join([self.framing, *lines]))]
        return make_template(self.family).render(messages, thinking=True)


OBSERVATION_TEMPLATES: Mapping[str, ObservationTemplate] = {
    "default": ObservationTemplate("plain", _ZERO_SUM),
    "gemma3-zs": ObservationTemplate("gemma", _ZERO_SUM),
    "llama-instruct-zs": ObservationTemplate("llama", _ZERO_SUM, system=True),
    "qwen3-sp": ObservationTemplate("qwen3", _SINGLE_PLAYER),
    "qwen3-sp-instruct": ObservationTemplate("qwen3", _SINGLE_PLAYER, closing=""),
    "qwen3-zs": ObservationTemplate("qwen3", _ZERO_SUM),
    "qwen3-zs-instruct": ObservationTemplate("qwen3", _ZERO_SUM, closing=""),
}


def get_observation_template(name: str) -> ObservationTemplate:
    """The prompt of that name; ``UsageError`` if there is none."""
    if name not in OBSERVATION_TEMPLATES:
        raise UsageError(
            f"observation template: none is called {name!r}; expected {format_choices(OBSERVATION_TEMPLATES)}"
        )
    return OBSERVATION_TEMPLATES[name]
