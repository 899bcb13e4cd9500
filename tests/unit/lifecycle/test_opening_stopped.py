"""Whoever stops a league that is being opened does not wait for its base model."""

import asyncio
import contextlib
import threading
from functools import partial
from pathlib import Path

from league.run import Run
from lifecycle.league_models import make_base_model
from lifecycle.open import _report_from_thread
from schemas.config import LeagueConfig, ModelConfig, Plugin


def test_a_base_model_under_way_is_given_up(tmp_path: Path) -> None:
    run, told = Run(tmp_path), threading.Event()
    endless = ModelConfig(cloning={"sequences": 10**9})
    config = LeagueConfig(game=Plugin(name="nim"), model=endless)

    async def stopped() -> None:
        make = partial(make_base_model, run.model, config)
        making = asyncio.create_task(_report_from_thread(make, lambda text, share: told.set()))
        assert await asyncio.to_thread(told.wait, 300)
        making.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await making
        # Waits for the thread, as the end of a program does.
        await asyncio.wait_for(asyncio.get_running_loop().shutdown_default_executor(), 300)

    asyncio.run(stopped())
    assert not run.model.exists()
