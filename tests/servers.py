"""An inference server of one block, over a backend in this process."""

import contextlib
from collections.abc import AsyncIterator, Sequence

from inference.base import InferenceBackend
from inference.http_server import RefusedError
from inference.remote import AssignedPolicy
from inference.server import ResolvedModel, ServedModels, unknown_model
from inference.server.app import InferenceServer
from models import Tokenizer
from schemas.config import PromptsConfig


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


@contextlib.asynccontextmanager
async def serve_models(models: ServedModels, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve models during a block, in this event loop; gives the URL."""
    server = InferenceServer()
    await server.start(host, port)
    try:
        server.serve(models)
        yield f"http://{host}:{server.port}"
    finally:
        await server.stop()
