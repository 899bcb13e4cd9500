"""Episodes as matches of a league: who speaks, what is recorded, and what becomes of those that fail."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import zstandard

import arena.environments
from arena.records import decode_record
from league.run import Run
from lifecycle.config_checks import check_config
from lifecycle.open import open_league
from models.adapter_bundle import pack_folder
from models.adapters import LoraConfig, create, save
from models.model_config import read_shape
from schemas.codec import decode_trajectory, encode_trajectory
from schemas.config import LeagueConfig, convert
from schemas.errors import ConfigError
from schemas.events import MatchFailed, PolicyPublished, RemoteAsked
from schemas.jobs import PlayMatch
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
from schemas.episodes import EpisodeRequest, Role

async def liked(rollout, arena):
    verdict = await arena.call_model(arena.role("Left").build_messages("Who was better?"), max_tokens=2)
    if rollout.artifact == "nan":
        return {"Left": float("nan")}
    return {"Left": float(len(verdict.text)), "Right": 0.5}

class Talk(Episode):
    episode_type = "talk"
    rubric = Rubric([liked])

    async def rollout(self, arena, artifact, state):
        if artifact == "raises":
            raise RuntimeError("the environment broke")
        if artifact == "never":
            await asyncio.Event().wait()
        await self.call_model("Left", f"About {artifact}.", arena)
        await self.call_model("Right", "And you?", arena)
        if artifact == "deep":
            wanted = [EpisodeRequest("talk", "below", is_trainable=trained) for trained in (True, False)]
            state.child_results += await arena.generate_rollouts(wanted)
        return state

class Talks(Arena):
    def get_batch(self):
        kinds = self.kinds
        return [EpisodeRequest("talk", kind, group="all", group_size=len(kinds)) for kind in kinds]

@register("talks")
class Spec(ArenaSpec):
    name = "talks"
    seats = ("left", "right")

    def __init__(self, settings):
        self.kinds = settings.get("kinds", ["deep"])

    def roles_in(self, seat):
        return (("Left", "Right")[seat],)

    def open(self, client, opening):
        talks = Talks(client, name=opening.name, seed=opening.seed, limits=opening.limits)
        talks.kinds = self.kinds
        talks.add_role(Role("Left", max_tokens=5))
        talks.add_role(Role("Right", max_tokens=5))
        talks.add_episode("talk", Talk())
        return talks

    def improvise(self, role_id, messages, rng):
        return f"{role_id} says {rng.randrange(1_000_000)}"
"""


@pytest.fixture
def model(speaker: Callable[..., Path]) -> Path:
    return speaker(["About deep. And you? Who was better?"], 300, 512)


@pytest.fixture
def arenas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "arenas"
    folder.mkdir()
    (folder / "talks.py").write_text(ARENA)
    monkeypatch.setattr(arena.environments, "__path__", [*arena.environments.__path__, str(folder)])
    monkeypatch.delitem(__import__("sys").modules, "arena.environments.talks", raising=False)


def configured(model: Path, **tables: object) -> LeagueConfig:
    config = {
        "name": "talks",
        "game": {"name": "talks", "settings": {"kinds": tables.pop("kinds", ["deep"])}},
        "agents": {
            "base_model": {"kind": "base", "rating": 1000.0, "baseline": True},
            "random_bot": {"kind": "bot", "rating": 800.0, "baseline": True},
        },
        "model": {"base": str(model)},
        "trainer": {"reward": {"name": "outcome"}},
        **tables,
    }
    return convert(config, LeagueConfig, "test")


@asynccontextmanager
async def league(config: LeagueConfig, folder: Path) -> AsyncIterator[tuple[Context, ModelManager, MatchExecutor]]:
    """A league at version 0, and who plays its matches."""
    run = Run(folder)
    async with run.connect("test") as client:
        history = await open_league(run, client, config, lambda *_: None)
        context = Context(run, client, history, "rollout-1")
        async with beside(context.follow()):
            adapter = folder / "adapter"
            save(create(read_shape(Path(config.model.base)), LoraConfig(rank=2), 1), adapter)
            digest = await context.blobs.put(pack_folder(adapter))
            await context.wait_for_sequence(await context.append(PolicyPublished("main", 0, digest, "base_model")))
            models = await ModelManager.load(context, "main")
            await models.load_newest()
            yield context, models, MatchExecutor.between_agents(context, models)
            await models.close()


