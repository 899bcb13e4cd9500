"""How TextArena's environments play: ``python -m benchmarks.textarena_environments [NAME ...]``.

Each is played by ``random_bot`` in all seats, in a process of its own, and is one row of a Markdown table. A game that
is not over within the turns or the time allowed is counted as such.
"""

import subprocess
import sys
from collections import Counter
from random import Random
from typing import Any, cast

from arena.games import make_game
from arena.games.third_party import LetteredGame
from schemas.errors import ConfigError, GameError

GAMES, MAX_TURNS, TIMEOUT_S = 5, 200, 180
SUFFIX = "-v0-train"


def measure(name: str) -> str:
    """The row of one environment."""
    try:
        spec = make_game("textarena", {"env": name + SUFFIX, "max_turns": MAX_TURNS})
    except ConfigError as error:
        return f"| `{name}` | – | does not begin: {str(error).partition('players: ')[2] or error} |"
    ends: Counter[str] = Counter()
    turns = 0
    for seed in range(GAMES):
        game, rng = cast("LetteredGame[Any]", spec.new(seed)), Random(seed)
        try:
            while moving := game.to_move():
                game.apply({moving[0]: game.random_action(moving[0], rng)})
                turns += 1
            ends["forfeit" if game.reason() == "invalid_move" else "over"] += 1
        except GameError as error:
            ends["too long" if "not over after" in str(error) else str(error).replace("|", "/")[:120]] += 1
    found = ", ".join(f"{count} {end}" for end, count in ends.most_common())
    return f"| `{name}` | {len(game.seats)} | {found}; {turns / GAMES:.0f} turns |"


def main(names: list[str]) -> None:
    """Print the table."""
    # Prints when it is imported.
    from textarena.envs.registration import ENV_REGISTRY

    print(f"| environment | seats | {GAMES} games of `random_bot` |\n|---|---|---|", flush=True)
    for name in names or sorted(each.removesuffix(SUFFIX) for each in ENV_REGISTRY if each.endswith(SUFFIX)):
        command = [
            sys.executable,
            "-c",
            f"from benchmarks import textarena_environments as t; print(t.measure({name!r}))",
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
            row = done.stdout.splitlines()[-1]
        except subprocess.TimeoutExpired:
            row = f"| `{name}` | – | not over in {TIMEOUT_S} s |"
        except subprocess.CalledProcessError as error:
            row = f"| `{name}` | – | {error.stderr.splitlines()[-1]} |"
        print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
