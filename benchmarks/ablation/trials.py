"""What versions of a finished run are put to where no tree says how good they are: each in a league of its own."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.ablation.arms import ARMS, BASELINE_ARM, MAIN, Arm
from benchmarks.ablation.driver import ADAPTERS, DONE, RunCost
from benchmarks.ablation.games import BENCHMARKS, GameBenchmark
from benchmarks.ablation.intervals import mean_interval
from benchmarks.ablation.local import FrozenPolicy
from benchmarks.ablation.measures import read_events
from schemas.config import LeagueConfig
from schemas.events import MatchFinished, PolicyPublished
from schemas.ids import split_agent

FINAL_VERSION, EARLY_VERSION = "end", "third"
"""Which version is put to it: the newest, or that after ``early_share`` of the run's steps, as a rule a third. Where
exploiters share the budget, the main policy takes no more in the end; and who has moved less from random play may be
harder to exploit."""


class Trial(ABC):
    """A version of a run, and a league in which it is frozen. What that leaves behind lies beside the run.

    Args:
        run: Folder of the run.
        version: ``FINAL_VERSION`` or ``EARLY_VERSION``; where each of several policies is tried, the policy.
        steps: Of the run, that the version may have at most.
        config: Of the league.
        policy: Whose version it is.
    """

    kind: str
    """How its folder's name begins."""

    def __init__(self, run: Path, version: str, steps: int, config: LeagueConfig, policy: str = MAIN) -> None:
        self.run, self.version, self.steps, self.config, self.policy = run, version, steps, config, policy

    @property
    def folder(self) -> Path:
        """What it leaves behind."""
        return self.run / f"{self.kind}-{self.version}"

    @property
    def is_done(self) -> bool:
        """Whether it came to its end before."""
        return (self.folder / DONE).exists()

    def frozen_policy(self) -> FrozenPolicy:
        """The newest kept version of the policy with no more steps than asked for."""
        published = [e for e in read_events(self.run) if isinstance(e, PolicyPublished) and e.policy == self.policy]
        kept = [e for e in published if e.version <= self.steps and (self.run / ADAPTERS / e.adapter).exists()]
        newest = max(kept, key=lambda event: event.version)
        return FrozenPolicy(self.policy, newest.version, (self.run / ADAPTERS / newest.adapter).read_bytes())

    @abstractmethod
    async def run_trial(self, model: Path) -> RunCost:
        """Do it, from its beginning; what it cost.

        Args:
            model: Folder of the run's base model.
        """


def trial_versions(bench: GameBenchmark, arm: Arm) -> dict[str, int]:
    """Which versions of a run are tried, and the steps that each may have at most."""
    return (
        {FINAL_VERSION: bench.steps}
        if arm.exploiters
        else {FINAL_VERSION: bench.steps, EARLY_VERSION: _early_steps(bench)}
    )


def _early_steps(bench: GameBenchmark) -> int:
    return int(bench.steps * bench.early_share + 1e-9)


def finished_trials(
    folder: Path, game: str, setting: str, kind: str, versions: Sequence[str] = (FINAL_VERSION, EARLY_VERSION)
) -> dict[tuple[str, str], list[Path]]:
    """Folders of the finished trials of a kind, by arm and version; only of those there are any of."""
    found = {}
    for arm in ARMS:
        for version in versions:
            done = sorted((folder / game / setting / arm).glob(f"*/{kind}-{version}/{DONE}"))
            if done:
                found[arm, version] = [one.parent for one in done]
    return found


def version_cells(game: str, arm: str, version: str) -> str:
    """An arm and the steps of its main policy's version, as the first cells of a row."""
    bench = BENCHMARKS[game]
    most = bench.steps if version == FINAL_VERSION else _early_steps(bench)
    return f"{ARMS[arm].title} | {min(most, bench.steps * ARMS[arm].share):.0f}"


def seed_of(folder: Path) -> int:
    """Of the run that a trial's folder lies beside."""
    return int(folder.parent.name)


def difference_lines(game: str, found: Mapping[tuple[str, str], Mapping[int, float]]) -> list[str]:
    """Mirror self-play's shares minus those of each other arm, over the seeds that both have: a paragraph, or none.

    Args:
        game: Its name here.
        found: By arm and version: a share by seed.
    """
    differences = []
    for version in (FINAL_VERSION, EARLY_VERSION):
        mirrors = found.get((BASELINE_ARM, version), {})
        for (arm, _), shares in found.items():
            both = [seed for seed in shares if seed in mirrors and arm != BASELINE_ARM]
            if both:
                title, steps = version_cells(game, BASELINE_ARM, version).split(" | ")
                interval = mean_interval([mirrors[seed] - shares[seed] for seed in both])
                differences.append(f"{title} after {steps} steps minus {ARMS[arm].title} {interval}")
    return [f"Seed by seed: {'; '.join(differences)}.", ""] if differences else []


def match_points(match: MatchFinished, agent: str) -> float:
    """What the seats of an agent, or of a policy whichever its version, got of a match's point.

    The highest score takes it; those that share the highest score have equal parts of it.
    """
    best = max(seat.score for seat in match.seats)
    leaders = [(split_agent(seat.agent) or (seat.agent, 0))[0] for seat in match.seats if seat.score == best]
    return leaders.count(agent) / len(leaders)
