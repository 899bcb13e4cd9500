"""Matches in which something goes wrong: the reason is in the history, and other matches are as they were."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

import arena.environments
from league.run import Run
from lifecycle.open import open_league
from models.adapter_bundle import pack_folder
from models.adapters import LoraConfig, create, save
from models.model_config import read_shape
from schemas.config import LeagueConfig, convert
from schemas.events import MatchFailed, PolicyPublished
from schemas.jobs import PlayMatch
from workers.match_runner.completed import CompletedMatch
from workers.match_runner.runner import MatchExecutor
from workers.policy_weights import ModelManager
from workers.runtime import Context, beside

ARENA = """
import asyncio
from arena.arena import Arena
from arena.environments import register
from arena.environments import ArenaSpec
from arena.episodes import Episode
from arena.rubrics import Rubric
from schemas.episodes import EpisodeRequest, Message, Role

async def liked(rollout, arena):
    kind = rollout.artifact
    if kind == "judge is away":
        await asyncio.Event().wait()
    verdict = await arena.call_model([Message("user", f"judge: {kind}")])
    if kind == "unknown role":
        return {"Nobody": 1.0}
    return {"Left": float(len(verdict.text)), "Right": 0.5}

class Talk(Episode):
    episode_type = "talk"
    rubric = Rubric([liked])

    async def rollout(self, arena, artifact, state):
        if artifact == "ends the process":
            raise SystemExit(3)
        for role in ("Left", "Right"):
            await self.call_model(role, f"talk: {artifact}", arena)
        if artifact == "never":
            await asyncio.Event().wait()
        if artifact in ("deep", "strict"):
            wanted = [EpisodeRequest("talk", kind) for kind in ("fine", "silence", "fine")]
            state.child_results += await arena.generate_rollouts(wanted)
        if artifact == "strict":
            raise ValueError(state.child_results[1].failure)
        return state

class Unjudged(Talk):
    episode_type = "unjudged"
    rubric = Rubric([liked], timeout_s=0.5)


class Talks(Arena):
    def get_batch(self):
        return [
            EpisodeRequest(
                "unjudged" if kind == "judge is away" else "talk", None if kind == "draws" else kind, store="empty"
            )
            for kind in self.kinds
        ]

@register("mishaps")
class Spec(ArenaSpec):
    name = "mishaps"
    seats = ("left", "right")

    def __init__(self, settings):
        self.kinds = settings["kinds"]

    def roles_in(self, seat):
        return (("Left", "Right")[seat],)

    def open(self, client, opening):
        talks = Talks(client, name=opening.name, seed=opening.seed, limits=opening.limits)
        talks.kinds = self.kinds
        talks.add_role(Role("Left"))
        talks.add_role(Role("Right"))
        talks.add_store("empty")
        talks.add_episode("talk", Talk())
        talks.add_episode("unjudged", Unjudged())
        return talks

    def improvise(self, role_id, messages, rng):
        asked = messages[-1].content
        if asked == "talk: silence":
            return ""
        if asked == "talk: length":
            return "x" * 200
        if asked == "judge: judge is silent":
            return " "
        return f"{role_id or 'judge'} says {rng.randrange(1_000_000)}"
