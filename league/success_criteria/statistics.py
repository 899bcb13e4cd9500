"""Evidence for all criteria, collected in one pass over a history.

Voided matches are subtracted again, whichever event comes later; copies change nothing.
"""

import math
from collections import Counter
from typing import NamedTuple

import msgspec

from league.fold_primitives import SeenIds
from league.log.base import RecordedEvent
from league.ratings.fold import is_rated
from league.state import LeagueState
from league.state.evaluation_table import BENCHMARK, Evaluation
from schemas import events as e
from schemas.config import LeagueConfig
from schemas.ids import policy_of, split_agent


class BenchmarkResult(NamedTuple):
    """A benchmark match from its agent's point of view."""

    role: str
    won: bool


class RatedMatch(NamedTuple):
    """A match that affected ratings."""

    sequence: int
    seats: list[tuple[str, str, float]]
    """Agent, role and score of each seat."""
    seed: int
    """Matches with the same seed share its luck."""


class DrawCounts(msgspec.Struct):
    """Counts of draws per bucket, by match: sums for shares and their standard errors."""

    matches: int = 0
    picks: int = 0
    sum_squared_picks: int = 0
    """Sum over matches of the squared number of picks."""
    picks_by_bucket: Counter[str] = msgspec.field(default_factory=Counter)
    drawn_squared: Counter[str] = msgspec.field(default_factory=Counter)
    """Sum over matches of the squared number of picks of each bucket."""
    crossed: Counter[str] = msgspec.field(default_factory=Counter)
    """Sum over matches of each bucket's number of picks times that of all."""

    def add(self, picks: list[e.OpponentPick]) -> None:
        """Add a match's picks."""
        self.matches += 1
        self.picks += len(picks)
        self.sum_squared_picks += len(picks) ** 2
        for bucket, count in Counter(pick.bucket for pick in picks).items():
            self.picks_by_bucket[bucket] += count
            self.drawn_squared[bucket] += count**2
            self.crossed[bucket] += count * len(picks)

    def standard_error(self, bucket: str, target: float) -> float:
        """Standard error of a bucket's share around a target; picks of one match may depend on each other in any way.

        The ratio estimator's, with matches for clusters: the root of the sum over matches of
        ``(picks of the bucket - target * picks) ** 2``, by all picks (Cochran, *Sampling Techniques*, 1977, 6.3).
        """
        squares = self.drawn_squared[bucket] - 2 * target * self.crossed[bucket] + target**2 * self.sum_squared_picks
        return math.sqrt(max(squares, 0.0)) / self.picks if self.picks else math.inf


class Faults(msgspec.Struct):
    """Counts of faults."""

    crashes: list[str] = []
    """Workers that did not exit in good order, with the reason."""
    unreadable: int = 0
    """Events that cannot be decoded."""
    slot_reductions: int = 0
    """Number of times that a process ran out of memory for adapters."""
    trained_twice: int = 0
    """Trajectories that two steps claim to have trained on."""
    stalls: list[tuple[int, float]] = []
    """Delayed steps, with the delay in minutes."""
    regressions: int = 0
    """The rater's alarms: an evaluated version's rating below a baseline's, without intervals."""


