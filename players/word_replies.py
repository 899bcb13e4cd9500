"""Prompts in plain language, as conversations in the model's chat template.

- ``ListPrompter``      the reply is one of those that the game lists; free text may come before it
- ``FreeTextPrompter``  the reply is any text, from which the action is read; a rule decides where there is none
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from random import Random

from arena.constraints.token_walk import ListConstraint
from arena.enumerable import ListedGame
from arena.games.base import Action, Game, ParsedAction
from arena.games.texts import Listing, Words, write_reply
from arena.prompts import Message, Template, read_answer
from arena.prompts.extraction import ExtractedAnswer, get_extractor
from inference.chat_template import close_thought, find_thought_end, may_think, turn_constraint, turn_ends
from models.tokenizer import Tokenizer
from players.reply_formats import DecisionPrompt, ParsedReply, Prompter, get_tagged_text
from schemas.config import PromptsConfig
from schemas.errors import GameError, ModelError

_MAX_QUOTED_CHARS = 80

CORRECTIONS = {
    "truncated": "Your answer was cut off before it ended. Be brief.",
    "empty": "Your answer was empty.",
    "unparsable": "No move could be read in your answer.",
    "illegal": "Your move is not legal here.",
}
"""What the second question says, by ``schemas.metrics.REPLY_FAULTS``."""

Conversation = Callable[[Game, int], list[Message]]
"""Maps a game and a seat to move to the question."""
ConversationEncoder = Callable[[Sequence[Message]], list[int]]
"""The tokens of a conversation, up to where the reply begins."""


def encode_choices(tokenizer: Tokenizer, choices: Sequence[str], template: Template) -> list[list[int]]:
    """The tokens of each text, with the end of the turn; ``ModelError`` if one begins another and no token ends it."""
    end = turn_ends(tokenizer, template)[:1]
    written = [[*tokenizer.encode_text(choice), *end] for choice in choices]
    beginnings = (short for short, longer in pairwise(sorted(written)) if longer[: len(short)] == short)
    if not end and (found := next(beginnings, None)):
        raise ModelError(f"choices: {tokenizer.decode(found)!r} begins another; expected a model with an end token")
    return written


class ListPrompter:
    """A ``Prompter`` of a game that lists its legal replies; positions without a list get free replies."""

    reply_tokens: int | None = None
    reports_metrics = True

    def __init__(self, free: "FreeTextPrompter") -> None:
        """``free`` is the prompter of positions without a list; the others are asked by its question."""
        self._free = free
        self._opening = getattr(free.words, "opening", "")
        self.free_tokens = free.config.free_tokens or 0
        end, room = find_thought_end(free.tokenizer, free.config), self.free_tokens
        self._tagged = get_tagged_text(free.tokenizer, self._opening, room, end) if room else None
        self._begun = "" if room else close_thought(free.tokenizer, free.config)
        """Ends the thought that the prompt has begun, where there is no room for one."""
        self._before = [end] if end is not None and room else []

    def make_prompt(self, game: Game, seat: int) -> DecisionPrompt:
        """The seat's decision among the listed replies, or in free text where none are listed."""
        tokenizer, words = self._free.tokenizer, self._free.words
        replies = list(words.replies(game, seat)) if isinstance(words, Listing) else []
        if not replies:
            return self._free.make_prompt(game, seat)
        skipped = self._opening if self._tagged is not None else ""
        texts = [f"{self._begun}{reply.removeprefix(skipped)}" for reply in replies]
        written = encode_choices(tokenizer, texts, self._free.template)
        by_ids = {tuple(ids): reply for ids, reply in zip(written, replies, strict=True)}
        inner = ListConstraint(written)

        def parse_reply(ids: Sequence[int], ended: bool, rng: Random) -> ParsedReply:
            answer = tuple(ids if self._tagged is None else self._tagged.read(inner, ids))
            if answer not in by_ids:
                raise ModelError(f"{game.name}: tokens {list(ids)} are none of {len(replies)} replies")
            return ParsedReply(words.understand(game, seat, by_ids[answer], rng).action, choices=1)

        def encode_action(action: Action) -> list[int]:
            reply = write_reply(words, game, seat, action, replies)
            opening = [*self._before, *(tokenizer.encode_text(skipped) if skipped else [])]
            return [*opening, *written[replies.index(reply)]]

        constraint = inner if self._tagged is None else self._tagged(inner)
        return DecisionPrompt(self._free.ask(game, seat), constraint, parse_reply, encode_action)


