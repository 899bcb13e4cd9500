"""The bounded stream of rollouts between rollout workers and trainers."""

from collections.abc import AsyncIterator

import msgspec
import nats.js.errors
from nats.aio.client import Client

from league.log.connection import REQUEST_TIMEOUT_S, broker_errors
from league.log.pull import Pulled, pull
from schemas.codec import decode_rollout, encode_rollout
from schemas.errors import DecodeError
from schemas.ids import digest
from schemas.subjects import EXPERIENCE_STREAM, experience_subject
from schemas.trajectories import Rollout


class Received(msgspec.Struct, frozen=True):
    """A rollout and its place in the stream."""

    sequence: int
    rollout: Rollout | None
    """None when the message could not be decoded."""
    error: str = ""


class Experience:
    """Rollouts for one league on a broker.

    Args:
        client: A connection; it stays the caller's.
        league: Name of the league.
    """

    def __init__(self, client: Client, league: str) -> None:
        self.league = league
        self._client = client
        self._js = client.jetstream(timeout=REQUEST_TIMEOUT_S)

    async def publish(self, rollout: Rollout) -> str:
        """Hand a rollout to the trainers of its policy; return the digest of what was published.

        Raises:
            BackpressureError: the stream is full; wait until the trainer has caught up, then try again.
        """
        data = encode_rollout(rollout)
        headers = {"Nats-Msg-Id": f"{self.league}:{rollout.match_id}:{rollout.seat}"}
        with broker_errors(f"publishing the rollout of {rollout.match_id}"):
            await self._js.publish(experience_subject(self.league, rollout.policy), data, headers=headers)
        return digest(data)

    async def follow(self, policy: str, first: int) -> AsyncIterator[Received]:
        """Rollouts of ``policy`` from sequence ``first`` on, for ever."""
        subject = experience_subject(self.league, policy)
        async for messages in pull(self._client, EXPERIENCE_STREAM, subject, first, None):
            for pulled in messages:
                yield _received(pulled)

    async def forget_through(self, policy: str, sequence: int) -> None:
        """Drop rollouts of ``policy`` up to ``sequence``, which the trainer's saved state has accounted for."""
        with broker_errors(f"purging {EXPERIENCE_STREAM}"):
            try:
                await self._js.purge_stream(
                    EXPERIENCE_STREAM, seq=sequence + 1, subject=experience_subject(self.league, policy)
                )
            except nats.js.errors.NotFoundError:
                return


def _received(pulled: Pulled) -> Received:
    try:
        return Received(pulled.sequence, decode_rollout(pulled.msg.data))
    except DecodeError as error:
        return Received(pulled.sequence, None, str(error))
