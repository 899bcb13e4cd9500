"""``POST /generate``: a completion, or the stretch of it that the slice of its constraint covers; adapters.

``POST /generate/many`` takes several calls. Their rows are all queued when the batch's next round begins, and each
reply is sent as soon as it is done: those of one round together.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

import msgspec
from aiohttp import web

from arena.constraints.constraint_slices import SliceState, state_after
from inference.base import Request
from inference.http_server import RefusedError, to_refused
from inference.remote import CONTENT_TYPE, GENERATE_MANY, CallResult, GenerateCall, GenerateReply, encode_frame
from inference.server import ServedModels
from inference.server.admission import AdmissionControl
from inference.server.openai_types import ERROR_STATUSES, AdapterRequest, decode_request, error_body

MAX_CALLS = 4096
"""Most calls of one request, each of which is a task here; our clients send 64."""
_CALL = msgspec.msgpack.Decoder(GenerateCall)
_CALLS = msgspec.msgpack.Decoder(list[msgspec.Raw])


@dataclass
class GenerateRoutes:
    """Serves the league's workers: completions, versions of policies, adapters."""

    models: ServedModels
    admission: AdmissionControl

    async def generate(self, request: web.Request) -> web.Response:
        """Answer a ``GenerateCall`` with a ``GenerateReply``."""
        reply = await self._generate_reply(await self.admission.read(request))
        return web.Response(body=reply, content_type=CONTENT_TYPE)

    async def generate_many(self, request: web.Request) -> web.StreamResponse:
        """Answer calls with a ``CallResult`` each, in the order in which they finish."""
        body = await self.admission.read(request)
        try:
            calls = _CALLS.decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise RefusedError(400, f"{GENERATE_MANY}: {len(body)} bytes are no list of calls ({error})") from error
        if len(calls) > MAX_CALLS:
            raise RefusedError(400, f"{GENERATE_MANY}: {len(calls)} calls; expected at most {MAX_CALLS}")
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE})
        await response.prepare(request)
        async with contextlib.aclosing(self._stream_results(calls)) as results:
            async for answers in results:
                await response.write(b"".join(map(encode_frame, answers)))
        await response.write_eof()
        return response

    async def _stream_results(self, calls: Sequence[msgspec.Raw]) -> AsyncGenerator[Sequence[CallResult], None]:
        """Results as they come, those that are ready together."""
        through: list[CallResult] = []
        news = asyncio.Event()

        async def answer(index: int, call: msgspec.Raw) -> None:
            try:
                result = CallResult(index, 200, await self._generate_reply(call))
            except Exception as error:  # the boundary of one call, which becomes its status; the others go on
                refused = to_refused(error, GENERATE_MANY, ERROR_STATUSES)
                result = CallResult(index, refused.status, error_body(refused))
            through.append(result)
            news.set()

        tasks = [asyncio.create_task(answer(index, call)) for index, call in enumerate(calls)]
        left = len(tasks)
        try:
            while left:
                await news.wait()
                news.clear()
                answers, through[:] = through[:], []
                left -= len(answers)
                yield answers
        finally:
            for task in tasks:
                task.cancel()

    async def _generate_reply(self, body: bytes | msgspec.Raw) -> bytes:
        try:
            call = _CALL.decode(body)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            size = len(memoryview(body))
            raise RefusedError(400, f"/generate: {size} bytes are no call ({error})") from error
        with self.admission.admit(), contextlib.ExitStack() as leases:
            if call.adapter is not None:
                await self.models.acquire(call.adapter, leases)
            constraint = None if call.constraint_slice is None else SliceState(call.constraint_slice)
            request = Request(call.prompt_ids, call.adapter, constraint, call.sampling)
            generation = await self.models.backend.generate(request)
            is_truncated = False
            if call.constraint_slice is not None and generation.finish_reason == "stop":
                is_truncated = state_after(call.constraint_slice, generation.completion_ids).is_truncated
            return msgspec.msgpack.encode(GenerateReply(generation, is_truncated))

    async def version(self, request: web.Request) -> web.Response:
        """The ``AssignedPolicy`` of ``?policy=``, or of the main one."""
        served = self.models.assigned_version(request.query.get("policy"))
        return web.Response(body=msgspec.json.encode(served), content_type="application/json")

    async def load(self, request: web.Request) -> web.Response:
        """Load an adapter ahead of requests."""
        digest = await self._read_digest(request)
        with self.admission.admit(), contextlib.ExitStack() as leases:
            await self.models.acquire(digest, leases)
        return web.Response(text=f"Success: LoRA adapter '{digest}' added successfully.")

    async def unload(self, request: web.Request) -> web.Response:
        """Unload an idle adapter."""
        digest = await self._read_digest(request)
        with self.admission.admit():
            self.models.unload(digest)
        return web.Response(text=f"Success: LoRA adapter '{digest}' removed successfully.")

    async def _read_digest(self, request: web.Request) -> str:
        body = decode_request(await self.admission.read(request), AdapterRequest)
        if body.lora_path not in ("", body.lora_name):
            raise RefusedError(
                400, "lora_path: no files are read; expected the adapter's digest as lora_name alone", "lora_path"
            )
        return body.lora_name
