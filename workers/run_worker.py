"""The life of a worker process: wait for the league, fold the history, join, serve, drain and leave."""

import asyncio
import contextlib
import errno
import gc
import math
import os
import time
from collections.abc import Awaitable, Callable

import uvloop

from league.log.jetstream import JetStreamLog, find_league
from league.run import Run
from schemas.errors import (
    AccessError,
    DiskError,
    ExitCode,
    LeagueError,
    LogUnavailableError,
    NoLeagueError,
    StoreFullError,
    WorkerConflictError,
    describe_error,
)
from schemas.loggers import get_logger
from schemas.plugins import is_plugins_fault, locate_error
from schemas.retry import Backoff
from workers.compatibility import DECIDERS, POLICY_ROLES, check_rules, check_versions, older_deciders, resolve_policy
from workers.membership import Membership
from workers.monitoring.metrics import HeartbeatPublisher
from workers.runtime import Context, beside, call_on_signals

log = get_logger()

_FIRST_RETRY_S = 0.5
_MAX_RETRY_S = 2.0
_WAIT_LOG_INTERVAL_S = 30.0
"""Interval of the warnings while a worker waits for the league to be opened."""

ServeFunction = Callable[[Context], Awaitable[None]]


def run_worker(
    run: Run, role: str, name: str, serve: ServeFunction, supervisor: int | None = None, policy: str | None = None
) -> int:
    """Run one worker process until it is done or stopped; return its exit code.

    It waits for the broker, and for the league to be opened there. With ``supervisor``, the id of the process that
    started it, it also drains and leaves when that one is no longer its parent, and waits no longer.

    This is the process's one boundary for unexpected errors: they are logged, recorded as the reason for leaving,
    and end the process with exit code 1, so that its supervisor restarts it.
    """
    # Play makes many objects and few cycles: garbage collection at the default rate costs a tenth of its time.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    code: int = uvloop.run(worker_main(run, role, name, serve, supervisor, policy))
    return code


async def worker_main(
    run: Run, role: str, name: str, serve: ServeFunction, supervisor: int | None = None, policy: str | None = None
) -> int:
    """The main task of a worker process; see ``run_worker``."""
    try:
        async with contextlib.AsyncExitStack() as stack:
            history = await _open_log(run, name, supervisor, stack)
            if history is None:
                return 0
            history.patience_s = math.inf
            context = Context(run, history.client, history, name)
            context.refuses_newer = True
            context.folds_ratings = role in ("rater", "archivist")
            context.checks_ratings = role == "rater"
            stack.enter_context(call_on_signals(context.stop))
            await context.load_snapshot()
            async with beside(context.follow(), _stop_with_supervisor(context, supervisor)):
                await context.wait_for_sequence(await history.last_sequence())
                if context.stopping.is_set():
                    # Stopped before the history was folded: there is no configuration yet, nor anything to leave.
                    return 0
                policy = resolve_policy(context.config, policy) if role in POLICY_ROLES else ""
                membership = Membership(context, role, policy)
                check_versions(name, await membership.filter_running(older_deciders(context.state, name)))
                check_rules(context.state, role, name)
                # Other roles may continue during an upgrade: the deciders check what they produce.
                context.refuses_newer = role in DECIDERS
                return await _serve_as_member(context, membership, role, serve)
    except DiskError as error:
        log.error("a disk of this machine is full or read-only", error=str(error))
        return ExitCode.DISK_UNWRITABLE
    except StoreFullError as error:
        log.error("the store is full", error=str(error))
        return ExitCode.STORE_FULL
    except WorkerConflictError as error:
        if supervisor is None:
            raise
        # As it never joined, the history has no reason: its supervisor reads this one.
        log.error("left", reason=str(error))
        return 1
    except AccessError as error:
        if supervisor is None:
            raise
        log.error("rejected by the broker", error=str(error))
        return ExitCode.REFUSED


async def _open_log(
    run: Run, name: str, supervisor: int | None, stack: contextlib.AsyncExitStack
) -> JetStreamLog | None:
    """The league's log; waits until the broker answers and the league is open. None once the supervisor is gone."""
    backoff = Backoff(_FIRST_RETRY_S, _MAX_RETRY_S)
    logged_at = -math.inf
    while not _has_lost(supervisor):
        try:
            async with contextlib.AsyncExitStack() as attempt:
                history = await attempt.enter_async_context(run.open_log(name))
                if await find_league(history.client, history.league) is None:
                    raise NoLeagueError(
                        f"no league {history.league} was opened on this broker; start it with `league up`"
                    )
                stack.push_async_exit(attempt.pop_all())
                return history
        except (LogUnavailableError, NoLeagueError) as error:
            if time.monotonic() - logged_at > _WAIT_LOG_INTERVAL_S:
                logged_at = time.monotonic()
                log.warning("waiting for the league to be opened", found=str(error))
        await asyncio.sleep(backoff.next_s())
    log.warning("the supervisor is gone, leaving before the league is open")
    return None


async def _serve_as_member(context: Context, membership: Membership, role: str, serve: ServeFunction) -> int:
    heart = HeartbeatPublisher(context, role)
    await membership.join()
    # Unless it is known better: cancelled, as by the failure of what runs beside it.
    reason = "stopped before it was done"
    try:
        async with beside(heart.run(), membership.watch()):
            # Before work that may block this thread for long, such as loading a model.
            await heart.publish()
            reason = await _serve_until_done(context, serve)
            await heart.publish()
    except WorkerConflictError as error:
        log.error("stopped by an error", error=str(error))
        reason = str(error)
    except StoreFullError as error:
        reason = str(error)
        raise
    finally:
        await membership.leave(context.refusal or reason)
        for what, count in sorted(context.skipped_types.items()):
            log.warning("passed over", what=what, events=count)
        log.info("left", reason=reason)
    return 0 if reason == "done" else 1


def _has_lost(supervisor: int | None) -> bool:
    return supervisor is not None and os.getppid() != supervisor


async def _stop_with_supervisor(context: Context, supervisor: int | None) -> None:
    """Stop once the supervisor is gone. Its id comes from itself: it may be gone before this process looks."""
    while not _has_lost(supervisor):  # noqa: ASYNC110 - nothing signals it
        await asyncio.sleep(1.0)
    if not context.stopping.is_set():
        log.warning("the supervisor is gone, leaving")
        context.stop()


async def _serve_until_done(context: Context, serve: ServeFunction) -> str:
    try:
        await serve(context)
    except StoreFullError:
        raise
    except LeagueError as error:
        log.error("stopped by an error", error=str(error))
        return describe_error(error)
    except Exception as error:  # the boundary of the process
        if isinstance(error, OSError) and (disk := DiskError.of(error)):
            raise disk from error
        if isinstance(error, OSError) and error.errno == errno.EIO:
            log.error("stopped by a failing disk of this machine", error=str(error))
        elif is_plugins_fault(error):
            log.error("stopped by a plugin", error=locate_error(error))
        else:
            log.exception("stopped by an unexpected error")
        return locate_error(error)
    return "done"
