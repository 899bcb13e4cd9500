"""Games of bots a second through the whole path, by one rollout process and by two; prints the speed-up.

Every process is a worker as leagues have them: it folds the history, joins, says how it is, draws matches, plays
them, keeps their records on the broker and appends two events for each. Only the hero's seat is given to a bot as well,
so that no model is needed and no trainer. Rounds with one process and with two take turns.

Where other programs have the cores too, look at processor time: with one process the broker has a core of its own, so a
game takes what the process computes; with two they share two cores with the broker.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event as Signal
from pathlib import Path
from typing import Any, Literal

import msgspec
import psutil
import uvloop

from benchmarks.sizes import size
from league.log.server import EmbeddedServer
from league.matchmaking.matchmaker import make_match
from league.run import Run
from lifecycle.open import open_league
from schemas.config import AgentConfig, HistoryConfig, LeagueConfig, ModelConfig, Plugin
from schemas.events import PolicyPublished
from workers.match_runner.runner import MatchExecutor
from workers.policy_weights import ModelManager
from workers.run_worker import run_worker
from workers.runtime import Context

BOT = "random_bot"
GAMES: dict[str, dict[str, Any]] = {"diplomacy": {"max_year": 1905}, "nim": {"seats": 3, "heaps": [2, 3]}}


class RoundResult(msgspec.Struct):
    """A game played for a while by so many processes."""

    game: str
    processes: int
    games: int
    seconds: float
    worker_ms: float
    """Processor time of the processes, a game."""
    broker_ms: float
    load: float

    @property
    def rate(self) -> float:
        """Games a second."""
        return self.games / self.seconds


class BotWorker:
    """A rollout worker all of whose seats are a bot's."""

    def __init__(self, games_in_flight: int, done: Any, ready: Signal) -> None:
        self._games_in_flight = games_in_flight
        self._done = done
        self._ready = ready

    async def serve(self, context: Context) -> None:
        """Play until told to stop."""
        models = await ModelManager.load(context)
        matches = MatchExecutor.between_agents(context, models)
        seat_count = len(matches.environment.seats)
        following = context.state.next_match_index(context.name)

        async def play_on() -> None:
            nonlocal following
            while not context.stopping.is_set():
                number, following = following, following + 1
                drawn, sampled = make_match(context.state.standings(), context.config, context.name, number, seat_count)
                recording = asyncio.create_task(context.append(sampled))
                played = await matches.run(msgspec.structs.replace(drawn, seats=[BOT] * seat_count))
                await recording
                assert played is not None, "a match of bots failed"
                await matches.append_result(played)
                self._done.value += 1

        self._ready.set()
        await asyncio.gather(*(play_on() for _ in range(self._games_in_flight)))
        await matches.close()
        await models.close()


def run_process(folder: Path, name: str, nice: int, games_in_flight: int, done: Any, ready: Signal) -> None:
    """A process's life."""
    os.nice(nice)
    run_worker(Run(folder), "rollout", name, BotWorker(games_in_flight, done, ready).serve)


async def open_bench_league(folder: Path, config: LeagueConfig) -> None:
    """A league whose policy is what it starts from."""
    run = Run(folder)
    async with run.connect("bench") as client:
        history = await open_league(run, client, config, lambda *_: None)
        await history.append(PolicyPublished(policy=config.trainer.policy, version=0, adapter="", parent=""))


def league_config(game: str, records: Literal["digest", "keep"]) -> LeagueConfig:
    """The smallest league that plays a game."""
    return LeagueConfig(
        name=game,
        game=Plugin(name=game, settings=GAMES[game]),
        agents={
            "base_model": AgentConfig(kind="base", rating=1000.0, baseline=True),
            BOT: AgentConfig(kind="bot", rating=800.0, baseline=True),
        },
        model=ModelConfig(cloning={"sequences": size(64, 8)}),
        history=HistoryConfig(records=records),
    )


