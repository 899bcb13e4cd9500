"""A match by its id: its events, its record among the blobs, and the record as turns, maps and conversations."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import zstandard

from arena.games import make_game
from arena.games.base import Turn
from arena.records import RecordedEpisode, decode_record, is_episode_record
from league.history.lineage import QueryFunction
from league.integrity.snapshots import load_state_at
from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.projections.tables import sql_literal
from league.queries.tables import query_history
from league.run import Run
from schemas.errors import ArtifactError, DecodeError, UsageError, suggest
from schemas.events import Event, MatchFailed, MatchFinished, MatchVoided, OpponentsSampled
from schemas.ids import digest

if TYPE_CHECKING:
    from arena.games.diplomacy.map_svg import Phase

_SCAN_BATCH = 1_000

MATCH_TABLES = ("matches", "match_failures", "opponents_sampled", "voids")
"""Tables with the events of a match, in the order of ``MatchEvents``."""


E = TypeVar("E", bound=Event)


class MatchEvents(NamedTuple):
    """The events of a match."""

    match_id: str
    finished: RecordedEvent | None
    failed: RecordedEvent | None
    sampled: RecordedEvent | None
    voided: RecordedEvent | None

    @property
    def result(self) -> MatchFinished | None:
        """Its result, if it finished."""
        return _event_of(self.finished, MatchFinished)

    @property
    def draw(self) -> OpponentsSampled | None:
        """Its draw of opponents, if it is a training match or a session."""
        return _event_of(self.sampled, OpponentsSampled)

    @property
    def failure(self) -> MatchFailed | None:
        """Its failure, if it failed."""
        return _event_of(self.failed, MatchFailed)

    @property
    def voiding(self) -> MatchVoided | None:
        """The event that voided its result, if any."""
        return _event_of(self.voided, MatchVoided)


def _event_of(recorded: RecordedEvent | None, kind: type[E]) -> E | None:
    return recorded.event if recorded is not None and isinstance(recorded.event, kind) else None


def event_position(recorded: RecordedEvent | None) -> dict[str, Any]:
    """Sequence and time (ISO 8601, UTC) of an event; empty for None."""
    if recorded is None:
        return {}
    return {"sequence": recorded.sequence, "time": datetime.fromtimestamp(recorded.time_ns / 1e9, tz=UTC).isoformat()}


def void_fields(match: MatchEvents) -> dict[str, Any] | None:
    """Reason, sequence and time of a match's voiding; None if its result holds."""
    return None if match.voiding is None else {"reason": match.voiding.reason, **event_position(match.voided)}


async def find_match(run: Run, history: JetStreamLog, match_id: str) -> MatchEvents:
    """The events of a match, by a run's tables; raises as ``find_match_events`` does."""

    async def query(statement: str) -> Sequence[tuple[Any, ...]]:
        return (await query_history(run, history, statement)).rows

    return await find_match_events(query, history, match_id)


_NEAREST_IDS = """
    SELECT match_id FROM (SELECT DISTINCT match_id, jaro_winkler_similarity(match_id, {}) AS near FROM matches)
    WHERE near > 0.6 ORDER BY near DESC, match_id LIMIT 3
"""


async def find_match_events(query: QueryFunction, history: JetStreamLog, match_id: str) -> MatchEvents:
    """The events of a match; raises ``UsageError`` where the history does not hold it."""
    statement = " UNION ALL ".join(
        f"SELECT '{table}', min(sequence) FROM {table} WHERE match_id = {sql_literal(match_id)}"
        for table in MATCH_TABLES
    )
    places: dict[str, int | None] = dict(await query(statement))
    if not any(places.values()):
        near = [name for (name,) in await query(_NEAREST_IDS.format(sql_literal(match_id)))]
        raise UsageError(
            f"match {match_id!r}: the history of league {history.league!r} does not hold it; expected an id such as "
            f'`league sql "SELECT match_id FROM matches"` lists{suggest(match_id, near)}'
        )
    return await read_match_events(history, match_id, places)


