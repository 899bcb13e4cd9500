"""Small valid instances of what many tests need: events, histories, league states, standings, trajectories.

A builder takes the facts that a test is about; everything else has a fixed default, and ``**fields`` overrides any.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import schemas.events as e
from arena.games import GAMES
from league.blobs import BlobStore
from league.log.base import RecordedEvent
from league.projections.query import MAX_ROWS, MEMORY, TIMEOUT_S, QueryLimits, QueryProcess, QueryResult
from league.state import LeagueState
from schemas.codec import encode_event
from schemas.config import LeagueConfig, to_builtins
from schemas.errors import ConfigError
from schemas.standings import Agent, LivePolicy, Standings, WinLoss
from schemas.trajectories import ModelCall, Trajectory

# ── Events


def seat_results(seats: Iterable[tuple[str, float]], trainable: Collection[int] = ()) -> list[e.SeatResult]:
    """Results of agents with these scores, in the order of their seats; equal scores share a rank."""
    scored = list(seats)
    return [
        e.SeatResult(seat, f"S{seat}", agent, score, 1 + sum(other > score for _, other in scored), seat in trainable)
        for seat, (agent, score) in enumerate(scored)
    ]


def match_finished(
    *seats: tuple[str, float], match_id: str = "w-0", trainable: Collection[int] = (), **fields: Any
) -> e.MatchFinished:
    """An evaluation match of Nim between agents with these scores."""
    defaults: dict[str, Any] = {
        **{"game": "nim", "purpose": "evaluation", "worker": "w", "seed": 0},
        **{"winner": None, "reason": "", "length": 1, "seconds": 0.0},
    }
    return e.MatchFinished(match_id=match_id, **({"seats": seat_results(seats, trainable)} | defaults | fields))


def opponents_sampled(match_id: str = "w-0", worker: str = "w", **fields: Any) -> e.OpponentsSampled:
    """The draw of a training match of the main policy, which meets itself alone."""
    defaults: dict[str, Any] = {
        **{"hero": "main@0", "hero_seat": 0, "sampler": "pfsp", "sampler_digest": ""},
        **{"standings_sequence": 0, "draw": 0, "picks": []},
    }
    return e.OpponentsSampled(match_id=match_id, worker=worker, **(defaults | fields))


def gradient_step(number: int, **fields: Any) -> e.GradientStepTaken:
    """A gradient step of the main policy that accepted and consumed nothing."""
    defaults: dict[str, Any] = {
        **{"policy": "main", "batch": "", "matches": [], "state": ""},
        **{"experience_from": 0, "experience_to": 0, "accepted": 0, "stale": 0, "refused": 0},
    }
    return e.GradientStepTaken(step=number, **(defaults | fields))


def policy_published(version: int, policy: str = "main", **fields: Any) -> e.PolicyPublished:
    """A version of a policy, with an adapter of its own."""
    return e.PolicyPublished(
        policy=policy, version=version, **({"adapter": f"{version:064d}", "parent": "base_model"} | fields)
    )


def checkpoint_added(version: int, reason: str = "recent", policy: str = "main", **fields: Any) -> e.CheckpointAdded:
    """A version of a policy that becomes an agent."""
    return e.CheckpointAdded(
        agent=f"{policy}@{version}",
        policy=policy,
        version=version,
        reason=reason,
        **({"parent": "base_model", "adapter": "0" * 64} | fields),
    )


def opening_events(config: LeagueConfig, league: str = "t") -> list[e.Event]:
    """The events with which a league of these agents begins."""
    agents = [
        e.AgentRegistered(agent=name, kind=agent.kind, baseline=agent.baseline, rating=agent.rating)
        for name, agent in config.agents.items()
    ]
    return [e.LeagueOpened(league=league, config=to_builtins(config), model="m"), *agents]


# ── Histories and states


def record_events(events: Iterable[e.Event], interval_ns: int = 10**9) -> list[RecordedEvent]:
    """A history of events, numbered from 1 and ``interval_ns`` apart, all on the same subject."""
    return [RecordedEvent(n, n * interval_ns, "s", "w", encode_event(event)) for n, event in enumerate(events, 1)]


def replace_event(recorded: RecordedEvent, event: e.Event) -> RecordedEvent:
    """The same place of a history with another event."""
    return RecordedEvent(recorded.sequence, recorded.time_ns, recorded.subject, recorded.producer, encode_event(event))


def apply_events(state: LeagueState, *events: e.Event) -> LeagueState:
    """The state itself, after events that follow its last one."""
    for event in events:
        state.apply(state.sequence + 1, event)
    return state


def fold_events(*events: e.Event) -> LeagueState:
    """The state of a league whose history is these events."""
    return apply_events(LeagueState(), *events)


def league_state(config: LeagueConfig, *events: e.Event) -> LeagueState:
    """The state of a league that was opened, after more events."""
    return fold_events(*opening_events(config), *events)


async def store_adapters(blobs: BlobStore, history: Iterable[RecordedEvent]) -> None:
    """Store the adapters that a simulated history refers to."""
    for event in (recorded.event for recorded in history):
        if isinstance(event, e.PolicyPublished):
            assert await blobs.put(f"{event.policy}@{event.version}".encode()) == event.adapter


# ── Standings


def checkpoint(version: int, rating: float = 1200.0, policy: str = "main", **fields: Any) -> Agent:
    """A rated checkpoint of a policy."""
    return Agent(f"{policy}@{version}", "checkpoint", rating, 9, policy=policy, version=version, **fields)


def bot(name: str, rating: float = 1000.0, baseline: bool = False, active: bool = True) -> Agent:
    """A rated bot."""
    return Agent(name, "bot", rating, 9, baseline=baseline, active=active)


def standings(*agents: Agent, records: Mapping[str, WinLoss] | None = None, version: int = 200) -> Standings:
    """Agents, and the live main policy at a rating of 1200 with its results against them."""
    live = {"main": LivePolicy("main", version, "1" * 64, 1200.0)}
    return Standings(7, {agent.name: agent for agent in agents}, live, {"main": dict(records or {})})


# ── Trajectories


def model_call(version: int = 0, clock: int = 1, progress: float = 0.0, **fields: Any) -> ModelCall:
    """A model call with one sampled token, chosen among two."""
    defaults: dict[str, Any] = {
        **{"prompt_ids": [1, 2], "completion_ids": [3], "branches": [0], "logprobs": [-0.5], "allowed": [[3, 4]]}
    }
    return ModelCall(version=version, clock=clock, progress=progress, **(defaults | fields))


def trajectory(match_id: str = "m-0", steps: Sequence[ModelCall] = (), **fields: Any) -> Trajectory:
    """A trajectory of the main policy in the first seat of a match of Nim."""
    defaults: dict[str, Any] = {
        **{"game": "nim", "policy": "main", "seat": 0, "role": "first", "group": "g"},
        **{"final_clock": 1, "final_progress": 1.0, "score": 1.0, "rank": 1},
    }
    return Trajectory(match_id=match_id, steps=list(steps), **(defaults | fields))


# ── Projections


def encode_decisions(*rows: Mapping[str, Any]) -> bytes:
    """A segment of ``decisions``: rows of a poker player, with what a test is about."""
    from workers.decisions import decision_schema, write_parquet

    default: dict[str, Any] = {
        **{"purpose": "training", "time": 0, "seat": 0, "agent": "main@1", "policy": "main", "call": 0, "version": 1},
        **{"clock": 0, "prompt": "Your card is the king.", "thoughts": "", "second_reply": "", "move": "bet"},
        **{"fault": "", "legal_moves": ["bet", "check"], "logprob": -0.7, "choices": 1, "temperature": 1.0},
        **{"opponents": ["random_bot"], "ratings": [800.0], "score": 1.0, "rank": 1},
    }
    full = [default | dict(row) for row in rows]
    return write_parquet({name: [row[name] for row in full] for name in decision_schema().names}, decision_schema())


def run_query(
    path: Path, sql: str, timeout_s: float = TIMEOUT_S, memory: str = MEMORY, max_rows: int = MAX_ROWS
) -> QueryResult:
    """One query on a projection's file as it is."""
    query = QueryProcess(path, QueryLimits(timeout_s, memory, max_rows))
    try:
        assert query.position() is not None
        return query.run(sql)
    finally:
        query.close()


def text_settings(name: str) -> list[dict[str, str]]:
    """The settings that select each of a game's text formats, the default first; none for a missing package."""
    try:
        return [{"text": text} for text in GAMES.load(name).info] or [{}]
    except ConfigError:
        return [{}]
