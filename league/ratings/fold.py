"""The fold of match results into ratings, used by the rater and by replays."""

import math
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from league.fold_primitives import ConfigFold, SeenIds, SeenIdsSnapshot
from league.ratings.base import RatingSystem, RatingTable, StartRatings, UnknownSystem, make_rating_system, rate_match
from schemas import events as e
from schemas.config import LeagueConfig, RatingsConfig


def is_rated(match: e.MatchFinished, config: RatingsConfig) -> bool:
    """Whether a match moves ratings.

    It does when its purpose counts, at least two different agents played, no seat is listed twice, and every score is
    finite. A single other score excludes the whole match, since its pairs cannot be ordered; so does a seat with two
    results, neither of which is known to be right.
    """
    return (
        match.purpose in config.purposes
        and len({seat.agent for seat in match.seats}) > 1
        and len({seat.seat for seat in match.seats}) == len(match.seats)
        and all(math.isfinite(seat.score) for seat in match.seats)
    )


class PendingCorrection(msgspec.Struct, frozen=True):
    """A correction that must be recorded before any further match is rated."""

    first: int
    """Sequence of the oldest voided match that counted and is not corrected yet."""
    through: int
    """Sequence of the newest ``MatchVoided``."""


class RatingTableSnapshot(msgspec.Struct, frozen=True):
    """Ratings of one game under one system, in a snapshot."""

    game: str
    system: str
    rated_to: int
    ratings: list[e.AgentRating]


class RatingsSnapshot(msgspec.Struct, frozen=True):
    """The fold in a snapshot."""

    sequence: int
    recorded: int
    rules: list[tuple[int, RatingsConfig]]
    seen: SeenIdsSnapshot
    starts: dict[str, float]
    base: str | None
    tables: list[RatingTableSnapshot]
    voided: list[str]
    due: list[tuple[str, str, PendingCorrection]]
    deferred: list[tuple[int, str, e.MatchFinished]]
    unrecorded: list[e.RatingUpdated]
    resets: dict[str, list[int]] = {}
    opened: bool = False


class _RatingRules(NamedTuple):
    """Rating rules in force from a sequence on."""

    since: int
    ratings: RatingsConfig
    systems: dict[str, RatingSystem]
    """Systems by name; the official one first."""

    @property
    def official(self) -> str:
        return self.ratings.system.name


def _make_rules(since: int, ratings: RatingsConfig) -> _RatingRules:
    return _RatingRules(since, ratings, {plugin.name: make_rating_system(plugin) for plugin in ratings.systems})


