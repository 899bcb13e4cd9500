"""The model of the other powers' orders: what it learns from a match, and that what it draws can be played."""

from collections.abc import Iterator, Mapping
from random import Random

import numpy as np
import pytest

from arena.games import make_game
from arena.games.base import Action, SupportsOpponentModel
from arena.games.diplomacy import Settings
from arena.games.diplomacy.game import DiplomacyGame
from arena.games.diplomacy.order_features import FEATURES, chosen_province, unit_choices
from arena.games.diplomacy.order_model import NEWTON_STEPS, OpponentMixture, OrderModel
from arena.games.diplomacy.spec import DiplomacySpec


def phases(bot: str, seed: int, settings: Settings | None = None) -> Iterator[tuple[DiplomacyGame, dict[int, Action]]]:
    """Yields a game before each of its phases, and the actions that come next, all by one bot."""
    spec = DiplomacySpec(settings or Settings(max_year=1903))
    game, rng = spec.new(seed), Random(seed)
    while moving := game.to_move():
        actions = {seat: spec.bot(bot).act(game, seat, rng) for seat in moving}
        yield game, actions
        game.apply(actions)


def agreement(model: OrderModel, game: DiplomacyGame, actions: Mapping[int, Action]) -> float:
    """Share of the units whose drawn order is the one given, over 20 draws."""
    hits = total = 0
    for draw in range(20):
        drawn = model.act(game, list(actions), Random(draw))
        hits += sum(len({*drawn[seat]} & {*action}) for seat, action in actions.items())
        total += sum(len(action) for action in actions.values())
    return hits / total


@pytest.mark.parametrize("bot", ["greedy", "dumbbot"])
def test_a_match_teaches_how_its_players_order(bot: str) -> None:
    """From nothing, in a match of two years; what is predicted is the third year, before it is taken in."""
    learner, ignorant = OrderModel(), OrderModel()
    shares = []
    for game, actions in phases(bot, 5):
        if game.position.kind != "M":
            continue
        if game.position.year == 1903:
            shares.append((agreement(learner, game, actions), agreement(ignorant, game, actions)))
        learner.add(actions, game.position)
        learner.fit(NEWTON_STEPS)
    learnt, blind = np.mean(shares, axis=0)
    assert learnt > blind + 0.2, shares


def test_the_prior_knows_the_bots_that_it_was_fitted_to() -> None:
    spec = make_game("diplomacy", {"max_year": 1902})
    assert isinstance(spec, SupportsOpponentModel)
    prior = spec.opponent_model([])
    assert isinstance(prior, OrderModel)
    game, actions = next(phases("greedy", 77))
    assert agreement(prior, game, actions) > agreement(OrderModel(), game, actions) + 0.1


@pytest.mark.parametrize("settings", [Settings(max_year=1904), Settings(max_year=1903, powers=("AUSTRIA", "FRANCE"))])
@pytest.mark.parametrize("bot", ["random_bot", "tactician"])
def test_drawn_actions_are_legal_in_every_phase(bot: str, settings: Settings) -> None:
    """Random games have convoys, dislodged units and powers without any."""
    model, kinds = OrderModel(np.random.default_rng(3).normal(size=FEATURES)), set()
    for game, actions in phases(bot, 11, settings):
        kinds.add(game.position.kind)
        for seed in range(5):
            for seat, action in model.act(game, list(actions), Random(seed)).items():
                assert game.is_legal(seat, action), (game.position.phase, action)
    assert kinds >= {"M", "A"}


def test_its_own_seat_teaches_nothing_and_each_phase_is_taken_in_once() -> None:
    games = []
    for own in ("greedy", "random_bot"):
        spec = DiplomacySpec(Settings(max_year=1901))
        game, model, rng = spec.new(0), OrderModel(), Random(1)
        others = {seat: spec.bot("greedy").act(game, seat, Random(seat)) for seat in range(1, 7)}
        game.apply({0: spec.bot(own).act(game, 0, rng), **others})
        model.observe(game, 0)
        once = model.weights_F.copy()
        model.observe(game, 0)
        np.testing.assert_array_equal(model.weights_F, once)
        games.append(once)
    np.testing.assert_array_equal(*games)
    assert np.abs(games[0]).max() > 0.1


