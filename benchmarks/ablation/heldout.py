"""How a run's policy does against scripted bots that nobody met in training: a population held out from every arm.

An exploiter says how bad the worst opponent is that was found; these say how a policy does against whoever else comes.
The bots, seats and seeds are the same for all arms, and the policy samples as it does in training.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from arena.games import make_game
from benchmarks.ablation.arms import ARMS, MAIN, SETTINGS, Arm, Setting, run_config
from benchmarks.ablation.driver import RunCost, play_held_out
from benchmarks.ablation.games import BENCHMARKS, GameBenchmark
from benchmarks.ablation.intervals import Interval, mean_interval
from benchmarks.ablation.local import FrozenPolicy
from benchmarks.ablation.measures import read_events
from benchmarks.ablation.trials import (
    Trial,
    difference_lines,
    finished_trials,
    match_points,
    seed_of,
    trial_versions,
    version_cells,
)
from schemas.config import AgentConfig
from schemas.events import MatchFinished
from schemas.ids import agent_name, derive_seed
from schemas.jobs import PlayMatch

ALL_BOTS = "all"
"""The mean over the bots, of which each counts alike."""


class HeldOutTrial(Trial):
    """The games of one version of one run against the bots."""

    kind = "held-out"

    def __init__(self, bench: GameBenchmark, setting: Setting, seed: int, run: Path, version: str, steps: int) -> None:
        config = run_config(bench, ARMS["mirror"], seed, setting)
        bots = {name: AgentConfig(kind="bot", rating=1000.0) for name in bench.held_out}
        super().__init__(run, version, steps, msgspec.structs.replace(config, agents={**config.agents, **bots}))
        self._bench = bench

    async def run_trial(self, model: Path) -> RunCost:
        """See ``Trial``."""
        frozen = self.frozen_policy()
        return await play_held_out(self.folder, self.config, model, frozen, self._matches(frozen))

    def _matches(self, frozen: FrozenPolicy) -> list[PlayMatch]:
        """Each bot, in all seats but the policy's, equally often from every seat, with the same seed from each."""
        agent = agent_name(frozen.policy, frozen.version)
        seats = len(make_game(self._bench.game.name, self._bench.game.settings).seats)
        return [
            PlayMatch(
                match_id=f"{self.kind}-{bot}-{nth}",
                purpose="evaluation",
                seats=[agent if seat == nth % seats else bot for seat in range(seats)],
                seed=derive_seed(self.config.seed, self.kind, bot, nth // seats),
            )
            for bot in self._bench.held_out
            for nth in range(self._bench.held_out_games)
        ]


class HeldOutShares(msgspec.Struct, frozen=True):
    """What an arm took from the bots, over seeds: shares of the points, which a draw divides."""

    seeds: int
    shares: dict[str, Interval]
    """By bot, and of ``ALL_BOTS``."""
    all_by_seed: dict[int, float]
    """The last, of each."""


def held_out_trials(bench: GameBenchmark, arm: Arm, setting: Setting, seed: int, run: Path) -> list[HeldOutTrial]:
    """The games that a run's versions are to play: none where nobody is held out."""
    if not bench.held_out:
        return []
    return [HeldOutTrial(bench, setting, seed, run, *version) for version in trial_versions(bench, arm).items()]


def bot_shares(folder: Path) -> dict[str, float]:
    """The policy's share of the points by bot, and of ``ALL_BOTS``."""
    won: dict[str, list[float]] = {}
    for event in read_events(folder):
        if isinstance(event, MatchFinished):
            (bot,) = {seat.agent for seat in event.seats if "@" not in seat.agent}
            won.setdefault(bot, []).append(match_points(event, MAIN))
    found = {bot: statistics.fmean(of_bot) for bot, of_bot in won.items()}
    return {**found, ALL_BOTS: statistics.fmean(found.values())}


def read_shares(folder: Path, game: str, setting: str) -> dict[tuple[str, str], HeldOutShares]:
    """By arm and version: what it took from the bots."""
    found = {}
    for which, folders in finished_trials(folder, game, setting, HeldOutTrial.kind).items():
        runs = {seed_of(one): bot_shares(one) for one in folders}
        shares = {bot: mean_interval([one[bot] for one in runs.values()]) for bot in next(iter(runs.values()))}
        found[which] = HeldOutShares(len(runs), shares, {seed: one[ALL_BOTS] for seed, one in runs.items()})
    return found


def render_table(game: str, setting: str, found: Mapping[tuple[str, str], HeldOutShares]) -> str:
    """A game's table in Markdown."""
    bench = BENCHMARKS[game]
    bots = next(iter(found.values())).shares
    lines = [
        f"**{bench.title}, {SETTINGS[setting].title}** (share of the points against bots that nobody met in training; "
        f"{bench.held_out_games:,} games against each, from every seat alike)",
        "",
        f"| who plays | steps | seeds | {' | '.join(bots)} |",
        "|---|---|---|" + "---|" * len(bots),
        *(
            f"| {version_cells(game, *which)} | {one.seeds} | {' | '.join(map(str, one.shares.values()))} |"
            for which, one in found.items()
        ),
    ]
    differences = difference_lines(game, {which: one.all_by_seed for which, one in found.items()})
    return "\n".join([*lines, "", *differences])


def render_tables(folder: Path, game: str) -> Sequence[str]:
    """Of each setting that has finished runs."""
    found = {setting: read_shares(folder, game, setting) for setting in SETTINGS}
    return [render_table(game, setting, one) for setting, one in found.items() if one]
