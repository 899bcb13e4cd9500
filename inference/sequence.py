"""One request in the engine: its sampled and forced tokens, and when it is finished."""

import asyncio
import time
from collections.abc import Collection
from math import isfinite
from random import Random

from arena.constraints.tagged import UntilStopToken
from arena.constraints.token_walk import ANY_TOKEN, Constraint
from inference.base import Generation, Request, Timing
from inference.completion import CompletionBuilder, check_token_ids
from inference.lora_linear import PreparedWeights
from inference.sampler import AllowedTokens, RowSampling
from schemas.errors import ModelError


class ActiveSequence:
    """A completion being sampled. Tokens in ``pending`` are known but not in the cache yet."""

    def __init__(
        self,
        request: Request,
        ready: PreparedWeights,
        limit: int,
        ends: Collection[int],
        future: asyncio.Future[Generation],
    ) -> None:
        """Follow the tokens forced at the beginning; ``ends`` are those that end a completion without a constraint.

        A constraint that raises, or names a token that the model does not have, does so here or in ``accept_token``.
        """
        self._submitted = time.perf_counter()
        self._started: float | None = None
        self._sampled_first: float | None = None
        self.ready = ready
        self.future = future
        self._temperature = request.sampling.temperature
        self._top_p = request.sampling.top_p
        self._prompt = list(request.prompt_ids)
        self.pending = list(self._prompt)
        self.offsets: list[int] = []
        """Offsets of its cached prefix in the pool, until that is copied into the row's slot."""
        self.reused = 0
        """Prompt tokens whose keys and values were cached from another request."""
        self.cached = 0
        """Tokens of this row in the cache."""
        self.waited = 0
        """Rounds spent in the queue."""
        self.choices: AllowedTokens = None
        self.finished: str | None = None
        self.torn = False
        """Whether its log-probabilities were not finite, so that its keys and values may not be either."""
        self._place: Constraint = UntilStopToken(ends) if request.constraint is None else request.constraint
        self._next: float | None = None
        self._uniform = Random(request.sampling.seed).random
        self._limit = limit
        self._vocabulary = ready.weights.shape.vocab_size
        self._completion = CompletionBuilder()
        check_token_ids(min(self.pending), max(self.pending), self._vocabulary)
        self._follow_forced(self._place)

    @property
    def forced(self) -> int:
        """Number of forced completion tokens."""
        return len(self._completion) - self.sampled

    @property
    def sampled(self) -> int:
        """Number of sampled completion tokens."""
        return len(self._completion.branches)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self._prompt)

    @property
    def ids(self) -> list[int]:
        """The prompt and the completion so far."""
        return [*self._prompt, *self._completion.completion_ids]

    def admit(self, offsets: list[int], tokens: int) -> None:
        """Leave the queue, with a cached prefix of the prompt."""
        self._started = self._started or time.perf_counter()
        self.offsets = offsets
        self.cached = tokens
        self.reused = min(tokens, len(self._prompt))
        del self.pending[:tokens]

    def skip_prefill(self) -> None:
        """Count the prompt as reused: a token was sampled without a pass, and nothing of this row is in the cache."""
        self._started = self._started or time.perf_counter()
        self.reused = len(self._prompt)

    def consume_pending(self) -> list[int]:
        """Take the pending tokens, which count as cached from here on."""
        pending, self.pending = self.pending, []
        self.cached += len(pending)
        return pending

    def restart_prefill(self) -> None:
        """Compute everything again, since the cache was lost, and continue."""
        self.pending = self.ids
        self.cached = 0

    def sampling_request(self) -> RowSampling:
        """Parameters of the next draw; its uniform number stays the same until a token is accepted."""
        if self._next is None:
            self._next = self._uniform()
        return RowSampling(self.choices, self._temperature, self._next, self._top_p)

    def accept_token(self, token: int, logprob: float, nucleus: list[int] | None = None) -> None:
        """Append a sampled token and the tokens it forces; a nucleus of one token is no choice."""
        self._next = None
        if not isfinite(logprob):
            # Sound files can overflow when they are used.
            self.torn = True
            adapter = self.ready.adapter
            raise ModelError(f"inference: a log-probability of {logprob} from adapter {adapter!r}; expected a number")
        if self._sampled_first is None:
            self._sampled_first = time.perf_counter()
        allowed = list(self.choices or ()) if nucleus is None else nucleus
        self._completion.append(token, logprob, allowed)
        self.pending.append(token)
        self._follow_forced(self._place.advance(token))

    def make_generation(self) -> Generation:
        """The finished completion."""
        assert self.finished is not None
        now = time.perf_counter()
        first_s = 0.0 if self._sampled_first is None else self._sampled_first - self._submitted
        timing = Timing((self._started or now) - self._submitted, now - self._submitted, self.reused, first_s)
        return self._completion.finish(self.finished, timing)

    def _follow_forced(self, place: Constraint) -> None:
        """Append forced tokens up to the next choice, the end or the limit."""
        before = len(self._completion)
        self._place, allowed, reason = self._completion.follow_forced(place, self._limit, self._vocabulary)
        self.pending += self._completion.completion_ids[before:]
        self.choices = None if allowed is ANY_TOKEN else allowed
        if self.choices:
            check_token_ids(allowed[0], allowed[-1], self._vocabulary)
        self.finished = reason
