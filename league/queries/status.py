"""The state of a league now, from its history and the heartbeats of its processes; and its alarms."""

import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
import psutil
from nats.aio.client import Client

from league.log.connection import REQUEST_TIMEOUT_S, translate_broker_errors
from league.log.dead_letters import DeadLetterEntry
from league.log.jetstream import JetStreamLog
from league.log.metrics import MetricsStream, broker_time, count_messages
from league.log.pull import newest_present
from league.ratings.elo import Elo, chance_deviation
from league.run import Run
from league.state import LeagueState
from league.state.evaluation_table import Evaluation
from league.state.saved_state import WorkerState
from schemas import subjects
from schemas.config import LeagueConfig
from schemas.events import GradientStepTaken
from schemas.ids import split_agent
from schemas.metrics import (
    FEW_REPLIES,
    MOSTLY_ZERO,
    NO_REPLY,
    ONE_OPENING,
    SILENCE_TIMEOUT_S,
    STILL_STEPS,
    Heartbeat,
    WorkerHeartbeat,
)
from schemas.numbers import Z_95
from schemas.standings import Alarm, Standings


class WorkerStatus(msgspec.Struct, frozen=True):
    """One worker process."""

    worker: str
    role: str
    host: str
    pid: int
    health: str
    """``ok``; ``silent`` where the last heartbeat is too old, or there was none in the last minute; ``left``."""
    silent_s: float | None = None
    """Seconds since its last heartbeat; None where there was none in the last minute."""
    left: str | None = None
    """Why it ended."""
    heartbeat: Heartbeat | None = None


class PolicyStatus(msgspec.Struct, frozen=True):
    """One trained policy."""

    policy: str
    version: int
    step: int
    """Newest gradient step; 0 before the first."""
    rating: float
    """Rating of its last evaluated version."""
    ahead: int
    """Training matches begun and not trained on yet."""
    pending: int
    """Trajectories waiting for the trainer."""
    wait_share: float
    """Share of the last step that the trainer spent waiting for trajectories."""
    metrics: dict[str, float]
    """Metrics of the last step."""
    finished: str | None = None
    """Why its training ended."""


class AgentStatus(msgspec.Struct, frozen=True):
    """An active agent of the league."""

    agent: str
    kind: str
    rating: float
    games: int


class LeagueStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a league at one moment."""

    league: str
    game: str
    sequence: int
    """Sequence of the newest event."""
    games: dict[str, int]
    """Matches played, by purpose."""
    failed: int
    voided: int
    dead_letters: int
    """Messages that could not be decoded and jobs that were given up."""
    costs: dict[str, float]
    """Cost of remote agents, by name."""
    jobs: int = 0
    """Requested matches that have not been played: the depth of the work queue."""
    lag: int
    """Events that the slowest worker is behind."""
    since_step_s: float | None = None
    """Seconds since the newest gradient step of any policy was stored, by the broker's clock; None before the first."""
    store_share: float | None = None
    """Used share of the broker's store; None where it is not known."""
    paused: dict[str, str]
    """Reasons of pauses by policy; the empty name stands for the whole league."""
    policies: list[PolicyStatus]
    agents: list[AgentStatus]
    workers: list[WorkerStatus]
    alarms: list[Alarm] = []
    """Conditions that need attention (``detect_alarms``)."""

    @property
    def silent_workers(self) -> list[WorkerStatus]:
        """Workers whose heartbeats are missing."""
        return [worker for worker in self.workers if worker.health == "silent"]


async def read_status(
    history: JetStreamLog, state: LeagueState, include_left: bool = False, run: Run | None = None
) -> LeagueStatus:
    """Read the status of a league.

    ``run`` gives the size of the store where the broker does not limit it; ``include_left`` includes workers that have
    left.

    Raises:
        LogError: the broker cannot be reached.
    """
    client, league = history.client, history.league
    heartbeats = await MetricsStream(client, league).newest()
    waiting = await count_messages(client, subjects.EXPERIENCE_STREAM, subjects.experience_subject(league, "*"))
    dead = await count_messages(client, subjects.DEAD_LETTER_STREAM, subjects.dead_letter_subject(league, ">"))
    jobs = await count_messages(client, subjects.WORK_STREAM, subjects.work_subject(league, ">"))
    pending = {subject.rpartition(".")[2]: count for subject, count in waiting.items()}
    # Before further waiting, during which a live state would run ahead of what was counted.
    status = build_status(state, heartbeats, pending, sum(dead.values()), include_left)
    newest = await newest_present(client, subjects.LEAGUE_STREAM, subjects.event_type_filter(league, GradientStepTaken))
    now_s = await broker_time(client)
    return msgspec.structs.replace(
        status,
        jobs=sum(jobs.values()),
        since_step_s=None if newest is None or now_s is None else max(now_s - newest.time_ns / 1e9, 0.0),
        store_share=await _store_share(client, run),
    )


