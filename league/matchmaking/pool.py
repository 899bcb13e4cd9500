"""The active pool: at most ``matchmaking.max_active_adapters`` checkpoints are opponents at a time, the others rest.

Every adapter in play takes a slot of each inference process, so a long league plays a few of its checkpoints at a time.
Active are, in this order and as far as there is room:

1. the newest checkpoint of every policy, the trained policy's first, and the best rated checkpoint (after the trained
   policy's newest): self-play against the strongest;
2. in half of the remaining room, landmarks spread over the history: all of them while they fit, then every second,
   every fourth, and so on, by their versions alone, so that they stay the same for a long time;
3. those rated nearest to the live policy, from which it has most to learn.

Ratings move after every evaluation match, and a pool that followed each move would load and drop adapters all the time.
So an active agent has a bonus of ``ACTIVE_MARGIN`` points, as the best and as a near one: only a clear difference
changes the pool. A checkpoint that has left the schedule is never activated.

Source: Unstable Baselines' model pool with at most ``max_active_lora`` active adapters (there the newest ones), and
League Training's elite, recent and landmark checkpoints; a pure function of the state.
"""

from collections.abc import Iterable, Sequence
from math import inf, isfinite

from league.matchmaking.schedule import EVALUATION_ONLY, LANDMARK, has_expired
from league.samplers import live_hero
from league.state import LeagueState
from schemas.config import LeagueConfig
from schemas.events import AgentActivated, AgentRetired, OpponentPick
from schemas.ids import agent_name, policy_of
from schemas.standings import Agent, LivePolicy, Standings

ACTIVE_MARGIN = 50.0
"""Rating points, about the uncertainty left after a tournament of 50 matches; half of the range of peers."""

PoolChange = AgentRetired | AgentActivated


def pool_changes(state: LeagueState) -> list[PoolChange]:
    """The changes that bring the pool to its rule, rests before activations; empty once they are folded.

    Without ``max_active_adapters`` every resting agent is activated.
    """
    most = state.config_or_default.matchmaking.max_active_adapters
    if most is None and not state.has_resting_agents:
        return []
    # Checkpoints that are active or resting, and still in the schedule.
    members = [
        agent
        for agent in state.checkpoints
        if (agent.active or state.activity(agent.name).resting) and not has_expired(state, agent)
    ]
    if most is None:
        chosen = {agent.name: "there is room for all" for agent in members}
    elif all(agent.active for agent in members) and len(members) <= most:
        return []
    else:
        chosen = _stable_pool(state, members, most)
    resting: list[PoolChange] = [
        AgentRetired(
            agent=agent.name,
            reason=f"rests: {most} others of the active pool come before it",
            after=state.activity(agent.name).sequence,
            resting=True,
        )
        for agent in members
        if agent.active and agent.name not in chosen
    ]
    activated: list[PoolChange] = [
        AgentActivated(agent=agent.name, reason=chosen[agent.name], after=state.activity(agent.name).sequence)
        for agent in members
        if not agent.active and agent.name in chosen
    ]
    # Rests first, so that there are never more than fit.
    return [*resting, *activated]


def _stable_pool(state: LeagueState, members: list[Agent], most: int) -> dict[str, str]:
    """The agents of the pool, with reasons.

    An activated agent has the margin from then on, which can make a better rated one of them the best. This only raises
    the rating of the best, so the iteration ends; the pool goes to its end at once.
    """
    active = {agent.name for agent in members if agent.active}
    while (chosen := _choose_active(state, members, most, active)).keys() != active:
        active = set(chosen)
    return chosen


def _choose_active(state: LeagueState, members: list[Agent], most: int, active: set[str]) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for agent, reason in _priority_members(state, members, active):
        chosen.setdefault(agent, reason)
    chosen = dict(list(chosen.items())[:most])
    chosen |= _spaced_landmarks(
        state, [agent for agent in members if agent.name not in chosen], (most - len(chosen)) // 2
    )
    live = state.live_version(state.config_or_default.trainer.policy)
    near = sorted(
        (agent for agent in members if agent.name not in chosen),
        key=lambda agent: (_distance(agent, live) - ACTIVE_MARGIN * (agent.name in active), -agent.version, agent.name),
    )
    for member in near[: most - len(chosen)]:
        chosen[member.name] = "there is room"
        if live is not None:
            distance, hero = _distance(member, live), agent_name(live.policy, live.version)
            chosen[member.name] = f"rated {distance:.0f} points from {hero}"
    return chosen


