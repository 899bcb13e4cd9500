"""Replay of a history from its first event: its contents, and whether the recorded ratings are reproducible.

Ratings decide matchmaking and could be computed wrongly, so they are compared bit for bit: every ``RatingUpdated``
with the refold of its match, and every ``RatingsCorrected`` with a refold that leaves the voided matches out.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from league.log.base import EventLog, RecordedEvent
from league.ratings.fold import RatingFold
from league.state import LeagueState
from schemas.codec import UnknownEventError
from schemas.config import LeagueConfig
from schemas.events import AgentRating, MatchVoided, RatingChange, RatingsCorrected, RatingUpdated

_KEPT_DIFFERENCES = 100
_PROGRESS_EVENTS = 500
_CORRECTION = b'{"type":"RatingsCorrected"'


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
    """Empty for a correction."""
    agent: str
    """Empty where a correction was not due, or differs in a field other than the ratings."""
    recorded: float | None
    """Recorded rating after the match; None when the event lacks the agent."""
    refolded: float | None
    """None when the refold does not rate the match or the agent."""
    system: str = ""
    recorded_rest: list[float] = []
    """The deviation and other state of the system; empty when ``recorded`` is None."""
    refolded_rest: list[float] = []

    def __str__(self) -> str:
        what = f"match {self.match_id}" if self.match_id else "correction"
        where = f"event {self.sequence}, {what}"
        if not self.agent:
            return f"{where}: not what the voided matches before it call for"
        where += f", {self.agent} under {self.system}"
        if self.recorded != self.refolded or self.recorded is None:
            return f"{where}: recorded {self.recorded}, refolded {self.refolded}"
        if self.recorded_rest[:1] != self.refolded_rest[:1]:
            digests = [rest[0] if rest else None for rest in (self.recorded_rest, self.refolded_rest)]
            return f"{where}: deviation recorded {digests[0]}, refolded {digests[1]}; the ratings agree"
        if self.recorded_rest != self.refolded_rest:
            return f"{where}: recorded {self.recorded_rest} beside the rating, refolded {self.refolded_rest}"
        return f"{where}: the rating agrees; what it was before, or the number of games, does not"


NOT_CHECKED = (
    "results and draws themselves (league match resimulate, league matchmaking audit)",
    "seals, references and blobs (league verify)",
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

    def scope(self) -> str:
        """Scope of the comparison, in two lines: events compared and events left out."""
        systems = ", ".join(f"{what} to event {through:,}" for what, through in self.compared.items()) or "no ratings"
        unknown = [f"{self.unknown:,} events that this version cannot decode"] if self.unknown else []
        unrated = [f"{self.pending:,} matches and corrections not rated yet"] if self.pending else []
        return (
            f"compared bit for bit: {systems}; folded to event {self.sequence:,}\n"
            f"not checked: {'; '.join([*unrated, *unknown, *self.not_checked])}"
        )


class RatingVerifier:
    """Comparison of a history's events, in order, with their refold; ``report`` may be called at any time.

    ``config`` has the rules of the refold; None, as verification requires, for those of the history. ``voids`` says
    where the history's matches were voided. ``corrected`` has the last sequences that its corrections cover: each needs
    another refold beside the main one.
    """

    def __init__(
        self, config: LeagueConfig | None = None, voids: Mapping[str, int] | None = None, corrected: Iterable[int] = ()
    ) -> None:
        self._replay = HistoryReplay()
        self._fold = RatingFold(config, follow=config is None)
        self._refolds = {
            through: RatingFold(skip={match for match, at in (voids or {}).items() if at <= through})
            for through in corrected
        }
        self._pending_updates: dict[tuple[str, str, str], RatingUpdated] = {}
        self._first_due: dict[tuple[str, str, int], int] = {}
        """By game, system and void: sequence of the oldest match that a correction through that void leaves out."""
        self._rated = self._corrections = self._different = 0
        self._compared_through: dict[tuple[str, str], int] = {}
        self._differences: list[RatingDifference] = []

    def apply(self, recorded: RecordedEvent) -> None:
        """Apply the next event."""
        self._replay.apply(recorded)
        for through, refold in self._refolds.items():
            if recorded.sequence <= through:
                refold.apply(recorded.sequence, recorded.event)
        event = recorded.event
        if isinstance(event, RatingsCorrected):
            event = self._check_correction(recorded.sequence, event)
        for refolded in self._fold.apply(recorded.sequence, event):
            self._pending_updates[refolded.game, refolded.system, refolded.match_id] = refolded
        if isinstance(event, MatchVoided):
            # A later void of an older match may come between a correction and its recording.
            for place, due in self._fold.pending_corrections.items():
                self._first_due[*place, due.through] = due.first
        if isinstance(event, RatingUpdated):
            place = (event.game, event.system)
            if event.match_sequence > self._compared_through.get(place, 0):
                self._compared_through[place] = event.match_sequence
                self._rated += 1
                update = self._pending_updates.pop((*place, event.match_id), None)
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
            pending=len(self._pending_updates) + len(self._fold.pending_corrections),
            different=self._different,
            differences=list(self._differences),
            digest=replay.digest,
            compared={f"{system} of {game}": at for (game, system), at in self._compared_through.items()},
        )

    def _check_correction(self, sequence: int, recorded: RatingsCorrected) -> RatingsCorrected | None:
        """Returns the expected correction, so that later events are compared with the right ratings."""
        place = (recorded.game, recorded.system)
        if recorded.through <= self._compared_through.get(place, 0):
            return None
        self._corrections += 1
        due, refold = self._fold.pending_corrections.get(place), self._refolds.get(recorded.through)
        if due is None or refold is None or recorded.through > due.through:
            self._add_difference(RatingDifference(sequence, "", "", None, None))
            return None
        self._compared_through[place] = recorded.through
        right = refold.rated_agents(*place)
        are_equal = self._compare(sequence, "", recorded.system, recorded.ratings, right)
        expected = self._first_due.get((*place, recorded.through)), refold.skipped_counts.get(place, 0)
        itself = (recorded.first, recorded.voided) == expected
        if not itself or (are_equal and recorded.ratings != right):
            self._add_difference(RatingDifference(sequence, "", "", None, None))
        return msgspec.structs.replace(recorded, ratings=right)

    def _compare(
        self,
        sequence: int,
        match_id: str,
        system: str,
        recorded: Sequence[RatingChange | AgentRating],
        refolded: Sequence[RatingChange | AgentRating],
    ) -> bool:
        """Note the agents whose recorded and refolded ratings differ; returns whether there are none."""
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
    verifier = _make_verifier(events)
    for recorded in events:
        verifier.apply(recorded)
    return verifier.report()


async def verify_log(
    history: EventLog, until: int | None = None, on_progress: Callable[[int], None] | None = None
) -> VerifyReport:
    """Refold and compare a history, voids and corrections first; ``on_progress`` gets the number of events folded."""
    last = await history.last_sequence() if until is None else until
    few = [recorded async for recorded in history.read(1, last, only=MatchVoided)]
    if few:
        newest = history.read(1, last, only=RatingsCorrected)
        few += [recorded async for recorded in newest if recorded.payload.startswith(_CORRECTION)]
    verifier = _make_verifier(few)
    async for recorded in history.read(1, last):
        verifier.apply(recorded)
        if on_progress is not None and recorded.sequence % _PROGRESS_EVENTS == 0:
            on_progress(recorded.sequence)
    return verifier.report()


def _make_verifier(events: Iterable[RecordedEvent]) -> RatingVerifier:
    voids: dict[str, int] = {}
    corrected: list[int] = []
    for recorded in events:
        if isinstance(recorded.event, MatchVoided):
            voids.setdefault(recorded.event.match.match_id, recorded.sequence)
        elif isinstance(recorded.event, RatingsCorrected):
            corrected.append(recorded.event.through)
    return RatingVerifier(voids=voids, corrected=corrected)
