"""Runs a league on one machine from its opening to its final report.

The report shows the leaderboard, benchmarks before and after training, and whether a replay is identical.
"""

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from nats.aio.client import Client

from arena.environments import make_environment
from inference.remote import token_headers
from league.analysis.leaderboard import leaderboard
from league.history.replay import verify_log
from league.integrity.snapshots import load_state_at
from league.log.connection import retry_until_ready
from league.log.jetstream import JetStreamLog, find_league
from league.matchmaking.schedule import stop_reason
from league.plots.terminal import training_chart
from league.queries.leaderboard import leaderboard_text
from league.queries.learning import learning_verdict, paired_benchmarks
from league.queries.tables import open_tables, row_dicts
from league.queries.terminal import Console
from league.queries.text_table import number_columns, print_benchmarks, print_table, table_width
from league.run import DEFAULT_RUN, TOKEN_FILE, Run
from league.state import LeagueState
from lifecycle.config_checks import check_config
from lifecycle.machine_checks import check_ready, find_shortcomings
from lifecycle.open import open_league
from lifecycle.reconfigure import check_change
from players.remote.remote_player import check_api_keys, remote_agents_in_evaluation, remote_agents_in_training
from schemas.config import LeagueConfig
from schemas.errors import UsageError
from schemas.files import LockedError, hold_lock, remove_abandoned_drafts
from workers.discover_servers import check_servers
from workers.logs import configure_logging
from workers.progress import progress_callback, show_progress
from workers.runtime import Context, beside
from workers.supervisor import LeagueWorkerPool, Supervisor, make_announcer, show_dashboard, stop_on_signals

_BOTS_TITLE = "Games won with one bot in all other seats (strictly the most of all seats)"
_SINGLE_SEAT_TITLE = "Episodes passed, alone in the one seat"
_VERDICT_STYLES = {"better": "bold green", "worse": "bold red", "open": "bold", "unmeasured": "dim"}
_CURVE_WIDTH, _CURVE_LINES = 72, 8
_OPENING_RETRIES_S = 120.0


def _print_policies(console: Console, state: LeagueState, config: LeagueConfig) -> None:
    rows = []
    for policy, role in config.trained_policies.items():
        joined = [agent for agent in state.checkpoints if agent.policy == policy]
        best = max((agent.rating for agent in joined if agent.games), default=None)
        best_rating = "–" if best is None else f"{best:.0f}"
        step, resets = state.last_step(policy), state.resets(policy)
        last_reset = f"{len(resets)}, last @{resets[-1]}" if resets else "–"
        rows.append([policy, role.role, 0 if step is None else step.step, len(joined), best_rating, last_reset])
    columns = ["policy", "role", *number_columns("steps", "checkpoints", "best Elo"), "resets"]
    print_table(console, columns, rows, ("role",), "Trained policies")


async def _print_report(run: Run, history: JetStreamLog, console: Console, progress: Console) -> bool:
    """Print the final report; return whether the replay was identical."""
    with show_progress(progress, "rebuilding the leaderboard from the events"):
        state = await load_state_at(history, run.open_blob_store(history.client))
        assert state.config is not None
        async with open_tables(run, history) as tables:
            board = leaderboard(tables.connection)
            pairs = paired_benchmarks(tables.connection, board.sequence)
            benchmarks = row_dicts(tables.connection.execute("FROM benchmark_results"))
    console.print("Leaderboard, rebuilt from the events", highlight=False)
    console.file.write(leaderboard_text(board, table_width(console)))
    if state.config.policies:
        _print_policies(console, state, state.config)
    policy, game = state.config.trainer.policy, state.config.game
    baselines = [agent.name for agent in state.agents.values() if agent.baseline]
    for line in training_chart(board, policy, baselines, _CURVE_WIDTH, _CURVE_LINES):
        console.print(line)
    seats = len(make_environment(game.name, game.settings).seats)
    alone = seats == 1
    print_benchmarks(console, benchmarks, _SINGLE_SEAT_TITLE if alone else _BOTS_TITLE)
    verdict = learning_verdict([pair for pair in pairs if pair["policy"] == policy], seats)
    with show_progress(progress, "folding the whole history again, to compare all ratings") as update:
        count = progress_callback(update, "folded", await history.last_sequence())
        report = await verify_log(history, on_progress=count)
    console.print(f"replay --verify: {report.summary()}", highlight=False)
    with show_progress(progress, "drawing the curve"):
        # Imported late: matplotlib takes long to load, and only the report draws.
        from league.plots.charts import ratings_picture
        from league.plots.render import write_picture

        await asyncio.to_thread(lambda: write_picture(ratings_picture(board), run.plot))
    console.print(f"ratings over training: {run.plot}", highlight=False, soft_wrap=True)
    style = _VERDICT_STYLES[verdict["verdict"]]
    console.print(f"{verdict['headline']}: {verdict['text']}", style=style, highlight=False)
    where = _run_option(run)
    console.print("Try next:", highlight=False)
    league = _find_command()
    for command in (
        f"{league} criteria{where}",
        f'{league} sql "SELECT purpose, count(*), avg(length) FROM matches GROUP BY purpose"{where}',
        f"{league} events --type CheckpointAdded{where}",
        f"{league} replay --verify{where}",
    ):
        console.print(f"  {command}", highlight=False, soft_wrap=True)
    return report.is_identical


