"""Metrics of single matches, their rolling means, and n-gram statistics of play.

``collection-<game>`` covers the trained seats of training matches, ``evaluation-<game>`` the evaluated agent's seats.
The league's main policy has no name in the path; others do: ``collection-nim/exploiter/reward``.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite

from league.state import LeagueState
from schemas.errors import DecodeError
from schemas.events import MatchFinished, SeatResult
from schemas.ids import split_agent
from schemas.sketches import Sketch, decode_sketch, hash_limit

LIVE_KIND = "live"
"""Kind of an opponent that is a policy's live version, not an agent in the league."""


def path_suffix(agent: str, hero: str) -> str:
    """The path below a prefix for an agent or policy: empty for the main policy ``hero``, otherwise ``/<policy>``."""
    named = split_agent(agent)
    policy = agent if named is None else named[0]
    return "" if policy == hero else f"/{policy}"


def match_metrics(match: MatchFinished, state: LeagueState, hero: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Metrics of a training or evaluation match by prefix; none for other matches.

    ``hero`` is the league's main policy.
    """
    if match.purpose == "training":
        measured = [seat for seat in match.seats if seat.trainable]
    elif match.purpose == "evaluation" and match.evaluation_id in state.evaluations:
        agent = state.evaluations[match.evaluation_id].agent
        measured = [seat for seat in match.seats if seat.agent == agent]
    else:
        return
    stage = "collection" if match.purpose == "training" else "evaluation"
    for seat in measured:
        place = path_suffix(seat.agent, hero)
        yield f"{stage}-{match.environment or match.game}{place}", seat_metrics(match, seat)
        if stage == "collection":
            for kind, points in _points_by_opponent_kind(match, seat, state):
                yield f"League/Win_Rate{place}", {kind: points}


def seat_metrics(match: MatchFinished, seat: SeatResult) -> dict[str, float]:
    """Metrics of one seat; win, draw and loss are as the game decides."""
    won, drawn = match.winner == seat.seat, match.winner is None and seat.rank == 1
    return {
        "reward": seat.score,
        "rank": seat.rank,
        "win_rate": float(won),
        "draw_rate": float(drawn),
        "loss_rate": float(not won and not drawn),
        "game_length": match.length,
        "seconds": match.seconds,
        "tokens": match.tokens,
        **seat.metrics,
        **_reply_metrics(seat.metrics),
    }


def _reply_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Shares of a model's replies that were well-formed, and that were invalid moves."""
    replies = metrics.get("reply_count", 0.0)
    if not (isfinite(replies) and replies > 0):
        return {}
    return {
        "format_success": 1 - metrics.get("reply_unformatted", 0.0) / replies,
        "invalid_moves": metrics.get("reply_invalid", 0.0) / replies,
    }


def _points_by_opponent_kind(match: MatchFinished, seat: SeatResult, state: LeagueState) -> Iterator[tuple[str, float]]:
    """Points against each other agent in the match, by its kind: 1, ½ or 0 by the scores of the two seats."""
    for other in match.seats:
        if other.agent != seat.agent and isfinite(seat.score - other.score):
            known = state.agents.get(other.agent)
            points = (seat.score > other.score) + 0.5 * (seat.score == other.score)
            yield (known.kind if known is not None else LIVE_KIND), float(points)


def finite_or_none(value: float) -> float | None:
    """The value as a float; None if it is not finite or too large for a float."""
    try:
        return number if isfinite(number := float(value)) else None
    except OverflowError:
        return None


class RollingMeans:
    """Means of the newest values by name.

    A name is a path such as ``collection-nim/reward``; its first part is the prefix.
    """

    def __init__(self) -> None:
        self._values: dict[str, deque[float]] = {}
        self._touched: dict[str, None] = {}
        self._prefixes: set[str] = set()

    def add(self, name: str, value: float, size: int) -> None:
        """Add a value and drop those before the newest ``size``; a value that is not finite is ignored."""
        number = finite_or_none(value)
        if number is None:
            return
        values = self._values.setdefault(name, deque())
        values.append(number)
        while len(values) > size:
            values.popleft()
        self._touched[name] = None
        self._prefixes.add(name.partition("/")[0])

    def add_all(self, prefix: str, values: Mapping[str, float], size: int) -> None:
        """Add custom values: names that begin with a known prefix are kept, others get ``prefix``."""
        for name, value in values.items():
            is_path = name.startswith(f"{prefix}/") or self.has_prefix(name)
            self.add(name if is_path else f"{prefix}/{name}", value, size)

    def has_prefix(self, name: str) -> bool:
        """Whether a name begins with a known prefix."""
        return "/" in name and name.partition("/")[0] in self._prefixes

    def collect(self) -> dict[str, float]:
        """Means of the names with new values since the last call."""
        means = {name: sum(self._values[name]) / len(self._values[name]) for name in self._touched}
        self._touched.clear()
        return means


SeatHashes = tuple[int, tuple[tuple[int, ...], ...]]
"""A sketch's level and the hashes of some of its seats."""


class NgramWindow:
    """Sketches of the newest matches of one game.

    A sketch keeps one n-gram in 2^level. Matches are compared at their highest level, and counts are scaled up
    accordingly: an estimate, exact where no match had more n-grams than a sketch can hold.
    """

    def __init__(self) -> None:
        self._all: deque[SeatHashes] = deque()
        self._trained: deque[SeatHashes] = deque()
        self._changed = False

    def add(self, match: MatchFinished, size: int) -> None:
        """Add a match and drop those before the newest ``size``; one without a readable sketch is ignored."""
        try:
            sketch = decode_sketch(match.ngrams)
        except DecodeError:
            return
        self._changed = True
        trained = {seat.seat for seat in match.seats if seat.trainable}
        _append_bounded(self._all, sketch, range(len(sketch.seats)), size)
        _append_bounded(self._trained, sketch, (seat for seat in range(len(sketch.seats)) if seat in trained), size)

    def collect(self) -> dict[str, float]:
        """Metrics of all seats and of the trained ones; empty if no match was added since the last call."""
        if not self._changed:
            return {}
        self._changed = False
        return _unique_ngram_metrics("unique_ngrams", self._all) | _unique_ngram_metrics(
            "trained_unique_ngrams", self._trained
        )


def _append_bounded(window: deque[SeatHashes], hashes: Sketch, seats: Iterable[int], size: int) -> None:
    window.append((hashes.level, tuple(hashes.seats[seat] for seat in seats)))
    while len(window) > size:
        window.popleft()


def _unique_ngram_metrics(name: str, window: Iterable[SeatHashes]) -> dict[str, float]:
    """Number of distinct n-grams, and their share of all n-grams (each counted once per match and seat)."""
    level = max(level for level, _ in window)
    below = hash_limit(level)
    hashes = [number for _, seats in window for seat in seats for number in seat if number < below]
    unique = len(set(hashes))
    share = {f"{name}_share": unique / len(hashes)} if hashes else {}
    return {name: float(unique << level), **share}