def in_league(config: LeagueConfig, folder: Path, body: Callable[[Context, MatchExecutor], Awaitable[None]]) -> None:
    async def main() -> None:
        async with league(config, folder) as (context, _, matches):
            await body(context, matches)

    asyncio.run(asyncio.wait_for(main(), 300))


def training(number: int, *seats: str) -> PlayMatch:
    return PlayMatch(f"rollout-1-{number}", "training", list(seats or ("main@0", "random_bot")), seed=number)


@pytest.mark.usefixtures("arenas")
def test_agents_speak_for_their_seats_and_the_heros_calls_of_the_whole_tree_are_harvested(
    model: Path, tmp_path: Path
) -> None:
    async def body(context: Context, matches: MatchExecutor) -> None:
        played = await matches.run(training(0), live=[0])
        assert played is not None
        rollout = played.make_trajectory(0, "main")
        assert rollout is not None
        assert [(member.id, member.role) for member in rollout.members] == [
            ("rollout-1-0", "Left"),
            ("rollout-1-0.0", "Left"),
        ]
        assert [len(step.completion_ids) <= 5 and step.version == 0 for step in rollout.steps] == [True, True]
        assert (rollout.group, rollout.group_size) == (f"rollout-1-{context.state.sequence}-0", 1)
        assert rollout.members[0].group == f"0|{rollout.group}|talk|Left"
        finished = await matches.append_result(played, [0], "digest")
        assert [seat.role for seat in finished.seats] == ["left", "right"]
        assert [seat.trainable for seat in finished.seats] == [True, False]
        assert finished.seats[0].score == rollout.score == rollout.members[0].reward
        assert (finished.winner, finished.seats[1].rank, finished.length) == (0, 2, 6)
        assert finished.seats[0].metrics["liked.Right"] == 0.5
        assert finished.seats[0].metrics["left_of_untrainable"] == 1
        assert "left_of_untrainable" not in finished.seats[1].metrics
        assert played.make_trajectory(1, "main") is None, "a bot's words are no tokens"
        tree = decode_record(zstandard.decompress(await context.blobs.get(finished.record))).tree
        assert all(call.said.startswith("Right says ") for call in tree.calls if call.role == "Right")
        assert not any(call.said.startswith("Left says ") for call in tree.calls)

    in_league(configured(model), tmp_path / "run", body)


@pytest.mark.usefixtures("arenas")
def test_what_fails_is_recorded_with_its_reason_and_the_others_go_on(model: Path, tmp_path: Path) -> None:
    seats = ("random_bot", "random_bot")

    async def errors(context: Context) -> dict[str, str]:
        await context.wait_for_sequence(await context.log.last_sequence())
        return {
            recorded.event.match_id: recorded.event.error
            async for recorded in context.log.read()
            if isinstance(recorded.event, MatchFailed)
        }

    async def body(context: Context, matches: MatchExecutor) -> None:
        jobs, since = [training(number, *seats) for number in range(3)], context.state.sequence
        played = await asyncio.gather(*(matches.run(job) for job in jobs))
        assert [game is not None for game in played] == [False, True, False]
        assert played[1] is not None
        told = matches.runner.make_tombstone(jobs[0], 0, "main")
        assert told is not None
        assert (told.match_id, told.steps, told.members) == ("rollout-1-0", [], [])
        assert (told.group, told.group_size) == (f"rollout-1-{since}-0", 3), "the trainer need not wait for it"
        assert decode_trajectory(encode_trajectory(told)) == told
        assert matches.runner.make_tombstone(jobs[0], 0, "main") is None, "asked once"
        failures = await errors(context)
        assert failures.keys() == {"rollout-1-0", "rollout-1-2"}
        assert "the environment broke" in failures["rollout-1-0"]
        assert "liked" in failures["rollout-1-2"]
        assert "nan" in failures["rollout-1-2"]

    async def endless(context: Context, matches: MatchExecutor) -> None:
        assert await matches.run(training(0, *seats)) is None
        assert "not over after 0.1 s" in (await errors(context))["rollout-1-0"]

    config = configured(model, kinds=["raises", "fine", "nan"], episodes={"judge": "random_bot"})
    in_league(config, tmp_path / "run", body)
    # A league of its own: no other match need be over in so short a time.
    config = configured(model, kinds=["never"], episodes={"episode_s": 0.1, "judge": "random_bot"})
    in_league(config, tmp_path / "endless", endless)


