"""The fold from which workers make decisions: agents, ratings, policies, evaluations, workers.

``LeagueState`` is pure and total: equal events give an equal state bit for bit, and no event makes it fail. It ignores
duplicates, by sequence and by content (a match by its id, a step by its number), because the log delivers at least
once. Its size grows with agents and evaluations, and by about a bit per match. It has a small handler per event type:
split up, it would not show at a glance which event changes what.
"""

from collections.abc import Mapping
from math import inf
from typing import Any

import msgspec

from league.fold_primitives import ConfigFold, SeenIds, handlers_by_type
from league.ratings.base import RatingSystem, RatingTable, StartRatings, UnknownSystem, make_rating_system
from league.ratings.fold import RatingTableSnapshot, is_rated
from league.state.artifacts import ArenaArtifacts
from league.state.consumption import ExperienceConsumption, MatchesInPlay
from league.state.evaluation_table import Evaluation, EvaluationTable, EvaluationVerdict
from league.state.novelty import NgramCounts
from league.state.saved_state import (
    ActivityChange,
    LeagueStateSnapshot,
    Pauses,
    PublishedVersion,
    RemoteSpending,
    SessionTable,
    WorkerRegistry,
    WorkerState,
)
from league.state.standings_rows import PolicyRecords, RecentRewards, rated_agents
from schemas import events as e
from schemas.codec import canonical_json
from schemas.config import LeagueConfig, convert, to_builtins
from schemas.ids import agent_name, digest, split_agent
from schemas.standings import Agent, LivePolicy, Standings

_DEFAULT_CONFIG = LeagueConfig()
_NEVER = ActivityChange(0, resting=False)
_PUBLIC = ("sequence", "league", "model", "rules", "failed", "elite", "in_play", "sessions", "ngrams")
_PRIVATE = ("games", "next_index", "live", "steps", "seconds", "finished", "changed_at", "activity", "branched_at")
_KEPT = {field: field for field in _PUBLIC} | {field: f"_{field}" for field in _PRIVATE} | {"spent": "spending"}
"""Fields of a snapshot that hold an attribute of the state as it is."""


