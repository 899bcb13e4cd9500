"""Model calls of an arena: which episode a call belongs to, its limits, and the validation of its reply.

Episodes call the model and run other episodes through the arena. A context variable holds the running episode, so that
calls enter the right trajectory and children know their parent, whatever runs concurrently.
"""

from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from inspect import signature
from itertools import count
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from arena.clients import InferenceClient, SupportsChoices
from schemas.episodes import EpisodeRequest, EpisodeState, Message, ModelResponse, Step
from schemas.errors import EpisodeError, UsageError, format_choices
from schemas.ids import derive_seed

RoleClients = Mapping[str, InferenceClient]
"""Clients by role id, in place of the arena's own; ``JUDGE`` for calls without a role."""

JUDGE = ""
"""Key of a ``RoleClients`` for calls without a role."""


class EpisodeContext(NamedTuple):
    """Position of an episode in the tree of episodes, and what it inherits there."""

    id: str
    parent: str = ""
    depth: int = 0
    seed: int = 0
    policy_version: int = 0
    is_trainable: bool = True
    role_clients: RoleClients = MappingProxyType({})
    """Inherited by all episodes below."""

    def make_child(self, number: int, request: EpisodeRequest) -> "EpisodeContext":
        """The context of a child episode. Below an episode that is not trained on, nothing is."""
        return EpisodeContext(
            id=f"{self.id}.{number}",
            parent=self.id,
            depth=self.depth + 1,
            seed=derive_seed(self.seed, "child", number),
            policy_version=request.policy_version or self.policy_version,
            is_trainable=self.is_trainable and request.is_trainable,
            role_clients=self.role_clients,
        )


class RunningEpisode:
    """An episode in progress: its context, its state, and the numbers of its next calls and children."""

    def __init__(self, context: EpisodeContext, state: EpisodeState) -> None:
        self.context = context
        self.state = state
        self.call_numbers = count()
        self.child_numbers = count()
        self._inserted_numbers: list[int] = []

    def insert_step(self, number: int, step: Step) -> None:
        """Insert a call into the trajectory in the order in which calls were made, not answered."""
        index = bisect(self._inserted_numbers, number)
        self._inserted_numbers.insert(index, number)
        self.state.trajectory.insert(index, step)

    def amend_step(self, number: int, **facts: Any) -> None:
        """Set fields of a call's ``trajectories.ModelCall`` that became known after its reply was read."""
        index = self._inserted_numbers.index(number)
        step = self.state.trajectory[index]
        tokens = None if step.tokens is None else msgspec.structs.replace(step.tokens, **facts)
        self.state.trajectory[index] = msgspec.structs.replace(step, tokens=tokens, info={**step.info, **facts})


_CURRENT: ContextVar[RunningEpisode | None] = ContextVar("running", default=None)


def current_episode() -> RunningEpisode | None:
    """The episode that the calling code runs for; None outside of one."""
    return _CURRENT.get()


@contextmanager
def run_within(running: RunningEpisode) -> Iterator[None]:
    """Run the body, and all tasks that it starts, for an episode."""
    token = _CURRENT.set(running)
    try:
        yield
    finally:
        _CURRENT.reset(token)


EMPTY_REPLY_POLICIES = ("fail", "count")
"""Values of ``Limits.empty``."""


