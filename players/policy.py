"""The league's own models as players: in a seat of a game, and as ``InferenceClient`` of an episode."""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

import msgspec

from arena.constraints.token_walk import Constraint, ListConstraint, read_choices
from arena.enumerable import ListedGame
from arena.games.base import Action, Game
from arena.games.texts import SupportsCredits, TextFormat
from arena.match import SeatPlayer
from arena.prompts import read_answer
from inference.base import Generation, InferenceBackend, Request, SamplingParameters
from inference.chat_template import (
    check_thinking,
    close_thought,
    encode_conversation,
    may_think,
    resolve_template,
    turn_constraint,
)
from models.tokenizer import Tokenizer
from players.prompt_builder import make_constrained_prompter
from players.reply_formats import DecisionPrompt, ParsedReply, Prompter
from players.word_replies import encode_choices
from schemas.config import PromptsConfig
from schemas.decisions import MAX_LEGAL_MOVES, DecisionNote
from schemas.episodes import Message, ModelResponse
from schemas.errors import ModelError
from schemas.ids import derive_seed
from schemas.metrics import REPLY_FAULTS, REPLY_METRICS
from schemas.trajectories import ModelCall

if TYPE_CHECKING:
    from models.behaviour_cloning import Example
AdapterProvider = Callable[[], tuple[int, str | None]]
"""Version and adapter digest for the next decision; None is the base model."""


class PolicyPlayer(SeatPlayer):
    """A model in one seat of one match. Every decision is kept as a ``ModelCall``, to be trained on."""

    def __init__(
        self, backend: InferenceBackend, prompting: Prompter, provider: AdapterProvider, sampling: SamplingParameters
    ) -> None:
        """``sampling`` has the temperature and the token limit; each decision has its own seed."""
        self.model_calls: list[ModelCall] = []
        self.notes: list[DecisionNote] = []
        self._backend = backend
        self._prompter = prompting
        self._provider = provider
        self._sampling = sampling
        self._action_parts: list[list[str]] = []
        self._choice_count = 0
        self._filled_count = 0
        self._faults: Counter[str] = Counter()

    async def act(self, game: Game, seat: int, seed: int) -> Action:
        """Sample a legal action, or apply the rule for invalid replies.

        Raises:
            GameError: the reply is invalid and the rule is to fail.
            ModelError: the backend rejected the request, or a constrained completion was cut off.
        """
        question = self._prompter.make_prompt(game, seat)
        version, adapter = self._provider()
        generation = await self._generate(question.prompt_ids, question, adapter, seed)
        ended = generation.finish_reason == "stop"
        if question.must_end and not ended:
            raise ModelError(
                f"{game.name}: the completion of seat {seat} has not ended after {len(generation.completion_ids)} "
                f"tokens; expected an end within {self._max_tokens} and the model's room after the prompt"
            )
        reply = question.parse_reply(generation.completion_ids, ended, Random(derive_seed(seed, "reply")))
        call = make_model_call(question.prompt_ids, generation, version, self._sampling.temperature)
        outcome = {"formatted": reply.formatted, "invalid": reply.illegal > 0, "fault": reply.fault}
        call = msgspec.structs.replace(call, clock=game.clock, progress=game.progress(seat), **outcome)
        # Behind the last part there may be an end token.
        action_parts = [part for at in call.branches for part in reply.parts[at : at + 1]]
        fault, second_ids = reply.fault, list[int]()
        if fault and question.ask_again is not None:
            reply, second_ids = await self._ask_again(question, generation, reply, adapter, seed)
        # Without a wait in between: a search asks for several actions at once, and these stand side by side.
        self.model_calls.append(call)
        self.notes.append(DecisionNote("; ".join(reply.action), _legal_moves(game, seat), second_ids))
        self._action_parts.append(action_parts)
        self._faults[fault] += 1
        self._choice_count += reply.choices
        self._filled_count += reply.illegal
        return reply.action

    async def _ask_again(
        self, question: DecisionPrompt, first: Generation, reply: ParsedReply, adapter: str | None, seed: int
    ) -> tuple[ParsedReply, list[int]]:
        """The reply to a second question, which says what was wrong with the first, and its tokens.

        It is not trained on. Where the model has no room for the question, the first reply and no tokens.
        """
        assert question.ask_again is not None
        again = derive_seed(seed, "second question")
        prompt_ids = question.ask_again(first.completion_ids, reply.fault)
        try:
            generation = await self._generate(prompt_ids, question, adapter, again)
        except ModelError as error:
            # The first question differed in its prompt alone. Subclasses are failures that may pass.
            if type(error) is not ModelError:
                raise
            return reply, []
        ended = generation.finish_reason == "stop"
        parsed = question.parse_reply(generation.completion_ids, ended, Random(derive_seed(again, "reply")))
        return parsed, generation.completion_ids

    async def _generate(
        self, prompt_ids: list[int], question: DecisionPrompt, adapter: str | None, seed: int
    ) -> Generation:
        sampling = msgspec.structs.replace(self._sampling, seed=seed, max_tokens=self._max_tokens)
        return await self._backend.generate(Request(prompt_ids, adapter, question.constraint, sampling))

    @property
    def _max_tokens(self) -> int:
        return self._prompter.reply_tokens or self._sampling.max_tokens + self._prompter.free_tokens

    def decisions(self) -> Sequence[tuple[ModelCall, DecisionNote]]:
        """All model calls; see ``SeatPlayer``."""
        return list(zip(self.model_calls, self.notes, strict=True))

    def assign_action_credits(self, game: Game, seat: int) -> None:
        """Credit each part of each action by the finished game's account, where it has one."""
        if not isinstance(game, SupportsCredits):
            return
        credited = zip(self.model_calls, self._action_parts, game.credits(seat), strict=True)
        self.model_calls = [
            msgspec.structs.replace(step, credits=[earned.get(part, 0.0) for part in parts])
            if len(parts) == len(step.branches)
            else step
            for step, parts, earned in credited
        ]

    def metrics(self) -> dict[str, float]:
        """Facts about the replies, for ``SeatResult.metrics``; nothing where replies can only be legal.

        ``reply_count``, of these ``reply_unformatted``, ``reply_invalid`` and one for each of ``REPLY_FAULTS``;
        ``reply_choices`` that they had to make, of these ``reply_filled`` that were made for the model.
        """
        if not self._prompter.reports_metrics:
            return {}
        counted = {
            "count": len(self.model_calls),
            "unformatted": sum(not step.formatted for step in self.model_calls),
            "invalid": sum(step.invalid for step in self.model_calls),
            "choices": self._choice_count,
            "filled": self._filled_count,
        } | {fault: self._faults[fault] for fault in REPLY_FAULTS}
        return {REPLY_METRICS + name: float(count) for name, count in counted.items()}


