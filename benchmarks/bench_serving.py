"""The cost of serving the model from inference processes, against the same backend in this process.

The requests are those of Diplomacy games; they go to the local backend, and over HTTP to one and to two servers. Prints
processor time of this process and of the servers too, since with fewer free cores than processes wall time says little.
"""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import mean

import msgspec
import psutil
import uvloop

from arena.constraints.constraint_slices import slice_constraint
from arena.games import make_game
from arena.match import play
from benchmarks.inference_cases import CASES, RunTimer, RunTiming
from benchmarks.sizes import require_package, size
from inference import Generation, InferenceBackend, Request, SamplingParameters, make_backend
from inference.base import BackendStats
from inference.remote import GenerateCall
from inference.servers import ServersBackend, ServersConfig
from models import make_base
from models.tokenizer import Tokenizer
from players.policy import PolicyPlayer
from players.prompt_builder import make_constrained_prompter
from schemas.errors import GameError

WARM_UP_REQUESTS = size(100, 2)
GAMES, PHASES = size(6, 1), size(10, 1)
CONCURRENCIES = size((1, 8, 70), (8,))
"""Decisions asked for together."""
SERVERS = size((1, 2), (1,))

SERVER_SCRIPT = """
import asyncio, sys
from pathlib import Path
import uvloop
from models import Tokenizer
from inference import make_backend
from tests.servers import LoadedModels, serve_models

async def main(base):
    async with serve_models(LoadedModels(make_backend("local", base), Tokenizer(base))) as url:
        print(url, flush=True)
        await asyncio.Event().wait()

uvloop.run(main(Path(sys.argv[1])))
"""


class RecordingBackend:
    """The local backend, which keeps what it was asked."""

    def __init__(self, base: Path) -> None:
        self.requests: list[Request] = []
        self._backend = make_backend("local", base)

    def load_adapter(self, digest: str, folder: Path) -> None:
        """See ``InferenceBackend``."""

    def drop_adapter(self, digest: str) -> None:
        """See ``InferenceBackend``."""

    def stats(self) -> BackendStats:
        """See ``InferenceBackend``."""
        return self._backend.stats()

    async def generate(self, request: Request) -> Generation:
        """See ``InferenceBackend``."""
        self.requests.append(request)
        return await self._backend.generate(request)

    async def close(self) -> None:
        """See ``InferenceBackend``."""
        await self._backend.close()


async def record_requests(base: Path) -> list[Request]:
    """What models in all seats of some games ask."""
    spec, backend = make_game("diplomacy", {}), RecordingBackend(base)
    prompting = make_constrained_prompter(Tokenizer(base), spec.text())
    for seed in range(GAMES):
        players = [PolicyPlayer(backend, prompting, lambda: (0, None), SamplingParameters()) for _ in spec.seats]
        with contextlib.suppress(GameError):  # it is not over then
            await play(spec.new(seed), players, seed, max_turns=PHASES)
    await backend.close()
    return backend.requests


async def sample_requests(backend: InferenceBackend, requests: Sequence[Request], at_once: int) -> int:
    """Completion tokens of requests, a number of which is always under way."""
    left, tokens = iter(requests), 0

    async def one_after_the_other() -> None:
        nonlocal tokens
        for request in left:
            generation = await backend.generate(request)
            tokens += len(generation.completion_ids)

    await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))
    return tokens


@contextlib.contextmanager
def start_servers(base: Path, count: int) -> Iterator[tuple[list[str], list[psutil.Process]]]:
    """Server processes for the length of a block."""
    with contextlib.ExitStack() as stack:
        urls, processes = [], []
        for _ in range(count):
            command = [sys.executable, "-c", SERVER_SCRIPT, str(base)]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stdout is not None
            urls.append(process.stdout.readline().strip())
            processes.append(psutil.Process(process.pid))
        yield urls, processes


def measure(
    backend: InferenceBackend, requests: Sequence[Request], children: Sequence[psutil.Process] = ()
) -> list[tuple[RunTiming, float]]:
    """For each crowd, what all requests took and this process's share of processors; after one run that warms up."""

    async def body() -> list[tuple[RunTiming, float]]:
        found: list[tuple[RunTiming, float]] = []
        await sample_requests(backend, requests[:WARM_UP_REQUESTS], 8)
        for at_once in CONCURRENCIES:
            watch, own = RunTimer(children), time.process_time()
            tokens = await sample_requests(backend, requests, at_once)
            found.append((watch.elapsed(tokens), time.process_time() - own))
        await backend.close()
        return found

    timings: list[tuple[RunTiming, float]] = uvloop.run(body())
    return timings


def cpu_ms_per_request(do: Callable[[Request], object], requests: Sequence[Request]) -> float:
    """Milliseconds a request."""
    began = time.process_time()
    for request in requests:
        do(request)
    return (time.process_time() - began) * 1e3 / len(requests)


def make_call(request: Request) -> GenerateCall:
    """What is sent for a request."""
    assert request.constraint is not None
    return GenerateCall(
        list(request.prompt_ids), request.adapter, request.sampling, slice_constraint(request.constraint, 1024)
    )


def main() -> None:
    """Measure everything and print it."""
    require_package("diplomacy")
    with tempfile.TemporaryDirectory() as folder:
        vocabulary = make_game("diplomacy", {}).text().vocabulary()
        base = make_base(Path(folder) / "base", vocabulary, CASES["tiny"].shape)
        requests = uvloop.run(record_requests(base))
        rows = {"in this process": measure(make_backend("local", base), requests)}
        for count in SERVERS:
            with start_servers(base, count) as (urls, processes):
                backend = ServersBackend(ServersConfig(urls=tuple(urls)))
                rows[f"{count} server{'s' * (count - 1)}"] = measure(backend, requests, processes)
    calls = [make_call(request) for request in requests]
    encoded = [msgspec.msgpack.encode(call) for call in calls]
    places = [len(call.excerpt.allowed) for call in calls if call.excerpt is not None]
    tokens = mean(len(request.prompt_ids) for request in requests)
    print(f"{len(requests)} decisions of {GAMES} games, {tokens:.0f} prompt tokens each")
    print(f"an excerpt: {mean(places):.0f} places, at most {max(places)}; a call: {mean(map(len, encoded)):,.0f} bytes")
    print(
        "cut and encoded in "
        f"{cpu_ms_per_request(lambda request: msgspec.msgpack.encode(make_call(request)), requests):.2f} ms"
    )
    print(f"{'':18}{'at once':>9}{'requests/s':>12}{'tokens/s':>10}{'processor ms a request':>24}{'of it here':>12}")
    for name, crowds in rows.items():
        for at_once, (took, own_s) in zip(CONCURRENCIES, crowds, strict=True):
            each = 1e3 / len(requests)
            pace = f"{len(requests) / took.seconds:>12,.0f}{took.tokens / took.seconds:>10,.0f}"
            print(f"{name:18}{at_once:>9}{pace}{took.cpu_s * each:>24.2f}{own_s * each:>12.2f}")


if __name__ == "__main__":
    main()
