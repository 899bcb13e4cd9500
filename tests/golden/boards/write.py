"""Writes ``arena_rank.json`` beside this file: random histories, and what the package arena-rank makes of them.

    make test-oracles

installs the package (0.1.1; it brings JAX and pins NumPy, so it has an environment of its own under ``build/``), writes
the file again and compares. By hand: ``python tests/golden/boards/write.py`` where the package is installed.

The package fits Bradley–Terry to pairs: a tie is half a win for each, there is no prior, 400 points are odds of ten to
one, and what is common to all ratings is left where the optimiser began, at 1000. Its own limits (``ftol``, ``gtol``)
stop L-BFGS some ten-thousandths of a point early; here it runs until the slope is as small as it gets. A match of more
than two seats is told as its pairs of seats, without those of one agent with itself.
"""

import json
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

HERE = Path(__file__).parent
LETTERS = "abcdefghijklmnop"
CASES: dict[str, dict[str, Any]] = {
    **{f"{seats} seats": {"seats": seats, "agents": 12, "matches": 900 // seats} for seats in range(2, 9)},
    "agents in several seats": {"seats": 6, "agents": 5, "matches": 120, "several": True},
}


def history(name: str, seats: int, agents: int, matches: int, several: bool = False) -> dict[str, str]:
    """Who sat in the seats of each match, a letter each, and with how many points, a digit each; many of them tie."""
    rng = Random(name)
    strength = [rng.gauss(0, 150) for _ in range(agents)]
    line_ups, scores = [], []
    for _ in range(matches):
        codes = rng.choices(range(agents), k=seats) if several else rng.sample(range(agents), seats)
        skill = [strength[code] / 200 for code in codes]
        line_ups.append("".join(LETTERS[code] for code in codes))
        scores.append("".join(str(min(9, max(0, round(4.5 + x + rng.gauss(0, 1.2))))) for x in skill))
    return {"agents": " ".join(line_ups), "scores": " ".join(scores)}


def pairs(matches: dict[str, str]) -> list[dict[str, Any]]:
    """The rows that the package reads."""
    rows = []
    for agents, scores in zip(matches["agents"].split(), matches["scores"].split(), strict=True):
        for i, j in combinations(range(len(agents)), 2):
            if agents[i] != agents[j]:
                winner = "tie" if scores[i] == scores[j] else "model_a" if scores[i] > scores[j] else "model_b"
                rows.append({"model_a": agents[i], "model_b": agents[j], "winner": winner})
    return rows


def rated(matches: dict[str, str]) -> dict[str, dict[str, float]]:
    """The package's ratings, and half the width of its 95 % intervals."""
    import pandas as pd
    from arena_rank.models.bradley_terry import BradleyTerry
    from arena_rank.utils.data_utils import PairDataset

    dataset = PairDataset.from_pandas(pd.DataFrame(pairs(matches)))
    model = BradleyTerry(dataset.n_competitors, ftol=0.0, gtol=1e-13, max_iter=3000)
    found = model.compute_ratings_and_cis(dataset)
    names = found["competitors"]
    return {
        "ratings": _points(names, found["ratings"]),
        "half": _points(names, found["rating_upper"] - found["ratings"]),
    }


def _points(names: list[str], values: Any) -> dict[str, float]:
    return {name: round(float(value), 6) for name, value in zip(names, values, strict=True)}


def main() -> None:
    """Write the file."""
    cases = {}
    for name, how in CASES.items():
        matches = history(name, **how)
        cases[name] = matches | rated(matches)
    (HERE / "arena_rank.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main()
