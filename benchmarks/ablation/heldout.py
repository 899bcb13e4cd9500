"""How a run's policy does against scripted bots that nobody met in training: a population held out from every arm.

An exploiter says how bad the worst opponent is that was found; these say how a policy does against whoever else comes.
The bots, seats and seeds are the same for all arms, and the policy samples as it does in training.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.ablation.arms import ARMS, MAIN, SETTINGS, Arm, Setting, config_of
from benchmarks.ablation.driver import Done, meet
from benchmarks.ablation.games import BENCHES, Bench
from benchmarks.ablation.intervals import Interval, interval
from benchmarks.ablation.local import Frozen
from benchmarks.ablation.measures import history
from benchmarks.ablation.trials import Trial, finished, named, points, versions_of
from schemas.config import AgentConfig
from schemas.events import MatchFinished
from schemas.ids import agent_name, derive_seed
from schemas.jobs import PlayMatch

ALL = "all"
"""The mean over the bots, of which each counts alike."""


class HeldOut(Trial):
    """The games of one version of one run against the bots."""

    kind = "held-out"

    def __init__(self, bench: Bench, setting: Setting, seed: int, run: Path, version: str, steps: int) -> None:
        config = config_of(bench, ARMS["mirror"], seed, setting)
        bots = {name: AgentConfig(kind="bot", rating=1000.0) for name in bench.held_out}
        super().__init__(run, version, steps, msgspec.structs.replace(config, agents={**config.agents, **bots}))
        self._bench = bench

    async def done(self, model: Path) -> Done:
        """See ``Trial``."""
        frozen = self.frozen()
        return await meet(self.folder, self.config, model, frozen, self._matches(frozen))

    def _matches(self, frozen: Frozen) -> list[PlayMatch]:
        """Each bot equally often from both seats, with the same seed from either."""
        agent = agent_name(frozen.policy, frozen.version)
        return [
            PlayMatch(
                match_id=f"{self.kind}-{bot}-{nth}",
                purpose="evaluation",
                seats=[agent, bot] if nth % 2 == 0 else [bot, agent],
                seed=derive_seed(self.config.seed, self.kind, bot, nth // 2),
            )
            for bot in self._bench.held_out
            for nth in range(self._bench.held_out_games)
        ]


class Met(msgspec.Struct, frozen=True):
    """What an arm took from the bots, over seeds: shares of the points, a draw being half a point to each."""

    seeds: int
    shares: dict[str, Interval]
    """By bot, and of ``ALL``."""


def held_out_of(bench: Bench, arm: Arm, setting: Setting, seed: int, run: Path) -> list[HeldOut]:
    """The games that a run's versions are to play: none where nobody is held out."""
    if not bench.held_out:
        return []
    return [HeldOut(bench, setting, seed, run, *version) for version in versions_of(bench, arm).items()]


def shares(folder: Path) -> dict[str, float]:
    """The policy's share of the points by bot, and of ``ALL``."""
    won: dict[str, list[float]] = {}
    for event in history(folder):
        if isinstance(event, MatchFinished):
            (bot,) = (seat.agent for seat in event.seats if "@" not in seat.agent)
            won.setdefault(bot, []).append(points(event, MAIN))
    found = {bot: statistics.fmean(of_bot) for bot, of_bot in won.items()}
    return {**found, ALL: statistics.fmean(found.values())}


def met(folder: Path, game: str, setting: str) -> dict[tuple[str, str], Met]:
    """By arm and version: what it took from the bots."""
    found = {}
    for which, folders in finished(folder, game, setting, HeldOut.kind).items():
        told = [shares(one) for one in folders]
        found[which] = Met(len(told), {bot: interval([one[bot] for one in told]) for bot in told[0]})
    return found


def written(game: str, setting: str, found: Mapping[tuple[str, str], Met]) -> str:
    """A game's table in Markdown."""
    bench = BENCHES[game]
    bots = next(iter(found.values())).shares
    lines = [
        f"**{bench.title}, {SETTINGS[setting].title}** (share of the points against bots that nobody met in training; "
        f"{bench.held_out_games:,} games against each, from both seats alike)",
        "",
        f"| who plays | steps | seeds | {' | '.join(bots)} |",
        "|---|---|---|" + "---|" * len(bots),
        *(
            f"| {named(game, *which)} | {one.seeds} | {' | '.join(map(str, one.shares.values()))} |"
            for which, one in found.items()
        ),
    ]
    return "\n".join([*lines, ""])


def tables(folder: Path, game: str) -> Sequence[str]:
    """Of each setting that has finished runs."""
    found = {setting: met(folder, game, setting) for setting in SETTINGS}
    return [written(game, setting, one) for setting, one in found.items() if one]
