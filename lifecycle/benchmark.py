"""``league benchmark``: an agent in one seat against the same opponent in all others, on a running or a stopped league.

What is missing is requested by an event, then played: by the league's evaluators, through the work queue, or in this
process where no evaluator serves. Opponents need not be agents of the league: a bot of the game that is none is not
registered either, so that samplers cannot draw it.
"""

import asyncio
import contextlib
import itertools
import math
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from arena.environments import ArenaSpec, EnvironmentSpec, make_environment
from arena.games.texts import evaluation_spec, seat_counts
from league.evaluation.benchmarks import BenchmarkGames, BenchmarkTerms, SeatSummary, summarize_seats
from league.log.metrics import MetricsStream
from league.run import Run
from lifecycle.control import resolve_agent
from players.remote.remote_player import check_api_keys
from schemas.errors import UsageError
from schemas.events import BenchmarkRequested, MatchFailed, MatchFinished
from schemas.files import LockedError, hold_lock
from schemas.ids import split_agent
from schemas.jobs import BENCHMARK_PURPOSE, PlayMatch
from workers.match_runner.runner import MatchExecutor
from workers.policy_weights import ModelManager
from workers.runtime import Context, beside, follow_league

_NAME = "benchmark"
"""Name under which the command's process records results."""
_LAST_YEAR = "max_year"
"""The game setting that ``until`` sets."""
_POLL_INTERVAL_S = 0.5

ReportGames = Callable[[int, int], None]
"""Called with the number of games that have ended and of all games to be played."""


class BenchmarkOptions(NamedTuple):
    """Options of a benchmark."""

    game: str = ""
    """Name of the game, checked against the league's; empty for any."""
    agent: str = ""
    """Agent to measure; empty for the newest version of the trained policy."""
    opponents: tuple[str, ...] = ()
    """Opponents; empty for the game's bots that the league does not play, else ``evaluation.benchmark_opponents``."""
    games: int = 70
    until: int | None = None
    """Last year that is played; None for the league's."""
    seed: int = 0


class BenchmarkReport(msgspec.Struct, frozen=True):
    """Results of an agent against one opponent."""

    game: str
    agent: str
    opponent: str
    seed: int
    settings: dict[str, Any]
    wanted: int
    failed: int
    last_failure: str
    """Error of the last failed match; empty without any."""
    rows: list[SeatSummary]
    """A row for each seat, and the last one for all seats."""


async def run_benchmark(run: Run, options: BenchmarkOptions, report: ReportGames) -> list[BenchmarkReport]:
    """Play what is missing of a benchmark and return its results, one report for each opponent."""
    identity = run.access.identity()
    name = _NAME if identity is None else identity.name
    async with run.open_log(name) as history, follow_league(run, history) as context:
        environment, all_terms = _make_terms(context, options)
        benchmarks = await _read(context, environment, all_terms, options.games)
        earlier = {failure.match_id for benchmark in benchmarks for failure in benchmark.failures}
        if not all(benchmark.is_complete for benchmark in benchmarks):
            with _claim(run):
                # Read again: another process may have played until the lock was free.
                benchmarks = await _read(context, environment, all_terms, options.games)
                await _play_missing(context, benchmarks, report)
            benchmarks = await _read(context, environment, all_terms, options.games)
    return [_make_report(environment, benchmark, options.games, earlier) for benchmark in benchmarks]


def _make_report(
    environment: EnvironmentSpec, benchmark: BenchmarkGames, games: int, earlier: Container[str]
) -> BenchmarkReport:
    """The report of a benchmark; failures of ``earlier`` matches were reported then, and were played again."""
    failures = [failure for failure in benchmark.failures if failure.match_id not in earlier]
    return BenchmarkReport(
        game=environment.name,
        agent=benchmark.terms.agent,
        opponent=benchmark.terms.opponent,
        seed=benchmark.terms.seed,
        settings=dict(benchmark.terms.settings),
        wanted=games,
        failed=len(failures),
        last_failure=failures[-1].error if failures else "",
        rows=summarize_seats(benchmark.results),
    )


