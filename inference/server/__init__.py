"""The HTTP server of an inference process: any backend, for the league's workers and for OpenAI's clients.

- ``app``                 the application: routes, bounds, address; ``/health``, ``/stats``, ``/metrics``
- ``admission``           admission control: loading, draining, bounds
- ``generate_route``      ``POST /generate`` along slices of constraints; ``/adapters/version``, loading and unloading
- ``openai_routes``       ``/v1/models``, ``/v1/completions`` and ``/v1/chat/completions``
- ``opponent_pool``       ``/v1/league/…``: sessions against opponents of the league, their results, external agents
- ``openai_stream``       answers as server-sent events
- ``openai_types``        requests and errors in OpenAI's form
- ``output_constraints``  JSON schemas, expressions, choices, lists of tokens, stop strings

Here is what a server has: models by name, adapters by digest.
"""

import contextlib
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from inference.base import InferenceBackend
from inference.http_server import RefusedError
from inference.remote import AssignedPolicy
from models import Tokenizer
from schemas.config import PromptsConfig
from schemas.errors import format_choices

DIGEST = re.compile(r"[0-9a-f]{64}")


class ResolvedModel(NamedTuple):
    """The model of a name at this moment."""

    name: str
    """The immutable one: ``main@120`` for ``main``."""
    adapter: str | None


class ServedModels(Protocol):
    """A base model and its adapters."""

    backend: InferenceBackend
    tokenizer: Tokenizer

    @property
    def prompts(self) -> PromptsConfig:
        """Format of conversations."""

    def names(self) -> Sequence[str]:
        """Names of models, the base model's first; adapters can also be named by digest."""

    def resolve(self, name: str) -> ResolvedModel:
        """The model of a name; raises ``RefusedError`` where there is none (404)."""

    def assigned_version(self, policy: str | None) -> AssignedPolicy:
        """The served version of a policy, None for the main one; raises ``RefusedError`` for an unknown one (404)."""

    async def acquire(self, adapter: str, leases: contextlib.ExitStack) -> None:
        """Load an adapter and keep it until ``leases`` is closed.

        Raises:
            RefusedError: the name is no digest (404).
            ArtifactError: the adapter is missing or damaged.
            ModelError: the adapter does not fit the base model.
        """

    def unload(self, adapter: str) -> None:
        """Unload an adapter; raises ``RefusedError`` for one that is not loaded (404), or in use (400)."""


def unknown_model(name: str, known: Sequence[str], others: str = "") -> RefusedError:
    """The 404 for a name that stands for no model."""
    return RefusedError(404, f"model {name[:80]!r}: no such one; expected {format_choices(known)}{others}", "model")
