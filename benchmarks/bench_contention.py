"""What a second of processor time gives while other processes have the cores too: none, one and two that are busy.

The phases of a league that compute: cloning the base model (by one thread, and by two, which wait for each other),
games of bots and of models, gradient steps, and a leaderboard's intervals. Rounds take turns, so that what else the
machine does meets all of them. A share of 1 is as much as on a quiet machine; threads that spin at barriers lose most
of it.
"""

import asyncio
import contextlib
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median

import msgspec
import torch

from arena.games import make_game
from arena.match import BotPlayer, play
from benchmarks.bench_phase import make_compact_model, play_games, start_backend
from benchmarks.bench_trainer import learner_rate, make_base, make_learner, synthetic_trajectories
from benchmarks.sizes import require_package, size
from benchmarks.synthetic_matches import simulate_ranked_matches
from league.ratings.arrays import RatingRule
from league.ratings.rating_history import bootstrap_intervals
from lifecycle.league_models import bot_decisions
from models import BaseShape, Tokenizer
from models import make_base as make_game_base
from models.behaviour_cloning import CloningConfig, clone_behaviour
from schemas.config import RatingsConfig

BUSY = size((0, 1, 2), (0, 1))
ROUNDS = size(5, 1)
EXAMPLES, TRAJECTORIES, GAMES = size(480, 8), size(48, 2), size(2000, 20)
MODEL_GAMES, MODEL_PHASES = size((24, 3), (1, 1))
RATED_MATCHES, DRAWS = size((4000, 200), (20, 2))

Phase = Callable[[], int]
"""Does its work once; returns how many units of it there were."""


class Cost(msgspec.Struct, frozen=True):
    """One round of a phase."""

    processor_rate: float
    """Units per second of processor time."""
    rate: float
    """Units per second by the clock."""


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Other processes that compute without end, during a block."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def measure(phase: Phase) -> Cost:
    """Time a phase, threads included."""
    began, cpu_s = time.perf_counter(), time.process_time()
    units = phase()
    return Cost(units / (time.process_time() - cpu_s), units / (time.perf_counter() - began))


def make_phases(folder: Path) -> dict[str, Phase]:
    """The phases by name, each ready to be repeated."""
    game = make_game("diplomacy", {"max_year": 1901})
    base = make_game_base(folder / "cloned", game.text().vocabulary(), BaseShape(), 0)
    examples = list(islice(bot_decisions(game, Tokenizer(base), "random_bot", 0), EXAMPLES))
    make_base(folder / "trained")
    learner, trajectories = make_learner(folder / "trained"), synthetic_trajectories(TRAJECTORIES, 4, 0)
    nim = make_game("nim", {})
    player, diplomacy = make_compact_model(folder / "players")
    backend = start_backend(player)
    history = simulate_ranked_matches([100.0 * number for number in range(20)], RATED_MATCHES, 7, 0)

    def clone(threads: int) -> int:
        # Two threads take several times as much processor time.
        share = examples[:: threads**2]
        clone_behaviour(base, share, CloningConfig(sequences=len(share), threads=threads))
        return len(share)

    def step() -> int:
        torch.set_num_threads(1)
        learner_rate(learner, trajectories)
        return TRAJECTORIES

    def play_models() -> int:
        torch.set_num_threads(1)
        asyncio.run(play_games(backend, player, diplomacy, MODEL_GAMES, MODEL_PHASES))
        return MODEL_GAMES * MODEL_PHASES

    def draw_intervals() -> int:
        bootstrap_intervals(history, history.games[0], "elo", [RatingRule(0, RatingsConfig())], DRAWS)
        return DRAWS

    async def play_bots() -> int:
        for seed in range(GAMES):
            await play(nim.new(seed), [BotPlayer(nim.bot("random_bot")) for _ in nim.seats], seed)
        return GAMES

    return {
        "cloning, 1 thread": lambda: clone(1),
        "cloning, 2 threads": lambda: clone(2),
        "gradient steps": step,
        "games of bots": lambda: asyncio.run(play_bots()),
        "phases of games of models": play_models,
        "resampled histories": draw_intervals,
    }


def main(write: Callable[[str], object] = print) -> None:
    """Measure all phases beside none, one and two busy processes; print rates, and shares of the quiet one."""
    require_package("diplomacy")
    costs: dict[tuple[str, int], list[Cost]] = {}
    with tempfile.TemporaryDirectory() as folder:
        phases = make_phases(Path(folder))
        for phase in phases.values():
            # Compiled code and caches are there before anything is measured.
            phase()
        # As the league's workers do.
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)
        for _ in range(ROUNDS):
            for name, phase in phases.items():
                for busy in BUSY:
                    with busy_processes(busy):
                        costs.setdefault((name, busy), []).append(measure(phase))
    write("| phase | " + " | ".join(f"{busy} busy: per processor second (by the clock)" for busy in BUSY) + " |")
    write("|---" * (1 + len(BUSY)) + "|")
    for name in phases:
        quiet = median(cost.processor_rate for cost in costs[name, 0])
        cells = []
        for busy in BUSY:
            found = costs[name, busy]
            rate = median(cost.processor_rate for cost in found)
            cells.append(f"{rate:,.0f}, {rate / quiet:.2f}× ({median(cost.rate for cost in found):,.0f})")
        write(f"| {name} | {' | '.join(cells)} |")
    write(f"load {', '.join(f'{load:.1f}' for load in os.getloadavg())}")


if __name__ == "__main__":
    main()
