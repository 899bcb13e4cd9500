"""What a league makes of adapters that it must not serve: a failed match at worst, and the version before plays on."""

import asyncio
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from safetensors.torch import load_file, save_file

from arena.games import make_game
from inference import make_backend
from inference.remote.load_balancer import ServersConfig
from inference.servers import ServersBackend
from league.run import Run
from lifecycle.open import open_league
from models import BaseShape, make_base
from models.adapter_bundle import pack_folder
from models.adapters import CONFIG_FILE, WEIGHTS_FILE, LoraConfig, create, save
from models.model_config import DecoderShape, read_shape
from schemas.config import LeagueConfig, convert
from schemas.errors import ModelError
from schemas.events import MatchFailed, PolicyPublished
from schemas.jobs import PlayMatch
from tests.servers import serve_models
from workers.inference_server import LeagueModels
from workers.match_runner.runner import MatchExecutor
from workers.policy_weights import ModelManager
from workers.runtime import Context, beside

CONFIG = {
    "name": "nim",
    "game": {"name": "nim", "settings": {"seats": 2, "heaps": [2, 3]}},
    "agents": {
        "base_model": {"kind": "base", "rating": 1000.0, "baseline": True},
        "random_bot": {"kind": "bot", "rating": 800.0, "baseline": True},
    },
}
SHAPE = BaseShape(hidden=32, layers=2, heads=2, kv_heads=2, head_dim=16, mlp=48)


def sound(folder: Path, shape: DecoderShape, seed: int) -> None:
    save(create(shape, LoraConfig(rank=2), seed), folder)


