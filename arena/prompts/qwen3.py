"""Qwen3's conversations: ChatML with a thinking switch."""

from collections.abc import Sequence

from arena.games.texts import spoken
from arena.prompts import register
from arena.prompts.base import Message
from arena.prompts.chatml import END, START, ChatML

_THINK, _THOUGHT = "<think>", "</think>"


@register("qwen3", model_types=("qwen3", "qwen3_moe"))
class Qwen3:
    """The ``Template`` of Qwen3."""

    marks: Sequence[str] = (START, END, _THINK, _THOUGHT)
    end = END

    def __init__(self) -> None:
        self._chat = ChatML()

    def render(self, messages: Sequence[Message], thinking: bool = False) -> str:
        """As in ChatML; without thinking, the reply begins with an empty thought.

        Thoughts of earlier replies are left out, as Qwen3 was trained.
        """
        text = self._chat.render(list(map(_without_thought, messages)))
        return text if thinking else f"{text}{_THINK}\n\n{_THOUGHT}\n\n"

    def answer(self, reply: str) -> str:
        """What follows the thought's end (some prompts begin the thought themselves), up to the end of the turn."""
        return spoken(self._chat.answer(reply)).rpartition(_THOUGHT)[2].strip()


def _without_thought(message: Message) -> Message:
    if message.role != "assistant":
        return message
    return Message("assistant", spoken(message.content).strip())