def test_a_restored_position_has_no_history() -> None:
    spec = DiplomacySpec(Settings())
    game = next(phases("greedy", 1))[0]
    model = OrderModel()
    model.observe(spec.load(game.save()), 0)
    assert not model.weights_F.any()


def test_a_mixture_finds_out_which_bot_each_seat_is() -> None:
    """Seats 1 to 3 are Greedy; 4 to 6 hold, as none of the known bots does."""
    spec = DiplomacySpec(Settings(max_year=1903))
    names = ["mover", "greedy", "tactician"]
    game, model, rng = spec.new(3), OpponentMixture(OrderModel(), [spec.bot(name) for name in names]), Random(3)
    assert model.act(game, [1, 4], Random(1)).keys() == {1, 4}
    while moving := game.to_move():
        actions = {seat: spec.bot("greedy").act(game, seat, rng) for seat in moving}
        if game.position.kind == "M":
            actions |= {seat: tuple(f"{unit} H" for unit in sorted(game.position.units[seat])) for seat in (4, 5, 6)}
        game.apply(actions)
        model.observe(game, 0)
    for seat in range(1, 7):
        probabilities = model.probabilities(seat)
        assert sum(probabilities) == pytest.approx(1)
        # Tactician orders much as Greedy does; the last one is the fitted model.
        assert (sum(probabilities[1:3]) if seat < 4 else probabilities[3]) > 0.9, (seat, probabilities)


def test_a_mixture_judges_each_phase_once_and_draws_legal_actions() -> None:
    spec = DiplomacySpec(Settings(max_year=1903))
    model = OpponentMixture(OrderModel(), [spec.bot("dumbbot"), spec.bot("mover")])
    for game, actions in phases("dumbbot", 4, Settings(max_year=1903)):
        model.observe(game, 0)
        before = [model.probabilities(seat) for seat in range(7)]
        model.observe(game, 0)
        assert [model.probabilities(seat) for seat in range(7)] == before
        for seed in range(3):
            for seat, action in model.act(game, [*actions], Random(seed)).items():
                assert game.is_legal(seat, action), (game.position.phase, action)
    assert min(of[0] for of in before[1:]) > 0.9, before


def test_orders_follow_the_choices_of_friendly_units() -> None:
    """Two units that learnt to go together draw a supported attack more often than ones that learnt to go apart."""
    game = DiplomacySpec(Settings()).new(0)
    units = {choice.unit: choice for choice in unit_choices(game.position, [0])[0]}
    occupants = {unit[2:5]: unit for unit in units}
    alone, joined = ({"A VIE": "TYR"}, {"A VIE": "TYR", "A BUD": "TYR", "F TRI": "VEN"})
    vienna = units["A VIE"]
    assert not any(any(row) for row in vienna.conditions(alone, occupants))
    place = vienna.provinces.index("TYR")
    assert [row[0] for row in units["F TRI"].conditions({"A VIE": "ALB"}, occupants)].count(True) == 1
    changed = np.abs(vienna.with_friends(joined, occupants) - vienna.features_OF).sum(axis=1)
    assert changed[place] > 0
    bud, tri = vienna.provinces.index("BUD"), vienna.provinces.index("TRI")
    assert changed[bud] > 0
    assert changed[tri] > 0
    assert changed.astype(bool).sum() == 3


@pytest.mark.parametrize(
    ("order", "province"),
    [
        ("A PAR H", "PAR"),
        ("F STP/SC - BOT", "BOT"),
        ("F MAO - SPA/SC", "SPA"),
        ("A PAR S A MAR - BUR", "BUR"),
        ("A PAR S F SPA/NC", "SPA"),
        ("A LON - BEL VIA", "BEL"),
        ("F NTH C A LON - BEL", "NTH"),
    ],
)
def test_an_order_is_about_one_province(order: str, province: str) -> None:
    assert chosen_province(order) == province


def test_a_unit_chooses_among_its_own_place_and_those_in_reach() -> None:
    game = DiplomacySpec(Settings()).new(0)
    choices = {choice.unit: choice for choice in unit_choices(game.position, [0])[0]}
    assert choices["F TRI"].provinces == ("TRI", "ADR", "ALB", "VEN")
    assert choices["F TRI"].features_OF.shape == (4, FEATURES)
    assert np.isfinite(choices["A VIE"].features_OF).all()
