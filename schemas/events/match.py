"""Events of matches: the draw of opponents, results, failures, voids, remote requests, stored artifacts."""

from typing import Any, ClassVar

import msgspec

from schemas.events.base import MAX_EVENT_BYTES, Event
from schemas.numbers import Amount, Count, Int64, Rank


class OpponentPick(msgspec.Struct, frozen=True):
    """One opponent drawn for one seat."""

    seat: Count
    agent: str
    bucket: str
    """Bucket of the mix: ``mirror``, ``peers``, ``exploitable`` or ``baselines``."""


class OpponentsSampled(Event, frozen=True, tag=True):
    """A match was made. Standings, configuration and draw are enough to recompute the distribution."""

    KEY: ClassVar[str] = "sampled:{e.match_id}"
    """One draw per match."""
    match_id: str
    worker: str
    hero: str
    hero_seat: Count
    sampler: str
    sampler_digest: str
    """Digest of the sampler's configuration."""
    standings_sequence: Count
    draw: Int64
    """Seed of the draw."""
    picks: list[OpponentPick]


class SessionOpened(Event, frozen=True, tag=True):
    """A match against an opponent of the pool began elsewhere: its ``OpponentsSampled`` is in the same batch.

    It ends with the ``MatchFinished`` or ``MatchFailed`` of its match id, of the purpose ``session``.
    """

    MAX_BYTES: ClassVar[int] = MAX_EVENT_BYTES
    KEY: ClassVar[str] = "session:{e.match_id}"
    """One opening per match."""
    match_id: str
    """Match id, derived from the external agent's name and the session's."""
    worker: str
    """Inference server that drew the opponent."""
    session: str
    """Name given by the client, unique for its agent."""
    model: str
    """Requested virtual model: ``league/pfsp``."""
    agent: str
    """Version of the external agent."""
    seat: Count
    """The agent's seat; the opponent has all others."""
    opponent: str
    """Drawn agent, at a fixed version."""
    game: str
    roles: list[str]
    """Names of the seats."""
    probabilities: dict[str, float]
    """Distribution of the draw, by agent."""
    opened: float
    """Seconds since 1970."""
    expires: float
    """Seconds since 1970 after which a session without a result is abandoned."""
    eligible: list[str] = []
    """Bots and remote agents in the draw, beside the models."""


class SeatResult(msgspec.Struct, frozen=True):
    """Result of one seat."""

    seat: Count
    role: str
    """Name of the seat in the game."""
    agent: str
    score: float
    rank: Rank
    """Rank, 1 for the best; tied seats share the better rank."""
    trainable: bool = False
    metrics: dict[str, float] = {}
    team: str = ""
    """Team of the seat, whose members share score and rank; empty for a seat that plays for itself."""
    drawn_role: str = ""
    """Role that the match gave the seat, known at its end (Secret Mafia: ``Doctor``); empty if ``role`` is its role."""

    @property
    def played_role(self) -> str:
        """The drawn role, or else the seat's name."""
        return self.drawn_role or self.role

    def is_opponent(self, other: "SeatResult") -> bool:
        """Whether the other seat, which another agent holds, is on another side."""
        return self.agent != other.agent and (not self.team or self.team != other.team)


class MatchFinished(Event, frozen=True, tag=True):
    """A match was played to its end."""

    KEY: ClassVar[str] = "finished:{e.match_id}"
    """One end per match."""
    match_id: str
    game: str
    purpose: str
    """``training``, ``evaluation``, ``exhibition`` (requested, and rated only where ``ratings.purposes`` names it),
    ``benchmark`` (likewise, and never used for matchmaking), ``session`` (played elsewhere against an opponent of the
    pool, and rated likewise), ``external`` (played by another system, and rated likewise) or ``imported``."""
    worker: str
    """Worker that played the match; for ``external``, the other system."""
    seed: Int64
    seats: list[SeatResult]
    winner: Count | None
    """Seat strictly first by the game's own measure, if any; among teams, the first seat of the best one."""
    reason: str
    length: Count
    seconds: float
    tokens: Count = 0
    """Tokens written by models, forced ones included."""
    record: str = ""
    """Digest of the game record."""
    experience: str = ""
    """Digest of the published trajectory, if any."""
    evaluation_id: str = ""
    environment: str = ""
    """Environment of a game with several (TextArena's name); empty for other games."""
    rules: Count = 1
    """Version of the game's rules; results under different versions are not comparable."""

    def has_won(self, seat: SeatResult) -> bool:
        """Whether the seat, or its team, is strictly first."""
        if self.winner is None or seat.seat == self.winner:
            return seat.seat == self.winner
        return seat.team != "" and any(other.seat == self.winner and other.team == seat.team for other in self.seats)


class MatchFailed(Event, frozen=True, tag=True):
    """A match could not be played to its end. Data, not a crash."""

    KEY: ClassVar[str] = "failed:{e.match_id}"
    """One failure per match."""
    match_id: str
    purpose: str
    worker: str
    error: str
    evaluation_id: str = ""


class MatchVoided(Event, frozen=True, tag=True):
    """A result is voided: from here on it does not count. The match itself stays in the history."""

    MAX_BYTES: ClassVar[int] = 2 * Event.MAX_BYTES
    KEY: ClassVar[str] = "voided:{e.match.match_id}"
    """One voiding per match."""
    match: MatchFinished
    """Result as recorded, so that a fold can undo it."""
    match_sequence: Count
    """Sequence of the result."""
    reason: str


class RemoteAsked(Event, frozen=True, tag=True):
    """Requests to a remote agent in a match, finished or not, and their cost.

    A long match is reported in parts; a match that is played again costs again.
    """

    KEY: ClassVar[str] = "asked:{e.worker}:{e.since}-{e.number}"
    """One report per process and number."""
    agent: str
    match_id: str
    worker: str
    since: Count
    """Sequence known to the worker's process when it began to play; distinguishes processes of one name."""
    number: Count
    """Number of the process's report, from 0."""
    requests: Count
    """Requests, including retries and those without a reply."""
    prompt_tokens: Count
    """Prompt tokens, as counted by the server like all tokens here."""
    completion_tokens: Count
    tokens: Count
    """Total tokens; more than the sum if the server does not split them."""
    uncounted: Count
    """Requests for which the server reported no tokens, though it may have charged for them: time-outs, broken
    connections, responses without usage."""
    cost: Amount
    """Cost in the currency of the agent's prices at that time. Uncounted requests enter at their maximum cost, so the
    figure is never too small, and exact without them."""


class ArtifactStored(Event, frozen=True, tag=True):
    """An artifact for later episodes was added to a store, or replaced the one with its id."""

    KEY: ClassVar[str] = "artifact:{e.match_id}:{e.number}"
    """One per match and number."""
    store: str
    artifact: str
    """Id of the artifact: by default the digest of its content."""
    data: Any
    """JSON values."""
    weight: float
    match_id: str
    """Match that produced the artifact."""
    number: Count
    """Number of the addition within the match, from 0."""
    worker: str
