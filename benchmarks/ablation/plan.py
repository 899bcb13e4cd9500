"""What ``run`` trains where nothing else is asked for: games with settings, the arms of each, and how many seeds.

Ten seeds where five were not enough to tell the arms apart that a cell is about.

What decides, laid down before the runs: everywhere the newest policy's exploitability over the second half of the
games, and the same by equal steps. In the iterated prisoner's dilemma, which is not zero-sum, that is what a best
response wins more than the policy wins from itself; what it wins from itself tells beside it whether both cooperate (12
points of four rounds) or defect (4). One trial of mirror self-play on seed 77 was looked at before: it defects after a
dozen steps, so that 1,600 matches are enough. Mutations in Colonel Blotto are compared with the population without an
operator, seed by seed, by the same two measures and by the mean of checkpoints.

In Diplomacy for three, laid down before its runs: after equally many matches, what the exploiter of the newest policy
takes in the last quarter of its games, a third being its fair share, and what the newest policy takes from the held-out
bots, all alike; mirror self-play minus the league, seed by seed over ten seeds. Mirror self-play after as many steps as
the league's main policy takes is told beside both. The league is that whose exploiters share the base model and take a
third of the steps (``lean``). Seed 77 was run before, to learn what a run costs.

In populations of teachers and students (``sums``), laid down before the runs: after equally many training matches, the
same number of every policy, the share of the fixed questions that the newest version of the best student answers. The
best is the one with the higher mean reward in its last 64 training matches, so that no question chooses it. Beside it
the mean of the students, and ``main`` alone. Two pairs minus one, two pairs with replacement minus one pair, and minus
two without; seed by seed over ten seeds. Seed 77 was run before, one pair and two with replacement: 4,800 matches take
two minutes, the base model answers 0.263, and they 0.421 and 0.409. So 4,400 matches are what ten seeds have time for.
Added after two seeds had been looked at: the only student after as many steps as each of two takes.
"""

from collections.abc import Mapping, Sequence

from benchmarks.ablation.arms import ARMS, SETTINGS
from benchmarks.ablation.games import BENCHMARKS

FIVE_SEEDS, TEN_SEEDS = tuple(range(1, 6)), tuple(range(1, 11))

PLAN: Mapping[tuple[str, str], Mapping[str, Sequence[int]]] = {
    ("rps", "entropy"): {
        **{"mirror": TEN_SEEDS, "lagged": FIVE_SEEDS, "pfsp": FIVE_SEEDS, "alphastar": FIVE_SEEDS},
        **{"league": TEN_SEEDS, "lean": FIVE_SEEDS},
    },
    ("kuhn", "entropy"): {
        **{"mirror": TEN_SEEDS, "lagged": TEN_SEEDS, "pfsp": TEN_SEEDS, "alphastar": TEN_SEEDS},
        **{"league": TEN_SEEDS, "lean": FIVE_SEEDS},
    },
    ("five", "entropy"): {
        "mirror": TEN_SEEDS,
        "lagged": FIVE_SEEDS,
        "pfsp": FIVE_SEEDS,
        "alphastar": FIVE_SEEDS,
        "league": TEN_SEEDS,
    },
    ("blotto", "entropy"): dict.fromkeys(("mirror", "league", "population", "crossover", "mutation"), TEN_SEEDS),
    ("dilemma", "entropy"): dict.fromkeys(("mirror", "league"), TEN_SEEDS),
    ("nim", "entropy"): dict.fromkeys(("mirror", "imitation"), TEN_SEEDS),
    ("rps", "annealed"): {"mirror": FIVE_SEEDS, "league": FIVE_SEEDS},
    ("kuhn", "annealed"): {"mirror": FIVE_SEEDS, "league": FIVE_SEEDS},
    ("leduc", "entropy"): {
        "mirror": FIVE_SEEDS,
        "lagged": FIVE_SEEDS,
        "pfsp": FIVE_SEEDS,
        "alphastar": FIVE_SEEDS,
        "league": FIVE_SEEDS,
    },
    ("textarena", "entropy"): {"mirror": FIVE_SEEDS, "league": FIVE_SEEDS},
    ("diplomacy", "entropy"): {"mirror": FIVE_SEEDS, "league": FIVE_SEEDS},
    ("three", "entropy"): dict.fromkeys(("mirror", "lean"), TEN_SEEDS),
    ("sums", "slow"): dict.fromkeys(("pair", "pairs", "replaced"), TEN_SEEDS),
}

RunKey = tuple[str, str, str, int]
"""Game, setting, arm and seed."""


def planned_runs(
    games: Sequence[str] | None = None,
    settings: Sequence[str] | None = None,
    arms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
) -> list[RunKey]:
    """The plan's runs with these names, seed by seed: what is there of a game at any time is there for all arms.

    Where games, settings and arms are all named, also those that are not in the plan; named seeds are taken as they
    are, and of what is not in the plan five.
    """
    seeds_of = {
        (game, setting, arm): seeds or PLAN.get((game, setting), {}).get(arm, FIVE_SEEDS)
        for game in games or BENCHMARKS
        for setting in settings or SETTINGS
        for arm in arms or ARMS
        if (games and settings and arms) or arm in PLAN.get((game, setting), {})
    }
    every = [(*key, seed) for key, of_key in seeds_of.items() for seed in of_key]
    cells = list(dict.fromkeys((game, setting) for game, setting, _ in seeds_of))
    # A stable sort: arms stay in their order.
    return sorted(every, key=lambda run: (cells.index(run[:2]), run[3]))
