"""Choice of a model's prompts for a game, by the configuration, the tokenizer and what the game offers.

| tokenizer | ``prompts.reply`` | game | prompt and reply |
|---|---|---|---|
| made for the game's pieces | constrained | any | pieces; a walk along legal pieces (``PhrasePrompter``) |
| sub-words | constrained | its text is a conversation (``Chat``) | chat template; its own language |
| sub-words | constrained | lists its legal replies (``Listing``) | chat template; one of them (``ListPrompter``) |
| sub-words | free | has ``Words`` | chat template; any text (``FreeTextPrompter``) |
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from arena.games.base import Game, GameSpec
from arena.games.texts import Listing, SupportsBrief, SupportsEnvironments, TextFormat, Words, as_grammar_text, words_of
from arena.prompts import Chat, Message, build_game_messages, make_template, merge_system_message, with_system_prompt
from arena.prompts.extraction import INSTRUCTIONS, get_extractor, get_observation_template
from inference.chat_template import (
    check_thinking,
    close_thought,
    encode_conversation,
    find_thought_end,
    resolve_template,
    without_marks,
)
from models.tokenizer import Tokenizer
from players.reply_formats import GrammarPrompter, PhrasePrompter, PromptEncoder, Prompter
from players.word_replies import Conversation, ConversationEncoder, FreeTextPrompter, ListPrompter
from schemas.config import PromptsConfig
from schemas.errors import ConfigError, GameError, UsageError, format_choices

_CONVERSATION_KEYS = ("reply", "template", "thinking", "system", "free_tokens", "reduced", "second_question")


def make_prompter(tokenizer: Tokenizer, game: GameSpec, config: PromptsConfig) -> Prompter:
    """The prompter of a league's models. It reads the model's vocabulary where text is constrained: keep it.

    Raises:
        ConfigError: the model or the game does not support the configuration; the message names the key.
        ModelError: the tokenizer's vocabulary cannot be read, or cannot write the tag, or the model cannot think.
    """
    if not tokenizer.is_word_level:
        check_thinking(tokenizer, config)
    configs = _environment_configs(game, config)
    if config.reply == "free":
        own = {name: _make_free_text_prompter(tokenizer, game, each) for name, each in configs.items()}
        return _make_free_text_prompter(tokenizer, game, config, own)
    if tokenizer.is_word_level or isinstance(game.text(), Chat):
        return make_constrained_prompter(tokenizer, _resolve_text_format(game, config), config)
    _check_listing(game, config)
    return ListPrompter(_make_free_text_prompter(tokenizer, game, config))


def make_constrained_prompter(tokenizer: Tokenizer, text: TextFormat, config: PromptsConfig | None = None) -> Prompter:
    """The prompter of a text format: pieces, or for a ``Chat`` and a tokenizer of sub-words a conversation."""
    config = config or PromptsConfig()
    chat = text if isinstance(text, Chat) and not tokenizer.is_word_level else None
    ask = _text_encoder(tokenizer, text, chat, config)
    thought_end = [] if chat is None else _end_thought(tokenizer, chat, config)
    if (language := as_grammar_text(text)) is not None:
        return GrammarPrompter(tokenizer, language, ask, chat, config.invalid, thought_end)
    return PhrasePrompter(tokenizer, text, ask, chat, thought_end)


def _end_thought(tokenizer: Tokenizer, chat: Chat, config: PromptsConfig) -> list[int]:
    """The tokens that end the thought with which a reply begins: one where there is room for a thought."""
    if not chat.free_tokens:
        return tokenizer.encode_text(close_thought(tokenizer, config))
    end = find_thought_end(tokenizer, config)
    return [] if end is None else [end]


def check_prompts_config(config: PromptsConfig, game: GameSpec, made: bool) -> None:
    """Check the configuration before there is a model; ``made`` is whether it is made for the game's pieces.

    ``ConfigError`` if the game does not support it, or it has an unknown name; the message names the key.
    """
    for each in (config, *_environment_configs(game, config).values()):
        check_prompt_names(each)
        in_box = each.observation and get_observation_template(each.observation).closing
        if in_box and each.extractor not in INSTRUCTIONS:
            raise ConfigError(
                f"prompts.extractor: {each.extractor!r}, but {each.observation!r} asks for the move in a "
                f"box; expected {format_choices(INSTRUCTIONS)}"
            )
    if made and (odd := [key for key in _CONVERSATION_KEYS if getattr(config, key) != getattr(PromptsConfig(), key)]):
        raise ConfigError(
            f"prompts.{odd[0]}: {getattr(config, odd[0])!r} with model.base = 'made', which knows the game's pieces "
            "only; expected a folder or a hub id, or the default"
        )
    if config.reply == "free":
        _resolve_words(game, config)
        return
    text = game.text()
    free_tokens = config.free_tokens
    if made or isinstance(text, Chat):
        free_tokens = getattr(_resolve_text_format(game, config), "free_tokens", 0)
    else:
        _check_listing(game, config)
    if config.thinking and not free_tokens:
        raise ConfigError(
            "prompts.thinking: true, but the reply begins with what is constrained; expected free_tokens above 0, or "
            "reply = 'free'"
        )


def _environment_configs(game: GameSpec, config: PromptsConfig) -> dict[str, PromptsConfig]:
    """The environments of a game that are asked in a way of their own; ``ConfigError`` if keys do not go together."""
    if not isinstance(game, SupportsEnvironments):
        return {}
    try:
        return {name: msgspec.structs.replace(config, **keys) for name, keys in game.environment_prompts().items()}
    except ConfigError as error:
        raise ConfigError(f"game.settings.env: in place of {error}") from None


def check_prompt_names(config: PromptsConfig) -> None:
    """Raise ``ConfigError`` for an unknown name in the configuration; the message names the key."""
    default = PromptsConfig()
    look_ups = {"template": make_template, "extractor": get_extractor, "observation": get_observation_template}
    for key, look_up in look_ups.items():
        try:
            if (name := getattr(config, key)) != getattr(default, key):
                look_up(name)
        except UsageError as error:
            raise ConfigError(f"prompts.{key}: {error}") from None


def _resolve_text_format(game: GameSpec, config: PromptsConfig) -> TextFormat:
    text = game.text()
    if config.free_tokens is not None and isinstance(text, Chat):
        text = text.with_free_tokens(config.free_tokens)
    if config.reduced:
        if not isinstance(text, SupportsBrief):
            raise ConfigError(f"prompts.reduced: true, but the text of {game.name} knows no shorter question")
        text = text.brief()
    return text


def _check_listing(game: GameSpec, config: PromptsConfig) -> None:
    """Raise ``ConfigError`` if the game's words list no legal replies, or none after free text."""
    words = _resolve_words(game, config)
    if not isinstance(words, Listing):
        raise ConfigError(
            f"prompts.reply: 'constrained', but {game.name} cannot list its legal replies in words, and the model "
            "does not know its pieces; expected 'free', or a text that is a conversation (diplomacy: text = "
            "'egocentric')"
        )
    if config.free_tokens and not getattr(words, "opening", ""):
        raise ConfigError(
            f"prompts.free_tokens: {config.free_tokens}, but no word of {game.name} tells its replies from the text "
            "before them; expected reply = 'free'"
        )


