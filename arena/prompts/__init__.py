r"""Chat templates by name: how each family of models writes a conversation and its replies.

They are for model folders without a chat template of their own: ChatML (Qwen 2 and 2.5, and many models tuned by
others), Qwen3, Llama 3, Gemma. To add a family: a module with a class that has ``marks``, ``render`` and ``answer``,
under ``@register("name", model_types=[...])``.

``extraction`` finds answers in replies (``\boxed{}`` and tags), and prompts for observations of text games, by name.
"""

import re
from collections.abc import Callable, Sequence
from typing import Protocol, Self, runtime_checkable

from arena.games.base import Game
from arena.games.texts import Words, strip_thinking
from schemas.episodes import Message as Message
from schemas.errors import UsageError, format_choices
from schemas.plugins import F, FactoryRegistry


class Template(Protocol):
    """A model family's chat template. Pure."""

    marks: Sequence[str]
    """The family's special tokens; a model without them was not trained on the template."""
    end: str
    """The one of them that ends a reply; empty if none does."""

    def render(self, messages: Sequence[Message], thinking: bool = False) -> str:
        """The text that the model continues with its reply to the last message, the user's.

        ``thinking``: whether it may think before it answers, for families with such a switch.
        """

    def answer(self, reply: str) -> str:
        """A reply up to the end of its turn, thoughts included (``read_answer`` leaves them out)."""


@runtime_checkable
class Chat(Protocol):
    """A ``TextFormat`` that is a conversation.

    Its pieces include white space: those of a completion, joined, are the text that a model would write. Models with
    sub-word tokenizers get the conversation; those with tokenizers made for the game's pieces get the ``prompt``.
    """

    opening: str
    """The first piece of every completion: a tag, after which the text is constrained."""
    free_tokens: int
    """Most tokens of free text before ``opening``."""

    def with_free_tokens(self, free_tokens: int) -> Self:
        """The same with this many free tokens, which changes the question too."""

    def messages(self, game: Game, seat: int) -> list[Message]:
        """The question to ``seat``, which must be to move."""


def build_game_messages(words: Words, game: Game, seat: int) -> list[Message]:
    """A game in plain language as a conversation: the rules, then the position."""
    return [Message("system", words.rules()), Message("user", words.question(game, seat))]


def with_system_prompt(messages: Sequence[Message], system: str) -> list[Message]:
    """The conversation with ``system`` before its system message, if not empty."""
    if not system:
        return list(messages)
    if not messages or messages[0].role != "system":
        return [Message("system", system), *messages]
    return [Message("system", f"{system}\n\n{messages[0].content}"), *messages[1:]]


def merge_system_message(messages: Sequence[Message]) -> list[Message]:
    """The conversation with its system message merged into the first user message, for families without the role."""
    if len(messages) < 2 or messages[0].role != "system":
        return list(messages)
    first = Message(messages[1].role, f"{messages[0].content}\n\n{messages[1].content}")
    return [first, *messages[2:]]


TEMPLATES: FactoryRegistry[Callable[[], Template], tuple[str, ...]] = FactoryRegistry(__name__, ("base", "extraction"))
"""Templates by name, with the ``model_type`` values of each family."""


def register(name: str, model_types: Sequence[str] = ()) -> Callable[[F], F]:
    """Register a template for these ``model_type`` values of a model's ``config.json``."""
    return TEMPLATES.register(name, tuple(model_types))


def template_names() -> list[str]:
    """All templates, sorted."""
    return sorted(TEMPLATES.load_all())


def make_template(name: str) -> Template:
    """The template of that name; ``UsageError`` if there is none."""
    names = template_names()
    if name not in names:
        raise UsageError(f"prompt template: none is called {name!r}; expected {format_choices(names)}")
    return TEMPLATES.load_all()[name].make()


def template_name(model_type: str, knows: Callable[[str], bool]) -> str:
    """The name of the template of a model's family, or of the plain one, by the type in its ``config.json``.

    ``knows`` is whether a text is one token of the model's vocabulary: a model that shares an architecture with a
    family but not its special tokens was never trained on the family's conversations.
    """
    plugins = TEMPLATES.load_all()
    marks = {name: plugins[name].make().marks for name in template_names()}
    spoken = [name for name in marks if marks[name] and all(map(knows, marks[name]))]
    # Models of another type, as SmolLM2, a llama that speaks ChatML, have the family with the most marks they know.
    family = [name for name in spoken if model_type in plugins[name].info]
    return max(family or spoken, key=lambda name: len(marks[name]), default="plain")


