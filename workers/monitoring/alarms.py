"""Reports a league's alarms when they begin and end: to the log, the terminal and a webhook."""

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from league.log.open_batches import OpenBatchWatch
from league.queries.status import detect_alarms, read_status
from players.remote.http_client import HttpClient, RequestFailedError
from schemas.config import AlarmsConfig, parse_http_url
from schemas.errors import ConfigError, LogError
from schemas.loggers import get_logger
from schemas.metrics import HEARTBEAT_S
from schemas.retry import Backoff
from schemas.standings import Alarm

if TYPE_CHECKING:
    from workers.runtime import Context

log = get_logger()

AlarmListener = Callable[[str, Alarm], None]
"""Called with ``began`` or ``over``, and the alarm."""


class AlarmWatcher:
    """Reports each alarm once when it begins and once when it ends."""

    def __init__(self, listener: AlarmListener) -> None:
        self._notify = listener
        self._active: dict[str, Alarm] = {}

    def update(self, alarms: list[Alarm]) -> None:
        """Compare with the alarms that are active now, and report the changes."""
        names = {alarm.name for alarm in alarms}
        for alarm in alarms:
            if alarm.name not in self._active:
                log.error("alarm", alarm=alarm.name, text=alarm.text)
                self._notify("began", alarm)
        for name, alarm in self._active.items():
            if name not in names:
                log.info("alarm is over", alarm=name)
                self._notify("over", alarm)
        self._active = {alarm.name: alarm for alarm in alarms}


async def watch_alarms(context: "Context", announce: Callable[[str], None]) -> None:
    """Check for alarms every ``HEARTBEAT_S``, until cancelled; keeps trying while the status cannot be read.

    ``announce`` is called with one line for each alarm that begins or ends; raises as ``resolve_webhook_url``.
    """
    url = resolve_webhook_url(context.config.alarms)
    hook = Webhook(url, context.log.league) if url else None

    def report(state: str, alarm: Alarm) -> None:
        announce(f"alarm {alarm.name}: {alarm.text}" if state == "began" else f"alarm {alarm.name} is over")
        if hook is not None:
            hook.enqueue(state, alarm)

    watch = AlarmWatcher(report)
    sending = asyncio.create_task(hook.run()) if hook is not None else None
    last_error = ""
    batches = OpenBatchWatch(context.client)
    await batches.start()
    try:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            try:
                left_open = await batches.find()
                status = await read_status(context.log, context.state, run=context.run)
                watch.update(left_open + detect_alarms(status, context.state))
            except LogError:
                continue
            except Exception as error:  # what cannot be measured must not end the league that is watched
                if str(error) != last_error:
                    last_error = str(error)
                    log.warning("alarms are not checked", error=last_error, exc_info=True)
    finally:
        if sending is not None:
            sending.cancel()


_MAX_QUEUED = 100
"""Queue length; while it is full, new notices are dropped."""
_MAX_PAUSE_S = 60.0
_TIMEOUT_S = 10.0
"""Time limit for one notice, from connecting to the end of the response."""
_MAX_BODY_BYTES = 65_536
_BODY_TIMEOUT_S = 1.0
"""Limits for reading a response body. Only the status matters; the body is read so that the connection is reused."""


def resolve_webhook_url(config: AlarmsConfig) -> str:
    """The webhook's address; empty if none is configured; ``ConfigError`` if the configured variable holds none."""
    if not config.webhook_variable:
        return config.webhook
    url = os.environ.get(config.webhook_variable, "")
    if parse_http_url(url) is None:
        # Its value may be a secret and is not quoted.
        raise ConfigError(
            f"alarms.webhook_variable: {config.webhook_variable} holds no address here; expected https://…"
        )
    return url


class Webhook:
    """Posts notices to one server.

    Its URL may hold a secret: logs name only its host. The second of several ``tries`` comes after a pause, doubled for
    each further one.
    """

    def __init__(self, url: str, league: str, tries: int = 8, first_pause_s: float = 1.0) -> None:
        self._url = url
        self._host = urlsplit(url).hostname or ""
        self._league = league
        self._tries = tries
        self._first_pause_s = first_pause_s
        self._queue: asyncio.Queue[dict[str, str]] = asyncio.Queue(_MAX_QUEUED)

    def enqueue(self, state: str, alarm: Alarm) -> None:
        """Queue a notice; returns at once."""
        try:
            # Chat servers show a field named text.
            text = f"{self._league}: {alarm.text}"
            self._queue.put_nowait({"league": self._league, "state": state, "alarm": alarm.name, "text": text})
        except asyncio.QueueFull:
            log.warning("an alarm is not posted: too many wait", host=self._host, alarm=alarm.name)

    async def run(self) -> None:
        """Post queued notices; runs until cancelled."""
        client = HttpClient(_TIMEOUT_S, max_body_bytes=_MAX_BODY_BYTES, body_timeout_s=_BODY_TIMEOUT_S)
        try:
            while True:
                await self._post(client, await self._queue.get())
        finally:
            await client.close()

    async def _post(self, client: HttpClient, notice: dict[str, str]) -> None:
        backoff = Backoff(self._first_pause_s, _MAX_PAUSE_S)
        why = ""
        for tried in range(1, self._tries + 1):
            try:
                answer = await client.send("POST", self._url, msgspec.json.encode(notice))
                if answer.is_success:
                    return
                why = f"it answered {answer.status}"
            except RequestFailedError as error:
                why = str(error)
            except Exception as error:  # alarms must not end the process that raises them
                why = type(error).__name__
            if tried < self._tries:
                await asyncio.sleep(backoff.next_s())
        log.warning("an alarm could not be posted", host=self._host, alarm=notice["alarm"], tries=self._tries, why=why)
