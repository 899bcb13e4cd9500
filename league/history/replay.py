"""Replay of a history from its first event: its contents, and whether the recorded ratings are reproducible.

Ratings decide matchmaking and could be computed wrongly, so they are compared bit for bit: every ``RatingUpdated``
with the refold of its match, and every ``RatingsCorrected`` with a refold without the voided matches.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from league.log.base import EventLog, RecordedEvent
from league.ratings.fold import RatingFold
from league.state import LeagueState
from schemas.codec import UnknownEventError
from schemas.events import AgentRating, Event, MatchVoided, RatingChange, RatingsCorrected, RatingUpdated

_KEPT_DIFFERENCES = 100
_PROGRESS_EVENTS = 500


class ReplayReport(msgspec.Struct, frozen=True):
    """Contents of a history up to a sequence. Equal histories give equal reports."""

    events: int
    sequence: int
    """Sequence of the last event."""
    time_ns: int
    """Time of the last event."""
    matches: int
    """Completed matches that count: copies and voided ones do not."""
    voided: int
    failed: int
    agents: int
    steps: dict[str, int]
    """Newest gradient step, by policy."""
    unknown: dict[str, int]
    """Number of events of types unknown to this version, by type."""
    undecodable: int
    digest: str
    """Digest of the folded state."""


class HistoryReplay:
    """A replay of a history's events in order; ``report`` may be called at any time."""

    def __init__(self) -> None:
        self.state = LeagueState()
        self._events = self._undecodable = self._time_ns = 0
        self._unknown: Counter[str] = Counter()

    def apply(self, recorded: RecordedEvent) -> None:
        """Apply the next event."""
        self._events += 1
        self._time_ns = recorded.time_ns
        if isinstance(recorded.error, UnknownEventError):
            self._unknown[str(msgspec.json.decode(recorded.payload, type=dict)["type"])] += 1
        elif recorded.error is not None:
            self._undecodable += 1
        self.state.apply(recorded.sequence, recorded.event)

    def report(self) -> ReplayReport:
        """Report on the events so far."""
        steps = {policy: self.state.last_step(policy) for policy in self.state.policies}
        return ReplayReport(
            events=self._events,
            sequence=self.state.sequence,
            time_ns=self._time_ns,
            matches=self.state.finished_matches(),
            voided=len(self.state.voided),
            failed=self.state.failed,
            agents=len(self.state.agents),
            steps={policy: 0 if step is None else step.step for policy, step in steps.items()},
            unknown=dict(sorted(self._unknown.items())),
            undecodable=self._undecodable,
            digest=self.state.digest(),
        )


async def replay_log(history: EventLog, until: int | None = None) -> ReplayReport:
    """Fold a history up to a sequence, by default up to its newest event when the call was made."""
    replay = HistoryReplay()
    async for recorded in history.read(1, until):
        replay.apply(recorded)
    return replay.report()


class RatingDifference(msgspec.Struct, frozen=True):
    """A difference between an agent's recorded and refolded rating, or other state of its rating system."""

    sequence: int
    """Sequence of the recorded ``RatingUpdated`` or ``RatingsCorrected``."""
    match_id: str
    """Rated match; empty for a correction."""
    agent: str
    """Agent with another rating; empty if a correction was not due, or differs in another field."""
    recorded: float | None
    """Recorded rating after the match; None when the event lacks the agent."""
    refolded: float | None
    """Rating by the refold; None if it does not rate the match or the agent."""
    system: str = ""
    recorded_rest: list[float] = []
    """The deviation and other state of the system; empty when ``recorded`` is None."""
    refolded_rest: list[float] = []

    def __str__(self) -> str:
        what = f"match {self.match_id}" if self.match_id else "correction"
        where = f"event {self.sequence}, {what}"
        if not self.agent:
            return f"{where}: does not match the voided matches before it"
        where += f", {self.agent} under {self.system}"
        if self.recorded != self.refolded or self.recorded is None:
            return f"{where}: recorded {self.recorded}, refolded {self.refolded}"
        if self.recorded_rest[:1] != self.refolded_rest[:1]:
            digests = [rest[0] if rest else None for rest in (self.recorded_rest, self.refolded_rest)]
            return f"{where}: deviation recorded {digests[0]}, refolded {digests[1]}; the ratings agree"
        if self.recorded_rest != self.refolded_rest:
            return f"{where}: recorded {self.recorded_rest} beside the rating, refolded {self.refolded_rest}"
        return f"{where}: the rating agrees, but the previous rating or the number of games does not"


