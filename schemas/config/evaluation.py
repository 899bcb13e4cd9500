"""The tables ``rollout``, ``episodes``, ``matchmaking``, ``ratings``, ``evaluation`` and ``promotion``."""

from typing import Literal

from schemas.config.base import Plugin, Table
from schemas.errors import ConfigError
from schemas.events.rating import SprtConfig
from schemas.numbers import Count, PositiveFloat, PositiveInt


class RatingsConfig(Table, frozen=True):
    """The rating systems and the matches they count."""

    system: Plugin = Plugin(name="elo")
    """The official one: what matchmaking, promotions and the leaderboard go by."""
    also: tuple[Plugin, ...] = ()
    """Others that rate the same matches beside it, for comparison."""
    purposes: tuple[str, ...] = ("evaluation",)

    def __post_init__(self) -> None:
        names = [plugin.name for plugin in self.systems]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"ratings.also: {name!r} is there twice; expected every system once")

    @property
    def systems(self) -> tuple[Plugin, ...]:
        """All of them, the official one first."""
        return (self.system, *self.also)


class EvaluationConfig(Table, frozen=True):
    """Evaluator workers and their suites."""

    workers: int = 1
    games_in_flight: PositiveInt = 14
    every: PositiveInt = 50
    """Published versions between evaluations; checkpoints are always evaluated."""
    gatekeepers: tuple[str, ...] = ("random_bot", "previous_best", "recent")
    """Agents of the other seats: agents by name, ``previous_best`` and ``recent``."""
    gatekeeper_games: int = 50
    """Matches of that tournament."""
    max_games: Count | None = None
    """The most evaluation matches of one agent, all suites together; None for no cap. A suite that would pass it is cut
    to whole rounds of seats, or to whole pairs."""
    max_games_per_environment: Count | None = None
    """The same for each environment of a game with several (TextArena's ``evaluation_env``): rounds and pairs in an
    environment that has reached it are left out."""
    newest_games: Count = 0
    """Matches of the newest version of every trained policy against ``benchmark_opponents`` that are kept waiting or in
    play throughout training, besides all other evaluations. Needs a cap, which ends them when training stands still."""
    benchmark_opponents: tuple[str, ...] = ("random_bot",)
    """Before and after training, the hero plays each of these in all other seats."""
    benchmark_games: int = 210
    tries: PositiveInt = 5
    """Deliveries of a match's job before it becomes a dead letter and its match is recorded as failed, because workers
    died while they played it."""

    def __post_init__(self) -> None:
        if self.newest_games and self.max_games is None and self.max_games_per_environment is None:
            raise ConfigError(
                f"evaluation.newest_games: {self.newest_games} without a cap; expected max_games or "
                "max_games_per_environment with it"
            )


class PromotionConfig(Table, frozen=True):
    """How a checkpoint becomes elite."""

    rule: Literal["high_score", "sprt"] = "sprt"
    """``high_score``: a rating above every other checkpoint's, after its gatekeeper matches. ``sprt``: such a
    candidate also has to win a sequential test against the incumbent, in pairs of matches with exchanged seats."""
    test: SprtConfig = SprtConfig(elo1=60.0, most_pairs=40)

    def __post_init__(self) -> None:
        if self.test.most_pairs < 1:
            raise ConfigError("promotion.test.most_pairs: 0; expected a limit, since its matches are asked for at once")


class RolloutConfig(Table, frozen=True):
    """Rollout workers."""

    workers: int = 1
    games_in_flight: PositiveInt = 70
    ahead_steps: PositiveFloat = 2.0
    """How far play may be ahead of training, in steps' worth of matches. At 1, playing and training take turns and
    every step is on-policy; more overlaps them, and rollouts come from older versions."""
    same_seat: PositiveInt = 1
    """Training matches of a worker in a row in which the hero keeps its seat. Where episodes are compared in groups,
    as many as a worker plays of a group: else its members would be in different roles."""
    filter_opponent_invalid: bool = False
    """Whether nothing is learnt from a match that another seat's invalid move ended, in games that say so by a metric
    ``ended_by_invalid`` (TextArena's). The match counts everywhere else."""


class EpisodesConfig(Table, frozen=True):
    """Of leagues that play episodes (``arena/environments``) rather than a game."""

    judge: str = ""
    """Agent for model calls without a role, such as a judge's; empty for the base model, else a remote agent."""
    spread: PositiveInt = 1
    """Rollout workers that share each group: every one of them plays so many parts of it. More than 1 wants an arena
    whose stores stay as they are, since all workers have to draw the same: an addition fails its match."""
    empty: Literal["count", "fail"] = "fail"
    """Treatment of an episode with an empty reply. ``fail``: its match has failed. ``count``: a model's
    reply without text is a turn like any other, and trained on. A failed match costs nothing, so that silence is a way
    out of losing it."""
    reply_chars: PositiveInt = 100_000
    """Longest reply; an episode with a longer one has failed."""
    calls: PositiveInt = 1_000
    """Most model calls of one episode, its judges' too; children count their own."""
    episode_s: PositiveFloat = 600.0
    """Longest time from an episode's beginning to its scores, children included."""


class MatchmakingConfig(Table, frozen=True):
    """Opponents of training matches."""

    sampler: Plugin = Plugin(name="pfsp")
    max_active_adapters: PositiveInt | None = None
    """The active pool: at most so many checkpoints are drawn as opponents at a time. None draws from all that have
    not left the schedule."""
    seats: dict[str, int] = {}
    """By policy, the seat that it always takes in its training matches, from 0; others rotate through all seats."""