class LeagueState:
    """The league at one sequence of its history."""

    def __init__(self) -> None:
        self.sequence = 0
        self.league = ""
        self.model = ""
        """Source of the base model, for workers."""
        self.rules = 1
        """Version of the rules of the game."""
        self.config: LeagueConfig | None = None
        self.agents: dict[str, Agent] = {}
        """Members by name, in the order of joining; ``standings`` fills in ``rating`` and ``games``."""
        self.published: dict[str, dict[int, PublishedVersion]] = {}
        """``published[policy][version]``."""
        self.failed = 0
        """Matches that could not be completed."""
        self.elite: list[str] = []
        """Elite checkpoints, in the order of promotion."""
        self.spending: dict[str, RemoteSpending] = {}
        """Cost so far, by remote agent."""
        self.artifacts = ArenaArtifacts()
        """Artifacts that matches added to the stores of the league's arena."""
        self.pauses = Pauses()
        self.sessions = SessionTable()
        self.external_versions: dict[str, int] = {}
        """Newest version of each external agent."""
        self._config_fold = ConfigFold()
        self._activity: dict[str, ActivityChange] = {}
        self._starts = StartRatings()
        self._systems: dict[str, RatingSystem] = {}
        self._tables: dict[tuple[str, str], RatingTable] = {}
        self._rated_to: dict[tuple[str, str], int] = {}
        self._counted_to: dict[tuple[str, str], int] = {}
        self._records = PolicyRecords()
        self.evaluation_table = EvaluationTable()
        self._seen = SeenIds()
        self.voided: set[str] = set()
        self._games: dict[str, int] = {}
        self._next_index: dict[str, int] = {}
        self._live: dict[str, int] = {}
        self._steps: dict[str, e.GradientStepTaken] = {}
        self._seconds: dict[str, float] = {}
        self._finished: dict[str, e.TrainingFinished] = {}
        self.in_play = MatchesInPlay()
        """Training matches begun, and trajectories that wait for the trainer."""
        self.ngrams = NgramCounts()
        self._rewards = RecentRewards()
        self.consumption = ExperienceConsumption()
        """Trainers' positions in ``EXPERIENCE``, and the trajectories that are accounted for."""
        self._workers = WorkerRegistry()
        self._branched_at = 0
        self._changed_at = 0
        self._rated: dict[str, Agent] | None = None
        """Agents with ratings; None once an event changed any."""
        self._standings: Standings | None = None

    def apply(self, sequence: int, event: e.Event | None) -> None:
        """Fold one event; an old sequence is ignored, and of an unknown type (None) only the sequence counts."""
        if sequence <= self.sequence:
            return
        self.sequence = sequence
        handle = _HANDLERS.get(type(event))
        if handle is not None and handle(self, event):
            self._changed_at = sequence
            self._standings = None

    def standings(self) -> Standings:
        """The standings that samplers draw from, at the sequence of the last event that changed them.

        The same object until the next change; folding the history up to its sequence reproduces it.
        """
        if self._standings is None:
            self._standings = Standings(
                sequence=self._changed_at,
                agents=self._rated_agents(),
                live={policy: self._live_entry(policy) for policy in self._live},
                records=self._records.table(),
                novelty={agent: count.novelty for agent, count in self.ngrams.by_agent.items()},
                rewards=self._rewards.means(),
                slots=self._workers.slots,
            )
        return self._standings

    @property
    def config_or_default(self) -> LeagueConfig:
        """The configuration in force; the default one before the first."""
        return self.config or _DEFAULT_CONFIG

    @property
    def config_sequence(self) -> int:
        """Sequence of the event that set ``config``; 0 for none."""
        return self._config_fold.since

    @property
    def evaluations(self) -> dict[str, Evaluation]:
        """Evaluations by id, in the order of their requests."""
        return self.evaluation_table.by_id

    @property
    def workers(self) -> dict[str, WorkerState]:
        """Worker processes by name."""
        return self._workers.workers

    def has_joined(self, worker: str, incarnation: str) -> bool:
        """Whether the history records this start of a worker's process."""
        return self._workers.has_joined(worker, incarnation)

    @property
    def checkpoints(self) -> list[Agent]:
        """All checkpoints, retired ones included, in the order of joining, with current ratings."""
        return [agent for agent in self._rated_agents().values() if agent.kind == "checkpoint"]

    @property
    def rating_table(self) -> RatingTable:
        """Ratings of the configured game under the configured system."""
        config = self.config_or_default
        return self._table(config.game.name, config.ratings.system.name)

    def rating(self, agent: str) -> float:
        """Current recorded rating of an agent; see ``RatingTable.state`` for unrated ones."""
        return self.rating_table.rating(agent)

    def live_version(self, policy: str) -> LivePolicy | None:
        """A policy's newest published version; None before the first."""
        return self._live_entry(policy) if policy in self._live else None

    @property
    def policies(self) -> list[str]:
        """Policies with a published version, sorted."""
        return sorted(self._live)

    def is_model(self, agent: str) -> bool:
        """Whether an agent is the base model, or a published version of a policy."""
        policy, version = split_agent(agent) or ("", 0)
        is_base = self.config is not None and agent == self.config.base_agent
        return is_base or version in self.published.get(policy, {})

    def training_start(self, policy: str, version: int | None = None) -> int:
        """The first version, 0 or the one after a reset, of a policy's present training or of that of ``version``."""
        if version is not None:
            return self._starts.training_start(policy, version)
        return self.resets(policy)[-1] + 1 if self.resets(policy) else 0

    def resets(self, policy: str) -> list[int]:
        """The versions after which a policy was reset, ascending."""
        return self._starts.resets.get(policy, [])

    @property
    def has_resting_agents(self) -> bool:
        """Whether any agent rests, retired by the active pool."""
        return any(last.resting for last in self._activity.values())

    def activity(self, agent: str) -> ActivityChange:
        """The agent's last retirement or activation; sequence 0 for none."""
        return self._activity.get(agent, _NEVER)

    def remote_cost(self, agent: str) -> float:
        """Cost of a remote agent so far; 0 for any other agent."""
        return self.spending.get(agent, RemoteSpending()).cost

    def budget_left(self, agent: str) -> float:
        """Remaining budget of a remote agent, 0 or less when spent; infinity for agents without one."""
        config = self.config_or_default.agents.get(agent)
        budget = config.remote.budget if config is not None and config.remote is not None else None
        return inf if budget is None else budget - self.remote_cost(agent)

    def last_step(self, policy: str) -> e.GradientStepTaken | None:
        """A policy's newest gradient step."""
        return self._steps.get(policy)

    def training_seconds(self, policy: str) -> float:
        """Wall-clock seconds of a policy's gradient steps (``metrics["wall_s"]``), summed over restarts."""
        return self._seconds.get(policy, 0.0)

    def training_finished(self, policy: str) -> e.TrainingFinished | None:
        """The end of a policy's training; None while it continues, also when a newer version was published since."""
        finished = self._finished.get(policy)
        return finished if finished is not None and finished.version >= self._live.get(policy, -1) else None

    def finished_matches(self, purpose: str | None = None) -> int:
        """Number of completed matches, for one purpose or all."""
        return sum(self._games.values()) if purpose is None else self._games.get(purpose, 0)

    def next_match_index(self, worker: str) -> int:
        """The first n such that the worker has made no match ``<worker>-<n>`` or later."""
        return self._next_index.get(worker, 0)

    def has_match_ended(self, match_id: str) -> bool:
        """Whether a match has ended or failed."""
        return match_id in self._seen

    @property
    def has_unrated_matches(self) -> bool:
        """Whether a match that counts waits for its ratings."""
        return any(counted > self._rated_to.get(key, 0) for key, counted in self._counted_to.items())

    def digest(self) -> str:
        """SHA-256 of the whole state, for comparing two folds."""
        return digest(canonical_json(self.to_snapshot()))

    def to_snapshot(self) -> LeagueStateSnapshot:
        """The state as a snapshot; do not apply events while it is in use."""
        return LeagueStateSnapshot(
            **{field: getattr(self, name) for field, name in _KEPT.items()},
            config=None if self.config is None else to_builtins(self.config),
            config_sequence=self.config_sequence,
            agents=list(self.agents.values()),
            published={policy: list(versions.values()) for policy, versions in self.published.items()},
            workers=self.workers,
            starts=self._starts.ratings,
            base=self._starts.base,
            # Only tables with ratings: looking up a rating creates an empty table, which is not a difference.
            tables=[
                RatingTableSnapshot(*p, to, self._tables[p].rated_agents()) for p, to in sorted(self._rated_to.items())
            ],
            records=self._records.table(),
            evaluations=[evaluation.to_snapshot() for evaluation in self.evaluations.values()],
            seen=self._seen.to_snapshot(),
            voided=sorted(self.voided),
            resets=self._starts.resets,
            consumption=self.consumption.to_snapshot(),
            artifacts=self.artifacts.to_snapshot(),
            pauses=self.pauses.last,
            incarnations=self._workers.incarnations,
            counted=[(*key, to) for key, to in sorted(self._counted_to.items())],
            rewards=self._rewards.newest,
        )

    @classmethod
    def from_snapshot(cls, saved: LeagueStateSnapshot) -> "LeagueState":
        """Restore the state from a snapshot; ConfigError if this version cannot read its configuration."""
        state = cls()
        state._starts = StartRatings(saved.starts, saved.base, saved.resets)
        for field, name in _KEPT.items():
            setattr(state, name, getattr(saved, field))
        if saved.config is not None:
            state._configure(convert(saved.config, LeagueConfig, ""))
        state._config_fold = ConfigFold(opened=bool(saved.league), since=saved.config_sequence)
        state.agents = {agent.name: agent for agent in saved.agents}
        state.published = {policy: {p.version: p for p in versions} for policy, versions in saved.published.items()}
        state._workers = WorkerRegistry(saved.workers, saved.incarnations)
        for table in saved.tables:
            state._table(table.game, table.system).replace(table.ratings)
            state._rated_to[table.game, table.system] = table.rated_to
        state._records = PolicyRecords(saved.records, {policy: state.training_start(policy) for policy in saved.resets})
        state.evaluation_table = EvaluationTable.from_evaluations(saved.evaluations)
        state._seen = SeenIds.from_snapshot(saved.seen)
        state.voided = set(saved.voided)
        state.consumption = ExperienceConsumption.from_snapshot(saved.consumption)
        state.artifacts = ArenaArtifacts.from_snapshot(saved.artifacts)
        state.pauses = Pauses(saved.pauses)
        state._counted_to = {(game, system): to for game, system, to in saved.counted}
        state._rewards = RecentRewards(saved.rewards)
        for agent in saved.agents:
            state._count_external(agent)
        return state

    def _rated_agents(self) -> Mapping[str, Agent]:
        if self._rated is None:
            self._rated = rated_agents(self.agents, self.rating_table)
        return self._rated

    def _live_entry(self, policy: str) -> LivePolicy:
        version = self._live[policy]
        adapter, name = self.published[policy][version].adapter, agent_name(policy, version)
        return LivePolicy(policy, version, adapter, self.rating(name), self.rating_table.deviation(name))

    def _table(self, game: str, system: str) -> RatingTable:
        key = (game, system)
        if key not in self._tables:
            self._tables[key] = RatingTable(self._starts, self._systems.get(system, UnknownSystem(system)))
        return self._tables[key]

    # Handlers, by the types in their signatures; they return whether the standings changed.

    def _on_configuration(self, event: e.LeagueOpened | e.LeagueConfigured) -> bool:
        opened = self._config_fold.opened
        config = self._config_fold.apply(self.sequence, event)
        if isinstance(event, e.LeagueOpened) and self._config_fold.opened and not opened:
            self.league, self.model, self.rules = event.league, event.model, event.rules
        if config is None:
            return False
        # Only a league that was opened without a model gets one later.
        self.model = self.model or event.model
        self._configure(config)
        # Training that was over under the old limits may continue under the new ones.
        self._finished.clear()
        return True

    def _configure(self, config: LeagueConfig) -> None:
        self._systems = {plugin.name: make_rating_system(plugin) for plugin in config.ratings.systems}
        self.config = config
        self._rated = None
        for (_, system), table in self._tables.items():
            table.system = self._systems.get(system, table.system)

    def _on_pause_changed(self, event: e.LeaguePaused | e.LeagueResumed) -> None:
        self.pauses.apply(self.sequence, event)

    def _on_agent_joined(self, event: e.AgentRegistered | e.CheckpointAdded | e.ExternalVersionAdded) -> bool:
        if event.agent in self.agents:
            return False
        if isinstance(event, e.AgentRegistered):
            agent = Agent(event.agent, event.kind, event.rating, 0, baseline=event.baseline)
            self._starts.register(event)
        elif isinstance(event, e.CheckpointAdded):
            agent = Agent(event.agent, "checkpoint", 0.0, 0, policy=event.policy, version=event.version)
            agent = msgspec.structs.replace(agent, adapter=event.adapter, reason=event.reason)
            self._starts.register(event)
        else:
            # Never drawn as an opponent: nothing here can play it.
            agent = Agent(event.agent, "external", 0.0, 0, active=False, policy=event.policy, version=event.version)
        self.agents[event.agent] = agent
        self._count_external(agent)
        self._rated = None
        if agent.reason == "elite":
            self.elite.append(event.agent)
        return True

    def _count_external(self, agent: Agent) -> None:
        if agent.kind == "external":
            self.external_versions[agent.policy] = max(agent.version, self.external_versions.get(agent.policy, 0))

    def _on_checkpoint_promoted(self, event: e.CheckpointPromoted) -> bool:
        if event.agent in self.agents and event.agent not in self.elite:
            self.elite.append(event.agent)
        if event.agent not in self.agents or not self._seen.add(event.key):
            return False
        if (last := self._activity.get(event.agent)) is not None:
            self._activity[event.agent] = ActivityChange(last.sequence, resting=False)
        return self._update_agent(event.agent, reason="elite", active=True)

    def _on_activity_changed(self, event: e.AgentRetired | e.AgentActivated) -> bool:
        # An event decided from an earlier change than the last one is a duplicate or too late.
        if event.agent not in self.agents or event.after != self.activity(event.agent).sequence:
            return False
        self._activity[event.agent] = ActivityChange(self.sequence, isinstance(event, e.AgentRetired) and event.resting)
        return self._update_agent(event.agent, active=isinstance(event, e.AgentActivated))

    def _update_agent(self, agent: str, **fields: Any) -> bool:
        self.agents[agent] = msgspec.structs.replace(self.agents[agent], **fields)
        self._rated = None
        return True

    def _on_opponents_sampled(self, event: e.OpponentsSampled) -> None:
        prefix, _, index = event.match_id.rpartition("-")
        if prefix == event.worker and index.isascii() and index.isdigit() and len(index) < 19:
            # Draws that a worker appends at the same time are recorded in any order.
            if event.match_id in self._seen or event.match_id in self.in_play.unfinished:
                return
            self._next_index[prefix] = max(int(index) + 1, self._next_index.get(prefix, 0))
            self.in_play.begin_match(event)
            worker = self.workers.get(event.worker)
            if worker is not None and worker.left is not None:
                # The draw was under way when its worker left: no process plays the match.
                self.in_play.forget_worker(event.worker, self._seen)

    def _on_session_opened(self, event: e.SessionOpened) -> None:
        if event.match_id not in self._seen:
            self.sessions.begin(event)

    def _on_match_finished(self, event: e.MatchFinished) -> bool:
        if not self._seen.add(event.match_id):
            return False
        self.sessions.end(self.sequence, event)
        self._games[event.purpose] = self._games.get(event.purpose, 0) + 1
        self.in_play.end_match(event.worker, event.match_id, event)
        ratings = self.config.ratings if self.config is not None else None
        system = ratings.system.name if ratings is not None and is_rated(event, ratings) else None
        if system is not None:
            self._counted_to[event.game, system] = self.sequence
        self.evaluation_table.finish_match(event, system)
        changed = [fold.count(event) for fold in (self._records, self.ngrams)]
        if self.config is not None and event.purpose == "training" and self.config.chooses_by_reward:
            policies = self.config.trained_policies
            starts = {policy: self.training_start(policy) for policy in policies}
            changed.append(self._rewards.count(event, starts, policies))
        return any(changed)

    def _on_match_failed(self, event: e.MatchFailed) -> None:
        if self._seen.add(event.match_id):
            self.failed += 1
            self.sessions.end(self.sequence, event)
            self.in_play.end_match(event.worker, event.match_id, None)
            self.evaluation_table.fail_match(event.match_id)

    def _on_artifact_stored(self, event: e.ArtifactStored) -> None:
        self.artifacts.add(event)

    def _on_remote_asked(self, event: e.RemoteAsked) -> None:
        if self._seen.add(event.key):
            self.spending[event.agent] = self.spending.get(event.agent, RemoteSpending()).add_request(event)

    def _on_match_voided(self, event: e.MatchVoided) -> bool:
        match = event.match
        if match.match_id not in self._seen or match.match_id in self.voided:
            return False
        self.voided.add(match.match_id)
        self._games[match.purpose] = self._games.get(match.purpose, 0) - 1
        self._settle_verdict(self.evaluation_table.void_match(match))
        changed = [self._records.count(match, -1), self._rewards.void(match)]
        return any(changed)

    def _on_ratings_corrected(self, event: e.RatingsCorrected) -> bool:
        key = (event.game, event.system)
        if event.through <= self._rated_to.get(key, 0):
            return False
        self._rated_to[key] = event.through
        self._table(*key).replace(event.ratings)
        self._rated = None
        for match_id in event.waited:
            self._settle_verdict(self.evaluation_table.rate_match(match_id, event.system))
        return self._tables[key] is self.rating_table

    def _on_league_branched(self, event: e.LeagueBranched) -> bool:
        if event.at <= self._branched_at:
            # A late duplicate.
            return False
        self._branched_at = event.at
        # The origin's workers do not belong to this run: their matches in play will not end here.
        self.in_play = MatchesInPlay()
        self.consumption.abandon()
        slots = self._workers.slots
        self._workers.disconnect_all(event.origin)
        return self._workers.slots != slots

    def _on_rating_updated(self, event: e.RatingUpdated) -> bool:
        key = (event.game, event.system)
        # Ratings are recorded in the order of the matches, so an older match is a duplicate.
        if event.match_sequence <= self._rated_to.get(key, 0):
            return False
        self._rated_to[key] = event.match_sequence
        self._table(*key).update(event.changes)
        self._rated = None
        self._settle_verdict(self.evaluation_table.rate_match(event.match_id, event.system))
        # Only the official system's ratings are in the standings.
        return self._tables[key] is self.rating_table

    def _on_policy_published(self, event: e.PolicyPublished) -> bool:
        versions = self.published.setdefault(event.policy, {})
        if event.version in versions:
            return False
        versions[event.version] = PublishedVersion(event.version, event.adapter, event.parent)
        self._live[event.policy] = max(versions)
        return True

    def _on_policy_reset(self, event: e.PolicyReset) -> bool:
        if not self._starts.record_reset(event):
            return False
        self._rated = None
        self._records.reset_policy(event.policy, event.version + 1)
        self._rewards.reset_policy(event.policy)
        return True

    def _on_gradient_step(self, event: e.GradientStepTaken) -> None:
        last = self._steps.get(event.policy)
        if last is None or event.step > last.step:
            self._steps[event.policy] = event
            self.in_play.apply_step(event)
            self.consumption.apply_step(event)
            seconds = event.metrics.get("wall_s", 0.0)
            if 0.0 <= seconds < float("inf"):
                self._seconds[event.policy] = self._seconds.get(event.policy, 0.0) + seconds

    def _on_training_finished(self, event: e.TrainingFinished) -> None:
        if 0 < event.configured < self.config_sequence:
            # A condition that no longer holds: a late duplicate, or one met while the configuration changed.
            return
        last = self._finished.get(event.policy)
        if last is None or event.version > last.version:
            self._finished[event.policy] = event

    def _on_evaluation_requested(self, event: e.EvaluationRequested) -> None:
        self.evaluation_table.add_request(event, self.config_or_default.promotion.test)

    def _on_evaluation_finished(self, event: e.EvaluationFinished) -> None:
        self._settle_verdict(self.evaluation_table.record_result(event))

    def _on_promotion_decided(self, event: e.PromotionDecided) -> None:
        self.evaluation_table.record_decision(event)

    def _settle_verdict(self, evaluation: Evaluation | None) -> None:
        """Record the ratings at which an evaluation settled: later ratings cannot change decisions made from it."""
        if evaluation is None or evaluation.finished is None or evaluation.unrated or evaluation.verdict is not None:
            return
        # Only rated ones: a newer, never rated checkpoint has this very agent's rating.
        others = [agent.rating for agent in self.checkpoints if agent.games and agent.name != evaluation.agent]
        evaluation.verdict = EvaluationVerdict(
            rating=self.rating(evaluation.agent),
            best_other=max(others, default=None),
            baselines={name: self.rating(name) for name, agent in self.agents.items() if agent.baseline},
            rated=evaluation.agent in self.rating_table.states,
        )
        self.evaluation_table.index(evaluation)

    def _on_worker_changed(
        self, event: e.WorkerJoined | e.WorkerLeft | e.InferenceServing | e.AdapterSlotsReduced
    ) -> bool:
        slots = self._workers.slots
        if self._workers.apply(event):
            self.in_play.forget_worker(event.worker, self._seen)
        return self._workers.slots != slots


_HANDLERS = handlers_by_type(LeagueState)
