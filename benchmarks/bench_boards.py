"""Boards over long histories: their cost, the coverage of their intervals and the error rates of the SPRT.

The peer of the intervals clustered by match is the naive interval, which takes a match's pairs for independent. Exits
with 1 where a fit does not converge, or where coverage or error rates are not the stated ones.
"""

import os
import sys
import time

import numpy as np

from benchmarks.sizes import size
from benchmarks.synthetic_matches import simulate_ranked_matches
from league.analysis.bradley_terry import FitOptions, fit_strengths
from league.analysis.payoff import decompose_payoff, make_payoff_matrix
from league.analysis.population import nash_average
from league.evaluation.promotion import advance, initial_state
from schemas.events.rating import SprtConfig

MATCHES, SEATS, AGENTS = size(100_000, 4_000), 7, size(199, 20)
DRAWS = size(1_000, 4)
LEAGUES, LEAGUE_DRAWS = size(400, 4), size(400, 40)
RUNS = size(2_000, 5)
COVERED = size((0.93, 0.97), (0.5, 1.0))
"""Bounds on the share of true strengths that 95 % intervals cover."""
WRONG_SHARE = size(0.06, 1.0)
"""Bound on the share of wrong verdicts of a test whose stated error is 5 %."""


def measure_speed() -> bool:
    """Print what the fits cost, of the clock and of processors; whether all of them converged."""
    elo = np.random.default_rng(0).normal(1000, 150, AGENTS)
    matches = simulate_ranked_matches(elo.tolist(), MATCHES, SEATS, 0, levels=0.5)
    fit_strengths(matches.select(np.arange(MATCHES) < 2000), options=FitOptions(draws=2))
    converged = True
    for model in ("pairs", "ranks"):
        began, began_cpu = time.perf_counter(), time.process_time()
        point = fit_strengths(matches, options=FitOptions(model=model, draws=0))
        alone_s, alone_cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
        began, began_cpu = time.perf_counter(), time.process_time()
        board = fit_strengths(matches, options=FitOptions(model=model, draws=DRAWS))
        whole_s, cpu_s = time.perf_counter() - began, time.process_time() - began_cpu
        converged = converged and point.converged and board.unconverged_draws == 0
        print(
            f"{model}: {MATCHES:,} matches of {SEATS}, {AGENTS} agents, ties: maximum in {alone_s:.1f} s "
            f"({point.steps} steps), with {DRAWS:,} bootstrap draws {whole_s:.1f} s on {os.cpu_count()} cores, load "
            f"{os.getloadavg()[0]:.1f}; {cpu_s:.1f} s of processor time, {cpu_s / alone_cpu_s:.0f} times that of the "
            f"maximum alone; {board.unconverged_draws} draws did not converge"
        )
    return converged


def measure_other_boards() -> None:
    elo = np.random.default_rng(0).normal(1000, 150, AGENTS)
    matches = simulate_ranked_matches(elo.tolist(), MATCHES, SEATS, 0, levels=0.5)
    began = time.perf_counter()
    table = make_payoff_matrix(matches)
    print(f"payoff matrix of them: {time.perf_counter() - began:.2f} s")
    odds = table.log_odds()
    began = time.perf_counter()
    nash_average(odds)
    print(f"Nash averaging of {AGENTS} agents: {time.perf_counter() - began:.2f} s")
    began = time.perf_counter()
    found = decompose_payoff(table)
    print(f"Hodge: {time.perf_counter() - began:.2f} s; cyclic share {found.cyclic_share:.3f} in a transitive league")


def check_coverage() -> bool:
    truth = [1000.0 + 40 * (number - 5.5) for number in range(12)]
    good = True
    for model in ("pairs", "ranks"):
        inside = {"clustered": 0, "naive": 0}
        for seed in range(LEAGUES):
            matches = simulate_ranked_matches(truth, 250, SEATS, seed)
            for row in fit_strengths(matches, options=FitOptions(model=model, draws=LEAGUE_DRAWS, seed=seed)).agents:
                true = truth[int(row.name.removeprefix("agent"))]
                assert row.low is not None
                assert row.high is not None
                inside["clustered"] += row.low <= true <= row.high
                inside["naive"] += row.naive_low <= true <= row.naive_high
        share = {name: count / (LEAGUES * len(truth)) for name, count in inside.items()}
        good = good and COVERED[0] <= share["clustered"] <= COVERED[1]
        print(
            f"{model}: 95 % intervals over {LEAGUES} leagues cover the truth {share['clustered']:.1%} of the time "
            f"clustered by match, {share['naive']:.1%} naive"
        )
    return good


def check_sprt() -> bool:
    config = SprtConfig(elo0=0.0, elo1=30.0)
    rng = np.random.default_rng(0)
    good = True
    for elo, wrong in ((0.0, "promote"), (30.0, "keep")):
        share = 1 / (1 + 10 ** (-elo / 400))
        errors, pairs = 0, 0
        for _ in range(RUNS):
            state = initial_state(config)
            while state.verdict == "undecided":
                scores = rng.binomial(2, share, 100) / 2
                for score in scores.tolist():
                    state = advance(config, state, score)
            errors, pairs = errors + (state.verdict == wrong), pairs + state.pairs
        good = good and errors / RUNS <= WRONG_SHARE
        print(
            f"SPRT 0/30 Elo at {elo:.0f}: wrong {errors / RUNS:.1%} (stated 5 %), {pairs / RUNS:.0f} pairs in the mean"
        )
    return good


def main() -> int:
    """Print the figures; 1 where a statistical property does not hold."""
    passed = [measure_speed(), check_coverage(), check_sprt()]
    measure_other_boards()
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
