"""The models of a server: by name, and adapters by digest."""

import contextlib
import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from inference.base import InferenceBackend
from inference.http_server import RefusedError
from inference.remote.wire import AssignedPolicy
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
        """The model of a name.

        Raises:
            RefusedError: there is none (404).
        """

    def assigned_version(self, policy: str | None) -> AssignedPolicy:
        """The version of a policy that is served now; None is the main one.

        Raises:
            RefusedError: no such policy (404).
        """

    async def acquire(self, adapter: str, leases: contextlib.ExitStack) -> None:
        """Load an adapter and keep it until ``leases`` is closed.

        Raises:
            RefusedError: the name is no digest (404).
            ArtifactError: the adapter is missing or damaged.
            ModelError: the adapter does not fit the base model.
        """

    def unload(self, adapter: str) -> None:
        """Unload an adapter that is not in use.

        Raises:
            RefusedError: it is not loaded (404), or in use (400).
        """


class LoadedModels:
    """A backend with the adapters loaded into it, under their names there."""

    def __init__(self, backend: InferenceBackend, tokenizer: Tokenizer, adapters: Sequence[str] = ()) -> None:
        self.backend = backend
        self.tokenizer = tokenizer
        self._adapters = list(adapters)

    @property
    def prompts(self) -> PromptsConfig:
        """Prompts of the model's folder."""
        return PromptsConfig()

    def names(self) -> Sequence[str]:
        """``base_model``, and the adapters."""
        return ["base_model", *self._adapters]

    def resolve(self, name: str) -> ResolvedModel:
        """See ``ServedModels``."""
        if name not in self.names():
            raise unknown_model(name, self.names())
        return ResolvedModel(name, None if name == "base_model" else name)

    def assigned_version(self, policy: str | None) -> AssignedPolicy:
        """The base model, which no training changes."""
        if policy not in (None, "base_model"):
            raise RefusedError(404, f"policy {policy!r}: none is trained here; expected 'base_model'")
        return AssignedPolicy("base_model", 0, None)

    async def acquire(self, adapter: str, leases: contextlib.ExitStack) -> None:
        """Check the name; all adapters stay loaded."""
        if adapter not in self._adapters:
            raise unknown_model(adapter, self._adapters)

    def unload(self, adapter: str) -> None:
        """Refuses: all adapters stay loaded."""
        raise RefusedError(400, f"adapter {adapter[:80]!r}: the adapters of this server stay")


def unknown_model(name: str, known: Sequence[str], others: str = "") -> RefusedError:
    """The 404 for a name that stands for no model."""
    return RefusedError(404, f"model {name[:80]!r}: no such one; expected {format_choices(known)}{others}", "model")
