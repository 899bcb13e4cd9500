"""A league's metrics in Prometheus's text format, served over HTTP."""

import asyncio
from collections.abc import Callable, Iterator

from aiohttp import web

from inference.http_server import (
    Metric,
    RefusedError,
    Sample,
    check_origin,
    error_boundary,
    listen,
    metrics_response,
    port_of,
)
from league.queries.status import LeagueStatus, read_status, with_alarms
from league.run import Run
from schemas.config.base import is_loopback
from schemas.errors import LeagueError
from workers.runtime import Context, call_on_signals, follow_league


def league_metrics(status: LeagueStatus) -> list[Metric]:
    """All metrics of a league's status."""
    return [*_league_totals(status), *_policy_metrics(status), *_worker_metrics(status)]


def _league_totals(status: LeagueStatus) -> Iterator[Metric]:
    def single(name: str, kind: str, described: str, value: float | None) -> Metric:
        return Metric(name, kind, described, [] if value is None else [Sample({}, value)])

    yield Metric("league_info", "gauge", "The league.", [Sample({"league": status.league, "game": status.game}, 1)])
    yield single("league_events_total", "counter", "Sequence of the newest event.", status.sequence)
    games = [Sample({"purpose": purpose}, count) for purpose, count in status.games.items()]
    yield Metric("league_matches_total", "counter", "Completed matches.", games)
    yield single("league_matches_failed_total", "counter", "Matches that could not be completed.", status.failed)
    yield single("league_matches_voided_total", "counter", "Matches whose results were voided.", status.voided)
    yield single("league_dead_letters", "gauge", "Messages that could not be decoded.", status.dead_letters)
    alarms = [Sample({"alarm": alarm.name}, 1) for alarm in status.alarms]
    yield Metric("league_alarm", "gauge", "An active alarm.", alarms)
    yield single("league_jobs_pending", "gauge", "Requested matches that have not been played.", status.jobs)
    yield single("league_lag_events", "gauge", "Events that the slowest worker has not read yet.", status.lag)
    paused = [Sample({"policy": policy}, 1) for policy in status.paused]
    yield Metric("league_paused", "gauge", "A paused policy; the whole league under the empty name.", paused)
    since_s = status.since_step_s
    yield single("league_since_step_seconds", "gauge", "Seconds since the newest gradient step of any policy.", since_s)
    yield single("league_store_share", "gauge", "Used share of the broker's store.", status.store_share)
    ratings = [Sample({"agent": agent.agent, "kind": agent.kind}, agent.rating) for agent in status.agents]
    yield Metric("league_agent_rating", "gauge", "Official rating of an active agent.", ratings)
    costs = [Sample({"agent": agent}, cost) for agent, cost in status.costs.items()]
    yield Metric("league_remote_cost_total", "counter", "Cost of a remote agent so far.", costs)


_POLICY = {
    "version": ("league_policy_version", "Newest published version."),
    "step": ("league_policy_step", "Newest gradient step."),
    "rating": ("league_policy_rating", "Official rating of the last evaluated version."),
    "ahead": ("league_policy_ahead", "Training matches begun and not trained on yet."),
    "pending": ("league_experience_pending", "Trajectories waiting for the trainer."),
    "wait_share": (
        "league_trainer_wait_share",
        "Share of the last step's time that the trainer waited for trajectories.",
    ),
}


def _policy_metrics(status: LeagueStatus) -> Iterator[Metric]:
    for field, (name, described) in _POLICY.items():
        samples = [Sample({"policy": policy.policy}, getattr(policy, field)) for policy in status.policies]
        yield Metric(name, "gauge", described, samples)
    metrics = [
        Sample({"policy": policy.policy, "metric": metric}, value)
        for policy in status.policies
        for metric, value in policy.metrics.items()
    ]
    yield Metric("league_step_metric", "gauge", "Metrics of the newest gradient step.", metrics)


