"""Draws of the opponent pool, and the results of its sessions. Pure functions.

A *virtual model* names a distribution of opponents:

| name | opponents |
|---|---|
| ``league/SAMPLER`` | those of a registered sampler: the league's own as configured, others with their defaults |
| ``league/best`` | the best rated active agent |
| ``league/AGENT`` | that agent: ``league/main@80``, ``league/base_model``; a policy stands for its newest version |

Only *eligible* agents are drawn: those that can answer the session's requests. The others are inactive for the sampler,
and the mirror is left out, since the external agent plays elsewhere: its share goes to the other buckets in proportion.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import isfinite
from random import Random

import msgspec

from league.samplers import SAMPLERS, Bucket, Distribution, agent_probabilities, draw_agents, make_sampler
from schemas.codec import canonical_json
from schemas.config import LeagueConfig, Plugin
from schemas.errors import UsageError, format_choices
from schemas.events import MatchFailed, MatchFinished, OpponentPick, OpponentsSampled, SeatResult, SessionOpened
from schemas.ids import agent_name, derive_seed, digest
from schemas.jobs import SESSION_PURPOSE
from schemas.standings import LivePolicy, Standings

PREFIX = "league/"
"""Begins the name of every virtual model."""
BEST = "best"


def virtual_models() -> list[str]:
    """Names of the virtual models that are no agents."""
    return [*(f"{PREFIX}{name}" for name in sorted(_sampler_names())), f"{PREFIX}{BEST}"]


@cache
def _sampler_names() -> frozenset[str]:
    """Registered samplers; looking for them reads folders."""
    return frozenset(SAMPLERS.names())


def session_distribution(
    standings: Standings, config: LeagueConfig, model: str, agent: str, is_eligible: Callable[[str], bool]
) -> Distribution:
    """The opponents of a virtual model for an external agent's version.

    ``is_eligible`` tells whether an agent can answer the session's requests.

    Raises:
        UsageError: no such virtual model, or no eligible agent.
    """
    name = model.removeprefix(PREFIX)
    if name in _sampler_names():
        return _eligible_buckets(standings, config, name, agent, is_eligible)
    if name == BEST:
        rated = [entrant for entrant in standings.agents.values() if entrant.active and is_eligible(entrant.name)]
        if not rated:
            raise UsageError(f"model {model!r}: no active agent of the league can answer; expected at least one")
        return {BEST: Bucket(1.0, {max(rated, key=lambda entrant: (entrant.rating, entrant.name)).name: 1.0})}
    live = standings.live.get(name)
    fixed = name if live is None else agent_name(name, live.version)
    if not is_eligible(fixed):
        raise UsageError(
            f"model {model!r}: unknown; expected {format_choices(virtual_models(), model)}, "
            f"or {PREFIX}AGENT with the base model, a published version (league/main@20), a remote agent that this "
            "server has the key of, where requests list no choices, or an agent that searches or a bot of the "
            "league's game, where requests carry league_position"
        )
    return {"agent": Bucket(1.0, {fixed: 1.0})}


def _eligible_buckets(
    standings: Standings, config: LeagueConfig, sampler: str, agent: str, is_eligible: Callable[[str], bool]
) -> Distribution:
    member = standings.agents[agent]
    agents = {
        name: one if not one.active or is_eligible(name) else msgspec.structs.replace(one, active=False)
        for name, one in standings.agents.items()
    }
    own = LivePolicy(member.policy, member.version, None, member.rating, member.deviation)
    seen = msgspec.structs.replace(standings, agents=agents, live={**standings.live, member.policy: own})
    buckets = make_sampler(session_sampler(config, sampler)).distribution(seen, member.policy)
    eligible = {
        name: {one: weight for one, weight in bucket.weights.items() if weight > 0 and is_eligible(one)}
        for name, bucket in buckets.items()
    }
    total = sum(bucket.share for name, bucket in buckets.items() if eligible[name])
    if not total > 0:
        raise UsageError(
            f"model {PREFIX}{sampler}: no agent that {agent} could meet answers these requests; "
            f"expected at least one ({PREFIX}uniform draws from all of them, and from bots where requests carry "
            "league_position)"
        )
    return {name: Bucket(bucket.share / total, eligible[name]) for name, bucket in buckets.items() if eligible[name]}


def session_sampler(config: LeagueConfig, name: str) -> Plugin:
    """The sampler that a virtual model names, with its settings."""
    if name == config.matchmaking.sampler.name:
        return config.matchmaking.sampler
    if name == "main_exploiter":
        return Plugin(name=name, settings={"against": config.trainer.policy})
    return Plugin(name=name)


def draw_session(
    session: SessionOpened, standings: Standings, config: LeagueConfig, distribution: Distribution
) -> tuple[OpponentsSampled, SessionOpened]:
    """Draw the opponent of a session, which has none yet or another one; the events are one batch."""
    seed = derive_seed(config.seed, "session", session.match_id)
    [(bucket, opponent)] = draw_agents(distribution, 1, Random(seed))
    sampler = session.model.removeprefix(PREFIX)
    plugin = session_sampler(config, sampler) if sampler in _sampler_names() else Plugin(name=sampler)
    sampled = OpponentsSampled(
        match_id=session.match_id,
        worker=session.worker,
        hero=session.agent,
        hero_seat=session.seat,
        sampler=sampler,
        sampler_digest=digest(canonical_json(plugin)),
        standings_sequence=standings.sequence,
        draw=seed,
        picks=[OpponentPick(seat, opponent, bucket) for seat in range(len(session.roles)) if seat != session.seat],
    )
    probabilities = agent_probabilities(distribution)
    return sampled, msgspec.structs.replace(session, opponent=opponent, probabilities=probabilities)


def session_result(
    opened: SessionOpened,
    scores: Sequence[float],
    worker: str,
    seconds: float,
    reason: str = "",
    length: int = 0,
    rules: int = 1,
) -> MatchFinished:
    """The result of a session of ``length`` turns; ``scores`` by seat, more is better.

    Raises:
        UsageError: another number of scores than seats, or one that is not a finite number.
    """
    where = f"session {opened.session!r} of {opened.game}: scores"
    if len(scores) != len(opened.roles):
        raise UsageError(f"{where}: found {len(scores)}; expected {len(opened.roles)}, one for each of its seats")
    if not all(map(isfinite, scores)):
        raise UsageError(f"{where}: found {list(scores)}; expected finite numbers")
    best = max(scores)
    return MatchFinished(
        match_id=opened.match_id,
        game=opened.game,
        purpose=SESSION_PURPOSE,
        worker=worker,
        seed=0,
        seats=[
            SeatResult(
                seat=seat,
                role=opened.roles[seat],
                agent=opened.agent if seat == opened.seat else opened.opponent,
                score=score,
                rank=1 + sum(other > score for other in scores),
            )
            for seat, score in enumerate(scores)
        ],
        winner=list(scores).index(best) if list(scores).count(best) == 1 else None,
        reason=reason,
        length=length,
        seconds=seconds,
        rules=rules,
    )


def session_expiry(opened: SessionOpened, worker: str) -> MatchFailed:
    """The end of a session without a result in time."""
    return MatchFailed(
        match_id=opened.match_id,
        purpose=SESSION_PURPOSE,
        worker=worker,
        error=f"abandoned: no result within {round(opened.expires - opened.opened, 3):g} s",
    )
