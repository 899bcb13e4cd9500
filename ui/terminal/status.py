"""Output of ``league status``, and texts of a worker's health, load and activity, shared with the dashboard."""

from league.queries.status import LeagueStatus, WorkerStatus, silence_text
from league.queries.terminal import Console
from league.queries.text_table import number_columns, print_table
from schemas.errors import escape_unprintable
from schemas.metrics import Heartbeat
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
        policies = []
        for each in status.policies:
            waits = f"{100 * each.wait_share:.0f} %"
            trainer = waits if each.finished is None else escape_unprintable(f"done: {each.finished}")
            figures = (each.version, each.step, f"{each.rating:.0f}", f"{each.ahead:,}", f"{each.pending:,}")
            policies.append([escape_unprintable(each.policy), *figures, trainer])
        columns = ["policy", *number_columns("version", "step", "rating", "in play", "waiting"), "trainer waits"]
        print_table(console, columns, policies, ("version",), "Policies")
    if status.workers:
        workers = []
        for worker in status.workers:
            load = [PLACEHOLDER] * 4 if worker.heartbeat is None else process_figures(worker.heartbeat)
            cells = (worker.worker, worker.role, health_text(worker), *load, activity_text(worker))
            workers.append([escape_unprintable(cell) for cell in cells])
        columns = ["worker", "role", "health", *number_columns("up", "memory", "cores", "behind"), "at work on"]
        print_table(console, columns, workers, ("role", "up", "behind"), "Workers")
    else:
        show("no worker serves this league now")
    for worker in status.silent_workers:
        show(f"{worker.worker} on {worker.host} (process {worker.pid}) {silence_text(worker)}")


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
    if worker.left is not None or beat is None:
        return worker.left if worker.left is not None else "–"
    parts = []
    if (play := beat.play) is not None:
        failed = f", {play.failed:,} failed" if play.failed else ""
        parts.append(f"{play.games_in_flight:,} games, {play.games_s:.1f}/s{failed}")
    if (inference := beat.inference) is not None:
        swap = f", swap {inference.last_swap_s:.2f} s" if inference.published else ""
        parts.append(
            f"{inference.queued:,} + {inference.running:,} requests, {inference.tokens_s:,.0f} tokens/s, "
            f"adapters {inference.adapters}/{inference.most_adapters or inference.slots or '∞'}{swap}"
        )
    if (training := beat.training) is not None:
        parts.append(f"{training.policy} step {training.step}, waits {100 * training.wait_share:.0f} %")
    for gpu in beat.gpus:
        figures = [] if gpu.busy_share is None else [f"{100 * gpu.busy_share:.0f} %"]
        if gpu.used_bytes is not None and gpu.memory_bytes is not None:
            figures.append(f"{gpu.used_bytes / 2**30:.0f} of {gpu.memory_bytes / 2**30:.0f} GiB")
        parts.append(f"GPU {gpu.index} {', '.join(figures) or gpu.name}")
    return "; ".join(parts) or "–"
