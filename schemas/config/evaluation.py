"""The tables ``rollout``, ``episodes``, ``matchmaking``, ``ratings``, ``evaluation`` and ``promotion``."""

from typing import Literal

from schemas.config.base import Plugin, Table
from schemas.errors import ConfigError
from schemas.events.rating import SprtConfig
from schemas.numbers import Count, InParallel, PositiveFloat, PositiveInt, Processes


class RatingsConfig(Table, frozen=True):
    """The rating systems and the matches they count."""

    system: Plugin = Plugin(name="elo")
    """Official rating system, used by matchmaking, promotions and the leaderboard."""
    also: tuple[Plugin, ...] = ()
    """Further rating systems that rate the same matches, for comparison."""
    purposes: tuple[str, ...] = ("evaluation",)

    def __post_init__(self) -> None:
        names = [plugin.name for plugin in self.systems]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"ratings.also: {name!r} is listed twice; expected distinct systems")

    @property
    def systems(self) -> tuple[Plugin, ...]:
        """All rating systems, the official one first."""
        return (self.system, *self.also)


class EvaluationConfig(Table, frozen=True):
    """Evaluator workers and their suites."""

    workers: Processes = 1
    games_in_flight: InParallel = 14
    every: PositiveInt = 50
    """Published versions between evaluations; checkpoints are always evaluated."""
    gatekeepers: tuple[str, ...] = ("random_bot", "previous_best", "recent")
    """Opponents of the gatekeeper suite: agents by name, ``previous_best`` and ``recent``."""
    gatekeeper_games: Count = 50
    """Matches of the gatekeeper suite."""
    max_games: Count | None = None
    """Maximum evaluation matches per agent over all suites; None for no limit. A suite that would exceed it is cut to
    whole rounds of seats or whole pairs."""
    max_games_per_environment: Count | None = None
    """The same limit per environment of a game with several (TextArena's ``evaluation_env``); rounds and pairs in an
    environment that has reached it are skipped."""
    newest_games: Count = 0
    """Matches between the newest version of every trained policy and ``benchmark_opponents`` that are kept queued or in
    progress throughout training. Requires a limit above, which ends them when training stops."""
    benchmark_opponents: tuple[str, ...] = ("random_bot",)
    """Opponents in the hero's benchmarks before and after training, one in all other seats."""
    benchmark_games: Count = 210
    tries: PositiveInt = 5
    """Deliveries of a job, redelivered when workers die, before it is a dead letter and its match is recorded as
    failed."""

    def __post_init__(self) -> None:
        if self.newest_games and self.max_games is None and self.max_games_per_environment is None:
            raise ConfigError(
                f"evaluation.newest_games: {self.newest_games} without a cap; expected max_games or "
                "max_games_per_environment with it"
            )


class PromotionConfig(Table, frozen=True):
    """How a checkpoint becomes elite."""

    rule: Literal["high_score", "sprt"] = "sprt"
    """``high_score``: a rating above every other checkpoint's after the gatekeeper suite. ``sprt``: such a candidate
    must also win a sequential test against the incumbent, in pairs of matches with exchanged seats."""
    test: SprtConfig = SprtConfig(elo1=60.0, most_pairs=40)

    def __post_init__(self) -> None:
        if self.test.most_pairs < 1:
            raise ConfigError("promotion.test.most_pairs: 0; expected a limit, since its matches are requested at once")


class RolloutConfig(Table, frozen=True):
    """Rollout workers."""

    workers: Processes = 1
    games_in_flight: InParallel = 70
    ahead_steps: PositiveFloat = 2.0
    """Maximum lead of play over training, in steps' worth of matches. 1 alternates between both and keeps every step
    on-policy; more overlaps them, with trajectories from older versions."""
    same_seat: PositiveInt = 1
    """Consecutive training matches of a worker in which the hero keeps its seat. For episodes that are compared in
    groups, use the number that a worker plays per group; otherwise its members would have different roles."""
    group_size: PositiveInt = 1
    """Training matches of a game that are played from one start, in one seat and against one line-up, so that
    ``group_relative`` and ``leave_one_out`` compare them. The trainer waits for all of them (``trainer.gathering``).
    Arenas have their own setting."""
    filter_opponent_invalid: bool = False
    """Whether matches ended by another seat's invalid move are left out of training, in games with the metric
    ``ended_by_invalid`` (TextArena). They count everywhere else."""


class EpisodesConfig(Table, frozen=True):
    """Settings of leagues that play episodes (``arena/environments``) rather than a game."""

    judge: str = ""
    """Agent for model calls without a role, such as a judge's: a remote agent, or empty for the base model."""
    spread: PositiveInt = 1
    """Rollout workers that share each group and play ``spread`` parts of it. More than 1 requires stores that do not
    change, since all workers must draw the same; an addition fails its match."""
    empty: Literal["count", "fail"] = "fail"
    """Treatment of an episode with an empty reply. ``fail``: the match fails. ``count``: an empty reply is a turn like
    any other, and trained on. Since a failed match has no cost, ``fail`` lets a model avoid a loss by silence."""
    reply_chars: PositiveInt = 100_000
    """Maximum characters of a reply; a longer one fails its episode."""
    calls: PositiveInt = 1_000
    """Maximum model calls per episode, its judges' included; children count their own."""
    episode_s: PositiveFloat = 600.0
    """Maximum seconds from the start of an episode to its scores, children included."""


class MatchmakingConfig(Table, frozen=True):
    """How the opponents of training matches are drawn."""

    sampler: Plugin = Plugin(name="pfsp")
    max_active_adapters: PositiveInt | None = None
    """Maximum checkpoints in the opponent pool; None for all that have not left the schedule."""
    seats: dict[str, int] = {}
    """Fixed seat of a policy in its training matches, from 0; other policies rotate through all seats."""
