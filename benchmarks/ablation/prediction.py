"""Which rating system predicts the next match best, over the histories of the ablation's runs.

Every match between different agents is predicted from the ratings before it, then rated. Nothing is fitted: settings
are the systems' defaults, and a version begins where its policy's version before it stands, as in any league.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from benchmarks.ablation.driver import DONE
from benchmarks.ablation.measures import history
from league.ratings.base import make_rating_system, rate
from league.ratings.table import RatingTable, Starts
from schemas.config import Plugin
from schemas.events import AgentRegistered, Event, MatchFinished, PolicyReset

SYSTEMS = ("elo", "glicko2", "openskill", "trueskill")
BINS = (0, 1, 8, 32, 128)
"""Least rated matches of the less known of both agents."""
_Q = math.log(10) / 400


class Loss(msgspec.Struct):
    """Of some predictions."""

    matches: int = 0
    total: float = 0.0
    """Of ``-(s log p + (1 - s) log(1 - p))`` in nats, s being 1, a half or 0."""

    @property
    def mean(self) -> float:
        """Per match."""
        return self.total / self.matches if self.matches else math.nan


def expected(difference: float, deviations: Sequence[float]) -> float:
    """The first one's expected share of the points.

    Elo's curve, flattened by how little is known of both: Glickman 1999, equations 3 and 13, with the deviations of
    both agents; a system without deviations has Elo's.

    Args:
        difference: The first one's rating less the second's.
        deviations: Of the ratings.
    """
    variance = sum(deviation**2 for deviation in deviations)
    flat = 1 / math.sqrt(1 + 3 * _Q**2 * variance / math.pi**2)
    return 1 / (1 + 10 ** (-flat * difference / 400))


def losses(events: Iterable[Event]) -> dict[str, dict[int, Loss]]:
    """Of each system, by how well the agents were known."""
    starts = Starts()
    tables = {name: RatingTable(starts, make_rating_system(Plugin(name))) for name in SYSTEMS}
    found: dict[str, dict[int, Loss]] = {name: defaultdict(Loss) for name in SYSTEMS}
    for event in events:
        if isinstance(event, AgentRegistered):
            starts.register(event)
        elif isinstance(event, PolicyReset):
            starts.reset(event)
        elif isinstance(event, MatchFinished) and event.seats[0].agent != event.seats[1].agent:
            for name, table in tables.items():
                _take(event, table, found[name])
    return found


def _take(match: MatchFinished, table: RatingTable, found: dict[int, Loss]) -> None:
    first, second = (seat.agent for seat in match.seats)
    games = min(table.games.get(first, 0), table.games.get(second, 0))
    chance = expected(table.rating(first) - table.rating(second), [table.deviation(agent) for agent in (first, second)])
    scores = [seat.score for seat in match.seats]
    share = 0.5 if scores[0] == scores[1] else float(scores[0] > scores[1])
    loss = found[max(least for least in BINS if games >= least)]
    loss.matches += 1
    loss.total -= share * math.log(chance) + (1 - share) * math.log(1 - chance)
    states = {agent: table.state(agent) for agent in (first, second)}
    table.update(rate(table.system, match, states, table.games))


def predicted(folders: Iterable[Path]) -> dict[str, dict[int, Loss]]:
    """Of several runs together."""
    total: dict[str, dict[int, Loss]] = {name: {least: Loss() for least in BINS} for name in SYSTEMS}
    for folder in folders:
        for name, by_least in losses(history(folder)).items():
            for least, loss in by_least.items():
                total[name][least].matches += loss.matches
                total[name][least].total += loss.total
    return total


def table(folder: Path, game: str, seeds: Sequence[int]) -> str:
    """The table of a game in Markdown; empty where nothing was trained."""
    runs = [path.parent for path in sorted((folder / game).glob(f"*/*/*/{DONE}")) if int(path.parent.name) in seeds]
    found = predicted(runs)
    least = [one for one in BINS if found[SYSTEMS[0]][one].matches]
    if not least:
        return ""
    heads = " | ".join(f"{one}+" for one in least)
    counts = " | ".join(f"{found[SYSTEMS[0]][one].matches:,}" for one in least)
    lines = [f"| {game}, {len(runs)} runs: matches known | {heads} |", "|---|" + "---|" * len(least)]
    lines += [f"| matches | {counts} |"]
    lines += [f"| {name} | {' | '.join(f'{by[one].mean:.4f}' for one in least)} |" for name, by in found.items()]
    return "\n".join(lines)
