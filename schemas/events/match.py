"""Events of matches: the draw of opponents, results, failures, voids, remote requests, stored artifacts."""

from typing import Any, ClassVar

import msgspec

from schemas.events.base import Event
from schemas.numbers import Amount, Count, Int64, Rank


class OpponentPick(msgspec.Struct, frozen=True):
    """One opponent drawn for one seat."""

    seat: Count
    agent: str
    bucket: str
    """The bucket of the mix that it was drawn from: ``mirror``, ``peers``, ``exploitable`` or ``baselines``."""


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

    KEY: ClassVar[str] = "session:{e.match_id}"
    """One opening per match."""
    match_id: str
    """Follows from the external agent's name and the session's."""
    worker: str
    """Inference server that drew the opponent."""
    session: str
    """Name that the client gave it, unique for its agent."""
    model: str
    """Virtual model that was asked for: ``league/pfsp``."""
    agent: str
    """Version of the external agent that plays it."""
    seat: Count
    """The agent's seat; the opponent has all others."""
    opponent: str
    """Agent that was drawn, at a fixed version."""
    game: str
    roles: list[str]
    """Names of the seats."""
    probabilities: dict[str, float]
    """Distribution that the opponent was drawn from, by agent."""
    opened: float
    """Seconds since 1970."""
    expires: float
    """Seconds since 1970 after which a session without a result counts as abandoned."""
    eligible: list[str] = []
    """Bots and remote agents that could be drawn; models always can."""


class SeatResult(msgspec.Struct, frozen=True):
    """Result of one seat."""

    seat: Count
    role: str
    """The seat's name in the game."""
    agent: str
    score: float
    rank: Rank
    """1 for the best; tied seats share the better rank."""
    trainable: bool = False
    metrics: dict[str, float] = {}


class MatchFinished(Event, frozen=True, tag=True):
    """A match was played to its end."""

    KEY: ClassVar[str] = "finished:{e.match_id}"
    """One end per match."""
    match_id: str
    game: str
    purpose: str
    """``training``, ``evaluation``, ``exhibition`` (requested, and rated only where ``ratings.purposes`` says so),
    ``benchmark`` (likewise, and never used for matchmaking), ``session`` (played elsewhere against an opponent of the
    pool, and rated likewise), ``external`` (played by another system, and rated likewise) or ``imported``."""
    worker: str
    """Worker that played it; for ``external``, the system that it comes from."""
    seed: Int64
    seats: list[SeatResult]
    winner: Count | None
    """The seat that is strictly first by the game's own measure, if any."""
    reason: str
    length: Count
    seconds: float
    tokens: Count = 0
    """Tokens that models wrote, forced ones included."""
    record: str = ""
    """Digest of the game record."""
    experience: str = ""
    """Digest of the trajectory that was published for training, if any."""
    evaluation_id: str = ""
    environment: str = ""
    """Environment, in a game with several (TextArena's name); empty for other games."""
    rules: Count = 1
    """Version of the game's rules that it was played by; results by different rules are not comparable."""


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

    KEY: ClassVar[str] = "voided:{e.match.match_id}"
    """One voiding per match."""
    match: MatchFinished
    """The result as it was recorded, so that a fold can undo it."""
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
    """Sequence that the worker's process knew when it began to play; distinguishes processes of one name."""
    number: Count
    """Number of the report of that process, from 0."""
    requests: Count
    """Requests, retries and those without a reply included."""
    prompt_tokens: Count
    """As counted by the server, like all tokens here."""
    completion_tokens: Count
    tokens: Count
    """All tokens; more than the sum where the server does not split them."""
    uncounted: Count
    """Requests for which the server reported no tokens, though it may have charged for them: time-outs, broken
    connections, responses without usage."""
    cost: Amount
    """In the currency of the agent's prices, at the prices of that time. Uncounted requests enter with the most that
    they can have cost: the cost is exact without them, and never too small."""


class ArtifactStored(Event, frozen=True, tag=True):
    """An artifact for later episodes was added to a store, or replaced the one with its id."""

    KEY: ClassVar[str] = "artifact:{e.match_id}:{e.number}"
    """One per match and number."""
    store: str
    artifact: str
    """Its id: by default the digest of its content."""
    data: Any
    """JSON values."""
    weight: float
    match_id: str
    """The match that produced it."""
    number: Count
    """Number of the addition in that match, from 0."""
    worker: str
