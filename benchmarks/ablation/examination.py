"""How many fixed questions the students of a run answer that teachers asked others of, as evaluations in a league do.

The questions are the same for all runs, and as many for every student and for the base model; each is answered once at
temperature 1. Nobody is trained meanwhile. Which student counts is told by what it earned in training, not by this.
"""

import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import msgspec

from benchmarks.ablation.arms import ARMS, MAIN, SETTINGS, STUDENTS, Arm, Setting, run_config
from benchmarks.ablation.driver import DONE, RunCost, play_held_out
from benchmarks.ablation.games import BENCHMARKS, GameBenchmark
from benchmarks.ablation.intervals import Interval, mean_interval
from benchmarks.ablation.measures import read_events
from benchmarks.ablation.trials import Trial, finished_trials, seed_of
from schemas.events import GradientStepTaken, MatchFinished
from schemas.ids import agent_name, derive_seed, split_agent
from schemas.jobs import PlayMatch

REWARDED_MATCHES = 64
"""A student's newest training matches, by whose rewards the best one is chosen."""
MEASURES = {"best": "best student by its training rewards", "mean": "mean of the students", "main": "first student"}
BASE = "base"
"""What the base model answers, beside the measures."""
HALF = "half"
"""The version of an only student after as many steps as each of two takes."""


