"""Inference servers of one block: ours over a backend in this process, and vLLM as a child process."""

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from inference.base import InferenceBackend
from inference.http_server import RefusedError
from inference.remote import AssignedPolicy
from inference.server import ResolvedModel, ServedModels, unknown_model
from inference.server.app import InferenceServer
from inference.vllm.serve import AdapterSource, serve_arguments, serve_environment
from inference.vllm.settings import VllmConfig
from models import Tokenizer
from schemas.config import PromptsConfig
from schemas.errors import ModelError


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


START_TIMEOUT_S = 1800
"""Longest that a server may take to start: its weights are read, its graphs compiled."""


@contextlib.contextmanager
def run_vllm_server(
    config: VllmConfig, folder: Path, source: AdapterSource, log: Path, further: Sequence[str] = ()
) -> Iterator[str]:
    """A server on a free port of this machine, until the block ends.

    Args:
        config: Its settings.
        folder: The base model.
        source: Where it finds adapters.
        log: File for its output.
        further: Options of vLLM's, which take precedence over ours.

    Yields:
        Its address.

    Raises:
        ModelError: it ended before it served, or does not serve within ``START_TIMEOUT_S``.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
    command = [*serve_arguments(config, folder, port=port), *further]
    known = os.environ | serve_environment(config, source)
    with log.open("wb") as output:
        # In a session of its own: it has processes of its own, and all have to end.
        process = subprocess.Popen(command, env=known, stdout=output, stderr=output, start_new_session=True)
        try:
            _wait_until_ready(process, f"http://127.0.0.1:{port}", log)
            yield f"http://127.0.0.1:{port}"
        finally:
            _stop_process(process)


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < until:
        if process.poll() is not None:
            raise ModelError(f"inference: vLLM ended with {process.returncode} before it served; {log} says why")
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
            return
        time.sleep(0.25)
    raise ModelError(f"inference: vLLM does not serve after {START_TIMEOUT_S} s; {log} says what it is at")


def _stop_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # Its engine, where that has outlived it.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