def with_nan(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    next(iter(tensors.values()))[0, 0] = float("nan")
    save_file(tensors, folder / WEIGHTS_FILE)


def truncated(folder: Path) -> None:
    (folder / WEIGHTS_FILE).write_bytes((folder / WEIGHTS_FILE).read_bytes()[:-64])


def pickled(folder: Path) -> None:
    (folder / WEIGHTS_FILE).write_bytes(pickle.dumps({"layers.0.self_attn.q_proj": [1.0]}))


def of_another_rank(folder: Path) -> None:
    config = msgspec.json.decode((folder / CONFIG_FILE).read_bytes())
    (folder / CONFIG_FILE).write_bytes(msgspec.json.encode(config | {"r": 3}))


def of_another_base(folder: Path) -> None:
    wider = DecoderShape(
        "qwen3", 50, 64, intermediate_size=48, layers=2, heads=2, kv_heads=2, head_dim=16, tied=True, qk_norm=True
    )
    sound(folder, wider, seed=9)


FAULTS: dict[Callable[[Path], None], str] = {
    with_nan: "NaN or infinite",
    truncated: "not a readable safetensors file",
    pickled: "looks like a pickle, which is never loaded",
    of_another_rank: "the base model and the adapter's rank need (3, 32)",
    of_another_base: "has shape (2, 64), the base model",
}


@asynccontextmanager
async def league(folder: Path) -> AsyncIterator[Context]:
    """A league with a base model that was taught nothing, and its worker's context."""
    run, config = Run(folder), convert(CONFIG, LeagueConfig, "test")
    make_base(run.model, make_game(config.game.name, config.game.settings).text().vocabulary(), SHAPE, seed=1)
    async with run.connect("test") as client:
        history = await open_league(run, client, config, lambda *_: None)
        context = Context(run, client, history, "worker")
        async with beside(context.follow()):
            await context.wait_for_sequence(await history.last_sequence())
            yield context


async def publish(context: Context, version: int, spoil: Callable[[Path], None] | None = None) -> str:
    """Publish a version, spoilt after it was saved; its digest."""
    folder = context.run.folder / f"adapter-{version}"
    sound(folder, read_shape(context.run.model), seed=version)
    if spoil is not None:
        spoil(folder)
    digest = await context.blobs.put(pack_folder(folder))
    parent = "base_model" if version == 0 else f"main@{version - 1}"
    await context.wait_for_sequence(await context.append(PolicyPublished("main", version, digest, parent)))
    return digest


def in_league(folder: Path, body: Callable[[Context], Awaitable[None]]) -> None:
    async def main() -> None:
        async with league(folder) as context:
            await body(context)

    asyncio.run(asyncio.wait_for(main(), 300))


def test_the_version_before_serves_on_until_a_sound_one_is_published(tmp_path: Path) -> None:
    async def body(context: Context) -> None:
        first = await publish(context, 0)
        models = await ModelManager.load(context, "main")
        await models.load_newest()
        assert models.adapter_provider("main")() == (0, first)
        for version, spoil in enumerate(FAULTS, start=1):
            await publish(context, version, spoil)
            await models.load_newest()
            assert models.is_current("main")
            assert models.adapter_provider("main")() == (0, first)
        seats = [f"main@{len(FAULTS)}", "random_bot"]
        matches = MatchExecutor.between_agents(context, models)
        assert await matches.run(PlayMatch("live", "training", seats, seed=1), live=[0]) is not None
        last = await publish(context, len(FAULTS) + 1)
        await models.load_newest()
        assert models.adapter_provider("main")() == (len(FAULTS) + 1, last)
        await models.close()

    in_league(tmp_path, body)


def test_where_servers_load_adapters_the_version_before_serves_on_as_well(tmp_path: Path) -> None:
    async def body(context: Context) -> None:
        first = await publish(context, 0)
        there = await ModelManager.load(context)
        async with serve_models(LeagueModels(context, there)) as url:
            models = ModelManager(context, ServersBackend(ServersConfig(urls=(url,))), there.tokenizer, "main")
            await models.load_newest()
            assert models.adapter_provider("main")() == (0, first)
            for version, spoil in enumerate(FAULTS, start=1):
                await publish(context, version, spoil)
                await models.load_newest()
                assert models.is_current("main")
                assert models.adapter_provider("main")() == (0, first)
            job = PlayMatch("live", "training", [f"main@{len(FAULTS)}", "random_bot"], seed=1)
            assert await MatchExecutor.between_agents(context, models).run(job, live=[0]) is not None
            job = PlayMatch("fixed", "evaluation", ["main@1", "random_bot"], seed=1)
            assert await MatchExecutor.between_agents(context, models).run(job) is None
            last = await publish(context, len(FAULTS) + 1)
            await models.load_newest()
            assert models.adapter_provider("main")() == (len(FAULTS) + 1, last)
            assert last in there.adapter_cache.loaded
            await models.close()
        await there.close()

    in_league(tmp_path, body)


def test_a_version_that_no_server_was_there_to_load_is_offered_again(tmp_path: Path) -> None:
    async def body(context: Context) -> None:
        first = await publish(context, 0)
        there, known = await ModelManager.load(context), ["http://127.0.0.1:9"]
        backend = ServersBackend(ServersConfig(patience_s=0.3), lambda: known)
        models = ModelManager(context, backend, there.tokenizer, "main")
        await models.load_newest()
        assert not models.is_current("main")
        async with serve_models(LeagueModels(context, there)) as url:
            known.append(url)
            await models.load_newest()
            assert models.adapter_provider("main")() == (0, first)
            assert models.is_current("main")
            await models.close()
        await there.close()

    in_league(tmp_path, body)


def test_a_fixed_opponent_that_cannot_be_loaded_fails_its_own_match_only(tmp_path: Path) -> None:
    async def body(context: Context) -> None:
        for version, spoil in enumerate([None, *FAULTS]):
            await publish(context, version, spoil)
        models = await ModelManager.load(context)
        matches = MatchExecutor.between_agents(context, models)
        jobs = [PlayMatch(f"m{n}", "evaluation", [f"main@{n}", "random_bot"], n) for n in range(len(FAULTS) + 1)]
        played = await asyncio.gather(*map(matches.run, jobs))
        assert [each is not None for each in played] == [True] + [False] * len(FAULTS)
        failed = {r.event.match_id: r.event.error async for r in context.log.read() if isinstance(r.event, MatchFailed)}
        for number, says in enumerate(FAULTS.values(), start=1):
            assert failed[f"m{number}"].startswith("ModelError: ")
            assert says in failed[f"m{number}"]
        await models.close()

    in_league(tmp_path, body)


def test_a_refused_adapter_may_be_offered_again_once_it_is_mended(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", ["a", "b"], SHAPE, seed=1)
    folder = tmp_path / "adapter"
    sound(folder, read_shape(base), seed=1)
    whole = (folder / WEIGHTS_FILE).read_bytes()
    backend = make_backend("local", base)
    with_nan(folder)
    with pytest.raises(ModelError, match="NaN"):
        backend.load_adapter("x", folder)
    (folder / WEIGHTS_FILE).write_bytes(whole)
    backend.load_adapter("x", folder)
    asyncio.run(backend.close())