async def read_match_events(history: JetStreamLog, match_id: str, places: Mapping[str, int | None]) -> MatchEvents:
    """The events of a match by their known sequences in ``MATCH_TABLES``; raises as ``find_match_events`` does."""
    finished, failed, sampled, voided = [await _read_event(history, places.get(table)) for table in MATCH_TABLES]
    if finished is None and failed is None and sampled is None:
        raise UsageError(
            f"match {match_id!r}: the history of league {history.league!r} does not hold it at {dict(places)}"
        )
    if sampled is None:
        sampled = await _find_single_seat_draw(history, finished or failed)
    return MatchEvents(match_id, finished, failed, sampled, voided)


async def _read_event(history: JetStreamLog, sequence: int | None) -> RecordedEvent | None:
    if sequence is None:
        return None
    return next(iter([recorded async for recorded in history.read(sequence, sequence)]), None)


async def _find_single_seat_draw(history: JetStreamLog, ended: RecordedEvent | None) -> RecordedEvent | None:
    """The draw of a match with one seat, which has no row in the table of opponents: found by scanning backwards."""
    event = ended.event if ended is not None else None
    if ended is None or not isinstance(event, MatchFinished | MatchFailed) or event.purpose != "training":
        return None
    for last in range(ended.sequence - 1, 0, -_SCAN_BATCH):
        async for recorded in history.read(max(last - _SCAN_BATCH + 1, 1), last):
            if isinstance(recorded.event, OpponentsSampled) and recorded.event.match_id == event.match_id:
                return recorded
    return None


async def load_record(run: Run, history: JetStreamLog, match: MatchEvents, file: Path | None) -> bytes:
    """The record of a finished match, as ``Game.record`` wrote it.

    ``file`` is a copy of the record for leagues that keep none; its digest must be the recorded one.

    Raises:
        ArtifactError: the record is not kept in the league, missing or damaged; the message says which.
        DecodeError: it is not zstd-compressed.
    """
    result = match.result
    if result is None or not result.record:
        if match.failed is not None:
            why = "it was not played to its end"
        else:
            why = "it has not ended" if result is None else f"its purpose is {result.purpose!r}"
        raise ArtifactError(f"match {match.match_id!r} has no record: {why}")
    try:
        blobs = run.open_blob_store(history.client)
        data = await blobs.get(result.record) if file is None else _read_copy(file, result.record)
    except ArtifactError as error:
        assert match.finished is not None
        state = await load_state_at(history, blobs, match.finished.sequence)
        why = str(error)
        if state.config is not None and state.config.history.records == "digest":
            why = f"not stored, since history.records = 'digest'; {error}"
        raise ArtifactError(f"record of match {match.match_id!r}: {why}") from None
    try:
        return zstandard.decompress(data)
    except (zstandard.ZstdError, MemoryError) as error:
        raise DecodeError(f"record of match {match.match_id!r}: not a compressed record: {error}") from None


def _read_copy(file: Path, expected: str) -> bytes:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{file}: cannot be read ({error.strerror})") from None
    if (name := digest(data)) != expected:
        raise ArtifactError(f"{file}: its digest is {name[:12]}…; the history says {expected[:12]}…")
    return data


MAP_GAME = "diplomacy"
"""The game of which there is a map."""

_MAX_CHARS = 20_000
"""Characters of one text: a reply may be as long as a model can write."""


class EpisodeCall(msgspec.Struct, frozen=True):
    """A model call of an episode."""

    role: str
    prompt: list[dict[str, str]]
    """Messages with role and content."""
    said: str


class EpisodeNode(msgspec.Struct, frozen=True):
    """An episode of a match, with its depth in the tree of episodes."""

    id: str
    depth: int
    episode_type: str
    trainable: bool
    about: str
    """Its artifact: the question or the topic."""
    failure: str
    rewards: dict[str, float]
    metrics: dict[str, float]
    calls: list[EpisodeCall]