THINK, END_THINK = "<think>", "</think>"
OTHER_THOUGHT_TOKENS = ("<|channel|>", "<|message|>", "[THINK]", "[/THINK]")
"""Marks of other families' thoughts: GPT-OSS, whose thoughts are all channels but the final one, and Magistral."""
_CHANNEL = r"(?:<\|end\|>)?(?:<\|start\|>)?(?:assistant)?<\|channel\|>"
_OTHER_MARKS = (
    (re.compile(rf"{_CHANNEL}final<\|message\|>|\[/THINK\]"), END_THINK),
    (re.compile(rf"{_CHANNEL}[^<]*(?:<\|message\|>)?|\[THINK\]"), THINK),
)


def mark_thoughts(reply: str) -> str:
    """The reply with its thoughts between ``THINK`` and ``END_THINK``, whichever family's marks it has."""
    for pattern, mark in _OTHER_MARKS:
        reply = pattern.sub(mark, reply)
    return reply


def read_answer(template: Template, reply: str, thinking: bool) -> str:
    """The answer in a reply, up to the end of the turn and behind the last thought.

    Empty where the model was ``thinking`` and the thought has no end: a thought that was cut off is no answer.
    """
    _, end, answer = template.answer(mark_thoughts(reply)).rpartition(END_THINK)
    return "" if thinking and not end else strip_thinking(answer).strip()


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
    """Base of templates of turns: a header with the role, the content, and a token that ends the turn."""

    start = ""
    """Before the first turn."""
    header: str
    assistant = "assistant"
    """The assistant's name in headers."""
    end: str
    gap = ""
    """Between two turns."""

    def render(self, messages: Sequence[Message], thinking: bool = False) -> str:
        """The turns, and the header of the model's own."""
        text = self.start
        for message in messages:
            role = self.assistant if message.role == "assistant" else message.role
            text += f"{self.header.format(role)}{message.content}{self.end}{self.gap}"
        return text + self.header.format(self.assistant)

    def answer(self, reply: str) -> str:
        """The reply up to the end of the turn."""
        return reply.partition(self.end)[0].strip()


@register("chatml", model_types=("qwen2", "qwen2_moe"))
class ChatML(_TurnTemplate):
    """The ``Template`` of models without thinking.

    Qwen's own templates add a default system message ("a helpful assistant"); this one does not.
    """

    marks: Sequence[str] = ("<|im_start|>", "<|im_end|>")
    header, end, gap = "<|im_start|>{}\n", "<|im_end|>", "\n"


@register("qwen3", model_types=("qwen3", "qwen3_moe"))
class Qwen3(ChatML):
    """The ``Template`` of Qwen3: ChatML with a thinking switch."""

    marks = (*ChatML.marks, THINK, END_THINK)

    def render(self, messages: Sequence[Message], thinking: bool = False) -> str:
        """Write as ChatML, without earlier thoughts, as Qwen3 was trained; without thinking, the thought is empty."""
        without_thoughts = [
            Message("assistant", strip_thinking(message.content).strip()) if message.role == "assistant" else message
            for message in messages
        ]
        text = super().render(without_thoughts)
        return text if thinking else f"{text}{THINK}\n\n{END_THINK}\n\n"


@register("llama", model_types=("llama",))
class Llama(_TurnTemplate):
    """The ``Template`` of Llama 3. It has no thinking switch.

    From 3.1 on, the models' own templates put two lines with dates before the system message; a folder with its own
    template uses those.
    """

    marks: Sequence[str] = ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    start, header, end = "<|begin_of_text|>", "<|start_header_id|>{}<|end_header_id|>\n\n", "<|eot_id|>"

    def render(self, messages: Sequence[Message], thinking: bool = False) -> str:
        """Turns without white space around their contents."""
        return super().render([Message(message.role, message.content.strip()) for message in messages])


@register("gemma", model_types=("gemma", "gemma2", "gemma3", "gemma3_text"))
class Gemma(_TurnTemplate):
    """The ``Template`` of Gemma 1 to 3. They have no thinking switch and no system role."""

    marks: Sequence[str] = ("<bos>", "<start_of_turn>", "<end_of_turn>")
    start, header, assistant = "<bos>", "<start_of_turn>{}\n", "model"
    end, gap = "<end_of_turn>", "\n"

    def render(self, messages: Sequence[Message], thinking: bool = False) -> str:
        """Turns without white space around their contents; the system message is merged into the user's."""
        # As in Gemma 3's own template, the system message keeps its white space.
        stripped = [one if one.role == "system" else Message(one.role, one.content.strip()) for one in messages]
        return super().render(merge_system_message(stripped))
