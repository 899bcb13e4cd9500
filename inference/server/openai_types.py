"""Requests in OpenAI's form, as far as they are supported, with vLLM's further fields; errors in the same form.

Every field is honoured, or rejected by an error that names it, since ignoring it would give other samples than
requested. ``HARMLESS`` are the fields that change no sample, and are ignored, as a message's reasoning is.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeVar, cast

import msgspec
from aiohttp import web

from inference.http_server import ErrorStatuses, RefusedError
from schemas import errors
from schemas.episodes import Message
from schemas.errors import format_choices, suggest

_ERROR_TYPES = {400: "invalid_request_error", 404: "not_found_error", 408: "timeout_error", 413: "too_large_error"}
ERROR_STATUSES: ErrorStatuses = (
    # Another process, or this one later, may succeed.
    ((errors.MemoryShortError, errors.NoServerError, errors.LogError), 503),
    (errors.EngineError, 500),
    (errors.RemoteError, 502),
    (errors.ArtifactError, 404),
    ((errors.ModelError, errors.UsageError), 400),
)


def error_body(refused: RefusedError) -> bytes:
    """An error in OpenAI's form, ``{"error": {"message", "type", "param", "code"}}``."""
    status = refused.status
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    error = {"message": str(refused), "type": kind, "param": refused.field, "code": status}
    return msgspec.json.encode({"error": error})


def render_error(_: web.Request, refused: RefusedError) -> web.Response:
    """An error in OpenAI's form as a response."""
    status, headers = refused.status, {"Retry-After": "1"} if refused.status == 503 else None
    body = error_body(refused)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json", charset="utf-8")


MAX_STOP_STRINGS, MAX_STOP_CHARS = 16, 256
"""Stop strings that one request may name, and characters of each."""

