"""Value function of positions: who will own each supply centre when the game ends, and what that is worth to a seat.

A small network sees for each seat and supply centre how many units are how near and who owns what. Means over a seat's
centres and over a centre's seats join its two layers (Zaheer et al. 2017, "Deep sets", arXiv:1703.06114). It was fitted
to 28,000 games of bots (docs/results.md).

Shape suffixes: S seat, C centre, D distance, L local feature, H hidden unit, Y years left, U unit. Leading axes of
``forward`` may be those of a batch.
"""

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from arena.games.diplomacy import POWERS, board
from arena.games.diplomacy.order_features import Floats, largest_other, moves_between
from arena.games.diplomacy.position import Position

MOST_YEARS = 4
"""Years left; a position with more counts by its share of the squares of centres."""
WEIGHTS_FILE = Path(__file__).with_name("value_weights.npz")
DISTANCES = 4
"""Moves that tell apart how near a unit is: 0 to 3."""
MOST_UNITS = 3
"""Number of units at one distance that are counted apart."""
SCALE_L = np.array([1] * 8 + [1 / 2, 1 / 3] + [1] * 4 + [1 / 5] * 3)
"""Scale of ``center_features``, applied before their weights."""
OWNS, UNOWNED = 12, 13
"""Indices of the local features "the seat owns the centre" and "nobody owns it"."""
HIDDEN, SIZE_FEATURES = 32, 6
STAYS = 2.0
"""Added to the logit of a centre's present owner, beside what is fitted."""
PEAK = 8
"""Power by which the mean over rivals' sizes is nearly their maximum."""


def expected_value(position: Position, seat: int, max_year: int) -> float:
    """Expected ``final_values`` of a seat when ``max_year`` ends, 0 to 1."""
    years = max(max_year - position.year + 1, 1)
    if years > MOST_YEARS:
        sizes_S = np.array([len(owned) for owned in position.centers], float)
        return float(sizes_S[seat] ** 2 / (sizes_S**2).sum())
    rows = [POWERS.index(power) for power in position.powers]
    parameters = {**_parameters(), "place": _parameters()["place"][rows]}
    values_S, *_ = forward(parameters, center_features(position), np.eye(MOST_YEARS)[years - 1])
    return float(values_S[seat])


def final_values(sizes_S: Floats) -> Floats:
    """Half of each seat's share of the squares of centres, and a half for the sole leader; shape (S,)."""
    leads_S = sizes_S == sizes_S.max()
    values_S: Floats = (sizes_S**2 / (sizes_S**2).sum() + (leads_S if leads_S.sum() == 1 else 0)) / 2
    return values_S


def center_features(position: Position) -> NDArray[np.uint8]:
    """What each seat sees of each supply centre, in whole numbers; shape (S, C, L)."""
    near_UDC, row = _near_by_unit()
    near_SDC = np.minimum([near_UDC[[row[unit] for unit in units]].sum(axis=0) for units in position.units], MOST_UNITS)
    sizes_S = np.array([len(owned) for owned in position.centers])
    owner_C = np.array([position.owner.get(center, -1) for center in board.CENTERS])
    owns_SC, is_owned_C = owner_C == np.arange(len(sizes_S))[:, None], owner_C >= 0
    is_anothers_SC = is_owned_C & ~owns_SC
    of_owner_DC = near_SDC[owner_C, :, np.arange(len(owner_C))].T
    all_DSC = np.broadcast_to(near_SDC.sum(axis=0)[:, None], near_SDC.swapaxes(0, 1).shape)
    near_DSC, strongest_DSC = near_SDC.swapaxes(0, 1), largest_other(near_SDC).swapaxes(0, 1)
    features_LSC = [
        *near_DSC,
        *strongest_DSC,
        *(all_DSC - near_DSC)[1:3],
        *(of_owner_DC[:2, None] * is_anothers_SC),
        owns_SC,
        np.broadcast_to(~is_owned_C, owns_SC.shape),
        np.broadcast_to(sizes_S[:, None], owns_SC.shape),
        sizes_S[owner_C] * is_anothers_SC,
        np.broadcast_to(largest_other(sizes_S)[:, None], owns_SC.shape),
    ]
    return np.array(features_LSC, np.uint8).transpose(1, 2, 0)