class Examination(Trial):
    """The questions, put to a version of a student, the newest one or ``HALF``, and to the base model."""

    kind = "examined"

    def __init__(self, bench: GameBenchmark, arm: Arm, setting: Setting, seed: int, run: Path, version: str) -> None:
        steps, student = (bench.steps // 4, MAIN) if version == HALF else (bench.steps, version)
        super().__init__(run, version, steps, run_config(bench, arm, seed, setting), student)
        self._attempts = bench.attempts

    async def run_trial(self, model: Path) -> RunCost:
        """See ``Trial``."""
        frozen = self.frozen_policy()
        matches = [
            PlayMatch(
                match_id=f"{self.kind}-{agent}-{nth}",
                purpose="evaluation",
                seats=[agent],
                seed=derive_seed(0, self.kind, nth),
            )
            for agent in (agent_name(frozen.policy, frozen.version), self.config.base_agent)
            for nth in range(self._attempts)
        ]
        return await play_held_out(self.folder, self.config, model, frozen, matches)


class Examined(msgspec.Struct, frozen=True):
    """What the students of a run came to."""

    shares: dict[str, float]
    """By measure, and of ``BASE``: the share of the questions that was answered."""
    matches: int
    """Training matches of all policies."""
    steps: dict[str, int]
    """By policy."""
    seconds: float
    """Of CPU, without the examination."""


def examinations(bench: GameBenchmark, arm: Arm, setting: Setting, seed: int, run: Path) -> list[Examination]:
    """One of each student of a run, of an only one two: none where nobody is asked."""
    if not bench.attempts:
        return []
    versions = (MAIN, HALF) if arm.pairs == 1 else STUDENTS[: arm.pairs]
    return [Examination(bench, arm, setting, seed, run, version) for version in versions]


def recent_reward(run: Path, policy: str) -> float:
    """The mean reward of a policy in its newest matches that it was trained on, whatever its version; 0 without any."""
    earned = [
        seat.score
        for event in read_events(run)
        if isinstance(event, MatchFinished)
        for seat in event.seats
        if seat.trainable and (split_agent(seat.agent) or ("", 0))[0] == policy
    ]
    return statistics.fmean(earned[-REWARDED_MATCHES:] or [0.0])


def answered_shares(folder: Path) -> tuple[float, float]:
    """The shares of the questions that a student and the base model answered."""
    right: tuple[list[float], list[float]] = [], []
    for event in read_events(folder):
        if isinstance(event, MatchFinished):
            (seat,) = event.seats
            right[split_agent(seat.agent) is None].append(seat.score)
    return statistics.fmean(right[0]), statistics.fmean(right[1])


def read_run(run: Path, students: Sequence[Path]) -> Examined:
    """What a run's students came to.

    Args:
        run: Its folder.
        students: Folders of their examinations.
    """
    found = {folder.name.removeprefix(f"{Examination.kind}-"): answered_shares(folder) for folder in students}
    answered = {student: share for student, (share, _) in found.items()}
    best = max(sorted(answered), key=lambda student: recent_reward(run, student))
    events = list(read_events(run))
    steps: dict[str, int] = {}
    for event in events:
        if isinstance(event, GradientStepTaken):
            steps[event.policy] = steps.get(event.policy, 0) + 1
    done = msgspec.json.decode((run / DONE).read_bytes(), type=RunCost)
    return Examined(
        {
            "best": answered[best],
            "mean": statistics.fmean(answered.values()),
            "main": answered[MAIN],
            BASE: found[MAIN][1],
        },
        sum(isinstance(event, MatchFinished) for event in events),
        steps,
        done.seconds,
    )


def read_runs(folder: Path, game: str, setting: str) -> dict[str, dict[int, Examined]]:
    """All finished runs of a game, by arm and seed."""
    found: dict[str, dict[int, Examined]] = {}
    trials = finished_trials(folder, game, setting, Examination.kind, STUDENTS)
    for arm, _ in trials:
        students = [one for student in STUDENTS[: ARMS[arm].pairs] for one in trials.get((arm, student), [])]
        runs = {run: [one for one in students if one.parent == run] for run in sorted({one.parent for one in students})}
        found[arm] = {
            seed_of(of_run[0]): read_run(run, of_run) for run, of_run in runs.items() if len(of_run) == ARMS[arm].pairs
        }
    return {arm: dict(sorted(of_arm.items())) for arm, of_arm in found.items() if of_arm}


def differences(runs: Mapping[str, Mapping[int, Examined]], measure: str) -> dict[tuple[str, str], Interval]:
    """A later arm's shares minus an earlier one's, over the seeds that both have; by the earlier and the later one."""
    return {
        (one, other): mean_interval(
            [runs[other][seed].shares[measure] - runs[one][seed].shares[measure] for seed in both]
        )
        for one, other in combinations(runs, 2)
        if (both := sorted({*runs[one]} & {*runs[other]}))
    }


def equal_steps_lines(folder: Path, game: str, setting: str, runs: Mapping[str, Mapping[int, Examined]]) -> list[str]:
    """The best of two students minus an only one after as many steps, seed by seed: a paragraph, or none."""
    halves = finished_trials(folder, game, setting, Examination.kind, (HALF,))
    lines = []
    for (one, _), folders in halves.items():
        shares = {seed_of(of_half): answered_shares(of_half)[0] for of_half in folders}
        compared = [
            f"{ARMS[other].title} {mean_interval([runs[other][seed].shares['best'] - shares[seed] for seed in both])}"
            for other in runs
            if other != one and (both := sorted({*runs[other]} & {*shares}))
        ]
        share = mean_interval([*shares.values()])
        title = f"{ARMS[one].title}, after half of its steps: {share}"
        lines += [f"By equal steps of a student ({title}), best student, seed by seed: {'; '.join(compared)}.", ""]
    return lines


def render_table(game: str, setting: str, runs: Mapping[str, Mapping[int, Examined]]) -> str:
    """A game's tables in Markdown: the arms, and their differences seed by seed."""
    bench, columns = BENCHMARKS[game], {**MEASURES, BASE: "base model"}
    lines = [
        f"**{bench.title}, {SETTINGS[setting].title}** (share of {bench.attempts:,} fixed questions; {bench.games:,} "
        "matches a run)",
        "",
        f"| arm | seeds | {' | '.join(columns.values())} | matches | steps of students | of teachers | CPU s |",
        "|---|" + "---|" * (len(columns) + 5),
        *(_arm_line(arm, of_arm, [*columns]) for arm, of_arm in runs.items()),
        "",
    ]
    pairs = {measure: differences(runs, measure) for measure in MEASURES}
    if not pairs["best"]:
        return "\n".join(lines)
    return "\n".join(
        [
            *lines,
            f"| seed by seed | {' | '.join(MEASURES.values())} |",
            "|---|" + "---|" * len(MEASURES),
            *(
                f"| {ARMS[other].title}, minus {ARMS[one].title} | "
                f"{' | '.join(str(of_measure[one, other]) for of_measure in pairs.values())} |"
                for one, other in pairs["best"]
            ),
            "",
        ]
    )


def _arm_line(arm: str, runs: Mapping[int, Examined], measures: Sequence[str]) -> str:
    shares = " | ".join(str(mean_interval([run.shares[measure] for run in runs.values()])) for measure in measures)
    counts = [f"{statistics.fmean(one):,.0f}" for one in zip(*map(_counts, runs.values()), strict=True)]
    return f"| {ARMS[arm].title} | {len(runs)} | {shares} | {' | '.join(counts)} |"


def _counts(run: Examined) -> tuple[float, ...]:
    """Matches, gradient steps of students and of teachers, and processor seconds."""
    of_students = sum(steps for policy, steps in run.steps.items() if policy in STUDENTS)
    return run.matches, of_students, sum(run.steps.values()) - of_students, run.seconds


def render_tables(folder: Path, game: str) -> Sequence[str]:
    """Of each setting that has finished runs."""
    found = {setting: read_runs(folder, game, setting) for setting in SETTINGS}
    return [
        "\n".join([render_table(game, setting, one), *equal_steps_lines(folder, game, setting, one)])
        for setting, one in found.items()
        if one
    ]
