"""What happens in an arena is logged as it does, for people and for programs; unobserved, nothing is done for it."""

import asyncio
import json
import logging
from pathlib import Path

import pytest
import structlog

from arena.arena import Arena
from arena.clients import ScriptedClient
from arena.episodes import Episode
from arena.episodes.chat import SingleTurnEpisode
from arena.observer import LoggingObserver
from arena.rubrics import Rubric
from schemas.episodes import EpisodeRequest, EpisodeState, Role
from schemas.errors import UsageError
from trainer.advantages.total_reward import GroupRelative
from workers.logs import LEVEL_VARIABLE, configure_logging, isolated_logger, logs_episodes


class Answer(SingleTurnEpisode):
    episode_type = "answer"

    def __init__(self) -> None:
        super().__init__("Child")

    rubric = Rubric([lambda rollout, arena: {"Child": float(len(rollout.steps[-1].completion_text))}])

    def get_prompt(self, artifact):
        if artifact == "bad":
            raise ValueError("a bad artifact")
        return f"about {artifact}"


class Ask(Episode):
    episode_type = "ask"
    rubric = Rubric([lambda rollout, arena: {"Parent": 0.5}])

    async def rollout(self, arena: Arena, artifact: object, state: EpisodeState) -> EpisodeState:
        await self.call_model("Parent", "x" * 50, arena)
        await arena.call_model(arena.role("Parent").build_messages("judge it"))
        state.child_results = await arena.generate_rollouts([EpisodeRequest("answer", artifact)])
        return state


class Asking(Arena):
    def get_batch(self) -> list[EpisodeRequest]:
        return [EpisodeRequest("ask", "good"), EpisodeRequest("ask", "bad")]


def logged(file: Path | None, terminal: bool = False, observed: bool = True) -> list[dict]:
    arena = Asking(ScriptedClient.from_function(lambda *_: "said"), GroupRelative(), name="here", seed=3)
    for role in ("Parent", "Child"):
        arena.add_role(Role(role, "Be brief."))
    for episode in (Ask(), Answer()):
        arena.add_episode(episode.episode_type, episode)

    async def run() -> None:
        async for _ in arena.run(1):
            pass

    with isolated_logger(file, terminal) as log:
        if observed:
            arena.observer = LoggingObserver(log, texts=20)
        asyncio.run(run())
    return [] if file is None else [json.loads(line) for line in file.read_text().splitlines()]


def test_a_file_tells_all_that_happened_by_step_and_episode(tmp_path):
    found = logged(tmp_path / "run.log")
    kinds = [line["event"] for line in found]
    assert (kinds[0], kinds[1], kinds[-1]) == ("run started", "step started", "step ended")
    wanted = {"episode started": 4, "episode ended": 4, "model call": 5, "result": 4, "batch": 1, "training record": 3}
    assert {kind: kinds.count(kind) for kind in wanted} == wanted
    assert all(line["step"] == 0 for line in found[1:])
    call = next(line for line in found if line["event"] == "model call" and line["episode"] == "here-0.0")
    assert (call["role"], call["reply"], call["parent"], call["prompt"][-1]) == (
        "Child",
        "said",
        "here-0",
        "user: about good",
    )
    calls = [line for line in found if line["event"] == "model call" and line["episode"] == "here-0"]
    assert [(line["role"], line["call"]) for line in calls] == [("Parent", 0), ("judge", 1)]
    assert calls[0]["prompt"][-1] == f"user: {'x' * 10} … {'x' * 10}"
    ended = {line["episode"]: line for line in found if line["event"] == "episode ended"}
    assert ended["here-0.0"]["rewards"] == {"Child": 4.0}
    assert "a bad artifact" in ended["here-1.0"]["failure"]
    tree = [(line["episode"], line["depth"]) for line in found if line["event"] == "result"]
    assert tree == [("here-0", 0), ("here-0.0", 1), ("here-1", 0), ("here-1.0", 1)]


def test_a_terminal_gets_a_readable_line_for_each(capsys):
    logged(None, terminal=True)
    lines = capsys.readouterr().err.splitlines()
    assert any("model call" in line and "reply=said" in line and "episode=here-0" in line for line in lines)


def test_unobserved_nothing_is_written(tmp_path):
    assert logged(tmp_path / "run.log", observed=False) == []


def test_the_environment_says_whether_leagues_log_episodes(monkeypatch):
    root, arena = logging.getLogger(), logging.getLogger("arena")
    before = (list(root.handlers), root.level, arena.level)
    try:
        for level, expected in (("", False), ("debug", True), ("INFO", False)):
            monkeypatch.setenv(LEVEL_VARIABLE, level)
            configure_logging("w", None, terminal=False)
            assert logs_episodes() is expected
        monkeypatch.setenv(LEVEL_VARIABLE, "loud")
        with pytest.raises(UsageError, match="LEAGUE_LOG: 'loud'; expected 'debug' or 'info'"):
            configure_logging("w", None, terminal=False)
    finally:
        root.handlers[:], root.level = before[0], before[1]
        arena.setLevel(before[2])
        structlog.reset_defaults()
        structlog.contextvars.clear_contextvars()
