"""Games that are many: each listed one has a golden playthrough; bots and the small model play it to its end."""

import asyncio
import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from arena.games import game_names, make_game
from arena.games.base import GameSpec, Outcome
from arena.games.texts import words_of
from arena.match import BotPlayer, play
from inference import SamplingParameters, make_backend
from models import Tokenizer, make_base
from models.make import BaseShape
from players.policy import PolicyPlayer
from players.prompt_builder import make_prompter
from schemas.config import PromptsConfig
from schemas.errors import ConfigError

GOLDEN = Path(__file__).parents[1] / "golden" / "games"
INSTANCES: dict[str, tuple[str, dict[str, Any]]] = json.loads((GOLDEN / "instances.json").read_text())
SMALL = BaseShape(hidden=16, layers=1, heads=1, kv_heads=1, head_dim=16, mlp=32)


@pytest.fixture(params=INSTANCES)
def instance(request: pytest.FixtureRequest) -> tuple[str, GameSpec]:
    try:
        return request.param, make_game(*INSTANCES[request.param])
    except ConfigError as error:
        if "pip install" in str(error):
            pytest.skip(str(error))
        raise


def test_golden_playthrough(instance: tuple[str, GameSpec]) -> None:
    """A game recorded once and for all still replays, position by position.

    After a deliberate change, or with another version of the package: ``python tests/golden/games/write.py NAME``.
    """
    name, spec = instance
    path = GOLDEN / f"{name}.json"
    assert path.is_file(), f"{path.name} is missing: write it with tests/golden/games/write.py, then read it"
    golden = json.loads(path.read_text())
    recording = spec.open_record(golden["record"].encode())
    game = spec.replay(golden["record"].encode())
    assert game.record().decode() == golden["record"], "every position is as it was, by its check"
    assert len(recording.checks) == len(recording.turns)
    assert game.save().decode() == golden["final"]
    assert game.outcome() == msgspec.convert(golden["outcome"], Outcome)
    opening = spec.new(golden["seed"])
    assert list(spec.text().prompt(opening, opening.to_move()[0])) == golden["first_prompt"]


def test_every_golden_playthrough_belongs_to_a_game() -> None:
    written = {path.stem for path in GOLDEN.glob("*.json")} - {"instances"}
    assert written == {*INSTANCES, *game_names()}
    assert not set(INSTANCES) & set(game_names())


def test_bots_and_the_small_model_play_to_the_end(instance: tuple[str, GameSpec], tmp_path: Path) -> None:
    _, spec = instance
    folder = make_base(tmp_path / "base", spec.text().vocabulary(), SMALL)

    async def one() -> tuple[Outcome, PolicyPlayer]:
        backend = make_backend("local", folder)
        prompting = make_prompter(Tokenizer(folder), spec, PromptsConfig())
        model, bot = (
            PolicyPlayer(backend, prompting, lambda: (0, None), SamplingParameters()),
            BotPlayer(spec.bot("random_bot")),
        )
        try:
            return await play(spec.new(5), [model, *[bot] * (len(spec.seats) - 1)], 5), model
        finally:
            await backend.close()

    outcome, model = asyncio.run(one())
    assert len(outcome.scores) == len(spec.seats)
    assert outcome.length >= len(model.model_calls) > 0


def test_a_seat_is_asked_in_words_and_understood(instance: tuple[str, GameSpec]) -> None:
    _, spec = instance
    game, words, rng = spec.new(6), words_of(spec), Random(6)
    for _ in range(4):
        moving = game.to_move()
        for seat in moving:
            assert game.seats[seat] in words.question(game, seat)
            action = game.random_action(seat, rng)
            # Where all is heard, there is nothing beside the move.
            said = "\n".join(action)
            reply = said if getattr(game, "talk", False) else f"I think.\n{said}"
            assert words.understand(game, seat, reply, rng)[:3] == (action, len(action), 0)
            assert game.is_legal(seat, words.understand(game, seat, "", rng).action)
        game.apply({seat: game.random_action(seat, rng) for seat in moving})
        if not game.to_move():
            break
