"""Search at decision time: samples a policy's actions, improves the best of them part by part, and judges by rollouts.

Candidates come from the policy, so that the search stays among plausible actions where there are too many to list
(Diplomacy's joint orders), as in Gray et al. 2021 ("Human-level performance in no-press Diplomacy via equilibrium
search", arXiv:2010.02923), and from bots. Few samples have every part right, so the best one is a start for hill
climbing over single parts. Rollouts to a horizon follow Tesauro and Galperin 1996 ("On-line policy improvement using
Monte-Carlo search"). There is no equilibrium computation: other seats act as the rollout player does.
"""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

from arena.games.base import Action, Game, GameSpec
from arena.match import BotPlayer, Player, SeatPlayer, decision_seed
from players.policy import PolicyPlayer
from schemas.config import SearchConfig
from schemas.errors import ConfigError
from schemas.ids import derive_seed
from schemas.trajectories import ModelCall


class SearchPlayer(SeatPlayer):
    """A policy in one seat of one match, with search; its model calls are the samples of all candidates.

    The first candidate is what the policy alone would have played.
    """

    def __init__(self, policy: PolicyPlayer, game: GameSpec, config: SearchConfig) -> None:
        """Search for a policy.

        Args:
            policy: Samples the candidates, and acts in rollouts where no bot is configured.
            game: Restores copies of positions.
            config: Numbers of candidates and rollouts, horizon and bots.

        Raises:
            ConfigError: the game hides information from seats, or has no such bot.
        """
        check_searchable(game, config)
        self._policy = policy
        self._proposers: Sequence[Player] = [policy, *(BotPlayer(game.bot(name)) for name in config.proposals)]
        self._game = game
        self._config = config
        self._rollout_player: Player = BotPlayer(game.bot(config.bot)) if config.bot else policy

    @property
    def model_calls(self) -> Sequence[ModelCall]:  # type: ignore[override]
        """See ``SeatPlayer``."""
        return self._policy.model_calls

    def metrics(self) -> dict[str, float]:
        """See ``SeatPlayer``."""
        return self._policy.metrics()

    async def act(self, game: Game, seat: int, seed: int) -> Action:
        """The action with the highest mean value, the more often sampled one of equals; see ``Player.act``."""
        seeds = [seed, *(derive_seed(seed, "candidate", number) for number in range(1, self._config.samples))]
        samples = await asyncio.gather(*(one.act(game, seat, each) for one in self._proposers for each in seeds))
        candidates = list(dict.fromkeys(samples))
        if len(candidates) == 1:
            return candidates[0]
        rollouts = Rollouts(self._game, self._config, self._rollout_player, game, seat, seed)
        values = {candidate: await rollouts.value(candidate) for candidate in candidates}
        best = max(candidates, key=lambda candidate: (values[candidate], samples.count(candidate)))
        return await self._improve(best, candidates, game, rollouts)

    async def _improve(self, best: Action, candidates: Sequence[Action], game: Game, rollouts: "Rollouts") -> Action:
        """Hill climbing: replaces one part at a time by another candidate's, as long as the value rises."""
        left, rng = self._config.replacements, Random(derive_seed(rollouts.seed, "replacements"))
        improved = True
        while improved:
            improved = False
            for index, part in _replacements(best, candidates, rng):
                variant = (*best[:index], part, *best[index + 1 :])
                if variant in rollouts.values or not game.is_legal(rollouts.seat, variant):
                    continue
                if left == 0:
                    return best
                left -= 1
                if await rollouts.value(variant) > rollouts.values[best]:
                    best, improved = variant, True
        return best


