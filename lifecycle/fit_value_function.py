"""Fits the value function of Diplomacy to games of bots, and writes ``value_weights.npz`` anew.

``python -m lifecycle.fit_value_function`` plays the games, half an hour on one core, and then fits for ten minutes.
Some seats play by order models of random weights: a value that holds among a few bots alone misleads against others.
"""

import argparse
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from arena.games.base import Action, Bot, Game
from arena.games.diplomacy import POWERS, Settings, board
from arena.games.diplomacy.order_features import Floats
from arena.games.diplomacy.order_model import OrderModel, bot_weights
from arena.games.diplomacy.spec import DiplomacySpec
from arena.games.diplomacy.value_function import (
    HIDDEN,
    MOST_YEARS,
    SCALE_L,
    SIZE_FEATURES,
    WEIGHTS_FILE,
    center_features,
    final_values,
    forward,
)
from workers.progress import progress_callback, show_progress

BOTS = {"mover": 1, "greedy": 4, "tactician": 4, "convoyer": 2}
"""Bots whose games are fitted to, and how often each is drawn."""
MODEL_SHARE = 0.4
"""Share of order models with random weights among the players drawn."""
GAMES, CHUNK = 28000, 50
EPOCHS, BATCH = 16, 256
LEARNING_RATE, WEIGHT_DECAY = 4e-3, 1e-2
OWNER_COEFFICIENT = 0.05
"""Weight of the cross-entropy of the centres' owners against the squared error of the values."""


class Samples(NamedTuple):
    """Positions in spring, and how their games ended; N positions."""

    features_NSCL: NDArray[np.uint8]
    years_N: NDArray[np.int64]
    """Years left, from 0."""
    owners_NC: NDArray[np.int64]
    """Seat that owns the centre at the end, or the number of seats."""
    values_NS: NDArray[np.float32]


def play(numbers: Iterable[int]) -> Samples:
    """Play games of these numbers; every other one is of one player against six of another, as in benchmarks."""
    spec = DiplomacySpec(Settings(max_year=1901 + MOST_YEARS))
    rows: list[tuple[NDArray[np.uint8], int, list[int], Floats]] = []
    for number in numbers:
        game, rng = spec.new(number), Random(number)
        seats = [_player(spec, rng) for _ in game.seats]
        if number % 2:
            seats = [seats[0]] * len(seats)
            seats[rng.randrange(len(seats))] = _player(spec, rng)
        springs: list[tuple[NDArray[np.uint8], int]] = []
        while moving := game.to_move():
            position = game.position
            if position.phase[0] == "S" and position.kind == "M" and position.year > 1901:
                springs.append((center_features(position), spec.settings.max_year - position.year))
            game.apply({seat: seats[seat].act(game, seat, rng) for seat in moving})
        owners = [game.position.owner.get(center, len(seats)) for center in board.CENTERS]
        values_S = final_values(np.array([len(owned) for owned in game.position.centers], float))
        rows += [(features, years, owners, values_S) for features, years in springs]
    features_NSCL, years_N, owners_NC, values_NS = zip(*rows, strict=True)
    return Samples(np.array(features_NSCL), np.array(years_N), np.array(owners_NC), np.array(values_NS, np.float32))


class _ModelPlayer:
    name = "order_model"

    def __init__(self, weights_F: Floats) -> None:
        self._model = OrderModel(weights_F)

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        """The model's orders for the seat."""
        return self._model.act(game, [seat], rng)[seat]


def _player(spec: DiplomacySpec, rng: Random) -> Bot:
    if rng.random() >= MODEL_SHARE:
        return spec.bot(rng.choices(list(BOTS), list(BOTS.values()))[0])
    drawn = np.random.default_rng(rng.getrandbits(32))
    mixed_F = drawn.dirichlet([0.5] * len(BOTS)) @ _weights_of_bots()
    return _ModelPlayer(mixed_F * np.exp(drawn.normal(0.2, 0.3)) + drawn.normal(0, 0.4, mixed_F.shape))


@cache
def _weights_of_bots() -> Floats:
    spec = DiplomacySpec(Settings())
    return np.array([bot_weights(spec, [name]) for name in BOTS])


