"""Search at decision time: samples a policy's actions, improves the best of them part by part, and judges by rollouts.

Candidates come from the policy, so that the search stays among plausible actions where there are too many to list
(Diplomacy's joint orders), as in Gray et al. 2021 ("Human-level performance in no-press Diplomacy via equilibrium
search", arXiv:2010.02923), and from bots. Few samples have every part right, so the best one is a start for hill
climbing over single parts. Rollouts to a horizon follow Tesauro and Galperin 1996 ("On-line policy improvement using
Monte-Carlo search"); they go to the more promising candidates by sequential halving (Karnin, Koren and Somekh 2013,
"Almost optimal exploration in multi-armed bandits"). There is no equilibrium computation: other seats act as the
rollout player does, or by a model that is fitted to what they played in the match so far.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean, stdev

import msgspec

from arena.games.base import Action, Game, GameSpec, OpponentModel, SupportsOpponentModel, SupportsValueFunction
from arena.match import BotPlayer, Player, SeatPlayer, decision_seed
from players.policy import PolicyPlayer
from schemas.config import SearchConfig
from schemas.decisions import DecisionNote
from schemas.errors import ConfigError
from schemas.ids import derive_seed
from schemas.trajectories import ModelCall


class SearchPlayer(SeatPlayer):
    """A policy in one seat of one match, with search; its model calls are the samples of all candidates.

    The first candidate is what the policy alone would have played. The policy also acts in rollouts where no bot is
    configured.
    """

    def __init__(self, policy: PolicyPlayer, game: GameSpec, config: SearchConfig) -> None:
        """Raise ``ConfigError`` if the game hides information from seats, or has no such bot."""
        check_searchable(game, config)
        self._policy = policy
        self._proposers: Sequence[Player] = [policy, *(BotPlayer(game.bot(name)) for name in config.proposals)]
        self._game = game
        self._config = config
        self._rollout_player: Player = BotPlayer(game.bot(config.bot)) if config.bot else policy
        self._decisions: list[tuple[ModelCall, DecisionNote]] = []
        self._opponents: OpponentModel | None = None
        if config.opponent_model and isinstance(game, SupportsOpponentModel):
            self._opponents = game.opponent_model(config.opponent_bots)

    @property
    def model_calls(self) -> Sequence[ModelCall]:  # type: ignore[override]
        """Samples of all candidates."""
        return self._policy.model_calls

    def decisions(self) -> Sequence[tuple[ModelCall, DecisionNote]]:
        """One sample for each turn: the one that was played, or else the first, beside the action that was played."""
        return self._decisions

    def metrics(self) -> dict[str, float]:
        """Metrics of the policy; see ``SeatPlayer``."""
        return self._policy.metrics()

    async def act(self, game: Game, seat: int, seed: int) -> Action:
        """The action with the highest mean value, the more often sampled one of equals; see ``Player.act``."""
        seeds = [seed, *(derive_seed(seed, "candidate", number) for number in range(1, self._config.samples))]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(proposer.act(game, seat, each)) for proposer in self._proposers for each in seeds
                ]
        except ExceptionGroup as failures:
            # The other samples were cancelled, or failed likewise.
            raise failures.exceptions[0] from None
        samples = [task.result() for task in tasks]
        # Before rollouts, in which the policy may decide too.
        sampled = {note.move: (call, note) for call, note in self._policy.decisions()[: -len(seeds) - 1 : -1]}
        action = await self._search(game, seat, seed, samples)
        move, first = "; ".join(action), "; ".join(samples[0])
        call, note = sampled.get(move, sampled[first])
        self._decisions.append((call, msgspec.structs.replace(note, move=move)))
        return action

    async def _search(self, game: Game, seat: int, seed: int, samples: Sequence[Action]) -> Action:
        candidates = list(dict.fromkeys(samples))
        if len(candidates) == 1:
            return candidates[0]
        if self._opponents is not None:
            self._opponents.observe(game, seat)
        rollouts = Rollouts(self._game, self._config, self._rollout_player, game.save(), seat, seed, self._opponents)
        best = await self._choose(candidates, samples, rollouts)
        return await self._improve(best, candidates, game, rollouts)

    async def _choose(self, candidates: Sequence[Action], samples: Sequence[Action], rollouts: "Rollouts") -> Action:
        """Sequential halving: the better half of the candidates gets twice the rollouts, until they have the most."""
        count, left = self._config.rollouts, list(candidates)
        while True:
            values = {candidate: fmean(await rollouts.values(candidate, count)) for candidate in left}
            left.sort(key=lambda candidate: (values[candidate], samples.count(candidate)), reverse=True)
            if count >= self._config.most_rollouts or len(left) == 1:
                return left[0]
            left, count = left[: math.ceil(len(left) / 2)], min(2 * count, self._config.most_rollouts)

    async def _improve(self, best: Action, candidates: Sequence[Action], game: Game, rollouts: "Rollouts") -> Action:
        """Hill climbing: replaces one part at a time by another candidate's, as long as the value rises."""
        left = self._config.replacements
        rng = Random(derive_seed(rollouts.seed, "replacements"))
        tried = {*candidates}
        improved = True
        while improved:
            improved = False
            for index, part in _replacements(best, candidates, rng):
                variant = (*best[:index], part, *best[index + 1 :])
                if variant in tried or not game.is_legal(rollouts.seat, variant):
                    continue
                if left == 0:
                    return best
                left -= 1
                tried.add(variant)
                if await self._is_better(variant, best, rollouts):
                    best, improved = variant, True
        return best

    async def _is_better(self, variant: Action, best: Action, rollouts: "Rollouts") -> bool:
        """Whether a variant's mean value is higher by the margin; the comparison ends early where it is not higher."""
        count = self._config.rollouts
        while True:
            ours, theirs = await rollouts.values(variant, count), await rollouts.values(best, count)
            gain = fmean(ours) - fmean(theirs)
            if gain <= 0:
                return False
            if count >= self._config.most_rollouts:
                break
            count = min(2 * count, self._config.most_rollouts)
        if count == 1 or self._config.margin == 0:
            return True
        gains = [our_value - their_value for our_value, their_value in zip(ours, theirs, strict=True)]
        return gain > self._config.margin * stdev(gains) / math.sqrt(count)


