"""Value function of positions: what a seat's share of the game's end will be, fitted to games of bots.

Supply centres alone say little of who will lead some years on. Units beside free centres, or beside own ones that a
rival can take, and the power itself double what is known of it in 1902. The fit is a ridge regression for each number
of years that are left, of positions in spring; ``python -m arena.games.diplomacy.value_function`` plays the games and
writes ``value_weights.json`` anew, in some minutes.

Shape suffixes: S seat, P province, F feature, Y years left, N position of a seat.
"""

from functools import cache
from pathlib import Path
from random import Random

import msgspec
import numpy as np

from arena.games.diplomacy import POWERS, Settings
from arena.games.diplomacy.order_features import Floats, PositionArrays
from arena.games.diplomacy.position import Position

MOST_YEARS = 4
"""Years left; a position with more counts by its share of the squares of centres."""
WEIGHTS_FILE = Path(__file__).with_name("value_weights.json")
BOTS = {"mover": 1, "greedy": 4, "tactician": 4, "convoyer": 1}
"""Bots whose games are fitted to, and how often each is drawn."""
GAMES = 5000
RIDGE = 1.0
DIGITS = 5
"""Of the stored weights, behind the point."""


def expected_value(position: Position, seat: int, max_year: int) -> float:
    """Expected ``final_values`` of a seat when ``max_year`` ends, 0 to 1."""
    years = max(max_year - position.year + 1, 1)
    if years > MOST_YEARS:
        sizes_S = np.array([len(owned) for owned in position.centers], float)
        return float(sizes_S[seat] ** 2 / (sizes_S**2).sum())
    return float(np.clip(_weights()[years - 1] @ features(position, seat), 0, 1))


def final_values(sizes_S: Floats) -> Floats:
    """Half of each seat's share of the squares of centres, and a half for the sole leader; shape (S,)."""
    leads_S = sizes_S == sizes_S.max()
    values_S: Floats = (sizes_S**2 / (sizes_S**2).sum() + (leads_S if leads_S.sum() == 1 else 0)) / 2
    return values_S


def features(position: Position, seat: int) -> Floats:
    """Features of a seat's position; shape (F,)."""
    table = PositionArrays(position)
    sizes_S, seats = np.array([len(owned) for owned in position.centers], float), np.arange(len(position.centers))
    # Units that stand at a province or can move there.
    force_SP = table.reach_SP + (table.holder_P == seats[:, None])
    ranked_SP, leader_P = np.sort(force_SP, axis=0), force_SP.argmax(axis=0)
    size, owner_P = sizes_S[seat], table.owner_P
    others = np.sort(np.delete(sizes_S, seat))[::-1]
    top_rival = int(np.where(seats == seat, -1, sizes_S).argmax())
    ours_P, theirs_P = force_SP[seat], np.where(leader_P == seat, ranked_SP[-2], ranked_SP[-1])
    top_P, against_top_P = force_SP[top_rival], np.where(leader_P == top_rival, ranked_SP[-2], ranked_SP[-1])
    is_own_P, is_top_P, is_unowned_P = owner_P == seat, owner_P == top_rival, owner_P == -1
    is_foreign_P = (owner_P >= 0) & ~is_own_P
    stands_P, reaches_P = table.holder_P == seat, ours_P > 0
    power = np.array([position.powers[seat] == name for name in POWERS], float)
    return np.array(
        [
            1,
            size,
            size**2 / 10,
            len(position.units[seat]) - size,
            others[0],
            others[1] if len(others) > 1 else 0,
            (others**2).sum() / 50,
            max(size - others[0], 0),
            size**2 / (sizes_S**2).sum(),
            is_unowned_P.sum(),
            (is_unowned_P & reaches_P & (theirs_P == 0)).sum(),
            (is_unowned_P & reaches_P & (theirs_P > 0)).sum(),
            (is_unowned_P & (ours_P > theirs_P)).sum(),
            (is_unowned_P & stands_P).sum(),
            (is_foreign_P & reaches_P & (theirs_P == 0)).sum(),
            (is_foreign_P & (ours_P > theirs_P)).sum(),
            (is_foreign_P & reaches_P & (ours_P <= theirs_P)).sum(),
            (is_foreign_P & stands_P).sum(),
            (is_own_P & (theirs_P > 0)).sum(),
            (is_own_P & (theirs_P > ours_P)).sum(),
            (is_own_P & (theirs_P >= ours_P)).sum(),
            (is_own_P & (table.holder_P >= 0) & ~stands_P).sum(),
            (force_SP.sum(axis=0) - ours_P)[is_own_P].sum() / 5,
            ours_P[is_own_P].sum() / 5,
            ours_P[is_foreign_P].sum() / 5,
            ours_P[is_unowned_P].sum() / 5,
            (is_top_P & (against_top_P >= top_P)).sum(),
            ((owner_P >= 0) & ~is_top_P & (top_P > against_top_P)).sum(),
            (is_unowned_P & (top_P > against_top_P)).sum(),
            *power,
            *(power * size / 5),
        ],
        float,
    )


@cache
def _weights() -> Floats:
    """Weights of the features by years left; shape (Y, F)."""
    weights_YF: Floats = np.array(msgspec.json.decode(WEIGHTS_FILE.read_bytes()))
    return weights_YF


def fit(games: int) -> Floats:
    """Weights fitted to this many games of bots; shape (Y, F)."""
    from arena.games.diplomacy.spec import DiplomacySpec

    spec = DiplomacySpec(Settings(max_year=1901 + MOST_YEARS))
    bots = {name: spec.bot(name) for name in BOTS}
    features_YNF: list[list[Floats]] = [[] for _ in range(MOST_YEARS)]
    values_YN: list[list[float]] = [[] for _ in range(MOST_YEARS)]
    for number in range(games):
        game, rng = spec.new(number), Random(number)
        names = rng.choices(list(BOTS), list(BOTS.values()), k=len(game.seats))
        if number % 2:
            # One bot against six of another, as benchmarks seat them.
            names = [names[0]] * len(names)
            names[rng.randrange(len(names))] = rng.choices(list(BOTS), list(BOTS.values()))[0]
        springs: list[Position] = []
        while moving := game.to_move():
            if game.position.phase[0] == "S" and game.position.kind == "M" and game.position.year > 1901:
                springs.append(game.position)
            game.apply({seat: bots[names[seat]].act(game, seat, rng) for seat in moving})
        values_S = final_values(np.array([len(owned) for owned in game.position.centers], float))
        for position in springs:
            left = spec.settings.max_year - position.year
            features_YNF[left].extend(features(position, seat) for seat in range(len(game.seats)))
            values_YN[left].extend(values_S.tolist())
    weights_YF: Floats = np.array(
        [_ridge(np.array(x), np.array(y)) for x, y in zip(features_YNF, values_YN, strict=True)]
    )
    return weights_YF


def _ridge(features_NF: Floats, values_N: Floats) -> Floats:
    gram_FF = features_NF.T @ features_NF + RIDGE * np.eye(features_NF.shape[1])
    weights_F: Floats = np.linalg.solve(gram_FF, features_NF.T @ values_N).astype(float)
    return weights_F


if __name__ == "__main__":
    WEIGHTS_FILE.write_bytes(msgspec.json.encode(np.round(fit(GAMES), DIGITS).tolist()) + b"\n")
