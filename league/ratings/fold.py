"""The fold of match results into ratings: what the rater records and what a replay recomputes."""

import math

from league.ratings.base import RatingSystem, make_rating_system
from league.ratings.table import RatingTable, Starts
from league.seen import Seen
from schemas.config import LeagueConfig, RatingsConfig, convert
from schemas.errors import ConfigError
from schemas.events import (
    AgentRegistered,
    Event,
    LeagueConfigured,
    LeagueOpened,
    MatchFailed,
    MatchFinished,
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


class RatingFold:
    """Ratings of every game, folded in the order of the history.

    The first outcome of a match id holds: a copy, or a second outcome of the same match, changes nothing.

    Args:
        config: What counts until the history says otherwise.
        follow: Take over changes of the configuration found in the history; a replay under other rules does not.

    Raises:
        ConfigError: the rating system's name or settings.
    """

    def __init__(self, config: LeagueConfig | None = None, *, follow: bool = True) -> None:
        self.sequence = 0
        self._follow = follow
        self._seen = Seen()
        self._starts = Starts()
        self._tables: dict[tuple[str, str], RatingTable] = {}
        self._rated_to: dict[tuple[str, str], int] = {}
        self._configure(config or LeagueConfig())

    def rating(self, game: str, agent: str) -> float:
        """An agent's rating in a game under the present system."""
        return self._table(game, self._system.name).rating(agent)

    def apply(self, sequence: int, event: Event | None) -> RatingUpdated | None:
        """Fold one event; for a match that counts, what it does to the ratings.

        Sequences at or below the last one, unknown events (None) and other types of event do nothing.
        """
        if sequence <= self.sequence:
            return None
        self.sequence = sequence
        if isinstance(event, MatchFinished):
            return self._rate(sequence, event) if self._seen.add(event.match_id) else None
        if isinstance(event, MatchFailed):
            self._seen.add(event.match_id)
        elif isinstance(event, AgentRegistered):
            self._starts.register(event)
        elif isinstance(event, LeagueOpened | LeagueConfigured) and self._follow:
            self._reconfigure(event)
        return None

    def adopt(self, event: RatingUpdated) -> None:
        """Take a recorded update as it stands, for a rater that continues where another one ended.

        The match, and those before it in the history, are not rated again by ``apply``. An update of a match that
        this fold has rated or adopted already does nothing.
        """
        place = (event.game, event.system)
        if event.match_sequence > self._rated_to.get(place, 0):
            self._rated_to[place] = event.match_sequence
            self._table(*place).update(event.changes)

    def _rate(self, sequence: int, match: MatchFinished) -> RatingUpdated | None:
        place = (match.game, self._system.name)
        if not is_rated(match, self._ratings) or sequence <= self._rated_to.get(place, 0):
            return None
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
        self._ratings = config.ratings
