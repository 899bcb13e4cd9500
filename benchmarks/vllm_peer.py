"""vLLM beside the benchmark: a child process in ``.venv-vllm`` that reads runs and answers what each took.

``python -m benchmarks.vllm_peer FOLDER CASE ADAPTERS DEVICE`` is the child; one JSON object a line each way.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import psutil

from benchmarks.inference_cases import CASES, RANKS, RunTimer, RunTiming, adapter_names, make_requests, sample_requests
from inference import make_backend

VLLM_PYTHON = Path(".venv-vllm/bin/python")
"""Where ``make .venv-vllm/.installed`` puts vLLM, which needs versions of its own."""


class RunRequest(msgspec.Struct, frozen=True):
    """One run to sample."""

    names: list[str | None]
    constrained: bool
    run: int


class VllmPeer:
    """The child, as the benchmark sees it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def sample_run(self, names: Sequence[str | None], constrained: bool, run: int) -> RunTiming:
        """Have a run sampled."""
        self._send(msgspec.json.encode(RunRequest(list(names), constrained, run)))
        return msgspec.json.decode(self.read_line(), type=RunTiming)

    def read_line(self) -> bytes:
        """The child's next line.

        Raises:
            RuntimeError: it ended.
        """
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"vLLM's process ended with code {self._process.wait()}; its reasons are above")
        return line

    def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + b"\n")
        self._process.stdin.flush()


@contextmanager
def vllm_peer(folder: Path | None, case: str, adapters: int, device: str) -> Iterator[VllmPeer | None]:
    """VLLM with its adapters, until the block ends; None where there is nothing to run or it is not installed."""
    # The mark comes last: without it an installation may be half done.
    if folder is None or not (VLLM_PYTHON.parents[1] / ".installed").exists():
        if folder is not None:
            print(f"vLLM: no {VLLM_PYTHON}, so it is left out; `make .venv-vllm/.installed` makes it")
        yield None
        return
    command = [str(VLLM_PYTHON), "-m", "benchmarks.vllm_peer", str(folder), case, str(adapters), device]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        peer = VllmPeer(process)
        print(f"vLLM: {peer.read_line().decode().strip()}", flush=True)
        yield peer
        assert process.stdin is not None
        process.stdin.close()


def backend_settings(device: str, adapters: int) -> dict[str, Any]:
    """Of the ``vllm`` backend; it sets aside room for each adapter that one batch can hold."""
    return {"device": device, "max_loras": adapters, "max_lora_rank": max(RANKS), "threads": 1}


async def serve_runs(answers: BinaryIO, folder: Path, case: str, adapters: int, device: str) -> None:
    """Sample what is asked for, line by line, until nothing more comes."""
    watch = RunTimer()
    backend = make_backend("vllm", folder / "base", **backend_settings(device, adapters))
    for name in adapter_names(adapters):
        backend.load_adapter(name, folder / name)
    write_line(answers, f'"started with {adapters} adapters in {watch.elapsed(0).seconds:.0f} s"'.encode())
    children = psutil.Process().children(recursive=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.buffer.readline):
        request = msgspec.json.decode(line, type=RunRequest)
        requests = make_requests(CASES[case], request.names, request.constrained, request.run)
        watch = RunTimer(children)
        write_line(answers, msgspec.json.encode(watch.elapsed(await sample_requests(backend, requests))))
    await backend.close()


def write_line(answers: BinaryIO, line: bytes) -> None:
    """Write a line at once."""
    answers.write(line + b"\n")
    answers.flush()


def main() -> None:
    """Be the child. What vLLM prints goes to standard error, so that only answers go to standard output."""
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        folder, case, adapters, device = sys.argv[1:]
        asyncio.run(serve_runs(answers, Path(folder), case, int(adapters), device))


if __name__ == "__main__":
    main()
