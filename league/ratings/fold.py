"""The fold of match results into ratings: what the rater records and what a replay recomputes."""

import math
from collections.abc import Collection
from typing import Any

import msgspec

from league.ratings.base import RatingSystem, make_rating_system
from league.ratings.table import RatingTable, Starts
from league.seen import SavedSeen, Seen
from schemas.config import LeagueConfig, RatingsConfig, convert, plain
from schemas.errors import ConfigError
from schemas.events import (
    AgentRegistered,
    CheckpointAdded,
    Event,
    LeagueConfigured,
    LeagueOpened,
    MatchFailed,
    MatchFinished,
    MatchVoided,
    Rated,
    RatingsCorrected,
    RatingUpdated,
)


def is_rated(match: MatchFinished, config: RatingsConfig) -> bool:
    """Whether a match moves ratings.

    It does when its purpose counts, at least two different agents played, and every score is a finite number. One
    score that is not spoils the whole match, since its pairs could be compared in no order.
    """
    return (
        match.purpose in config.purposes
        and len({seat.agent for seat in match.seats}) > 1
        and all(math.isfinite(seat.score) for seat in match.seats)
    )


class Due(msgspec.Struct, frozen=True):
    """A correction that has to come before anything more is rated."""

    first: int
    """Sequence of the oldest voided match that had counted and is not corrected yet."""
    through: int
    """Sequence of the newest ``MatchVoided``."""


class SavedTable(msgspec.Struct, frozen=True):
    """Ratings of one game under one system, for a snapshot."""

    game: str
    system: str
    rated_to: int
    ratings: list[Rated]


class SavedRatings(msgspec.Struct, frozen=True):
    """A fold for a snapshot."""

    sequence: int
    config: dict[str, Any]
    seen: SavedSeen
    starts: dict[str, float]
    base: str | None
    tables: list[SavedTable]
    voided: list[str]
    due: list[tuple[str, str, Due]]
    deferred: list[tuple[int, MatchFinished]]


