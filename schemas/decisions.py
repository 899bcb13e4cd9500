"""Decisions for people to read: what a model was asked, what it said, what was read in it.

Workers write them as Parquet segments (``workers.decisions``); SQL has them as the view ``decisions``.
"""

import hashlib
from collections.abc import Sequence

import msgspec

MAX_LEGAL_MOVES = 60
"""Longest list of legal moves that is kept."""

DECISIONS, CREDIT = "decisions", "credit"
"""Kinds of segments (``DecisionsStored.kind``)."""

WHOLE_TRAJECTORY = -1
"""``call`` of a credit row for all calls of a trajectory."""


class DecisionNote(msgspec.Struct, frozen=True, gc=False):
    """Facts about a decision beside its ``ModelCall``."""

    move: str
    """The action that was played, as text."""
    legal: Sequence[str] | None = None
    """All legal moves; None if the game does not list them, or lists more than ``MAX_LEGAL_MOVES``."""
    second_ids: Sequence[int] = ()
    """Tokens of the reply to a second question."""


class CreditRow(msgspec.Struct, frozen=True, gc=False):
    """The credit that a gradient step gave a decision, or what became of decisions that it did not train on."""

    match_id: str
    seat: int
    call: int
    """Index of the model call in the trajectory; ``WHOLE_TRAJECTORY`` for all without a row of their own."""
    policy: str
    step: int
    outcome: str
    """``trained``; ``masked``, a reply that the learner left out as cut off or too long; ``skipped``, of a step that
    did not change the weights; or a reason of ``DroppedTrajectories``."""
    reward: float | None = None
    """Reward of the call before transforms."""
    advantage: float | None = None


def is_kept(match_id: str, share: float) -> bool:
    """Whether the decisions of a match are kept, by the hash of its id."""
    if share >= 1.0:
        return True
    return int.from_bytes(hashlib.sha256(match_id.encode()).digest()[:8], "big") < share * 2**64
