"""Hot swaps in a real league: every step was sampled by the version it names, and that soon after it was published."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from league.log.metrics import MetricsStream
from league.log.queues import ExperienceStream
from league.run import Run
from models import adapters
from models.adapter_bundle import unpack_atomically, unpack_folder
from models.adapters import Lora
from models.decoder import Decoder
from schemas.events import GradientStepTaken, MatchFailed, PolicyPublished
from schemas.metrics import InferenceMetrics
from schemas.trajectories import Trajectory
from trainer.loss_inputs import recompute_logprobs

pytestmark = pytest.mark.slow

STEPS = 6
SLOWEST_S = 5.0
"""Generous: both cores are shared with other tests, and games hold the thread for a round at a time."""

CONFIG = """
name = "nim"
seed = 5
game = { name = "nim", settings = { seats = 3, heaps = [3, 4, 5] } }
agents.base_model = { kind = "base", rating = 1000.0, baseline = true }
agents.random_bot = { kind = "bot", rating = 800.0, baseline = true }
model.cloning = { sequences = 128 }
rollout.games_in_flight = 8
inference = { top_p = 0.95, temperature = 1.2, servers = %(servers)d }
evaluation = { every = 50, gatekeeper_games = 0, benchmark_games = 0 }
trainer = { rollouts_per_step = 12, learner = { learning_rate = 3e-3 } }
stop.steps = %(steps)d
"""


class Seen:
    """What was heard and received while the league trained."""

    def __init__(self) -> None:
        self.rollouts: dict[str, Trajectory] = {}
        self.inference: list[InferenceMetrics] = []
        self.adapters: dict[int, str] = {}
        self.failed: list[str] = []
        self.used: set[str] = set()
        self.loras: dict[int, Lora] = {}
        self.base = Path()


@pytest.fixture(scope="module", params=[0, 1], ids=["in process", "served"])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """A league whose players have the model in their own process, and one with an inference process."""
    folder = tmp_path_factory.mktemp("swap")
    (folder / "league.toml").write_text(CONFIG % {"servers": request.param, "steps": STEPS})
    return asyncio.run(asyncio.wait_for(trained(folder), 200))


async def trained(folder: Path) -> Seen:
    """Train a league; take copies of its rollouts and heartbeats, which it does not keep."""
    found, run = Seen(), Run(folder / "run")
    command = [sys.executable, "-m", "ui"]
    place = ["--config", str(folder / "league.toml"), "--run", str(run.folder)]
    await asyncio.to_thread(
        subprocess.run, [*command, "up", "--no-workers", *place], check=True, capture_output=True, timeout=600
    )
    async with run.open_log("test") as history:
        taking = [
            asyncio.create_task(take_rollouts(ExperienceStream(history.client, "nim").follow("main", 1), found)),
            asyncio.create_task(take_heartbeats(MetricsStream(history.client, "nim"), found)),
        ]
        up = await asyncio.create_subprocess_exec(*command, "up", *place, stdout=subprocess.DEVNULL)
        try:
            assert await up.wait() == 0
        finally:
            if up.returncode is None:
                up.terminate()
                await up.wait()
        for task in taking:
            task.cancel()
        await asyncio.gather(*taking, return_exceptions=True)
        async for recorded in history.read():
            event = recorded.event
            if isinstance(event, PolicyPublished):
                found.adapters[event.version] = event.adapter
            elif isinstance(event, GradientStepTaken):
                found.used.update(event.matches)
            elif isinstance(event, MatchFailed):
                found.failed.append(event.error)
        found.base = folder / "base"
        opened = next(iter([r.event async for r in history.read(1, 1)]))
        artifacts = run.open_blob_store(history.client)
        unpack_atomically(await artifacts.get(opened.model.partition(":")[2]), found.base)  # type: ignore[union-attr]
        shape = Decoder.load(found.base).shape
        for version, digest in found.adapters.items():
            with tempfile.TemporaryDirectory() as draft:
                unpack_folder(await artifacts.get(digest), Path(draft) / "adapter")
                found.loras[version] = adapters.load(Path(draft) / "adapter", shape)
    return found


async def take_rollouts(received: AsyncIterator[object], found: Seen) -> None:
    async for each in received:
        rollout = each.trajectory  # type: ignore[attr-defined]
        found.rollouts[rollout.match_id] = rollout


async def take_heartbeats(stream: MetricsStream, found: Seen) -> None:
    async for beat in stream.follow():
        if beat.role == "rollout" and beat.inference is not None:
            found.inference.append(beat.inference)


def test_every_step_was_sampled_by_the_version_it_names_and_by_no_other(seen: Seen) -> None:
    assert sorted(seen.adapters) == list(range(STEPS + 1))
    assert seen.used <= seen.rollouts.keys()
    decoder, versions, mixed = Decoder.load(seen.base), set(), 0
    apart: dict[int, float] = {}
    for rollout in seen.rollouts.values():
        named = {step.version for step in rollout.steps}
        mixed += len(named) > 1
        for version in named:
            steps = [step for step in rollout.steps if step.version == version]
            learnt, stated = recompute_logprobs(decoder, seen.loras[version], steps)
            np.testing.assert_allclose(learnt, stated, atol=1e-4)
            versions.add(version)
            if version > 1 and len(stated):
                before, _ = recompute_logprobs(decoder, seen.loras[version - 1], steps)
                apart[version] = max(apart.get(version, 0.0), float(np.abs(before - stated).max()))
    assert versions >= set(range(STEPS))
    # So that agreeing says something: the version before would not have passed.
    assert len(apart) >= STEPS - 2
    assert min(apart.values()) > 1e-3
    print(f"versions {sorted(versions)}, rollouts over a swap {mixed}, least difference {min(apart.values()):.4f}")


def test_the_nucleus_is_what_is_learned_from(seen: Seen) -> None:
    steps = [step for rollout in seen.rollouts.values() for step in rollout.steps]
    assert {step.temperature for step in steps} == {1.2}
    assert any(step.branches for step in steps)
    assert all(
        step.completion_ids[at] in allowed
        for step in steps
        for at, allowed in zip(step.branches, step.allowed, strict=True)
        if allowed
    )


def test_new_versions_play_soon_and_no_request_is_dropped(seen: Seen) -> None:
    assert seen.failed == []
    last = seen.inference[-1]
    assert last.published >= 1
    assert 0 < last.mean_swap_s <= last.max_swap_s < SLOWEST_S
    print(f"{last.published} swaps: mean {last.mean_swap_s:.3f} s, longest {last.max_swap_s:.3f} s")
