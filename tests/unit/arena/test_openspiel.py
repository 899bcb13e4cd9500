"""OpenSpiel's games here: played to the end, chance by the seed; and a bot judged exactly."""

from itertools import chain
from random import Random
from typing import Any

import msgspec
import pytest

from arena.bots import BET_PROBABILITIES
from arena.games import make_game
from arena.games.base import Game, GameSpec
from arena.games.texts import to_letters, words_of
from schemas.errors import ConfigError, DecodeError, GameError

pyspiel = pytest.importorskip("pyspiel")

TURNS = ["kuhn_poker", "leduc_poker", "liars_dice", "tic_tac_toe", "kuhn_poker(players=3)", "hearts"]
FIXED_NAMES = ["battleship", "mnk", "phantom_ttt", "tic_tac_toe"]
AT_ONCE = ["matrix_rps", "goofspiel(num_cards=4,imp_info=True)", "oshi_zumo(coins=4)"]


def of(game: str, **settings: Any) -> GameSpec:
    return make_game("openspiel", {"game": game, **settings})


def random_game(spec: GameSpec, seed: int) -> Game:
    game, rng = spec.new(seed), Random(seed)
    while moving := game.to_move():
        game.apply({seat: game.random_action(seat, rng) for seat in moving})
    return game


@pytest.mark.parametrize("game", TURNS + AT_ONCE)
def test_games_of_both_kinds_are_played_to_the_end_and_replayed(game: str):
    spec = of(game)
    for seed in range(3):
        played = random_game(spec, seed)
        again = spec.replay(played.record())
        assert (again.save(), again.outcome()) == (played.save(), played.outcome())
        assert len(played.outcome().scores) == len(spec.seats)
        assert len(spec.transcript(played.record())) == played.outcome().length


@pytest.mark.parametrize("game", [*FIXED_NAMES, "sheriff"])
def test_moves_have_the_names_of_the_position(game: str):
    spec = of(game)
    played, rng = spec.new(1), Random(1)
    for _ in range(30):
        for seat in (moving := played.to_move()):
            position: Any = played.position  # type: ignore[attr-defined]
            names = [position.action_to_string(seat, number) for number in position.legal_actions(seat)]
            assert list(played.moves(seat)) == names  # type: ignore[attr-defined]
        if moving:
            played.apply({seat: played.random_action(seat, rng) for seat in moving})


@pytest.mark.parametrize("game", AT_ONCE)
def test_simultaneous_moves_are_asked_for_together_and_unseen(game: str):
    spec = of(game)
    position = spec.new(1)
    assert list(position.to_move()) == [0, 1]
    before = [spec.text().prompt(position, seat) for seat in (0, 1)]
    position.random_action(0, Random(1))
    assert [spec.text().prompt(position, seat) for seat in (0, 1)] == before


def test_chance_follows_the_seed_and_nothing_else():
    spec = of("leduc_poker")
    assert spec.new(3).save() == spec.new(3).save()
    hands = {str(msgspec.json.decode(spec.new(seed).save())["history"]) for seed in range(400)}
    assert len(hands) == 30, "six cards, two of them dealt in order"


def test_chance_draws_every_outcome_as_often_as_it_should():
    spec = of("kuhn_poker")
    dealt = [msgspec.json.decode(spec.new(seed).save())["history"][0] for seed in range(3000)]
    assert [dealt.count(card) / 3000 for card in range(3)] == pytest.approx([1 / 3] * 3, abs=0.03)


def test_a_seat_is_not_shown_the_card_of_the_other():
    spec = of("kuhn_poker")
    for own in range(3):
        asked = set()
        for seed in range(60):
            game = spec.new(seed)
            if msgspec.json.decode(game.save())["history"][0] == own:
                asked.add((spec.text().prompt(game, 0), words_of(spec).question(game, 0)))
        assert len(asked) == 1


