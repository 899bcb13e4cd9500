"""Trajectories: what one seat observed, sampled and earned in one match. The trainer learns from them.

Token ids are stored as they were sampled; text is never tokenised again on the training path. A *choice* (field
``branches``) is a position of the completion at which more than one token was allowed. Only choices were sampled, so
only choices have a log-probability and enter the loss; all other completion tokens were forced by the constraint.
"""

from typing import Any

import msgspec


class ModelCall(msgspec.Struct, frozen=True, gc=False):
    """One model call by one seat. B is the number of choices of the completion.

    Untracked by the garbage collector: there are many, and they are part of no reference cycle.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    branches: list[int]
    """B strictly increasing positions of the choices in ``completion_ids``."""
    logprobs: list[float]
    """B log-probabilities (nats) of the sampled tokens under the distribution they were drawn from."""
    allowed: list[list[int]]
    """B sorted lists of the allowed token ids; each contains the sampled one, or is empty for the whole vocabulary
    (free text)."""
    version: int
    """Policy version that sampled the call."""
    clock: int
    """The game's coarse time when the step was taken (Diplomacy: the year); credit is discounted along it."""
    progress: float
    """The game's progress measure for this seat just before the step (Diplomacy: supply centres)."""
    temperature: float = 1.0
    formatted: bool = True
    """Whether the reply had the requested format; always true for a constrained one."""
    invalid: bool = False
    """Whether the reply held no legal action, so that a substitute was played."""
    fault: str = ""
    """Why a free reply holds no legal action (``schemas.metrics.REPLY_FAULTS``); empty if it holds one. In an
    environment, which alone knows what an answer is, whether it is ``truncated`` or ``empty``."""
    truncated: bool = False
    """Whether the reply was cut off at the limit of its tokens."""
    credits: list[float] = []
    """Credit of the part of the action that each of the B choices belongs to, in units of progress; empty where the
    game does not credit parts."""
    info: dict[str, Any] = {}
    """User data of the call, from its ``episodes.Step.info``: for rewards and estimators of plugins."""


class RoleSegment(msgspec.Struct, frozen=True):
    """The part of a trajectory that one role played in one episode of a tree of episodes."""

    id: str
    """Id of the episode: the match's id, then its number under its parents (``m.0.3``)."""
    episode_type: str
    role: str
    parent: str
    """Id of the parent episode; empty for the root."""
    group: str
    """Group in which its reward is compared (``episodes.Rollout.comparison_group``)."""
    reward: float
    """Reward of the role from the rubric."""
    steps: list[int]
    """Indices of its model calls in ``Trajectory.steps``, ascending. No step belongs to two roles."""


class Trajectory(msgspec.Struct, frozen=True):
    """Everything one trainable seat did in one finished match."""

    match_id: str
    game: str
    """Game, or the environment in a game with several; rewards and batch shares are kept per game."""
    policy: str
    """Name of the policy, without a version: ``main``."""
    seat: int
    role: str
    """Role that the match drew for the seat (Secret Mafia: ``Doctor``), else the seat's name (Diplomacy: the power).
    Credit is compared within a role."""
    group: str
    """Equal for trajectories that group-relative advantages compare: of one start, seat and line-up with
    ``rollout.group_size``, else of one role and line-up. A policy's newest version counts as the policy."""
    steps: list[ModelCall]
    final_clock: int
    final_progress: float
    """Progress measure of the seat when the match ended."""
    score: float
    """Final score of the seat, win bonus included."""
    rank: int
    """1 for the best seat; tied seats share the better rank."""
    scores: list[float] = []
    """Final score of every seat, this one included; empty in older trajectories."""
    teams: list[str] = []
    """Team of every seat; empty for a game without teams."""

    @property
    def version(self) -> int:
        """Oldest policy version that sampled any step."""
        return min(step.version for step in self.steps)

    members: list[RoleSegment] = []
    """Steps and reward of each role, where the match was an episode; credit is assigned member by member. Empty for
    a game, where one seat made all calls."""
    group_size: int = 0
    """Matches of the group; 0 and 1 for no group to wait for. A trajectory without steps in a group is a tombstone: its
    match failed, and the others need not wait for it."""
    counted: bool = False
    """Whether an earlier batch trained on a part of it, so that running means already hold its rewards."""
