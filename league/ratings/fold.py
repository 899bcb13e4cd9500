"""The fold of match results into ratings."""

from collections.abc import Callable, Collection
from math import isfinite
from typing import NamedTuple

import msgspec

from league.fold_primitives import ConfigFold, SeenIds, SeenIdsSnapshot
from league.ratings.base import RatingSystem, RatingTable, Side, StartRatings, UnknownSystem, make_rating_system
from schemas import events as e
from schemas.config import LeagueConfig, RatingsConfig
from schemas.events import RatingChange


def is_rated(match: e.MatchFinished, config: RatingsConfig) -> bool:
    """Whether a match moves ratings.

    It does when its purpose counts, at least two different agents played on at least two sides, no seat is listed
    twice, and every score is finite and its team's. A single other score excludes the whole match, since its pairs
    cannot be ordered; so does a seat with two results, neither of which is known to be right.
    """
    sides = _members(match)
    return (
        match.purpose in config.purposes
        and len({seat.agent for seat in match.seats}) > 1
        and len(sides) > 1
        and all(seat.score == members[0].score for members in sides for seat in members)
        and len({seat.seat for seat in match.seats}) == len(match.seats)
        and all(isfinite(seat.score) for seat in match.seats)
    )


def _members(match: e.MatchFinished) -> list[list[e.SeatResult]]:
    """The seats of each side of a match, in the order of their first seats."""
    sides: dict[str | int, list[e.SeatResult]] = {}
    for place, seat in enumerate(match.seats):
        sides.setdefault(seat.team or place, []).append(seat)
    return list(sides.values())


TableKey = tuple[str, str]
"""The game and the rating system of a table of ratings."""


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
    voided: dict[str, int]
    due: list[tuple[str, str, int]]
    waiting: list[tuple[int, str, e.MatchFinished]]
    unrecorded: list[e.RatingUpdated]
    resets: dict[str, list[int]] = {}
    opened: bool = False


class _RatingRules(NamedTuple):
    """Rating rules in force from a sequence on."""

    since: int
    ratings: RatingsConfig
    systems: dict[str, RatingSystem]
    """Systems by name; the official one first."""


def _make_rules(since: int, ratings: RatingsConfig) -> _RatingRules:
    return _RatingRules(since, ratings, {plugin.name: make_rating_system(plugin) for plugin in ratings.systems})