class Limits(msgspec.Struct, frozen=True):
    """Limits of an episode; one that exceeds them has failed."""

    reply_chars: int = 100_000
    """Longest reply."""
    calls: int = 10_000
    """Most model calls of one episode, its judges' included; children count their own."""
    episode_s: float | None = None
    """Longest time from an episode's beginning to its scores, children included."""
    needs_tokens: bool = True
    """Whether a role's reply needs its token ids where it could be trained on. Unset it to play with a client that has
    none: its calls then stay out of batches."""
    empty: str = "fail"
    """What happens to an episode with an empty reply. ``fail``: it fails. ``count``: an empty reply with tokens, an
    immediate end, is a turn like any other, which is scored and trained on. A failed episode costs nothing, so in
    a game that can be lost a learner discovers silence as a way out."""

    def __post_init__(self) -> None:
        for name in ("reply_chars", "calls", "episode_s"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise UsageError(f"limits: {name} = {value}; expected more than 0")
        if self.empty not in EMPTY_REPLY_POLICIES:
            raise UsageError(f"limits: empty = {self.empty!r}; expected {format_choices(EMPTY_REPLY_POLICIES)}")


class CompletedCall(NamedTuple):
    """An answered call."""

    response: ModelResponse
    number: int
    running: RunningEpisode | None

    def amend(self, **facts: Any) -> None:
        """Set fields of the call's ``trajectories.ModelCall`` that became known after reading the reply."""
        if self.running is not None:
            self.running.amend_step(self.number, **facts)


class CallOptions(NamedTuple):
    """Sampling parameters of a call."""

    temperature: float
    max_tokens: int | None
    return_tokens: bool
    seed: int
    choices: Sequence[str] = ()


async def request_reply(
    client: InferenceClient, messages: Sequence[Message], options: CallOptions, limits: Limits, needs_tokens: bool
) -> ModelResponse:
    """A client's reply as ``validate_response``; one of the choices if there are any and the client supports them."""
    temperature, max_tokens, return_tokens, seed, choices = options
    if choices and isinstance(client, SupportsChoices):
        response = await client.choose(messages, choices, temperature, return_tokens, seed)
    elif _accepts_seed(type(client)):
        response = await client.complete(messages, temperature, max_tokens, return_tokens, seed)
    else:
        response = await client.complete(messages, temperature, max_tokens, return_tokens)
    return validate_response(response, limits, needs_tokens)


@cache
def _accepts_seed(client: type) -> bool:
    """Whether this kind of client's ``complete`` has a parameter for the seed, which is optional."""
    parameters = signature(client.complete).parameters.values() if hasattr(client, "complete") else ()
    return any(one.name == "seed" or one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in parameters)


def validate_response(response: ModelResponse, limits: Limits, needs_tokens: bool) -> ModelResponse:
    """The reply, or ``EpisodeError`` if it is empty where it must not be, too long, not text, or lacks sound tokens."""
    if reason := _find_reply_error(response, limits, needs_tokens):
        raise EpisodeError(f"model reply: {reason}")
    return response


def _find_reply_error(response: ModelResponse, limits: Limits, needs_tokens: bool) -> str:
    text: object = getattr(response, "text", None)
    if not isinstance(text, str):
        return f"{text!r}; expected text"
    tokens = response.tokens
    if not text.strip() and not (limits.empty == "count" and tokens and tokens.completion_ids):
        return "it is empty; expected text"
    if len(text) > limits.reply_chars:
        return f"{len(text)} characters; expected {limits.reply_chars} at most"
    if tokens is None:
        reason = response.missing_tokens or "it has no token ids or log-probabilities"
        return f"{reason}; expected them to train on" if needs_tokens else ""
    branches, size = tokens.branches, len(tokens.completion_ids)
    if not tokens.prompt_ids or not size:
        return f"{len(tokens.prompt_ids)} tokens of prompt, {size} of reply; expected some of each"
    if not len(tokens.logprobs) == len(tokens.allowed) == len(branches) <= size:
        return (
            f"{len(branches)} branches, {len(tokens.logprobs)} log-probabilities and {len(tokens.allowed)} "
            f"allowed sets for {size} tokens; expected one of each for every sampled token"
        )
    if branches and (branches != sorted(branches) or branches[0] < 0 or branches[-1] >= size):
        return f"branches out of order, or beyond the reply's {size} tokens"
    # The sum nearly always suffices, and is several times as fast.
    if not (isfinite(sum(tokens.logprobs)) or all(map(isfinite, tokens.logprobs))):
        return "a log-probability is not a finite number"
    return ""
