"""``POST /generate``: a completion, or the stretch of one that an excerpt of its constraint reaches."""

import contextlib

import msgspec
from aiohttp import web

from arena.excerpts import ExcerptPlace, place_after
from workers.inference.base import Request
from workers.inference.wire import CONTENT_TYPE, Call, Reply
from workers.serving.door import Door
from workers.serving.failures import RefusedError
from workers.serving.models import ServedModels

_CALLS = msgspec.msgpack.Decoder(Call)


class Stretches:
    """Answers workers of the league."""

    def __init__(self, models: ServedModels, door: Door) -> None:
        self._models = models
        self._door = door

    async def generate(self, request: web.Request) -> web.Response:
        """A ``Call`` in, a ``Reply`` out."""
        call = _decoded(await self._door.read(request))
        with self._door.entered(), contextlib.ExitStack() as held:
            if call.adapter is not None:
                await self._models.hold(call.adapter, held)
            reply = await self._reply(call)
        return web.Response(body=msgspec.msgpack.encode(reply), content_type=CONTENT_TYPE)

    async def _reply(self, call: Call) -> Reply:
        constraint = None if call.excerpt is None else ExcerptPlace(call.excerpt)
        generation = await self._models.backend.generate(
            Request(call.prompt_ids, call.adapter, constraint, call.sampling)
        )
        if call.excerpt is None or generation.finish_reason != "stop":
            return Reply(generation)
        return Reply(generation, rim=place_after(call.excerpt, generation.completion_ids).rim)


def _decoded(body: bytes) -> Call:
    try:
        return _CALLS.decode(body)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RefusedError(400, f"/generate: {len(body)} bytes are no call ({error})") from error
