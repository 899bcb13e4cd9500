"""What playing workers and inference processes say to each other, besides OpenAI's interface.

``POST /generate`` takes a ``Call`` and answers a ``Reply``, both msgpack: a request with its constraint, so that all
of a completion, or a long stretch of it, is sampled in one exchange. A constraint is a walk through the game's rules,
which stay with the caller; what is sent is an excerpt of it, the places near the request's own. Where sampling comes to
the excerpt's rim it stops, and the caller goes on from there with the next excerpt.

``GET /adapters/version?policy=main`` answers a ``Served``, in JSON.
Errors are OpenAI's: ``{"error": {"message": ..., "type": ...}}``; 400 and 404 are the request's fault and the same
everywhere, 503 says that another process may do better.
"""

import msgspec

from arena.excerpts import Excerpt
from workers.inference.base import Generation, Sampling

__all__ = ["CONTENT_TYPE", "Call", "Excerpt", "Reply", "Served"]

CONTENT_TYPE = "application/msgpack"


class Call(msgspec.Struct, frozen=True):
    """A completion to sample, or to go on with."""

    prompt_ids: list[int]
    """Tokens to read: the prompt, and the completion so far."""
    adapter: str | None
    """Digest; None is the base model. A process that has not loaded it fetches it."""
    sampling: Sampling
    excerpt: Excerpt | None = None
    """None samples freely until the model's end token."""


class Reply(msgspec.Struct, frozen=True):
    """What was sampled. Positions of branches and spans count from the first token of this reply."""

    generation: Generation
    rim: bool = False
    """Whether sampling stopped where the excerpt ends, not the completion."""


class Served(msgspec.Struct, frozen=True):
    """The version of a policy that a process serves to those who ask for the live one."""

    policy: str
    version: int
    adapter: str | None
