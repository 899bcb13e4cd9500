"""Learning in one process, without a league around it: to compare settings by games and processor time.

Plays ``trainer.rollouts_per_step`` games with the configuration's sampler, takes a gradient step, and again; then the
last version meets each of ``evaluation.benchmark_opponents`` in all other seats. Base model, matches, sampling, credit
and learner are those of ``league up``; what is left out is what takes time and teaches nothing: broker, ratings,
evaluations on the way. Run: ``python -m benchmarks.learning configs/FILE.toml --cpu 600 --log FILE``. With
``--layouts``, the processor time of a step on one batch of games, by layout of minibatches.
"""

import argparse
import asyncio
import gc
import json
import os
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from arena.environments import ArenaSpec, make_environment
from arena.match import BotPlayer, Player, play
from inference.base import SamplingParameters
from inference.local import LocalBackend, LocalConfig
from league.samplers import make_sampler
from lifecycle.league_models import make_base_model
from models import adapters
from models.adapters import LoraConfig
from models.decoder import Decoder
from models.tokenizer import Tokenizer
from players.policy import PolicyPlayer
from players.prompt_builder import make_prompter
from schemas.config import LeagueConfig, convert
from schemas.ids import derive_seed
from schemas.numbers import wilson_interval
from schemas.standings import Agent, LivePolicy, Standings
from schemas.trajectories import Trajectory
from trainer.backends.native import NativeAdapter
from trainer.learner import Learner

POLICY, LOG_EVERY, LAYOUT_ROUNDS = "main", 20, 5


class GameResult(NamedTuple):
    """What came of one game."""

    trajectory: Trajectory | None
    centers: float
    won: bool
    """Whether nobody else got as far."""
    opponents: tuple[str, ...]


