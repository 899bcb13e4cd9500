"""Prompts about a game, as tokens: pieces for models made here, conversations for pretrained ones.

``make_prompter`` chooses by the configuration, the model's tokenizer and the texts that the game offers; constraints on
replies are in ``reply_formats``. In free replies the action is extracted from the text, and a rule decides what is
played without one: as for remote agents, legality is learnt from rewards.
"""

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType

import msgspec

from arena.constraints.tagged import UntilStopToken
from arena.constraints.token_walk import Constraint
from arena.games.base import Action, Game, GameSpec
from arena.games.texts import SupportsBrief, SupportsEnvironments, TextFormat, Words, as_grammar_text, words_of
from arena.prompts import (
    Chat,
    Message,
    Template,
    build_game_messages,
    make_template,
    merge_system_message,
    with_system_prompt,
)
from arena.prompts.extraction import INSTRUCTIONS, get_extractor, get_observation_template
from inference.chat_template import render_conversation, resolve_template
from models.tokenizer import Tokenizer
from players.reply_formats import DecisionPrompt, GrammarPrompter, ParsedReply, PhrasePrompter, PromptEncoder, Prompter
from schemas.config import PromptsConfig
from schemas.errors import ConfigError, GameError, UsageError, format_choices

_MAX_QUOTED_CHARS = 80
_CONVERSATION_KEYS = ("reply", "template", "thinking", "system", "free_tokens", "reduced")


class FreeTextPrompt(DecisionPrompt):
    """A decision whose reply is free text."""

    must_end = False
    _prompter: "FreeTextPrompter"

    def __init__(self, prompter: "FreeTextPrompter", prompt_ids: list[int], game: Game, seat: int) -> None:
        super().__init__(prompter, prompt_ids, game, seat)
        self.constraint = prompter.constraint

    def parse_reply(self, ids: Sequence[int], ended: bool, rng: Random) -> ParsedReply:
        """The action in the reply, or in its place what the configured rule plays."""
        prompter = self._prompter
        text = prompter.tokenizer.decode([token for token in ids if token not in prompter.tokenizer.ends])
        answer = prompter.extract(prompter.template.answer(text))
        action, choices, illegal = prompter.words.understand(self._game, self._seat, answer.text, rng)
        if illegal and prompter.rule == "fail":
            raise GameError(
                f"{self._game.name}: seat {self._seat} says no legal action in its reply of {len(ids)} tokens, "
                f"{answer.text[:_MAX_QUOTED_CHARS]!r}; prompts.invalid = 'fail' plays none in its place"
            )
        if illegal == choices and prompter.rule == "random":
            action = self._game.random_action(self._seat, rng)
        return ParsedReply(action, answer.well_formed and ended, choices, illegal)

    def encode_action(self, action: Action) -> list[int]:
        """Always raises ``GameError``: there are many texts for an action."""
        raise GameError(f"{self._game.name}: free replies have no one form in which {action} is said")


class FreeTextPrompter(Prompter):
    """Prompts for free replies, whose action is parsed leniently where the extractor finds it.

    ``template`` strips marks and thoughts from a reply; ``by_environment`` are prompters of environments asked
    otherwise.
    """

    prompt_type = FreeTextPrompt

    def __init__(
        self,
        tokenizer: Tokenizer,
        words: Words,
        ask: PromptEncoder,
        template: Template,
        config: PromptsConfig,
        by_environment: Mapping[str, Prompter],
    ) -> None:
        super().__init__(ask)
        self.reply_tokens = config.reply_tokens
        self.words = words
        self.template = template
        self.extract = get_extractor(config.extractor)
        self.rule = config.invalid
        self.tokenizer = tokenizer
        self.constraint = end_of_turn_constraint(tokenizer, template)
        self._by_environment = by_environment

    def make_prompt(self, game: Game, seat: int) -> DecisionPrompt:
        """See ``Prompter``."""
        if own := self._by_environment.get(getattr(game, "environment", "")):
            return own.make_prompt(game, seat)
        return super().make_prompt(game, seat)


def end_of_turn_constraint(tokenizer: Tokenizer, template: Template) -> Constraint | None:
    """The constraint that ends a turn; None where one of the model's end tokens ends its turns too."""
    if not template.end or not tokenizer.is_token(template.end):
        return None
    (mark,) = tokenizer.encode_text(template.end)
    return None if mark in tokenizer.ends else UntilStopToken((*tokenizer.ends, mark))


