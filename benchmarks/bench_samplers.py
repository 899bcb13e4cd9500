"""Choosing opponents: PFSP's realised shares against its target, and microseconds a match among 10,000 agents."""

import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from league.samplers.base import SAMPLERS, make_sampler
from league.state import LeagueState
from schemas.config import Plugin
from schemas.events import AgentRegistered, CheckpointAdded, PolicyPublished
from schemas.standings import Agent, Live, Record, Standings

MATCHES = 100_000
AGENTS = 10_000
DRAWS = 2_000
SEATS = [1, 2, 3, 4, 5, 6]
MIX = {"mirror": 0.3, "peers": 0.4, "exploitable": 0.2, "baselines": 0.1}
MOST_DISTANCE = 0.02
MOST_US = 100.0


def league(agents: int, without: str = "") -> Standings:
    """A hero at 1200, three baselines, and checkpoints around it; the policy mostly lost to the weakest tenth.

    ``without`` names a bucket of ``pfsp`` that nobody is in.
    """
    rng = Random(1)
    table = [Agent(f"bot_{n}", "bot", 800.0 + 50 * n, 9, baseline=True) for n in range(3) if without != "baselines"]
    for n in range(agents - len(table)):
        near = without != "peers" and n % 2 == 0
        rating = rng.uniform(1110.0, 1290.0) if near else rng.uniform(600.0, 1000.0)
        table.append(Agent(f"main@{n}", "checkpoint", rating, 9, policy="main", version=n))
    lost = {agent.name: Record(1, 0, 2) for agent in table[3::10] if without != "exploitable"}
    live = Live("main", agents + 1, "1" * 64, 1200.0)
    return Standings(7, {agent.name: agent for agent in table}, {"main": live}, {"main": lost})


def audit(matches: int) -> None:
    """Realised shares of ``pfsp`` over many matches, every bucket but the mirror empty in turn."""
    print(f"{f'pfsp, {matches:,} matches':<34}{'distance':>10}   realised")
    for without in ("", "peers", "exploitable", "baselines"):
        sampler, table, counts, rng = make_sampler(Plugin(name="pfsp")), league(40, without), Counter[str](), Random(2)
        for _ in range(matches):
            counts.update(pick.bucket for pick in sampler.sample(table, "main", SEATS, rng))
        left = sum(share for bucket, share in MIX.items() if bucket != without)
        target = {bucket: 0.0 if bucket == without else share / left for bucket, share in MIX.items()}
        realised = {bucket: counts[bucket] / counts.total() for bucket in MIX}
        distance = sum(abs(realised[bucket] - share) for bucket, share in target.items()) / 2
        shares = "  ".join(f"{bucket} {100 * share:.2f} %" for bucket, share in realised.items())
        print(f"{f'  without {without}' if without else '  all buckets populated':<34}{distance:>10.5f}   {shares}")
        assert distance <= MOST_DISTANCE, f"expected at most {MOST_DISTANCE}"


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


def median_us(call: Callable[[], object], times: int) -> float:
    """Median duration of a call in microseconds."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken) * 1e6


def fresh(table: Standings) -> Standings:
    """The same standings as another object, as a state gives them after a change."""
    return Standings(table.sequence, table.agents, table.live, table.records)


def speed(agents: int) -> None:
    """Six opponents from many agents, by every sampler, beside the specification's own."""
    table, rng = league(agents), Random(3)
    plain = {a.name: {"elo": a.rating, "type": "baseline" if a.baseline else a.kind} for a in table.agents.values()}
    seed_us = median_us(lambda: get_opponents(plain, 1200.0), 50)
    print(f"\n{f'six opponents from {agents:,} agents':<34}{'median':>10}{'of new standings':>20}")
    print(f"{'  specification, plain Python':<34}{seed_us:>7.0f} µs{seed_us:>17,.0f} µs")
    for name in SAMPLERS.names():
        sampler = make_sampler(Plugin(name=name))
        first = median_us(lambda sampler=sampler: sampler.sample(fresh(table), "main", SEATS, rng), 15)
        again = median_us(lambda sampler=sampler: sampler.sample(table, "main", SEATS, rng), DRAWS)
        print(f"  {name:<32}{again:>7.1f} µs{first:>17,.0f} µs   {seed_us / again:>6.0f}×")
        assert again < MOST_US, f"expected less than {MOST_US} µs"


def surroundings(agents: int) -> None:
    """What else a match's draw costs: standings after a change, and making a sampler from its configuration."""
    state = LeagueState()
    for n in range(agents):
        joined = CheckpointAdded(
            agent=f"main@{n}", policy="main", version=n, parent="base_model", reason="landmark", adapter="1" * 64
        )
        state.apply(n + 1, joined)
    state.apply(agents + 1, PolicyPublished(policy="main", version=agents, adapter="1" * 64, parent="main@0"))

    def changed() -> None:
        name = f"bot_{state.sequence}"
        state.apply(state.sequence + 1, AgentRegistered(agent=name, kind="bot", baseline=False, rating=800.0))
        state.standings()

    print(f"{'standings made anew by the state':<34}{median_us(changed, 15):>7,.0f} µs")
    print(
        f"{'a sampler from its configuration':<34}{median_us(lambda: make_sampler(Plugin(name='pfsp')), 100):>7,.0f} µs"
    )


def main() -> None:
    """Print the figures; exits with an error when one is not what it should be."""
    audit(int(sys.argv[1]) if len(sys.argv) > 1 else MATCHES)
    speed(AGENTS)
    surroundings(AGENTS)


if __name__ == "__main__":
    main()
