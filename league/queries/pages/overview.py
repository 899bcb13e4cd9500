"""The league: its position and newest events, its workers and problems, and the tables for SQL."""

import asyncio
from typing import Any

import msgspec

from league.log.dead_letters import DeadLetterEntry, DeadLetters
from league.projections.tables import MACRO_COMMENTS
from league.queries.live_league import LiveLeague, summarise_event
from league.queries.pages import MAX_INTEGER, MAX_ROWS, RequestParams, route
from league.queries.playable import make_league_contest, match_options, unrecorded_reason, wait_until_folded
from league.queries.status import WorkerStatus, dead_letter_fields, detect_alarms, read_status
from league.queries.tables import TABLE_COMMENTS
from schemas.config import LeagueConfig

_TIMELINE_POINTS = 400


@route("/overview")
async def overview(league: LiveLeague, _: RequestParams) -> Any:
    """The league, its counts, and its policies."""
    config = league.state.config
    return {
        **league.summary(),
        "game": config.game.name if config is not None else "",
        "official": config.ratings.system.name if config is not None else "",
        "systems": [config.ratings.system.name, *(s.name for s in config.ratings.also)] if config is not None else [],
        "policies": list(config.trained_policies) if config is not None else [],
    }


@route("/events")
async def events(league: LiveLeague, params: RequestParams) -> Any:
    """The newest events, newest first; optionally of a ``type`` and ``before`` a sequence."""
    kind = params.text("type")
    recorded_events = await league.recorded_events(
        "WHERE sequence < ? AND (? IS NULL OR type = ?) ORDER BY sequence DESC LIMIT ?",
        *(params.integer("before") or MAX_INTEGER, kind, kind, params.limit()),
    )
    return [summarise_event(recorded) for recorded in recorded_events]


@route("/timeline")
async def timeline(league: LiveLeague, _: RequestParams) -> Any:
    """Evenly spaced sequences with their times, for the slider."""
    return await league.rows(
        "SELECT sequence, time FROM events WHERE sequence IN "
        "(SELECT DISTINCT 1 + (?::BIGINT - 1) * i // ? FROM range(?) r(i)) ORDER BY sequence",
        *(league.position, _TIMELINE_POINTS, _TIMELINE_POINTS + 1),
    )


@route("/play")
async def play(league: LiveLeague, _: RequestParams) -> Any:
    """The league's game, its seats, the agents to play against, and whether results are recorded."""
    await wait_until_folded(league.state, league.position)
    # In a thread: a game's package may take seconds to load.
    await asyncio.to_thread(make_league_contest, league.state)
    return {**match_options(league.state), "unrecorded": unrecorded_reason(league.run, league.log.league)}


_TABLES = f"""
    WITH known AS ({TABLE_COMMENTS})
    SELECT k.name, k.comment, list({{'name': c.column_name, 'type': c.data_type}} ORDER BY c.column_index) AS columns
    FROM known k JOIN duckdb_columns() c ON c.table_name = k.name AND c.schema_name = 'main'
    GROUP BY k.name, k.comment ORDER BY k.name
"""


@route("/sql/tables", stays_s=3600.0)
async def tables(league: LiveLeague, _: RequestParams) -> Any:
    """Tables and views with their columns, and macros."""
    macros = [{"name": name, "comment": comment} for name, comment in MACRO_COMMENTS.items()]
    return {"tables": await league.rows(_TABLES), "macros": macros}


@route("/workers", stays_s=2.0)
async def workers(league: LiveLeague, params: RequestParams) -> Any:
    """``league status``: processes, queues and total rates; ``left`` includes processes that have left."""
    include_left = params.choice("left", ["yes", "no"]) == "yes"
    status = await read_status(league.log, league.state, include_left, league.run)
    present_first = sorted(status.workers, key=lambda worker: worker.health == "left")
    beats = [worker.heartbeat for worker in present_first if worker.heartbeat is not None and worker.health == "ok"]
    rates = {
        "games_s": sum(beat.play.games_s for beat in beats if beat.play is not None),
        "games_in_flight": sum(beat.play.games_in_flight for beat in beats if beat.play is not None),
        "sampled_tokens_s": sum(beat.inference.tokens_s for beat in beats if beat.inference is not None),
        "trained_tokens_s": sum(beat.training.tokens_s for beat in beats if beat.training is not None),
        "queued": sum(beat.inference.queued for beat in beats if beat.inference is not None),
        "memory_bytes": sum(beat.memory_bytes for beat in beats),
        "cores": sum(beat.cpu_share for beat in beats),
    }
    return {
        "workers": msgspec.to_builtins(present_first[:MAX_ROWS]),
        "left_out": max(len(status.workers) - MAX_ROWS, 0),
        "silent": len(status.silent_workers),
        "rates": rates,
        "gpus": _distinct_gpus(present_first),
        "jobs": status.jobs,
        "lag": status.lag,
        "since_step_s": status.since_step_s,
        "store_share": status.store_share,
        "dead_letters": status.dead_letters,
        "policies": msgspec.to_builtins(status.policies),
        "paused": status.paused,
    }