def make_prompter(tokenizer: Tokenizer, game: GameSpec, config: PromptsConfig) -> Prompter:
    """The prompter of a league's models. It reads the model's vocabulary where text is constrained: keep it.

    Raises:
        ConfigError: the model or the game does not support the configuration; the message names the key.
        ModelError: the tokenizer's vocabulary cannot be read, or cannot write the tag.
    """
    configs = _environment_configs(game, config)
    if config.reply == "free":
        own = {name: _make_free_text_prompter(tokenizer, game, each) for name, each in configs.items()}
        return _make_free_text_prompter(tokenizer, game, config, own)
    return make_constrained_prompter(tokenizer, _resolve_text_format(game, config), config)


def make_constrained_prompter(tokenizer: Tokenizer, text: TextFormat, config: PromptsConfig | None = None) -> Prompter:
    """The prompter for constrained replies: ``make_prompter`` without free replies."""
    config = config or PromptsConfig()
    chat = text if isinstance(text, Chat) and not tokenizer.is_word_level else None
    ask = TextPromptEncoder(tokenizer, text, chat, config)
    if (language := as_grammar_text(text)) is not None:
        return GrammarPrompter(tokenizer, language, ask, chat, config.invalid)
    return PhrasePrompter(tokenizer, text, ask, chat)


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
    text = _resolve_text_format(game, config)
    if config.thinking and not getattr(text, "free_tokens", 0):
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
    if config.free_tokens is not None:
        if not isinstance(text, Chat):
            raise ConfigError(
                f"prompts.free_tokens: {config.free_tokens}, but {game.name} is not asked as a conversation with these "
                "settings; expected a text that is (diplomacy: text = 'egocentric')"
            )
        text = text.with_free_tokens(config.free_tokens)
    if config.reduced:
        if not isinstance(text, SupportsBrief):
            raise ConfigError(f"prompts.reduced: true, but the text of {game.name} knows no shorter question")
        text = text.brief()
    return text


def _resolve_words(game: GameSpec, config: PromptsConfig) -> Words:
    try:
        words = words_of(game)
    except GameError as error:
        raise ConfigError(f"prompts.reply: 'free', but {error}") from None
    if not config.reduced:
        return words
    if not isinstance(words, SupportsBrief):
        raise ConfigError(f"prompts.reduced: true, but {game.name} in words knows no shorter question")
    return words.brief()


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
    conversing = ConversationEncoder(tokenizer, config)

    def ask(table: Game, seat: int) -> list[int]:
        messages = build_game_messages(words, table, seat)
        if config.observation:
            (merged,) = merge_system_message(with_system_prompt(messages, config.system))
            return tokenizer.encode_text(get_observation_template(config.observation).render(merged.content))
        if closing := INSTRUCTIONS.get(config.extractor):
            messages = [*messages[:-1], Message("user", f"{messages[-1].content}\n{closing}")]
        return conversing.encode(messages)

    return FreeTextPrompter(tokenizer, words, ask, conversing.template, config, by_environment)


class TextPromptEncoder:
    """Encodes a game's text: its pieces, or its messages for a ``Chat`` and a tokenizer of sub-words."""

    def __init__(self, tokenizer: Tokenizer, text: TextFormat, chat: Chat | None, config: PromptsConfig) -> None:
        self._chat = chat
        self._text = text
        self._tokenizer = tokenizer
        self._encoder = ConversationEncoder(tokenizer, config)

    def __call__(self, game: Game, seat: int) -> list[int]:
        """The position as tokens; see ``Prompter.make_prompt``."""
        if self._chat is None:
            return self._tokenizer.encode(self._text.prompt(game, seat))
        return self._encoder.encode(self._chat.messages(game, seat))


class ConversationEncoder:
    """Encodes conversations for one model.

    Raises:
        ModelError: the model does not know the configured family's special tokens.
        UsageError: the configured template or observation is unknown.
    """

    def __init__(self, tokenizer: Tokenizer, config: PromptsConfig) -> None:
        self.template = resolve_template(tokenizer, config)
        """The configured family's or the model's; it parses replies even where the folder's own writes prompts."""
        self._tokenizer = tokenizer
        self._config = config

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """A conversation as tokens, up to where the reply begins.

        The family's special tokens are removed from the contents: players and judges read each other's replies, and one
        in which a turn ends and another begins could impersonate another role.
        """
        cleaned = []
        for message in messages:
            text = message.content
            # Taking one out may join the halves of another.
            while marks := [mark for mark in self.template.marks if mark in text]:
                for mark in marks:
                    text = text.replace(mark, "")
            cleaned.append(msgspec.structs.replace(message, content=text))
        return self._tokenizer.encode_text(render_conversation(self._tokenizer, cleaned, self._config))
