"""The schedule of training: admission of a policy's versions to the league, their retirement, and its end.

Admission is geometric, after League Training's checkpointer: every 10th version for the last 100 (the
curriculum), every 100th permanently (the anchors), and every version with a new high score (the elite: ``promotion``).
Pure functions of the state. ``external_version`` admits a version of an external agent, which plays elsewhere and
follows no schedule.
"""

from typing import NamedTuple

from league.state import LeagueState
from league.state.evaluation_table import BENCHMARK
from schemas.config import LeagueConfig, StopConfig
from schemas.errors import UsageError
from schemas.events import AgentRegistered, AgentRetired, CheckpointAdded, ExternalVersionAdded
from schemas.ids import HUMAN, agent_name, policy_of
from schemas.numbers import wilson_interval
from schemas.standings import Agent
from schemas.subjects import check_name

FIRST, LANDMARK, RECENT, ELITE, RESET = "first", "landmark", "recent", "elite", "reset"


def admission_reason(state: LeagueState, policy: str, version: int) -> str | None:
    """Reason for admitting a version on publication: ``first``, ``landmark`` or ``recent``; None if not admitted.

    Version 0, the untrained adapter, never is: it plays like the base model, which is in the league already.
    """
    schedule = state.config_or_default.schedule
    if version < 1 or agent_name(policy, version) in state.agents:
        return None
    if not _checkpoints_of(state, policy):
        return FIRST
    if version % schedule.landmark_every == 0:
        return LANDMARK
    return RECENT if version % schedule.recent_every == 0 else None


def make_checkpoint_added(state: LeagueState, policy: str, version: int, adapter: str, reason: str) -> CheckpointAdded:
    """The event that admits a version for this reason.

    Its parent is the previous checkpoint since the policy's last reset, else the parent of the version that training
    began from: the base model, or an offspring's first parent.
    """
    start = state.training_start(policy, version)
    older = [agent for agent in _checkpoints_of(state, policy) if start <= agent.version < version]
    first = state.published.get(policy, {}).get(start) if start else None
    base = state.config_or_default.base_agent
    origin = first.parent if first is not None and first.parent in state.agents else base
    parent = max(older, key=lambda agent: agent.version).name if older else origin
    return CheckpointAdded(
        agent=agent_name(policy, version), policy=policy, version=version, parent=parent, reason=reason, adapter=adapter
    )


def retirements(state: LeagueState, policy: str) -> list[AgentRetired]:
    """Retirements of recent checkpoints that are ``recent_window`` versions or more behind their policy.

    They include those resting in the active pool, which are then not activated again.
    """
    live, window = state.live_version(policy), state.config_or_default.schedule.recent_window
    return [
        AgentRetired(
            agent=agent.name,
            reason=f"{window} versions behind {agent_name(policy, live.version)}",
            after=state.activity(agent.name).sequence,
        )
        for agent in _checkpoints_of(state, policy)
        if live is not None and (agent.active or state.activity(agent.name).resting) and has_expired(state, agent)
    ]


def has_expired(state: LeagueState, agent: Agent) -> bool:
    """Whether a checkpoint is a recent one that its policy has left ``recent_window`` versions or more behind."""
    live = state.live_version(agent.policy) if agent.reason == RECENT else None
    return live is not None and agent.version <= live.version - state.config_or_default.schedule.recent_window


def _checkpoints_of(state: LeagueState, policy: str) -> list[Agent]:
    return [agent for agent in state.agents.values() if agent.kind == "checkpoint" and agent.policy == policy]


EVALUATION_ONLY = "met in evaluation only"


def initial_agent_events(config: LeagueConfig) -> list[AgentRegistered | AgentRetired]:
    """Events after ``LeagueOpened``: all agents are registered, and those that are met in evaluation only retired.

    Samplers draw active agents; evaluations play the agents that they name.
    """
    agents = config.agents.items()
    return [
        *(AgentRegistered(agent=name, kind=a.kind, baseline=a.baseline, rating=a.rating) for name, a in agents),
        *(AgentRetired(agent=name, reason=EVALUATION_ONLY) for name, a in agents if not a.is_drawn),
    ]


MAX_VERSION_STEP = 10**9
"""Most by which an external agent's version exceeds the one before: a single one cannot use all numbers up."""


def external_version(state: LeagueState, policy: str, version: int, worker: str) -> ExternalVersionAdded | None:
    """The event by which a worker, or ``OPERATOR``, adds an external agent's version; None where it is in the league.

    Raises:
        UsageError: the name is invalid, or that of another agent; or the version is older than the newest one, or
            more than ``MAX_VERSION_STEP`` above it.
    """
    check_name("external agent", policy)
    config = state.config
    own = () if config is None else (*config.agents, *config.trained_policies)
    agent = agent_name(policy, version)
    newest = state.external_versions.get(policy)
    if policy in (HUMAN, *own, *state.published):
        raise UsageError(f"external agent {policy!r}: the league has an agent of that name; expected another")
    if agent in state.agents:
        return None
    if newest is not None and version < newest:
        raise UsageError(f"external agent {policy!r}: version {version}; expected more than {newest}")
    if version > (most := (newest or 0) + MAX_VERSION_STEP):
        raise UsageError(f"external agent {policy!r}: version {version}; expected at most {most}")
    return ExternalVersionAdded(agent=agent, policy=policy, version=version, worker=worker)


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


class StopReason(NamedTuple):
    """Reason for which training must end."""

    text: str
    is_criterion: bool = False
    """Whether ``stop.criterion`` is met; a limit is reached otherwise."""


def stop_reason(state: LeagueState, policy: str, stop: StopConfig, newest_step: int = 0) -> StopReason | None:
    """Reason for which training must end now, after the step ``newest_step``; None if it must not."""
    for name, share in _limit_shares(state, policy, stop, newest_step).items():
        if share >= 1.0:
            return StopReason(f"{getattr(stop, name):g} {name}")
    return met_stop_criterion(state)


def met_stop_criterion(state: LeagueState) -> StopReason | None:
    """The reason to stop training: the trained policy's benchmark exceeds ``stop.criterion`` with 95 % confidence.

    Compares the lower end of the 95 % Wilson interval of the share of games won; None while it is not exceeded.
    """
    config = state.config_or_default
    criterion = config.stop.criterion
    if criterion is None:
        return None
    for evaluation in state.evaluations.values():
        result = evaluation.finished
        if result is None or evaluation.suite != BENCHMARK or result.opponents != [criterion.opponent]:
            continue
        if policy_of(evaluation.agent) == config.trainer.policy:
            low, _ = wilson_interval(result.wins, result.games)
            if low > criterion.win_rate:
                text = (
                    f"{result.agent} won {result.wins} of {result.games} games against {criterion.opponent}: "
                    f"above {criterion.win_rate:g} with 95 % confidence (interval from {low:.3f})"
                )
                return StopReason(text, is_criterion=True)
    return None
