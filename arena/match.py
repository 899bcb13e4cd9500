"""Plays one game between agents in seats, and replays recorded matches to find where they diverge.

All seats that must act in a turn are asked concurrently; bots answer synchronously. Every decision has its own seed,
derived from match, turn and seat, so that a match can be replayed decision by decision and does not depend on the order
of the answers.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Protocol

import msgspec

from arena.games.base import Action, Bot, Game, Outcome, Recording, check_outcome, position_checksum
from schemas.decisions import DecisionNote
from schemas.errors import GameError
from schemas.ids import derive_seed
from schemas.trajectories import ModelCall


class Player(Protocol):
    """The agent in a seat."""

    async def act(self, game: Game, seat: int, seed: int) -> Action:
        """A legal action for ``seat``, with all randomness from ``seed``; must not change the game."""


class SeatPlayer(Player, Protocol):
    """A player of a league's match; by default no model was called."""

    model_calls: Sequence[ModelCall] = ()
    """The seat's model calls, in order."""

    def decisions(self) -> Sequence[tuple[ModelCall, DecisionNote]]:
        """The model call behind each of the seat's actions, in order, with facts about it."""
        return ()

    def metrics(self) -> dict[str, float]:
        """Facts about the seat's replies, for ``SeatResult.metrics``."""
        return {}

    def assign_action_credits(self, game: Game, seat: int) -> None:
        """Credit the parts of the seat's actions by the finished game, where it can tell."""
        return None


class BotPlayer(SeatPlayer):
    """A scripted agent as a ``Player``."""

    def __init__(self, bot: Bot) -> None:
        self.bot = bot

    async def act(self, game: Game, seat: int, seed: int) -> Action:
        """The bot's action for this seed."""
        return self.decide(game, seat, seed)

    def decide(self, game: Game, seat: int, seed: int) -> Action:
        """``act`` without a coroutine: bots never wait."""
        return self.bot.act(game, seat, Random(seed))


async def play(
    game: Game, players: Sequence[Player], seed: int, max_turns: int | None = None, sampling_seed: int | None = None
) -> Outcome:
    """Play ``game``, which is changed in place, to its end, between one player per seat; one may play several.

    ``decision_seed`` derives each decision's seed from the match's, or from ``sampling_seed`` for players that are no
    bots. ``max_turns`` None is no limit.

    Raises:
        GameError: the players don't fit the seats, a player returned an illegal action (``Game.apply`` names turn,
            seat and action), or the game was not over after ``max_turns``.
    """
    if len(players) != len(game.seats):
        raise GameError(f"{game.name}: {len(players)} players; expected {len(game.seats)}")
    turn = 0
    sampling_seed = seed if sampling_seed is None else sampling_seed
    while moving := game.to_move():
        if turn == max_turns:
            raise GameError(f"{game.name}: the game is not over after {turn} turns")
        actions = await _collect_actions(game, players, moving, (seed, sampling_seed), turn)
        game.apply(actions)
        turn += 1
        # Games without an awaiting player would otherwise block all others on this event loop.
        await asyncio.sleep(0)
    outcome = game.outcome()
    check_outcome(game.name, outcome, len(game.seats))
    return outcome


def decision_seed(match_seed: int, turn: int, seat: int) -> int:
    """Seed of one decision; turns count from 0 at the start of ``play``."""
    return derive_seed(match_seed, "decision", turn, seat)


async def _collect_actions(
    game: Game, players: Sequence[Player], moving: Sequence[int], seeds: tuple[int, int], turn: int
) -> dict[int, Action]:
    """Every seat's action, in the order of seats; ``seeds`` are for bots and other players."""
    actions: dict[int, Action] = {}
    waiting: dict[int, asyncio.Task[Action]] = {}
    try:
        async with asyncio.TaskGroup() as group:
            for seat in moving:
                player = players[seat]
                if isinstance(player, BotPlayer):
                    actions[seat] = player.decide(game, seat, decision_seed(seeds[0], turn, seat))
                else:
                    waiting[seat] = group.create_task(player.act(game, seat, decision_seed(seeds[1], turn, seat)))
    except ExceptionGroup as failures:
        # The match fails with the first reason; other players were cancelled, or failed likewise.
        raise failures.exceptions[0] from None
    actions.update((seat, task.result()) for seat, task in waiting.items())
    return {seat: actions[seat] for seat in moving}


