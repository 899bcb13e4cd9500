"""The snapshot form of the state, and its smaller parts: spending, pauses, workers, sessions."""

from itertools import islice
from math import isfinite
from sys import float_info
from typing import Any

import msgspec

from league.fold_primitives import SeenIdsSnapshot
from league.ratings.fold import RatingTableSnapshot
from league.state.artifacts import ArtifactsSnapshot
from league.state.consumption import ConsumptionSnapshot, MatchesInPlay
from league.state.evaluation_table import Evaluation
from league.state.novelty import NgramCounts
from league.state.standings_rows import Reward
from schemas import events as e
from schemas.standings import Agent, WinLoss

_MAX_STARTS = 16
"""Newest process starts kept per worker."""
MAX_ENDED = 10_000
"""Newest ended sessions whose results are kept, to compare a report that comes again."""


class EndedSession(msgspec.Struct, frozen=True):
    """The end of a session."""

    session: str
    model: str
    agent: str
    opponent: str
    sequence: int
    """Sequence of the event that ended it."""
    scores: list[float]
    """Scores by seat; empty without a result."""
    error: str = ""
    """Reason for the end without a result; empty otherwise."""


class SessionTable(msgspec.Struct):
    """Sessions by match id, in the order of their opening or end; snapshots hold them as they are."""

    open: dict[str, e.SessionOpened] = {}
    ended: dict[str, EndedSession] = {}

    def begin(self, event: e.SessionOpened) -> None:
        """Open a session; the first opening of a match id holds."""
        self.open.setdefault(event.match_id, event)

    def end(self, sequence: int, event: e.MatchFinished | e.MatchFailed) -> None:
        """End the session of a match, if it is one; call once per match."""
        opened = self.open.pop(event.match_id, None)
        if opened is None:
            return
        scores = [seat.score for seat in event.seats] if isinstance(event, e.MatchFinished) else []
        error = event.error if isinstance(event, e.MatchFailed) else ""
        self.ended[event.match_id] = EndedSession(
            opened.session, opened.model, opened.agent, opened.opponent, sequence, scores, error
        )
        for oldest in list(islice(self.ended, max(len(self.ended) - MAX_ENDED, 0))):
            del self.ended[oldest]

    def find(self, match_id: str) -> e.SessionOpened | EndedSession | None:
        """The session of a match, if it is open or among the newest ended ones."""
        return self.open.get(match_id) or self.ended.get(match_id)


_MOST = 1 << 53


class RemoteSpending(msgspec.Struct, frozen=True):
    """Requests to one remote agent and their cost; fields as in ``RemoteAsked``."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens: int = 0
    uncounted: int = 0
    cost: float = 0.0

    def add_request(self, event: e.RemoteAsked) -> "RemoteSpending":
        """The spending with one more report; an invalid count or amount counts as 0."""
        cost = event.cost if event.cost >= 0 and isfinite(event.cost) else 0.0
        # Bounded, so that every sum fits into a snapshot.
        counts = {
            name: min(getattr(self, name) + max(getattr(event, name), 0), _MOST)
            for name in self.__struct_fields__
            if name != "cost"
        }
        return RemoteSpending(**counts, cost=min(self.cost + cost, float_info.max))


class PauseState(msgspec.Struct, frozen=True):
    """The last pause or resumption of a policy or of the whole league."""

    sequence: int
    is_paused: bool
    reason: str


_NEVER = PauseState(0, is_paused=False, reason="")


class Pauses(msgspec.Struct):
    """The last pause state by policy; the whole league's under the empty name."""

    last: dict[str, PauseState] = {}

    def last_state(self, policy: str) -> PauseState:
        """The last pause state of a policy, or of the league for an empty name; sequence 0 for none."""
        return self.last.get(policy, _NEVER)

    def apply(self, sequence: int, event: e.LeaguePaused | e.LeagueResumed) -> None:
        """Fold a pause or resumption; one decided from another state is a duplicate or too late, and is ignored."""
        before = self.last_state(event.policy)
        pauses = isinstance(event, e.LeaguePaused)
        if event.after == before.sequence and pauses != before.is_paused:
            self.last[event.policy] = PauseState(sequence, pauses, event.reason)

    def active_pause(self, policy: str = "") -> PauseState | None:
        """The pause in force for a policy, the league's before its own, or of the whole league; None when running."""
        return next((last for last in (self.last_state(""), self.last_state(policy)) if last.is_paused), None)

    def active_pauses(self) -> dict[str, PauseState]:
        """All pauses in force by policy; the whole league's comes first, under the empty name."""
        return {policy: last for policy, last in sorted(self.last.items()) if last.is_paused}


