"""Matches of people: one from the first question to the recorded result, and all of one process, limited in number."""

import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import zstandard

from arena.environments import ArenaSpec, EnvironmentSpec, make_environment, rules_in_words
from arena.games.base import Outcome, Turn
from league.log.jetstream import JetStreamLog
from league.queries.playable import PURPOSE, match_options, unrecorded_reason
from league.run import Run
from league.state import LeagueState
from players.human import HumanSeat
from schemas.errors import BusyError, LeagueError, UsageError, format_choices
from schemas.ids import HUMAN, derive_seed
from schemas.jobs import PlayMatch
from ui.play.opponents import HumanEpisodeRunner, HumanGameRunner, HumanRunner
from workers.match_runner.completed import CompletedMatch
from workers.match_runner.runner import MatchExecutor
from workers.runtime import Context

_AWAY_TIMEOUT_S = 300.0
"""Time without a request for the view after which the player counts as gone."""
_MAX_MATCH_S = 4 * 3600.0
_ANSWER_TIMEOUT_S = 1800.0
_MAX_ACTIVE_MATCHES = 8
"""Maximum number of matches under way in one process."""
_MAX_FINISHED_MATCHES = 32
"""Maximum number of finished matches that can still be viewed."""
_SHUTDOWN_GRACE_S = 5.0
"""Time for open matches to end when the process stops."""
_POLL_INTERVAL_S = 1.0
_OPEN_INFORMATION_GAMES = ("nim", "diplomacy")
"""Games in which all moves are public; in others a player sees only the questions until the end."""


class HumanMatchView(msgspec.Struct, frozen=True):
    """The human player's view of a match."""

    match_id: str
    game: str
    seat: int
    seats: list[dict[str, Any]]
    """Role and agent of each seat."""
    spoken: bool
    """Whether it is an environment, played in free text."""
    rules: str
    changes: int
    stage: str
    """Preparation before the first question; empty once all players are seated."""
    positions: int
    """Number of positions that can be drawn."""
    question: dict[str, Any] | None
    """The decision that waits for the player; None while others move, and after the end."""
    moves: list[Turn]
    outcome: dict[str, Any] | None
    recorded: bool
    problem: str
    """Reason for a failure, or for not recording the match."""
    over: bool


class HumanMatch:
    """A match with one human player.

    ``unrecorded`` is the reason not to record it, empty to record it. After ``away_s`` without a request for the view
    the player counts as gone; None for no limit.
    """

    def __init__(
        self, job: PlayMatch, seat: int, person: HumanSeat, spec: EnvironmentSpec, unrecorded: str, away_s: float | None
    ) -> None:
        self.job = job
        self.person = person
        self.is_over = False
        self._seat = seat
        self._spec = spec
        self._rules = rules_in_words(spec)
        self._problem = unrecorded
        self._away_s = away_s
        self._recorded = False
        self._outcome: Outcome | None = None
        self._record = b""
        self._last_viewed_at = time.monotonic()
        self._moves: tuple[bytes, list[Turn]] = (b"", [])

    async def play(self, runner: HumanRunner, executor: MatchExecutor) -> None:
        """Play the match and record its result; errors are shown to the player."""
        timeouts = asyncio.create_task(self._enforce_timeouts())
        try:
            played: CompletedMatch | None
            if self._problem:
                played = await executor.play(self.job)
            else:
                played = await executor.run(self.job)
                if played is not None:
                    await executor.append_result(played)
                self._recorded = True
            if played is not None:
                self._outcome = played.outcome
                self._record = zstandard.decompress(played.record)
        except LeagueError as error:
            self._problem = str(error)
        finally:
            timeouts.cancel()
            self._problem = runner.failures.pop(self.job.match_id, self._problem)
            self.is_over = True
            await self.person.notify()

    async def _enforce_timeouts(self) -> None:
        began = time.monotonic()
        while True:
            await asyncio.sleep(_POLL_INTERVAL_S)
            now = time.monotonic()
            if self._away_s is not None and now - self._last_viewed_at > self._away_s:
                self.person.leave(f"the person went away: they have not looked for {self._away_s:g} s")
            elif now - began > _MAX_MATCH_S:
                self.person.leave(f"the game was not over after {_MAX_MATCH_S / 3600:g} h")

    async def wait_for_view(self, since: int, timeout_s: float) -> HumanMatchView:
        """Wait until there have been more than ``since`` changes or the time is up, and return the view."""
        self._last_viewed_at = time.monotonic()
        if not self.is_over:
            await self.person.wait_for_change(since, timeout_s)
        self._last_viewed_at = time.monotonic()
        changes, question = self.person.changes, self.person.question
        moves = await self._visible_moves()
        return HumanMatchView(
            match_id=self.job.match_id,
            game=self._spec.name,
            seat=self._seat,
            seats=[
                {"role": role, "agent": agent} for role, agent in zip(self._spec.seats, self.job.seats, strict=True)
            ],
            spoken=isinstance(self._spec, ArenaSpec),
            rules=self._rules,
            changes=changes,
            stage=self.person.stage,
            positions=len(moves) + 1 if self.record() else 0,
            question=None if question is None else msgspec.to_builtins(question),
            moves=moves,
            outcome=None if self._outcome is None else msgspec.to_builtins(self._outcome),
            recorded=self._recorded,
            problem=self._problem,
            over=self.is_over,
        )

    def record(self) -> bytes:
        """The record of the match so far; empty before the first question."""
        game = self.person.game
        return self._record or (b"" if game is None else game.record())

    async def _visible_moves(self) -> list[Turn]:
        if not self.is_over and self._spec.name not in _OPEN_INFORMATION_GAMES:
            return []
        record = self.record()
        if record and record != self._moves[0]:
            self._moves = record, await asyncio.to_thread(self._spec.transcript, record)
        return self._moves[1]

    async def draw_positions(self) -> list[dict[str, str]]:
        """Draw the position as SVG, and the phase before it with its orders; empty for games without diagrams."""
        spec, record = self._spec, self.record()
        if isinstance(spec, ArenaSpec) or spec.name != "diplomacy" or not record:
            return []

        def draw() -> list[dict[str, str]]:
            # An optional dependency, installed wherever the game was played.
            from arena.games.diplomacy.map_svg import render_svg, replay_phases

            newest = replay_phases(spec.open_record(record))[:-3:-1]
            return [
                {"svg": render_svg(phase), "title": phase.position.phase, "text": phase.describe()} for phase in newest
            ]

        return await asyncio.to_thread(draw)