class MapPosition(msgspec.Struct, frozen=True):
    """The data of a map."""

    phase: str
    centers: dict[str, int]
    words: str
    """A textual alternative to the map."""


class KeptReply(msgspec.Struct, frozen=True):
    """A model's reply in a match, as ``decisions`` has it."""

    seat: int
    call: int
    """Index among the seat's decisions, from 0."""
    reply: str
    thoughts: str
    fault: str
    """Why the reply holds no legal action; empty if it holds one."""
    credit: str
    """Reward, advantage and gradient step in words; empty before a step has accounted for it."""


class MatchReplay(msgspec.Struct, frozen=True):
    """A match's turns, with pictures where the game has them."""

    turns: list[Turn] = []
    episodes: list[EpisodeNode] = []
    pictures: list[MapPosition] = []
    """Maps, one more than there are turns: the last shows the end."""
    colors: dict[str, str] = {}
    """Colours of the powers on the maps."""
    replies: list[KeptReply] = []
    """Replies that were kept; none where there are maps."""


@lru_cache(maxsize=16)
def match_replay(record: bytes, game: str) -> MatchReplay:
    """A record for the page; raises ``LeagueError`` where it is damaged, or the game cannot be played here."""
    if is_episode_record(record):
        return MatchReplay(episodes=_episode_nodes(decode_record(record).tree, 0))
    turns = make_game(game, {}).transcript(record)
    if game != MAP_GAME:
        return MatchReplay(turns)
    phases = _phases(record)
    from arena.games.diplomacy.map_svg import POWER_COLORS

    pictures = [MapPosition(phase.position.phase, phase.centers, phase.describe()) for phase in phases]
    return MatchReplay(turns, pictures=pictures, colors=POWER_COLORS)


@lru_cache(maxsize=32)
def render_map(record: bytes, number: int) -> str | None:
    """The map of a match of Diplomacy at a turn, as SVG; None without such a turn. Raises as ``match_replay`` does."""
    phases = _phases(record)
    from arena.games.diplomacy.map_svg import render_svg

    return render_svg(phases[number]) if number < len(phases) else None


def share_lines(texts: Sequence[str]) -> tuple[list[str], list[list[tuple[int, int]]]]:
    """Texts with the lines that they share kept once, such as the maps of a match, of which a phase changes few lines.

    Each text becomes runs of the lines: the index of a run's first line, and the number of its lines.
    """
    lines: dict[str, int] = {}
    runs = []
    for text in texts:
        own: list[tuple[int, int]] = []
        for line in text.split("\n"):
            index = lines.setdefault(line, len(lines))
            if own and sum(own[-1]) == index:
                own[-1] = (own[-1][0], own[-1][1] + 1)
            else:
                own.append((index, 1))
        runs.append(own)
    return list(lines), runs


@lru_cache(maxsize=16)
def _phases(record: bytes) -> "list[Phase]":
    spec = make_game(MAP_GAME, {})
    # After make_game: without the game's package this module cannot be imported.
    from arena.games.diplomacy.map_svg import replay_phases

    return replay_phases(spec.open_record(record))


def _episode_nodes(episode: RecordedEpisode, depth: int) -> list[EpisodeNode]:
    calls = [
        EpisodeCall(
            call.role, [{"role": m.role, "content": _truncate(m.content)} for m in call.prompt], _truncate(call.said)
        )
        for call in episode.calls
    ]
    about = episode.artifact if isinstance(episode.artifact, str) else msgspec.json.encode(episode.artifact).decode()
    this = EpisodeNode(
        id=episode.id,
        depth=depth,
        episode_type=episode.episode_type,
        trainable=episode.is_trainable,
        about="" if episode.artifact is None else _truncate(about),
        failure=episode.failure,
        rewards=episode.rewards,
        metrics=episode.metrics,
        calls=calls,
    )
    return [this, *(node for child in episode.children for node in _episode_nodes(child, depth + 1))]


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}… ({len(text):,} characters)"
