"""What matches add to an arena's stores: shared by all workers through the history, and kept over restarts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zstandard

import arena.environments
from arena.records import decode_record
from league.log.base import RecordedEvent
from league.run import Run
from lifecycle.open import open_league
from models.adapter_bundle import pack_folder
from models.adapters import LoraConfig, create, save
from models.model_config import read_shape
from schemas.config import LeagueConfig, convert
from schemas.events import ArtifactStored, MatchFailed, MatchFinished, PolicyPublished
from schemas.ids import derive_seed
from schemas.jobs import PlayMatch
from workers.match_runner.completed import CompletedMatch
from workers.match_runner.runner import MatchExecutor
from workers.policy_weights import ModelManager
from workers.runtime import Context, beside

ARENA = """
from random import Random

from arena.arena import Arena
from arena.environments import register
from arena.environments import ArenaSpec
from arena.episodes import Episode
from arena.rubrics import Rubric
from arena.stores import ArtifactStore
from schemas.episodes import Artifact, ArtifactAdded, EpisodeRequest, Role

def one(rollout, arena):
    return {"Left": 1.0, "Right": 0.0}

class Grow(Episode):
    episode_type = "grow"
    rubric = Rubric([one])

    async def rollout(self, arena, artifact, state):
        reply = await self.call_model("Left", "Another word?", arena)
        arena.stores["words"].add(Artifact({"word": reply.text, "size": "y" * artifact["size"]}, weight=0.5))
        if artifact["nested"]:
            below = EpisodeRequest("grow", {**artifact, "nested": False, "size": 0})
            state.child_results += await arena.generate_rollouts([below])
        return state

class Growing(Arena):
    def get_batch(self):
        store = self.stores["words"]
        known = [artifact.data for artifact in store.sample(store.count(), rng=Random(0))]
        return [EpisodeRequest("grow", {"known": known, "nested": True, "size": self.sizes.pop() if self.sizes else 0})]

@register("growing")
class Spec(ArenaSpec):
    name = "growing"
    seats = ("Left", "Right")

    def __init__(self, settings):
        self.sizes = settings.get("sizes", [])

    def open(self, client, opening):
        growing = Growing(client, name=opening.name, seed=opening.seed, limits=opening.limits)
        growing.sizes = list(self.sizes)
        growing.add_role(Role("Left"))
        growing.add_role(Role("Right"))
        growing.add_episode("grow", Grow())
        growing.add_store("words").replay([ArtifactAdded("words", Artifact({"word": "first"}, "first"))])
        return growing

    def improvise(self, role_id, messages, rng):
        return f"word {rng.randrange(1_000_000)}"
"""


@pytest.fixture
def model(speaker: Callable[..., Path]) -> Path:
    return speaker(["Another word? first"], 300, 512)


@pytest.fixture(autouse=True)
def arenas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "arenas"
    folder.mkdir()
    (folder / "growing.py").write_text(ARENA)
    monkeypatch.setattr(arena.environments, "__path__", [*arena.environments.__path__, str(folder)])
    monkeypatch.delitem(__import__("sys").modules, "arena.environments.growing", raising=False)


def configured(model: Path, sizes: list[int] | None = None, **tables: Any) -> LeagueConfig:
    config = {
        "name": "growing",
        "game": {"name": "growing", "settings": {"sizes": sizes or []}},
        "agents": {
            "base_model": {"kind": "base", "rating": 1000.0, "baseline": True},
            "random_bot": {"kind": "bot", "rating": 800.0, "baseline": True},
        },
        "model": {"base": str(model)},
        "trainer": {"reward": {"name": "outcome"}},
        **tables,
    }
    return convert(config, LeagueConfig, "test")


class Worker:
    """One process's part in it: its own connection, fold and arena."""

    def __init__(self, context: Context, matches: MatchExecutor) -> None:
        self.context = context
        self.matches = matches

    async def play(self, number: int, purpose: str = "training") -> CompletedMatch | None:
        await self.context.wait_for_sequence(await self.context.log.last_sequence())
        match_id = f"{self.context.name}-{number}"
        job = PlayMatch(match_id, purpose, ["random_bot"] * 2, seed=derive_seed(0, match_id))
        return await self.matches.run(job)

    async def finish(self, number: int) -> CompletedMatch:
        played = await self.play(number)
        assert played is not None
        await self.matches.append_result(played)
        return played

    async def history(self) -> list[RecordedEvent]:
        return [recorded async for recorded in self.context.log.read()]


def known(played: CompletedMatch | None) -> list[Any]:
    """The arena's whole store as it was drawn for a match; equal where content and order are."""
    assert played is not None
    words: list[Any] = decode_record(zstandard.decompress(played.record)).tree.artifact["known"]
    return words


