"""Benchmarks on request: an agent in one seat, the same opponent in all others. Pure functions of recorded events.

Game i puts the agent at seat i modulo the seats. The games of a round, in which it goes through all seats, share a seed
that follows from the benchmark's alone: all agents and opponents meet the same luck. A game counts once, whatever
request it was played for, so that a repeated benchmark plays only what is missing.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import count, islice
from typing import Any, NamedTuple

import msgspec

from schemas.codec import canonical_json
from schemas.events import BenchmarkRequested, MatchFailed, MatchFinished, SeatResult
from schemas.ids import derive_seed, digest
from schemas.jobs import BENCHMARK_PURPOSE, PlayMatch, SeatCounts
from schemas.numbers import wilson_interval

SOLO = "solo"
"""Reason of a game that ended by a solo victory, which in Diplomacy is 18 of 34 centres."""
CENTERS, SURVIVED = "centers", "survived"
"""Metrics of seats in Diplomacy."""


class BenchmarkTerms(NamedTuple):
    """Terms on which two benchmarks are the same."""

    agent: str
    opponent: str
    seed: int
    settings: Mapping[str, Any]
    """Game settings of its matches in place of the league's."""
    rules: int
    """Version of the game's rules: games by other rules do not count."""

    @property
    def name(self) -> str:
        """An id without the characters that ids of matches cannot have."""
        variant = digest(canonical_json([self.agent, self.opponent, self.seed, self.settings, self.rules]))[:8]
        return "-".join(("benchmark", self.agent, self.opponent, variant)).replace("@", "-")


class _PlannedGame(NamedTuple):
    seed: int
    seat: int


class GameResult(NamedTuple):
    """A completed game of a benchmark."""

    match: MatchFinished
    own: SeatResult
    """The agent's seat."""


class BenchmarkGames:
    """The games of one benchmark, by all requests, ends and voids: played, failed, waiting and missing."""

    def __init__(
        self,
        terms: BenchmarkTerms,
        seats: SeatCounts,
        games: int,
        requests: Iterable[BenchmarkRequested],
        ends: Iterable[MatchFinished | MatchFailed],
        voided: Container[str],
    ) -> None:
        self.terms = terms
        self._seats = seats
        self._requests = [request for request in requests if request.benchmark_id.rpartition("-")[0] == terms.name]
        rounds = (derive_seed(terms.seed, "benchmark", number) for number in count())
        planned = (_PlannedGame(seed, seat) for seed in rounds for seat in range(seats.choose(seed).seats))
        self._needed = list(islice(planned, games))
        own = {match_id: game for request in self._requests for match_id, game in _planned_games(request).items()}
        self._waiting = {match_id: game for match_id, game in own.items() if game in set(self._needed)}
        self._played: dict[_PlannedGame, GameResult] = {}
        self.failures: list[MatchFailed] = []
        """Matches that could not be completed; their games are missing again, like the games of voided matches."""
        for end in ends:
            game = self._waiting.pop(end.match_id, None)
            if game is None or end.match_id in voided:
                continue
            if isinstance(end, MatchFailed):
                self.failures.append(end)
            elif game.seat < len(end.seats):
                self._played.setdefault(game, GameResult(end, end.seats[game.seat]))

    @property
    def results(self) -> list[GameResult]:
        """Completed games, in the order of the plan."""
        return [self._played[game] for game in self._needed if game in self._played]

    @property
    def is_complete(self) -> bool:
        """Whether all games were played."""
        return len(self._played) == len(self._needed)

    def make_request(self) -> BenchmarkRequested | None:
        """The request for games that are neither played nor waiting; None if there are none."""
        numbers = {*self._waiting.values(), *self._played}
        missing = [game for game in self._needed if game not in numbers]
        if not missing:
            return None
        name = f"{self.terms.name}-{len(self._requests) + 1}"
        return BenchmarkRequested(
            benchmark_id=name,
            agent=self.terms.agent,
            opponent=self.terms.opponent,
            seed=self.terms.seed,
            settings=dict(self.terms.settings),
            matches=[f"{name}-{number}" for number in range(len(missing))],
            seats=[game.seat for game in missing],
            seeds=[game.seed for game in missing],
        )

    def add(self, request: BenchmarkRequested) -> None:
        """Add a request that was just recorded."""
        self._requests.append(request)
        self._waiting |= _planned_games(request)

    @property
    def jobs(self) -> list[PlayMatch]:
        """The matches that wait."""
        owner = {match_id: request.benchmark_id for request in self._requests for match_id in request.matches}
        jobs = []
        for match_id, (seed, seat) in self._waiting.items():
            seats = [self.terms.opponent] * self._seats.choose(seed).seats
            seats[seat] = self.terms.agent
            settings = dict(self.terms.settings)
            jobs.append(PlayMatch(match_id, BENCHMARK_PURPOSE, seats, seed, owner[match_id], settings))
        return jobs


def _planned_games(request: BenchmarkRequested) -> dict[str, _PlannedGame]:
    rows = zip(request.matches, request.seeds, request.seats, strict=False)
    return {match_id: _PlannedGame(seed, seat) for match_id, seed, seat in rows}


class Share(msgspec.Struct, frozen=True):
    """A share of games with its 95 % Wilson interval."""

    count: int
    share: float
    low: float
    high: float


class SeatSummary(msgspec.Struct, frozen=True):
    """Results of the agent in one seat, or in all of them."""

    seat: str
    """Name of the seat; empty for all."""
    games: int
    shares: dict[str, Share]
    """``won`` (strictly first by the game's own measure: in Diplomacy the most centres) and ``tied`` (first together
    with others); where the game reports them also ``solo`` and ``survived``."""
    means: dict[str, float]
    """Mean score and metrics of the agent's seat."""


def summarize_seats(results: Sequence[GameResult]) -> list[SeatSummary]:
    """A row for each seat that the agent had, in the order of seats, and one for all."""
    roles = dict.fromkeys(result.own.played_role for result in sorted(results, key=lambda result: result.own.seat))
    rows = [_make_row(role, [result for result in results if result.own.played_role == role]) for role in roles]
    return [*rows, _make_row("", results)]


def _make_row(seat: str, results: Sequence[GameResult]) -> SeatSummary:
    n = len(results)
    means = {"score": [own.score for _, own in results]}
    for _, own in results:
        for metric, value in own.metrics.items():
            means.setdefault(metric, []).append(value)
    won = [match.has_won(own) for match, own in results]
    kinds = {
        "won": won,
        "tied": [match.winner is None and _lead(own) == max(map(_lead, match.seats)) for match, own in results],
    }
    if CENTERS in means:
        kinds[SOLO] = [first and match.reason == SOLO for first, (match, _) in zip(won, results, strict=True)]
    if means.pop(SURVIVED, None) is not None:
        kinds[SURVIVED] = [own.metrics.get(SURVIVED, 0.0) > 0 for _, own in results]
    counts = {kind: sum(flags) for kind, flags in kinds.items()}
    return SeatSummary(
        seat=seat,
        games=n,
        shares={kind: Share(count, count / max(n, 1), *wilson_interval(count, n)) for kind, count in counts.items()},
        means={metric: sum(values) / len(values) for metric, values in sorted(means.items()) if values},
    )


def _lead(seat: SeatResult) -> float:
    """The game's own measure of a seat: in Diplomacy its centres."""
    return seat.metrics.get(CENTERS, seat.score)