async def _store_share(client: Client, run: Run | None) -> float | None:
    with translate_broker_errors("reading the size of the store"):
        account = await client.jetstream(timeout=REQUEST_TIMEOUT_S).account_info()
    most = account.limits.max_storage if run is None or run.max_store_bytes is None else run.max_store_bytes
    if most > 0:
        return float(account.storage / most)
    if run is None or run.nats is not None:
        return None
    disk = psutil.disk_usage(str(run.folder))
    return float(disk.used / (disk.used + disk.free))


def build_status(
    state: LeagueState,
    heartbeats: Mapping[str, WorkerHeartbeat],
    pending: Mapping[str, int],
    dead: int,
    include_left: bool = False,
) -> LeagueStatus:
    """The status from newest heartbeats by worker, waiting trajectories by policy and the number of dead letters."""
    standings = state.standings()
    workers = [
        _worker_status(worker, heartbeats.get(name))
        for name, worker in sorted(state.workers.items())
        if include_left or worker.left is None
    ]
    return LeagueStatus(
        league=state.league,
        game=state.config.game.name if state.config is not None else "",
        sequence=state.sequence,
        games={purpose: count for purpose in ("training", "evaluation") if (count := state.finished_matches(purpose))},
        failed=state.failed,
        voided=len(state.voided),
        dead_letters=dead,
        costs={agent: spent.cost for agent, spent in sorted(state.spending.items())},
        lag=max((worker.heartbeat.lag for worker in workers if worker.heartbeat is not None), default=0),
        paused={policy: pause.reason for policy, pause in state.pauses.active_pauses().items()},
        policies=[_policy_status(state, standings, policy, pending.get(policy, 0)) for policy in state.policies],
        agents=[
            AgentStatus(agent.name, agent.kind, agent.rating, agent.games)
            for agent in standings.agents.values()
            if agent.active
        ],
        workers=workers,
    )


def silence_text(worker: WorkerStatus) -> str:
    """Time since a silent worker's last heartbeat."""
    if worker.silent_s is None:
        return "sent no heartbeat in the last minute"
    return f"sent its last heartbeat {worker.silent_s:.0f} s ago"


def _worker_status(worker: WorkerState, latest: WorkerHeartbeat | None) -> WorkerStatus:
    joined = worker.joined
    # A heartbeat of an earlier start of the worker says nothing about the current process.
    if latest is not None and latest.heartbeat.incarnation != joined.incarnation:
        latest = None
    is_well = latest is not None and latest.age_s <= SILENCE_TIMEOUT_S
    return WorkerStatus(
        worker=joined.worker,
        role=joined.role,
        host=joined.host,
        pid=joined.pid,
        health="left" if worker.left is not None else "ok" if is_well else "silent",
        silent_s=None if latest is None else latest.age_s,
        left=worker.left,
        heartbeat=None if latest is None else latest.heartbeat,
    )


def _policy_status(state: LeagueState, standings: Standings, policy: str, pending: int) -> PolicyStatus:
    step, live, finished = state.last_step(policy), standings.live[policy], state.training_finished(policy)
    metrics = step.metrics if step is not None else {}
    wall_s, waited_s = metrics.get("wall_s", 0.0), metrics.get("wait_s", 0.0)
    return PolicyStatus(
        policy=policy,
        version=live.version,
        step=step.step if step is not None else 0,
        rating=live.rating,
        ahead=state.in_play.matches_ahead(policy),
        pending=pending,
        wait_share=round(min(waited_s / wall_s, 1.0), 3) if wall_s > 0 else 0.0,
        metrics=metrics,
        finished=None if finished is None else finished.reason,
    )


def detect_alarms(status: LeagueStatus, state: LeagueState) -> list[Alarm]:
    """The alarms of a league, sorted by name."""
    config = state.config or LeagueConfig()
    alarms = [
        *_training_alarms(status, state, config),
        *_rating_alarms(state),
        *(
            Alarm(f"worker_silent:{worker.worker}", f"{worker.worker} on {worker.host} {silence_text(worker)}")
            for worker in status.silent_workers
        ),
    ]
    if status.dead_letters >= config.alarms.dead_letters:
        text = f"{status.dead_letters:,} messages that could not be decoded (league dead-letters)"
        alarms.append(Alarm("dead_letters", text))
    if status.store_share is not None and status.store_share >= config.alarms.store_share:
        alarms.append(Alarm("store_full", f"the broker's store is at {100 * status.store_share:.0f} % of its room"))
    return sorted(alarms, key=lambda alarm: alarm.name)


