"""An arena in one process, without a broker: played step by step with one client, and shown."""

from collections.abc import Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from arena.arenas import make_arena
from arena.arenas.base import Opening
from arena.calls import Limits
from arena.clients.base import InferenceClient
from schemas.batches import TrainingBatch
from schemas.config import Plugin
from schemas.errors import ConfigError, EpisodeError, UsageError
from workers.asking.openai_client import OpenAIClient

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


class Played(msgspec.Struct, frozen=True):
    """What is played, how much of it, and by whom."""

    arena: str
    settings: dict[str, Any]
    steps: int
    concurrency: int
    seed: int
    model: str = ""
    """A folder, or a server's name for its model; with ``port``, empty for the first that it names."""
    port: int | None = None
    """Of a server of this machine; None asks OpenRouter or OpenAI, unless ``model`` is a folder."""
    verbose: bool = False


async def played(wanted: Played, tell: "Callable[[TrainingBatch], None]") -> None:
    """Play an arena and tell each step's batch. Nothing is trained.

    Raises:
        LeagueError: unknown arena or setting, a model that cannot be read, no key, or no server; or every episode of a
            step failed, which the message explains.
    """
    spec = make_arena(wanted.arena, wanted.settings)
    # Here and not above: every worker imports this package, and torch is slow.
    from trainer.advantages.trees import CREDITS

    async with _client(wanted) as client:
        await client.get_policy_version()
        limits = Limits(needs_tokens=False)
        arena = spec.open(client, Opening(wanted.arena, wanted.seed, limits, CREDITS.build(Plugin("grpo"))))
        async with aclosing(arena.run(wanted.steps, wanted.concurrency, wanted.verbose)) as batches:
            async for batch in batches:
                tell(batch)
                if batch.counts.failed == batch.counts.episodes:
                    reason = next(iter(batch.failures.values()), "no reason is known")
                    raise EpisodeError(
                        f"arena {wanted.arena}: every episode of step {batch.step} failed, first: {reason}"
                    )


def parsed(pairs: list[str]) -> dict[str, Any]:
    """Settings from ``key=value``: JSON where it is JSON, else text; dots open tables.

    Raises:
        UsageError: a pair without a key or a value.
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise UsageError(f"--settings {pair}: expected KEY=VALUE")
        table = found
        *tables, last = key.split(".")
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise UsageError(f"--settings {pair}: {name} has a value already; expected a table")
        table[last] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode())
    except msgspec.DecodeError:
        return text


def lines(batch: TrainingBatch) -> Iterator[str]:
    """A step for people: counts, mean rewards by role, and why episodes failed."""
    counts = ", ".join(
        f"{name} {value}" for name in batch.counts.__struct_fields__ if (value := getattr(batch.counts, name))
    )
    yield f"step {batch.step + 1}: {counts}"
    yield from (f"  {name}: mean reward {value:+.3f}" for name, value in batch.rewards.items())
    yield from (f"  failed {id}: {reason}" for id, reason in batch.failures.items())


@asynccontextmanager
async def _client(wanted: Played) -> "AsyncIterator[InferenceClient]":
    folder = _folder(wanted)
    if folder is None:
        remote = _remote(wanted)
        try:
            yield remote
        finally:
            await remote.close()
        return
    from trainer.model import Tokenizer
    from workers.asking.episodes import BackendClient
    from workers.inference import make_backend

    backend = make_backend("local", folder)
    try:
        yield BackendClient(backend, Tokenizer(folder))
    finally:
        await backend.close()


def _folder(wanted: Played) -> Path | None:
    folder = Path(wanted.model)
    return folder if wanted.port is None and wanted.model and folder.is_dir() else None


def _remote(wanted: Played) -> OpenAIClient:
    if wanted.port is not None:
        return OpenAIClient.for_local(wanted.port, wanted.model)
    if not wanted.model:
        raise ConfigError("league arena: nobody speaks; expected --model FOLDER_OR_NAME, or --local with --port")
    return OpenAIClient.for_openrouter(wanted.model)
