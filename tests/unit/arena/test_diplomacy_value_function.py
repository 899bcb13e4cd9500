"""The value function of Diplomacy: its stored weights tell who will lead, better than centres do."""

from random import Random

import numpy as np
import pytest

from arena.games.diplomacy import POWERS, Settings
from arena.games.diplomacy.board import CENTERS
from arena.games.diplomacy.game import DiplomacyGame
from arena.games.diplomacy.position import Position
from arena.games.diplomacy.spec import DiplomacySpec
from arena.games.diplomacy.value_function import center_features, expected_value, final_values


@pytest.fixture(scope="module")
def games() -> list[tuple[list[Position], np.ndarray]]:
    """Springs from 1902 on of games of Greedy bots against tacticians, none of which was fitted to, with their ends."""
    spec = DiplomacySpec(Settings(max_year=1905))
    players, played = [spec.bot("greedy"), spec.bot("tactician")], []
    for number in range(30):
        rng, game, springs = Random(10**6 + number), spec.new(number), []
        while moving := game.to_move():
            if game.position.phase[0] == "S" and game.position.kind == "M" and game.position.year > 1901:
                springs.append(game.position)
            game.apply({seat: players[seat % 2].act(game, seat, rng) for seat in moving})
        played.append((springs, final_values(np.array([len(owned) for owned in game.position.centers], float))))
    return played


def test_stored_weights_predict_the_end_better_than_present_centres(
    games: list[tuple[list[Position], np.ndarray]],
) -> None:
    rows = [
        (position.year, values[seat], expected_value(position, seat, 1905), len(position.centers[seat]) ** 2)
        for springs, values in games
        for position in springs
        for seat in range(7)
    ]
    for year in range(1902, 1906):
        values, expected, squares = np.array([row[1:] for row in rows if row[0] == year]).T
        assert np.corrcoef(values, expected)[0, 1] > np.corrcoef(values, squares)[0, 1]
        assert abs(values.mean() - expected.mean()) < 0.02


def test_features_count_units_by_distance_and_owners() -> None:
    features = center_features(DiplomacyGame(Settings(), 0).position)
    austria, germany, warsaw = POWERS.index("AUSTRIA"), POWERS.index("GERMANY"), CENTERS.index("WAR")
    # Vienna and Budapest are two moves away (by Galicia), Berlin and Munich two (by Silesia).
    assert features[austria, warsaw, :4].tolist() == [0, 0, 2, 0]
    assert features[germany, warsaw, :4].tolist() == [0, 0, 2, 0]
    # Of Russia's, that in Warsaw, and that in Moscow beside it; Russia owns it and has four centres.
    assert features[austria, warsaw, 4:6].tolist() == [1, 1]
    assert features[austria, warsaw, 10:].tolist() == [1, 1, 0, 0, 3, 4, 4]
    assert features[POWERS.index("RUSSIA"), warsaw, 10:].tolist() == [0, 0, 1, 0, 4, 0, 3]


def test_a_sole_leader_has_half_of_the_value_of_a_finished_game() -> None:
    assert final_values(np.array([3.0, 1.0, 0.0])).tolist() == pytest.approx([0.95, 0.05, 0])
    assert final_values(np.array([2.0, 2.0, 0.0])).tolist() == pytest.approx([0.25, 0.25, 0])


def test_more_than_four_years_before_the_end_squares_of_centres_count() -> None:
    austria_turkey = DiplomacyGame(Settings(max_year=1935, powers=("AUSTRIA", "TURKEY")), 0)
    assert expected_value(austria_turkey.position, 0, 1935) == 0.5
    assert expected_value(austria_turkey.position, 0, 1904) != 0.5