def play_round(folder: Path, game: str, processes: int, options: argparse.Namespace, place: int) -> RoundResult:
    """Have so many processes play for a while; start and end are not counted."""
    context = multiprocessing.get_context("forkserver")
    started: list[tuple[BaseProcess, Any]] = []
    broker = psutil.Process(json.loads((folder / "nats" / "server.json").read_text())["pid"])
    for number in range(processes):
        done, ready = context.Value("Q", 0, lock=False), context.Event()
        arguments = (folder, f"rollout-{place}-{number}", options.nice, options.games_in_flight, done, ready)
        process = context.Process(target=run_process, args=arguments, daemon=True)
        process.start()
        started.append((process, done))
        if not ready.wait(120):
            raise RuntimeError(f"rollout-{place}-{number} did not begin to play within two minutes")
    time.sleep(options.warm_s)
    members = [psutil.Process(process.pid) for process, _ in started]

    def now() -> tuple[float, int, float, float]:
        played = sum(int(done.value) for _, done in started)
        return time.monotonic(), played, sum(map(_cpu_s, members)), _cpu_s(broker)

    before = now()
    time.sleep(options.seconds)
    seconds, games, workers_s, broker_s = (after - b for after, b in zip(now(), before, strict=True))
    for child, _ in started:
        child.terminate()
    for child, _ in started:
        child.join(60)
    games = max(int(games), 1)
    return RoundResult(
        game, processes, games, seconds, 1e3 * workers_s / games, 1e3 * broker_s / games, os.getloadavg()[0]
    )


def _cpu_s(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def speedup(rounds: list[RoundResult]) -> float:
    """Games a second of two processes, with one at 1: all rounds of each taken together."""
    one, two = (merge_rounds(rounds, processes) for processes in (1, 2))
    return two.rate / one.rate


def speedup_by_cpu_time(rounds: list[RoundResult]) -> float:
    """What two cores would give if nothing else ran on them and nothing waited for the disk.

    One process computes beside its broker, so it plays a game in its own processor time; two and the broker fill two
    cores with what all of them compute.
    """
    one, two = (merge_rounds(rounds, processes) for processes in (1, 2))
    alone_ms, shared_ms = max(one.worker_ms, one.broker_ms), max((two.worker_ms + two.broker_ms) / 2, two.broker_ms)
    return alone_ms / shared_ms


def merge_rounds(rounds: list[RoundResult], processes: int) -> RoundResult:
    """All rounds with so many processes as one."""
    found = [r for r in rounds if r.processes == processes]
    games = sum(r.games for r in found)
    return RoundResult(
        game=found[0].game,
        processes=processes,
        games=games,
        seconds=sum(r.seconds for r in found),
        worker_ms=sum(r.worker_ms * r.games for r in found) / games,
        broker_ms=sum(r.broker_ms * r.games for r in found) / games,
        load=max(r.load for r in found),
    )


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", nargs="+", default=size(sorted(GAMES), ["nim"]), choices=sorted(GAMES))
    parser.add_argument("--rounds", type=int, default=size(2, 1), help="with one process, and as many with two")
    parser.add_argument("--seconds", type=float, default=size(10.0, 0.5), help="of a round that are counted")
    parser.add_argument("--warm-s", type=float, default=size(1.0, 0.1), help="before these")
    parser.add_argument("--games-in-flight", type=int, default=size(8, 2), help="of a process")
    parser.add_argument("--records", default="keep", choices=("keep", "digest"), help="of games, kept on the broker")
    parser.add_argument("--nice", type=int, default=0, help="of the processes that play")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    rounds: list[RoundResult] = []
    print(f"{'':<12}{'processes':>10}{'games/s':>10}{'worker ms':>11}{'broker ms':>11}{'load':>6}")
    for game in options.games:
        with tempfile.TemporaryDirectory() as name, EmbeddedServer(Path(name) / "nats"):
            uvloop.run(open_bench_league(Path(name), league_config(game, options.records)))
            for place in range(2 * options.rounds):
                r = play_round(Path(name), game, 1 + place % 2, options, place)
                rounds.append(r)
                print(
                    f"{game:<12}{r.processes:>10}{r.rate:>10,.1f}{r.worker_ms:>11.2f}{r.broker_ms:>11.2f}{r.load:>6.1f}",
                    flush=True,
                )
        mine = [r for r in rounds if r.game == game]
        print(f"{game}: 2 processes : 1 = {speedup(mine):.2f} by the clock", end=", ")
        print(f"{speedup_by_cpu_time(mine):.2f} by processor time", flush=True)
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(rounds)))


if __name__ == "__main__":
    main()
