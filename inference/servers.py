"""The ``servers`` backend: inference processes elsewhere, over HTTP (``inference.remote``).

A request is pure: its seed decides its draws, so that the same request, sent again to any server, gives the same
completion. The requests of a server that dies are therefore sent to another one, and nothing is lost.

Servers find adapters by digest, so nothing has to be loaded here.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from arena.constraints.constraint_slices import slice_constraint
from arena.constraints.token_walk import Constraint
from inference.base import BackendStats, Generation, Request, Timing
from inference.completion import CompletionBuilder
from inference.remote import CONTENT_TYPE, GENERATE, GenerateCall, GenerateReply
from inference.remote.client import HttpRequest
from inference.remote.load_balancer import LoadBalancer, ServersConfig, ServerTable, affinity_key
from inference.statistics import RequestCounter
from schemas.errors import ModelError
from schemas.ids import derive_seed


class ResumedCompletion:
    """A completion in progress. It follows the caller's own constraint, so that no reply can leave it."""

    def __init__(self, request: Request, places: int) -> None:
        """Raise ``ModelError`` where the constraint allows nothing; one call carries ``places`` of it."""
        self.finished: str | None = None
        """The finish reason, once it has ended."""
        self._request = request
        self._places = places
        self._place: Constraint | None = request.constraint
        if self._place is not None and not self._place.allowed():
            raise ModelError("inference: the request's constraint allows no token at all")
        self._completion = CompletionBuilder()
        self._stretches = self._cached_tokens = 0
        self._queued_s = self._first_s = 0.0

    def next_call(self) -> GenerateCall:
        """The call for the next stretch."""
        sampling, whole = self._request.sampling, self._completion
        if self._stretches:
            # A seed of its own: otherwise the first stretch's draws would come again.
            seed = derive_seed(sampling.seed, "stretch", self._stretches)
            left = sampling.max_tokens - len(whole)
            sampling = msgspec.structs.replace(sampling, seed=seed, max_tokens=left)
        constraint_slice = None if self._place is None else slice_constraint(self._place, self._places)
        return GenerateCall(
            [*self._request.prompt_ids, *whole.completion_ids], self._request.adapter, sampling, constraint_slice
        )

    def add_reply(self, reply: GenerateReply, seconds: float) -> None:
        """Append a reply, which came ``seconds`` after the beginning, and what is forced behind its slice's end."""
        generation = reply.generation
        self._completion.extend(generation)
        if generation.timing is not None:
            self._queued_s += generation.timing.queued_s
            self._cached_tokens += generation.timing.cached_tokens if not self._stretches else 0
            if not self._first_s and generation.timing.first_s > 0:
                # The server's clock measures the time before its end; the way back counts as sampling.
                self._first_s = max(seconds - (generation.timing.seconds - generation.timing.first_s), 0.0)
        self._stretches += 1
        if self._place is not None:
            for token in generation.completion_ids:
                self._place = self._place.advance(token)
        if reply.is_truncated and self._place is not None:
            # No server is needed for forced tokens. The next one rejects those that the model lacks.
            limit = self._request.sampling.max_tokens
            self._place, _, self.finished = self._completion.follow_forced(self._place, limit, sys.maxsize)
        else:
            self.finished = generation.finish_reason
        if self.finished is None and not generation.completion_ids:
            raise ModelError("inference: a server stopped before the first token; expected at least one in a stretch")

    def make_generation(self, seconds: float) -> Generation:
        """The finished completion; ``seconds`` is its duration."""
        assert self.finished is not None
        timing = Timing(min(self._queued_s, seconds), seconds, self._cached_tokens, self._first_s)
        return self._completion.finish(self.finished, timing)


class ServersBackend:
    """Samples on whichever server is up and not overloaded."""

    def __init__(
        self, config: ServersConfig | None = None, urls: Callable[[], Sequence[str]] = lambda: (), local_token: str = ""
    ) -> None:
        """Send nothing yet; see ``LoadBalancer``."""
        self._config = config = config or ServersConfig()
        self._balancer = LoadBalancer(config, urls, local_token)
        self.routes: ServerTable = self._balancer.routes
        self._adapters = dict[str, None]()
        self._counter = RequestCounter()
        self._closed = False

    def load_adapter(self, digest: str, folder: Path) -> None:
        """Note the adapter, which servers find by its digest."""
        if digest not in self._adapters:
            self._adapters[digest] = None
            self._counter.swaps += 1

    def drop_adapter(self, digest: str) -> None:
        """Forget the adapter; servers make room by themselves."""
        self._adapters.pop(digest, None)

    async def prepare(self, digest: str) -> None:
        """Have all available servers load an adapter, and wait for the first one that has; see ``RemoteBackend``."""
        body = msgspec.json.encode({"lora_name": digest})
        await self._balancer.broadcast(HttpRequest("/v1/load_lora_adapter", body, "application/json"))
        self.load_adapter(digest, Path())

    async def generate(self, request: Request) -> Generation:
        """Sample one completion, in as many exchanges as its constraint takes; see ``InferenceBackend``."""
        if self._closed:
            raise ModelError("inference: the backend is closed")
        with self._counter.track() as began:
            completion = ResumedCompletion(request, self._config.places)
            key = affinity_key(request.adapter, request.prompt_ids, self._config.sticky_tokens)
            while completion.finished is None:
                posted = HttpRequest(GENERATE, msgspec.msgpack.encode(completion.next_call()), CONTENT_TYPE)
                answer = await self._balancer.send(key, posted)
                try:
                    reply = msgspec.msgpack.decode(answer, type=GenerateReply)
                except msgspec.MsgspecError as error:
                    raise ModelError(
                        f"inference: a server's answer is no reply ({error}); expected one of this version"
                    ) from error
                completion.add_reply(reply, time.monotonic() - began)
            generation = completion.make_generation(time.monotonic() - began)
        self._counter.add(request, generation)
        return generation

    def stats(self) -> BackendStats:
        """This client's requests; its adapters are those it has loaded."""
        return self._counter.stats(len(self._adapters), slots=0, queued=self._balancer.waiting_requests)

    async def close(self) -> None:
        """Wait for the requests in flight, then close the connections."""
        self._closed = True
        await self._counter.in_flight.wait_until_idle()
        await self._balancer.close()
