"""The human matches of one process, limited in number."""

import asyncio
import contextlib
import secrets
from collections.abc import Mapping, Sequence

from arena.environments import EnvironmentSpec
from league.integrity.signatures import Signer
from league.log.jetstream import JetStreamLog
from league.queries.playable import PURPOSE, match_options, unrecorded_reason
from league.run import Run
from league.state import LeagueState
from players.human import HumanSeat
from players.remote.remote_player import RemoteAgents
from schemas.errors import BusyError, UsageError, format_choices
from schemas.ids import HUMAN, derive_seed
from schemas.jobs import PlayMatch
from ui.play.human_match import AWAY_TIMEOUT_S, HumanMatch
from ui.play.opponents import HumanEpisodeRunner, HumanGameRunner, make_human_runner
from workers.match_runner.runner import MatchExecutor
from workers.runtime import Context

MAX_ACTIVE_MATCHES = 8
"""Maximum number of matches under way."""
_MAX_FINISHED_MATCHES = 32
"""Maximum number of finished matches that can still be viewed."""
ANSWER_TIMEOUT_S = 1800.0
"""Time limit for answering a question."""
_SHUTDOWN_GRACE_S = 5.0
"""Time for open matches to end when the process stops."""


class HumanMatchLobby:
    """All human matches of one process.

    The caller keeps ``state`` up to date and calls ``wake`` after every event. Results are appended through a log of
    its own, by the producer ``name`` where there are no credentials.
    """

    def __init__(
        self, run: Run, log: JetStreamLog, state: LeagueState, name: str = "web", away_s: float | None = AWAY_TIMEOUT_S
    ) -> None:
        identity = run.access.identity()
        name = name if identity is None else identity.name
        own = JetStreamLog(log.client, log.league, name)
        # A key announced under this name must sign the results recorded here too.
        own.signer = Signer(run.access.seed()) if run.access.seed() is not None else None
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
        """Wakes tasks that wait for the state to change."""
        self._context.wake()

    def start_match(self, seat: int, agents: Sequence[str]) -> tuple[str, HumanMatch]:
        """Starts a match; returns it with the secret that authorises the player's further requests.

        ``agents`` has the agents of all seats; that of the person's seat is ignored.

        Raises:
            UsageError: there are no such seats or agents.
            BusyError: too many matches are under way.
            GameError: people cannot play the league's game.
        """
        if len(self._tasks) >= MAX_ACTIVE_MATCHES:
            raise BusyError(f"{MAX_ACTIVE_MATCHES} games are being played here; try again when one is over")
        runner, executor = self._ensure_runner()
        job = self._make_job(executor, seat, agents)
        person = HumanSeat(ANSWER_TIMEOUT_S)
        self._human_seats[job.match_id] = {seat: person}
        match = HumanMatch(job, seat, person, runner.spec, self._unrecorded, self._away_s)
        task = asyncio.create_task(match.play(runner, executor))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._on_match_ended(job.match_id, done))
        secret = secrets.token_urlsafe(16)
        self._human_matches[secret] = match
        self._evict_finished()
        return secret, match

    def get_match(self, secret: str) -> HumanMatch:
        """Returns the match with this secret.

        Raises:
            UsageError: there is none, or it was removed.
        """
        match = self._human_matches.get(secret)
        if match is None:
            raise UsageError("no such game here any more; expected one that was begun on this page")
        return match

    async def close(self) -> None:
        """Fails all open matches, and closes models and connections."""
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

    def _ensure_runner(self) -> tuple[HumanGameRunner | HumanEpisodeRunner, MatchExecutor]:
        if self._runner is None or self._executor is None:
            self._executor = MatchExecutor(self._context, self._make_runner)
        assert self._runner is not None
        return self._runner, self._executor

    def _make_runner(self, spec: EnvironmentSpec, remotes: RemoteAgents) -> HumanGameRunner | HumanEpisodeRunner:
        self._runner = make_human_runner(self._context, spec, remotes, self._human_seats)
        return self._runner

    def _make_job(self, executor: MatchExecutor, seat: int, agents: Sequence[str]) -> PlayMatch:
        counts, needed = executor.evaluation_seat_counts, len(agents)
        if counts.fitting_seed(0, needed) is None or not 0 <= seat < needed:
            raise UsageError(f"{needed} agents and seat {seat}; expected an agent for each of {counts.most} seats")
        known = [row["agent"] for row in match_options(self._context.state)["agents"]]
        seats = [HUMAN if place == seat else agent for place, agent in enumerate(agents)]
        for agent in seats:
            if agent != HUMAN and agent not in known:
                raise UsageError(f"{agent!r} cannot be played with; expected {format_choices(known)}")
        match_id = f"play-{self._context.name}-{secrets.token_hex(5)}"
        seed = derive_seed(self._context.config.seed, "match", match_id)
        return PlayMatch(match_id, PURPOSE, seats, counts.fitting_seed(seed, needed) or 0)

    def _on_match_ended(self, match_id: str, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._human_seats.pop(match_id, None)
        with contextlib.suppress(asyncio.CancelledError):
            task.exception()

    def _evict_finished(self) -> None:
        over = [secret for secret, match in self._human_matches.items() if match.is_over]
        for secret in over[:-_MAX_FINISHED_MATCHES]:
            del self._human_matches[secret]
