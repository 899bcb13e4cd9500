"""Makes a small base model for a league's game: a fresh model that first learns to write what a bot plays."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

from arena.constraints import Constraint, TokenWalks
from arena.games import make_game
from arena.games.base import Action, Game, GameSpec
from schemas.config import LeagueConfig, convert
from schemas.ids import derive_seed
from trainer.model import BaseShape, Tokenizer, make_base
from trainer.model.cloning import CloningConfig, Example, Progress, clone_behaviour
from workers.players import token_walks
from workers.progress import Report


def make_model(folder: Path, config: LeagueConfig, report: Report) -> Path:
    """Make the base model that a configuration describes; ``folder`` appears whole or not at all.

    Raises:
        ConfigError: the settings are not those of a model.
    """
    wanted = config.model
    game = make_game(config.game.name, config.game.settings)
    seed = derive_seed(config.seed, "model")
    shape = convert(wanted.shape, BaseShape, "model.shape")
    cloning = convert(wanted.cloning, CloningConfig, "model.cloning")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as workshop:
        draft = make_base(Path(workshop) / "model", game.text().vocabulary(), shape, seed)
        examples = decisions(game, Tokenizer(draft), wanted.clone_bot, seed)
        clone_behaviour(draft, examples, cloning, lambda progress: report(_said(progress), _share(progress)))
        draft.rename(folder)
    return folder


def _share(progress: Progress) -> float:
    return progress.sequences / max(progress.total, 1)


def _said(progress: Progress) -> str:
    return (
        f"teaching the base model {progress.sequences:,} of {progress.total:,} bot decisions "
        f"({progress.rate:,.0f}/s, {progress.seconds_left:.0f} s left)"
    )


def decisions(game: GameSpec, tokenizer: Tokenizer, bot: str, seed: int) -> Iterator[Example]:
    """Decisions of a bot that plays all seats, game after game, for ever."""
    walks, text, player = token_walks(tokenizer), game.text(), game.bot(bot)
    number = 0
    while True:
        play = game.new(derive_seed(seed, "cloning", number))
        rng = Random(derive_seed(seed, "cloning moves", number))
        while moving := play.to_move():
            actions: dict[int, Action] = {seat: player.act(play, seat, rng) for seat in moving}
            for seat, action in actions.items():
                prompt_ids = tokenizer.encode(text.prompt(play, seat))
                yield _example(prompt_ids, walks, play, game, seat, action)
            play.apply(actions)
        number += 1


def _example(
    prompt_ids: list[int], walks: TokenWalks, play: Game, game: GameSpec, seat: int, action: Action
) -> Example:
    text = game.text()
    place: Constraint = walks(text.completions(play, seat))
    completion_ids: list[int] = []
    branches: list[int] = []
    allowed: list[list[int]] = []
    for piece in text.write(play, seat, action):
        for token in walks.tokens(piece):
            options = list(place.allowed())
            if len(options) > 1:
                branches.append(len(completion_ids))
                allowed.append(options)
            completion_ids.append(token)
            place = place.advance(token)
    return Example(prompt_ids, completion_ids, branches, allowed)
