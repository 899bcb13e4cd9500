"""The games, and the budget that every arm has in each of them."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import permutations, product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from arena.games import kuhn_poker, leduc_poker, make_game
from benchmarks.ablation.trees import GameTree
from benchmarks.sizes import size
from schemas.config import LeagueConfig, Plugin, load_config
from schemas.errors import UsageError

MINIATURE_GAMES = 128
"""Training matches, and cloned examples, where the ablation only shows that it runs."""


class GameBenchmark(msgspec.Struct, frozen=True, kw_only=True):
    """A game, and the budget that every arm has in it."""

    title: str
    game: Plugin
    deals: Callable[[], Sequence[tuple[float, Any]]] | None = None
    """First positions with their probabilities; None where the game has no tree here: then a policy that is trained
    against the run's frozen one measures (``exploiters``)."""
    prepare: Callable[[], None] = lambda: None
    """Done before the game is made, in every process."""
    unit: str
    """Of what is won."""
    games: int
    """Training matches of all of a run's policies together."""
    batch: int = 32
    """Matches to a gradient step."""
    checkpoints: int = 40
    """Of a run whose games all train one policy; versions between them follow."""
    resets: int = 4
    """How often an exploiter begins anew, at least: it has its share of the run's steps over so many."""
    positions: int = 64
    """Longest sequence of the base model."""
    cloned: int = size(6_144, MINIATURE_GAMES)
    """Examples of random play that the base model is taught."""
    exploiter_games: int = 0
    """Training matches of an exploiter that measures a finished run."""
    held_out: tuple[str, ...] = ()
    """Bots that nobody meets in training, and a finished run's policy meets then."""
    is_zero_sum: bool = True
    """Whether one's gain is the other's loss."""
    held_out_games: int = 0
    """Matches against each of them; a multiple of the seats, since all are played from equally often."""
    config: LeagueConfig | None = None
    """Of populations of teachers and students: all but the arm's and the learner's setting. None makes an own one."""
    attempts: int = 0
    """At fixed questions, by each student of a finished run."""
    early_share: float = 1 / 3
    """After this share of the steps an arm without exploiters is measured too: the main policy of the league that it is
    compared with takes about so many."""

    @property
    def steps(self) -> int:
        """Gradient steps of all of a run's policies together."""
        return self.games // self.batch

    @property
    def every(self) -> int:
        """Versions between checkpoints."""
        return max(self.steps // self.checkpoints, 1)

    def tree(self) -> GameTree:
        """All of the game.

        Raises:
            UsageError: it is too large.
        """
        if self.deals is None:
            raise UsageError(f"{self.title}: found no first positions; expected a game that is small enough for a tree")
        return GameTree(make_game(self.game.name, self.game.settings), self.deals())  # type: ignore[arg-type]


def _single_deal() -> Sequence[tuple[float, Any]]:
    return [(1.0, make_game("rock_paper_scissors", {}).start(0))]  # type: ignore[attr-defined]


def _kuhn_deals() -> Sequence[tuple[float, Any]]:
    return [(1 / 6, kuhn_poker.State(cards, 0)) for cards in permutations(range(3), 2)]


def _leduc_deals() -> Sequence[tuple[float, Any]]:
    deals = Counter(permutations([0, 0, 1, 1, 2, 2], 3))
    return [
        (n / deals.total(), leduc_poker.State((first, second, table))) for (first, second, table), n in deals.items()
    ]


ONE_ROUND = "IteratedRockPaperScissors-v0-one-round-train"


def _register_one_round() -> None:
    """TextArena registers nine rounds, whose observations are longer than two cores can train on by the hundred."""
    from textarena.envs.registration import ENV_REGISTRY, register

    if ONE_ROUND not in ENV_REGISTRY:
        whole = ENV_REGISTRY["IteratedRockPaperScissors-v0-train"]
        register(ONE_ROUND, whole.entry_point, whole.default_wrappers, **{**whole.kwargs, "num_rounds": 1})


BIASED_RPS_PAYOFFS = [[0.0, -1.0, 2.0], [1.0, 0.0, -1.0], [-2.0, 1.0, 0.0]]
"""Rock beats scissors twice as high: the equilibrium is a quarter rock, half paper, a quarter scissors."""

ANIMALS = ("ant", "bee", "cat", "dog", "elk")
_BEATS = {(0, 1): 1.0, (0, 2): 3.0, (1, 2): 1.0, (1, 3): 2.0, (2, 3): 1.0, (2, 4): 1.0, (3, 4): 2.0, (3, 0): 1.0}
_BEATS |= {(4, 0): 1.0, (4, 1): 1.0}
ANIMAL_PAYOFFS = [[_BEATS.get((a, b), 0.0) - _BEATS.get((b, a), 0.0) for b in range(5)] for a in range(5)]
"""Each of five animals beats two others and loses to two, for different stakes."""

BLOTTO_SOLDIERS = 5
_ALLOCATIONS = [one for one in product(range(BLOTTO_SOLDIERS + 1), repeat=3) if sum(one) == BLOTTO_SOLDIERS]
ALLOCATIONS = tuple("".join("abcdef"[count] for count in one) for one in _ALLOCATIONS)
"""Colonel Blotto's allocations of five soldiers to three fields, a letter a field: ``a`` for none, ``f`` for five."""
BLOTTO_PAYOFFS = [
    [float(np.sign(sum(np.sign(a - b) for a, b in zip(one, other, strict=True)))) for other in _ALLOCATIONS]
    for one in _ALLOCATIONS
]
"""The majority of fields wins (Borel 1921). 5-0-0 never wins, and the better allocations beat each other in circles."""

DILEMMA_PAYOFFS = [[3.0, 0.0], [5.0, 1.0]]
"""The prisoner's dilemma of Axelrod's tournaments: 3 each for cooperation, 1 each for defection, 5 and 0 else."""

FRANCE_AUSTRIA = {
    **{"powers": ["AUSTRIA", "FRANCE"], "max_year": 1904, "text": "signposted"},
    # Whoever is ahead has won, and that is worth more than a few centres.
    **{"win_bonus": 10.0, "winner_threshold_sc": 1},
}
"""The two-player board of Bakhtin et al. 2021 (DORA), over four years."""

SOUTHERN_THREE = {**FRANCE_AUSTRIA, "powers": ["AUSTRIA", "ITALY", "TURKEY"], "max_year": 1903}
"""Three whose home centres lie within two moves of each other, around the same Balkan centres: two can turn on the
third in the first year, and Austria lies between the others. Three years hold the opening and its consequences."""

TEACHING = load_config(Path(__file__).parents[2] / "configs" / "proposer-solver-populations.toml")
"""Two teachers who write sums, and two students who try them."""

BENCHMARKS = {
    "rps": GameBenchmark(
        title="Biased rock-paper-scissors",
        game=Plugin("rock_paper_scissors", {"payoffs": BIASED_RPS_PAYOFFS, "rounds": 1}),
        deals=_single_deal,
        unit="points",
        games=size(9_600, MINIATURE_GAMES),
    ),
    "five": GameBenchmark(
        title="Five animals",
        game=Plugin("rock_paper_scissors", {"moves": ANIMALS, "payoffs": ANIMAL_PAYOFFS, "rounds": 1}),
        deals=_single_deal,
        unit="points",
        games=size(9_600, MINIATURE_GAMES),
    ),
    "blotto": GameBenchmark(
        title="Colonel Blotto",
        game=Plugin("rock_paper_scissors", {"moves": ALLOCATIONS, "payoffs": BLOTTO_PAYOFFS, "rounds": 1}),
        deals=_single_deal,
        unit="points",
        games=size(4_800, MINIATURE_GAMES),
    ),
    "dilemma": GameBenchmark(
        title="Iterated prisoner's dilemma, four rounds",
        game=Plugin(
            "rock_paper_scissors",
            {
                "moves": ("cooperate", "defect"),
                "payoffs": DILEMMA_PAYOFFS,
                "second_payoffs": [list(column) for column in zip(*DILEMMA_PAYOFFS, strict=True)],
                "rounds": 4,
            },
        ),
        deals=_single_deal,
        is_zero_sum=False,
        unit="points",
        games=size(1_600, MINIATURE_GAMES),
    ),
    "kuhn": GameBenchmark(
        title="Kuhn poker",
        game=Plugin("kuhn_poker", {"shuffle": False}),
        deals=_kuhn_deals,
        unit="chips",
        games=size(9_600, MINIATURE_GAMES),
    ),
    # Cards and stakes decide so much of a hand that a step of 32 teaches next to nothing.
    "leduc": GameBenchmark(
        title="Leduc poker",
        game=Plugin("leduc_poker"),
        deals=_leduc_deals,
        unit="chips",
        games=size(38_400, MINIATURE_GAMES),
        batch=128,
    ),
    "nim": GameBenchmark(
        title="Nim with heaps of 1, 2 and 3",
        game=Plugin("nim", {"heaps": [1, 2, 3]}),
        unit="points",
        games=size(3_200, MINIATURE_GAMES),
        batch=16,
        checkpoints=12,
        held_out=("random_bot",),
        held_out_games=size(400, MINIATURE_GAMES),
    ),
    "textarena": GameBenchmark(
        title="TextArena's rock-paper-scissors, one round",
        game=Plugin("textarena", {"env": ONE_ROUND}),
        prepare=_register_one_round,
        unit="points",
        games=size(3_200, MINIATURE_GAMES),
        checkpoints=12,
        positions=512,
        cloned=size(1_024, MINIATURE_GAMES),
        exploiter_games=size(1_600, MINIATURE_GAMES),
    ),
    "diplomacy": GameBenchmark(
        title="Diplomacy, Austria against France",
        game=Plugin("diplomacy", FRANCE_AUSTRIA),
        unit="points",
        games=size(1_536, MINIATURE_GAMES),
        batch=16,
        checkpoints=12,
        positions=512,
        cloned=size(2_048, MINIATURE_GAMES),
        exploiter_games=size(768, MINIATURE_GAMES),
        held_out=("random_bot", "mover", "greedy"),
        held_out_games=size(100, MINIATURE_GAMES),
    ),
    "three": GameBenchmark(
        title="Diplomacy, Austria, Italy and Turkey",
        game=Plugin("diplomacy", SOUTHERN_THREE),
        unit="points",
        games=size(768, MINIATURE_GAMES),
        batch=16,
        checkpoints=12,
        # Exploiters begin anew after as many steps as in the game for two, which is twice as long.
        resets=2,
        positions=512,
        cloned=size(2_048, MINIATURE_GAMES),
        exploiter_games=size(576, MINIATURE_GAMES),
        held_out=("random_bot", "mover", "greedy"),
        held_out_games=size(96, MINIATURE_GAMES // 3 * 3),
        early_share=2 / 3,
    ),
    "sums": GameBenchmark(
        title="Sums that teachers ask students",
        game=TEACHING.game,
        config=TEACHING,
        unit="right answers",
        games=size(4_400, MINIATURE_GAMES),
        batch=TEACHING.trainer.rollouts_per_step,
        # Who is taught less writes no question that can be used, and students wait for one.
        cloned=size(TEACHING.model.cloning["sequences"], 4_000),
        attempts=size(1_024, 64),
    ),
}
