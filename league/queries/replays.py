"""A record as turns with their moves, maps and conversations."""

from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from arena.games import make_game
from arena.games.base import Turn
from arena.records import RecordedEpisode, decode_record, is_episode_record

if TYPE_CHECKING:
    from arena.games.diplomacy.map_svg import MapLayers, Phase

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


class MatchReplay(msgspec.Struct, frozen=True):
    """A match's turns, with pictures where the game has them."""

    turns: list[Turn] = []
    episodes: list[EpisodeNode] = []
    pictures: list[MapPosition] = []
    """One more than there are turns: the last shows the end."""
    colors: dict[str, str] = {}
    """Colours of the powers on the maps."""


@lru_cache(maxsize=16)
def match_replay(record: bytes, game: str) -> MatchReplay:
    """A record for the page.

    Raises:
        LeagueError: it is damaged, or the game cannot be played here; the message says which.
    """
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


def layered_maps(record: bytes) -> "MapLayers":
    """Maps of a match of Diplomacy with what they share kept once; raises as ``match_replay`` does."""
    phases = _phases(record)
    from arena.games.diplomacy.map_svg import layer_maps

    return layer_maps(phases)


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
    return [this, *(one for child in episode.children for one in _episode_nodes(child, depth + 1))]


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}… ({len(text):,} characters)"
