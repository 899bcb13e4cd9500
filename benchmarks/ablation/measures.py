"""How exploitable a run's policies are, from what was kept of it: its history, base model and adapters."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import zstandard

from benchmarks.ablation.arms import MAIN
from benchmarks.ablation.driver import ADAPTERS, DONE, HISTORY, RunCost
from benchmarks.ablation.games import BENCHMARKS
from benchmarks.ablation.policies import PolicyTabulator, Probabilities
from benchmarks.ablation.trees import GameTree
from league.analysis.population import nash_average
from schemas.codec import decode_event
from schemas.events import CheckpointAdded, Event, GradientStepTaken, MatchFinished, PolicyPublished
from schemas.ids import digest

MEASURED_FILE = "measured.json"
_METHOD_VERSION = 1
"""Counted up when figures come to be computed otherwise: what was kept before is computed again."""


class CurvePoint(msgspec.Struct, frozen=True):
    """A place of a learning curve. All are exploitabilities: what a best response wins, a game."""

    games: int
    """Training matches of all policies of the run by then."""
    steps: int
    """Of the main policy by then."""
    last: float
    """Of the main policy's newest checkpoint."""
    mean: float
    """Of the main policy's checkpoints, one drawn anew for each game, all alike."""
    nash: float
    """Of the population's, drawn by an equilibrium of the game in which players choose members of it; only in zero-sum
    games."""
    own: float = 0.0
    """No exploitability: what the newest checkpoint wins from itself. 0 in zero-sum games."""


class RunMeasures(msgspec.Struct, frozen=True):
    """What a run came to."""

    curve: list[CurvePoint]
    games: int
    steps: int
    """Of the main policy."""
    every: int
    """Gradient steps of all policies."""
    seconds: float
    """Of CPU."""

    @property
    def late(self) -> float:
        """Mean of the newest policy's exploitability over the second half of the games.

        A policy that goes round in circles may be anywhere when training ends.
        """
        return self._second_half("last")

    @property
    def own_late(self) -> float:
        """Mean of what the newest policy wins from itself, over the second half of the games."""
        return self._second_half("own")

    def _second_half(self, measure: str) -> float:
        found = [float(getattr(point, measure)) for point in self.curve if point.games >= self.games / 2]
        return sum(found) / len(found)

    @property
    def alike(self) -> float:
        """The same over the second half of the first third of the run's steps, as steps of the main policy alone.

        Where three policies share the budget these are the second half of the main one's steps: so arms compare by
        equally many steps, and not by equally many games.
        """
        alike = [point.last for point in self.curve if self.every / 6 <= point.steps <= self.every / 3 + 1]
        return sum(alike) / len(alike)


class _CachedMeasures(msgspec.Struct, frozen=True):
    of: str
    """The method, and the digest of the history."""
    measured: RunMeasures


class _ExportedLine(msgspec.Struct, frozen=True):
    """What runs and ``league events --json`` have in common, of a line."""

    event: msgspec.Raw


def read_events(path: Path) -> Iterator[Event]:
    """The events of a history.

    Args:
        path: Folder of a run, or a file of ``league events --json``.
    """
    data = zstandard.decompress((path / HISTORY).read_bytes()) if path.is_dir() else path.read_bytes()
    for line in data.splitlines():
        yield decode_event(bytes(msgspec.json.decode(line, type=_ExportedLine).event))


def measure_run(folder: Path, tree: GameTree, tabulator: PolicyTabulator) -> RunMeasures:
    """Compute a run's learning curves.

    Args:
        folder: Of the run.
        tree: Of its game.
        tabulator: The game's questions, of the run's base model.
    """
    games, steps, every = 0, 0, 0
    own = [tabulator.tabulate(None)]
    others: list[Probabilities] = []
    curve = [_curve_point(tree, (0, 0), own, others)]
    for event in read_events(folder):
        if isinstance(event, MatchFinished):
            games += 1
        elif isinstance(event, PolicyPublished) and event.policy == MAIN:
            steps = event.version
        elif isinstance(event, GradientStepTaken):
            every += 1
        elif isinstance(event, CheckpointAdded):
            table = tabulator.tabulate(tabulator.load_adapter((folder / ADAPTERS / event.adapter).read_bytes()))
            (own if event.policy == MAIN else others).append(table)
            if event.policy == MAIN:
                curve.append(_curve_point(tree, (games, steps), own, others))
    done = msgspec.json.decode((folder / DONE).read_bytes(), type=RunCost)
    return RunMeasures(curve, games, steps, every, done.seconds)


def _curve_point(
    tree: GameTree, at: tuple[int, int], own: Sequence[Probabilities], others: Sequence[Probabilities]
) -> CurvePoint:
    population = [*own, *others]
    return CurvePoint(
        *at,
        last=tree.exploitability(own[-1]),
        mean=tree.exploitability(tree.mixture_policy(own, [1 / len(own)] * len(own))),
        nash=tree.exploitability(tree.mixture_policy(population, _nash_weights(tree, population)))
        if tree.is_zero_sum
        else 0.0,
        own=tree.own_value(own[-1]),
    )


def _nash_weights(tree: GameTree, population: Sequence[Probabilities]) -> list[float]:
    return nash_average(tree.payoff_matrix(population)).share


class MeasureReader:
    """Reads the runs of one game.

    Args:
        models: Folder of the base models.
        game: Its name here.
    """

    def __init__(self, models: Path, game: str) -> None:
        self._models = models
        self._game = game
        self._bench = BENCHMARKS[game]
        self._tree = self._bench.tree()
        self._tables: dict[int, PolicyTabulator] = {}

    def read(self, folder: Path, seed: int) -> RunMeasures:
        """What a run came to; computed once, and kept beside its history."""
        of = f"{_METHOD_VERSION} {digest((folder / HISTORY).read_bytes())}"
        if (folder / MEASURED_FILE).exists():
            kept = msgspec.json.decode((folder / MEASURED_FILE).read_bytes(), type=_CachedMeasures)
            if kept.of == of:
                return kept.measured
        if seed not in self._tables:
            self._tables[seed] = PolicyTabulator(self._bench.game, self._tree, self._models / f"{self._game}-{seed}")
        found = measure_run(folder, self._tree, self._tables[seed])
        (folder / MEASURED_FILE).write_bytes(msgspec.json.encode(_CachedMeasures(of, found)))
        return found