class CriteriaEvidence:
    """The evidence of one pass over a history; counts benchmarks with ``opponent`` in all other seats."""

    def __init__(self, opponent: str) -> None:
        self.state = LeagueState()
        self.events = 0
        self.benchmarks: dict[str, dict[str, BenchmarkResult]] = {}
        """By evaluation and match: completed matches that are not voided."""
        self.rated: dict[str, RatedMatch] = {}
        """By match."""
        self.last_rated_at: dict[int, int] = {}
        """Sequence of the last rating, by version of the hero."""
        self.draws = DrawCounts()
        self.faults = Faults()
        self.steps: set[int] = set()
        self.skipped = 0
        """Steps whose loss or gradient was not a number."""
        self._opponent = opponent
        self._drawn_matches, self._trained_rollouts = SeenIds(), SeenIds()
        self._last_step_ns: int | None = None

    @property
    def config(self) -> LeagueConfig:
        """The configuration in force at the end."""
        return self.state.config_or_default

    @property
    def policy(self) -> str:
        """The hero's policy."""
        return self.config.trainer.policy

    def apply(self, recorded: RecordedEvent) -> None:
        """Apply the next event."""
        self.events += 1
        self.faults.unreadable += recorded.error is not None
        event = recorded.event
        if isinstance(event, e.MatchFinished) and not self.state.has_match_ended(event.match_id):
            self._on_match_finished(recorded.sequence, event)
        elif isinstance(event, e.MatchVoided):
            self.rated.pop(event.match.match_id, None)
            self.benchmarks.get(event.match.evaluation_id, {}).pop(event.match.match_id, None)
        elif isinstance(event, e.OpponentsSampled):
            is_own = policy_of(event.hero) == self.policy
            if event.picks and is_own and self._drawn_matches.add(event.match_id):
                self.draws.add(event.picks)
        elif isinstance(event, e.GradientStepTaken) and event.policy == self.policy:
            self._on_gradient_step(recorded.time_ns, event)
        else:
            self._on_other_event(event)
        self.state.apply(recorded.sequence, event)

    def last_benchmark(self) -> Evaluation | None:
        """Finished benchmark of the last evaluated version against the opponent."""
        mine = [
            evaluation
            for evaluation in self.state.evaluations.values()
            if self._is_benchmark(evaluation)
            and evaluation.finished is not None
            and policy_of(evaluation.agent) == self.policy
        ]
        return max(mine, key=lambda one: split_agent(one.agent) or ("", 0), default=None)

    def _is_benchmark(self, evaluation: Evaluation) -> bool:
        return evaluation.suite == BENCHMARK and evaluation.requested.opponents == [self._opponent]

    def _on_match_finished(self, sequence: int, match: e.MatchFinished) -> None:
        evaluation = self.state.evaluations.get(match.evaluation_id)
        if evaluation is not None and self._is_benchmark(evaluation) and match.match_id in evaluation.waiting:
            mine = [seat for seat in match.seats if seat.agent == evaluation.agent]
            for seat in mine[:1]:
                won = BenchmarkResult(seat.role, match.winner in [one.seat for one in mine])
                self.benchmarks.setdefault(match.evaluation_id, {})[match.match_id] = won
        config = self.config
        if match.game == config.game.name and is_rated(match, config.ratings):
            seats = [(seat.agent, seat.role, seat.score) for seat in match.seats]
            self.rated[match.match_id] = RatedMatch(sequence, seats, match.seed)
            for seat in match.seats:
                named = split_agent(seat.agent)
                if named is not None and named[0] == self.policy:
                    self.last_rated_at[named[1]] = sequence

    def _on_gradient_step(self, time_ns: int, step: e.GradientStepTaken) -> None:
        if step.step in self.steps:
            return
        self.steps.add(step.step)
        self.skipped += step.skipped
        minutes = 0.0 if self._last_step_ns is None else (time_ns - self._last_step_ns) / 60e9
        if minutes > self.config.alarms.stall_minutes:
            self.faults.stalls.append((step.step, minutes))
        self._last_step_ns = time_ns
        # With parts, a trajectory is trained on in several steps.
        if not step.parts and len(step.seats) in (0, len(step.matches)):
            seats = step.seats or [-1] * len(step.matches)
            names = [f"{seat}/{match_id}" for seat, match_id in zip(seats, step.matches, strict=True)]
            self.faults.trained_twice += sum(not self._trained_rollouts.add(name) for name in names)

    def _on_other_event(self, event: e.Event | None) -> None:
        worker = self.state.workers.get(event.worker) if isinstance(event, e.WorkerLeft | e.WorkerJoined) else None
        if isinstance(event, e.WorkerLeft):
            is_news = worker is not None and worker.left is None and worker.joined.incarnation == event.incarnation
            if event.reason != "done" and is_news:
                self.faults.crashes.append(f"{event.worker}: {event.reason}")
        elif isinstance(event, e.WorkerJoined):
            if event.role == "trainer":
                self._last_step_ns = None
            if (
                worker is not None
                and worker.left is None
                and not self.state.has_joined(event.worker, event.incarnation)
            ):
                self.faults.crashes.append(f"{event.worker}: began again without having left")
        elif isinstance(event, e.AdapterSlotsReduced):
            self.faults.slot_reductions += 1
        elif isinstance(event, e.RegressionNoticed):
            self.faults.regressions += 1
        if isinstance(event, e.LeaguePaused | e.LeagueResumed | e.LeagueBranched):
            # An interruption by a person or another run is not a stall.
            self._last_step_ns = None


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of all criteria."""

    opponent: str = "random_bot"
    """The agent in all other seats of the benchmark."""
    win_share: float = 0.8
    """Bound for the lower end of the share's 95 % interval: "beats RandomBot (>80 % win rate)"."""
    games: int = 210
    """Minimum number of benchmark games: thirty in each of Diplomacy's seats."""
    warm_up: float = 0.1
    """Initial share of the gradient steps in which the hero may be below a baseline: it begins as one of them."""
    margin: float = 150.0
    """Rating points below a baseline that every version's interval has to exclude, since too wide an interval measures
    nothing: the margin of a test of non-inferiority.
    """
    tolerance: float = 0.05
    """Maximum difference between a bucket's realised and target share: half of the smallest share in the
    specification's mix, so that no bucket can pass for another. The specification gives none.
    """
    mix: dict[str, float] = msgspec.field(
        default_factory=lambda: {"mirror": 0.3, "peers": 0.4, "exploitable": 0.2, "baselines": 0.1}
    )
    """The specification's mix of opponents, bucket by bucket: any other mix is named as a deviation."""
    steps: int = 1000
    """The horizon in the specification. A shorter run is judged over its actual steps."""
    failed_share: float = 0.01
    """Maximum share of matches that may fail: a failed match is data, many are a fault."""
