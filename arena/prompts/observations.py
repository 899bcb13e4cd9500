r"""Observations of text games as conversations, under the names that UnstableBaselines gives its templates.

A name says whom the question is for and what kind of game it is: ``zs`` for two players with opposed interests, ``sp``
for one. They ask for the move in ``\boxed{}``, which ``extraction`` finds; those of Qwen that end on ``instruct`` leave
the form to the game.
"""

from collections.abc import Mapping

import msgspec

from arena.prompts import make_template
from arena.prompts.base import Message
from arena.prompts.extraction import IN_A_BOX
from schemas.errors import UsageError, one_of

_ZERO_SUM = "You are one of two players in a zero-sum game. Make legal moves, and win."
_ALONE = "You play a game alone. Make legal moves until it is solved."


class Observation(msgspec.Struct, frozen=True):
    """How an observation is asked about."""

    family: str
    """Of ``template_names``."""
    framing: str
    """What kind of game it is."""
    closing: str = IN_A_BOX
    """Follows the observation; empty where the game says itself how it is answered."""
    system: bool = False
    """Whether the framing is said by the system rather than the user."""

    def render(self, observation: str) -> str:
        """The text that the model continues with its thoughts and its move."""
        asked = [f"Observation: {observation}", *([self.closing] if self.closing else [])]
        if self.system:
            messages = [Message("system", self.framing), Message("user", "\n".join(asked))]
        else:
            messages = [Message("user", "\n".join([self.framing, *asked]))]
        return make_template(self.family).render(messages, thinking=True)


OBSERVATIONS: Mapping[str, Observation] = {
    "default": Observation("plain", _ZERO_SUM),
    "gemma3-zs": Observation("gemma", _ZERO_SUM),
    "llama-instruct-zs": Observation("llama", _ZERO_SUM, system=True),
    "qwen3-sp": Observation("qwen3", _ALONE),
    "qwen3-sp-instruct": Observation("qwen3", _ALONE, closing=""),
    "qwen3-zs": Observation("qwen3", _ZERO_SUM),
    "qwen3-zs-instruct": Observation("qwen3", _ZERO_SUM, closing=""),
}


def observation_named(name: str) -> Observation:
    """The way to ask of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in OBSERVATIONS:
        raise UsageError(f"observation template: none is called {name!r}; expected {one_of(OBSERVATIONS)}")
    return OBSERVATIONS[name]
