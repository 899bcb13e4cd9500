"""Commands of a league's operator: to void a match, pause the league, change a setting, retire an agent."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from league.log.connection import translate_broker_errors
from league.log.jetstream import SCHEMA_HEADER, JetStreamLog
from league.log.publisher import ID_HEADER
from league.run import Run
from lifecycle import control
from lifecycle.void_matches import void_matches
from schemas import events as e
from schemas.codec import SCHEMA_VERSION
from schemas.subjects import event_subject

SETTINGS = (
    "rollout.games_in_flight=2",
    "rollout.ahead_steps=0.5",
    "evaluation.every=3",
    "evaluation.gatekeeper_games=4",
    "trainer.rollouts_per_step=6",
    "history.archive_events=150",
)
"""Values that differ from those of the league; a worker takes each one at once, or when it is started again."""
_RETIRED = "random_bot"
HUGE_BYTES = 2 * e.Event.MAX_BYTES
_LATE_SHARE = 1 / 3
"""Share of the changed settings that are changed as training finishes."""

Command = Callable[[Run, JetStreamLog, float, float], Coroutine[Any, Any, None]]
"""A command by a connection: seconds that its effect lasts, and a share in [0, 1) that selects what it is about."""


async def _void(run: Run, history: JetStreamLog, seconds: float, share: float) -> None:
    """Void a match that has a result."""
    results = [r for r in [r async for r in history.read()] if isinstance(r.event, e.MatchFinished)]
    if results:
        chosen = results[int(share * len(results))]
        assert isinstance(chosen.event, e.MatchFinished)
        await void_matches(run, history, [chosen.sequence], "simulated")


async def _pause(run: Run, history: JetStreamLog, seconds: float, share: float) -> None:
    """Pause the league for a while."""
    await control.append_decision(run, history, e.LeaguePaused, lambda state: control.pause(state, "", "simulated"))
    await asyncio.sleep(seconds)
    await control.append_decision(run, history, e.LeagueResumed, lambda state: control.resume(state, "", "simulated"))


async def _configure(run: Run, history: JetStreamLog, seconds: float, share: float) -> None:
    """Change a setting; one time in three once training has finished, as its workers end."""
    place, rest = divmod(share * len(SETTINGS), 1.0)
    setting = SETTINGS[int(place)]
    if rest < _LATE_SHARE:
        async for recorded in history.follow(1):
            # An operator of the older version cannot read events of the newer one.
            if recorded.event is None or isinstance(recorded.event, e.TrainingFinished):
                break
    await control.append_decision(run, history, e.LeagueConfigured, lambda state: control.configure(state, [setting]))


async def _retire(run: Run, history: JetStreamLog, seconds: float, share: float) -> None:
    """Retire an agent for a while."""
    reason = "simulated"
    await control.append_decision(run, history, e.AgentRetired, lambda state: control.retire(state, _RETIRED, reason))
    await asyncio.sleep(seconds)
    await control.append_decision(
        run, history, e.AgentActivated, lambda state: control.activate(state, _RETIRED, reason)
    )


async def _huge_event(run: Run, history: JetStreamLog, seconds: float, share: float) -> None:
    """Publish, past our own writers, an event that is larger than those of its type may be."""
    failed = e.MatchFailed(match_id=f"huge-{share}", purpose="training", worker="stranger", error="x" * HUGE_BYTES)
    subject, headers = event_subject(history.league, failed), {SCHEMA_HEADER: str(SCHEMA_VERSION)}
    # The broker acknowledges a repetition as a duplicate.
    headers |= {ID_HEADER: failed.key}
    with translate_broker_errors("publishing as a stranger"):
        await history.client.jetstream().publish(subject, msgspec.json.encode(failed), headers=headers)


COMMANDS: dict[str, Command] = {
    "void": _void,
    "pause": _pause,
    "configure": _configure,
    "retire": _retire,
    "huge_event": _huge_event,
}
