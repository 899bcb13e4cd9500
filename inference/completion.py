"""A completion in progress, and the checks of a request that come before it, common to all backends."""

import math
from collections.abc import Collection, Sequence

from arena.constraints.token_walk import Constraint
from inference.base import Generation, Request, Timing
from schemas.errors import ModelError


class CompletionBuilder:
    """A completion in progress: the fields of ``Generation`` of the same names."""

    __slots__ = ("allowed", "branches", "completion_ids", "logprobs")

    def __init__(self) -> None:
        self.completion_ids: list[int] = []
        self.branches: list[int] = []
        self.logprobs: list[float] = []
        self.allowed: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.completion_ids)

    def append(self, token: int, logprob: float, allowed: list[int]) -> None:
        """Append a sampled token; where only one was allowed it is no choice."""
        if len(allowed) != 1:
            self.branches.append(len(self.completion_ids))
            self.logprobs.append(logprob)
            self.allowed.append(allowed)
        self.completion_ids.append(token)

    def extend(self, part: Generation) -> None:
        """Append a completion that goes on with this one; its positions count from its own beginning."""
        first = len(self.completion_ids)
        self.completion_ids += part.completion_ids
        self.branches += [first + branch for branch in part.branches]
        self.logprobs += part.logprobs
        self.allowed += part.allowed

    def follow_forced(
        self, constraint: Constraint, limit: int, vocabulary: int
    ) -> tuple[Constraint, Sequence[int], str | None]:
        """Append forced tokens up to the next choice, the end or the limit: the hottest loop of an engine.

        Returns the state behind them, the tokens that it allows, and the finish reason where the completion has ended.

        Raises:
            ModelError: the constraint names a token that the model does not have, or raises.
        """
        allowed, ids = constraint.allowed(), self.completion_ids
        while len(allowed) == 1 and len(ids) < limit:
            token = allowed[0]
            check_token_ids(token, token, vocabulary)
            ids.append(token)
            constraint = constraint.advance(token)
            allowed = constraint.allowed()
        reason = "stop" if not allowed else "length" if len(ids) >= limit else None
        return constraint, allowed, reason

    def finish(self, reason: str, timing: Timing) -> Generation:
        """The finished completion."""
        return Generation(self.completion_ids, self.branches, self.logprobs, self.allowed, reason, timing)


def check_request(request: Request, max_positions: int) -> None:
    """Raise ``ModelError`` for an unusable request; ``max_positions`` bounds prompt and completion together."""
    prompt, sampling = len(request.prompt_ids), request.sampling
    if not 0 < prompt < max_positions:
        raise ModelError(f"inference: the prompt has {prompt} tokens; the model takes 1 to {max_positions - 1}")
    if not (sampling.temperature > 0 and math.isfinite(sampling.temperature)) or sampling.max_tokens < 1:
        raise ModelError(f"inference: {sampling}; expected a positive temperature and at least one token")
    if not 0 < sampling.top_p <= 1:
        raise ModelError(f"inference: top_p {sampling.top_p}; expected more than 0 and at most 1")
    if request.constraint is not None and not request.constraint.allowed():
        raise ModelError("inference: the request's constraint allows no token at all")


def check_loaded(adapter: str | None, loaded: Collection[str | None]) -> None:
    """Raise ``ModelError`` unless an adapter is loaded; None is the base model."""
    if adapter not in loaded:
        adapters = [other for other in loaded if other is not None]
        raise ModelError(f"inference: adapter {adapter!r} is not loaded; loaded are {adapters}")


def check_token_ids(lowest: int, highest: int, vocabulary: int) -> None:
    """Raise ``ModelError`` for a range of token ids of which the model does not have all."""
    if lowest < 0 or highest >= vocabulary:
        odd = lowest if lowest < 0 else highest
        raise ModelError(f"inference: token {odd} is outside the vocabulary of {vocabulary}")