def forward(parameters: Mapping[str, Any], features_SCL: Any, years_Y: Any) -> tuple[Any, Any, Any]:
    """Expected values and owners at the game's end.

    ``parameters`` are those of ``WEIGHTS_FILE``, the features ``center_features``, scaled;
    ``years_Y`` is 1 for the number of years left, else 0. Returns each seat's value, shape (S,), its probability to own
    each centre, (S, C), and that of no owner, (C,).
    """
    year_H = (years_Y @ parameters["year"])[..., None, None, :]
    first_SCH = (features_SCL @ parameters["local"] + parameters["place"] + year_H).clip(0)
    of_seat_SH, of_center_CH = first_SCH.mean(-2) @ parameters["seat"], first_SCH.mean(-3) @ parameters["center"]
    joined_SCH = first_SCH @ parameters["both"] + of_seat_SH[..., :, None, :] + of_center_CH[..., None, :, :]
    second_SCH = (joined_SCH + parameters["bias"]).clip(0)

    owns_SC, is_unowned_C = features_SCL[..., OWNS], features_SCL[..., 0, :, UNOWNED]
    odds_SC = math.e ** (second_SCH @ parameters["owner"] + STAYS * owns_SC)
    unowned_C = math.e ** (second_SCH.mean(-3) @ parameters["unowned"] + parameters["rate"] + STAYS * is_unowned_C)
    total_C = odds_SC.sum(-2) + unowned_C
    owned_SC = odds_SC / total_C[..., None, :]

    size_S, variance_S = owned_SC.sum(-1), (owned_SC * (1 - owned_SC)).sum(-1)
    peaks_S, squares_S = size_S**PEAK, size_S**2
    rival_S = (peaks_S.sum(-1)[..., None] - peaks_S + 1e-3) ** (1 / PEAK)
    lead_S, share_S = size_S - rival_S, squares_S / squares_S.sum(-1)[..., None]
    # All about 1, as what else the last layer adds up.
    sized = (size_S / 5, rival_S / 5, lead_S / 3, lead_S / (variance_S + 0.3) ** 0.5 / 3, variance_S / 3, share_S)
    third_SH = second_SCH.mean(-2) @ parameters["pooled"] + (years_Y @ parameters["late"])[..., None, :]
    third_SH = third_SH + sum(each[..., None] * parameters["sizes"][row] for row, each in enumerate(sized))
    logits_S = third_SH.clip(0) @ parameters["value"] + parameters["level"]
    return 1 / (1 + math.e**-logits_S), owned_SC, unowned_C / total_C


@cache
def _parameters() -> dict[str, Floats]:
    with np.load(WEIGHTS_FILE) as stored:
        parameters = {name: stored[name].astype(float) for name in stored.files}
    parameters["local"] *= SCALE_L[:, None]
    return parameters


@cache
def _near_by_unit() -> tuple[NDArray[np.int64], dict[str, int]]:
    """1 at the distance of each unit of the map to each supply centre, shape (U, D, C), and the row of each unit."""
    columns = [board.PROVINCES.index(center) for center in board.CENTERS]
    rows = [("AF".index(unit[0]), board.PROVINCES.index(board.province(unit[2:]))) for unit in board.UNITS]
    moves_UC = np.array([moves_between()[kind, place, columns] for kind, place in rows])
    near_UDC = (moves_UC[:, None] == np.arange(DISTANCES)[:, None]).astype(np.int64)
    return near_UDC, {unit: number for number, unit in enumerate(board.UNITS)}