HARMLESS = frozenset(
    {
        "cache_salt",
        "metadata",
        "parallel_tool_calls",
        "priority",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields that change no sample: labels, caching and accounting; ``parallel_tool_calls`` concerns rejected tools."""

_IGNORED_VALUES: Mapping[str, tuple[Any, ...]] = {
    "stop_token_ids": ([],),
    "echo": (False,),
    "suffix": ("",),
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "use_beam_search": (False,),
    "ignore_eos": (False,),
    "bad_words": ([],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "length_penalty": (1,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
}
"""Unsupported fields, and the values that are accepted nevertheless, besides null."""

_GUIDED = {"guided_choice": "choice", "guided_json": "json", "guided_regex": "regex"}
"""vLLM's earlier names of the constraints, by those in ``structured_outputs``."""

_REASONING = frozenset({"reasoning", "reasoning_content"})
"""Fields of a message that are left out: the server's own replies have them, and thoughts are no part of a history."""

Json = dict[str, Any]


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenAI's ``stream_options``."""

    include_usage: bool | None = False
    """Whether one more chunk, without choices, has the usage."""
    include_obfuscation: bool | None = None
    """Accepted; chunks are never padded."""


class StructuredOutputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's ``structured_outputs``; one of them."""

    regex: str | None = None
    json: Json | str | None = None
    choice: list[str] | None = None


class JsonSchema(msgspec.Struct, frozen=True):
    """OpenAI's ``response_format.json_schema``."""

    schema: Json


class ResponseFormat(msgspec.Struct, frozen=True):
    """OpenAI's ``response_format``."""

    type: str
    json_schema: JsonSchema | None = None


class CommonRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of both kinds of request."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = 1.0
    """0 takes the most likely token."""
    top_p: float | None = 1.0
    seed: int | None = None
    """Seed of the first choice; the others' follow it. Without one, every request draws anew."""
    n: int | None = 1
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    allowed_token_ids: list[int] | None = None
    """The end token is among them only if it is named."""
    return_token_ids: bool | None = False
    stream: bool | None = False
    """Whether the answer is a stream of server-sent events."""
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    """Stop strings: each ends a completion with the token that completes it. The answer's text is cut before it; tokens
    and log-probabilities are complete."""

    @property
    def stop_strings(self) -> list[str]:
        """The texts that end a completion; raises ``RefusedError`` for too many, or too long ones."""
        texts = [text for text in ([self.stop] if isinstance(self.stop, str) else self.stop or []) if text]
        if len(texts) > MAX_STOP_STRINGS or any(len(text) > MAX_STOP_CHARS for text in texts):
            raise RefusedError(
                400,
                f"stop: {len(texts)} texts; expected at most {MAX_STOP_STRINGS} of {MAX_STOP_CHARS} characters",
                "stop",
            )
        return texts


class CompletionRequest(CommonRequest, frozen=True, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[int | str | list[int]]
    """A text or its tokens, or several of these."""
    logprobs: int | None = None
    """0 or 1: the sampled token's."""


class ContentPart(msgspec.Struct, frozen=True):
    """A part of a message's content."""

    type: str
    text: str = ""


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a conversation; a client may send back the server's, with its reasoning, which is left out."""

    role: str
    content: str | list[ContentPart] | None = None
    """None is an empty text."""
    tool_calls: list[Any] | None = None
    """Rejected unless empty."""
    function_call: Any = None
    """Rejected unless None."""


class TemplateKwargs(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """vLLM's ``chat_template_kwargs``."""

    enable_thinking: bool | None = None


class ChatCompletionRequest(CommonRequest, frozen=True, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    chat_template_kwargs: TemplateKwargs = TemplateKwargs()
    continue_final_message: bool | None = False
    """Whether the completion continues the last message, the assistant's."""
    add_generation_prompt: bool | None = None
    """False only with ``continue_final_message``."""
    league_session: str = ""
    """Name of the session of the opponent pool, up to 200 characters; the header ``X-League-Session`` comes first.
    Default: ``user``; without it, a digest of the messages up to the first of the user's, so that conversations that
    begin alike share one session until its result is reported."""
    user: str | None = None
    league_agent: str = ""
    """External agent that plays the session: ``grpo``, or a version of it, ``grpo@40``."""
    league_game: str = ""
    """Game of the session; by default the league's."""
    league_seat: int = 0
    """Seat of the external agent; the opponent has all others."""
    league_roles: list[str] = []
    """Names of the seats; by default the league's game's, or ``seat 0`` and ``seat 1`` for other games."""
    league_position: Any = None
    """Position of the league's game, as ``Game.save`` wrote it (the JSON, or its text): what bots reply to."""
    league_role: str = ""
    """Seat or role that replies, where the opponent has several that could."""


_ROLES = ("assistant", "system", "user")


def conversation(request: ChatCompletionRequest) -> list[Message]:
    """The messages of a request.

    Raises:
        RefusedError: no messages, an unknown role, parts other than text, calls of tools, or no last message to
            continue.
    """
    if not request.messages:
        raise RefusedError(400, "messages: found none; expected the user's at least", "messages")
    messages = []
    for message in request.messages:
        role = "system" if message.role == "developer" else message.role
        if role not in _ROLES:
            raise RefusedError(400, f"messages: role {message.role!r}; expected {format_choices(_ROLES)}", "messages")
        if message.tool_calls or message.function_call is not None:
            raise RefusedError(400, "messages: a call of a tool; tools are not supported, expected text", "messages")
        messages.append(Message(cast("Literal['system', 'user', 'assistant']", role), message_text(message)))
    _check_continuation(request, messages[-1])
    return messages


def _check_continuation(request: ChatCompletionRequest, last: Message) -> None:
    if request.continue_final_message:
        if request.add_generation_prompt:
            raise RefusedError(
                400, "add_generation_prompt: true beside continue_final_message; expected one", "add_generation_prompt"
            )
        if last.role != "assistant" or not last.content.strip():
            raise RefusedError(
                400,
                f"continue_final_message: the last message is the {last.role}'s, {last.content[:40]!r}; expected the "
                "assistant's, with text",
                "continue_final_message",
            )
    elif request.add_generation_prompt is False:
        raise RefusedError(
            400,
            "add_generation_prompt: false; expected true, or continue_final_message beside it",
            "add_generation_prompt",
        )


class AdapterRequest(msgspec.Struct, frozen=True):
    """vLLM's ``POST /v1/load_lora_adapter`` and ``unload_lora_adapter``."""

    lora_name: str
    lora_path: str = ""


T = TypeVar("T")


def decode_request(body: bytes, kind: type[T]) -> T:
    """A request from its JSON; raises ``RefusedError`` for one that is none (400), or has unsupported fields."""
    try:
        fields = msgspec.json.decode(body)
        if isinstance(fields, dict) and issubclass(kind, CommonRequest):
            fields = _supported_fields(fields, kind)
        return msgspec.convert(fields, kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise RefusedError(400, f"{len(body)} bytes are no request: {error}") from error


def _supported_fields(fields: Json, kind: type[CommonRequest]) -> Json:
    """The fields that ``kind`` has, constraints under one name; raises ``RefusedError`` for one that it has not."""
    field_names = {*kind.__struct_fields__, *HARMLESS}
    supported: Json = {}
    for field, value in fields.items():
        if value is None:
            continue
        if field in _GUIDED:
            if fields.get("structured_outputs") is not None or "structured_outputs" in supported:
                raise RefusedError(400, f"{field}: beside another constraint; expected one of them", field)
            supported["structured_outputs"] = {_GUIDED[field]: value}
        elif field in field_names:
            supported[field] = value
        elif field not in _IGNORED_VALUES:
            raise RefusedError(400, f"{field}: not known here; leave it out{suggest(field, field_names)}", field)
        elif value not in (neutral := _IGNORED_VALUES[field]):
            raise RefusedError(400, f"{field}: not supported here; leave it out, or at {neutral[0]!r}", field)
    _check_messages(supported.get("messages"))
    if "stream_options" in supported and not supported.get("stream"):
        raise RefusedError(400, "stream_options: without stream; expected stream = true beside it", "stream_options")
    return supported


def _check_messages(messages: Any) -> None:
    known = {*ChatMessage.__struct_fields__, *_REASONING}
    for message in filter(lambda each: isinstance(each, dict), messages if isinstance(messages, list) else ()):
        for field, value in message.items():
            if field not in known and value not in (None, []):
                raise RefusedError(
                    400,
                    f"messages: {field}: not known here; leave it out, or say it in the content{suggest(field, known)}",
                    "messages",
                )


def message_text(message: ChatMessage) -> str:
    """The text of a message; raises ``RefusedError`` for parts other than text."""
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    if odd := {part.type for part in message.content} - {"text"}:
        raise RefusedError(400, f"messages: a part of type {format_choices(odd)}; expected 'text'", "messages")
    return "".join(part.text for part in message.content)