class HumanMatchLobby:
    """All human matches of one process.

    The caller keeps ``state`` up to date and calls ``wake`` after every event. Results are appended through a log of
    its own, by the producer ``name`` where there are no credentials.
    """

    def __init__(
        self, run: Run, log: JetStreamLog, state: LeagueState, name: str = "web", away_s: float | None = _AWAY_TIMEOUT_S
    ) -> None:
        identity = run.access.identity()
        name = name if identity is None else identity.name
        own = JetStreamLog(log.client, log.league, name)
        own.patience_s = math.inf
        self._context = Context(run, log.client, own, name)
        self._context.state = state
        self._away_s = away_s
        self._unrecorded = unrecorded_reason(run, log.league)
        self._human_seats: dict[str, Mapping[int, HumanSeat]] = {}
        self._executor: MatchExecutor | None = None
        self._runner: HumanGameRunner | HumanEpisodeRunner | None = None
        self._human_matches: dict[str, HumanMatch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def wake(self) -> None:
        """Wake tasks that wait for the state to change."""
        self._context.wake()

    def start_match(self, seat: int, agents: Sequence[str]) -> tuple[str, HumanMatch]:
        """Start a match; return it with the secret that authorises the player's further requests.

        ``agents`` has the agents of all seats; the one in the person's seat is ignored.

        Raises:
            UsageError: there are no such seats or agents.
            BusyError: too many matches are under way.
            GameError: people cannot play the league's game.
        """
        if len(self._tasks) >= _MAX_ACTIVE_MATCHES:
            raise BusyError(f"{_MAX_ACTIVE_MATCHES} games are being played here; try again when one is over")
        if self._executor is None:
            self._runner = self._make_runner()
            self._executor = MatchExecutor(self._context, self._runner)
        assert self._runner is not None
        job = self._make_job(self._executor, seat, agents)
        person = HumanSeat(_ANSWER_TIMEOUT_S)
        self._human_seats[job.match_id] = {seat: person}
        match = HumanMatch(job, seat, person, self._runner.environment, self._unrecorded, self._away_s)

        def forget(ended: asyncio.Task[None]) -> None:
            self._tasks.discard(ended)
            self._human_seats.pop(job.match_id, None)
            with contextlib.suppress(asyncio.CancelledError):
                ended.exception()

        task = asyncio.create_task(match.play(self._runner, self._executor))
        self._tasks.add(task)
        task.add_done_callback(forget)
        secret = secrets.token_urlsafe(16)
        self._human_matches[secret] = match
        over = [each for each, started in self._human_matches.items() if started.is_over]
        for each in over[:-_MAX_FINISHED_MATCHES]:
            del self._human_matches[each]
        return secret, match

    def get_match(self, secret: str) -> HumanMatch:
        """The match with this secret; UsageError if there is none, or it was removed."""
        match = self._human_matches.get(secret)
        if match is None:
            raise UsageError("no such game here any more; expected one that was begun on this page")
        return match

    async def close(self) -> None:
        """Fail all open matches, and close models and connections."""
        for match in self._human_matches.values():
            match.person.leave("the page's server stopped")
        if self._tasks:
            _, stuck = await asyncio.wait(self._tasks, timeout=_SHUTDOWN_GRACE_S)
            for task in stuck:
                task.cancel()
        if self._executor is not None:
            await self._executor.close()
        if self._runner is not None:
            await self._runner.close()

    def _make_runner(self) -> HumanGameRunner | HumanEpisodeRunner:
        game = self._context.config.game
        environment = make_environment(game.name, game.settings)
        if isinstance(environment, ArenaSpec):
            return HumanEpisodeRunner(self._context, environment, self._human_seats)
        return HumanGameRunner(self._context, environment, self._human_seats)

    def _make_job(self, executor: MatchExecutor, seat: int, agents: Sequence[str]) -> PlayMatch:
        counts, needed = executor.evaluation_seat_counts, len(agents)
        if counts.fitting_seed(0, needed) is None or not 0 <= seat < needed:
            raise UsageError(f"{needed} agents and seat {seat}; expected an agent for each of {counts.most} seats")
        names = [row["agent"] for row in match_options(self._context.state)["agents"]]
        seats = [HUMAN if number == seat else agent for number, agent in enumerate(agents)]
        for agent in seats:
            if agent != HUMAN and agent not in names:
                raise UsageError(f"{agent!r} cannot be played with; expected {format_choices(names)}")
        match_id = f"play-{self._context.name}-{secrets.token_hex(5)}"
        seed = derive_seed(self._context.config.seed, "match", match_id)
        return PlayMatch(match_id, PURPOSE, seats, counts.fitting_seed(seed, needed) or 0)