"""
WRONG = {
    "draws": "store 'empty': it is empty",
    "silence": "it is empty; expected text",
    "length": "200 characters; expected 100",
    "unknown role": "'Nobody', which is not a role",
    "judge is away": "liked did not end within 0.5 s",
    "judge is silent": "it is empty; expected text",
    "ends the process": "SystemExit: 3",
    "strict": "ValueError: model reply: it is empty",
}


@pytest.fixture
def arenas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "arenas"
    folder.mkdir()
    (folder / "mishaps.py").write_text(ARENA)
    monkeypatch.setattr(arena.environments, "__path__", [*arena.environments.__path__, str(folder)])
    monkeypatch.delitem(__import__("sys").modules, "arena.environments.mishaps", raising=False)


def configured(model: Path, kinds: Sequence[str]) -> LeagueConfig:
    config = {
        "name": "talks",
        "game": {"name": "mishaps", "settings": {"kinds": list(kinds)}},
        "agents": {
            "base_model": {"kind": "base", "rating": 1000.0, "baseline": True},
            "random_bot": {"kind": "bot", "rating": 800.0, "baseline": True},
        },
        "model": {"base": str(model)},
        "episodes": {"judge": "random_bot", "reply_chars": 100},
        "trainer": {"reward": {"name": "outcome"}},
    }
    return convert(config, LeagueConfig, "test")


def in_league(config: LeagueConfig, folder: Path, body: Callable[[Context, MatchExecutor], Awaitable[None]]) -> None:
    """A league at version 0, and who plays its matches."""

    async def main() -> None:
        run = Run(folder)
        async with run.connect("test") as client:
            history = await open_league(run, client, config, lambda *_: None)
            context = Context(run, client, history, "rollout-1")
            async with beside(context.follow()):
                save(create(read_shape(Path(config.model.base)), LoraConfig(rank=2), 1), folder / "adapter")
                digest = await context.blobs.put(pack_folder(folder / "adapter"))
                await context.wait_for_sequence(await context.append(PolicyPublished("main", 0, digest, "base_model")))
                models = await ModelManager.load(context, "main")
                await models.load_newest()
                await body(context, MatchExecutor.between_agents(context, models))
                await models.close()

    asyncio.run(asyncio.wait_for(main(), 300))


def job(number: int) -> PlayMatch:
    return PlayMatch(f"rollout-1-{number}", "training", ["random_bot", "random_bot"], seed=number)


async def failures(context: Context) -> dict[str, str]:
    await context.wait_for_sequence(await context.log.last_sequence())
    events = [recorded.event async for recorded in context.log.read()]
    return {event.match_id: event.error for event in events if isinstance(event, MatchFailed)}


@pytest.mark.usefixtures("arenas")
def test_each_reason_is_in_the_history_and_matches_beside_it_are_as_without_it(
    speaker: Callable[..., Path], tmp_path: Path
) -> None:
    model = speaker(["talk judge fine deep"], 300, 512)
    kinds = [kind for wrong in WRONG for kind in (wrong, "fine")] + ["deep"]

    def played(kinds: Sequence[str], folder: Path) -> tuple[list[CompletedMatch | None], dict[str, str]]:
        found: list[CompletedMatch | None] = []
        told: dict[str, str] = {}

        async def body(context: Context, matches: MatchExecutor) -> None:
            found.extend(await asyncio.gather(*(matches.run(job(number)) for number in range(len(kinds)))))
            told.update(await failures(context))

        in_league(configured(model, kinds), folder, body)
        return found, told

    with_them, told = played(kinds, tmp_path / "run")
    without, nothing = played(["deep" if kind == "deep" else "fine" for kind in kinds], tmp_path / "other")
    assert nothing == {}
    assert sorted(told) == sorted(f"rollout-1-{number}" for number, kind in enumerate(kinds) if kind in WRONG)
    for number, (kind, game, other) in enumerate(zip(kinds, with_them, without, strict=True)):
        assert other is not None
        if kind in WRONG:
            assert game is None
            assert WRONG[kind] in told[f"rollout-1-{number}"], kind
        else:
            assert game is not None
            assert (game.record, game.outcome) == (other.record, other.outcome)


@pytest.mark.usefixtures("arenas")
def test_a_match_that_is_cut_short_is_in_no_history_and_the_next_is_played(
    speaker: Callable[..., Path], tmp_path: Path
) -> None:
    async def body(context: Context, matches: MatchExecutor) -> None:
        cut = asyncio.create_task(matches.run(job(0)))
        # Wherever it has come to by then: it would never end.
        await asyncio.sleep(0.05)
        cut.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cut
        assert await matches.run(job(1)) is not None
        assert await failures(context) == {}

    in_league(configured(speaker(["talk"], 300, 512), ["never", "fine"]), tmp_path / "run", body)