class PolicyTraining:
    """One policy in training."""

    def __init__(self, config: LeagueConfig, base: Path, folder: Path, start: Path | None = None) -> None:
        """Make everything that a league would have at its beginning.

        Args:
            config: The league's settings.
            base: Folder of the base model.
            folder: Where adapters are written.
            start: Folder of the adapter to go on from; a new one by default.
        """
        self.config, self._folder = config, folder
        game = make_environment(config.game.name, config.game.settings)
        assert not isinstance(game, ArenaSpec)
        self.game = game
        decoder = Decoder.load(base)
        shape = LoraConfig(config.model.lora_rank, config.model.lora_alpha)
        seed = derive_seed(config.seed, "trainer", POLICY)
        lora = adapters.create(decoder.shape, shape, seed)
        self.learner = Learner(NativeAdapter(decoder, lora), config.trainer, seed)
        if start is not None:
            self.learner.adapter.load(start)
        self._backend = LocalBackend(base, LocalConfig(max_rows=config.inference.max_rows))
        self._prompting = make_prompter(Tokenizer(base), game, config.prompts)
        self._sampler = make_sampler(config.matchmaking.sampler)
        self._agents = {
            name: Agent(name, agent.kind, agent.rating, 0, baseline=agent.baseline)
            for name, agent in config.agents.items()
        }
        self._games = 0
        self._publish()

    def _publish(self) -> None:
        version, schedule = self.learner.steps, self.config.schedule
        name = f"{POLICY}@{version}"
        self._backend.load_adapter(name, self.learner.save_adapter(self._folder / str(version)))
        if version and version % schedule.recent_every == 0:
            # Rated like the live version, so that samplers take it for a peer.
            self._agents[name] = Agent(name, "checkpoint", 1000.0, 0, policy=POLICY, version=version)
        self._agents = {
            n: a for n, a in self._agents.items() if not a.version or version - a.version <= schedule.recent_window
        }
        self.live = name

    def _player(self, agent: str, temperature: float) -> Player:
        if agent in self._agents and self._agents[agent].kind == "bot":
            return BotPlayer(self.game.bot(agent))
        version, adapter = (0, None) if agent == "base_model" else (int(agent.partition("@")[2]), agent)
        sampling = SamplingParameters(temperature=temperature)
        return PolicyPlayer(self._backend, self._prompting, lambda: (version, adapter), sampling)

    async def _play_game(self, seats: Sequence[str], hero: int, seed: int, temperature: float) -> GameResult:
        game = self.game.new(seed)
        players = [self._player(agent, temperature) for agent in seats]
        outcome = await play(game, players, seed)
        player, progress = players[hero], [game.progress(seat) for seat in range(len(seats))]
        assert isinstance(player, PolicyPlayer)
        player.assign_action_credits(game, hero)
        trajectory = Trajectory(
            match_id=str(seed),
            game=self.game.name,
            policy=POLICY,
            seat=hero,
            role=self.game.seats[hero],
            group=f"{self.game.seats[hero]}:{','.join([*seats[:hero], POLICY, *seats[hero + 1 :]])}",
            steps=player.model_calls,
            final_clock=game.clock,
            final_progress=progress[hero],
            score=outcome.scores[hero],
            rank=outcome.ranks[hero],
            scores=list(outcome.scores),
        )
        others = tuple(sorted(agent for seat, agent in enumerate(seats) if seat != hero))
        return GameResult(trajectory if player.model_calls else None, progress[hero], outcome.winner == hero, others)

    async def play_batch(self) -> list[GameResult]:
        """The games of one step."""
        live = {POLICY: LivePolicy(POLICY, self.learner.steps, None, 1000.0)}
        standings = Standings(self.learner.steps, dict(self._agents), live, {})
        matches = []
        for _ in range(self.config.trainer.rollouts_per_step):
            seed = derive_seed(self.config.seed, "training", self._games)
            hero, count = self._games % len(self.game.seats), len(self.game.seats)
            picks = self._sampler.sample(standings, POLICY, [s for s in range(count) if s != hero], Random(seed))
            seats = {hero: self.live} | {pick.seat: pick.agent for pick in picks}
            matches.append(
                self._play_game([seats[s] for s in range(count)], hero, seed, self.config.inference.temperature)
            )
            self._games += 1
        return await asyncio.gather(*matches)

    def take_step(self, results: Sequence[GameResult], progress: float) -> dict[str, float]:
        """One gradient step."""
        before = self.live
        report = self.learner.step([r.trajectory for r in results if r.trajectory is not None], progress)
        self._publish()
        if before not in self._agents:
            self._backend.drop_adapter(before)
        return report.metrics()

    async def benchmark(self, opponent: str, games: int, temperature: float) -> dict[str, Any]:
        """Games of the live version against one opponent in all other seats."""
        count = len(self.game.seats)
        results: list[GameResult] = []
        for first in range(0, games, 70):
            rows = range(first, min(first + 70, games))
            seats = [[self.live if s == row % count else opponent for s in range(count)] for row in rows]
            seeds = [derive_seed(self.config.seed, "benchmark", opponent, row) for row in rows]
            each = zip(seats, rows, seeds, strict=True)
            results += await asyncio.gather(
                *(self._play_game(s, row % count, seed, temperature) for s, row, seed in each)
            )
        won = sum(r.won for r in results)
        low, high = wilson_interval(won, games)
        roles = {self.game.seats[s]: [r.won for r in results[s::count]] for s in range(count)}
        return {
            "opponent": opponent,
            "temperature": temperature,
            "games": games,
            "share": won / games,
            "low": low,
            "high": high,
            "centers": float(np.mean([r.centers for r in results])),
            "by_role": {role: float(np.mean(share)) for role, share in roles.items()},
        }


def _summarise(results: Sequence[GameResult]) -> dict[str, Any]:
    """Centres and share of wins by opponent, a game counting for each in proportion to its seats."""
    seats, centers, wins = Counter[str](), Counter[str](), Counter[str]()
    for result in results:
        for agent in result.opponents:
            name = agent.partition("@")[0]
            seats[name] += 1
            centers[name] += result.centers  # type: ignore[assignment]
            wins[name] += result.won
    by = {n: [round(centers[n] / seats[n], 2), round(wins[n] / seats[n], 3), seats[n]] for n in sorted(seats)}
    return {"centers": float(np.mean([r.centers for r in results])), "by": by}


