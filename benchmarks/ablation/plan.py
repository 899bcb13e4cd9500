"""What ``run`` trains where nothing else is asked for: games with settings, the arms of each, and how many seeds.

Ten seeds where five were not enough to tell the arms apart that a cell is about.
"""

from collections.abc import Mapping, Sequence

from benchmarks.ablation.arms import ARMS, SETTINGS
from benchmarks.ablation.games import BENCHES

FIVE, TEN = tuple(range(1, 6)), tuple(range(1, 11))

PLAN: Mapping[tuple[str, str], Mapping[str, Sequence[int]]] = {
    ("rps", "entropy"): {
        **{"mirror": TEN, "lagged": FIVE, "pfsp": FIVE, "alphastar": FIVE},
        **{"league": TEN, "lean": FIVE},
    },
    ("kuhn", "entropy"): {
        **{"mirror": TEN, "lagged": TEN, "pfsp": TEN, "alphastar": TEN},
        **{"league": TEN, "lean": FIVE},
    },
    ("five", "entropy"): {"mirror": TEN, "lagged": FIVE, "pfsp": FIVE, "alphastar": FIVE, "league": TEN},
    ("rps", "annealed"): {"mirror": FIVE, "league": FIVE},
    ("kuhn", "annealed"): {"mirror": FIVE, "league": FIVE},
    ("leduc", "entropy"): {"mirror": FIVE, "lagged": FIVE, "pfsp": FIVE, "alphastar": FIVE, "league": FIVE},
    ("textarena", "entropy"): {"mirror": FIVE, "league": FIVE},
    ("diplomacy", "entropy"): {"mirror": FIVE, "league": FIVE},
}

Run = tuple[str, str, str, int]
"""Game, setting, arm and seed."""


def runs(
    games: Sequence[str] | None = None,
    settings: Sequence[str] | None = None,
    arms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[Run]:
    """The plan's runs with these names, seed by seed: what is there of a game at any time is there for all arms.

    Where games, settings and arms are all named, also those that are not in the plan; named seeds are taken as they
    are, and of what is not in the plan five.
    """
    wanted = {
        (game, setting, arm): seeds or PLAN.get((game, setting), {}).get(arm, FIVE)
        for game in games or BENCHES
        for setting in settings or SETTINGS
        for arm in arms or ARMS
        if (games and settings and arms) or arm in PLAN.get((game, setting), {})
    }
    every = [(*key, seed) for key, of_key in wanted.items() for seed in of_key]
    cells = list(dict.fromkeys((game, setting) for game, setting, _ in wanted))
    # A stable sort: arms stay in their order.
    return sorted(every, key=lambda run: (cells.index(run[:2]), run[3]))