def _make_terms(context: Context, options: BenchmarkOptions) -> tuple[EnvironmentSpec, list[BenchmarkTerms]]:
    config, state = context.config, context.state
    if options.game not in ("", config.game.name):
        if options.game in state.agents or split_agent(options.game):
            raise UsageError(f"{options.game}: an agent, not a game; expected --agent {options.game}")
        raise UsageError(f"{options.game}: --run {context.run.folder} plays {config.game.name}; expected a run of it")
    environment = make_environment(config.game.name, config.game.settings)
    if len(environment.seats) < 2:
        raise UsageError(f"benchmark: {environment.name} has one seat; expected a game with opponents")
    until, last_year = options.until, getattr(getattr(environment, "settings", None), _LAST_YEAR, None)
    if last_year is None and until is not None:
        raise UsageError(f"--until {until}: {environment.name} has no last year; expected it for a game with years")
    has_years = last_year is not None and not isinstance(environment, ArenaSpec)
    settings: dict[str, Any] = {_LAST_YEAR: last_year if until is None else until} if has_years else {}
    # An unplayable year is rejected here, before it is recorded.
    environment = make_environment(config.game.name, config.game.settings | settings)
    bots = environment.bots
    held_out = [bot for bot in bots if bot not in config.agents]
    names = options.opponents or held_out or config.evaluation.benchmark_opponents
    opponents = dict.fromkeys(resolve_agent(state, name, "--against", bots) for name in names)
    policy = config.trainer.policy
    newest = policy if state.live_version(policy) is not None else config.base_agent
    agent = resolve_agent(state, options.agent or newest, "--agent", bots)
    return environment, [
        BenchmarkTerms(agent, opponent, options.seed, settings, environment.rules_version) for opponent in opponents
    ]


async def _read(
    context: Context, environment: EnvironmentSpec, all_terms: Sequence[BenchmarkTerms], games: int
) -> list[BenchmarkGames]:
    requests = [request async for _, request in context.log.read_events(BenchmarkRequested)]
    ended = context.log.match_ends(BENCHMARK_PURPOSE)
    ends = [read.event async for read in ended if isinstance(read.event, MatchFinished | MatchFailed)]
    seats, voided = seat_counts(evaluation_spec(environment)), context.state.voided
    return [BenchmarkGames(terms, seats, games, requests, ends, voided) for terms in all_terms]


@contextlib.contextmanager
def _claim(run: Run) -> Iterator[None]:
    """Lock out other benchmarks of this folder during a block."""
    run.make_folder()
    try:
        with hold_lock(run.folder / "benchmark.lock"):
            yield
    except LockedError as holder:
        raise UsageError(f"--run {run.folder}: a benchmark is under way ({holder}); expected one at a time") from None


async def _play_missing(context: Context, benchmarks: Sequence[BenchmarkGames], report: ReportGames) -> None:
    """Request matches; have the league's evaluators play them as long as one serves, and play the rest here."""
    pause = context.state.pauses.active_pause()
    if pause is not None:
        raise UsageError(f"benchmark: the league is paused ({pause.reason or 'no reason given'}); expected it resumed")
    for benchmark in benchmarks:
        if (request := benchmark.make_request()) is not None:
            await context.append(request)
            benchmark.add(request)
    jobs = [job for benchmark in benchmarks for job in benchmark.jobs]
    if await _has_worker(context, "evaluator"):
        for job in jobs:
            await context.work_queue.submit(job)
    while await _has_worker(context, "evaluator"):
        ended = sum(context.state.has_match_ended(job.match_id) for job in jobs)
        if ended == len(jobs):
            return
        report(ended, len(jobs))
        await asyncio.sleep(_POLL_INTERVAL_S)
    await _play_here(context, jobs, report)


async def _has_worker(context: Context, role: str) -> bool:
    """Whether a worker of a role has joined, and its heartbeat was heard within the last minute."""
    newest = await MetricsStream(context.client, context.log.league).newest()
    alive = {received.heartbeat.incarnation for received in newest.values()}
    serving = (worker.joined for worker in context.state.workers.values() if worker.left is None)
    return any(joined.role == role and joined.incarnation in alive for joined in serving)


async def _play_here(context: Context, jobs: Sequence[PlayMatch], report: ReportGames) -> None:
    """Play the matches that have not ended in this process, ``evaluation.games_in_flight`` at a time."""
    config = context.config
    jobs = [job for job in jobs if not context.state.has_match_ended(job.match_id)]
    if not jobs:
        return
    agents = {agent for job in jobs for agent in job.seats}
    check_api_keys(config, sorted(agents & set(config.agents)))
    # The league's own inference servers stop with it; those that the configuration names go on.
    has_servers = bool(config.inference.urls) or await _has_worker(context, "inference")
    registered = context.state.standings().agents
    kinds = dict.fromkeys(make_environment(config.game.name, config.game.settings).bots, "bot")
    kinds |= {name: agent.kind for name, agent in registered.items()}
    modelled = any(kinds.get(agent) not in ("bot", "remote") for agent in agents)
    models = await ModelManager.load(context, routed=has_servers, modelled=modelled)
    executor = MatchExecutor.between_agents(context, models)
    executor.most_failures = math.inf
    waiting = iter(jobs)
    ended = itertools.count(1)

    async def play_jobs() -> None:
        for job in waiting:
            if not context.state.has_match_ended(job.match_id):
                completed = await executor.run(job)
                if completed is not None:
                    await executor.append_result(completed)
            report(next(ended), len(jobs))

    try:
        async with beside(executor.report_costs()), asyncio.TaskGroup() as group:
            for _ in range(min(config.evaluation.games_in_flight, len(jobs))):
                group.create_task(play_jobs())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        await executor.close()
        await models.close()
