"""Plays one match between agents in seats, and reports what became of it."""

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping, Sequence

import msgspec
import structlog
import zstandard

from arena.games import make_game
from arena.games.base import Apart, GameSpec, Outcome, words_of
from arena.match import BotPlayer, Player, play
from league.artifacts import BrokerStore
from league.state.saved import Published
from schemas.errors import LeagueError, LogError, MemoryShortError, RemoteError, UsageError
from schemas.events import MatchFailed, MatchFinished, RemoteAsked, SeatResult
from schemas.ids import digest, split_agent
from schemas.jobs import PlayMatch
from schemas.sketches import sketch
from schemas.trajectories import Rollout
from workers.asking.billing import Tally
from workers.asking.players import AdapterProvider, PolicyPlayer
from workers.asking.prompting import prompting_of
from workers.asking.remote import RemotePlayer, Remotes
from workers.inference.base import Sampling
from workers.models import Models
from workers.runtime import Context
from workers.watching.metrics import PlayGauge

log = structlog.get_logger()

# So many failures in a row are not bad luck with one match: the process gives up, and says why.
_PATIENCE = 25
_REPORT_S = 60.0


class Played(msgspec.Struct, frozen=True):
    """A match that ended, and what its seats did."""

    job: PlayMatch
    outcome: Outcome
    players: Sequence[Player]
    final_clock: int
    final_progress: tuple[float, ...]
    record: bytes
    seconds: float

    @property
    def tokens(self) -> int:
        """Tokens that models wrote in this match, forced ones included."""
        steps = (step for player in self.players if isinstance(player, PolicyPlayer) for step in player.steps)
        return sum(len(step.completion_ids) for step in steps)


