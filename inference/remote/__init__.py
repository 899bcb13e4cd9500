"""Inference over HTTP: the protocol between players and inference servers, and the state of a server.

- ``client``         batches and sends the requests to one server, and watches its health
- ``load_balancer``  which server a request goes to, and retries elsewhere

``POST /generate`` takes a ``GenerateCall`` and answers a ``GenerateReply``, both msgpack: a request with its
constraint, so that all of a completion, or a long stretch of it, is sampled in one exchange. A constraint is a walk
through the game's rules, which stay with the caller; the call carries a slice of it, the places near the request's
own. Sampling stops at the end of the slice, and the caller goes on from there with the next one.

``POST /generate/many`` takes a list of calls, and answers each as soon as it is done: frames of a length (4 bytes,
big-endian) and a ``CallResult``. A call that fails does not affect the others.

``GET /adapters/version?policy=main`` answers an ``AssignedPolicy``, in JSON.
Servers require the token in their ``LEAGUE_INFERENCE_TOKEN`` (``Authorization: Bearer …``); clients send theirs. Where
it is not set, servers on loopback require the run's own token, which clients send to loopback only.
Errors are OpenAI's: ``{"error": {"message": ..., "type": ...}}``; 400 and 404 are the request's fault on
every server, 500 and 503 mean that another process may succeed.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from arena.constraints.constraint_slices import ConstraintSlice
from inference.base import Generation, SamplingParameters

CONTENT_TYPE = "application/msgpack"
TOKEN_VARIABLE = "LEAGUE_INFERENCE_TOKEN"
"""Environment variable with the token of a league's inference servers."""
GENERATE = "/generate"
GENERATE_MANY = "/generate/many"
OWNER = "event-sourced-league"
"""Owner in the list of models, by which these servers are known."""
_LENGTH = 4


class GenerateCall(msgspec.Struct, frozen=True):
    """A completion to sample, or to continue."""

    prompt_ids: list[int]
    """Tokens to read: the prompt, and the completion so far."""
    adapter: str | None
    """Digest; None is the base model. A process that has not loaded it fetches it."""
    sampling: SamplingParameters
    constraint_slice: ConstraintSlice | None = None
    """None samples freely until the model's end token."""


class GenerateReply(msgspec.Struct, frozen=True):
    """A sampled stretch. Positions of choices count from the first token of this reply."""

    generation: Generation
    is_truncated: bool = False
    """Whether sampling stopped where the slice ends, not the completion."""


class CallResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of one of several calls."""

    index: int
    status: int
    """HTTP status, as if the call had been sent by itself."""
    body: bytes
    """A ``GenerateReply`` in msgpack where the status is 200, else an error in JSON."""


class AssignedPolicy(msgspec.Struct, frozen=True):
    """The version that a process serves as the policy's current one."""

    policy: str
    version: int
    adapter: str | None


def encode_calls(calls: Sequence[bytes]) -> bytes:
    """The body of ``POST /generate/many`` for encoded calls."""
    return msgspec.msgpack.encode([msgspec.Raw(call) for call in calls])


def encode_frame(answer: CallResult) -> bytes:
    """A result as it is sent."""
    body = msgspec.msgpack.encode(answer)
    return len(body).to_bytes(_LENGTH, "big") + body


class FrameDecoder:
    """Decodes results from bytes in pieces of any size."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[CallResult]:
        """The results that are complete now; raises msgspec's ``DecodeError`` for a frame that is none."""
        self._rest += data
        first = 0
        while len(self._rest) - first >= _LENGTH:
            begin = first + _LENGTH
            end = begin + int.from_bytes(self._rest[first:begin], "big")
            if end > len(self._rest):
                break
            yield _ANSWERS.decode(self._rest[begin:end])
            first = end
        del self._rest[:first]


_ANSWERS = msgspec.msgpack.Decoder(CallResult)


def token_headers(default: str = "") -> dict[str, str]:
    """The header with the token of ``LEAGUE_INFERENCE_TOKEN``, else with the default; empty without one."""
    token = os.environ.get(TOKEN_VARIABLE, "").strip() or default
    return {"Authorization": f"Bearer {token}"} if token else {}


CONNECT_S = 5.0


def loop_time() -> float:
    """The clock of the running event loop, in seconds."""
    return asyncio.get_running_loop().time()


@dataclass(eq=False)
class ServerState:
    """State of a server."""

    url: str
    running: int = 0
    """Requests of this client in flight there."""
    down: bool = False
    """Whether it failed, and has not answered a probe since."""
    busy_until: float = 0.0
    """Time, by the event loop's clock, until which it gets no requests."""
    sent: int = 0

    def is_open(self, now: float) -> bool:
        """Whether it takes requests now."""
        return not self.down and now >= self.busy_until
