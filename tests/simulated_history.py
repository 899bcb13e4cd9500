"""Simulated leagues: histories of any length with results drawn from a seed.

Everything but the results is real: matchmaking, ratings, schedule, evaluations. For tests and benchmarks, and to try a
sampler or a schedule before spending a run on it.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import msgspec

from league.evaluation import promotion
from league.evaluation.plan import evaluation_jobs, finished_evaluations, plan_evaluations
from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.log.streams import ensure_streams
from league.matchmaking import pool
from league.matchmaking.matchmaker import make_match
from league.matchmaking.roles import reset_reason, select_parents
from league.matchmaking.schedule import (
    RESET,
    admission_reason,
    initial_agent_events,
    make_checkpoint_added,
    retirements,
)
from league.ratings.fold import RatingFold
from league.run import Run
from league.state import LeagueState
from schemas import events as e
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, ExperienceConfig, LeagueConfig, to_builtins
from schemas.ids import agent_name, derive_seed, digest, split_agent
from schemas.jobs import PlayMatch
from schemas.standings import Agent
from schemas.subjects import event_subject
from workers.match_runner.ngrams import NgramMemory

_START_NS = 1_700_000_000_000_000_000
_STEP_NS = 1_000_000

SkillFunction = Callable[[str], float]
ActionGenerator = Callable[[str, Random], Sequence[str]]
"""Actions of an agent in a match: the parts of its actions, in order."""


def growing_skill(agent: str) -> float:
    """Skill of a policy that gains 0.01 per version; bots and the base model have 0."""
    named = split_agent(agent)
    return 0.0 if named is None else named[1] * 0.01


def _worker_name(policy: str, hero: str) -> str:
    return "rollout-0" if policy == hero else f"rollout-{policy}-0"


class LeaderboardRow(msgspec.Struct, frozen=True):
    """A row of a state's leaderboard."""

    rank: int
    agent: str
    kind: str
    rating: float
    games: int
    active: bool
    reason: str


def leaderboard_rows(state: LeagueState) -> list[LeaderboardRow]:
    """A state's agents, and each policy's newest rated version, by official rating: what the SQL has to show."""
    agents, ratings = [*state.standings().agents.values()], state.rating_table
    for policy, version in ratings.newest_versions().items():
        if (name := agent_name(policy, version)) not in state.agents:
            rating, games = ratings.rating(name), ratings.games[name]
            newest = Agent(
                name, "version", rating, games, policy=policy, version=version, active=False, reason="newest"
            )
            agents.append(newest)
    agents.sort(key=lambda agent: (-agent.rating, agent.name))
    return [
        LeaderboardRow(rank, a.name, a.kind, a.rating, a.games, a.active, a.reason)
        for rank, a in enumerate(agents, start=1)
    ]