def _training_alarms(status: LeagueStatus, state: LeagueState, config: LeagueConfig) -> Iterator[Alarm]:
    for policy in config.trained_policies:
        step, finished = state.last_step(policy), state.training_finished(policy)
        if step is not None and step.skipped:
            why = step.skip_reason or "see the trainer's log"
            yield Alarm(f"step_skipped:{policy}", f"step {step.step} of {policy} was skipped: {why}")
        if step is not None and step.metrics.get("alarms", 0.0) > 0:
            text = f"step {step.step} of {policy}: samples were not drawn as recorded (see the trainer's log)"
            yield Alarm(f"samples_differ:{policy}", text)
        share = 0.0 if step is None else step.metrics.get("zero_advantage_share", 0.0)
        if step is not None and share > MOSTLY_ZERO:
            text = f"step {step.step} of {policy}: {100 * share:.0f} % of the advantages are 0 (rollout.group_size)"
            yield Alarm(f"zero_advantages:{policy}", text)
        still = 0 if step is None else int(step.metrics.get("still_steps", 0.0))
        if still >= STILL_STEPS:
            text = f"entropy and KL of {policy} have stood still for {still} steps: it does not learn (docs: settings)"
            yield Alarm(f"stands_still:{policy}", text)
        if step is not None and (text := _collapse(step)):
            yield Alarm(f"replies_collapsed:{policy}", f"step {step.step} of {policy}: {text}")
        if finished is not None and config.stop.criterion is not None and not finished.criterion_met:
            text = f"training of {policy} ended ({finished.reason}) before stop.criterion was met"
            yield Alarm(f"criterion_unmet:{policy}", text)
    training = [policy for policy in config.trained_policies if state.training_finished(policy) is None]
    waiting = [policy for policy in training if state.pauses.active_pause(policy) is None]
    trainers = any(worker.role == "trainer" for worker in status.workers)
    # Without a trainer no step is due: such a league is idle, not stalled.
    if waiting and trainers and (status.since_step_s or 0.0) > 60 * config.alarms.stall_minutes:
        minutes = (status.since_step_s or 0.0) / 60
        yield Alarm("no_step", f"no gradient step of {', '.join(waiting)} for {minutes:.0f} minutes")


def _collapse(step: GradientStepTaken) -> str:
    """What the replies of a step have collapsed to; empty if they have not."""
    metrics = step.metrics
    if metrics.get("sequences", 0.0) < FEW_REPLIES:
        return ""
    if (share := metrics.get("reply_opening", 0.0)) > ONE_OPENING:
        return f"{100 * share:.0f} % of the replies are the same (entropy bonus, earlier version, other opponents)"
    if (share := metrics.get("reply_turn_opening", 0.0)) > ONE_OPENING:
        alike = f"at each turn {100 * share:.0f} % of the replies are the same, whatever the prompt"
        return f"{alike} (entropy bonus, earlier version, other opponents)"
    if (length := metrics.get("reply_free_tokens", NO_REPLY)) < NO_REPLY:
        return f"free replies have {length:.1f} tokens on average: most are empty (reward of format, earlier version)"
    return ""


def _rating_alarms(state: LeagueState) -> Iterator[Alarm]:
    """An alarm per policy whose newest evaluated version is rated below a baseline by more than chance explains.

    The first version has none: it is hardly trained. Nor have exploiters: they target one opponent, and start again at
    the base model's strength.
    """
    for policy, role in sorted(state.config_or_default.trained_policies.items()):
        settled = {
            named[1]: evaluation
            for evaluation in state.evaluations.values()
            if (named := _settled(evaluation)) and named[0] == policy
        }
        if len(settled) < 2 or role.is_exploiter or (verdict := settled[max(settled)].verdict) is None:
            continue
        agent = settled[max(settled)].agent
        own = _rating_deviation(state, agent)
        surely = {
            name: rating
            for name, rating in verdict.below.items()
            if rating - verdict.rating > Z_95 * math.hypot(own, _rating_deviation(state, name))
        }
        if surely:
            others = ", ".join(f"{name} ({rating:.0f})" for name, rating in surely.items())
            yield Alarm(f"regression:{policy}", f"{agent} is rated {verdict.rating:.0f}, below {others}")


def _settled(evaluation: Evaluation) -> tuple[str, int] | None:
    """Policy and version of an evaluation with a verdict."""
    return None if evaluation.verdict is None else split_agent(evaluation.agent)


def _rating_deviation(state: LeagueState, agent: str) -> float:
    """Standard deviation of a rating: the system's own or, under Elo, the effect of chance in the results."""
    ratings = state.rating_table
    if not isinstance(ratings.system, Elo):
        return ratings.deviation(agent)
    named = split_agent(agent)
    # A version begins where the one before it ended, so chance adds up over all versions.
    policy = f"{named[0]}@" if named is not None else ""
    games = sum(n for name, n in ratings.games.items() if name == agent or (policy and name.startswith(policy)))
    return chance_deviation(ratings.system.k, games)


def dead_letter_fields(letter: DeadLetterEntry) -> dict[str, Any]:
    """A dead letter without its payload, with its number and the time (ISO 8601, UTC) at which it was recorded."""
    fields = {name: value for name, value in msgspec.to_builtins(letter.letter).items() if name != "payload"}
    return {"number": letter.number, "time": datetime.fromtimestamp(letter.time_ns // 10**9, UTC).isoformat(), **fields}


def with_alarms(status: LeagueStatus, state: LeagueState) -> LeagueStatus:
    """The status with its alarms."""
    return msgspec.structs.replace(status, alarms=detect_alarms(status, state))