def _replacements(action: Action, candidates: Sequence[Action], rng: Random) -> list[tuple[int, str]]:
    """Other parts of the candidates at the same place, with the place, in random order."""
    alike = [candidate for candidate in candidates if len(candidate) == len(action)]
    columns = (dict.fromkeys(candidate[index] for candidate in alike) for index in range(len(action)))
    parts = [(index, part) for index, column in enumerate(columns) for part in column if part != action[index]]
    rng.shuffle(parts)
    return parts


@dataclass(eq=False)
class Rollouts:
    """Values of one seat's actions in one saved position, by rollout; all actions meet the same random numbers.

    The player acts in all seats; where there is an opponent model, in ``seat`` alone.
    """

    _spec: GameSpec
    _config: SearchConfig
    _player: Player
    _position: bytes
    seat: int
    seed: int
    _opponents: OpponentModel | None = None
    _values: dict[Action, list[float]] = field(default_factory=dict)
    _others: dict[int, Mapping[int, Action]] = field(default_factory=dict)
    """Actions of the other seats in the first turn, by the rollout's number: they do not know the candidate."""

    async def values(self, action: Action, count: int) -> Sequence[float]:
        """Values of the positions that the first ``count`` rollouts of an action end in, each computed once."""
        values = self._values.setdefault(action, [])
        while len(values) < count:
            values.append(await self._roll_out(action, len(values)))
        return values[:count]

    async def _roll_out(self, action: Action, number: int) -> float:
        # Rollouts by bots never wait, and other matches share this event loop.
        await asyncio.sleep(0)
        game = self._spec.load(self._position)
        seed = derive_seed(self.seed, "rollout", number)
        if number not in self._others:
            others = [seat for seat in game.to_move() if seat != self.seat]
            self._others[number] = await self._act(game, others, seed, 0)
        actions = {**self._others[number], self.seat: action}
        turn = 0
        while actions:
            clock = game.clock
            game.apply(actions)
            turn += 1
            if turn >= self._config.horizon > 0 and (game.clock != clock or not self._config.whole_rounds):
                break
            actions = await self._act(game, game.to_move(), seed, turn)
        if self._config.value == "fitted" and isinstance(self._spec, SupportsValueFunction) and game.to_move():
            return self._spec.expected_value(game, self.seat)
        return position_value(game, self.seat, self._config.value)

    async def _act(self, game: Game, seats: Sequence[int], seed: int, turn: int) -> dict[int, Action]:
        actions: dict[int, Action] = {}
        if self._opponents is not None:
            rng = Random(derive_seed(seed, "opponents", turn))
            actions.update(self._opponents.act(game, [seat for seat in seats if seat != self.seat], rng))
        for seat in seats:
            if seat not in actions:
                actions[seat] = await self._player.act(game, seat, decision_seed(seed, turn, seat))
        return actions


def position_value(game: Game, seat: int, value: str = "share") -> float:
    """Value of a position for a seat.

    ``share``: its share of all seats' progress, or an even share of none; in a finished game its score.
    ``squares``: its share of the squares of progress; in a finished game half of that, and a half for the sole winner.
    ``fitted``: that of a finished game.
    """
    over = not game.to_move()
    if over and value == "share":
        return game.outcome().scores[seat]
    power = 1 if value == "share" else 2
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
    named = {"bot": [config.bot], "proposals": config.proposals, "opponent_bots": config.opponent_bots}
    for key, name in ((key, name) for key, names in named.items() for name in names):
        if name and name not in game.bots:
            raise ConfigError(f"search.{key}: {game.name} has no bot {name!r}; expected one of {', '.join(game.bots)}")
    if config.opponent_model and not isinstance(game, SupportsOpponentModel):
        raise ConfigError(f"search.opponent_model: {game.name} has none; expected false, or a game such as diplomacy")
    if config.value == "fitted" and not isinstance(game, SupportsValueFunction):
        raise ConfigError(f"search.value: {game.name} has no value function; expected share or squares")
    if config.opponent_bots and not config.opponent_model:
        raise ConfigError("search.opponent_bots: expected opponent_model = true beside it, the model they are part of")
