"""Which rating system predicts the next match best, over histories: the ablation's runs, or any league's events.

Every match between different agents is predicted from the ratings before it, then rated. A match of more than two seats
is predicted pair by pair of seats with different agents, each pair as a game of two, and its pairs count as one match
together. Nothing is fitted: a version begins where its policy's version before it stands, as in any league.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

import msgspec

from benchmarks.ablation.driver import DONE
from benchmarks.ablation.measures import read_events
from league.ratings.base import RatingTable, StartRatings, make_rating_system, rate_match
from schemas.config import Plugin
from schemas.events import AgentRegistered, CheckpointAdded, Event, MatchFinished, PolicyReset

SYSTEMS = {
    "Elo": Plugin("elo"),
    "Elo, k of 8": Plugin("elo", {"k": 8.0}),
    "Glicko-2": Plugin("glicko2"),
    "OpenSkill": Plugin("openskill"),
    "TrueSkill": Plugin("trueskill"),
}
"""At their defaults but where the name says otherwise."""
MATCH_BINS = (0, 1, 8, 32, 128)
"""Least rated matches of the less known of both agents."""
_ELO_Q = math.log(10) / 400


class MeanLoss(msgspec.Struct):
    """Of some predictions."""

    matches: float = 0.0
    """A pair of seats is its share of the match."""
    total: float = 0.0
    """Of ``-(s log p + (1 - s) log(1 - p))`` in nats, s being 1, a half or 0."""

    def add(self, loss: float, weight: float = 1.0) -> None:
        """Take one more prediction."""
        self.matches += weight
        self.total += weight * loss

    @property
    def mean(self) -> float:
        """Per match."""
        return self.total / self.matches if self.matches else math.nan


Losses = dict[str, dict[int, MeanLoss]]
"""Of each system, by how well the agents were known."""


class PredictionReport(msgspec.Struct):
    """What systems made of histories."""

    losses: Losses
    matches: dict[str, list[float]]
    """Of each system, every match's loss, in the same order for all."""

    def loss_difference(self, name: str, than: str) -> str:
        """How much less one system's loss is a match than another's, with its 95 % interval over matches.

        Matches are taken as independent of each other.
        """
        gaps = [other - own for own, other in zip(self.matches[name], self.matches[than], strict=True)]
        half = 1.96 * statistics.stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else math.inf
        return f"{statistics.fmean(gaps):+.4f} ± {half:.4f}"


def expected_share(difference: float, deviations: Sequence[float]) -> float:
    """The first one's expected share of the points.

    Elo's curve, flattened by how little is known of both: Glickman 1999, equations 3 and 13, with the deviations of
    both agents; a system without deviations has Elo's.

    Args:
        difference: The first one's rating less the second's.
        deviations: Of the ratings.
    """
    variance = sum(deviation**2 for deviation in deviations)
    flat = 1 / math.sqrt(1 + 3 * _ELO_Q**2 * variance / math.pi**2)
    return 1 / (1 + 10 ** (-flat * difference / 400))


def predict_histories(paths: Iterable[Path]) -> PredictionReport:
    """Of several histories together, each predicted by itself.

    Args:
        paths: Folders of runs, or files of ``league events --json``.
    """
    total = _empty_report()
    for path in paths:
        predict_history(read_events(path), total)
    return total


def _empty_report() -> PredictionReport:
    return PredictionReport({name: defaultdict(MeanLoss) for name in SYSTEMS}, {name: [] for name in SYSTEMS})


def predict_history(events: Iterable[Event], found: PredictionReport | None = None) -> PredictionReport:
    """Of one history.

    Args:
        events: From its beginning.
        found: What is added to; None for nothing yet.
    """
    starts, found = StartRatings(), found or _empty_report()
    tables = {name: RatingTable(starts, make_rating_system(plugin)) for name, plugin in SYSTEMS.items()}
    for event in events:
        if isinstance(event, AgentRegistered | CheckpointAdded):
            starts.register(event)
        elif isinstance(event, PolicyReset):
            starts.record_reset(event)
        elif isinstance(event, MatchFinished) and len({seat.agent for seat in event.seats}) > 1:
            for name, table in tables.items():
                found.matches[name].append(_predict_and_rate(event, table, found.losses[name]))
    return found


def _predict_and_rate(match: MatchFinished, table: RatingTable, found: dict[int, MeanLoss]) -> float:
    pairs = [(one, two) for one, two in combinations(match.seats, 2) if one.agent != two.agent]
    whole = 0.0
    for one, two in pairs:
        games = min(table.games.get(one.agent, 0), table.games.get(two.agent, 0))
        deviations = [table.deviation(agent) for agent in (one.agent, two.agent)]
        chance = expected_share(table.rating(one.agent) - table.rating(two.agent), deviations)
        share = 0.5 if one.score == two.score else float(one.score > two.score)
        loss = -(share * math.log(chance) + (1 - share) * math.log(1 - chance))
        found[max(least for least in MATCH_BINS if games >= least)].add(loss, 1 / len(pairs))
        whole += loss / len(pairs)
    states = {seat.agent: table.state(seat.agent) for seat in match.seats}
    table.update(rate_match(table.system, match, states, table.games))
    return whole


def ablation_table(folder: Path, game: str, seeds: Sequence[int]) -> str:
    """The table of a game of the ablation in Markdown; empty where nothing was trained."""
    runs = [path.parent for path in sorted((folder / game).glob(f"*/*/*/{DONE}")) if int(path.parent.name) in seeds]
    return render_table(f"{game}, {len(runs)} runs", predict_histories(runs))


def log_table(path: Path) -> str:
    """The table of a league's history in Markdown.

    Args:
        path: A file of ``league events --json``.
    """
    return render_table(path.stem, predict_histories([path]))


def render_table(title: str, found: PredictionReport) -> str:
    """Log-losses in Markdown; empty where there was no match."""
    first, *_ = SYSTEMS
    least = sorted(found.losses[first])
    if not least:
        return ""
    heads = " | ".join(f"{one}+" for one in least)
    counts = " | ".join(f"{found.losses[first][one].matches:,.0f}" for one in least)
    lines = [
        f"| {title}: matches known | {heads} | all | less than {first} |",
        "|---|" + "---|" * (len(least) + 2),
        f"| matches | {counts} | {len(found.matches[first]):,} | |",
    ]
    for name, by_least in found.losses.items():
        means = " | ".join(f"{by_least[one].mean:.4f}" for one in least)
        gap = "" if name == first else found.loss_difference(name, first)
        lines.append(f"| {name} | {means} | {statistics.fmean(found.matches[name]):.4f} | {gap} |")
    return "\n".join(lines)
