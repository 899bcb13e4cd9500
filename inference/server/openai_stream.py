"""Answers as streams of server-sent events, in OpenAI's form.

The samplers give whole completions, so a choice comes in one chunk, once all of the request's choices are complete:
what could fail has not begun to answer, and fails with its status.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from aiohttp import web

from inference.server.openai_types import StreamOptions

Json = dict[str, Any]

_FINISH_FIELDS = ("finish_reason", "stop_reason", "token_ids", "prompt_token_ids")


async def send_stream(request: web.Request, answer: Json, options: StreamOptions | None) -> web.StreamResponse:
    """Send an answer of ``openai_routes`` as events."""
    headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    events = [msgspec.json.encode(chunk) for chunk in split_answer(answer, options)]
    await response.write(b"".join(b"data: %b\n\n" % event for event in [*events, b"[DONE]"]))
    await response.write_eof()
    return response


def split_answer(answer: Json, options: StreamOptions | None) -> Iterator[Json]:
    """The chunks of an answer: of every choice its text, then its end; at last the usage, where it is asked for."""
    shared = {key: value for key, value in answer.items() if key not in ("choices", "usage")}
    has_usage = options is not None and bool(options.include_usage)
    if answer["object"] == "chat.completion":
        shared["object"] = "chat.completion.chunk"
    usage: Json = {"usage": None} if has_usage else {}
    for choice in answer["choices"]:
        for part in _split_chat(choice) if "message" in choice else _split_text(choice):
            yield shared | {"choices": [part]} | usage
    if has_usage:
        yield shared | {"choices": [], "usage": answer["usage"]}


def _split_chat(choice: Mapping[str, Any]) -> Iterator[Json]:
    index, message = choice["index"], choice["message"]
    said = {"role": message["role"], "content": message["content"] or ""}
    if message["reasoning_content"] is not None:
        said["reasoning_content"] = message["reasoning_content"]
    yield {"index": index, "delta": said, "logprobs": choice["logprobs"], "finish_reason": None}
    yield {"index": index, "delta": {}, "logprobs": None} | _finish_fields(choice)


def _split_text(choice: Mapping[str, Any]) -> Iterator[Json]:
    index = choice["index"]
    yield {"index": index, "text": choice["text"], "logprobs": choice["logprobs"], "finish_reason": None}
    yield {"index": index, "text": "", "logprobs": None} | _finish_fields(choice)


def _finish_fields(choice: Mapping[str, Any]) -> Json:
    return {key: choice[key] for key in _FINISH_FIELDS if key in choice}
