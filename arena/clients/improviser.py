"""``ArenaSpec.improvise`` as a client: the scripted agents of arenas."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import NamedTuple

from arena.arena import Arena
from arena.clients import InferenceClient
from arena.environments import ArenaOptions, ArenaSpec
from arena.model_call import JUDGE, Limits
from schemas.episodes import Message, ModelResponse
from schemas.errors import EpisodeError


class Improviser(InferenceClient):
    """Improvises for one role, or a judge (None), by the call's seed and without tokens; ``calls`` records calls."""

    def __init__(self, spec: ArenaSpec, role_id: str | None, calls: "list[ImprovisedCall] | None" = None) -> None:
        self._spec = spec
        self._role_id = role_id
        self._calls = calls

    async def complete(
        self,
        messages: Sequence[Message],
        temperature: float = 1.0,
        max_tokens: int | None = None,
        return_tokens: bool = True,
        seed: int = 0,
    ) -> ModelResponse:
        """An improvised reply; the call's parameters have no effect but the seed."""
        reply = self._spec.improvise(self._role_id, messages, Random(seed))
        if self._calls is not None:
            self._calls.append(ImprovisedCall(self._role_id, list(messages), reply))
        return ModelResponse(reply)


class ImprovisedCall(NamedTuple):
    """A model call and its reply."""

    role_id: str | None
    """The calling role; None for a judge."""
    messages: Sequence[Message]
    reply: str


def improvised_calls(spec: ArenaSpec, seed: int) -> Iterator[ImprovisedCall]:
    """An endless iterator over the calls of roles and judges, batch after batch; equal arguments give equal calls.

    ``EpisodeError`` for a batch without a model call, or a failed episode.
    """
    calls: list[ImprovisedCall] = []
    limits = Limits(needs_tokens=False)
    arena = spec.open(Improviser(spec, None, calls), ArenaOptions("improvised", seed, limits))
    with ThreadPoolExecutor(1) as executor:  # the caller may run an event loop
        for _ in itertools.count():
            executor.submit(asyncio.run, _play_batch(spec, arena, calls)).result()
            if not calls:
                raise EpisodeError(f"arena {spec.name}: a batch without a model call; expected something to be said")
            yield from calls
            calls.clear()


async def _play_batch(spec: ArenaSpec, arena: Arena, calls: list[ImprovisedCall]) -> None:
    """Play one episode after the other, so that the calls are in the order of the batch."""
    role_clients = {role or JUDGE: Improviser(spec, role, calls) for role in (None, *arena.roles)}
    for request in arena.get_batch():
        episode = arena.episodes[request.episode_type]
        result = await episode.generate(arena, request, arena.new_context(request)._replace(role_clients=role_clients))
        if reason := result.rollout.failure:
            raise EpisodeError(f"arena {spec.name}: improvised play of {request.episode_type!r} failed: {reason}")