def test_the_equilibrium_of_kuhn_poker_cannot_be_exploited():
    from open_spiel.python.algorithms.exploitability import nash_conv
    from open_spiel.python.policy import TabularPolicy

    policy = TabularPolicy(pyspiel.load_game("kuhn_poker"))
    said = {(): "", ("check",): "p", ("bet",): "b", ("check", "bet"): "pb"}
    for moves, shares in BET_PROBABILITIES.items():
        for card, share in zip("012", shares, strict=True):
            policy.policy_for_key(card + said[moves])[:] = [1 - share, share]
    found = nash_conv(policy.game, policy, return_only_nash_conv=False)
    assert found.nash_conv == pytest.approx(0, abs=1e-12)
    assert found.player_improvements == pytest.approx([0, 0], abs=1e-12)
    policy.policy_for_key("0b")[:] = [0, 1]
    assert nash_conv(policy.game, policy) > 0.02, "calls with the worst card"


@pytest.mark.parametrize(
    ("game", "named"),
    [
        ("ludo", r"no game 'ludo'; expected '2048'"),
        ("kuhn_poker(players=0)", "players"),
        ("mfg_garnet", "MEAN_FIELD moves"),
        ("negotiation", "SAMPLED_STOCHASTIC chance"),
    ],
)
def test_what_cannot_be_played_is_refused_by_name(game: str, named: str, capfd: pytest.CaptureFixture[str]):
    with pytest.raises(ConfigError, match=rf"game\.settings\.game: .*{named}"):
        of(game)


def test_a_game_that_does_not_end_in_its_turns_fails():
    with pytest.raises(GameError, match=r"chess: not over after 6 turns; settings\.max_turns"):
        random_game(of("chess", max_turns=6), 1)


@pytest.mark.parametrize(
    "damaged",
    [
        {"seed": 1, "turns": [{"0": 7}], "history": [0, 1, 7]},
        {"seed": 1, "turns": [{"1": 0}], "history": [0, 1, 0]},
        {"seed": 1, "turns": [{}], "history": []},
        {"seed": 1, "turns": [{"x": 0}], "history": []},
        {"seed": 1, "turns": [], "history": [5]},
    ],
)
def test_positions_that_cannot_be_reached_are_refused(damaged: dict[str, Any]):
    with pytest.raises(DecodeError, match="openspiel"):
        of("kuhn_poker").load(msgspec.json.encode(damaged))


def test_moves_that_differ_in_letter_case_alone_are_told_apart():
    spec = of("chess")
    game = spec.new(0)
    for move in ("b4", "a6", "Bb2", "c5", "Bd4", "a5"):
        game.apply({game.to_move()[0]: (move,)})
    words, (seat,) = words_of(spec), game.to_move()
    for move in ("bxc5", "Bxc5"):
        assert words.understand(game, seat, f"MOVE: {move}", Random(0))[:3] == ((move,), 1, 0)
        assert words.understand(game, seat, f"The bishop or the pawn? **{move}**!", Random(0))[:3] == ((move,), 1, 0)
    assert words.understand(game, seat, "move: QC1", Random(0))[:3] == (("Qc1",), 1, 0)


@pytest.mark.parametrize("game", ["crossword", "nfg_game"])
def test_games_that_list_no_moves_or_need_a_file_are_refused_by_name(game: str):
    with pytest.raises(ConfigError, match=rf"game\.settings\.game: '{game}'"):
        of(game)


def test_moves_that_differ_outside_of_ascii_alone_are_spelled_apart():
    spec = of("solitaire")
    text, vocabulary = spec.text(), set(spec.text().vocabulary())
    ambiguous = 0
    for seed in range(4):
        game, rng = spec.new(seed), Random(seed)
        for _ in range(20):
            (seat,) = game.to_move()
            actions = [(move,) for move in game.moves(seat)]  # type: ignore[attr-defined]
            ambiguous += len({to_letters(move) for (move,) in actions}) < len(actions)
            written = [text.write(game, seat, action) for action in actions]
            assert vocabulary.issuperset(chain.from_iterable(written))
            assert [text.read(game, seat, pieces) for pieces in written] == actions
            game.apply({seat: game.random_action(seat, rng)})
            if not game.to_move():
                break
    assert ambiguous