class RatingFold:
    """Ratings of every game, folded in the order of the history.

    The first outcome of a match id holds: duplicates and second outcomes are ignored. A match is rated by the rules in
    force at its place in the history. When a counted match is voided, no further match of its game is rated until the
    correction is in the history; then the matches after the void follow.

    ``config`` is in force until the history changes it; a replay under other rules does not ``follow`` the changes.
    Where matches of ``skip`` are left out, as if never played, voids and corrections in the history are ignored.
    """

    def __init__(
        self, config: LeagueConfig | None = None, *, follow: bool = True, skip: Collection[str] | None = None
    ) -> None:
        self.sequence = 0
        self.pending_corrections: dict[tuple[str, str], PendingCorrection] = {}
        """Corrections to be recorded, by game and system."""
        self.voided: dict[str, None] = {}
        """Voided matches, in the order of voiding."""
        self.unrecorded: dict[str, e.RatingUpdated] = {}
        """Updates by key that the history does not hold yet; not kept when matches are left out."""
        self.recorded_sequence = 0
        """Sequence of the newest ``RatingUpdated`` or ``RatingsCorrected``: the condition for recording another."""
        self.skipped_counts: dict[tuple[str, str], int] = {}
        """Number of matches of ``skip`` that would have counted, by game and system."""
        self._follow = follow
        self._skip = skip
        self._config = ConfigFold()
        self._seen = SeenIds()
        self._starts = StartRatings()
        self._tables: dict[tuple[str, str], RatingTable] = {}
        self._rated_to: dict[tuple[str, str], int] = {}
        self._deferred: list[tuple[int, str, e.MatchFinished]] = []
        self._rules: list[_RatingRules] = []
        self._configure(config or LeagueConfig())

    def has_match_ended(self, match_id: str) -> bool:
        """Whether a match has ended or failed; further results of it are ignored."""
        return match_id in self._seen

    def rating(self, game: str, agent: str) -> float:
        """An agent's rating in a game under the official system."""
        return self._table(game, self._rules[-1].official).rating(agent)

    def rated_agents(self, game: str, system: str | None = None) -> list[e.AgentRating]:
        """All agents ever rated in a game, under the official system by default."""
        return self._table(game, system or self._rules[-1].official).rated_agents()

    def apply(self, sequence: int, event: e.Event | None) -> list[e.RatingUpdated]:
        """Fold one event; returns its rating updates.

        A counted match gives one update per system, a correction those of the matches that waited for it. Sequences at
        or below the last one, unknown events (None) and other types of event do nothing.
        """
        if sequence <= self.sequence:
            return []
        self.sequence = sequence
        updates = self._apply(sequence, event)
        if self._skip is None:
            self.unrecorded.update({update.key: update for update in updates})
        return updates

    def _apply(self, sequence: int, event: e.Event | None) -> list[e.RatingUpdated]:
        if isinstance(event, e.MatchFinished):
            return self._apply_match(sequence, event) if self._seen.add(event.match_id) else []
        if isinstance(event, e.MatchFailed):
            self._seen.add(event.match_id)
        elif isinstance(event, e.AgentRegistered | e.CheckpointAdded):
            if self._seen.add(f"joined:{event.agent}"):
                self._starts.register(event)
        elif isinstance(event, e.PolicyReset):
            self._starts.record_reset(event)
        elif isinstance(event, e.LeagueOpened | e.LeagueConfigured) and self._follow:
            config = self._config.apply(sequence, event)
            if config is not None:
                self._configure(config)
        elif self._skip is not None:
            return []
        elif isinstance(event, e.RatingUpdated):
            self.recorded_sequence = sequence
            self.unrecorded.pop(event.key, None)
        elif isinstance(event, e.MatchVoided):
            self._apply_void(sequence, event)
        elif isinstance(event, e.RatingsCorrected):
            self.recorded_sequence = sequence
            return self._apply_correction(event)
        return []

    def _apply_match(self, sequence: int, match: e.MatchFinished) -> list[e.RatingUpdated]:
        rules = self._rules[-1]
        updates = []
        for name in rules.systems if is_rated(match, rules.ratings) else ():
            place = (match.game, name)
            if self._skip is not None and match.match_id in self._skip:
                self.skipped_counts[place] = self.skipped_counts.get(place, 0) + 1
            elif place in self.pending_corrections:
                self._deferred.append((sequence, name, match))
            else:
                updates.append(self._rate(sequence, match, rules, name))
        return updates

    def _rate(self, sequence: int, match: e.MatchFinished, rules: _RatingRules, system: str) -> e.RatingUpdated:
        table = self._table(match.game, system)
        states = {seat.agent: table.state(seat.agent) for seat in match.seats}
        changes = rate_match(rules.systems[system], match, states, table.games)
        self._rated_to[match.game, system] = sequence
        table.update(changes)
        return e.RatingUpdated(
            match_id=match.match_id, match_sequence=sequence, game=match.game, system=system, changes=changes
        )

    def _apply_void(self, sequence: int, event: e.MatchVoided) -> None:
        name = event.match.match_id
        if name in self.voided or name not in self._seen:
            return
        self.voided[name] = None
        rules = self._rules_at(event.match_sequence)
        if is_rated(event.match, rules.ratings):
            for name in rules.systems:
                place = (event.match.game, name)
                before = self.pending_corrections.get(place)
                first = event.match_sequence if before is None else min(before.first, event.match_sequence)
                self.pending_corrections[place] = PendingCorrection(first, sequence)

    def _apply_correction(self, event: e.RatingsCorrected) -> list[e.RatingUpdated]:
        place = (event.game, event.system)
        if event.through <= self._rated_to.get(place, 0):
            return []
        self._table(*place).replace(event.ratings)
        self._rated_to[place] = event.through
        due = self.pending_corrections.get(place)
        if due is not None and due.through > event.through:
            # More matches were voided meanwhile: another correction must follow.
            return []
        self.pending_corrections.pop(place, None)
        mine = [(seq, match) for seq, system, match in self._deferred if (match.game, system) == place]
        self._deferred = [waiting for waiting in self._deferred if (waiting[2].game, waiting[1]) != place]
        return [self._rate(seq, match, self._rules_at(seq), event.system) for seq, match in mine if seq > event.through]

    def to_snapshot(self) -> RatingsSnapshot:
        """Returns the fold for a snapshot."""
        return RatingsSnapshot(
            sequence=self.sequence,
            recorded=self.recorded_sequence,
            rules=[(rules.since, rules.ratings) for rules in self._rules],
            seen=self._seen.to_snapshot(),
            starts=dict(self._starts.ratings),
            base=self._starts.base,
            tables=[
                RatingTableSnapshot(*p, to, self._tables[p].rated_agents()) for p, to in sorted(self._rated_to.items())
            ],
            voided=list(self.voided),
            due=[(*place, due) for place, due in sorted(self.pending_corrections.items())],
            deferred=list(self._deferred),
            unrecorded=list(self.unrecorded.values()),
            resets={policy: list(versions) for policy, versions in self._starts.resets.items()},
            opened=self._config.opened,
        )

    @classmethod
    def from_snapshot(cls, saved: RatingsSnapshot) -> "RatingFold":
        """Restores a fold that follows the history; ConfigError if this version cannot read its configuration."""
        fold = cls()
        fold.sequence = saved.sequence
        fold.recorded_sequence = saved.recorded
        fold._rules = [_make_rules(since, ratings) for since, ratings in saved.rules]
        fold._config = ConfigFold(opened=saved.opened, since=fold._rules[-1].since)
        fold._seen = SeenIds.from_snapshot(saved.seen)
        fold._starts = StartRatings(saved.starts, saved.base, saved.resets)
        for table in saved.tables:
            fold._table(table.game, table.system).replace(table.ratings)
            fold._rated_to[table.game, table.system] = table.rated_to
        fold.voided = dict.fromkeys(saved.voided)
        fold.pending_corrections = {(game, system): due for game, system, due in saved.due}
        fold._deferred = list(saved.deferred)
        fold.unrecorded = {update.key: update for update in saved.unrecorded}
        return fold

    def _table(self, game: str, system: str) -> RatingTable:
        place = (game, system)
        if place not in self._tables:
            known = (rules.systems[system] for rules in reversed(self._rules) if system in rules.systems)
            self._tables[place] = RatingTable(self._starts, next(known, UnknownSystem(system)))
        return self._tables[place]

    def _configure(self, config: LeagueConfig) -> None:
        self._rules.append(_make_rules(self.sequence, config.ratings))
        for (_, system), table in self._tables.items():
            table.system = self._rules[-1].systems.get(system, table.system)

    def _rules_at(self, sequence: int) -> _RatingRules:
        return next((rules for rules in reversed(self._rules) if rules.since < sequence), self._rules[0])