class RatingFold:
    """Ratings of every game, folded in the order of the history.

    The first outcome of a match id holds: a copy, or a second outcome of the same match, changes nothing. When a match
    that counted is voided, nothing more is rated in its game until the correction is in the history; then the matches
    that came in between follow.

    Args:
        config: What counts until the history says otherwise.
        follow: Take over changes of the configuration found in the history; a replay under other rules does not.
        skip: Matches to leave out, as if they had never been played; voids and corrections in the history are then
            passed over. None follows the history.

    Raises:
        ConfigError: the rating system's name or settings.
    """

    def __init__(
        self, config: LeagueConfig | None = None, *, follow: bool = True, skip: Collection[str] | None = None
    ) -> None:
        self.sequence = 0
        self.due: dict[tuple[str, str], Due] = {}
        """Corrections that have to be recorded, by game and system."""
        self.voided: dict[str, None] = {}
        """Voided matches, in the order of voiding."""
        self._follow = follow
        self._skip = skip
        self._seen = Seen()
        self._starts = Starts()
        self._tables: dict[tuple[str, str], RatingTable] = {}
        self._rated_to: dict[tuple[str, str], int] = {}
        self._deferred: list[tuple[int, MatchFinished]] = []
        self._configure(config or LeagueConfig())

    def rating(self, game: str, agent: str) -> float:
        """An agent's rating in a game under the present system."""
        return self._table(game, self._system.name).rating(agent)

    def standings(self, game: str, system: str | None = None) -> list[Rated]:
        """Everybody who was ever rated in a game, under the present system by default."""
        return self._table(game, system or self._system.name).standings()

    def apply(self, sequence: int, event: Event | None) -> list[RatingUpdated]:
        """Fold one event; what it does to ratings: for a match that counts one update, after a correction several.

        Sequences at or below the last one, unknown events (None) and other types of event do nothing.
        """
        if sequence <= self.sequence:
            return []
        self.sequence = sequence
        if isinstance(event, MatchFinished):
            return self._meet(sequence, event) if self._seen.add(event.match_id) else []
        if isinstance(event, MatchFailed):
            self._seen.add(event.match_id)
        elif isinstance(event, AgentRegistered | CheckpointAdded):
            self._starts.register(event)
        elif isinstance(event, LeagueOpened | LeagueConfigured) and self._follow:
            self._reconfigure(event)
        elif self._skip is None and isinstance(event, MatchVoided):
            self._void(sequence, event)
        elif self._skip is None and isinstance(event, RatingsCorrected):
            return self._correct(event)
        return []

    def _meet(self, sequence: int, match: MatchFinished) -> list[RatingUpdated]:
        if not is_rated(match, self._ratings) or (self._skip is not None and match.match_id in self._skip):
            return []
        if (match.game, self._system.name) in self.due:
            self._deferred.append((sequence, match))
            return []
        return [self._rate(sequence, match)]

    def _rate(self, sequence: int, match: MatchFinished) -> RatingUpdated:
        place = (match.game, self._system.name)
        table = self._table(*place)
        changes = self._system.rate(match, {seat.agent: table.rating(seat.agent) for seat in match.seats})
        self._rated_to[place] = sequence
        table.update(changes)
        return RatingUpdated(
            match_id=match.match_id,
            match_sequence=sequence,
            game=match.game,
            system=self._system.name,
            changes=changes,
        )

    def _void(self, sequence: int, event: MatchVoided) -> None:
        name = event.match.match_id
        if name in self.voided or name not in self._seen:
            return
        self.voided[name] = None
        if is_rated(event.match, self._ratings):
            place = (event.match.game, self._system.name)
            before = self.due.get(place)
            first = event.match_sequence if before is None else min(before.first, event.match_sequence)
            self.due[place] = Due(first, sequence)

    def _correct(self, event: RatingsCorrected) -> list[RatingUpdated]:
        place = (event.game, event.system)
        if event.through <= self._rated_to.get(place, 0):
            return []
        self._table(*place).replace(event.ratings)
        self._rated_to[place] = event.through
        due = self.due.get(place)
        if due is not None and due.through > event.through:
            # More was voided meanwhile: another correction has to come.
            return []
        self.due.pop(place, None)
        waiting = [(seq, match) for seq, match in self._deferred if match.game == event.game]
        self._deferred = [(seq, match) for seq, match in self._deferred if match.game != event.game]
        return [self._rate(seq, match) for seq, match in waiting if seq > event.through]

    def saved(self) -> SavedRatings:
        """The fold for a snapshot."""
        return SavedRatings(
            sequence=self.sequence,
            config=plain(self._config),
            seen=self._seen.saved(),
            starts=dict(self._starts.ratings),
            base=self._starts.base,
            tables=[SavedTable(*p, to, self._tables[p].standings()) for p, to in sorted(self._rated_to.items())],
            voided=list(self.voided),
            due=[(*place, due) for place, due in sorted(self.due.items())],
            deferred=list(self._deferred),
        )

    @classmethod
    def restored(cls, saved: SavedRatings) -> "RatingFold":
        """The fold that was saved, following the history.

        Raises:
            ConfigError: it was configured in a way that this version cannot read.
        """
        fold = cls(convert(saved.config, LeagueConfig, ""))
        fold.sequence = saved.sequence
        fold._seen = Seen.restored(saved.seen)
        fold._starts.ratings, fold._starts.base = saved.starts, saved.base
        for table in saved.tables:
            fold._table(table.game, table.system).replace(table.ratings)
            fold._rated_to[table.game, table.system] = table.rated_to
        fold.voided = dict.fromkeys(saved.voided)
        fold.due = {(game, system): due for game, system, due in saved.due}
        fold._deferred = list(saved.deferred)
        return fold

    def _table(self, game: str, system: str) -> RatingTable:
        place = (game, system)
        if place not in self._tables:
            self._tables[place] = RatingTable(self._starts)
        return self._tables[place]

    def _reconfigure(self, event: LeagueOpened | LeagueConfigured) -> None:
        # The fold is total: a configuration that this version cannot read leaves the one before in force.
        try:
            self._configure(convert(event.config, LeagueConfig, ""))
        except ConfigError:
            return

    def _configure(self, config: LeagueConfig) -> None:
        self._system: RatingSystem = make_rating_system(config.ratings.system)
        self._config = config
        self._ratings = config.ratings
