"""Referential checks: every event refers only to facts that the history held before it.

Seals prove that a range is as it was sealed; they say nothing about the events after the newest seal, nor about an
event that was false when it was appended: a checkpoint without a publication, a result without a draw.

Runs that were imported hold matches and checkpoints of another program (``HistoryImported``), which have no draws,
workers or gradient steps here; branches and restored runs hold the events of their origin. Results of other systems
(``ResultsImported``) are checked against what their import announced.

One class with a method ``_on_…`` per event type, as ``LeagueState`` has: both are read side by side.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from zlib import crc32

import msgspec

from league.auth.permissions import ROLES, permissions
from league.fold_primitives import FactIndex, SeenIds, handlers_by_type
from league.log.base import RecordedEvent
from schemas import events as e
from schemas.ids import OPERATOR, agent_name, split_agent
from schemas.jobs import BENCHMARK_PURPOSE, EXTERNAL_PURPOSE, SESSION_PURPOSE
from schemas.numbers import merge_ranges, range_size
from schemas.subjects import event_subject, subject_matches

MAX_REPORTED = 10_000
"""Inconsistencies kept in a report; the others are counted."""
_TRAINING, _EVALUATION, _IMPORTED = "training", "evaluation", "imported"


class Inconsistency(msgspec.Struct, frozen=True):
    """An event that contradicts the events before it."""

    sequence: int
    rule: str
    """The violated rule: ``checkpoint``, ``publication``, ``agent``, ``worker``, ``draw``, ``evaluation``, ``step``,
    ``rating``, ``void``, ``import``, ``producer``, or ``fact`` for a second, different account of one fact."""
    what: str


class ReferenceReport(msgspec.Struct):
    """Result of the referential checks."""

    events: int = 0
    undecodable: int = 0
    """Events of newer versions, and messages that are no events: not checked."""
    inconsistent: int = 0
    by_rule: dict[str, int] = {}
    first: list[Inconsistency] = []
    without_result: int = 0
    """Matches that were trained on and have neither a result nor a failure: their worker was killed in between."""


class _ResultIndex:
    """Sequences of matches' results with a checksum of their match ids: 12 to 16 bytes a match."""

    def __init__(self) -> None:
        self._sequences = array("Q")
        self._checksums = array("L")

    def add(self, sequence: int, match_id: str) -> None:
        self._sequences.append(sequence)
        self._checksums.append(_checksum(match_id))

    def holds(self, sequence: int, match_id: str) -> bool:
        at = bisect_left(self._sequences, sequence)
        return self._sequences[at : at + 1] == array("Q", [sequence]) and self._checksums[at] == _checksum(match_id)


def _checksum(name: str) -> int:
    return crc32(name.encode("utf-8", "surrogatepass"))