@asynccontextmanager
async def opened(config: LeagueConfig, folder: Path) -> AsyncIterator[Callable[[str], Awaitable[Worker]]]:
    """A league at version 0, and what starts a worker."""
    run = Run(folder)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(run.connect("test"))
        history = await open_league(run, client, config, lambda *_: None)
        adapter = folder / "adapter"
        save(create(read_shape(Path(config.model.base)), LoraConfig(rank=2), 1), adapter)
        digest = await run.open_blob_store(client, config.name).put(pack_folder(adapter))
        await history.append(PolicyPublished("main", 0, digest, "base_model"))

        async def start(name: str) -> Worker:
            log = await stack.enter_async_context(run.open_log(name))
            context = Context(run, log.client, log, name)
            await context.load_snapshot()
            await stack.enter_async_context(beside(context.follow()))
            await context.wait_for_sequence(await log.last_sequence())
            models = await ModelManager.load(context, "main")
            stack.push_async_callback(models.close)
            return Worker(context, MatchExecutor.between_agents(context, models))

        yield start


def in_league(
    config: LeagueConfig, folder: Path, body: Callable[[Callable[[str], Awaitable[Worker]]], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with opened(config, folder) as start:
            await body(start)

    asyncio.run(asyncio.wait_for(main(), 300))


def test_workers_share_what_matches_add_and_one_that_starts_later_has_all_of_it(model: Path, tmp_path: Path) -> None:
    async def body(start: Callable[[str], Awaitable[Worker]]) -> None:
        one, two = await start("rollout-1"), await start("rollout-2")
        assert known(await one.finish(0)) == [{"word": "first"}]
        for number in range(3):
            await two.finish(number)
            await one.finish(number + 1)
        three = await start("rollout-3")
        first, second, third = [known(await worker.play(9)) for worker in (one, two, three)]
        assert first == second == third
        assert len(first) == 1 + 7 * 2
        assert len({str(word) for word in first}) == len(first)
        assert known(await three.play(10)) == first, "what was played and came to no result yet is nobody's"
        assert known(await one.play(11, "evaluation")) == [{"word": "first"}], "versions are compared by the same"

    in_league(configured(model), tmp_path / "run", body)


def test_additions_are_events_of_their_match_before_its_result(model: Path, tmp_path: Path) -> None:
    async def body(start: Callable[[str], Awaitable[Worker]]) -> None:
        worker = await start("rollout-1")
        await worker.finish(0)
        *_, above, below, finished = [recorded.event for recorded in await worker.history()]
        assert isinstance(above, ArtifactStored)
        assert isinstance(below, ArtifactStored)
        assert isinstance(finished, MatchFinished)
        assert (above.match_id, above.number, below.match_id, below.number) == ("rollout-1-0", 0, "rollout-1-0", 1)
        assert (above.store, above.weight, above.worker) == ("words", 0.5, "rollout-1")
        assert above.data["word"].startswith("word ")
        assert above.artifact != below.artifact

    in_league(configured(model), tmp_path / "run", body)


def test_a_match_that_is_told_twice_or_never_doubles_nothing(model: Path, tmp_path: Path) -> None:
    async def body(start: Callable[[str], Awaitable[Worker]]) -> None:
        worker = await start("rollout-1")
        assert await worker.play(0) is not None, "killed before it told of it"
        restarted = await start("rollout-1")
        played = await restarted.finish(1)
        await restarted.matches.append_result(played)
        words = known(await restarted.play(2))
        assert len(words) == 1 + 2
        events = [recorded.event for recorded in await worker.history()]
        assert [event.match_id for event in events if isinstance(event, ArtifactStored)] == ["rollout-1-1"] * 2

    in_league(configured(model), tmp_path / "run", body)


def test_what_is_too_large_fails_its_match_by_name_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    async def body(start: Callable[[str], Awaitable[Worker]]) -> None:
        worker = await start("rollout-1")
        assert await worker.play(0) is None
        await worker.finish(1)
        await worker.context.wait_for_sequence(await worker.context.log.last_sequence())
        events = [recorded.event for recorded in await worker.history()]
        (failed,) = (event for event in events if isinstance(event, MatchFailed))
        assert "store 'words': an artifact of 7" in failed.error
        assert "expected 60000 at most" in failed.error
        assert {event.match_id for event in events if isinstance(event, ArtifactStored)} == {"rollout-1-1"}

    in_league(configured(model, [70_000]), tmp_path / "run", body)


def test_where_workers_share_groups_an_addition_fails_its_match(model: Path, tmp_path: Path) -> None:
    async def body(start: Callable[[str], Awaitable[Worker]]) -> None:
        worker = await start("rollout-1")
        assert await worker.play(0) is None
        await worker.context.wait_for_sequence(await worker.context.log.last_sequence())
        (failed,) = (r.event for r in await worker.history() if isinstance(r.event, MatchFailed))
        assert "2 workers share groups" in failed.error
        assert "episodes.spread = 1" in failed.error

    in_league(configured(model, episodes={"spread": 2}), tmp_path / "run", body)