def _priority_members(state: LeagueState, members: list[Agent], active: set[str]) -> Iterable[tuple[str, str]]:
    """The newest checkpoint of every policy and the best one, by priority."""
    newest = {agent.policy: agent for agent in sorted(members, key=lambda agent: (agent.version, agent.name))}
    rated = [agent for agent in members if agent.games and isfinite(agent.rating)]
    best = max(
        rated, key=lambda agent: (agent.rating + ACTIVE_MARGIN * (agent.name in active), agent.version), default=None
    )
    own = newest.pop(state.config_or_default.trainer.policy, None)
    if own is not None:
        yield own.name, f"the newest checkpoint of {own.policy}"
    if best is not None:
        yield best.name, f"the best rated checkpoint: {best.rating:.0f}"
    for policy in sorted(newest):
        yield newest[policy].name, f"the newest checkpoint of {policy}"


def _spaced_landmarks(state: LeagueState, members: list[Agent], count: int) -> dict[str, str]:
    """Landmarks of the trained policy at the smallest spacing that fits, found by repeated doubling."""
    # Version 0 is a multiple of every spacing.
    if count <= 0:
        return {}
    config = state.config_or_default
    landmarks = [member for member in members if member.reason == LANDMARK and member.policy == config.trainer.policy]
    spacing = config.schedule.landmark_every
    while len(landmarks) > count:
        spacing *= 2
        landmarks = [agent for agent in landmarks if agent.version % spacing == 0]
    return {agent.name: f"a landmark, one of every {spacing} versions" for agent in landmarks}


def _distance(agent: Agent, live: LivePolicy | None) -> float:
    """Rating points between an agent and the live policy; 0 for every agent without a live version."""
    distance = abs(agent.rating - live.rating) if live is not None else 0.0
    return distance if isfinite(distance) else inf


def free_slots(config: LeagueConfig, standings: Standings | None = None) -> int:
    """Number of adapters available to the opponents of one match beside the hero's own; 0 or more.

    The standings give the slots of workers that are short of memory; without them the configured slots count.
    """
    fewest = None if standings is None else standings.slots
    most = config.inference.max_adapters
    return max((most if fewest is None else min(most, fewest)) - 1, 0)


def fit_to_slots(
    picks: Sequence[OpponentPick], standings: Standings, config: LeagueConfig, policy: str
) -> list[OpponentPick]:
    """Clone opponents until their adapters fit the slots; returns the picks unchanged when they do.

    With no slot beside the hero's own, every opponent that needs an adapter is replaced by the mirror. ``picks`` are
    for all seats but the hero's, from these standings.
    """
    free = free_slots(config, standings)
    if len(picks) <= free:
        return list(picks)
    hero, live = live_hero(standings, policy)
    adapters = [_required_adapter(pick.agent, standings, live.adapter) for pick in picks]
    if len({adapter for adapter in adapters if adapter is not None}) <= free:
        return list(picks)
    leaders: dict[int, OpponentPick] = {}
    fitted = []
    for index, (pick, adapter) in enumerate(zip(picks, adapters, strict=True)):
        if adapter is None:
            fitted.append(pick)
        elif not free:
            fitted.append(OpponentPick(pick.seat, hero, "mirror"))
        else:
            leader = leaders.setdefault(index % free, pick)
            fitted.append(OpponentPick(pick.seat, leader.agent, leader.bucket))
    return fitted


def _required_adapter(agent: str, standings: Standings, own: str | None) -> str | None:
    """The adapter for which an agent, a member or a policy's live version, takes a slot; None without one."""
    holder = standings.agents.get(agent) or standings.live.get(policy_of(agent))
    return holder.adapter if holder is not None and holder.adapter != own else None


def budget_changes(state: LeagueState) -> list[PoolChange]:
    """Pauses and reactivations of remote agents by budget, in the order of the configuration; empty once folded."""
    changes: list[PoolChange] = []
    for name, agent in state.config_or_default.agents.items():
        if agent.remote is None or name not in state.agents:
            continue
        after = state.activity(name).sequence
        is_over = state.budget_left(name) <= 0
        if is_over == state.activity(name).resting:
            continue
        if is_over:
            reason = f"pauses: it has cost {state.remote_cost(name):.6g} of its budget of {agent.remote.budget:g}"
            changes.append(AgentRetired(agent=name, reason=reason, after=after, resting=True))
        elif agent.remote.training:
            changes.append(AgentActivated(agent=name, reason="its budget is not spent", after=after))
        else:
            changes.append(AgentRetired(agent=name, reason=EVALUATION_ONLY, after=after))
    return changes