class Matches:
    """Plays matches of a league's game in this process."""

    def __init__(self, context: Context, models: Models) -> None:
        self._context = context
        self._models = models
        self._game = make_game(context.config.game.name, context.config.game.settings)
        self._evaluated: GameSpec = self._game.for_evaluation() if isinstance(self._game, Apart) else self._game
        self._prompting = prompting_of(models.tokenizer, self._game, context.config.prompts)
        self._records = BrokerStore(context.client)
        self._remotes = Remotes(context.config.agents, lambda agent: context.state.budget_left(agent))
        self._since = context.state.sequence
        self._reports = 0
        self._failures = 0
        self._gauge = PlayGauge()
        context.gauges.play = self._gauge.figures

    @property
    def seats(self) -> int:
        """Number of seats of the game."""
        return len(self._game.seats)

    async def play(self, job: PlayMatch, live: Collection[int] = ()) -> Played | None:
        """Play a match; None when it failed, which is recorded then.

        Args:
            job: Who plays.
            live: Seats in which a policy's newest version acts, whichever it is at each decision.

        This is the boundary for errors of one match: they are recorded once, and other matches go on.
        """
        try:
            with self._gauge.match():
                played = await self._play(job, live)
        except LogError:
            raise
        except Exception as error:
            # A server of others that is down says nothing about this process, and with fewer adapters it goes on.
            self._failures += not isinstance(error, RemoteError | MemoryShortError)
            if not isinstance(error, LeagueError):
                log.exception("match failed unexpectedly", match=job.match_id)
            await self._report_asked(job.match_id, self._remotes.ended(job.match_id))
            await self._report_failure(job, error)
            if self._failures >= _PATIENCE:
                raise
            return None
        self._failures = 0
        await self._report_asked(job.match_id, self._remotes.ended(job.match_id))
        return played

    async def report(self) -> None:
        """Record now and then what remote agents have cost in matches under way; for ever.

        Other workers hear of it before a long match ends, and little of it is lost when this process dies.
        """
        while True:
            await asyncio.sleep(_REPORT_S)
            for match_id in self._remotes.playing:
                # Not cut short when the worker leaves: what was told is told once.
                await asyncio.shield(self._report_asked(match_id, self._remotes.tell(match_id)))

    async def _report_asked(self, match_id: str, asked: Mapping[str, Tally]) -> None:
        for agent, tally in asked.items():
            event = RemoteAsked(
                agent=agent,
                match_id=match_id,
                worker=self._context.name,
                since=self._since,
                number=self._reports,
                **msgspec.structs.asdict(tally),
            )
            self._reports += 1
            await self._context.reached(await self._context.record(event))
            self._remotes.recorded(agent, tally.cost)

    async def _report_failure(self, job: PlayMatch, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        log.warning("match failed", match=job.match_id, error=text)
        failed = MatchFailed(
            match_id=job.match_id,
            purpose=job.purpose,
            worker=self._context.name,
            error=text,
            evaluation_id=job.evaluation_id,
        )
        await self._context.record(failed)

    async def _play(self, job: PlayMatch, live: Collection[int]) -> Played:
        started = time.monotonic()
        game = (self._evaluated if job.purpose == "evaluation" else self._game).new(job.seed)
        # Other matches' adapters make no room of theirs while these are played with.
        with contextlib.ExitStack() as held:
            fixed = self._fixed(job, live)
            await self._models.ensure_all([published.adapter for published in fixed.values()], held)
            players = [await self._player(job, seat, fixed.get(seat)) for seat in range(self.seats)]
            outcome = await play(game, players, job.seed)
        return Played(
            job=job,
            outcome=outcome,
            players=players,
            final_clock=game.clock,
            final_progress=tuple(game.progress(seat) for seat in range(self.seats)),
            record=zstandard.compress(game.record()),
            seconds=time.monotonic() - started,
        )

    def _fixed(self, job: PlayMatch, live: Collection[int]) -> dict[int, Published]:
        """The seats in which a named version plays, whatever is published meanwhile.

        Raises:
            UsageError: a seat's agent is neither registered nor a published version.
        """
        agents, found = self._context.state.standings().agents, {}
        for seat, agent in enumerate(job.seats):
            known, version = agents.get(agent), split_agent(agent)
            if (known is not None and known.kind != "checkpoint") or (version is not None and seat in live):
                continue
            policy, number = version or ("", 0)
            published = self._context.state.published.get(policy, {}).get(number)
            if published is None:
                raise UsageError(f"seat of {agent!r}: no such agent; expected a registered one or a published version")
            found[seat] = published
        return found

    async def _player(self, job: PlayMatch, seat: int, fixed: Published | None) -> Player:
        """Who acts in a seat: the fixed version; else the agent, or the newest version of its policy."""
        agent = job.seats[seat]
        known = self._context.state.standings().agents.get(agent)
        if known is not None and known.kind == "bot":
            return BotPlayer(self._game.bot(agent))
        if known is not None and known.kind == "remote":
            return await self._remotes.player(agent, words_of(self._game), job.match_id)
        if fixed is not None:
            provider: AdapterProvider = _always(fixed)
        elif known is not None and known.kind == "base":
            provider = _no_adapter
        else:
            provider = self._models.live((split_agent(agent) or ("", 0))[0])
        inference = self._context.config.inference
        training = job.purpose == "training"
        temperature = inference.temperature if training else inference.evaluation_temperature
        sampling = Sampling(temperature=temperature, top_p=inference.top_p)
        return PolicyPlayer(self._models.backend, self._prompting, provider, sampling)

    async def finish(
        self, played: Played, trainable: Sequence[int] = (), experience: str = "", ngram: int | None = None
    ) -> MatchFinished:
        """Keep the match's record, or its digest alone, and record its result in the history.

        Args:
            played: The match.
            trainable: Seats that are trained on.
            experience: Digest of what is.
            ngram: Parts to an n-gram, where those of its actions are to be sketched in the result.
        """
        record = await self._keep(played.record)
        outcome, job = played.outcome, played.job
        seats = [
            SeatResult(
                seat=seat,
                role=self._game.seats[seat],
                agent=agent,
                score=outcome.scores[seat],
                rank=outcome.ranks[seat],
                trainable=seat in trainable,
                metrics=outcome.metrics[seat] | _metrics(played.players[seat]),
            )
            for seat, agent in enumerate(job.seats)
        ]
        finished = MatchFinished(
            match_id=job.match_id,
            game=self._game.name,
            purpose=job.purpose,
            worker=self._context.name,
            seed=job.seed,
            seats=seats,
            winner=outcome.winner,
            reason=outcome.reason,
            length=outcome.length,
            seconds=round(played.seconds, 3),
            tokens=played.tokens,
            record=record,
            experience=experience,
            evaluation_id=job.evaluation_id,
            ngrams="" if ngram is None else self._sketch(played, ngram),
        )
        await self._context.record(finished)
        return finished

    def _sketch(self, played: Played, ngram: int) -> str:
        turns = self._game.open_record(zstandard.decompress(played.record)).turns
        return sketch(turns, self.seats, ngram).encode()

    async def close(self) -> None:
        """Let go of connections to remote agents."""
        await self._remotes.close()

    async def _keep(self, record: bytes) -> str:
        if self._context.config.history.records == "digest":
            return digest(record)
        return await self._context.persistently(lambda: self._records.put(record))

    def rollout(self, played: Played, seat: int, policy: str) -> Rollout | None:
        """What a trainable seat did; None when it was never asked to move."""
        player = played.players[seat]
        if not isinstance(player, PolicyPlayer) or not player.steps:
            return None
        role = self._game.seats[seat]
        lineup = "\n".join(agent if s != seat else policy for s, agent in enumerate(played.job.seats))
        return Rollout(
            match_id=played.job.match_id,
            game=self._game.name,
            policy=policy,
            seat=seat,
            role=role,
            group=f"{role}:{digest(lineup.encode())[:16]}",
            steps=player.steps,
            final_clock=played.final_clock,
            final_progress=played.final_progress[seat],
            score=played.outcome.scores[seat],
            rank=played.outcome.ranks[seat],
            scores=list(played.outcome.scores),
        )


def _metrics(player: Player) -> dict[str, float]:
    return player.metrics() if isinstance(player, PolicyPlayer | RemotePlayer) else {}


def _always(published: Published) -> AdapterProvider:
    return lambda: (published.version, published.adapter)


def _no_adapter() -> tuple[int, str | None]:
    return 0, None