class RatingFold:
    """Ratings of every game, folded in the order of the history: for the rater, for replays and for what-ifs.

    The first outcome of a match id holds: duplicates and second outcomes are ignored. A match is rated by the rules in
    force at its place in the history. When a counted match is voided, no further match of its game is rated until the
    correction is in the history; then the matches after the void follow.

    ``config`` is in force until the history changes it; ``amend`` changes the rules of each configuration. A fold
    ``without`` some matches rates the others as if these had never been played, and ignores voids and corrections.
    """

    def __init__(
        self,
        config: LeagueConfig | None = None,
        *,
        without: Collection[str] | None = None,
        amend: Callable[[RatingsConfig], RatingsConfig] = lambda ratings: ratings,
    ) -> None:
        self.sequence = 0
        self.due_corrections: dict[TableKey, int] = {}
        """Sequence of the newest ``MatchVoided`` that a correction has to take into account."""
        self.voided: dict[str, int] = {}
        """Sequence of the ``MatchVoided`` of each voided match."""
        self.unrecorded: dict[str, e.RatingUpdated] = {}
        """Updates by key that the history does not hold yet; not kept in a fold without some matches."""
        self.recorded_sequence = 0
        """Sequence of the newest ``RatingUpdated`` or ``RatingsCorrected``: the condition for recording another."""
        self._without = without
        self._amend = amend
        self._config = ConfigFold()
        self._seen = SeenIds()
        self._starts = StartRatings()
        self._tables: dict[TableKey, RatingTable] = {}
        self._rated_to: dict[TableKey, int] = {}
        self._waiting: list[tuple[int, str, e.MatchFinished]] = []
        """Sequence, system and match of every rating that waits for a correction."""
        self._rules: list[_RatingRules] = []
        self._configure(config or LeagueConfig())

    def has_match_ended(self, match_id: str) -> bool:
        """Whether a match has ended or failed; further results of it are ignored."""
        return match_id in self._seen

    @property
    def official_system(self) -> str:
        """Name of the official system by the newest configuration."""
        return self._rules[-1].ratings.system.name

    def rated_agents(self, game: str, system: str | None = None) -> list[e.AgentRating]:
        """All agents ever rated in a game, under the official system by default."""
        return self._table((game, system or self.official_system)).rated_agents()

    def apply(self, sequence: int, event: e.Event | None) -> list[e.RatingUpdated]:
        """Fold one event, and list its rating updates.

        A counted match gives one update per system, a correction those of the matches that waited for it. Sequences at
        or below the last one, unknown events (None) and other types of event do nothing.
        """
        if sequence <= self.sequence:
            return []
        self.sequence = sequence
        updates = self._apply(sequence, event)
        if self._without is None:
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
        elif isinstance(event, e.LeagueOpened | e.LeagueConfigured):
            config = self._config.apply(sequence, event)
            if config is not None:
                self._configure(config)
        elif self._without is not None:
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
        if (self._without is not None and match.match_id in self._without) or not is_rated(match, rules.ratings):
            return []
        updates = []
        for system in rules.systems:
            if (match.game, system) in self.due_corrections:
                self._waiting.append((sequence, system, match))
            else:
                updates.append(self._rate(sequence, match, rules, system))
        return updates

    def _rate(self, sequence: int, match: e.MatchFinished, rules: _RatingRules, system: str) -> e.RatingUpdated:
        table = self._table((match.game, system))
        sides = [Side(tuple(seat.agent for seat in own), own[0].score) for own in _members(match)]
        before = {seat.agent: table.state(seat.agent) for seat in match.seats}
        after = rules.systems[system].update(before, sides)
        changes = [RatingChange(agent, before[agent][0], state[0], [*state[1:]]) for agent, state in after.items()]
        self._rated_to[match.game, system] = sequence
        table.update(changes)
        return e.RatingUpdated(
            match_id=match.match_id, match_sequence=sequence, game=match.game, system=system, changes=changes
        )

    def _apply_void(self, sequence: int, event: e.MatchVoided) -> None:
        match = event.match
        if match.match_id in self.voided or match.match_id not in self._seen:
            return
        self.voided[match.match_id] = sequence
        rules = self._rules_at(event.match_sequence)
        if is_rated(match, rules.ratings):
            self.due_corrections.update({(match.game, system): sequence for system in rules.systems})

    def begin_refold(self, through: int) -> "RatingFold":
        """Make an empty fold without the matches that were voided up to a sequence."""
        return RatingFold(without={match_id for match_id, sequence in self.voided.items() if sequence <= through})

    def make_correction(self, key: TableKey, through: int, refold: "RatingFold") -> e.RatingsCorrected:
        """Make the correction of a game's ratings under a system after the void at ``through``.

        ``refold`` is what ``begin_refold`` made, with the history up to there.
        """
        waited = [match.match_id for sequence, match in self._waiting_for(key) if sequence <= through]
        return e.RatingsCorrected(
            game=key[0],
            system=key[1],
            through=through,
            waited=[match_id for match_id in waited if self.voided.get(match_id, through + 1) > through],
            ratings=refold.rated_agents(*key),
        )

    def _apply_correction(self, event: e.RatingsCorrected) -> list[e.RatingUpdated]:
        key = (event.game, event.system)
        if event.through <= self._rated_to.get(key, 0):
            return []
        self._table(key).replace(event.ratings)
        self._rated_to[key] = event.through
        if self.due_corrections.get(key, 0) > event.through:
            # More matches were voided meanwhile: another correction must follow.
            return []
        self.due_corrections.pop(key, None)
        waiting = self._waiting_for(key)
        self._waiting = [entry for entry in self._waiting if (entry[2].game, entry[1]) != key]
        return [
            self._rate(sequence, match, self._rules_at(sequence), event.system)
            for sequence, match in waiting
            if sequence > event.through
        ]

    def _waiting_for(self, key: TableKey) -> list[tuple[int, e.MatchFinished]]:
        return [(sequence, match) for sequence, system, match in self._waiting if (match.game, system) == key]

    def to_snapshot(self) -> RatingsSnapshot:
        """The fold for a snapshot."""
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
            voided=dict(self.voided),
            due=[(*key, due) for key, due in sorted(self.due_corrections.items())],
            waiting=list(self._waiting),
            unrecorded=list(self.unrecorded.values()),
            resets={policy: list(versions) for policy, versions in self._starts.resets.items()},
            opened=self._config.opened,
        )

    @classmethod
    def from_snapshot(cls, saved: RatingsSnapshot) -> "RatingFold":
        """Restore a fold; ConfigError if this version cannot read its configuration."""
        fold = cls()
        fold.sequence = saved.sequence
        fold.recorded_sequence = saved.recorded
        fold._rules = [_make_rules(since, ratings) for since, ratings in saved.rules]
        fold._config = ConfigFold(opened=saved.opened, since=fold._rules[-1].since)
        fold._seen = SeenIds.from_snapshot(saved.seen)
        fold._starts = StartRatings(saved.starts, saved.base, saved.resets)
        for table in saved.tables:
            fold._table((table.game, table.system)).replace(table.ratings)
            fold._rated_to[table.game, table.system] = table.rated_to
        fold.voided = dict(saved.voided)
        fold.due_corrections = {(game, system): due for game, system, due in saved.due}
        fold._waiting = list(saved.waiting)
        fold.unrecorded = {update.key: update for update in saved.unrecorded}
        return fold

    def _table(self, key: TableKey) -> RatingTable:
        if key not in self._tables:
            system = key[1]
            systems = (rules.systems[system] for rules in reversed(self._rules) if system in rules.systems)
            self._tables[key] = RatingTable(self._starts, next(systems, UnknownSystem(system)))
        return self._tables[key]

    def _configure(self, config: LeagueConfig) -> None:
        self._rules.append(_make_rules(self.sequence, self._amend(config.ratings)))
        for (_, system), table in self._tables.items():
            table.system = self._rules[-1].systems.get(system, table.system)

    def _rules_at(self, sequence: int) -> _RatingRules:
        return next((rules for rules in reversed(self._rules) if rules.since < sequence), self._rules[0])
