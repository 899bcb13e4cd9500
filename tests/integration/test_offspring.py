"""A reset that begins from an offspring: recorded whole, computed again from its event, resumed after a kill."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import torch

from league.log.base import RecordedEvent
from league.matchmaking.schedule import make_checkpoint_added
from league.run import Run
from lifecycle.open import open_league
from models.adapter_bundle import unpack_folder
from schemas.config import LeagueConfig, Plugin, PolicyConfig, load_config
from schemas.errors import ModelError
from schemas.events import Event, PolicyPublished, PolicyReset
from schemas.ids import agent_name, digest
from tests.builders import gradient_step
from trainer.backends import AdapterSpec, LearnerBackend
from trainer.learner import Learner
from workers.learner_state import LearnerFactory, append_published, compute_offspring, store_folder
from workers.runtime import Context, beside
from workers.trainer import load_policy_base

ROLE = PolicyConfig(role="population", reset_steps=4, reset_operator=Plugin(name="crossover", settings={"noise": 0.05}))
LEAGUE = "nim"


def config() -> LeagueConfig:
    tiny = load_config(Path(__file__).parents[2] / "configs" / "nim-tiny.toml")
    return msgspec.structs.replace(
        tiny,
        policies={"member": ROLE},
        model=msgspec.structs.replace(tiny.model, cloning={"sequences": 8}, lora_rank=4),
    )


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Context, LearnerBackend]]:
    """A worker's view of the league, which is opened the first time; it ends with the broker."""
    run = Run(folder)
    async with run.connect("test") as client:
        history = await open_league(run, client, config(), lambda text, share: None)
        context = Context(run, client, history, "test")
        async with beside(context.follow()):
            await context.wait_for_sequence(await history.last_sequence())
            yield context, await load_policy_base(context)


async def step_events(context: Context, backend: LearnerBackend, policy: str, version: int) -> list[Event]:
    """A version with random weights, as its trainer records it."""
    learner = await LearnerFactory(context, backend, policy).resume()
    with torch.no_grad():
        learner.adapter.flat_P.normal_(generator=torch.Generator().manual_seed(version))
    adapter, before = await store_folder(context, learner.save_adapter), agent_name(policy, version - 1)
    published = PolicyPublished(policy=policy, version=version, adapter=adapter, parent=before)
    return [published, gradient_step(version, policy=policy, state=digest(b"deleted"))]


async def add_checkpoint(context: Context, backend: LearnerBackend, policy: str, version: int) -> None:
    published, step = await step_events(context, backend, policy, version)
    assert isinstance(published, PolicyPublished)
    added = make_checkpoint_added(context.state, policy, version, published.adapter, "first")
    await append_published(context, [published, step, added])


async def reset_member(context: Context, backend: LearnerBackend) -> Learner:
    """Take the member's next step with a reset, in the batch that its trainer appends."""
    events = await step_events(context, backend, "member", 4)
    learner, reset, first = await LearnerFactory(context, backend, "member").make_reset(5, "weakest")
    await append_published(context, [*events, reset, first])
    return learner


async def read(context: Context) -> list[RecordedEvent]:
    return [recorded async for recorded in context.log.read()]


def test_an_offspring_is_computed_again_and_resumed_after_a_kill(tmp_path: Path) -> None:
    async def before() -> Learner:
        async with opened(tmp_path / "run") as (context, backend):
            await add_checkpoint(context, backend, "main", 3)
            await add_checkpoint(context, backend, "member", 3)
            return await reset_member(context, backend)

    async def after() -> tuple[Learner, bytes, list[RecordedEvent]]:
        """What another process finds before the first step from the offspring, the broker having been started again."""
        async with opened(tmp_path / "run") as (context, backend):
            events = await read(context)
            reset = next(recorded.event for recorded in events if isinstance(recorded.event, PolicyReset))
            again = await compute_offspring(context, reset)
            return await LearnerFactory(context, backend, "member").resume(), again, events

    made = asyncio.run(before())
    resumed, again, history = asyncio.run(after())
    reset, first = [recorded.event for recorded in history[-2:]]
    assert isinstance(reset, PolicyReset)
    assert isinstance(first, PolicyPublished)
    assert (reset.operator, reset.settings) == ("crossover", {"method": "linears", "weight": 0.5, "noise": 0.05})
    assert {parent.agent for parent in reset.parents} == {"main@3", "member@3"}
    assert (first.version, first.parent, first.adapter) == (5, reset.parents[0].agent, reset.adapter)
    assert digest(again) == reset.adapter
    assert resumed.steps == made.steps == 5
    assert torch.equal(resumed.adapter.flat_P, made.adapter.flat_P)
    unpack_folder(again, tmp_path / "offspring")
    made.load_adapter(tmp_path / "offspring", 5)
    assert torch.equal(resumed.adapter.flat_P, made.adapter.flat_P)


def test_a_reset_is_untrained_while_the_league_has_too_few_checkpoints(tmp_path: Path) -> None:
    async def run() -> tuple[Learner, list[RecordedEvent]]:
        async with opened(tmp_path / "run") as (context, backend):
            await add_checkpoint(context, backend, "member", 3)
            return await reset_member(context, backend), await read(context)

    learner, history = asyncio.run(run())
    reset, first = [recorded.event for recorded in history[-2:]]
    assert isinstance(reset, PolicyReset)
    assert isinstance(first, PolicyPublished)
    assert (reset.operator, reset.parents, first.parent) == ("", [], "base_model")
    assert all(not b_OR.any() for _, b_OR in learner.adapter.lora.matrices().values())


def test_a_checkpoint_that_does_not_fit_ends_the_reset_with_its_reason(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path / "run") as (context, backend):
            await add_checkpoint(context, backend, "main", 3)
            other = backend.new_adapter(AdapterSpec(2, 8.0, ()), seed=1)
            adapter = await store_folder(context, lambda folder: other.save(folder, ""))
            published = PolicyPublished(policy="member", version=2, adapter=adapter, parent="base_model")
            added = make_checkpoint_added(context.state, "member", 2, adapter, "first")
            await append_published(context, [published, added])
            await LearnerFactory(context, backend, "member").make_reset(3, "weakest")

    with pytest.raises(ModelError, match="as in the other parent"):
        asyncio.run(run())
