"""Latency of a weight swap under load: from the event that publishes a version to its first sampled token.

A real broker, the process's own fold of the history, the ``local`` backend with the demo's small model for Nim, and
``IN_FLIGHT`` requests at any time. Run: ``python -m benchmarks.bench_swap``.
"""

import asyncio
import tempfile
from pathlib import Path

from arena.games import make_game
from benchmarks.sizes import size
from inference import Request, SamplingParameters
from inference.statistics import SwapTimes
from league.run import Run
from lifecycle.open import open_league
from models import adapters, make_base
from models.adapter_bundle import pack_folder
from models.adapters import LoraConfig
from models.model_config import read_shape
from schemas.config import LeagueConfig, load_config
from schemas.events import PolicyPublished
from workers.policy_weights import ModelManager
from workers.runtime import Context, beside

VERSIONS, IN_FLIGHT, PAUSE_S = size(30, 2), size(64, 4), 0.2
DRAIN_S = size(2.0, 0.5)


async def publish_version(context: Context, config: LeagueConfig, version: int) -> None:
    folder = context.run.folder / f"adapter-{version}"
    shape = LoraConfig(config.model.lora_rank, config.model.lora_alpha)
    adapters.save(adapters.create(read_shape(context.run.model), shape, seed=version), folder)
    digest = await context.blobs.put(pack_folder(folder))
    await context.append(PolicyPublished("main", version, digest, "base_model"))


async def keep_generating(models: ModelManager, number: int, served: set[str]) -> None:
    prompt, seed = [3, 4, 5, 6, 7, 8], number
    while True:
        _, adapter = models.adapter_provider("main")()
        done = await models.backend.generate(
            Request(prompt, adapter, None, SamplingParameters(seed=seed, max_tokens=24))
        )
        served.update(span.adapter or "" for span in done.spans)
        seed += IN_FLIGHT


async def measure(folder: Path) -> tuple[SwapTimes, int]:
    """Publish versions one after the other; their times, and how many were sampled from."""
    config = load_config(Path(__file__).parents[1] / "configs" / "nim-tiny.toml")
    run, served = Run(folder), set[str]()
    make_base(run.model, make_game(config.game.name, config.game.settings).text().vocabulary())
    async with run.connect("bench") as client:
        context = Context(run, client, await open_league(run, client, config, lambda *_: None), "bench")
        async with beside(context.follow()):
            await context.wait_for_sequence(await context.log.last_sequence())
            await publish_version(context, config, 0)
            await context.wait_until(lambda: context.state.live_version("main") is not None)
            models = await ModelManager.load(context, "main")
            asking = (keep_generating(models, number, served) for number in range(IN_FLIGHT))
            async with beside(models.follow(), *asking):
                for version in range(1, VERSIONS + 1):
                    await asyncio.sleep(PAUSE_S)
                    await publish_version(context, config, version)
                await asyncio.sleep(DRAIN_S)
            await models.close()
    return models.swaps.times, len(served)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        times, served = asyncio.run(measure(Path(folder) / "run"))
    print(
        f"from a version's recording to its first token, {IN_FLIGHT} requests in flight: mean {times.mean:.3f} s, "
        f"longest {times.longest:.3f} s ({times.versions} versions timed of {VERSIONS + 1}, {served} adapters sampled)"
    )


if __name__ == "__main__":
    main()
