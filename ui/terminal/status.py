"""Output of ``league status``, and texts of a worker's health, load and activity, shared with the dashboard."""

from rich.console import Console

from league.queries.status import LeagueStatus, WorkerStatus, silence_text
from league.queries.text_table import number_columns, print_table
from schemas.errors import escape_unprintable
from schemas.metrics import GpuMetrics, Heartbeat, InferenceMetrics, MatchMetrics, TrainingMetrics
from ui.output import PLACEHOLDER


def print_status(console: Console, status: LeagueStatus) -> None:
    """Print a league's status with tables of its policies and workers."""

    def show(text: str, style: str | None = None) -> None:
        console.print(escape_unprintable(text), highlight=False, markup=False, style=style)

    games = ", ".join(f"{count:,} {purpose}" for purpose, count in status.games.items()) or "none"
    show(f"league {status.league!r} ({status.game}) at event {status.sequence:,}")
    show(f"games: {games}; {status.failed:,} failed, {status.voided:,} voided; {status.dead_letters:,} dead letters")
    for alarm in status.alarms:
        show(f"alarm {alarm.name}: {alarm.text}", "bold red")
    for policy, reason in status.paused.items():
        show(f"{policy or 'the league'} pauses: {reason or 'no reason given'}")
    if status.policies:
        _print_policies(console, status)
    if status.workers:
        _print_workers(console, status)
    else:
        show("no worker serves this league now")
    for worker in status.silent_workers:
        show(f"{worker.worker} on {worker.host} (process {worker.pid}) {silence_text(worker)}")


def _print_policies(console: Console, status: LeagueStatus) -> None:
    rows = [
        [
            escape_unprintable(policy.policy),
            policy.version,
            policy.step,
            f"{policy.rating:.0f}",
            f"{policy.ahead:,}",
            f"{policy.pending:,}",
            f"{100 * policy.wait_share:.0f} %"
            if policy.finished is None
            else escape_unprintable(f"done: {policy.finished}"),
        ]
        for policy in status.policies
    ]
    columns = ["policy", *number_columns("version", "step", "rating", "in play", "waiting"), "trainer waits"]
    print_table(console, columns, rows, ("version",), "Policies")


def _print_workers(console: Console, status: LeagueStatus) -> None:
    rows = []
    for worker in status.workers:
        beat = worker.heartbeat
        load = [PLACEHOLDER] * 4 if beat is None else process_figures(beat)
        cells = (worker.worker, worker.role, health_text(worker), *load, activity_text(worker))
        rows.append([escape_unprintable(cell) for cell in cells])
    columns = ["worker", "role", "health", *number_columns("up", "memory", "cores", "behind"), "at work on"]
    print_table(console, columns, rows, ("role", "up", "behind"), "Workers")


def health_text(worker: WorkerStatus) -> str:
    """A worker's health, and for how long it has been silent."""
    if worker.health != "silent":
        return worker.health
    return "silent" if worker.silent_s is None else f"silent {worker.silent_s:.0f} s"


def process_figures(beat: Heartbeat) -> list[str]:
    """Uptime, memory, cores, and events behind the history."""
    up = f"{beat.uptime_s:.0f} s" if beat.uptime_s < 120 else f"{beat.uptime_s / 60:.0f} min"
    return [up, f"{beat.memory_bytes / 2**20:,.0f} MiB", f"{beat.cpu_share:.2f}", f"{beat.lag:,}"]


def activity_text(worker: WorkerStatus) -> str:
    """A worker's current activity, or why it left."""
    beat = worker.heartbeat
    if worker.left is not None:
        return worker.left
    if beat is None:
        return "–"
    parts = [
        *([_play_text(beat.play)] if beat.play is not None else []),
        *([_inference_text(beat.inference)] if beat.inference is not None else []),
        *([_training_text(beat.training)] if beat.training is not None else []),
        *(_single_gpu_text(gpu) for gpu in beat.gpus),
    ]
    return "; ".join(parts) or "–"


def _play_text(play: MatchMetrics) -> str:
    failed = f", {play.failed:,} failed" if play.failed else ""
    return f"{play.games_in_flight:,} games, {play.games_s:.1f}/s{failed}"


def _inference_text(inference: InferenceMetrics) -> str:
    most = inference.most_adapters or inference.slots
    swap = f", swap {inference.last_swap_s:.2f} s" if inference.published else ""
    return (
        f"{inference.queued:,} + {inference.running:,} requests, {inference.tokens_s:,.0f} tokens/s, "
        f"adapters {inference.adapters}/{most or '∞'}{swap}"
    )


def _training_text(training: TrainingMetrics) -> str:
    return f"{training.policy} step {training.step}, waits {100 * training.wait_share:.0f} %"


def _single_gpu_text(gpu: GpuMetrics) -> str:
    parts = [] if gpu.busy_share is None else [f"{100 * gpu.busy_share:.0f} %"]
    if gpu.used_bytes is not None and gpu.memory_bytes is not None:
        parts.append(f"{gpu.used_bytes / 2**30:.0f} of {gpu.memory_bytes / 2**30:.0f} GiB")
    return f"GPU {gpu.index} {', '.join(parts) or gpu.name}"
