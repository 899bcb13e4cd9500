"""Who begins atomic batches and never commits them: each costs the broker as much as one that it stores.

No limit of a broker is by identity, so that batches left open hold up everybody's. A broker says which of them it gave
up, but not whose they were; the subjects on which they began do.
"""

import asyncio
from collections import Counter

from nats.aio.client import Client
from nats.aio.msg import Msg

from schemas.standings import Alarm
from schemas.subjects import LEAGUE_STREAM

_ABANDONED = f"$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.{LEAGUE_STREAM}"
_FEW = 10
"""Abandoned batches between two checks, and open ones a second of a worker, that a lost connection may explain."""
_LISTEN_S = 2.0


class OpenBatchWatch:
    """Counts abandoned batches on a connection with an operator's permissions, and finds who leaves them open."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._abandoned = 0

    async def start(self) -> None:
        """Begin to count."""

        async def count(_: Msg) -> None:
            self._abandoned += 1

        await self._client.subscribe(_ABANDONED, cb=count)

    async def find(self) -> list[Alarm]:
        """An alarm for each worker that leaves many open; listens for two seconds if many were abandoned since."""
        abandoned, self._abandoned = self._abandoned, 0
        if abandoned < _FEW:
            return []
        open_batches: Counter[tuple[str, str]] = Counter()

        async def count(message: Msg) -> None:
            headers, (_, league, *_, worker) = message.headers or {}, message.subject.split(".")
            if "Nats-Batch-Id" in headers:
                open_batches[league, worker] += headers.get("Nats-Batch-Sequence") == "1"
                open_batches[league, worker] -= "Nats-Batch-Commit" in headers

        listening = await self._client.subscribe("league.*.>", cb=count)
        await asyncio.sleep(_LISTEN_S)
        await listening.unsubscribe()
        return [
            Alarm(
                f"open_batches:{worker}",
                f"{worker} leaves atomic batches open in {league}, {count / _LISTEN_S:.0f} a second, which holds up "
                f"all appends (league auth revoke {worker})",
            )
            for (league, worker), count in sorted(open_batches.items())
            if count > _FEW * _LISTEN_S
        ]