NOT_CHECKED = (
    "results and draws themselves (league match show --again, league match explain)",
    "archive and blobs (league verify)",
)
"""Scope of the comparison: what it takes as recorded."""


class VerifyReport(msgspec.Struct, frozen=True):
    """The comparison of a history with its refold."""

    events: int
    unknown: int
    """Events of unknown types, or that could not be decoded."""
    sequence: int
    """Sequence of the last event."""
    matches: int
    """Completed matches that count."""
    rated: int
    """Matches whose recorded ratings were compared."""
    corrections: int
    pending: int
    """Matches and corrections whose ratings are not recorded yet."""
    different: int
    differences: list[RatingDifference]
    """The first 100; later ones mostly follow from the first."""
    digest: str
    """Digest of the folded state."""
    compared: dict[str, int] = {}
    """Sequence of the newest match or void whose recorded ratings were compared, by rating system and game."""
    not_checked: Sequence[str] = NOT_CHECKED

    @property
    def is_identical(self) -> bool:
        """Whether everything recorded was reproduced bit for bit."""
        return self.different == 0

    def summary(self) -> str:
        """The comparison in one line."""
        plural = "s" if self.corrections > 1 else ""
        corrected = f", {self.corrections:,} correction{plural}" if self.corrections else ""
        pending = f", {self.pending:,} not rated yet" if self.pending else ""
        word = "identical" if self.is_identical else f"{self.different:,} DIFFERENCES"
        return f"{self.events:,} events folded, {self.rated:,} rated matches{corrected}{pending}: {word}"

    def scope(self) -> tuple[str, str]:
        """Scope of the comparison, a line each: events compared and events left out."""
        systems = ", ".join(f"{what} to event {through:,}" for what, through in self.compared.items()) or "no ratings"
        unknown = [f"{self.unknown:,} events that this version cannot decode"] if self.unknown else []
        unrated = [f"{self.pending:,} matches and corrections not rated yet"] if self.pending else []
        return (
            f"compared bit for bit: {systems}; folded to event {self.sequence:,}",
            f"not checked: {'; '.join([*unrated, *unknown, *self.not_checked])}",
        )


