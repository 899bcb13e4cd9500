"""Opponent sampling: PFSP's realised shares against its target, and the time of a match's draw.

The peer is the specification's tiered sampler in plain Python. Every draw comes after a result, so that the time covers
new standings and six opponents from them, as in a rollout worker. The run fails when shares are too far from their
target, never because of a duration.
"""

import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from benchmarks.sizes import size
from league.matchmaking.audit import total_variation
from league.samplers import SAMPLERS, make_sampler
from league.state import LeagueState
from schemas import events as e
from schemas.config import AgentConfig, LeagueConfig, Plugin, to_builtins
from schemas.standings import Agent, LivePolicy, Standings, WinLoss

MATCHES = size(100_000, 200)
LEAGUES = size((200, 10_000), (50,))
DRAWS = size(100, 5)
SEATS = [1, 2, 3, 4, 5, 6]
MIX = {"mirror": 0.3, "peers": 0.4, "exploitable": 0.2, "baselines": 0.1}
MAX_DISTANCE = size(0.02, 0.3)
"""Bound on the total variation distance between realised and target shares."""


def make_standings(without: str) -> Standings:
    """A hero at 1200, three baselines and 37 checkpoints; ``without`` names a bucket of ``pfsp`` that nobody is in."""
    rng = Random(1)
    agents = [Agent(f"bot_{n}", "bot", 800.0 + 50 * n, 9, baseline=True) for n in range(3) if without != "baselines"]
    for n in range(37):
        near = without != "peers" and n % 2 == 0
        rating = rng.uniform(1110.0, 1290.0) if near else rng.uniform(600.0, 1000.0)
        agents.append(Agent(f"main@{n}", "checkpoint", rating, 9, policy="main", version=n, adapter=str(n)))
    lost = {agent.name: WinLoss(1, 0, 2) for agent in agents[3::10] if without != "exploitable"}
    live = LivePolicy("main", 38, "1" * 64, 1200.0)
    return Standings(7, {agent.name: agent for agent in agents}, {"main": live}, {"main": lost})


def audit_shares(matches: int) -> None:
    """Realised shares of ``pfsp``, with every bucket but the mirror empty in turn."""
    print(f"{f'pfsp, {matches:,} matches':<34}{'distance':>10}   realised")
    for without in ("", "peers", "exploitable", "baselines"):
        sampler, table, counts, rng = (
            make_sampler(Plugin(name="pfsp")),
            make_standings(without),
            Counter[str](),
            Random(2),
        )
        for _ in range(matches):
            counts.update(pick.bucket for pick in sampler.sample(table, "main", SEATS, rng))
        left = sum(share for bucket, share in MIX.items() if bucket != without)
        target = {bucket: 0.0 if bucket == without else share / left for bucket, share in MIX.items()}
        realised = {bucket: counts[bucket] / counts.total() for bucket in MIX}
        distance = total_variation(target, realised)
        shares = "  ".join(f"{bucket} {100 * share:.2f} %" for bucket, share in realised.items())
        title = f"without {without}" if without else "all buckets populated"
        print(f"{f'  {title}':<34}{distance:>10.5f}   {shares}")
        assert distance <= MAX_DISTANCE, f"expected at most {MAX_DISTANCE}"


def get_opponents(agents: dict[str, dict[str, Any]], hero_elo: float, k: int = 6) -> list[str]:
    """The specification's simple tiered sampler, as it stands there."""
    candidates = list(agents.keys())
    weights = []
    for name in candidates:
        agent = agents[name]
        diff = abs(agent["elo"] - hero_elo)
        if diff < 100:
            weight = 5.0
        elif diff < 300:
            weight = 2.0
        else:
            weight = 0.5
        if agent["type"] == "baseline":
            weight *= 2.0
        weights.append(weight)
    return random.choices(candidates, weights=weights, k=k)


def make_league(agents: int) -> LeagueState:
    """A state with so many rated checkpoints, a third of which the policy has met."""
    state, rng = LeagueState(), Random(4)
    config = msgspec.structs.replace(LeagueConfig(), agents={"base_model": AgentConfig(kind="base", rating=1000.0)})
    state.apply(1, e.LeagueOpened(league="bench", config=to_builtins(config), model=""))
    for n in range(agents):
        joined = e.CheckpointAdded(
            agent=f"main@{n}", policy="main", version=n, parent="base_model", reason="landmark", adapter="1" * 64
        )
        state.apply(n + 2, joined)
    state.apply(agents + 2, e.PolicyPublished(policy="main", version=agents, adapter="1" * 64, parent="main@0"))
    for first in range(0, agents, 6):
        end_match(state, agents, [f"main@{n}" for n in range(first, min(first + 6, agents))], rng)
    return state


def end_match(state: LeagueState, newest: int, opponents: list[str], rng: Random) -> None:
    """End a rated match between the newest version and these agents."""
    number = state.sequence + 1
    names = [f"main@{newest}", *opponents]
    seats = [e.SeatResult(seat, f"S{seat}", agent, rng.random(), 1) for seat, agent in enumerate(names)]
    match = e.MatchFinished(f"w-{number}", "diplomacy", "evaluation", "w", 0, seats, None, "", 1, 0.0)
    state.apply(number, match)
    changes = [e.RatingChange(agent, 0.0, rng.gauss(1100.0, 150.0)) for agent in opponents]
    update = e.RatingUpdated(
        match_id=match.match_id, match_sequence=number, game="diplomacy", system="elo", changes=changes
    )
    state.apply(number + 1, update)


def elapsed_ms(call: Callable[[], object]) -> float:
    """Processor time of a call, which other work on the machine hardly changes."""
    started = time.thread_time()
    call()
    return 1000 * (time.thread_time() - started)


def measure_draws(agents: int) -> None:
    """New standings and six opponents from so many agents, by every sampler, beside the specification's own."""
    state, rng = make_league(agents), Random(3)
    plain = {a.name: {"elo": a.rating, "type": a.kind} for a in state.standings().agents.values()}
    peer = statistics.median(elapsed_ms(lambda: get_opponents(plain, 1200.0)) for _ in range(DRAWS))
    print(f"\n{f'six opponents from {agents:,} agents':<34}{'median':>12}{'95th percentile':>20}")
    print(f"{'  specification, plain Python':<34}{peer:>9.3f} ms")
    for name in SAMPLERS.names():
        sampler, times = make_sampler(Plugin(name=name)), []
        for _ in range(DRAWS):
            end_match(state, agents, [f"main@{n}" for n in rng.sample(range(agents), 6)], rng)
            times.append(elapsed_ms(lambda s=sampler: s.sample(state.standings(), "main", SEATS, rng)))  # type: ignore[misc]
        slowest = statistics.quantiles(times, n=20)[-1]
        print(f"  {name:<32}{statistics.median(times):>9.3f} ms{slowest:>17.3f} ms")


def main() -> None:
    """Print the figures; AssertionError where realised shares are further than ``MAX_DISTANCE`` from their target."""
    audit_shares(int(sys.argv[1]) if len(sys.argv) > 1 else MATCHES)
    for agents in LEAGUES:
        measure_draws(agents)


if __name__ == "__main__":
    main()