@pytest.mark.usefixtures("arenas")
def test_evaluation_matches_of_one_seed_are_the_same_whoever_plays_them_when(model: Path, tmp_path: Path) -> None:
    def job(match_id: str, agent: str) -> PlayMatch:
        return PlayMatch(match_id, "evaluation", [agent, "random_bot"], seed=5)

    async def body(context: Context, matches: MatchExecutor) -> None:
        await matches.run(training(0), live=[0])
        played = [await matches.run(job(name, agent)) for name, agent in (("a", "base_model"), ("a", "base_model"))]
        other = await matches.run(job("a", "random_bot"))
        assert played[0] is not None
        assert played[1] is not None
        assert other is not None
        assert played[0].record == played[1].record
        first, last = (decode_record(zstandard.decompress(found.record)).tree for found in (played[0], other))
        assert first.artifact == last.artifact
        said = [[call.said for call in tree.calls if call.role == "Right"] for tree in (first, last)]
        assert said[0] == said[1], "the same luck for everybody"

    in_league(configured(model, kinds=["a", "b", "c"]), tmp_path / "run", body)


@pytest.mark.usefixtures("arenas")
def test_settings_that_are_for_games_and_judges_that_there_are_not_are_refused(model: Path) -> None:
    check_config(configured(model))
    with pytest.raises(ConfigError, match=r"prompts\.reply: 'free', which is for games"):
        check_config(configured(model, prompts={"reply": "free"}))
    with pytest.raises(ConfigError, match=r"trainer\.reward: 'progress' does not look at the score"):
        check_config(configured(model, trainer={"reward": {"name": "progress"}}))
    with pytest.raises(ConfigError, match=r"episodes\.judge: 'nobody'"):
        check_config(configured(model, episodes={"judge": "nobody"}))
    agents = {"base_model": {"kind": "base", "rating": 0.0}, "chaos_bot": {"kind": "bot", "rating": 0.0}}
    with pytest.raises(ConfigError, match="has no such bot"):
        check_config(configured(model, agents=agents))


@pytest.mark.usefixtures("arenas")
def test_remote_agents_speak_and_judge_and_what_they_cost_is_recorded(
    model: Path, tmp_path: Path, chat_server: Any, say: Any
) -> None:
    server = chat_server(lambda asked, number: say("Indeed." if asked.body["model"] == "guest" else "Left"))
    where = {"url": server.url, "model": "guest", "completion_price": 2.0, "training": True}
    agents = {
        "base_model": {"kind": "base", "rating": 1000.0, "baseline": True},
        "guest": {"kind": "remote", "rating": 900.0, "remote": where},
        "referee": {"kind": "remote", "rating": 900.0, "remote": where | {"model": "referee"}},
    }

    async def body(context: Context, matches: MatchExecutor) -> None:
        played = await matches.run(training(0, "main@0", "guest"), live=[0])
        assert played is not None
        assert played.outcome.scores == (4.0, 0.5), "the judge said Left"
        assert played.seat_metrics(1)["remote_requests"] == 3, "one in each of the three episodes"
        assert played.seat_metrics(0) == {}
        tree = decode_record(zstandard.decompress(played.record)).tree
        assert [call.said for call in tree.calls if call.role == "Right"] == ["Indeed."]
        server.stop()
        assert await matches.run(training(1, "main@0", "guest"), live=[0]) is None
        await matches.close()
        await context.wait_for_sequence(await context.log.last_sequence())
        events = [recorded.event async for recorded in context.log.read()]
        spent = {(event.agent, event.match_id): event for event in events if isinstance(event, RemoteAsked)}
        assert spent["guest", "rollout-1-0"].requests == spent["referee", "rollout-1-0"].requests == 3
        assert spent["guest", "rollout-1-0"].cost > 0
        (failed,) = (event for event in events if isinstance(event, MatchFailed))
        assert failed.error.startswith("RemoteError: agent 'guest'")

    agents["guest"]["remote"] = where | {"tries": 1}
    config = configured(model, agents=agents, episodes={"judge": "referee"})
    in_league(config, tmp_path / "run", body)