def _resolve_words(game: GameSpec, config: PromptsConfig) -> Words:
    try:
        words = words_of(game)
    except GameError as error:
        raise ConfigError(f"prompts.reply: {config.reply!r}, but {error}") from None
    if not config.reduced:
        return words
    if not isinstance(words, SupportsBrief):
        raise ConfigError(f"prompts.reduced: true, but {game.name} in words knows no shorter question")
    brief: Words = words.brief()
    return brief


def _make_free_text_prompter(
    tokenizer: Tokenizer,
    game: GameSpec,
    config: PromptsConfig,
    by_environment: Mapping[str, Prompter] = MappingProxyType({}),
) -> FreeTextPrompter:
    if tokenizer.is_word_level:
        raise ConfigError(
            f"prompts.reply: 'free', but the tokenizer of {tokenizer.folder} knows whole words only; expected a model "
            "that writes text"
        )
    words = _resolve_words(game, config)
    ask, encode = _game_question(words, config), _encoder(tokenizer, config)
    template = resolve_template(tokenizer, config)
    return FreeTextPrompter(tokenizer, words, ask, encode, template, config, by_environment)


def _game_question(words: Words, config: PromptsConfig) -> Conversation:
    """The rules and the position as a conversation, with the extractor's instruction where the rules define no form."""
    closing = "" if config.observation or config.reply != "free" else INSTRUCTIONS.get(config.extractor, "")

    def ask(game: Game, seat: int) -> list[Message]:
        messages = build_game_messages(words, game, seat)
        if closing:
            messages[-1] = Message("user", f"{messages[-1].content}\n{closing}")
        return messages

    return ask


def _encoder(tokenizer: Tokenizer, config: PromptsConfig) -> ConversationEncoder:
    """The tokens of a conversation, in the chat template or in the configured observation's form."""
    if not config.observation:
        return lambda messages: encode_conversation(tokenizer, messages, config)
    template = get_observation_template(config.observation)

    def encode(messages: Sequence[Message]) -> list[int]:
        (merged,) = merge_system_message(with_system_prompt(without_marks(tokenizer, messages, config), config.system))
        return tokenizer.encode_prompt(template.render(merged.content))

    return encode


def _text_encoder(tokenizer: Tokenizer, text: TextFormat, chat: Chat | None, config: PromptsConfig) -> PromptEncoder:
    """The tokens of a game's text: its messages where it is a ``Chat``, else its pieces."""
    if chat is None:
        return lambda game, seat: [*tokenizer.prefix, *tokenizer.encode(text.prompt(game, seat))]
    encode = _encoder(tokenizer, config)
    return lambda game, seat: encode(chat.messages(game, seat))
