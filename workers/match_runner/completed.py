"""A match that has ended with a result, whatever was played."""

from collections.abc import Sequence

import msgspec

from arena.games.base import Outcome
from models.tokenizer import Tokenizer
from schemas.decisions import DecisionNote
from schemas.events import ArtifactStored
from schemas.jobs import PlayMatch
from schemas.trajectories import ModelCall, Trajectory


class CompletedMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A match that ended with a result."""

    job: PlayMatch
    outcome: Outcome
    record: bytes
    """The game record, compressed."""
    seconds: float
    tokens: int
    """Number of tokens that models wrote, forced ones included."""
    additions: Sequence[ArtifactStored] = ()
    """Additions to the arena's stores, in order: to be appended before the result."""
    tokenizer: Tokenizer | None = None
    """The league's tokenizer; None if no model has been loaded."""

    def make_trajectory(self, seat: int, policy: str) -> Trajectory | None:
        """The seat's trajectory; None if there is nothing to train on."""
        raise NotImplementedError

    def seat_metrics(self, seat: int) -> dict[str, float]:
        """Metrics of the seat's replies and of model calls left out of training, for ``SeatResult.metrics``."""
        raise NotImplementedError

    def decisions(self, seat: int) -> Sequence[tuple[ModelCall, DecisionNote | None]]:
        """The model calls of the league's models in a seat, with what is known about each."""
        raise NotImplementedError

    def actions(self) -> list[list[str]]:
        """Parts of the actions of every seat, in order; empty where they cannot be compared, as free text."""
        return []
