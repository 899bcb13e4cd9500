"""Any game as an episode: each seat is a role, prompted in plain language, or a bot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from arena.arena import Arena
from arena.episodes import Episode
from arena.games.base import Action, Bot, Game, GameSpec, Outcome, Words
from arena.games.texts import Listing, words_of
from arena.match import BotPlayer, play
from arena.prompts import build_game_messages, with_system_prompt
from arena.rubrics import Rubric
from schemas.episodes import EpisodeState, Rollout
from schemas.errors import UsageError
from schemas.ids import derive_seed


class GameState(EpisodeState):
    """State of a game's episode."""

    game: Game | None = None
    """The position, once there is one; to be read only."""
    outcome: Outcome | None = None
    seats: tuple[str | Bot, ...] = ()
    """Id of the role, or the bot, in each seat, after rotation."""
    invalid: dict[str, int] = msgspec.field(default_factory=dict)
    """Replies without a complete legal action, by role."""

    def roles(self) -> dict[str, int]:
        """Seat of each role."""
        return {holder: seat for seat, holder in enumerate(self.seats) if isinstance(holder, str)}


def final_score(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """The game's score of every seat that is a role."""
    return dict(rollout.extras["scores"])


class GameEpisode(Episode):
    """One game to its end. A role sees the rules and its own seat's view of the position, and no more."""

    def __init__(
        self,
        spec: GameSpec,
        roles: Sequence[str],
        rubric: Rubric | None = None,
        max_turns: int | None = 10_000,
        episode_type: str = "",
        rotate: bool = False,
        constrained: bool = False,
        bots: Mapping[int, Bot] | None = None,
    ) -> None:
        """An episode of a game with its players: bots by seat, and roles in the order of the other seats.

        Seats of one policy still need a role each: rewards are by role. The scores and the name are the game's unless
        others are given; an episode with more than ``max_turns`` has failed. With ``rotate`` all players shift by some
        seats: by the artifact if that is an integer, else by the episode's seed. ``constrained`` roles can only reply
        with legal moves, where the game lists them and the client can be constrained to them (``Listing``,
        ``SupportsChoices``); elsewhere they reply freely.

        Raises:
            GameError: the game has no form in plain language.
            UsageError: other than one player for each seat, or a role in two seats.
        """
        bots = bots or {}
        if (
            len(roles) + len(bots) != len(spec.seats)
            or len(set(roles)) != len(roles)
            or set(bots) - {*range(len(spec.seats))}
        ):
            raise UsageError(
                f"{spec.name}: roles {list(roles)} and bots in seats {sorted(bots)}; "
                f"expected {len(spec.seats)} players, one for each seat, and no role twice"
            )
        self.episode_type = episode_type or spec.name
        self.rubric = rubric or Rubric([final_score])
        free = iter(roles)
        self._seats = tuple(bots[seat] if seat in bots else next(free) for seat in range(len(spec.seats)))
        self._spec = spec
        self._words = words_of(spec)
        self._listing = self._words if constrained and isinstance(self._words, Listing) else None
        self._max_turns = max_turns
        self._rotate = rotate

    def new_state(self) -> GameState:
        """An empty state, before the game's first position."""
        return GameState()

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        """Play to the end; ``GameError`` for too many turns or a bot's illegal action.

        All seats that move in a turn are asked concurrently.
        """
        assert isinstance(state, GameState)
        game = state.game = self._spec.new(derive_seed(state.seed, "game"))
        is_given = isinstance(artifact, int) and not isinstance(artifact, bool)
        rotation = artifact if is_given else derive_seed(state.seed, "rotation")
        shift = rotation % len(self._seats) if self._rotate else 0
        state.seats = (*self._seats[-shift:], *self._seats[:-shift]) if shift else self._seats
        players = [
            RolePlayer(holder, self._words, self._listing, arena, state)
            if isinstance(holder, str)
            else BotPlayer(holder)
            for holder in state.seats
        ]
        state.outcome = await play(game, players, state.seed, self._max_turns)
        return state

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """``seats``, ``scores``, ``ranks``, ``metrics`` and ``invalid`` replies by role; ``reason`` and ``length``."""
        assert isinstance(state, GameState)
        assert state.outcome is not None
        outcome, roles = state.outcome, state.roles()
        return {
            "seats": roles,
            "scores": {role: outcome.scores[seat] for role, seat in roles.items()},
            "ranks": {role: outcome.ranks[seat] for role, seat in roles.items()},
            "metrics": {role: outcome.metrics[seat] for role, seat in roles.items()},
            "invalid": {role: state.invalid.get(role, 0) for role in roles},
            "reason": outcome.reason,
            "length": outcome.length,
        }


@dataclass
class RolePlayer:
    """A role in a seat: a ``Player`` of ``arena.match``, constrained to the replies of ``listing``, if any."""

    role_id: str
    words: Words
    listing: Listing | None
    arena: Arena
    state: GameState

    async def act(self, game: Game, seat: int, seed: int) -> Action:
        """Ask the role; the game's default replaces a reply without a legal action, which is counted."""
        clock = game.clock
        progress = game.progress(seat)
        system = self.arena.role(self.role_id).system_prompt
        messages = with_system_prompt(build_game_messages(self.words, game, seat), system)
        choices = self.listing.replies(game, seat) if self.listing else ()
        call = await self.arena.ask(messages, self.role_id, choices=choices)
        parsed = self.words.understand(game, seat, call.response.text, Random(derive_seed(seed, "reply")))
        if parsed.illegal:
            self.state.invalid[self.role_id] = self.state.invalid.get(self.role_id, 0) + 1
        call.amend(clock=clock, progress=progress, invalid=parsed.illegal > 0)
        return parsed.action