def _find_command() -> str:
    """The ``league`` command for the reader: its name if it is in PATH, else its path in the virtual environment."""
    return "league" if shutil.which("league") else os.path.relpath(Path(sys.executable).parent / "league")


def _run_option(run: Run) -> str:
    """The option for this run, with a space before it; empty for the default folder."""
    return f" --run {run.folder}" if run.folder != DEFAULT_RUN.resolve() else ""


def _nothing_left(run: Run, state: LeagueState) -> str:
    """The line about a league whose work is done before any worker starts, and how to go on."""
    finished = state.training_finished(state.config_or_default.trainer.policy)
    assert finished is not None
    # The reason to stop ends with the limit's name: `3 steps`.
    limit = "stop.criterion.win_rate" if finished.criterion_met else f"stop.{finished.reason.rpartition(' ')[2]}"
    return (
        f"nothing is left to do: training ended ({finished.reason}) and is measured. To go on, set a larger {limit}: "
        f"in the file of --config, or `{_find_command()} config set {limit}=…{_run_option(run)}`; then run this again"
    )


async def open_without_workers(run: Run, settings: LeagueConfig, console: Console) -> None:
    """Open a league, or change an open one's settings, without starting any worker."""
    check_config(settings)
    await check_servers(settings)
    run.make_folder()
    async with run.connect("opener") as client:
        with show_progress(console, "opening the league") as report:
            run.record_broker((await open_league(run, client, settings, report)).league)


async def run_league(run: Run, stages: Sequence[LeagueConfig], console: Console) -> int:
    """Open or resume a league, run its workers until training is done, and report; return the exit code.

    ``stages`` are in force one after the other, each until its training is done; those whose stop condition the history
    has met already are passed over. Without any the settings stay as they are. ``console`` shows the progress.
    """
    for settings in stages:
        check_config(settings)
        check_change(stages[0].name, stages[0], settings)
        check_ready(await find_shortcomings(settings))
    run.make_folder()
    try:
        # Locks out any other `league up` of the folder.
        with hold_lock(run.folder / "up.lock"):
            for folder in (run.folder, run.folder.parent):
                remove_abandoned_drafts(folder)
            return await _run_stages(run, stages, console)
    except LockedError as holder:
        raise UsageError(
            f"--run {run.folder}: `league up` is running this league already ({holder}); expected one at a time. "
            "`league dash` watches it, Ctrl-C or SIGTERM stops it"
        ) from None


async def _run_stages(run: Run, stages: Sequence[LeagueConfig], console: Console) -> int:
    configure_logging("supervisor", run.logs / "supervisor.log", terminal=False)
    done = False
    # None keeps the settings in force.
    turns: Sequence[LeagueConfig | None] = stages or [None]
    with contextlib.ExitStack() as ending:
        async with contextlib.AsyncExitStack() as stack:
            with show_progress(console, "starting the broker"):
                client = await stack.enter_async_context(run.connect("supervisor"))
            for settings in turns:
                if settings is not None and settings is not turns[-1] and await _is_over(run, client, settings):
                    continue
                history, done = await _run_workers(run, client, settings, console)
                if not done:
                    break
            if done:
                identical = await _print_report(run, history, Console(), console)
            ending.enter_context(show_progress(console, "stopping the broker"))
    if not done:
        console.print("stopped; the same command continues from here", highlight=False)
        return 0
    return 0 if identical else 1


async def _is_over(run: Run, client: Client, settings: LeagueConfig) -> bool:
    """Whether the league, if it is open, has met the stop condition of these settings."""
    league = await find_league(client, settings.name)
    if league is None:
        return False
    state = await load_state_at(JetStreamLog(client, league, "supervisor"), run.open_blob_store(client, league))
    return stop_reason(state, settings.trainer.policy, settings.stop) is not None


async def _run_workers(
    run: Run, client: Client, settings: LeagueConfig | None, console: Console
) -> tuple[JetStreamLog, bool]:
    """Run a league's workers under these settings; return its log, and whether training is done."""
    with show_progress(console, "opening the league") as report:
        # A cluster may elect another leader meanwhile.
        history = await retry_until_ready(
            "opening the league", lambda: open_league(run, client, settings, report), _OPENING_RETRIES_S
        )
        # The broker may hold further leagues, of which the report is not to choose.
        run.name = history.league
        run.record_broker(history.league)
        context = Context(run, client, history, "supervisor")
        await context.load_snapshot()
    async with beside(context.follow()):
        await context.wait_for_sequence(await context.persistently(history.last_sequence))
        # Checked here: workers would each report it in a log of their own, at every restart.
        config = context.config
        check_api_keys(config, [*remote_agents_in_training(config), *remote_agents_in_evaluation(config)])
        console.print(f"league {history.league!r} in {run.folder}, logs in {run.logs}", highlight=False)
        if config.inference.servers and not token_headers() and not (run.folder / TOKEN_FILE).exists():
            told = f"its inference servers take the token {run.read_inference_token()} (kept in {TOKEN_FILE} there)"
            console.print(told, highlight=False, soft_wrap=True)
        announce, pool = make_announcer(console), LeagueWorkerPool(context)
        if pool.is_done(()):
            announce(_nothing_left(run, context.state))
        supervisor = Supervisor(context, pool, announce)
        with stop_on_signals(context, supervisor, console):
            async with show_dashboard(context, console):
                return history, await supervisor.run()