class ApprenticePlayer(SeatPlayer):
    """A policy that is trained by expert iteration: it plays, and search names the action to be imitated.

    The positions are the apprentice's own, and the targets the actions that the expert would choose (Anthony, Tian and
    Barber 2017, "Thinking fast and slow with deep learning and tree search", arXiv:1705.08439), so that a match is the
    same with and without an expert.
    """

    def __init__(self, policy: PolicyPlayer, expert: SearchPlayer, share: float) -> None:
        """Join a policy to an expert.

        Args:
            policy: Plays; its model calls are trained on.
            expert: Searches with the same policy, by a ``PolicyPlayer`` of its own.
            share: Of the decisions, 0 to 1, drawn by their seeds, in which the expert is asked.
        """
        self._policy = policy
        self._expert = expert
        self._share = share

    @property
    def model_calls(self) -> Sequence[ModelCall]:  # type: ignore[override]
        """See ``SeatPlayer``."""
        return self._policy.model_calls

    def metrics(self) -> dict[str, float]:
        """See ``SeatPlayer``."""
        return self._policy.metrics()

    def assign_action_credits(self, game: Game, seat: int) -> None:
        """See ``SeatPlayer``."""
        self._policy.assign_action_credits(game, seat)

    async def act(self, game: Game, seat: int, seed: int) -> Action:
        """The policy's own action; see ``Player.act``."""
        action = await self._policy.act(game, seat, seed)
        if Random(derive_seed(seed, "expert")).random() < self._share:
            self._policy.record_expert(game, seat, await self._expert.act(game, seat, seed))
        return action


def _replacements(action: Action, candidates: Sequence[Action], rng: Random) -> list[tuple[int, str]]:
    """Other parts of the candidates at the same place, with the place, in random order."""
    alike = [candidate for candidate in candidates if len(candidate) == len(action)]
    columns = (dict.fromkeys(candidate[index] for candidate in alike) for index in range(len(action)))
    parts = [(index, part) for index, column in enumerate(columns) for part in column if part != action[index]]
    rng.shuffle(parts)
    return parts


class Rollouts:
    """Values of one seat's actions in one position, each computed once; all of them meet the same random numbers."""

    def __init__(self, spec: GameSpec, config: SearchConfig, player: Player, game: Game, seat: int, seed: int) -> None:
        self.seat = seat
        self.seed = seed
        self.values: dict[Action, float] = {}
        self._spec = spec
        self._config = config
        self._player = player
        self._saved = game.save()
        self._others: dict[int, Mapping[int, Action]] = {}
        """Actions of the other seats in the first turn, by the rollout's number: they do not know the candidate."""

    async def value(self, action: Action) -> float:
        """Mean value of the positions that rollouts of an action end in."""
        if action not in self.values:
            numbers = range(self._config.rollouts)
            self.values[action] = sum([await self._roll_out(action, number) for number in numbers]) / len(numbers)
        return self.values[action]

    async def _roll_out(self, action: Action, number: int) -> float:
        # Rollouts by bots never wait, and other matches share this event loop.
        await asyncio.sleep(0)
        game, seed, config = self._spec.load(self._saved), derive_seed(self.seed, "rollout", number), self._config
        if number not in self._others:
            self._others[number] = await self._act(
                game, [other for other in game.to_move() if other != self.seat], seed, 0
            )
        actions, turn = {**self._others[number], self.seat: action}, 0
        while actions:
            clock = game.clock
            game.apply(actions)
            turn += 1
            if turn >= config.horizon > 0 and (game.clock != clock or not config.whole_rounds):
                break
            actions = await self._act(game, game.to_move(), seed, turn)
        return position_value(game, self.seat, config.value)

    async def _act(self, game: Game, seats: Sequence[int], seed: int, turn: int) -> dict[int, Action]:
        return {seat: await self._player.act(game, seat, decision_seed(seed, turn, seat)) for seat in seats}


def position_value(game: Game, seat: int, value: str = "share") -> float:
    """Value of a position for a seat.

    ``share``: its share of all seats' progress, or an even share of none; in a finished game its score.
    ``squares``: its share of the squares of progress; in a finished game half of that, and a half for the sole winner.
    """
    over = not game.to_move()
    if over and value == "share":
        return game.outcome().scores[seat]
    power = 2 if value == "squares" else 1
    progress = [game.progress(other) ** power for other in range(len(game.seats))]
    share = progress[seat] / sum(progress) if sum(progress) > 0 else 1 / len(progress)
    return (share + (game.outcome().winner == seat)) / 2 if over else share


def check_searchable(game: GameSpec, config: SearchConfig) -> None:
    """Raise ``ConfigError`` unless a game can be searched with these settings."""
    if not game.is_fully_observed:
        raise ConfigError(
            f"search: {game.name} hides information or has chance events, which a copy of the position would reveal; "
            "expected a game in which every seat sees all of it"
        )
    for key, name in [("bot", config.bot), *(("proposals", name) for name in config.proposals)]:
        if name and name not in game.bots:
            raise ConfigError(f"search.{key}: {game.name} has no bot {name!r}; expected one of {', '.join(game.bots)}")
