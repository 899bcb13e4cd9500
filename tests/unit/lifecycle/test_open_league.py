"""Opening a league: while its base model is made, and by two processes at once."""

import asyncio
import threading
from functools import partial
from pathlib import Path

import msgspec
import pytest
from nats.aio.client import Client

from arena.games import make_game
from league.run import Run
from lifecycle import control, open
from models import BaseShape, make_base
from schemas import events as e
from schemas.config import LeagueConfig, Plugin, convert
from schemas.errors import ModelError
from schemas.subjects import EXPERIENCE_STREAM

SHAPE = BaseShape(hidden=32, layers=1, heads=2, kv_heads=2, head_dim=16, mlp=48)


def test_the_connection_is_served_while_a_model_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = threading.Event()

    def make(*_: object) -> None:
        raise ModelError("served" if served.wait(300) else "the connection waited for the model")

    async def opened() -> None:
        asyncio.get_running_loop().call_later(0.01, served.set)
        await open._locate_base_model(Run(tmp_path), Client(), LeagueConfig(), lambda *_: None, make_model=True)

    monkeypatch.setattr(open, "make_base_model", make)
    with pytest.raises(ModelError, match="served"):
        asyncio.run(opened())


def test_of_two_processes_that_open_a_league_one_does_and_the_other_finds_it_open(tmp_path: Path) -> None:
    """Both see no league before either has recorded one; the second one's settings are a change of the first one's."""

    async def body() -> list[type[e.Event]]:
        run, config = Run(tmp_path), convert({"name": "nim", "game": {"name": "nim"}}, LeagueConfig, "test")
        make_base(run.model, make_game("nim", {}).text().vocabulary(), SHAPE, seed=1)
        other = msgspec.structs.replace(config, ratings=msgspec.structs.replace(config.ratings, purposes=["training"]))
        async with run.connect("one") as client:
            # In the model's place: the moment between the look for a league and its first event.
            both, arrived = asyncio.Event(), []
            locate = open._locate_base_model

            async def locate_at_once(*arguments: object) -> str:
                arrived.append(1)
                if len(arrived) == 2:
                    both.set()
                await both.wait()
                return await locate(*arguments)  # type: ignore[arg-type]

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(open, "_locate_base_model", locate_at_once)
                settings = (config, config, other)
                logs = await asyncio.gather(
                    *(open.open_league(run, client, each, lambda *_: None) for each in settings)
                )
            return [type(r.event) async for r in logs[0].read()]

    kinds = asyncio.run(asyncio.wait_for(body(), 300))
    assert kinds.count(e.LeagueOpened) == 1
    assert kinds.count(e.LeagueConfigured) == 1
    assert kinds.count(e.AgentRegistered) == len(LeagueConfig(game=Plugin("nim")).agents)


def test_settings_that_let_more_trajectories_wait_reach_the_broker_of_an_open_league(tmp_path: Path) -> None:
    """Or a step larger than the limit would wait for trajectories that the broker refuses."""

    def limited(most: int) -> LeagueConfig:
        tables = {"name": "nim", "game": {"name": "nim"}, "experience": {"max_messages": most}}
        return convert(tables, LeagueConfig, "test")

    async def limits() -> list[int | None]:
        run, found = Run(tmp_path), []
        make_base(run.model, make_game("nim", {}).text().vocabulary(), SHAPE, seed=1)
        async with run.connect("one") as client:
            for most in (280, 512, 300):
                await open.open_league(run, client, limited(most), lambda *_: None)
                info = await client.jetstream().stream_info(EXPERIENCE_STREAM)
                found.append(info.config.max_msgs_per_subject)
            history = await open.open_league(run, client, None, lambda *_: None)
            change = partial(control.configure, settings=["experience.max_messages=5000"])
            await control.append_decision(run, history, e.LeagueConfigured, change)
            found.append((await client.jetstream().stream_info(EXPERIENCE_STREAM)).config.max_msgs_per_subject)
        return found

    # Other leagues of the broker share the stream, so nothing lowers it.
    assert asyncio.run(asyncio.wait_for(limits(), 300)) == [280, 512, 512, 5000]
