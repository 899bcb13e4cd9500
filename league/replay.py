"""Refolds the history from its first event and compares it with what was recorded.

Ratings are the values that decide something and could be computed wrongly, so they are what is compared: every
``RatingUpdated`` with the refold of its match, bit for bit.
"""

from collections.abc import AsyncIterable, Iterable, Mapping

import msgspec

from league.log.base import Recorded
from league.ratings.fold import RatingFold
from league.state import LeagueState
from schemas.config import LeagueConfig
from schemas.events import RatingChange, RatingUpdated

_KEPT_DIFFERENCES = 100


class Difference(msgspec.Struct, frozen=True):
    """One rating that the refold gives otherwise."""

    sequence: int
    """Of the recorded ``RatingUpdated``."""
    match_id: str
    agent: str
    recorded: float | None
    """Rating after the match; None when the record lacks the agent."""
    refolded: float | None
    """None when the refold does not rate the match, or not the agent."""


class VerifyReport(msgspec.Struct, frozen=True):
    """What came of comparing a history with its refold."""

    events: int
    unknown: int
    """Events of types that this version does not know, or could not decode."""
    sequence: int
    """Of the last event."""
    matches: int
    """Matches played to their end, copies not counted."""
    rated: int
    """Matches whose recorded ratings were compared."""
    pending: int
    """Matches that count and whose ratings are not recorded: the rater has not come to them yet."""
    different: int
    """Ratings that differ."""
    differences: list[Difference]
    """The first 100 of them; after one, later ones mostly follow from it."""
    digest: str
    """Of the state that the history folds to."""

    @property
    def identical(self) -> bool:
        """Whether everything recorded was reproduced bit for bit."""
        return self.different == 0

    def verdict(self) -> str:
        """The comparison in one line."""
        pending = f", {self.pending:,} not rated yet" if self.pending else ""
        word = "identical" if self.identical else f"{self.different:,} DIFFERENCES"
        return f"{self.events:,} events folded, {self.rated:,} rated matches{pending}: {word}"


class Verifier:
    """Takes the events of a history in order; ``report`` tells how they compare at any time.

    Args:
        config: Rules to refold under; None takes those of the history itself, which is what verifying means.
    """

    def __init__(self, config: LeagueConfig | None = None) -> None:
        self._state = LeagueState()
        self._fold = RatingFold(config, follow=config is None)
        self._due: dict[tuple[str, str, str], RatingUpdated] = {}
        self._events = self._unknown = self._rated = self._different = 0
        self._matched_to: dict[tuple[str, str], int] = {}
        self._differences: list[Difference] = []

    def see(self, recorded: Recorded) -> None:
        """Take the next event."""
        self._events += 1
        self._unknown += recorded.event is None
        self._state.apply(recorded.sequence, recorded.event)
        for refolded in self._fold.apply(recorded.sequence, recorded.event):
            self._due[refolded.game, refolded.system, refolded.match_id] = refolded
        if isinstance(recorded.event, RatingUpdated):
            self._compare(recorded.sequence, recorded.event)

    def report(self) -> VerifyReport:
        """What has been found so far."""
        return VerifyReport(
            events=self._events,
            unknown=self._unknown,
            sequence=self._state.sequence,
            matches=self._state.games(),
            rated=self._rated,
            pending=len(self._due),
            different=self._different,
            differences=list(self._differences),
            digest=self._state.digest(),
        )

    def _compare(self, sequence: int, recorded: RatingUpdated) -> None:
        place = (recorded.game, recorded.system)
        if recorded.match_sequence <= self._matched_to.get(place, 0):
            return
        self._matched_to[place] = recorded.match_sequence
        self._rated += 1
        refolded = self._due.pop((*place, recorded.match_id), None)
        said = {c.agent: c for c in recorded.changes}
        found = {c.agent: c for c in refolded.changes} if refolded is not None else {}
        for agent in dict.fromkeys([*said, *found]):
            if said.get(agent) != found.get(agent):
                self._differ(Difference(sequence, recorded.match_id, agent, _after(said, agent), _after(found, agent)))

    def _differ(self, difference: Difference) -> None:
        self._different += 1
        if len(self._differences) < _KEPT_DIFFERENCES:
            self._differences.append(difference)


def _after(changes: Mapping[str, RatingChange], agent: str) -> float | None:
    return changes[agent].after if agent in changes else None


def verify(events: Iterable[Recorded]) -> VerifyReport:
    """Refold a history that is at hand."""
    verifier = Verifier()
    for recorded in events:
        verifier.see(recorded)
    return verifier.report()


async def verify_log(events: AsyncIterable[Recorded]) -> VerifyReport:
    """Refold a history while a log reads it, e.g. that of ``EventLog.read``."""
    verifier = Verifier()
    async for recorded in events:
        verifier.see(recorded)
    return verifier.report()
