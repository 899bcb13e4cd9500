"""What an adapter plays at every information state, by the forward pass that the learner trains with."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from arena.constraints.token_walk import read_choices
from arena.enumerable import ListedSpec
from arena.games import make_game
from arena.games.texts import Pieces
from benchmarks.ablation.trees import GameTree
from models import Tokenizer, adapters
from models.adapter_bundle import unpack_folder
from models.adapters import Lora
from models.decoder import Decoder
from players.prompt_builder import make_constrained_prompter
from schemas.config import Plugin
from schemas.trajectories import ModelCall
from trainer.loss_inputs import recompute_logprobs

Probabilities = dict[Pieces, list[float]]


class PolicyTabulator:
    """A game's every question, asked of one base model's adapters.

    Args:
        game: Name and settings.
        tree: All of it.
        model: Folder of the base model.
    """

    def __init__(self, game: Plugin, tree: GameTree, model: Path) -> None:
        self._decoder = Decoder.load(model)
        self._moves = tree.moves
        self._calls: list[ModelCall] = []
        spec: ListedSpec[Any] = make_game(game.name, game.settings)  # type: ignore[assignment]
        prompting = make_constrained_prompter(Tokenizer(model), spec.text())
        for seen, place in tree.places.items():
            seat = next(seat for seat in place.to_move() if tuple(place.sees(seat)) == seen)
            question = prompting.make_prompt(place, seat)
            for move in tree.moves[seen]:
                ids = question.encode_action((move,))
                assert question.constraint is not None
                branches, allowed = read_choices(question.constraint, ids)
                # The learner sorts sequences by length: what a step states comes back beside what is computed, and
                # tells which one it is.
                name = -float(len(self._calls))
                call = ModelCall(question.prompt_ids, ids, branches, [name] * len(branches), allowed, 0, 0, 0.0)
                self._calls.append(call)

    def load_adapter(self, packed: bytes) -> Lora:
        """An adapter as the league keeps it."""
        with tempfile.TemporaryDirectory() as folder:
            unpack_folder(packed, Path(folder) / "adapter")
            return adapters.load(Path(folder) / "adapter", self._decoder.shape)

    def tabulate(self, lora: Lora | None) -> Probabilities:
        """The probability of each legal move at all that can be seen, at temperature 1; None asks the base model."""
        learnt_W, name_W = recompute_logprobs(self._decoder, lora, self._calls)
        logprobs = np.zeros(len(self._calls))
        np.add.at(logprobs, -name_W.astype(np.int64), learnt_W)
        shares = iter(np.exp(logprobs).tolist())
        # Moves of which only one is legal have no branch, and probability 1.
        return {seen: _normalise([next(shares) for _ in moves]) for seen, moves in self._moves.items()}


def _normalise(shares: list[float]) -> list[float]:
    total = sum(shares)
    return [share / total for share in shares]
