"""Reading what a stream holds now goes on after its consumer is lost, a bounded number of times."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from league.log import pull
from league.log.connection import connect
from league.log.jetstream import flush_and_close
from league.log.pull import PulledMessage, present_messages
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from schemas.config import ExperienceConfig
from schemas.errors import LogUnavailableError


@pytest.mark.parametrize("failures", [2, 3])
def test_a_reading_continues_after_lost_consumers_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    session, lost = pull._consumer_session, []

    async def lossy(*arguments: Any) -> AsyncGenerator[list[PulledMessage], None]:
        async with contextlib.aclosing(session(*arguments)) as batches:
            async for batch in batches:
                if len(lost) < failures:
                    lost.append(batch[0].sequence)
                    yield batch[:1]
                    raise pull.ConsumerLostError
                yield batch

    monkeypatch.setattr(pull, "_consumer_session", lossy)

    async def body() -> list[int]:
        with EmbeddedServer(tmp_path / "nats") as server:
            client = await connect(server.url, "test")
            await ensure_streams(client.jetstream(), ExperienceConfig())
            for name in "abcde":
                await client.jetstream().publish(f"metrics.nim.{name}", b"{}")
            try:
                batches = present_messages(client, "METRICS", "metrics.nim.>")
                return [each.sequence async for batch in batches for each in batch]
            finally:
                await flush_and_close(client)

    if failures == 3:
        with pytest.raises(LogUnavailableError, match="did not answer"):
            asyncio.run(body())
    else:
        assert asyncio.run(body()) == [1, 2, 3, 4, 5]
    assert lost == [1, 2, 3][:failures]
