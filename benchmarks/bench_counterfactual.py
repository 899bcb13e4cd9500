"""What-ifs over a long history: ``league replay --set`` without the start of its process, per rating system.

The peer is the specification's formula over results that are in memory: what reading and folding a history adds to it.
"""

import sys
import time

from benchmarks.bench_ratings import AGENTS, Match, make_formula, make_matches
from benchmarks.sizes import size
from league.history.counterfactual import Counterfactual, compare_ratings
from league.log.base import RecordedEvent
from league.projections.projection import Projection
from schemas import events as e
from schemas.codec import encode_event
from schemas.config import LeagueConfig, to_builtins

MATCHES = size(100_000, 500)
SYSTEMS = {"elo": ["ratings.elo.k=16"], "openskill": [], "trueskill": []}


def make_history(matches: list[Match]) -> list[RecordedEvent]:
    """A league's opening, its agents and the matches."""
    events: list[e.Event] = [e.LeagueOpened(league="what-if", config=to_builtins(LeagueConfig()), model="")]
    events += [e.AgentRegistered(agent=name, kind="bot", baseline=False, rating=1000.0) for name in AGENTS]
    for number, match in enumerate(matches):
        seats = [e.SeatResult(seat, f"S{seat}", agent, score, 1) for seat, (agent, score) in enumerate(match)]
        events.append(e.MatchFinished(f"w-{number}", "diplomacy", "evaluation", "w", 0, seats, None, "", 1, 0.0))
    return [
        RecordedEvent(sequence, sequence, "", "w", encode_event(event))
        for sequence, event in enumerate(events, start=1)
    ]


def main() -> int:
    """Print seconds by system; 1 when Elo's ratings differ from the formula's in a single bit."""
    matches = make_matches(MATCHES)
    history = make_history(matches)
    found: dict[str, dict[str, float | None]] = {}
    with Projection() as projection:
        projection.apply(history)
        print(f"{MATCHES:,} matches of 7 seats under other rules")
        for system, settings in SYSTEMS.items():
            started = time.perf_counter()
            otherwise = Counterfactual(settings=settings, system=system)
            comparison = compare_ratings(projection.connection, len(history), otherwise)
            seconds = time.perf_counter() - started
            found[system] = {move.agent: move.rating for move in comparison.moves}
            print(f"{system:<26}{seconds:>8.2f} s   {MATCHES / seconds:>10,.0f} matches/s")
    _, play, _ = make_formula(16.0)
    expected = dict.fromkeys(AGENTS, 1000.0)
    started = time.perf_counter()
    for match in matches:
        play(expected, match)
    seconds = time.perf_counter() - started
    print(f"{'formula, in memory':<26}{seconds:>8.2f} s   {MATCHES / seconds:>10,.0f} matches/s")
    return int(found["elo"] != {agent: expected[agent] for agent in found["elo"]})


if __name__ == "__main__":
    sys.exit(main())
