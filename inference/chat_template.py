"""Chat templates: a conversation as text in the model's own format or that of a configured family."""

from collections.abc import Sequence

import msgspec

from arena.prompts import Message, Template, make_template, merge_system_message, template_for, with_system_prompt
from arena.prompts.extraction import get_observation_template
from models.tokenizer import Tokenizer
from schemas.config import PromptsConfig
from schemas.errors import ModelError

AUTO = "auto"
"""``prompts.template``: the model's own."""


def resolve_template(tokenizer: Tokenizer, config: PromptsConfig) -> Template:
    """Returns the template of the configured family, or else of the model's.

    Raises:
        ModelError: the model does not know the configured family's special tokens.
        UsageError: no template or observation has the configured name.
    """
    name = get_observation_template(config.observation).family if config.observation else config.template
    if name == AUTO:
        return template_for(tokenizer.model_type, tokenizer.is_token)
    template = make_template(name)
    if unknown := [mark for mark in template.marks if not tokenizer.is_token(mark)]:
        raise ModelError(
            f"prompts.{'observation' if config.observation else 'template'}: {name!r} needs the token {unknown[0]!r}, "
            f"which the tokenizer of {tokenizer.folder} does not know; expected one that the model was trained on"
        )
    return template


def render_conversation(tokenizer: Tokenizer, messages: Sequence[Message], config: PromptsConfig | None = None) -> str:
    """Renders a conversation with the chat template in the model's folder, or else with that of its family.

    Thinking is switched off, unless configured, where a model has the switch: any reasoning before the answer is up to
    the game's prompt.

    Raises:
        ModelError: the template rejects it, with and without a system message; or as ``resolve_template``.
    """
    config = config or PromptsConfig()
    conversation = with_system_prompt(messages, config.system)
    if config.template != AUTO or not tokenizer.has_chat_template:
        return resolve_template(tokenizer, config).render(conversation, config.thinking)
    try:
        return tokenizer.render_chat(msgspec.to_builtins(conversation), config.thinking)
    except ModelError:
        if conversation[0].role != "system":
            raise
        return tokenizer.render_chat(msgspec.to_builtins(merge_system_message(conversation)), config.thinking)
