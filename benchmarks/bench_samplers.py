"""Opponent sampling: PFSP's realised shares against its target, and the cost of a match's draw among 10,000 agents.

The peer is the specification's tiered sampler in plain Python; the ratio says how many times as fast a sampler is.
Draws are timed on standings that stay the same, and on standings that a result changed before every draw. The run fails
when shares are too far from their target, never because of a duration.
"""

import os
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgspec

from benchmarks.sizes import size
from league.matchmaking.pool import fit_to_slots
from league.samplers import SAMPLERS, OpponentSampler, make_sampler
from league.state import LeagueState
from schemas.config import AgentConfig, InferenceConfig, LeagueConfig, Plugin, to_builtins
from schemas.events import (
    CheckpointAdded,
    LeagueOpened,
    MatchFinished,
    PolicyPublished,
    RatingChange,
    RatingUpdated,
    SeatResult,
)
from schemas.standings import Agent, LivePolicy, Standings, WinLoss

MATCHES = size(100_000, 200)
AGENTS = size(10_000, 300)
DRAWS = size(2_000, 5)
RESULTS = size(400, 10)
SEED_DRAWS = size(50, 3)
FIRST_DRAWS = size(15, 2)
SEATS = [1, 2, 3, 4, 5, 6]
MIX = {"mirror": 0.3, "peers": 0.4, "exploitable": 0.2, "baselines": 0.1}
MAX_DISTANCE = size(0.02, 0.3)
"""Bound on the total variation distance between realised and target shares."""


def make_standings(agents: int, without: str = "") -> Standings:
    """A hero at 1200, three baselines, and checkpoints around it; the policy mostly lost to the weakest tenth.

    ``without`` names a bucket of ``pfsp`` that nobody is in.
    """
    rng = Random(1)
    table = [Agent(f"bot_{n}", "bot", 800.0 + 50 * n, 9, baseline=True) for n in range(3) if without != "baselines"]
    for n in range(agents - len(table)):
        near = without != "peers" and n % 2 == 0
        rating = rng.uniform(1110.0, 1290.0) if near else rng.uniform(600.0, 1000.0)
        table.append(Agent(f"main@{n}", "checkpoint", rating, 9, policy="main", version=n, adapter=str(n)))
    lost = {agent.name: WinLoss(1, 0, 2) for agent in table[3::10] if without != "exploitable"}
    live = LivePolicy("main", agents + 1, "1" * 64, 1200.0)
    return Standings(7, {agent.name: agent for agent in table}, {"main": live}, {"main": lost})


def audit_shares(matches: int) -> None:
    """Realised shares of ``pfsp`` over many matches.

    Every bucket but the mirror is empty in turn; then two of three checkpoints rest, and opponents have two slots.
    """
    print(f"{f'pfsp, {matches:,} matches':<34}{'distance':>10}   realised")
    for without in ("", "peers", "exploitable", "baselines"):
        left = sum(share for bucket, share in MIX.items() if bucket != without)
        target = {bucket: 0.0 if bucket == without else share / left for bucket, share in MIX.items()}
        compare_shares(
            f"without {without}" if without else "all buckets populated",
            matches,
            make_standings(40, without),
            target,
            16,
        )
    compare_shares("with a pool and two slots", matches, rest_checkpoints(make_standings(40)), MIX, 3)


def rest_checkpoints(table: Standings) -> Standings:
    """The standings with two of three checkpoints resting."""
    agents = {
        agent.name: msgspec.structs.replace(agent, active=agent.baseline or agent.version % 3 == 0)
        for agent in table.agents.values()
    }
    return Standings(table.sequence, agents, table.live, table.records)


def compare_shares(title: str, matches: int, table: Standings, target: dict[str, float], slots: int) -> None:
    """Realised shares against target, with so many adapter slots."""
    sampler, counts, rng = make_sampler(Plugin(name="pfsp")), Counter[str](), Random(2)
    config = LeagueConfig(inference=InferenceConfig(max_adapters=slots))
    for _ in range(matches):
        drawn = fit_to_slots(sampler.draws(table, "main", SEATS, rng), table, config, "main")
        counts.update(seat.pick.bucket for seat in drawn)
    realised = {bucket: counts[bucket] / counts.total() for bucket in MIX}
    distance = sum(abs(realised[bucket] - share) for bucket, share in target.items()) / 2
    shares = "  ".join(f"{bucket} {100 * share:.2f} %" for bucket, share in realised.items())
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


def median_us(call: Callable[[], object], times: int) -> float:
    """Median processor time of a call in microseconds, which other work on the machine hardly changes."""
    taken = []
    for _ in range(times):
        started = time.thread_time()
        call()
        taken.append(time.thread_time() - started)
    return statistics.median(taken) * 1e6


def copy_standings(table: Standings) -> Standings:
    """The same standings of which nothing is the same object."""
    records = {policy: dict(rows) for policy, rows in table.records.items()}
    return Standings(table.sequence, dict(table.agents), dict(table.live), records)


def _sample_anew(sample: Callable[..., object], table: Standings, rng: Random) -> object:
    return sample(copy_standings(table), "main", SEATS, rng)


