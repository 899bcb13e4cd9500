"""Writes the golden playthrough of a game: ``python tests/golden/games/write.py nim``. Read the result before use.

Names are those of registered games, and of the games and settings in ``instances.json``.
"""

import json
import sys
from pathlib import Path
from random import Random

import msgspec

from arena.games import make_game
from schemas.ids import derive_seed

SEED = 20
"""Of the game, and the master of every decision's seed."""


def write(name: str) -> None:
    """Play one game between all its bots and keep what must never change by accident."""
    instances = json.loads(Path(__file__).with_name("instances.json").read_text())
    spec = make_game(*instances.get(name, (name, {})))
    game, text = spec.new(SEED), spec.text()
    prompt = text.prompt(game, game.to_move()[0])
    turn = 0
    while moving := game.to_move():
        bots = {seat: spec.bot(spec.bots[seat % len(spec.bots)]) for seat in moving}
        game.apply({seat: bot.act(game, seat, Random(derive_seed(SEED, turn, seat))) for seat, bot in bots.items()})
        turn += 1
    golden = {
        "seed": SEED,
        "first_prompt": prompt,
        "vocabulary": text.vocabulary(),
        "record": game.record().decode(),
        "final": game.save().decode(),
        "outcome": msgspec.to_builtins(game.outcome()),
    }
    path = Path(__file__).with_name(f"{name}.json")
    path.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    for asked in sys.argv[1:]:
        write(asked)
