"""Playing recorded matches again: what was altered is found, and where."""

import asyncio
import json
from random import Random
from typing import Any

import msgspec
import pytest

from arena.games import game_names, make_game
from arena.games.base import Action, Bot, Game, GameSpec, Outcome
from arena.match import BotPlayer, Resimulation, play, resimulate
from schemas.errors import ConfigError

SEED = 5


@pytest.fixture(params=game_names())
def spec(request: pytest.FixtureRequest) -> GameSpec:
    try:
        return make_game(request.param, {})
    except ConfigError as error:
        if "pip install" in str(error):
            pytest.skip(str(error))
        raise


def played(spec: GameSpec) -> tuple[bytes, Outcome, dict[int, Bot]]:
    bots = {seat: spec.bot(spec.bots[seat % len(spec.bots)]) for seat in range(len(spec.seats))}
    game = spec.new(SEED)
    outcome = asyncio.run(play(game, [BotPlayer(bots[seat]) for seat in bots], SEED))
    return game.record(), outcome, bots


def again(spec: GameSpec, record: bytes, outcome: Outcome, bots: dict[int, Bot], seed: int = SEED) -> Resimulation:
    return resimulate(spec.open_record(record), seed, bots, outcome)


def altered(record: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(record), **fields}).encode()


def test_an_honest_record_is_identical_and_everything_in_it_was_compared(spec: GameSpec) -> None:
    record, outcome, bots = played(spec)
    result = again(spec, record, outcome, bots)
    assert result.identical
    assert result.turns == result.positions == outcome.length
    assert result.decisions == sum(len(turn) for turn in spec.open_record(record).turns)


def test_seats_of_models_are_checked_for_legality_only(spec: GameSpec) -> None:
    record, outcome, bots = played(spec)
    del bots[0]
    result = again(spec, record, outcome, bots)
    assert result.identical
    assert result.decisions < sum(len(turn) for turn in spec.open_record(record).turns)


def test_a_record_from_before_there_were_checks_can_be_played_again(spec: GameSpec) -> None:
    record, outcome, bots = played(spec)
    result = again(spec, altered(record, checks=[]), outcome, bots)
    assert (result.identical, result.positions) == (True, 0)


def test_an_altered_check_is_found_at_its_turn(spec: GameSpec) -> None:
    record, outcome, bots = played(spec)
    checks = json.loads(record)["checks"]
    at = min(2, len(checks) - 1)
    checks[at] = "00000000"
    divergence = again(spec, altered(record, checks=checks), outcome, bots).divergence
    assert divergence is not None
    assert (divergence.turn, divergence.what, divergence.recorded) == (at + 1, "position", "00000000")
    assert divergence.replayed == json.loads(record)["checks"][at]


def test_an_altered_seed_is_found_before_anything_is_played(spec: GameSpec) -> None:
    record, outcome, bots = played(spec)
    result = again(spec, record, outcome, bots, seed=SEED + 1)
    assert result.divergence is not None
    assert (result.divergence.what, result.turns) == ("seed", 0)


def test_a_record_that_ends_early_is_found(spec: GameSpec) -> None:
    record, outcome, bots = played(spec)
    turns = json.loads(record)["turns"][:-1]
    divergence = again(spec, altered(record, turns=turns), outcome, bots).divergence
    assert divergence is not None
    assert divergence.what == "turns"


def test_an_illegal_action_is_found_with_turn_and_seat(spec: GameSpec) -> None:
    record, outcome, bots = played(spec)
    turns = json.loads(record)["turns"]
    if isinstance(turns[0], dict):
        turns[0][min(turns[0])] = ["nonsense"]
    else:
        turns[0] = ["nonsense"]
    divergence = again(spec, altered(record, turns=turns), outcome, bots).divergence
    assert divergence is not None
    assert (divergence.turn, divergence.what) == (1, "legality")
    assert divergence.seat is not None
    assert divergence.recorded == "nonsense"


@pytest.mark.parametrize(
    ("field", "value"),
    [("scores", None), ("ranks", None), ("metrics", None), ("winner", 99), ("reason", "magic"), ("length", 1)],
)
def test_every_altered_part_of_the_result_is_found(spec: GameSpec, field: str, value: Any) -> None:
    record, outcome, bots = played(spec)
    old = getattr(outcome, field)
    seat = None if value is not None else 1
    if field == "metrics":
        value = (old[0], {**old[1], "taken": 77.0}, *old[2:])
    elif seat is not None:
        value = (old[0], old[1] + 1, *old[2:])
    wrong = msgspec.structs.replace(outcome, **{field: value})
    divergence = again(spec, record, wrong, bots).divergence
    assert divergence is not None
    assert (divergence.turn, divergence.seat, divergence.what) == (None, seat, field)


class Changed:
    """A bot that decides as the one of its name did, but for one decision, counted from 1."""

    def __init__(self, bot: Bot, which: int) -> None:
        self._bot = bot
        self._which = which
        self.decisions = 0

    def act(self, game: Game, seat: int, rng: Random) -> Action:
        self.decisions += 1
        honest = self._bot.act(game, seat, rng)
        if self.decisions < self._which:
            return honest
        return next(other for _ in range(100) if (other := game.random_action(seat, Random(rng.random()))) != honest)


def test_a_bot_that_decides_otherwise_now_is_found_at_its_first_other_decision(spec: GameSpec) -> None:
    record, outcome, bots = played(spec)
    recording = spec.open_record(record)
    # The third one, or the last where there are fewer.
    turns = [turn for turn, actions in enumerate(recording.turns, 1) if 1 in actions][:3]
    result = again(spec, record, outcome, {**bots, 1: Changed(bots[1], which=len(turns))})
    assert result.divergence is not None
    assert (result.divergence.turn, result.divergence.seat, result.divergence.what) == (turns[-1], 1, "decision")
    assert result.turns == turns[-1] - 1


def test_a_changed_move_of_a_model_is_found_by_the_position_it_led_to() -> None:
    spec = make_game("nim", {})
    record, outcome, _ = played(spec)
    turns = json.loads(record)["turns"]
    ((seat, recorded),) = turns[0].items()
    first = next(move for move in spec.new(SEED).moves(int(seat)) if [move] != recorded)  # type: ignore[attr-defined]
    divergence = again(spec, altered(record, turns=[{seat: [first]}, *turns[1:]]), outcome, {}).divergence
    assert divergence is not None
    assert (divergence.turn, divergence.what) == (1, "position")