class RatingVerifier:
    """Comparison of a history's events, in order, with their refold; ``report`` may be called at any time."""

    def __init__(self) -> None:
        self._replay = HistoryReplay()
        self._fold = RatingFold()
        self._due: set[tuple[str, str, int]] = set()
        """Game, system and void of every correction that was due; a later void may come before its recording."""
        self._pending_updates: dict[tuple[str, str, str], RatingUpdated] = {}
        self._rated = self._corrections = self._different = 0
        self._compared_through: dict[tuple[str, str], int] = {}
        self._differences: list[RatingDifference] = []

    def begin_refold(self, event: Event | None) -> tuple[RatingFold | None, int]:
        """Begin the refold that the next event needs, if any: an empty fold, and the last sequence to fold into it."""
        if isinstance(event, RatingsCorrected) and (event.game, event.system, event.through) in self._due:
            return self._fold.begin_refold(event.through), event.through
        return None, 0

    def apply(self, recorded: RecordedEvent, refold: RatingFold | None = None) -> None:
        """Apply the next event; ``refold`` is what ``begin_refold`` gave for it, folded."""
        self._replay.apply(recorded)
        event = recorded.event
        if isinstance(event, RatingsCorrected):
            event = self._check_correction(recorded.sequence, event, refold)
        for refolded in self._fold.apply(recorded.sequence, event):
            self._pending_updates[refolded.game, refolded.system, refolded.match_id] = refolded
        if isinstance(event, MatchVoided):
            self._due.update((*key, through) for key, through in self._fold.due_corrections.items())
        if isinstance(event, RatingUpdated):
            key = (event.game, event.system)
            if event.match_sequence > self._compared_through.get(key, 0):
                self._compared_through[key] = event.match_sequence
                self._rated += 1
                update = self._pending_updates.pop((*key, event.match_id), None)
                changes = update.changes if update is not None else []
                self._compare(recorded.sequence, event.match_id, event.system, event.changes, changes)

    def report(self) -> VerifyReport:
        """Report on the events so far."""
        replay = self._replay.report()
        return VerifyReport(
            events=replay.events,
            unknown=sum(replay.unknown.values()) + replay.undecodable,
            sequence=replay.sequence,
            matches=replay.matches,
            rated=self._rated,
            corrections=self._corrections,
            pending=len(self._pending_updates) + len(self._fold.due_corrections),
            different=self._different,
            differences=list(self._differences),
            digest=replay.digest,
            compared={f"{system} of {game}": at for (game, system), at in self._compared_through.items()},
        )

    def _check_correction(
        self, sequence: int, recorded: RatingsCorrected, refold: RatingFold | None
    ) -> RatingsCorrected | None:
        """The expected correction, so that later events are compared with the right ratings; None for a duplicate."""
        key = (recorded.game, recorded.system)
        if recorded.through <= self._compared_through.get(key, 0):
            return None
        self._corrections += 1
        if refold is None:
            self._add_difference(RatingDifference(sequence, "", "", None, None))
            return None
        self._compared_through[key] = recorded.through
        expected = self._fold.make_correction(key, recorded.through, refold)
        are_equal = self._compare(sequence, "", recorded.system, recorded.ratings, expected.ratings)
        if are_equal and recorded != expected:
            self._add_difference(RatingDifference(sequence, "", "", None, None))
        return expected

    def _compare(
        self,
        sequence: int,
        match_id: str,
        system: str,
        recorded: Sequence[RatingChange | AgentRating],
        refolded: Sequence[RatingChange | AgentRating],
    ) -> bool:
        """Note the agents whose recorded and refolded ratings differ; True if there are none."""
        before, after = ({rated.agent: rated for rated in ratings} for ratings in (recorded, refolded))
        wrong = [agent for agent in dict.fromkeys([*before, *after]) if before.get(agent) != after.get(agent)]
        for agent in wrong:
            (rating, *rest), (right, *right_rest) = map(_state_numbers, (before.get(agent), after.get(agent)))
            self._add_difference(RatingDifference(sequence, match_id, agent, rating, right, system, rest, right_rest))
        return not wrong

    def _add_difference(self, difference: RatingDifference) -> None:
        self._different += 1
        if len(self._differences) < _KEPT_DIFFERENCES:
            self._differences.append(difference)


def _state_numbers(of: RatingChange | AgentRating | None) -> list[Any]:
    """The rating, None without one, and the other numbers that a system keeps of an agent."""
    if of is None:
        return [None]
    return [of.after if isinstance(of, RatingChange) else of.rating, *of.rest]


def verify_events(events: Sequence[RecordedEvent]) -> VerifyReport:
    """Refold and compare a history in memory."""
    verifier = RatingVerifier()
    for recorded in events:
        refold, through = verifier.begin_refold(recorded.event)
        if refold is not None:
            for earlier in events:
                if earlier.sequence <= through:
                    refold.apply(earlier.sequence, earlier.event)
        verifier.apply(recorded, refold)
    return verifier.report()


async def verify_log(
    history: EventLog, until: int | None = None, on_progress: Callable[[int], None] | None = None
) -> VerifyReport:
    """Refold and compare a history; ``on_progress`` gets the number of events folded."""
    verifier = RatingVerifier()
    async for recorded in history.read(1, until):
        refold, through = verifier.begin_refold(recorded.event)
        if refold is not None:
            async for earlier in history.read(1, through):
                refold.apply(earlier.sequence, earlier.event)
        verifier.apply(recorded, refold)
        if on_progress is not None and recorded.sequence % _PROGRESS_EVENTS == 0:
            on_progress(recorded.sequence)
    return verifier.report()