class Simulation:
    """A simulated history in progress.

    Args:
        config: The league's configuration.
        seats: Number of seats of the game.
        skill: Strength of an agent; a seat's score is its agent's skill plus a draw from [0, 1).
        lines: Generates agents' actions, whose n-grams are counted; None for none.
        registers: Whether workers register before their first match, as ``league verify`` expects.
    """

    def __init__(
        self,
        config: LeagueConfig,
        seats: int = 7,
        skill: SkillFunction = growing_skill,
        lines: ActionGenerator | None = None,
        registers: bool = False,
    ) -> None:
        self.config = config
        self.seats = seats
        self.history: list[RecordedEvent] = []
        """The history so far."""
        self.state = LeagueState()
        self._skill = skill
        self._generate_actions = lines
        self._registers, self._registered = registers, set[str]()
        self._fold = RatingFold(config)
        self._ngrams = NgramMemory()
        self._policy = config.trainer.policy

    def run(self, steps: int, matches_per_step: int) -> list[RecordedEvent]:
        """Open the league, train this many steps, finish; returns the whole history.

        Policies take turns, step by step. A policy that is reset continues from the untrained version after it.
        """
        self.open()
        versions = dict.fromkeys(self.config.trained_policies, 0)
        for _ in range(steps + 1):
            for policy, version in versions.items():
                self.publish(version, policy)
                live = version + self._reset(policy, version)
                matches = [
                    self.play_training_match(_worker_name(policy, self._policy), policy)
                    for _ in range(matches_per_step)
                ]
                self.evaluate()
                self.append(self._make_step(live + 1, matches, policy))
                versions[policy] = live + 1
        for policy, version in versions.items():
            self.append(e.TrainingFinished(policy=policy, version=version - 1, reason="steps"))
        self.evaluate()
        return self.history

    def append(self, event: e.Event) -> None:
        """Append an event, and the rating events that follow from it."""
        sequence = len(self.history) + 1
        subject = event_subject(self.config.name, event)
        time_ns = _START_NS + sequence * _STEP_NS
        self.history.append(RecordedEvent(sequence, time_ns, subject, "simulation", encode_event(event)))
        self.state.apply(sequence, event)
        for update in self._fold.apply(sequence, event):
            self.append(update)

    def open(self) -> None:
        """Open the league and register its first agents."""
        self.append(e.LeagueOpened(league=self.config.name, config=to_builtins(self.config), model="none"))
        for event in initial_agent_events(self.config):
            self.append(event)
        self.evaluate()

    def publish(self, version: int, policy: str | None = None) -> None:
        """Publish a version and let the schedule act."""
        policy = policy or self._policy
        adapter = self._publish(version, policy)
        if (reason := admission_reason(self.state, policy, version)) is not None:
            self.append(make_checkpoint_added(self.state, policy, version, adapter, reason))
        for retirement in retirements(self.state, policy):
            self.append(retirement)
        self._update_pool()

    def _publish(self, version: int, policy: str, parent: str = "") -> str:
        adapter = digest(f"{policy}@{version}".encode())
        self.append(e.PolicyPublished(policy=policy, version=version, adapter=adapter, parent=parent))
        return adapter

    def _reset(self, policy: str, version: int) -> bool:
        state = self.state
        reason = reset_reason(state.standings(), self.config, policy, version - state.training_start(policy))
        if reason is None:
            return False
        name = agent_name(policy, version)
        if name not in state.agents:
            self.append(make_checkpoint_added(state, policy, version, state.published[policy][version].adapter, RESET))
        begun = self._make_reset(policy, version, reason)
        self.append(begun)
        self._publish(version + 1, policy, begun.parents[0].agent if begun.parents else "")
        return True

    def _make_reset(self, policy: str, version: int, reason: str) -> e.PolicyReset:
        """The reset's event; every configured operator takes two parents, and its offspring is a digest alone."""
        operator, name = self.config.policies[policy].reset_operator, agent_name(policy, version + 1)
        chosen = select_parents(self.state.standings(), self.config, policy, 2, version) if operator else []
        return e.PolicyReset(
            policy=policy,
            version=version,
            reason=reason,
            operator=operator.name if operator and chosen else "",
            parents=[e.ParentAdapter(agent.name, agent.adapter or "") for agent in chosen],
            seed=version if chosen else 0,
            adapter=digest(name.encode()) if chosen else "",
        )

    def play_training_match(self, worker: str = "rollout-0", policy: str | None = None) -> str:
        """Make and play one training match; returns its id."""
        self._register(worker, "rollout")
        index = self.state.next_match_index(worker)
        match, sampled = make_match(self.state.standings(), self.config, worker, index, self.seats, policy)
        self.append(sampled)
        self.append(self.simulate_match(match, worker, sampled.hero_seat))
        return match.match_id

    def _register(self, worker: str, role: str) -> None:
        if self._registers and worker not in self._registered:
            self._registered.add(worker)
            self.append(e.WorkerJoined(worker=worker, role=role, incarnation="", host="", pid=0, version=""))

    def evaluate(self) -> None:
        """Play all matches of pending evaluations, and append the decisions that follow."""
        while requests := plan_evaluations(self.state, self.seats):
            for request in requests:
                self.append(request)
                for job in evaluation_jobs(self.state, request, self.seats):
                    self._play_unless_dropped(job)
                self._record_decisions()

    def _play_unless_dropped(self, job: PlayMatch) -> None:
        evaluation = self.state.evaluations[job.evaluation_id]
        if job.match_id in evaluation.waiting:
            self._register("evaluator-0", "evaluator")
            self.append(self.simulate_match(job, "evaluator-0"))
            for verdict in promotion.due_verdicts(self.state) if evaluation.test is not None else []:
                self.append(verdict)

    def _record_decisions(self) -> None:
        while events := [*finished_evaluations(self.state), *promotion.due_decisions(self.state)]:
            for event in events:
                self.append(event)
        self._update_pool()

    def _update_pool(self) -> None:
        for change in pool.pool_changes(self.state):
            self.append(change)

    def run_with_voids(self, steps: int, voids: float = 0.5) -> list[RecordedEvent]:
        """Like ``run`` with one match per step; after a step, results are voided with this probability.

        Some corrections cover several voids, and matches that were played between them.
        """
        rng = Random(self.config.seed)
        self.open()
        for version in range(steps + 1):
            self.publish(version)
            matches = [self.play_training_match()]
            while rng.random() < voids:
                self.void(rng.choice(self._finished_matches()), "a bad worker")
            if rng.random() < voids:
                self.correct_ratings()
            self.evaluate()
            self.append(self._make_step(version + 1, matches))
        self.correct_ratings()
        self.append(e.TrainingFinished(policy=self._policy, version=steps, reason="steps"))
        self.evaluate()
        return self.history

    def void(self, match: tuple[int, e.MatchFinished], reason: str) -> None:
        """Void a match's result."""
        self.append(e.MatchVoided(match=match[1], match_sequence=match[0], reason=reason))

    def correct_ratings(self) -> None:
        """Correct the ratings after voids, as the rater does."""
        for place, through in list(self._fold.due_corrections.items()):
            refold = self._fold.begin_refold(through)
            for recorded in self.history[:through]:
                refold.apply(recorded.sequence, recorded.event)
            self.append(self._fold.make_correction(place, through, refold))

    def _finished_matches(self) -> list[tuple[int, e.MatchFinished]]:
        return [(r.sequence, r.event) for r in self.history if isinstance(r.event, e.MatchFinished)]

    def simulate_match(self, match: PlayMatch, worker: str, hero_seat: int | None = None) -> e.MatchFinished:
        """Simulate a match's result from skills and its seed; with a hero, it is a training match."""
        rng = Random(match.seed)
        scores = [self._skill(agent) + rng.random() for agent in match.seats]
        ranks = [1 + sum(other > score for other in scores) for score in scores]
        return e.MatchFinished(
            match_id=match.match_id,
            game=self.config.game.name,
            purpose=match.purpose,
            worker=worker,
            seed=match.seed,
            seats=[
                e.SeatResult(
                    seat,
                    f"SEAT{seat}",
                    agent,
                    scores[seat],
                    ranks[seat],
                    trainable=seat == hero_seat,
                    metrics={} if hero_seat is None else self._count_ngrams(match, seat),
                )
                for seat, agent in enumerate(match.seats)
            ],
            winner=ranks.index(1) if ranks.count(1) == 1 else None,
            reason="simulated",
            length=1,
            seconds=0.0,
            evaluation_id=match.evaluation_id,
        )

    def _count_ngrams(self, match: PlayMatch, seat: int) -> dict[str, float]:
        if self._generate_actions is None:
            return {}
        agent = match.seats[seat]
        return self._ngrams.count(agent, self._generate_actions(agent, Random(derive_seed(match.seed, "line", seat))))

    def _make_step(self, step: int, matches: list[str], policy: str | None = None) -> e.GradientStepTaken:
        return e.GradientStepTaken(
            policy=policy or self._policy,
            step=step,
            batch=digest(msgspec.json.encode(matches)),
            matches=matches,
            experience_from=0,
            experience_to=0,
            accepted=len(matches),
            stale=0,
            refused=0,
            state="",
            metrics={"wall_s": 1.0},
        )


def make_run(folder: Path) -> Path:
    """A stopped run of a small simulated league, with fewer than 50 rated matches."""
    evaluation = EvaluationConfig(gatekeeper_games=2, benchmark_games=2)
    league = Simulation(LeagueConfig(name="league", seed=4, evaluation=evaluation), seats=2)
    league.run(3, 14)
    asyncio.run(_store(folder, league.history))
    return folder


async def _store(folder: Path, records: list[RecordedEvent]) -> None:
    run = Run(folder, name="league")
    async with run.connect("fill") as client:
        await ensure_streams(client.jetstream(), ExperienceConfig())
        await JetStreamLog(client, "league", "fill").copy(records)
