"""Who pauses: the whole league, or single policies, because somebody said so."""

import msgspec

from schemas.events import LeaguePaused, LeagueResumed


class Pause(msgspec.Struct, frozen=True):
    """The last word on whether a policy, or all of the league, pauses."""

    sequence: int
    """Of the event."""
    is_paused: bool
    reason: str


_NEVER = Pause(0, is_paused=False, reason="")


class Pauses:
    """The last words by policy; under the empty name that on the whole league."""

    def __init__(self, last: dict[str, Pause] | None = None) -> None:
        self._last = {} if last is None else last

    def last(self, policy: str) -> Pause:
        """The last word on a policy alone, or with an empty name on the league; at sequence 0 for none."""
        return self._last.get(policy, _NEVER)

    def change(self, sequence: int, event: LeaguePaused | LeagueResumed) -> None:
        """Take in a word; one that was said of another state of affairs is a copy, or came too late."""
        before, pauses = self.last(event.policy), isinstance(event, LeaguePaused)
        if event.after == before.sequence and pauses != before.is_paused:
            self._last[event.policy] = Pause(sequence, pauses, event.reason)

    def of(self, policy: str) -> Pause | None:
        """Why a policy pauses: the league's pause before its own; None when it goes on."""
        return next((last for last in (self.last(""), self.last(policy)) if last.is_paused), None)

    def all(self) -> dict[str, Pause]:
        """Every pause that lasts, by policy; the whole league's under the empty name, and first."""
        return {policy: last for policy, last in sorted(self._last.items()) if last.is_paused}

    def saved(self) -> dict[str, Pause]:
        """Everything, for a snapshot."""
        return self._last
