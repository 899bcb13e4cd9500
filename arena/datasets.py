"""Data of environments: small collections written for this project, and problems of reasoning-gym.

``PROBLEMS`` are word problems of one or two steps over small integers; all of a problem's numbers are needed, in order.
``TOPICS`` are for debates, ``PROMPTS`` for answers that are compared, ``PASSAGES`` short documents of facts with their
``WORD_KINDS``, ``WORDS`` everyday words.

``ProblemSet`` has problems of reasoning-gym (Stojanovski et al. 2025, arXiv 2505.24760), each identified by its data
set, options, seed, size and index, from which the package (the extra ``reasoning-gym``) makes it again wherever it is
scored. Its data set's own verifier scores the answers.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec

from schemas.errors import ConfigError, EpisodeError, describe_error, format_choices

ONE_STEP: Sequence[tuple[str, int]] = (
    ("Ana has 3 pears and picks 4 more. How many pears has she now?", 7),
    ("There are 9 birds on a wire and 5 fly off. How many are left?", 4),
    ("A bus has 6 rows of 4 seats. How many seats has it?", 24),
    ("Leo shares 12 nuts among 3 friends. How many does each get?", 4),
    ("A cat sleeps 8 hours by day and 6 by night. How many hours is that?", 14),
    ("Mia reads a book of 20 pages in 4 equal parts. How many pages has a part?", 5),
    ("A rope of 15 metres loses 7 metres. How long is it then?", 8),
    ("Each of 5 boxes holds 5 eggs. How many eggs are there?", 25),
    ("Tom has 2 red and 9 blue pens. How many pens has he?", 11),
    ("Of 14 lamps 6 are out. How many are lit?", 8),
    ("A baker fills 3 trays with 8 rolls each. How many rolls are there?", 24),
    ("A walk of 18 miles takes 6 days of equal length. How many miles a day is that?", 3),
    ("Zoe saved 7 coins and gets 8 coins. How many has she?", 15),
    ("A shop had 20 hats and sold 13. How many hats remain?", 7),
    ("There are 7 weeks of 2 lessons each. How many lessons are that?", 14),
    ("Ivo packs 16 cups into 4 boxes evenly. How many cups go into a box?", 4),
    ("A pond has 11 frogs and 4 more hop in. How many frogs swim there?", 15),
    ("Eva is 13 and her brother is 4 years younger. How old is he?", 9),
    ("A fence needs 9 posts with 2 nails each. How many nails are needed?", 18),
    ("Kim cuts a 10 foot board into pieces of 2 feet. How many pieces are there?", 5),
    ("A team won 5 games in spring and 7 in autumn. How many did it win?", 12),
    ("A jar of 17 olives loses 9. How many olives stay?", 8),
    ("A car has 4 wheels. How many wheels have 5 cars?", 20),
    ("A farmer puts 21 hens into 7 pens evenly. How many hens are in each?", 3),
    ("Ben planted 6 tulips and 6 roses. How many flowers did he plant?", 12),
    ("A train of 19 wagons leaves 8 behind. How many wagons go on?", 11),
    ("Each of 2 shelves carries 11 jars. How many jars are there?", 22),
    ("A bill of 24 coins is split by 8 guests. How much does each pay?", 3),
    ("It was 8 degrees and grew 9 degrees warmer. How warm is it?", 17),
    ("Of 12 candles 10 burned down. How many are left?", 2),
    ("A spider has 8 legs. How many legs have 2 spiders?", 16),
    ("A song of 9 minutes has 3 equal parts. How long is a part?", 3),
)
TWO_STEPS: Sequence[tuple[str, int]] = (
    ("Ida has 2 bags of 5 marbles and finds 3 more. How many has she?", 13),
    ("A van takes 4 crates of 6 bottles and 5 bottles break. How many are whole?", 19),
    ("Max had 9 stamps, got 6 and gave 5 away. How many has he?", 10),
    ("A class of 18 loses 2 pupils and sits in 4 equal rows. How many sit in a row?", 4),
    ("There were 7 boats, 3 left and 8 came. How many boats are there?", 12),
    ("Lia earns 3 coins an hour for 6 hours and spends 8. How many coins remain?", 10),
    ("A cook has 5 carrots and 7 leeks and uses 9 of them. How many are left?", 3),
    ("Of 16 cakes 9 are sold and 5 more are baked. How many are there?", 12),
    ("Two trees bear 6 and 8 plums, shared by 7 children. How many does each get?", 2),
    ("A coach has 10 balls, loses 4 and doubles the rest, times 2. How many has he?", 12),
    ("Nora sews 20 buttons on 5 shirts evenly and 1 more on each. How many has a shirt?", 5),
    ("A barn holds 3 rows of 3 cows and 2 calves. How many animals is that?", 11),
    ("A tank of 15 litres gains 5 litres and feeds 4 taps evenly. How many litres for each?", 5),
    ("Jan walks 2 miles to school and 2 back on each of 5 days. How many miles is that?", 20),
    ("A page has 14 lines, 6 are crossed out and 3 added. How many lines has it?", 11),
    ("A box of 24 pencils is split by 6 and each child loses 1. How many has each child?", 3),
)
PROBLEMS: Sequence[tuple[str, int]] = (*ONE_STEP, *TWO_STEPS)


TOPICS: tuple[str, ...] = (
    "Cats are better pets than dogs",
    "Trains are better than planes",
    "Schools should teach cooking",
    "Cities need more trees",
    "Children should learn music",
    "Winter is better than summer",
    "Books teach more than films",
    "Museums should be free",
    "Robots should drive taxis",
    "Farmers should plant forests",
    "Villages are happier than cities",
    "Games belong in schools",
)
"""A dozen, for debates."""

PROMPTS: tuple[str, ...] = (
    "Why do birds sing?",
    "Why is bread baked?",
    "Why do rivers bend?",
    "Why do leaves fall?",
    "Why do ships float?",
    "Why do stars shine?",
    "Why do cats purr?",
    "Why do dogs bark?",
    "Why does iron rust?",
    "Why do bees dance?",
    "Why do clocks tick?",
    "Why do kites rise?",
    "How does yeast work?",
    "How do seeds grow?",
    "How do wheels help?",
    "How do maps lie?",
    "How does glass form?",
    "How do bridges stand?",
    "How do tides turn?",
    "How do storms begin?",
    "What makes tea bitter?",
    "What makes honey sweet?",
    "What makes soup thick?",
    "What makes paper white?",
)
"""Two dozen, for answers that are compared."""


PASSAGES: Sequence[str] = (
    "The heron stands in the pond. The heron eats fish. The heron builds its nest of sticks.",
    "The mole lives in the soil. The mole eats worms. The mole digs in the dark.",
    "The goat climbs on the rocks. The goat eats grass. The goat gives milk.",
    "The bee flies in the garden. The bee drinks nectar. The bee gives honey.",
    "The owl sits in the barn. The owl eats mice. The owl hunts at night.",
    "The salmon swims in the river. The salmon eats shrimp. The salmon lays its eggs in gravel.",
    "The miller works at dawn. The miller grinds wheat. The miller sells flour.",
    "The potter works at noon. The potter shapes clay. The potter sells bowls.",
    "The weaver works at dusk. The weaver spins wool. The weaver sells shawls.",
    "The smith works by day. The smith heats iron. The smith sells nails.",
    "The ferry leaves in the morning. The ferry carries coal. The ferry lands at the quay.",
    "The baker works at midnight. The baker kneads dough. The baker sells bread.",
)
WORD_KINDS: Mapping[str, Sequence[str]] = {
    "place": ("pond", "soil", "rocks", "garden", "barn", "river", "quay", "gravel"),
    "food": ("fish", "worms", "grass", "nectar", "mice", "shrimp"),
    "ware": ("milk", "honey", "flour", "bowls", "shawls", "nails", "bread"),
    "time": ("dark", "night", "dawn", "noon", "dusk", "day", "morning", "midnight"),
    "matter": ("sticks", "wheat", "clay", "wool", "iron", "coal", "dough"),
}


WORDS: Sequence[str] = (
    "apple", "bell", "boat", "bridge", "candle", "cat", "cloud", "coat", "door", "drum", "field", "fox",
    "garden", "hill", "kite", "lamp", "moon", "rain", "river", "road", "ship", "stone", "tree", "wolf",
)  # fmt: skip


EXECUTE_REPLIES = frozenset(
    {
        "binary_matrix",
        "countdown",
        "intermediate_integration",
        "n_queens",
        "puzzle24",
        "simple_integration",
        "spiral_matrix",
        "string_insertion",
    }
)
"""Data sets whose verifiers run a reply as Python."""
UNSEEDED = frozenset({"isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder"})
"""Data sets whose problems differ between processes with the same seed."""


class Problem(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The identity of a problem."""

    dataset: str
    seed: int
    size: int
    """Of the set that it is from: some data sets draw differently for another size."""
    index: int
    options: dict[str, Any] = {}


class ProblemSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Problems of a data set, as a setting of an environment."""

    dataset: str
    """reasoning-gym's name: ``chain_sum``."""
    size: int = 100
    seed: int = 0
    options: dict[str, Any] = {}
    """Arguments of the data set: ``{ min_terms = 3 }``."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"size: {self.size}; expected 1 or more")
        if self.dataset in UNSEEDED | EXECUTE_REPLIES:
            reason = "changes from process to process" if self.dataset in UNSEEDED else "runs replies as Python"
            raise ConfigError(f"dataset: {self.dataset!r} {reason}; expected another one")

    def problems(self, seed_offset: int = 0) -> list[tuple[str, str, Problem]]:
        """Questions with reference answers, empty where there is none; another seed gives other problems.

        Raises:
            ConfigError: the package is not installed, no such data set, or bad options.
        """
        seed = self.seed + seed_offset
        made = _open_dataset(self.dataset, seed, self.size, _encode(self.options))
        entries = enumerate(made[index] for index in range(self.size))
        return [
            (entry["question"], entry["answer"] or "", Problem(self.dataset, seed, self.size, index, self.options))
            for index, entry in entries
        ]


def score_answer(answer: str, problem: Problem) -> float:
    """Score of an answer by its data set's verifier, from 0 to 1.

    Raises:
        EpisodeError: the verifier raised, or its score is not from 0 to 1.
    """
    made = _open_dataset(problem.dataset, problem.seed, problem.size, _encode(problem.options))
    where = f"reasoning-gym, {problem.dataset}, seed {problem.seed}, problem {problem.index}"
    try:
        score = float(made.score_answer(answer=answer, entry=made[problem.index]))
    except Exception as error:  # verifiers are third-party code and may raise anything
        raise EpisodeError(f"{where}: the verifier raises ({describe_error(error)})") from error
    if not (math.isfinite(score) and 0 <= score <= 1):
        raise EpisodeError(f"{where}: score {score}; expected from 0 to 1")
    return score


_encode = msgspec.json.Encoder(order="sorted").encode


@cache
def _open_dataset(name: str, seed: int, size: int, options: bytes) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import reasoning_gym
            from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ConfigError(
            f"game.settings: the data set {name!r} needs the package reasoning-gym: "
            "pip install 'event-sourced-league[reasoning-gym]'"
        ) from error
    if name not in DATASETS:
        raise ConfigError(
            f"game.settings: reasoning-gym has no data set {name!r}; expected {format_choices(sorted(DATASETS))}"
        )
    try:
        return reasoning_gym.create_dataset(name, size=size, seed=seed, **msgspec.json.decode(options))
    except Exception as error:  # its configurations assert, and raise what they like
        raise ConfigError(
            f"game.settings: the data set {name!r} cannot be made with options {options.decode()} "
            f"({describe_error(error)})"
        ) from error
