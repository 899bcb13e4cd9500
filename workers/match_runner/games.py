"""Games between agents."""

import time
from collections.abc import Collection, Sequence
from typing import NamedTuple

import zstandard

from arena.environments import ArenaSpec, make_environment
from arena.games.base import Game, GameSpec, Outcome
from arena.games.texts import evaluation_spec, words_of
from arena.match import BotPlayer, SeatPlayer, play
from league.state.saved_state import PublishedVersion
from models.tokenizer import Tokenizer
from players.prompt_builder import make_prompter
from players.remote.remote_player import RemoteAgents
from players.reply_formats import Prompter
from schemas.codec import canonical_json
from schemas.decisions import DecisionNote
from schemas.errors import GameError
from schemas.ids import derive_seed, digest, policy_of
from schemas.jobs import PlayMatch
from schemas.trajectories import ModelCall, Trajectory
from workers.match_runner.completed import CompletedMatch
from workers.policy_weights import ModelManager
from workers.runtime import Context


class CompletedGame(CompletedMatch, frozen=True, kw_only=True):
    """A ``CompletedMatch`` of a game."""

    spec: GameSpec
    players: Sequence[SeatPlayer]
    final_clock: int
    final_progress: tuple[float, ...]
    mirrors: frozenset[int] = frozenset()
    """Seats of a policy's newest version; in a line-up they count as the policy, whichever version it is."""

    @classmethod
    def from_game(
        cls,
        spec: GameSpec,
        job: PlayMatch,
        game: Game,
        players: Sequence[SeatPlayer],
        outcome: Outcome,
        seconds: float,
        tokenizer: Tokenizer | None,
        mirrors: Collection[int] = (),
    ) -> "CompletedGame":
        """Make the result of a game that has just ended; ``seconds`` is its duration, others as the fields."""
        if job.purpose == "training":
            for seat, player in enumerate(players):
                player.assign_action_credits(game, seat)
        return cls(
            spec=spec,
            job=job,
            outcome=outcome,
            players=players,
            final_clock=game.clock,
            final_progress=tuple(game.progress(seat) for seat in range(len(job.seats))),
            record=zstandard.compress(game.record()),
            seconds=seconds,
            tokens=sum(len(call.completion_ids) for player in players for call in player.model_calls),
            tokenizer=tokenizer,
            mirrors=frozenset(mirrors),
        )

    def make_trajectory(self, seat: int, policy: str) -> Trajectory | None:
        """The seat's model calls with its result; None when no model was called for the seat."""
        calls = self.players[seat].model_calls
        if not calls:
            return None
        role = self.outcome.roles[seat] if self.outcome.roles else self.spec.seats[seat]
        names = [policy_of(agent) or agent if at in self.mirrors else agent for at, agent in enumerate(self.job.seats)]
        names[seat] = policy
        lineup = "\n".join(names)
        return Trajectory(
            match_id=self.job.match_id,
            game=self.outcome.environment or self.spec.name,
            policy=policy,
            seat=seat,
            role=role,
            group=self.job.group or f"{role}:{digest(lineup.encode())[:16]}",
            group_size=self.job.group_size,
            steps=list(calls),
            final_clock=self.final_clock,
            final_progress=self.final_progress[seat],
            score=self.outcome.scores[seat],
            rank=self.outcome.ranks[seat],
            scores=list(self.outcome.scores),
            teams=list(self.outcome.teams),
        )

    def seat_metrics(self, seat: int) -> dict[str, float]:
        """Metrics of the seat's player."""
        return self.players[seat].metrics()

    def decisions(self, seat: int) -> Sequence[tuple[ModelCall, DecisionNote | None]]:
        """The decisions of the seat's player."""
        return self.players[seat].decisions()

    def actions(self) -> list[list[str]]:
        """Parts of the actions of every seat, read from the game record."""
        by_seat: list[list[str]] = [[] for _ in self.job.seats]
        for turn in self.spec.open_record(zstandard.decompress(self.record)).turns:
            for seat, parts in turn.items():
                by_seat[seat].extend(parts)
        return by_seat


class _Variant(NamedTuple):
    game: GameSpec
    evaluation_game: GameSpec
    prompter: Prompter


class GameRunner:
    """Plays a game between agents in this process."""

    def __init__(self, context: Context, models: ModelManager, game: GameSpec) -> None:
        self._context = context
        self._models = models
        self.environment = game
        self._variants = {canonical_json({}): self._make_variant(game)}
        """Variants of the game by the settings that replace the league's."""

    def _make_variant(self, game: GameSpec) -> _Variant:
        prompter = make_prompter(self._models.tokenizer, game, self._context.config.prompts)
        return _Variant(game, evaluation_spec(game), prompter)

    def _find_variant(self, job: PlayMatch) -> _Variant:
        key = canonical_json(job.settings)
        if key not in self._variants:
            league = self._context.config.game
            game = make_environment(league.name, league.settings | job.settings)
            if isinstance(game, ArenaSpec) or len(job.seats) > len(game.seats):
                raise GameError(f"match {job.match_id}: {job.settings} do not fit its {len(job.seats)} seats")
            self._variants[key] = self._make_variant(game)
        return self._variants[key]

    def make_tombstone(self, job: PlayMatch, seat: int, policy: str) -> Trajectory | None:
        """A trajectory without steps in the match's group; None if it has none."""
        if not job.group:
            return None
        return Trajectory(
            match_id=job.match_id,
            game=self.environment.name,
            policy=policy,
            seat=seat,
            role=self.environment.seats[seat],
            group=job.group,
            steps=[],
            final_clock=0,
            final_progress=0.0,
            score=0.0,
            rank=1,
            group_size=job.group_size,
        )

    async def play(self, job: PlayMatch, live: Collection[int], remotes: RemoteAgents) -> CompletedGame:
        """Play the game, with a player for each seat."""
        started = time.monotonic()
        variant = self._find_variant(job)
        spec = variant.game if job.purpose == "training" else variant.evaluation_game
        game = spec.new(job.seed)
        async with self._models.hold_versions(job, live) as versions:
            players = [
                await self._make_player(job, seat, versions.get(seat), variant, spec, remotes)
                for seat in range(len(job.seats))
            ]
            # Matches of a group start alike, and bots play alike; models sample anew in each.
            sampling_seed = derive_seed(job.seed, "sampling", job.match_id) if job.group else None
            outcome = await play(game, players, job.seed, sampling_seed=sampling_seed)
        seconds, tokenizer = time.monotonic() - started, self._models.tokenizer
        return CompletedGame.from_game(variant.game, job, game, players, outcome, seconds, tokenizer, live)

    async def _make_player(
        self,
        job: PlayMatch,
        seat: int,
        version: PublishedVersion | None,
        variant: _Variant,
        spec: GameSpec,
        remotes: RemoteAgents,
    ) -> SeatPlayer:
        agent = job.seats[seat]
        kind = self._models.agent_kind(agent)
        if kind == "bot":
            return BotPlayer(variant.game.bot(agent))
        if kind == "remote":
            return await remotes.make_player(agent, words_of(variant.game), job.match_id)
        temperature = self._context.config.inference.temperature if job.purpose == "training" else None
        return self._models.make_player(agent, version, variant.prompter, spec, temperature)