def _distinct_gpus(workers: list[WorkerStatus]) -> list[dict[str, Any]]:
    """Each GPU once, however many processes of its machine use it."""
    gpus: dict[tuple[str, int], dict[str, Any]] = {}
    for worker in workers:
        if worker.heartbeat is not None and worker.health == "ok":
            for gpu in worker.heartbeat.gpus:
                gpus[worker.host, gpu.index] = {"host": worker.host, **msgspec.to_builtins(gpu)}
    return [gpus[key] for key in sorted(gpus)]


@route("/running", stays_s=5.0)
async def running(league: LiveLeague, _: RequestParams) -> Any:
    """Number of running processes of the league."""
    status = await read_status(league.log, league.state, run=league.run)
    return {"processes": sum(worker.health == "ok" for worker in status.workers)}


_MAX_ROWS = 100
_SHOWN_CHARACTERS = 16_000

_FAILURES = """
    SELECT error, count(*) AS matches, min(time) AS first, max(time) AS last, list_sort(list(DISTINCT worker))[:5] AS
           workers, list_sort(list(DISTINCT purpose)) AS purposes, arg_max(match_id, sequence) AS newest,
           max(sequence) AS sequence
    FROM match_failures GROUP BY error ORDER BY sequence DESC LIMIT ?
"""
_VOIDS = """
    SELECT v.*, (SELECT count(*) FROM tainted_steps t WHERE t.match_id = v.match_id) AS tainted
    FROM voids v ORDER BY sequence DESC LIMIT ?
"""
_REGRESSIONS = """
    SELECT sequence, agent, rating, map_keys(below) AS others, map_values(below) AS ratings
    FROM regressions ORDER BY sequence DESC LIMIT ?
"""
# An open evaluation has waited until the newest event, so that waits do not grow while a league is idle.
_OVERDUE_EVALUATIONS = """
    WITH timed AS (
        SELECT evaluation_id, agent, suite, matches, requested_sequence AS sequence, requested_time AS time,
               finished_sequence, epoch(coalesce(finished_time, p.time) - requested_time) AS seconds
        FROM evaluations CROSS JOIN (SELECT time FROM position) p
    )
    SELECT t.*, (SELECT count(*) FROM matches m WHERE m.evaluation_id = t.evaluation_id) AS played
    FROM timed t WHERE seconds > ? ORDER BY finished_sequence IS NULL DESC, sequence DESC LIMIT ?
"""


@route("/problems", stays_s=2.0)
async def problems(league: LiveLeague, _: RequestParams) -> Any:
    """Current alarms, dead letters, and failures, voids, regressions and late evaluations, the newest first."""
    stall_s = 60 * (league.state.config or LeagueConfig()).alarms.stall_minutes
    letters = await DeadLetters(league.log.client, league.log.league).list_all()
    status = await read_status(league.log, league.state, run=league.run)
    failures, voids, regressions, waited, unreadable = await asyncio.gather(
        league.rows(_FAILURES, _MAX_ROWS),
        league.rows(_VOIDS, _MAX_ROWS),
        league.rows(_REGRESSIONS, _MAX_ROWS),
        league.rows(_OVERDUE_EVALUATIONS, stall_s, _MAX_ROWS),
        league.rows("FROM unreadable_events ORDER BY type LIMIT ?", _MAX_ROWS),
    )
    return {
        "alarms": msgspec.to_builtins(detect_alarms(status, league.state)),
        "letters": [_letter_fields(filed) for filed in reversed(letters[-_MAX_ROWS:])],
        "letters_in_all": len(letters),
        "failures": failures,
        "failed": status.failed,
        "voids": voids,
        "regressions": regressions,
        "waited": waited,
        "waited_s": stall_s,
        "unreadable": unreadable,
    }


@route("/problems/letters/{number}", stays_s=2.0)
async def dead_letter(league: LiveLeague, params: RequestParams) -> Any:
    """One dead letter and its message; ``message`` is null when that is no longer stored."""
    number = RequestParams({"number": params.path_part("number")}, {}).integer("number", least=1) or 0
    dead = DeadLetters(league.log.client, league.log.league)
    letter = await dead.get(number)
    message = await dead.original_message(letter.letter)
    return {
        **_letter_fields(letter),
        "bytes": None if message is None else len(message),
        "message": None if message is None else message[:_SHOWN_CHARACTERS].decode(errors="backslashreplace"),
    }


def _letter_fields(letter: DeadLetterEntry) -> dict[str, Any]:
    return {**dead_letter_fields(letter), "can_be_retried": letter.letter.is_retriable}