class WorkerState(msgspec.Struct, frozen=True):
    """A worker process as last recorded in the history."""

    joined: e.WorkerJoined
    left: str | None = None
    """Reason for leaving; None while running."""
    url: str = ""
    """Address of an inference process; empty for other workers, and while the model loads."""
    slots: int | None = None
    """Adapter slots that fit in memory, where fewer than configured."""


class PublishedVersion(msgspec.Struct, frozen=True):
    """A playable version of a policy."""

    version: int
    adapter: str
    parent: str


class ActivityChange(msgspec.Struct, frozen=True):
    """An agent's last retirement or activation."""

    sequence: int
    resting: bool
    """Whether the active pool retired it, so that it can be activated again."""


class LeagueStateSnapshot(msgspec.Struct, frozen=True):
    """The fields of ``LeagueState`` in a snapshot."""

    sequence: int
    league: str
    model: str
    config: dict[str, Any] | None
    config_sequence: int
    agents: list[Agent]
    published: dict[str, list[PublishedVersion]]
    workers: dict[str, WorkerState]
    failed: int
    starts: dict[str, float]
    base: str | None
    tables: list[RatingTableSnapshot]
    records: dict[str, dict[str, WinLoss]]
    evaluations: list[Evaluation]
    seen: SeenIdsSnapshot
    voided: list[str]
    games: dict[str, int]
    next_index: dict[str, int]
    live: dict[str, int]
    steps: dict[str, e.GradientStepTaken]
    seconds: dict[str, float]
    finished: dict[str, e.TrainingFinished]
    in_play: MatchesInPlay
    changed_at: int
    elite: list[str] = []
    resets: dict[str, list[int]] = {}
    activity: dict[str, ActivityChange] = {}
    ngrams: NgramCounts = msgspec.field(default_factory=NgramCounts)
    spent: dict[str, RemoteSpending] = {}
    consumption: ConsumptionSnapshot = ConsumptionSnapshot()
    artifacts: ArtifactsSnapshot = ArtifactsSnapshot()
    pauses: dict[str, PauseState] = {}
    rules: int = 1
    incarnations: dict[str, list[str]] = {}
    branched_at: int = 0
    counted: list[tuple[str, str, int]] = []
    sessions: SessionTable = msgspec.field(default_factory=SessionTable)
    rewards: dict[str, list[Reward]] = {}


class WorkerRegistry:
    """Worker processes by name, and what running ones reported about themselves."""

    def __init__(
        self, workers: dict[str, WorkerState] | None = None, incarnations: dict[str, list[str]] | None = None
    ) -> None:
        self.workers: dict[str, WorkerState] = {} if workers is None else workers
        self.incarnations: dict[str, list[str]] = {} if incarnations is None else incarnations
        """Newest process starts of each worker, oldest first."""
        self.slots: int | None = None
        """The fewest adapter slots reported by any running worker."""
        self._count_slots()

    def apply(self, event: e.WorkerJoined | e.WorkerLeft | e.InferenceServing | e.AdapterSlotsReduced) -> bool:
        """Fold an event; returns whether a process started or ended with it.

        A late duplicate is ignored: of another incarnation than the one that runs, or a larger number of slots.
        """
        before = self.workers.get(event.worker)
        if isinstance(event, e.WorkerJoined):
            if self.has_joined(event.worker, event.incarnation):
                return False
            starts = self.incarnations.setdefault(event.worker, [])
            starts.append(event.incarnation)
            del starts[:-_MAX_STARTS]
            after = WorkerState(event)
        elif before is None or before.left is not None or before.joined.incarnation != event.incarnation:
            return False
        elif isinstance(event, e.WorkerLeft):
            after = WorkerState(before.joined, event.reason)
        elif isinstance(event, e.InferenceServing):
            after = msgspec.structs.replace(before, url=event.url)
        elif before.slots is None or event.slots < before.slots:
            after = msgspec.structs.replace(before, slots=max(event.slots, 1))
        else:
            return False
        self.workers[event.worker] = after
        self._count_slots()
        return isinstance(event, e.WorkerJoined | e.WorkerLeft)

    def has_joined(self, worker: str, incarnation: str) -> bool:
        """Whether this start is known: a copy of its event may arrive long after later starts."""
        return incarnation in self.incarnations.get(worker, ())

    def disconnect_all(self, origin: str) -> None:
        """Mark all running workers as left: they belong to the run from which this history was branched."""
        for name, worker in self.workers.items():
            if worker.left is None:
                self.workers[name] = WorkerState(worker.joined, f"stayed with {origin}")
        self._count_slots()

    def _count_slots(self) -> None:
        running = [worker.slots for worker in self.workers.values() if worker.left is None]
        self.slots = min((slots for slots in running if slots is not None), default=None)