class Divergence(msgspec.Struct, frozen=True):
    """The first difference between record and replay."""

    turn: int | None
    """Counted from 1; None for the match as a whole."""
    seat: int | None
    what: str
    """Kind of difference: ``seed``, ``legality``, ``decision``, ``position``, ``turns``, ``scores`` …"""
    recorded: str
    replayed: str


class Resimulation(msgspec.Struct, frozen=True):
    """Result of replaying a recorded match."""

    turns: int
    """Replayed turns, up to the divergence if any."""
    decisions: int
    """Recomputed decisions of bots."""
    positions: int
    """Positions compared with a checksum of the record."""
    divergence: Divergence | None

    @property
    def identical(self) -> bool:
        """Whether there is no divergence."""
        return self.divergence is None


def resimulate(recording: Recording, seed: int, bots: Mapping[int, Bot], result: Outcome) -> Resimulation:
    """Replay a recorded match: its seed and actions through the engine, its bots' decisions from their seeds.

    For seats without a bot (models), only the legality of their actions can be checked.

    The recording's start position is changed; the seed, from which decisions derive, and the result are the history's.
    """
    counts: Counter[str] = Counter()
    end = _replay(recording, seed, bots, counts)
    divergence = end if isinstance(end, Divergence) else compare_outcome(result, end)
    return Resimulation(counts["turns"], counts["decisions"], counts["positions"], divergence)


def _replay(recording: Recording, seed: int, bots: Mapping[int, Bot], counts: Counter[str]) -> Outcome | Divergence:
    """The outcome after all turns, which are counted, or the first difference."""
    if recording.seed != seed:
        return Divergence(None, None, "seed", str(seed), str(recording.seed))
    game: Game = recording.start
    for turn, actions in enumerate(recording.turns, start=1):
        for seat, action in sorted(actions.items()):
            if not game.is_legal(seat, action):
                return Divergence(turn, seat, "legality", "; ".join(action), "not legal here")
            if seat in bots:
                again = bots[seat].act(game, seat, Random(decision_seed(seed, turn - 1, seat)))
                counts["decisions"] += 1
                if again != action:
                    return Divergence(turn, seat, "decision", "; ".join(action), "; ".join(again))
        try:
            game.apply(actions)
        except GameError as error:
            return Divergence(turn, None, "legality", f"seats {sorted(actions)} moved", str(error))
        counts["turns"] += 1
        if turn <= len(recording.checks):
            recorded, replayed = recording.checks[turn - 1], position_checksum(game.save())
            counts["positions"] += 1
            if replayed != recorded:
                return Divergence(turn, None, "position", str(recorded), str(replayed))
    if moving := list(game.to_move()):
        return Divergence(None, None, "turns", f"over after {counts['turns']}", f"seats {moving} still to move")
    return game.outcome()


def compare_outcome(recorded: Outcome, replayed: Outcome) -> Divergence | None:
    """The first difference between two outcomes."""
    for name in ("winner", "reason", "length", "teams", "roles"):
        old, new = getattr(recorded, name), getattr(replayed, name)
        if old != new:
            return Divergence(None, None, name, str(old), str(new))
    if len(recorded.scores) != len(replayed.scores):
        return Divergence(None, None, "seats", str(len(recorded.scores)), str(len(replayed.scores)))
    for name in ("scores", "ranks", "metrics"):
        for seat, (old, new) in enumerate(zip(getattr(recorded, name), getattr(replayed, name), strict=True)):
            if old != new:
                return Divergence(None, seat, name, str(old), str(new))
    return None