class FreeTextPrompter:
    """A ``Prompter`` of free replies, whose action is parsed leniently where the extractor finds it.

    ``template`` strips marks and thoughts from a reply; ``by_environment`` are prompters of environments asked
    otherwise.
    """

    free_tokens = 0
    reports_metrics = True

    def __init__(
        self,
        tokenizer: Tokenizer,
        words: Words,
        ask: Conversation,
        encode: ConversationEncoder,
        template: Template,
        config: PromptsConfig,
        by_environment: Mapping[str, Prompter],
    ) -> None:
        self.reply_tokens: int | None = config.reply_tokens
        self.template = template
        self.config = config
        self.words = words
        self._ask = ask
        self._encode = encode
        self._extract = get_extractor(config.extractor)
        # Of a whole reply the game defines the form; other extractors have one of their own.
        self._opening = getattr(words, "opening", "").lower() if config.extractor == "whole" else ""
        self.tokenizer = tokenizer
        self._constraint = turn_constraint(tokenizer, template)
        self._may_think = may_think(tokenizer, config)
        self._by_environment = by_environment

    def ask(self, game: Game, seat: int) -> list[int]:
        """The question of a position as tokens."""
        return self._encode(self._ask(game, seat))

    def make_prompt(self, game: Game, seat: int) -> DecisionPrompt:
        """The seat's decision in free text, by the environment's own prompter if it has one."""
        if own := self._by_environment.get(getattr(game, "environment", "")):
            return own.make_prompt(game, seat)
        messages = self._ask(game, seat)

        def parse_reply(ids: Sequence[int], ended: bool, rng: Random) -> ParsedReply:
            return self._parse(game, seat, ids, ended, rng)

        def encode_action(action: Action) -> list[int]:
            raise GameError(f"{game.name}: free replies have no one form in which {action} is said")

        def ask_again(ids: Sequence[int], fault: str) -> list[int]:
            said = read_answer(self.template, self._text(ids), self._may_think)
            correction = f"{CORRECTIONS[fault]}\n{messages[-1].content}"
            return self._encode([*messages, Message("assistant", said), Message("user", correction)])

        return DecisionPrompt(
            self._encode(messages),
            self._constraint,
            parse_reply,
            encode_action,
            must_end=False,
            ask_again=ask_again if self.config.second_question else None,
        )

    def _text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([token for token in ids if token not in self.tokenizer.ends])

    def _parse(self, game: Game, seat: int, ids: Sequence[int], ended: bool, rng: Random) -> ParsedReply:
        """The action in the reply, or what the configured rule plays in its place."""
        answer = self._extract(read_answer(self.template, self._text(ids), self._may_think))
        parsed = self._understand(game, seat, answer, ended, rng)
        action, choices, illegal = parsed.action, parsed.choices, parsed.illegal
        if illegal and self.config.invalid == "fail":
            raise GameError(
                f"{game.name}: seat {seat} says no legal action in its reply of {len(ids)} tokens, "
                f"{answer.text[:_MAX_QUOTED_CHARS]!r}; prompts.invalid = 'fail' plays none in its place"
            )
        if illegal == choices and self.config.invalid == "random":
            action = game.random_action(seat, rng)
        in_form = self.config.extractor != "whole" or parsed.well_formed
        formatted = answer.well_formed and in_form and ended and self._opening in answer.text.lower()
        return ParsedReply(action, formatted, choices, illegal, fault=_reply_fault(answer, parsed, ended))

    def _understand(self, game: Game, seat: int, answer: ExtractedAnswer, ended: bool, rng: Random) -> ParsedAction:
        """The action in an answer; in one that was cut off, only what further text could not change."""
        whole = self.config.extractor == "whole"
        if ended or (answer.well_formed and not whole):
            return self.words.understand(game, seat, answer.text, rng)
        if not isinstance(game, ListedGame):
            # Of several orders the last may be half of a longer one.
            finished = answer.text[: max(map(answer.text.rfind, "\n;,")) + 1]
            return self.words.understand(game, seat, finished, rng)
        parsed = self.words.understand(game, seat, answer.text, rng)
        certain = whole and parsed.well_formed and not _may_go_on(answer.text, parsed.action[0], game.moves(seat))
        return parsed if parsed.illegal or certain else self.words.understand(game, seat, "", rng)


def _may_go_on(text: str, move: str, moves: Sequence[str]) -> bool:
    """Whether a text ends with the beginning of a longer move than the one that is read in it."""
    said, read = text.lower(), move.lower()
    longer = [other for other in map(str.lower, moves) if other.startswith(read)]
    return any(said.endswith(other[:end]) for other in longer for end in range(len(read), len(other)))


def _reply_fault(answer: ExtractedAnswer, parsed: ParsedAction, ended: bool) -> str:
    """The kind of reply without a legal action; empty for one with an action."""
    if not parsed.illegal:
        return ""
    if not ended:
        return "truncated"
    if not answer.text.strip():
        return "empty"
    return "illegal" if answer.well_formed and parsed.mentions_move else "unparsable"
