"""Charts of a league: the history folded into rows of metrics.

The fold is pure and total: a row depends only on the events up to it, so that folding again or later gives the same
rows at the same sequences. Windows close by the times of events, not by a clock. A row reflects what was known at its
sequence: matches that are voided later stay in its averages.

- ``gauges``  metrics of single matches with rolling means, and of the folded state: ratings, totals, opponents
- ``sinks``   what rows are written to; ``workers.tracker`` feeds them
"""

import msgspec

from league.log.base import RecordedEvent
from league.state import LeagueState
from schemas import events as e
from schemas.config import LeagueConfig
from schemas.jobs import EXTERNAL_PURPOSE
from workers.trackers import gauges
from workers.trackers.gauges import OpponentDrawWindow, RollingMeans, finite_or_none, match_metrics, path_suffix

_NS = 1_000_000_000


class Row(msgspec.Struct, frozen=True):
    """Metrics at one sequence of the history."""

    sequence: int
    """Sequence of the row's newest event; strictly increasing from row to row."""
    time_ns: int
    """Time of that event, in nanoseconds since 1970 (UTC)."""
    step: int
    """The main policy's newest gradient step."""
    values: dict[str, float]
    """Values by name; all finite."""
    full: bool = True
    """False for a row of a gradient step's own metrics, between two full rows."""


class _PlayTotals(msgspec.Struct):
    games: int = 0
    tokens: float = 0.0


class ChartFold:
    """Folds a league's history into rows, event by event."""

    def __init__(self) -> None:
        self.state = LeagueState()
        self._windows = RollingMeans()
        self._draws: dict[str, OpponentDrawWindow] = {}
        self._pool = gauges.PoolRatings()
        self._play_totals: dict[str, _PlayTotals] = {}
        """Totals by worker since the last full row."""
        self._latest: dict[str, float] = {}
        """Metrics of single events since the last full row."""
        self._window_start_ns: int | None = None

    def apply(self, recorded: RecordedEvent) -> Row | None:
        """Fold one event; returns a row if one is due. Events already folded are ignored."""
        if recorded.sequence <= self.state.sequence:
            return None
        event = recorded.event
        before = self._change_marker(event)
        self.state.apply(recorded.sequence, event)
        if event is not None and (before is None or self._change_marker(event) != before):
            self._count(event)
        return self._make_row(recorded)

    @property
    def _config(self) -> LeagueConfig:
        return self.state.config or LeagueConfig()

    @property
    def _hero(self) -> str:
        return self._config.trainer.policy

    def _change_marker(self, event: e.Event | None) -> object:
        """A value that changes when the state folds a new event, and does not for a duplicate."""
        state = self.state
        if isinstance(event, e.MatchFinished):
            return state.finished_matches()
        if isinstance(event, e.OpponentsSampled):
            return event.worker, state.next_match_index(event.worker)
        if isinstance(event, e.GradientStepTaken):
            return event.policy, step.step if (step := state.last_step(event.policy)) is not None else None
        if isinstance(event, e.EvaluationFinished):
            evaluation = state.evaluations.get(event.evaluation_id)
            return event.evaluation_id, evaluation is not None and evaluation.finished is not None
        return None

    def _count(self, event: e.Event) -> None:
        hero = self._hero
        size = self._config.tracker.window
        if isinstance(event, e.MatchFinished):
            for prefix, values in match_metrics(event, self.state, hero):
                self._windows.add_all(prefix, values, size)
            if event.purpose not in ("imported", EXTERNAL_PURPOSE):
                played = self._play_totals.setdefault(event.worker, _PlayTotals())
                played.games += 1
                played.tokens += finite_or_none(event.tokens) or 0.0
        elif isinstance(event, e.OpponentsSampled):
            policy = event.hero.rpartition("@")[0]
            self._draws.setdefault(policy, OpponentDrawWindow(policy)).add(event, self.state, size)
        elif isinstance(event, e.GradientStepTaken):
            self._latest |= gauges.step_metrics(event, hero)
            paths = {name: value for name, value in event.metrics.items() if "/" in name}
            self._windows.add_all(f"learner{path_suffix(event.policy, hero)}", paths, size)
        elif isinstance(event, e.EvaluationFinished):
            prefix = f"evaluation-{self._config.game.name}{path_suffix(event.agent, hero)}/{event.suite}"
            if event.suite == "benchmark":
                prefix += f"/{'+'.join(event.opponents)}"
            figures = {"mean_score": event.mean_score, "mean_rank": event.mean_rank, "failed": event.failed}
            if event.games > 0:
                figures["win_rate"] = event.wins / event.games
            self._latest |= {f"{prefix}/{name}": value for name, value in figures.items()}

    def _make_row(self, recorded: RecordedEvent) -> Row | None:
        if self._window_start_ns is None:
            self._window_start_ns = recorded.time_ns
        step = self.state.last_step(self._hero)
        full = self._is_due(recorded)
        if full:
            values = self._collect_window(abs(recorded.time_ns - self._window_start_ns) / _NS)
            self._window_start_ns = recorded.time_ns
        elif isinstance(recorded.event, e.GradientStepTaken) and self._latest:
            values = self._drain_latest() | gauges.elo_metrics(self.state, self._hero)
        else:
            return None
        finite = {name: number for name, value in values.items() if (number := finite_or_none(value)) is not None}
        return Row(recorded.sequence, recorded.time_ns, step.step if step is not None else 0, finite, full)

    def _is_due(self, recorded: RecordedEvent) -> bool:
        """A row is due when a window ends, training finishes, or the rater leaves, so that the end is reported too."""
        assert self._window_start_ns is not None
        event = recorded.event
        if isinstance(event, e.WorkerLeft):
            left = self.state.workers.get(event.worker)
            if left is not None and left.joined.role == "rater":
                return True
        # By absolute value: an imported history has older times after newer ones.
        over = abs(recorded.time_ns - self._window_start_ns) >= self._config.tracker.every_s * _NS
        return over or isinstance(event, e.TrainingFinished)

    def _collect_window(self, seconds: float) -> dict[str, float]:
        values = self._drain_latest() | self._windows.collect() | gauges.elo_metrics(self.state, self._hero)
        windows = {
            f"matchmaking{path_suffix(policy, self._hero)}": draws.collect() for policy, draws in self._draws.items()
        }
        for prefix, metrics in windows.items():
            values |= {f"{prefix}/{name}": value for name, value in metrics.items()}
        for worker, played in self._play_totals.items():
            if seconds > 0:
                values |= {f"play/{worker}/games_s": played.games / seconds}
                values |= {f"play/{worker}/tokens_s": played.tokens / seconds}
        self._play_totals.clear()
        changed = self._pool.collect_changed(self.state.standings().agents)
        return values | gauges.league_totals(self.state, self._hero) | changed

    def _drain_latest(self) -> dict[str, float]:
        latest, self._latest = self._latest, {}
        return latest
