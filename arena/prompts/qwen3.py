"""Qwen's conversations (ChatML), with Qwen3's thinking switch."""

from collections.abc import Sequence

from arena.games.base import spoken
from arena.prompts import register
from arena.prompts.base import Message

_NO_THOUGHT = "<think>\n\n</think>\n\n"


@register("qwen3", model_types=("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"))
class Qwen3:
    """The ``Template`` of Qwen 2 to 3."""

    marks: Sequence[str] = ("<|im_start|>", "<|im_end|>")

    def render(self, messages: Sequence[Message], thinking: bool = False) -> str:
        """Turns between ``<|im_start|>`` and ``<|im_end|>``; without thinking, the reply begins with an empty thought.

        Thoughts of earlier replies are left out, as Qwen3 was trained.
        """
        turns = "".join(f"<|im_start|>{message.role}\n{_said(message)}<|im_end|>\n" for message in messages)
        return f"{turns}<|im_start|>assistant\n{'' if thinking else _NO_THOUGHT}"

    def answer(self, reply: str) -> str:
        """What follows the thought's end (some prompts begin the thought themselves), up to the end of the turn."""
        return spoken(reply.partition("<|im_end|>")[0]).rpartition("</think>")[2].strip()


def _said(message: Message) -> str:
    return spoken(message.content).strip() if message.role == "assistant" else message.content