class ReferenceChecker:
    """Fold over a history's events, in order, that finds events without the facts that they refer to."""

    def __init__(self, league: str) -> None:
        self._league = league
        self._report = ReferenceReport()
        self._counts: Counter[str] = Counter()
        self._facts = FactIndex()
        self._agents: set[str] = set()
        self._published: dict[tuple[str, int], str] = {}
        """Adapter by policy and version."""
        self._steps: dict[str, int] = {}
        """Newest gradient step by policy."""
        self._stepless: dict[tuple[str, int], int] = {}
        """Sequences of publications whose gradient step is not recorded yet."""
        self._resets: set[tuple[str, int]] = set()
        self._roles: dict[str, set[str]] = {}
        self._permitted: dict[tuple[str, str], bool] = {}
        self._draws: dict[str, e.OpponentsSampled] = {}
        """Draws of matches without a result yet."""
        self._drawn = SeenIds()
        self._ended = SeenIds()
        self._requested = SeenIds()
        self._unfinished: set[str] = set()
        """Matches that were trained on before their result was recorded."""
        self._evaluations: dict[str, str] = {}
        """Evaluated agent by evaluation."""
        self._results = _ResultIndex()
        self._imports = self._imported_matches = 0
        """Imported matches that were announced, and those found."""
        self._is_imported = False
        self._announced: dict[str, int] = {}
        """Results that an origin may still have, by what its imports announced."""
        self._sequence = 0

    def apply_batch(self, batch: Iterable[RecordedEvent]) -> None:
        """Apply events in order of sequence."""
        for recorded in batch:
            event = recorded.event
            self._sequence = recorded.sequence
            if event is None:
                self._report.undecodable += 1
                continue
            self._report.events += 1
            self._check_producer(recorded.producer, event)
            if (conflict := self._facts.add(recorded)) is not None:
                self._add("fact", conflict)
            if (check := _CHECKS.get(type(event))) is not None:
                check(self, event)

    def finish(self) -> ReferenceReport:
        """Returns the report, after the last event."""
        for (policy, version), sequence in self._stepless.items():
            # The step is appended with its publication; at the very end of the history the next one may be on its way.
            if sequence < self._sequence or version > self._steps[policy] + 1:
                name = agent_name(policy, version)
                self._add("publication", f"{name} was published, but gradient step {version} was not taken", sequence)
        if self._imported_matches > self._imports:
            self._add("import", f"{self._imported_matches:,} imported matches; {self._imports:,} were announced")
        self._report.by_rule = dict(sorted(self._counts.items()))
        self._report.inconsistent = self._counts.total()
        self._report.without_result = len(self._unfinished)
        return self._report

    def _add(self, rule: str, what: str, sequence: int | None = None) -> None:
        self._counts[rule] += 1
        if self._counts.total() <= MAX_REPORTED:
            self._report.first.append(Inconsistency(self._sequence if sequence is None else sequence, rule, what))

    def _check_producer(self, producer: str, event: e.Event) -> None:
        """Whether the roles in which a worker registered may publish this event; other producers are the operator's."""
        roles = self._roles.get(producer)
        if roles is None or isinstance(event, e.WorkerJoined):
            return
        # The subject of today: older histories have some events of all workers on one subject.
        key = (producer, event_subject(self._league, event))
        if (is_permitted := self._permitted.get(key)) is None:
            is_permitted = any(role not in ROLES or _may_publish(role, *key, self._league) for role in roles)
            self._permitted[key] = is_permitted
        if not is_permitted:
            what = f"registered as {' and '.join(sorted(roles))} and may not record it"
            self._add("producer", f"{type(event).__name__} by {producer}, which {what}")

    def _on_worker_joined(self, event: e.WorkerJoined) -> None:
        self._roles.setdefault(event.worker, set()).add(event.role)
        self._permitted.clear()

    def _check_worker(self, worker: str, what: str) -> bool:
        if is_known := worker in self._roles:
            return is_known
        self._add("worker", f"{what} by {worker}, which never registered before")
        return False

    def _on_agent_registered(self, event: e.AgentRegistered) -> None:
        self._agents.add(event.agent)

    def _on_external_version_added(self, event: e.ExternalVersionAdded) -> None:
        if event.worker != OPERATOR and event.worker not in self._announced:
            self._check_worker(event.worker, f"{event.agent} added")
        self._agents.add(event.agent)

    def _on_session_opened(self, event: e.SessionOpened) -> None:
        draw = self._draws.get(event.match_id)
        if draw is None or any(pick.agent != event.opponent for pick in draw.picks):
            self._add("session", f"session {event.match_id} against {event.opponent}: its opponent was not drawn")

    def _check_agent(self, agent: str, what: str) -> None:
        if agent not in self._agents and split_agent(agent) not in self._published:
            self._add("agent", f"{what} names {agent}, which is neither a registered agent nor a published version")

    def _check_seats(self, event: e.MatchFinished | e.MatchFailed, what: str) -> None:
        if isinstance(event, e.MatchFinished):
            for agent in {seat.agent for seat in event.seats}:
                self._check_agent(agent, what)

    def _on_activity_changed(self, event: e.AgentRetired | e.AgentActivated | e.CheckpointPromoted) -> None:
        if event.agent not in self._agents:
            self._add("agent", f"{type(event).__name__} of {event.agent}, which is not in the league")

    def _on_checkpoint_added(self, event: e.CheckpointAdded) -> None:
        adapter = self._published.get((event.policy, event.version))
        is_from_elsewhere = self._is_imported and event.rating is not None
        if adapter is None and not (is_from_elsewhere and not event.adapter):
            self._add("checkpoint", f"{event.agent} was added, but that version was never published")
        elif adapter is not None and adapter != event.adapter:
            where = f"adapter {event.adapter[:12]}…; published was {adapter[:12]}…"
            self._add("checkpoint", f"{event.agent} was added with {where}")
        if event.agent != agent_name(event.policy, event.version) and not is_from_elsewhere:
            self._add("checkpoint", f"{event.agent} is no name of version {event.version} of {event.policy}")
        if event.parent and event.parent not in self._agents and not is_from_elsewhere:
            self._add("checkpoint", f"the parent {event.parent} of {event.agent} is not in the league")
        self._agents.add(event.agent)

    def _on_policy_published(self, event: e.PolicyPublished) -> None:
        self._published.setdefault((event.policy, event.version), event.adapter)
        # A policy begins with a version that no step made, after its opening, an import or a reset.
        begins = event.policy not in self._steps or (event.policy, event.version - 1) in self._resets
        if not begins and event.version > self._steps[event.policy]:
            self._stepless.setdefault((event.policy, event.version), self._sequence)

    def _on_policy_reset(self, event: e.PolicyReset) -> None:
        self._resets.add((event.policy, event.version))

    def _on_gradient_step(self, event: e.GradientStepTaken) -> None:
        name = f"gradient step {event.step} of {event.policy}"
        at = (event.policy, event.step)
        self._stepless.pop(at, None)
        before = self._steps.get(event.policy)
        if before is not None and event.step <= before:
            return
        self._steps[event.policy] = event.step
        if at not in self._published and (event.policy, event.step - 1) not in self._published:
            self._add("step", f"{name} continues from a version that was never published")
        for match_id in event.matches:
            if match_id.startswith("#"):
                continue
            if match_id not in self._drawn:
                self._add("step", f"{name} trained on match {match_id}, which was never drawn")
            elif match_id not in self._ended:
                self._unfinished.add(match_id)
        for what in _accounting_errors(event):
            self._add("step", f"{name}: {what}")

    def _on_opponents_sampled(self, event: e.OpponentsSampled) -> None:
        self._check_worker(event.worker, f"draw of match {event.match_id}")
        for agent in (event.hero, *{pick.agent for pick in event.picks}):
            self._check_agent(agent, f"draw of match {event.match_id}")
        if self._drawn.add(event.match_id):
            self._draws[event.match_id] = event

    def _on_match_ended(self, event: e.MatchFinished | e.MatchFailed) -> None:
        if isinstance(event, e.MatchFinished):
            self._results.add(self._sequence, event.match_id)
        if not self._ended.add(event.match_id):
            return
        self._unfinished.discard(event.match_id)
        what = f"{'result' if isinstance(event, e.MatchFinished) else 'failure'} of match {event.match_id}"
        if event.purpose == _IMPORTED:
            self._imported_matches += 1
        elif event.purpose == EXTERNAL_PURPOSE:
            left = self._announced.get(event.worker, 0)
            self._announced[event.worker] = left - 1
            if left <= 0:
                self._add("import", f"{what} of {event.worker}: no import announced it")
            self._check_seats(event, what)
        elif event.purpose == BENCHMARK_PURPOSE:
            if event.match_id not in self._requested:
                self._add("evaluation", f"{what}: its benchmark {event.evaluation_id} was never requested")
        elif event.purpose in (_TRAINING, _EVALUATION, SESSION_PURPOSE) and self._check_worker(event.worker, what):
            (self._check_request if event.purpose == _EVALUATION else self._check_draw)(event, what)

    def _check_draw(self, event: e.MatchFinished | e.MatchFailed, what: str) -> None:
        draw = self._draws.pop(event.match_id, None)
        if draw is None:
            self._add("draw", f"{what} by {event.worker}: its opponents were never drawn")
        elif draw.worker != event.worker and event.purpose == _TRAINING:
            self._add("draw", f"{what} by {event.worker}: drawn was it by {draw.worker}")
        elif isinstance(event, e.MatchFinished):
            drawn = {draw.hero_seat: draw.hero} | {pick.seat: pick.agent for pick in draw.picks}
            seated = {seat.seat: seat.agent for seat in event.seats}
            if seated != drawn:
                self._add("draw", f"{what}: seats {_seat_text(seated)}; drawn were {_seat_text(drawn)}")

    def _check_request(self, event: e.MatchFinished | e.MatchFailed, what: str) -> None:
        # A job that was put back by hand has no evaluation any more.
        if event.evaluation_id and event.evaluation_id not in self._evaluations:
            self._add("evaluation", f"{what}: evaluation {event.evaluation_id} was never requested")
        elif event.evaluation_id and event.match_id not in self._requested:
            self._add("evaluation", f"{what}: it is none of evaluation {event.evaluation_id}")
        self._check_seats(event, what)

    def _on_result_used(self, event: e.MatchVoided | e.RatingUpdated) -> None:
        if isinstance(event, e.MatchVoided):
            rule, what, match_id = "void", "voided", event.match.match_id
        else:
            rule, what, match_id = "rating", "rated", event.match_id
        if not self._results.holds(event.match_sequence, match_id):
            self._add(rule, f"match {match_id} is {what}, but event {event.match_sequence:,} is not its result")

    def _on_requested(self, event: e.EvaluationRequested | e.BenchmarkRequested) -> None:
        if isinstance(event, e.EvaluationRequested):
            self._evaluations[event.evaluation_id] = event.agent
            for agent in (event.agent, *event.opponents):
                self._check_agent(agent, f"evaluation {event.evaluation_id}")
        for match_id in event.matches:
            self._requested.add(match_id)

    def _on_evaluated(self, event: e.EvaluationFinished | e.PromotionDecided) -> None:
        measured = self._evaluations.get(event.evaluation_id)
        agent = event.candidate if isinstance(event, e.PromotionDecided) else event.agent
        if measured != agent:
            finding = "was never requested" if measured is None else f"was requested for {measured}"
            what = f"{type(event).__name__} of {agent}: its evaluation {event.evaluation_id} {finding}"
            self._add("evaluation", what)

    def _on_history_imported(self, event: e.HistoryImported) -> None:
        self._is_imported = True
        self._imports += event.matches

    def _on_results_imported(self, event: e.ResultsImported) -> None:
        self._announced[event.origin] = self._announced.get(event.origin, 0) + event.matches


def _seat_text(agents: dict[int, str]) -> str:
    return " ".join(f"{seat}:{agents[seat]}" for seat in sorted(agents))


def _accounting_errors(step: e.GradientStepTaken) -> Iterator[str]:
    """Contradictions between a step's counts and the trajectories that it lists; old events list none."""
    listed = range_size(merge_ranges(step.trained))
    if step.trained and listed != step.accepted:
        yield f"{step.accepted} trajectories accepted, {listed} listed"
    if step.trained and len(step.matches) < step.accepted:
        yield f"{step.accepted} trajectories accepted, of {len(step.matches)} matches"
    for reason in ("stale", "filtered", "voided", "refused") if step.dropped else ():
        if getattr(step, reason) != step.dropped_count(reason):
            yield f"{getattr(step, reason)} trajectories {reason}, {step.dropped_count(reason)} listed"


def _may_publish(role: str, worker: str, subject: str, league: str) -> bool:
    return any(subject_matches(pattern, subject) for pattern in permissions(role, worker, league).publish)


_CHECKS = handlers_by_type(ReferenceChecker)
