r"""Chat templates by name: how each family of models writes a conversation and its replies.

``extraction`` finds answers in replies (``\boxed{}`` and tags), and prompts for observations of text games, by name;
``families`` holds the templates. They are for model folders without a chat template of their own. To add a family: a
module with a class that has ``marks``, ``render`` and ``answer``, under ``@register("name", model_types=[...])``.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, Self, runtime_checkable

from arena.games.base import Game
from arena.games.texts import Words
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
        """The text that the model continues with its reply.

        Args:
            messages: The last one is the user's.
            thinking: Whether the model may think before it answers, for families with such a switch.
        """

    def answer(self, reply: str) -> str:
        """A reply without the family's special tokens and without its thinking."""


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
        """The question to ``seat``.

        Raises:
            GameError: the seat is not to move.
        """


def build_game_messages(words: Words, game: Game, seat: int) -> list[Message]:
    """A game in plain language as a conversation: the rules, then the position.

    Raises:
        GameError: the seat is not to move.
    """
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
"""With the ``model_type`` values of each family."""


def register(name: str, model_types: Sequence[str] = ()) -> Callable[[F], F]:
    """Register a template for these ``model_type`` values of a model's ``config.json``."""
    return TEMPLATES.register(name, tuple(model_types))


def template_names() -> list[str]:
    """All templates, sorted."""
    return sorted(TEMPLATES.load_all())


def make_template(name: str) -> Template:
    """The template of that name.

    Raises:
        UsageError: unknown name.
    """
    names = template_names()
    if name not in names:
        raise UsageError(f"prompt template: none is called {name!r}; expected {format_choices(names)}")
    return TEMPLATES.load_all()[name].make()


def template_for(model_type: str, knows: Callable[[str], bool]) -> Template:
    """The template of a model's family, or the plain one.

    Args:
        model_type: From the model's ``config.json``.
        knows: Whether a text is one token of the model's vocabulary. A model that shares an architecture with a family
            but not its special tokens was never trained on the family's conversations.
    """
    for name in template_names():
        plugin = TEMPLATES.load_all()[name]
        if model_type in plugin.info and all(map(knows, (template := plugin.make()).marks)):
            return template
    return make_template("plain")
