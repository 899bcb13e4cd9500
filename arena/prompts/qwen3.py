"""Qwen3's conversations: ChatML with a thinking switch."""

from collections.abc import Sequence

from arena.games.texts import strip_thinking
from arena.prompts import Message, register
from arena.prompts.chatml import END, START, ChatML

_THINK, _END_THINK = "<think>", "</think>"


@register("qwen3", model_types=("qwen3", "qwen3_moe"))
class Qwen3:
    """The ``Template`` of Qwen3."""

    marks: Sequence[str] = (START, END, _THINK, _END_THINK)
    end = END

    def __init__(self) -> None:
        self._chat = ChatML()

    def render(self, messages: Sequence[Message], thinking: bool = False) -> str:
        """As in ChatML; without thinking, the reply begins with an empty thought.

        Thoughts of earlier replies are left out, as Qwen3 was trained.
        """
        text = self._chat.render(list(map(_strip_thought, messages)))
        return text if thinking else f"{text}{_THINK}\n\n{_END_THINK}\n\n"

    def answer(self, reply: str) -> str:
        """The text after the thought's end (some prompts begin the thought themselves), up to the end of the turn."""
        return strip_thinking(self._chat.answer(reply)).rpartition(_END_THINK)[2].strip()


def _strip_thought(message: Message) -> Message:
    if message.role != "assistant":
        return message
    return Message("assistant", strip_thinking(message.content).strip())