def measure_draws(agents: int) -> None:
    """Six opponents from many agents, by every sampler, beside the specification's own."""
    table, rng = make_standings(agents), Random(3)
    plain = {a.name: {"elo": a.rating, "type": "baseline" if a.baseline else a.kind} for a in table.agents.values()}
    seed_us = median_us(lambda: get_opponents(plain, 1200.0), SEED_DRAWS)
    print(f"\n{f'six opponents from {agents:,} agents':<34}{'median':>10}{'first draw':>20}")
    print(f"{'  specification, plain Python':<34}{seed_us:>7.0f} µs{seed_us:>17,.0f} µs")
    for name in SAMPLERS.names():
        sample = make_sampler(Plugin(name=name)).sample
        first = median_us(partial(_sample_anew, sample, table, rng), FIRST_DRAWS)
        again = median_us(partial(sample, table, "main", SEATS, rng), DRAWS)
        print(f"  {name:<32}{again:>7.1f} µs{first:>17,.0f} µs   {seed_us / again:>6.0f}×")


def apply_ratings(state: LeagueState, changes: list[RatingChange]) -> None:
    """Move ratings."""
    number = state.sequence + 1
    update = RatingUpdated(
        match_id=f"eval-{number}", match_sequence=number, game="diplomacy", system="elo", changes=changes
    )
    state.apply(number, update)


def apply_match(state: LeagueState, names: list[str], rng: Random, purpose: str) -> None:
    """End a match between a version of the policy and six others, drawn anyhow."""
    number = state.sequence + 1
    seats = [
        SeatResult(seat, f"S{seat}", agent, rng.random(), 1)
        for seat, agent in enumerate([f"main@{len(names)}", *rng.sample(names, 6)])
    ]
    finished = MatchFinished(
        match_id=f"w-{number}",
        game="diplomacy",
        purpose=purpose,
        worker="w",
        seed=0,
        seats=seats,
        winner=None,
        reason="",
        length=1,
        seconds=0.0,
    )
    state.apply(number, finished)
    if purpose == "evaluation":
        apply_ratings(state, [RatingChange(seat.agent, 0.0, rng.gauss(1100.0, 150.0)) for seat in seats[1:]])


def make_long_league(agents: int) -> tuple[LeagueState, list[str]]:
    """A state with so many rated checkpoints, each of which the policy has met."""
    state, rng, names = LeagueState(), Random(4), [f"main@{n}" for n in range(agents)]
    config = msgspec.structs.replace(LeagueConfig(), agents={"base_model": AgentConfig(kind="base", rating=1000.0)})
    state.apply(1, LeagueOpened(league="bench", config=to_builtins(config), model=""))
    for n in range(agents):
        joined = CheckpointAdded(
            agent=f"main@{n}", policy="main", version=n, parent="base_model", reason="landmark", adapter="1" * 64
        )
        state.apply(n + 2, joined)
    state.apply(agents + 2, PolicyPublished(policy="main", version=agents, adapter="1" * 64, parent="main@0"))
    apply_ratings(state, [RatingChange(name, 0.0, rng.gauss(1100.0, 150.0)) for name in names])
    for _ in range(2 * agents // 6):
        apply_match(state, names, rng, "training")
    return state, names


def measure_between_results(agents: int) -> None:
    """Six opponents when every draw comes after a result: standings and draw together, as a rollout worker does both.

    Four in five results are training matches, which move records; one is an evaluation match, which moves ratings.
    Beside it, the case that the hero's own rating moves before every draw, as while its last version is evaluated.
    """
    state, names = make_long_league(agents)
    plain = {a.name: {"elo": a.rating, "type": a.kind} for a in state.standings().agents.values()}
    seed_us = median_us(lambda: get_opponents(plain, 1200.0), SEED_DRAWS)
    title = f"after every result, {agents:,} agents"
    print(f"\n{title:<34}{'median':>10}{'95th percentile':>20}{'hero rated':>15}   load {os.getloadavg()[0]:.1f}")
    print(f"{'  specification, plain Python':<34}{seed_us:>7.0f} µs")
    for name in SAMPLERS.names():
        sampler, rng = make_sampler(Plugin(name=name)), Random(5)

        def draw(sampler: OpponentSampler = sampler, rng: Random = rng) -> object:
            return sampler.sample(state.standings(), "main", SEATS, rng)

        draw()
        taken = []
        for number in range(RESULTS):
            apply_match(state, names, rng, "evaluation" if number % 5 == 4 else "training")
            taken.append(median_us(draw, 1))
        own = []
        for _ in range(RESULTS // 10):
            apply_ratings(state, [RatingChange(f"main@{agents}", 0.0, 1100.0 + rng.gauss(0.0, 8.0))])
            own.append(median_us(draw, 1))
        median = statistics.median(taken)
        worst = statistics.quantiles(taken, n=20)[-1]
        figures = f"{median:>7.1f} µs{worst:>17,.0f} µs{statistics.median(own):>12,.0f} µs{seed_us / median:>9.0f}×"
        print(f"  {name:<32}{figures}")


def measure_surroundings(agents: int) -> None:
    """What else a match's draw costs: standings after a result, and making a sampler from its configuration."""
    state, names = make_long_league(agents)
    rng, taken = Random(6), []
    state.standings()
    for _ in range(RESULTS):
        apply_match(state, names, rng, "evaluation")
        taken.append(median_us(state.standings, 1))
    print(f"\n{'standings after a rated match':<34}{statistics.median(taken):>7,.1f} µs")
    config = median_us(lambda: make_sampler(Plugin(name="pfsp")), 100)
    print(f"{'a sampler from its configuration':<34}{config:>7,.1f} µs")


def main() -> None:
    """Print the figures.

    Raises:
        AssertionError: realised shares are further than ``MAX_DISTANCE`` from their target.
    """
    audit_shares(int(sys.argv[1]) if len(sys.argv) > 1 else MATCHES)
    measure_draws(AGENTS)
    measure_between_results(AGENTS)
    measure_surroundings(AGENTS)


if __name__ == "__main__":
    main()