async def train_and_benchmark(bench: PolicyTraining, options: argparse.Namespace, write: Any) -> None:
    """Train for the budget, then measure."""
    began, played, learned = time.process_time(), 0.0, 0.0
    recent: list[GameResult] = []
    steps = options.steps or bench.config.stop.steps or 1_000
    while bench.learner.steps < steps:
        progress = max(bench.learner.steps / steps, (time.process_time() - began) / options.cpu)
        if progress >= 1:
            break
        marks = [time.process_time()]
        results = await bench.play_batch()
        marks.append(time.process_time())
        metrics = bench.take_step(results, progress)
        marks.append(time.process_time())
        played, learned, recent = played + marks[1] - marks[0], learned + marks[2] - marks[1], [*recent, *results]
        if bench.learner.steps % LOG_EVERY == 0:
            kept = {name: metrics[name] for name in ("entropy", "kl", "clipped", "learning_rate", "value_loss")}
            cpu = {"cpu": marks[2] - began, "play": played, "learn": learned}
            write({"step": bench.learner.steps, **cpu, **_summarise(recent), **kept})
            recent = []
    for opponent in bench.config.evaluation.benchmark_opponents:
        for temperature in options.temperatures or [bench.config.inference.evaluation_temperature]:
            write(await bench.benchmark(opponent, options.games, temperature))


async def compare_layouts(bench: PolicyTraining, layouts: Sequence[str], write: Any) -> None:
    """Take steps on the games of one batch, with the layouts in turns, and print what they cost."""
    played = [result.trajectory for result in await bench.play_batch() if result.trajectory is not None]
    costs: dict[str, list[float]] = {layout: [] for layout in layouts}
    settings = bench.learner.config
    for _ in range(LAYOUT_ROUNDS):
        for layout, found in costs.items():
            bench.learner.config = msgspec.structs.replace(settings, layout=layout)
            began = time.process_time()
            report = bench.learner.step(played)
            found.append(time.process_time() - began)
    write({"sequences": report.sequences, "tokens": report.tokens, "load": os.getloadavg()[0]})
    for layout, found in costs.items():
        write({"layout": layout, "median cpu": float(np.median(found)), "cpu": [round(cost, 2) for cost in found]})


def load_changed_config(path: Path, changes: Sequence[str]) -> LeagueConfig:
    """The configuration in a file, with keys changed: ``trainer.learner.epochs=3``.

    Raises:
        ConfigError: what comes of it is none.
    """
    table = tomllib.loads(path.read_text())
    for change in changes:
        key, _, value = change.partition("=")
        *into, last = key.split(".")
        place = table
        for name in into:
            place = place.setdefault(name, {})
        place[last] = tomllib.loads(f"value = {value}")["value"]
    return convert(table, LeagueConfig, str(path))


def main() -> None:
    """Read the command line, train, and write one line of JSON for every few steps and every measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--cpu", type=float, default=600.0, help="processor seconds of training")
    parser.add_argument("--steps", type=int, default=0, help="most gradient steps; 0 takes the configuration's")
    parser.add_argument("--games", type=int, default=210, help="of each measurement")
    parser.add_argument("--temperatures", type=float, nargs="*", default=[], help="of the measurements")
    parser.add_argument("--base", type=Path, default=None, help="a base model; made anew where there is none")
    parser.add_argument("--start", type=Path, default=None, help="folder of the adapter to go on from")
    parser.add_argument("--adapter", type=Path, default=None, help="folder that the last adapter is written to")
    parser.add_argument("--layouts", nargs="*", default=[], help="only compare what a step takes with these layouts")
    parser.add_argument("--log", type=Path, default=None)
    parser.add_argument("--set", action="append", default=[], help="change a key: trainer.learner.epochs=3")
    options = parser.parse_args()
    torch.set_num_threads(1)
    gc.freeze()  # as the league's workers do
    gc.set_threshold(50_000, 20, 20)
    config = load_changed_config(options.config, options.set)

    def write(row: dict[str, Any]) -> None:
        line = json.dumps({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
        print(line, flush=True)
        if options.log is not None:
            with options.log.open("a") as file:
                file.write(line + "\n")

    with tempfile.TemporaryDirectory() as folder:
        base = options.base or Path(folder) / "base"
        if not base.is_dir():
            make_base_model(base, config, lambda *_: None)
        bench = PolicyTraining(config, base, Path(folder) / "adapters", options.start)
        write({"config": str(options.config), "changes": options.set, "seed": config.seed})
        if options.layouts:
            asyncio.run(compare_layouts(bench, options.layouts, write))
            return
        asyncio.run(train_and_benchmark(bench, options, write))
        if options.adapter is not None:
            bench.learner.save_adapter(options.adapter)


if __name__ == "__main__":
    main()