def _legal_moves(game: Game, seat: int) -> list[str] | None:
    """All legal moves; None if the game does not list them, or lists too many."""
    if not isinstance(game, ListedGame):
        return None
    moves = game.moves(seat)
    return list(moves) if len(moves) <= MAX_LEGAL_MOVES else None


def make_example(tokenizer: Tokenizer, text: TextFormat, game: Game, seat: int, action: Action) -> "Example":
    """A decision as the reply of a model, for behaviour cloning."""
    # torch comes with it, and playing needs none here.
    from models.behaviour_cloning import Example

    question = make_constrained_prompter(tokenizer, text).make_prompt(game, seat)
    completion_ids = question.encode_action(action)
    assert question.constraint is not None
    return Example(question.prompt_ids, completion_ids, *read_choices(question.constraint, completion_ids))


DEFAULT_MAX_TOKENS = 512


class BackendClient:
    """An ``InferenceClient`` over any ``InferenceBackend``, whose weights may change between calls.

    Samples are trained on as they are: ids, and log-probabilities under the distribution that was sampled from, which
    is the nucleus below a ``top_p`` of 1. ``ModelError`` if the model knows whole words only, not the configured
    family's special tokens, or cannot think where that is configured.
    """

    def __init__(
        self,
        backend: InferenceBackend,
        tokenizer: Tokenizer,
        provider: AdapterProvider = lambda: (0, None),
        config: PromptsConfig | None = None,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        top_p: float = 1.0,
    ) -> None:
        """``provider`` is by default of the base model, at version 0; ``max_tokens`` limits calls that set no limit."""
        self._backend = backend
        self._tokenizer = tokenizer
        self._provider = provider
        self._max_tokens = max_tokens
        self._top_p = top_p
        self._temperature: float | None = None
        self._config = config or PromptsConfig()
        check_writes_text(tokenizer)
        check_thinking(tokenizer, self._config)
        self._template = resolve_template(tokenizer, self._config)
        self._constraint = turn_constraint(tokenizer, self._template)
        self._may_think = may_think(tokenizer, self._config)
        self._begun = close_thought(tokenizer, self._config)

    def with_policy(self, provider: AdapterProvider, temperature: float | None = None) -> "BackendClient":
        """The same model with other weights; ``temperature`` overrides that of the calls, unless None."""
        other = copy.copy(self)
        other._provider = provider
        other._temperature = temperature
        return other

    async def complete(
        self,
        messages: Sequence[Message],
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        seed: int = 0,
    ) -> ModelResponse:
        """Sample a reply; ``ModelError`` if it fails, or the conversation cannot be written or is too long."""
        sampling = SamplingParameters(temperature, seed, max_tokens or self._max_tokens, self._top_p)
        return await self._generate(messages, self._constraint, sampling, return_tokens)

    async def choose(
        self,
        messages: Sequence[Message],
        choices: Sequence[str],
        temperature: float = 1.0,
        return_tokens: bool = True,
        seed: int = 0,
    ) -> ModelResponse:
        """Sample a choice; ``ModelError`` as ``complete``, or if one begins another and no token ends it."""
        written = encode_choices(self._tokenizer, [self._begun + choice for choice in choices], self._template)
        sampling = SamplingParameters(temperature, seed, max(map(len, written)), self._top_p)
        return await self._generate(messages, ListConstraint(written), sampling, return_tokens)

    async def _generate(
        self,
        messages: Sequence[Message],
        constraint: Constraint | None,
        sampling: SamplingParameters,
        return_tokens: bool,
    ) -> ModelResponse:
        prompt_ids = encode_conversation(self._tokenizer, messages, self._config)
        version, adapter = self._provider()
        temperature = sampling.temperature if self._temperature is None else self._temperature
        sampling = msgspec.structs.replace(sampling, temperature=temperature)
        generation = await self._backend.generate(Request(prompt_ids, adapter, constraint, sampling))
        is_choice = constraint is not self._constraint
        # Without marks and thoughts; no choice holds a thought.
        ids = [token for token in generation.completion_ids if token not in self._tokenizer.ends]
        reply = read_answer(self._template, self._tokenizer.decode(ids), self._may_think and not is_choice)
        tokens = None
        if return_tokens:
            tokens = make_model_call(prompt_ids, generation, version, temperature)
            # A choice of a list always ends.
            if not is_choice and (tokens.truncated or not reply.strip()):
                tokens = msgspec.structs.replace(tokens, fault="truncated" if tokens.truncated else "empty")
        return ModelResponse(reply, tokens, generation.finish_reason)

    async def get_policy_version(self) -> int:
        """Version of the weights that the next call is sampled from."""
        return self._provider()[0]


def check_writes_text(tokenizer: Tokenizer) -> None:
    """Raise ``ModelError`` for a tokenizer of whole words, which cannot write a conversation."""
    if tokenizer.is_word_level:
        raise ModelError(f"{tokenizer.folder}: its tokenizer knows whole words only; expected one that writes text")


def make_model_call(prompt_ids: list[int], generation: Generation, version: int, temperature: float) -> ModelCall:
    """A sampled completion as the trainer learns from it; arguments as the fields of ``ModelCall``."""
    return ModelCall(
        prompt_ids=prompt_ids,
        completion_ids=generation.completion_ids,
        branches=generation.branches,
        logprobs=generation.logprobs,
        allowed=generation.allowed,
        version=version,
        clock=0,
        progress=0.0,
        temperature=temperature,
        truncated=generation.finish_reason == "length",
    )
