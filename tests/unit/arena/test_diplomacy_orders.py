"""Our legal orders and our adjudication against the package itself, which is the oracle."""

import json
import subprocess
import sys
from random import Random

import pytest

pytest.importorskip("diplomacy")

import diplomacy

from arena.games import make_game
from arena.games.diplomacy import board
from arena.games.diplomacy import position as orders
from arena.games.diplomacy.engine import POWERS, SEA_BIT, to_package_notation
from arena.games.diplomacy.game import DiplomacyGame
from arena.games.diplomacy.position import Position, SavedPosition
from schemas.ids import derive_seed

SCRIPT = """
import hashlib, sys
from random import Random
from arena.games import make_game
game = make_game("diplomacy", {"max_year": 1906}).new(3)
rng = Random(5)
while game.to_move():
    game.apply({seat: game.random_action(seat, rng) for seat in game.to_move()})
print(hashlib.sha256(game.record() + game.save()).hexdigest())
"""


def plain_orders(game: diplomacy.Game, power: str) -> dict[str, list[str]]:
    """The package's legal orders per place to order, sorted."""
    possible = game.get_all_possible_orders()
    return {loc: sorted(possible[loc]) for loc in game.get_orderable_locations(power)}


def mixed_action(game: DiplomacyGame, seat: int, rng: Random) -> tuple[str, ...]:
    """Legal, but with more fleets, convoys and attacks than uniform play brings about."""
    action = list(game.random_action(seat, rng))
    if game.position.kind == "A":
        fleets = [line for line in action if not line.startswith("A ")]
        if len(fleets) == len(action) or rng.random() < 0.3:
            return tuple(action)
        return game.random_action(seat, rng)
    for i, unit in enumerate(game.legal_orders(seat)):
        bold = [line for line in unit.orders if " C " in line or "VIA" in line] or [
            line for line in unit.orders if " - " in line
        ]
        if bold and rng.random() < 0.6:
            action[i] = rng.choice(bold)
    return tuple(action)


@pytest.mark.parametrize("seed", range(8))
def test_legal_orders_and_outcomes_equal_the_package(seed: int) -> None:
    game = make_game("diplomacy", {"max_year": 1910}).new(seed)
    assert isinstance(game, DiplomacyGame)
    oracle = diplomacy.Game()
    rng = Random(derive_seed(seed, "oracle"))
    while game.to_move():
        position = game.position
        assert oracle.get_current_phase() == position.phase
        for seat, power in enumerate(POWERS):
            expected = plain_orders(oracle, power)
            assert bool(expected) == (seat in game.to_move())
            if position.kind == "A":
                due = oracle.get_state()["builds"][power]["count"]
                assert position.adjustment_due(seat) == due
                if due > 0:
                    ours = {
                        line
                        for action in orders.legal_build_actions(position.free_build_sites(seat), due)
                        for line in action
                    }
                    every = oracle.get_all_possible_orders()
                    sites = [loc for home in expected for loc in every if loc[:3] == home]
                    assert ours == {line for loc in sites for line in every[loc]}
                continue
            ours_by_place = {unit.unit[2:5]: list(unit.orders) for unit in game.legal_orders(seat)}
            assert ours_by_place == expected
        actions = {seat: mixed_action(game, seat, rng) for seat in game.to_move()}
        for seat, action in actions.items():
            oracle.set_orders(POWERS[seat], list(action))
            if position.kind != "A":
                assert sorted(oracle.get_orders(POWERS[seat])) == sorted(map(to_package_notation, action))
        oracle.process()
        game.apply(actions)
        state = oracle.get_state()
        for seat, power in enumerate(POWERS):
            standing = [unit for unit in state["units"][power] if not unit.startswith("*")]
            assert sorted(standing) == list(game.position.units[seat])
            assert sorted(state["centers"][power]) == list(game.position.centers[seat])
            assert sorted(state["retreats"][power]) == list(game.position.retreats[seat])


def kinds(line: str) -> set[str]:
    word = line.split()
    kind = word[-1] if word[-1] in ("VIA", "B", "D", "WAIVE", "H") else word[2]
    return {kind, "coast"} if line.startswith("F ") and "/" in word[1] else {kind}


def test_compared_games_meet_every_kind_of_order() -> None:
    seen: set[str] = set()
    for seed in range(8):
        game = make_game("diplomacy", {"max_year": 1910}).new(seed)
        assert isinstance(game, DiplomacyGame)
        rng = Random(derive_seed(seed, "oracle"))
        while game.to_move():
            actions = {seat: mixed_action(game, seat, rng) for seat in game.to_move()}
            seen.update(kind for action in actions.values() for line in action for kind in kinds(line))
            game.apply(actions)
    assert seen >= {"VIA", "B", "D", "H", "-", "S", "C", "R", "coast"}


def test_convoy_routes_are_the_same_in_both_directions() -> None:
    every_sea = sum(SEA_BIT.values())
    for start in board.PROVINCES:
        for dest, way in board.convoys_from(start, every_sea).items():
            assert board.convoys_from(dest, every_sea)[start] == way


def test_play_does_not_depend_on_string_hashing() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "77", "4242")
    }
    assert len(digests) == 1


def test_builds_choose_exactly_as_many_orders_as_are_due() -> None:
    actions = orders.legal_build_actions(("MOS", "STP"), 2)
    assert all(len(action) == 2 and list(action) == sorted(action) for action in actions)
    assert ("WAIVE", "WAIVE") in actions
    assert ("A MOS B", "F STP/NC B") in actions
    assert not any(line.count("STP") > 1 for line in map(json.dumps, actions) if "MOS" not in line)


def test_legal_orders_equal_the_package_in_all_positions_of_datc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Diplomacy Adjudicator Test Cases, as the package plays them."""
    from diplomacy.tests.test_datc import TestDATC

    adjudicate, positions = diplomacy.Game.process, 0

    def compare(game: diplomacy.Game) -> object:
        nonlocal positions
        phase, powers = game.get_current_phase(), {name: game.powers[name] for name in POWERS}
        if phase[-1] in "MR":
            position = Position(
                SavedPosition(
                    phase=phase,
                    year=int(phase[1:5]),
                    turns=0,
                    units={name: sorted(power.units) for name, power in powers.items()},
                    retreats={
                        name: {unit: sorted(places) for unit, places in sorted(power.retreats.items())}
                        for name, power in powers.items()
                    },
                    centers={name: sorted(power.centers) for name, power in powers.items()},
                )
            )
            possible = game.get_all_possible_orders()
            positions += 1
            for seat in range(len(POWERS)):
                for unit in position.legal_orders(seat):
                    assert sorted(unit.orders) == sorted(set(possible[unit.unit[2:]])), (phase, unit.unit)
        return adjudicate(game)

    monkeypatch.setattr(diplomacy.Game, "process", compare)
    cases = [name for name in dir(TestDATC) if name.startswith("test_")]
    for name in cases:
        getattr(TestDATC(), name)()
    assert len(cases) > 150
    assert positions > len(cases) / 2
