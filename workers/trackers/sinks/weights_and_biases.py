"""Rows in a run of Weights & Biases. Its steps are sequences of the history, so that no row is logged twice."""

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from schemas.errors import ConfigError, RemoteError
from schemas.numbers import PositiveFloat
from workers.trackers import Row
from workers.trackers.sinks import SINKS, JsonlSink, Place

if TYPE_CHECKING:
    import wandb

STEP = "gradient_step"
"""The x-axis of ratings and learner metrics."""
_OVER_STEPS = ("League/*", "learner/*")

ELO_CHART = "League/Elo_Rating"
"""Chart of three lines over the training step."""
_ELO_LINES = ("Hero_Elo", "Baseline_Elo", "Past_Best_Elo")
_CHART_GROWTH = 1.1
"""Growth of the number of points after which the chart, which is sent whole, is sent again."""

_FINISH_S = 20.0
_SECRET = "WANDB_API_KEY"


@SINKS.register("wandb")
class WandbSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the sink. wandb reads the key from ``WANDB_API_KEY`` or ``wandb login``."""

    project: str = "league"
    entity: str = ""
    """Owner of the project; empty for the user's default."""
    mode: Literal["", "offline", "online"] = ""
    """``offline`` keeps the run in files, for ``wandb sync``; empty for ``WANDB_MODE``, or else ``online``."""
    name: str = ""
    """Name of the run; empty for the league's name."""
    init_timeout_s: PositiveFloat = 90.0
    """Time limit for the server's response when the run is opened."""

    def build(self) -> "WandbSink":
        """The sink; ``ConfigError`` if the package is not installed."""
        if importlib.util.find_spec("wandb") is None:
            raise ConfigError(
                "tracker.sinks: 'wandb' needs its package; expected pip install 'event-sourced-league[wandb]'"
            )
        return WandbSink(self)


class _EloChart:
    """The points of the chart, from the rows so far."""

    def __init__(self) -> None:
        self._points: list[tuple[int, list[float | None]]] = []
        self._sent = 0

    def add(self, row: Row) -> bool:
        """Add a row's point; whether the chart is due."""
        ratings = [row.values.get(f"{ELO_CHART}/{line}") for line in _ELO_LINES]
        if any(rating is not None for rating in ratings):
            self._points.append((row.step, ratings))
        return len(self._points) > self._sent * _CHART_GROWTH

    def draw(self) -> dict[str, Any]:
        """The chart by its name, to be logged; empty if nothing came since the last one."""
        import wandb

        if len(self._points) == self._sent:
            return {}
        self._sent = len(self._points)
        lines = {
            name: [(step, ratings[at]) for step, ratings in self._points if ratings[at] is not None]
            for at, name in enumerate(_ELO_LINES)
        }
        recorded = {name: points for name, points in lines.items() if points}
        xs, ys = ([[point[axis] for point in points] for points in recorded.values()] for axis in (0, 1))
        return {ELO_CHART: wandb.plot.line_series(xs, ys, keys=list(recorded), title=ELO_CHART, xname=STEP)}


class WandbSink:
    """One run, resumed by its id, which is derived from the history.

    Its rows are kept as lines beside the run's files. ``wandb`` can't resume an offline run: each start makes a folder,
    and of several with one id the server keeps the one that is synchronised last. So each start writes the rows before
    it anew, and removes the earlier folders.
    """

    def __init__(self, settings: WandbSettings) -> None:
        self._settings = settings
        self._run: wandb.Run | None = None
        self._rows = JsonlSink("wandb-")
        self._chart = _EloChart()
        self._sequence = 0

    def open(self, place: Place) -> int:
        """Open or resume the run; messages hold no key."""
        run_id = f"{place.league}-{place.identity[:16]}"
        position = self._rows.open(place)
        self._chart = _EloChart()
        try:
            self._run = self._begin(place, run_id)
        except Exception as error:  # of many kinds, not all of them wandb's
            _end_service()
            raise RemoteError(f"W&B: the run was not opened: {_safe(error)}") from None
        if self._run.offline:
            for line in self._rows.lines():
                self._log(line, line.now)
            folder = Path(self._run.dir).parent
            for earlier in folder.parent.glob(f"offline-run-*-{run_id}"):
                if earlier != folder:
                    shutil.rmtree(earlier)
            return position
        for line in self._rows.lines():
            self._chart.add(line)
        return max(position, self._run.step - 1 if self._run.resumed else 0)

    def _begin(self, place: Place, run_id: str) -> "wandb.Run":
        import wandb

        run = wandb.init(
            project=self._settings.project,
            entity=self._settings.entity or None,
            mode=self._settings.mode or None,
            name=self._settings.name or place.league,
            id=run_id,
            resume="allow",
            dir=place.folder,
            config=place.config,
            # Only rows are sent, nothing else about the process and machine.
            settings=wandb.Settings(
                silent=True,
                host="",
                console="off",
                disable_git=True,
                disable_code=True,
                disable_job_creation=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
                init_timeout=self._settings.init_timeout_s,
                finish_timeout=_FINISH_S,
            ),
        )
        run.define_metric(STEP, hidden=True)
        for names in _OVER_STEPS:
            run.define_metric(names, step_metric=STEP)
        return run

    def write(self, row: Row, now: Mapping[str, float]) -> None:
        """Pass a row to wandb's service process, which stores and sends it."""
        self._log(row, now)
        self._rows.write(row, now)

    def _log(self, row: Row, now: Mapping[str, float]) -> None:
        assert self._run is not None
        chart = self._chart.draw() if self._chart.add(row) else {}
        self._sequence = row.sequence
        try:
            self._run.log({**now, **row.values, STEP: row.step, **chart}, step=row.sequence)
        except Exception as error:  # of many kinds, not all of them wandb's
            raise RemoteError(f"W&B: a row was not accepted: {_safe(error)}") from None

    def close(self) -> None:
        """Close the run; rows not yet sent stay in the run's files, for ``wandb sync``."""
        self._rows.close()
        run, self._run = self._run, None
        if run is not None:
            try:
                if chart := self._chart.draw() if self._sequence else {}:
                    run.log(chart, step=self._sequence)
                run.finish()
            except Exception as error:  # of many kinds, not all of them wandb's
                _end_service()
                raise RemoteError(f"W&B: the run was not closed: {_safe(error)}") from None


def _end_service() -> None:
    """End wandb's service process: after a failure it keeps the run's id and cannot open that run again."""
    import wandb

    with contextlib.suppress(Exception):  # it may be gone already
        wandb.teardown(exit_code=1)


def _safe(error: Exception) -> str:
    """An error's text, without the key that it may quote."""
    text = " ".join(str(error).split()) or type(error).__name__
    key = os.environ.get(_SECRET, "")
    return text.replace(key, "…") if key else text
