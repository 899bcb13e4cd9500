"""Stop conditions of training: limits and criteria."""

from league.evaluation.plan import met_stop_criterion
from league.state import LeagueState
from schemas.config import StopConfig


def _limit_shares(state: LeagueState, policy: str, stop: StopConfig, newest_step: int) -> dict[str, float]:
    """Used share of each limit that is set, by name."""
    step = state.last_step(policy)
    used = {
        "steps": (max(step.step if step else 0, newest_step), stop.steps),
        "games": (state.finished_matches("training"), stop.games),
        "minutes": (state.training_seconds(policy) / 60, stop.minutes),
    }
    return {name: amount / limit for name, (amount, limit) in used.items() if limit}


def budget_share_used(state: LeagueState, policy: str, stop: StopConfig, newest_step: int = 0) -> float:
    """Used share of the training budget, 0 to 1, by the nearest limit; 0 without limits.

    ``newest_step`` is the newest step where that is not in ``state`` yet.
    """
    return min(max(_limit_shares(state, policy, stop, newest_step).values(), default=0.0), 1.0)


def stop_reason(state: LeagueState, policy: str, stop: StopConfig, newest_step: int = 0) -> str | None:
    """Reason for which training must end now, after the step ``newest_step``; None if it must not."""
    for name, share in _limit_shares(state, policy, stop, newest_step).items():
        if share >= 1.0:
            return f"{getattr(stop, name):g} {name}"
    return met_stop_criterion(state)