def initial_parameters() -> dict[str, torch.Tensor]:
    """Random parameters of ``value_function.forward``, whose layers keep the variance of their inputs."""
    seats, centers = len(POWERS), len(board.CENTERS)
    rng = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        drawn: torch.Tensor = torch.randn(*shape, generator=rng) / shape[0] ** 0.5
        return drawn

    return {
        "local": normal(len(SCALE_L), HIDDEN),
        "place": torch.randn(seats, centers, HIDDEN, generator=rng) * 0.05,
        "year": torch.zeros(MOST_YEARS, HIDDEN),
        "both": normal(HIDDEN, HIDDEN),
        "seat": normal(HIDDEN, HIDDEN),
        "center": normal(HIDDEN, HIDDEN),
        "bias": torch.zeros(HIDDEN),
        "owner": normal(HIDDEN),
        "unowned": normal(HIDDEN),
        "rate": torch.zeros(centers),
        "pooled": normal(HIDDEN, HIDDEN),
        "late": torch.zeros(MOST_YEARS, HIDDEN),
        "sizes": normal(SIZE_FEATURES, HIDDEN),
        "value": normal(HIDDEN),
        "level": torch.zeros(1),
    }


def play_all(games: int, processes: int, done: Callable[[int], None]) -> Samples:
    """Play games in several processes; ``done`` is called with how many were played."""
    chunks = [range(start, min(start + CHUNK, games)) for start in range(0, games, CHUNK)]
    played: list[Samples] = []
    with ProcessPoolExecutor(processes) as pool:
        for chunk, samples in zip(chunks, pool.map(play, chunks), strict=True):
            played.append(samples)
            done(chunk.stop)
    return Samples(*(np.concatenate(arrays) for arrays in zip(*played, strict=True)))


def fit(samples: Samples, epochs: int, done: Callable[[int], None]) -> dict[str, NDArray[np.float32]]:
    """Parameters of ``value_function.forward`` by name; ``done`` is called with the positions of all passes so far."""
    parameters = {name: each.requires_grad_() for name, each in initial_parameters().items()}
    optimizer = torch.optim.AdamW(parameters.values(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    count = len(samples.years_N)
    steps = epochs * max(count // BATCH, 1)
    rng = np.random.default_rng(0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    scale_L = torch.tensor(SCALE_L, dtype=torch.float32)
    for epoch in range(epochs):
        order = rng.permutation(count)
        for start in range(0, max(count - BATCH, 0) + 1, BATCH):
            batch = order[start : start + BATCH]
            features_BSCL = torch.from_numpy(samples.features_NSCL[batch]) * scale_L
            years_BY = torch.eye(MOST_YEARS)[samples.years_N[batch]]
            owners_BC = torch.from_numpy(samples.owners_NC[batch])
            values_BS = torch.from_numpy(samples.values_NS[batch])
            expected_BS, owned_BSC, unowned_BC = forward(parameters, features_BSCL, years_BY)
            odds_BOC = torch.cat([owned_BSC, unowned_BC[:, None]], 1)
            entropy = -torch.log(odds_BOC.gather(1, owners_BC[:, None]) + 1e-6).mean()
            error = ((expected_BS - values_BS) ** 2).mean()
            optimizer.zero_grad()
            (error + OWNER_COEFFICIENT * entropy).backward()
            optimizer.step()
            if schedule.last_epoch < steps:
                schedule.step()
            done(epoch * count + start + BATCH)
    return {name: each.detach().numpy() for name, each in parameters.items()}


def main() -> None:
    """Play, fit and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=GAMES)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="that play; the fit is one process")
    parser.add_argument("--output", type=Path, default=WEIGHTS_FILE)
    options = parser.parse_args()
    for name in ("games", "epochs", "processes"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: {getattr(options, name)}; expected 1 or more")
    if not options.output.absolute().parent.is_dir():
        parser.error(f"--output: {options.output}; expected a file in a folder that exists")
    console = Console()
    with show_progress(console, "playing") as report:
        played = progress_callback(report, "played", options.games, "games")
        samples = play_all(options.games, options.processes, played)
    positions = options.epochs * len(samples.years_N)
    with show_progress(console, "fitting") as report:
        parameters = fit(samples, options.epochs, progress_callback(report, "fitted", positions, "positions"))
    rounded: dict[str, Any] = {name: each.astype(np.float16) for name, each in parameters.items()}
    np.savez(options.output, **rounded)
    console.print(f"{options.output}: fitted to {len(samples.years_N):,} positions")


if __name__ == "__main__":
    main()
