"""Chat templates of the families: ChatML (Qwen 2 and 2.5, and many models tuned by others), Qwen3, Llama 3, Gemma."""

from collections.abc import Sequence

from arena.games.texts import strip_thinking
from arena.prompts import Message, merge_system_message, register

_THINK, _END_THINK = "<think>", "</think>"


@register("plain")
class Plain:
    """The ``Template`` of base models, which were not trained on conversations, and of unknown families."""

    marks: Sequence[str] = ()
    end = ""

    def render(self, messages: Sequence[Message], thinking: bool = False) -> str:
        """The messages, with a blank line after each; the model continues with another paragraph."""
        return "".join(f"{message.content.strip()}\n\n" for message in messages)

    def answer(self, reply: str) -> str:
        """The reply as it is."""
        return reply.strip()


class _TurnTemplate:
    """Base of templates whose turns end with a token of their own."""

    end: str

    def answer(self, reply: str) -> str:
        """The reply up to the end of the turn."""
        return reply.partition(self.end)[0].strip()


@register("chatml", model_types=("qwen2", "qwen2_moe"))
class ChatML(_TurnTemplate):
    """The ``Template`` of models without thinking.

    Qwen's own templates add a default system message ("a helpful assistant"); this one does not.
    """

    marks: Sequence[str] = ("<|im_start|>", "<|im_end|>")
    end = "<|im_end|>"

    def render(self, messages: Sequence[Message], thinking: bool = False) -> str:
        """Turns between ``<|im_start|>`` and ``<|im_end|>``."""
        turns = "".join(f"<|im_start|>{message.role}\n{message.content}{self.end}\n" for message in messages)
        return f"{turns}<|im_start|>assistant\n"


@register("qwen3", model_types=("qwen3", "qwen3_moe"))
class Qwen3(ChatML):
    """The ``Template`` of Qwen3: ChatML with a thinking switch."""

    marks = (*ChatML.marks, _THINK, _END_THINK)

    def render(self, messages: Sequence[Message], thinking: bool = False) -> str:
        """As in ChatML; without thinking, the reply begins with an empty thought.

        Thoughts of earlier replies are left out, as Qwen3 was trained.
        """
        text = super().render(list(map(_strip_thought, messages)))
        return text if thinking else f"{text}{_THINK}\n\n{_END_THINK}\n\n"

    def answer(self, reply: str) -> str:
        """The text after the thought's end (some prompts begin the thought themselves), up to the end of the turn."""
        return strip_thinking(super().answer(reply)).rpartition(_END_THINK)[2].strip()


def _strip_thought(message: Message) -> Message:
    if message.role != "assistant":
        return message
    return Message("assistant", strip_thinking(message.content).strip())


@register("llama", model_types=("llama",))
class Llama(_TurnTemplate):
    """The ``Template`` of Llama 3. It has no thinking switch.

    From 3.1 on, the models' own templates put two lines with dates before the system message; a folder with its own
    template uses those.
    """

    marks: Sequence[str] = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    end = "<|eot_id|>"

    def render(self, messages: Sequence[Message], thinking: bool = False) -> str:
        """Turns behind a header with their role, each closed by ``<|eot_id|>``."""
        turns = "".join(f"{_header(message.role)}{message.content.strip()}{self.end}" for message in messages)
        return f"<|begin_of_text|>{turns}{_header('assistant')}"


def _header(role: str) -> str:
    return f"<|start_header_id|>{role}<|end_header_id|>\n\n"


@register("gemma", model_types=("gemma", "gemma2", "gemma3", "gemma3_text"))
class Gemma(_TurnTemplate):
    """The ``Template`` of Gemma 1 to 3. They have no thinking switch and no system role."""

    marks: Sequence[str] = ("<bos>", "<start_of_turn>", "<end_of_turn>")
    end = "<end_of_turn>"

    def render(self, messages: Sequence[Message], thinking: bool = False) -> str:
        """Turns between ``<start_of_turn>`` and ``<end_of_turn>``; the system message is merged into the user's."""
        turns = "".join(_render_turn(message) for message in merge_system_message(list(map(_strip_content, messages))))
        return f"<bos>{turns}<start_of_turn>model\n"


def _render_turn(message: Message) -> str:
    role = "model" if message.role == "assistant" else message.role
    return f"<start_of_turn>{role}\n{message.content}<end_of_turn>\n"


def _strip_content(message: Message) -> Message:
    """As in Gemma 3's own template, the system message keeps its white space."""
    return message if message.role == "system" else Message(message.role, message.content.strip())
