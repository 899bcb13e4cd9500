"""Conversations as tokens, in the model's chat template or a family's."""

from collections.abc import Sequence
from functools import cache

import msgspec

from arena.constraints.tagged import UntilStopToken
from arena.constraints.token_walk import Constraint
from arena.games.texts import strip_thinking
from arena.prompts import (
    END_THINK,
    THINK,
    Message,
    Template,
    make_template,
    merge_system_message,
    template_name,
    with_system_prompt,
)
from arena.prompts.extraction import get_observation_template
from models.tokenizer import Tokenizer
from schemas.config import PromptsConfig
from schemas.errors import ModelError
from schemas.loggers import get_logger

log = get_logger()

AUTO = "auto"
"""``prompts.template``: the model's own."""


def resolve_template(tokenizer: Tokenizer, config: PromptsConfig) -> Template:
    """Find the template of the configured family, or else of the model's, by which replies are read.

    Raises:
        ModelError: the model does not know the configured family's special tokens.
        UsageError: no template or observation has the configured name.
    """
    name = get_observation_template(config.observation).family if config.observation else config.template
    if name == AUTO:
        family = template_name(tokenizer.model_type, tokenizer.is_token)
        if not tokenizer.has_chat_template:
            _log_family(str(tokenizer.folder), family)
        return make_template(family)
    template = make_template(name)
    if unknown := [mark for mark in template.marks if not tokenizer.is_token(mark)]:
        raise ModelError(
            f"prompts.{'observation' if config.observation else 'template'}: {name!r} needs the token {unknown[0]!r}, "
            f"which the tokenizer of {tokenizer.folder} does not know; expected one that the model was trained on"
        )
    return template


@cache
def _log_family(folder: str, family: str) -> None:
    """Log once that a folder has no chat template."""
    log.info("the model has no chat template; conversations use its family's", model=folder, family=family)


def encode_conversation(
    tokenizer: Tokenizer, messages: Sequence[Message], config: PromptsConfig, continues: bool = False
) -> list[int]:
    """Encode a conversation up to where the reply begins, or ``continues``: up to the end of the last message's text.

    The ids are those of ``apply_chat_template`` where the folder has a template; without one, the tokenizer's own
    prefix (BOS) begins them. Contents are encoded ``without_marks``.

    Raises:
        ModelError: the template rejects the conversation, or as ``resolve_template``.
    """
    conversation = without_marks(tokenizer, messages, config)
    text = render_conversation(tokenizer, conversation, config, continues)
    return tokenizer.encode_chat(text) if _has_own_template(tokenizer, config) else tokenizer.encode_prompt(text)


def render_conversation(
    tokenizer: Tokenizer, messages: Sequence[Message], config: PromptsConfig, continues: bool = False
) -> str:
    """Render a conversation with the chat template in the model's folder, or else with its family's.

    Thinking is switched off, unless configured, where a model has the switch: any reasoning before the answer is up to
    the game's prompt. ``continues`` leaves the last message open, which must be the assistant's, with text.

    Raises:
        ModelError: the template rejects it, or as ``resolve_template``.
    """
    if _has_own_template(tokenizer, config):
        return _render_own(tokenizer, messages, config, continues)
    conversation = with_system_prompt(messages, config.system)
    template = resolve_template(tokenizer, config)
    if continues:
        return template.render(conversation[:-1], config.thinking) + conversation[-1].content
    return template.render(conversation, config.thinking)


def without_marks(tokenizer: Tokenizer, messages: Sequence[Message], config: PromptsConfig) -> list[Message]:
    """Remove special tokens and the family's marks from the contents of messages.

    Players and judges read each other's replies, and one in which a turn ends and another begins could impersonate
    another role. Thoughts in earlier replies go whole: without their marks they would stand there as said.
    """
    marks = sorted({*tokenizer.special_texts, *resolve_template(tokenizer, config).marks} - {""})
    cleaned = []
    for number, message in enumerate(messages, 1):
        text = message.content
        if THINK in marks and message.role == "assistant" and number < len(messages):
            text = strip_thinking(text).strip()
        # Removing one may join the halves of another.
        while present := [mark for mark in marks if mark in text]:
            for mark in present:
                text = text.replace(mark, "")
        cleaned.append(msgspec.structs.replace(message, content=text))
    return cleaned


def may_think(tokenizer: Tokenizer, config: PromptsConfig) -> bool:
    """Whether a reply begins with a thought: thinking is on and the model has the marks, or its prompt opens one.

    Observations leave the form of a reply to the extractor, as UnstableBaselines does.
    """
    opens = bool(close_thought(tokenizer, config))
    return opens or (config.thinking and not config.observation and tokenizer.is_token(END_THINK))


def close_thought(tokenizer: Tokenizer, config: PromptsConfig) -> str:
    """The text that ends the thought that a prompt opens, before a constrained reply; empty where it opens none.

    Raises as ``render_conversation``.
    """
    if config.observation:
        return ""
    prompt = render_conversation(tokenizer, [Message("user", "?")], config)
    return f"{END_THINK}\n\n" if prompt.rfind(THINK) > prompt.rfind(END_THINK) else ""


def check_thinking(tokenizer: Tokenizer, config: PromptsConfig) -> None:
    """Raise ``ModelError`` where thinking is on, and the model neither has marks for it nor a template with the switch.

    Observations, which no chat template writes, may have it on. Also raises as ``render_conversation``.
    """
    if not config.thinking or config.observation or may_think(tokenizer, config):
        return
    question = [Message("user", "?")]
    without = msgspec.structs.replace(config, thinking=False)
    if render_conversation(tokenizer, question, config) == render_conversation(tokenizer, question, without):
        raise ModelError(
            f"prompts.thinking: true, but {tokenizer.folder} has no token {END_THINK!r}, and its chat template has no "
            "switch; expected a model that thinks, or free_tokens alone"
        )


def find_thought_end(tokenizer: Tokenizer, config: PromptsConfig) -> int | None:
    """The token that ends the thought with which a reply begins; None where it begins with none, or no one token does.

    Raises as ``render_conversation``.
    """
    if not (tokenizer.is_token(END_THINK) and may_think(tokenizer, config)):
        return None
    ids = tokenizer.encode_text(END_THINK)
    return ids[0] if len(ids) == 1 else None


def turn_ends(tokenizer: Tokenizer, template: Template) -> tuple[int, ...]:
    """The tokens that end the model's turn: first the template's mark, if it has one, then the model's end tokens."""
    mark = tokenizer.encode_text(template.end) if template.end and tokenizer.is_token(template.end) else ()
    return tuple(dict.fromkeys([*mark, *tokenizer.ends]))


def turn_constraint(tokenizer: Tokenizer, template: Template) -> Constraint | None:
    """The constraint that ends a turn; None where one of the model's end tokens ends its turns too."""
    ends = turn_ends(tokenizer, template)
    return UntilStopToken(ends) if len(ends) > len(tokenizer.ends) else None


def _has_own_template(tokenizer: Tokenizer, config: PromptsConfig) -> bool:
    return config.template == AUTO and tokenizer.has_chat_template


def _render_own(tokenizer: Tokenizer, messages: Sequence[Message], config: PromptsConfig, continues: bool) -> str:
    conversation = with_system_prompt(messages, config.system)
    if not tokenizer.has_system_role:
        conversation = merge_system_message(conversation)
    return tokenizer.render_chat(msgspec.to_builtins(conversation), config.thinking, continues)