_WORKER = {
    "uptime_s": ("league_worker_uptime_seconds", "gauge", "Seconds since the process started."),
    "memory_bytes": ("league_worker_memory_bytes", "gauge", "Resident memory of the process."),
    "cpu_share": ("league_worker_cpu_cores", "gauge", "CPU use in cores, lately."),
    "open_files": ("league_worker_open_files", "gauge", "Files and connections that the process has open."),
    "sequence": ("league_worker_sequence", "gauge", "Newest event that the process has read."),
    "lag": ("league_worker_lag_events", "gauge", "Recorded events that the process has not read yet."),
}
_INFERENCE = {
    "queued": ("league_inference_queued", "gauge", "Waiting requests."),
    "running": ("league_inference_running", "gauge", "Requests being sampled."),
    "tokens_s": ("league_inference_tokens_per_second", "gauge", "Tokens sampled or forced, lately."),
    "busy_share": ("league_inference_busy_share", "gauge", "Share of the time spent computing, lately."),
    "requests": ("league_inference_requests_total", "counter", "Requests that ended."),
    "prompt_tokens": ("league_inference_prompt_tokens_total", "counter", "Tokens of prompts."),
    "cached_tokens": ("league_inference_cached_tokens_total", "counter", "Prompt tokens not computed again."),
    "sampled_tokens": ("league_inference_sampled_tokens_total", "counter", "Tokens that were sampled."),
    "forced_tokens": ("league_inference_forced_tokens_total", "counter", "Tokens with a single allowed choice."),
    "adapters": ("league_inference_adapters", "gauge", "Adapters that are loaded."),
    "slots": ("league_inference_slots", "gauge", "Adapters that one batch can hold; 0 for no limit."),
    "most_adapters": ("league_inference_most_adapters", "gauge", "Most adapters that the process keeps ready."),
    "swaps": ("league_inference_swaps_total", "counter", "Adapters that were loaded or replaced."),
    "cache_bytes": ("league_inference_cache_bytes", "gauge", "Memory that holds keys and values."),
    "published": ("league_inference_versions_total", "counter", "Published versions that were sampled from."),
    "last_swap_s": ("league_inference_swap_seconds", "gauge", "From a version's publication to its first token."),
    "max_swap_s": ("league_inference_swap_seconds_max", "gauge", "The longest of these since the process started."),
}
_PLAY = {
    "games_in_flight": ("league_play_games_in_flight", "gauge", "Matches in play."),
    "games": ("league_play_games_total", "counter", "Matches that the process completed."),
    "failed": ("league_play_failed_total", "counter", "Matches of the process that failed."),
    "games_s": ("league_play_games_per_second", "gauge", "Matches played, lately."),
    "record_bytes": ("league_play_record_bytes_total", "counter", "Bytes of game records that were stored."),
    "record_s": ("league_play_record_seconds_total", "counter", "Seconds spent storing game records."),
}
_GPU = {
    "busy_share": ("league_gpu_busy_share", "Share of the time in which a GPU of the worker computed, lately."),
    "used_bytes": ("league_gpu_memory_used_bytes", "Used memory of the GPU, by any process."),
    "memory_bytes": ("league_gpu_memory_bytes", "Memory of the GPU."),
}
_TRAINING = {"tokens_s": ("league_trainer_tokens_per_second", "gauge", "Tokens trained on, in the last step.")}


def _worker_metrics(status: LeagueStatus) -> Iterator[Metric]:
    workers = [(w, {"worker": w.worker, "role": w.role, "host": w.host}) for w in status.workers]
    up = [Sample(labels, int(worker.health == "ok")) for worker, labels in workers]
    yield Metric("league_worker_up", "gauge", "Whether the worker sent a heartbeat lately.", up)
    beating = [(worker.heartbeat, labels) for worker, labels in workers if worker.heartbeat is not None]
    ages = [Sample(labels, worker.silent_s or 0.0) for worker, labels in workers if worker.heartbeat is not None]
    yield Metric("league_worker_heartbeat_age_seconds", "gauge", "Seconds since the worker's last heartbeat.", ages)
    for part, fields in (("", _WORKER), ("inference", _INFERENCE), ("play", _PLAY), ("training", _TRAINING)):
        holders = [(getattr(heartbeat, part) if part else heartbeat, labels) for heartbeat, labels in beating]
        for field, (name, kind, described) in fields.items():
            samples = [Sample(labels, getattr(holder, field)) for holder, labels in holders if holder is not None]
            yield Metric(name, kind, described, samples)
    gpus = [(gpu, {**labels, "gpu": str(gpu.index)}) for heartbeat, labels in beating for gpu in heartbeat.gpus]
    for field, (name, described) in _GPU.items():
        samples = [Sample(labels, value) for gpu, labels in gpus if (value := getattr(gpu, field)) is not None]
        yield Metric(name, "gauge", described, samples)


async def serve_metrics(run: Run, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve ``GET /metrics`` until SIGINT or SIGTERM; ``UsageError`` without a league, or if the address is taken.

    Port 0 takes a free one; ``announce`` is called once with the URL.
    """
    stopped = asyncio.Event()
    async with run.open_log("metrics") as history, follow_league(run, history) as context:
        runner = await listen(make_application(context, host), host, port, "--listen")
        try:
            announce(f"http://{host}:{port_of(runner)}/metrics")
            with call_on_signals(stopped.set):
                await stopped.wait()
        finally:
            await runner.cleanup()


def make_application(context: Context, host: str) -> web.Application:
    """Make the application, for a league whose state the caller keeps up to date."""

    async def answer(request: web.Request) -> web.Response:
        check_origin(request, is_loopback(host))
        status = with_alarms(await read_status(context.log, context.state, run=context.run), context.state)
        return metrics_response(league_metrics(status))

    def render_error(_: web.Request, refused: RefusedError) -> web.Response:
        return web.Response(status=refused.status, text=f"{refused}\n")

    # Prometheus records a failed scrape; the next one may succeed.
    app = web.Application(middlewares=[error_boundary([(LeagueError, 503)], render_error)], client_max_size=1024)
    app.router.add_get("/metrics", answer)
    return app
