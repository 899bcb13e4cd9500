"""The live table of a running league: metrics of recent events, rates and the time left."""

import time
from collections import deque
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from league.log.base import RecordedEvent
from league.matchmaking.roles import exploiter_points_share
from league.matchmaking.schedule import budget_share_used
from league.state import LeagueState
from schemas import events as e
from schemas.config import StopConfig
from schemas.ids import split_agent

_WINDOW_S = 60.0
_RESULT_WINDOW = 200
"""Newest training seats of a policy of which the won share is shown."""


class _Rate:
    """Amount per second over the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()

    def add(self, amount: float) -> None:
        self._seen.append((time.monotonic(), amount))

    def per_second(self) -> float:
        now = time.monotonic()
        while self._seen and now - self._seen[0][0] > _WINDOW_S:
            self._seen.popleft()
        if not self._seen:
            return 0.0
        return sum(amount for _, amount in self._seen) / max(now - self._seen[0][0], 1.0)


class Dashboard:
    """Metrics of a running league, as a table or a line. The caller keeps ``state`` up to date."""

    def __init__(self, state: LeagueState, policy: str) -> None:
        self._state = state
        self._policy = policy
        self._games = _Rate()
        self._tokens = _Rate()
        self._wins: dict[str, deque[bool]] = {}
        self._measured: dict[str, float] = {}
        self._started = time.monotonic()

    def observe(self, recorded: RecordedEvent) -> None:
        """Count a new event."""
        event = recorded.event
        if isinstance(event, e.MatchFinished):
            self._games.add(1)
            self._tokens.add(event.tokens)
            for seat in event.seats:
                if seat.trainable and (named := split_agent(seat.agent)) is not None:
                    self._wins.setdefault(named[0], deque(maxlen=_RESULT_WINDOW)).append(event.has_won(seat))
        elif isinstance(event, e.GradientStepTaken) and event.policy == self._policy and not event.skipped:
            self._measured = event.metrics

    def _metrics(self) -> dict[str, str]:
        state = self._state
        standings, step = state.standings(), state.last_step(self._policy)
        live = standings.live.get(self._policy)
        baselines = [agent.rating for agent in standings.agents.values() if agent.baseline]
        checkpoints = [agent.rating for agent in standings.agents.values() if agent.kind == "checkpoint"]
        return {
            "step": f"{step.step if step else 0}",
            "games": f"{state.finished_matches('training')}",
            "games/s": f"{self._games.per_second():.1f}",
            "tokens/s": f"{self._tokens.per_second():,.0f}",
            "won": self._won_share(self._policy),
            "reward": self._newest("reward_mean", f" {state.config_or_default.trainer.reward.name}"),
            "entropy": self._newest("entropy", " nats"),
            "KL": self._newest("kl", " nats"),
            "hero": _format_elo(live.rating if live else None),
            "baselines": _format_elo(max(baselines, default=None)),
            "past best": _format_elo(max(checkpoints, default=None)),
            "checkpoints": f"{len(checkpoints)}",
        }

    def _won_share(self, policy: str) -> str:
        wins = self._wins.get(policy)
        return f"{100 * sum(wins) / len(wins):.0f} % of {len(wins)} seats" if wins else "–"

    def _newest(self, metric: str, unit: str) -> str:
        """A metric of the newest gradient step with its unit."""
        value = self._measured.get(metric)
        return "–" if value is None else f"{value:.2g}{unit}"

    def _other_policies(self) -> Iterator[dict[str, str]]:
        config, state = self._state.config, self._state
        if config is None:
            return
        standings = state.standings()
        for policy, role in config.trained_policies.items():
            if policy != self._policy:
                step, live = state.last_step(policy), standings.live.get(policy)
                # The share of points that its next reset depends on; None if it is never reset or has too few results.
                taken = exploiter_points_share(standings, config, policy)
                yield {
                    "policy": policy,
                    "role": role.role,
                    "steps": f"{step.step if step else 0}",
                    "resets": f"{len(state.resets(policy))}",
                    "won": self._won_share(policy),
                    "points taken": "–" if taken is None else f"{100 * taken:.0f} %",
                    "Elo": _format_elo(live.rating if live else None),
                }

    def render_line(self, stop: StopConfig) -> str:
        """Render the metrics as one line, for logs and pipes."""
        m = self._metrics()
        return (
            f"step {m['step']} · {m['games']} games · {m['games/s']} games/s · {m['tokens/s']} tokens/s · "
            f"won {m['won']} · reward {m['reward']} · entropy {m['entropy']} · KL {m['KL']} · "
            f"Elo hero {m['hero']} baselines {m['baselines']} past best {m['past best']} · "
            f"{m['checkpoints']} checkpoints · {format_time_left(self._state, self._policy, stop)}"
            + "".join(
                f" · {o['policy']} step {o['steps']} Elo {o['Elo']} resets {o['resets']}"
                for o in self._other_policies()
            )
        )

    def render(self, stop: StopConfig) -> RenderableType:
        """Render the metrics as a table, for a terminal."""
        m = self._metrics()
        evaluated = self._state.finished_matches("evaluation")
        elapsed = f"{time.monotonic() - self._started:.0f} s"
        running = sum(worker.left is None for worker in self._state.workers.values())
        table = Table.grid(padding=(0, 3))
        for row in (
            ("steps", m["step"], "games", f"{m['games']} training, {evaluated} evaluation"),
            ("games/s", m["games/s"], "tokens/s", m["tokens/s"]),
            ("won", m["won"], "reward", m["reward"]),
            ("entropy", m["entropy"], "KL", m["KL"]),
            ("Elo hero", m["hero"], "baselines / past best", f"{m['baselines']} / {m['past best']}"),
            ("checkpoints", m["checkpoints"], "failed", f"{self._state.failed}"),
            ("elapsed", elapsed, "time left", format_time_left(self._state, self._policy, stop)),
            ("workers", f"{running} running" if running else "starting", "", ""),
        ):
            table.add_row(Text(row[0], "dim"), row[1], Text(row[2], "dim"), row[3])
        bar = ProgressBar(total=1.0, completed=budget_share_used(self._state, self._policy, stop), width=60)
        others = list(self._other_policies())
        if not others:
            return Group(table, bar)
        below = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
        for column in others[0]:
            below.add_column(column, justify="left" if column in ("policy", "role") else "right")
        for other in others:
            below.add_row(*other.values())
        return Group(table, below, bar)


def format_time_left(state: LeagueState, policy: str, stop: StopConfig) -> str:
    """A policy's remaining training time in words, or why it cannot be estimated."""
    share = budget_share_used(state, policy, stop)
    if (pause := state.pauses.active_pause(policy)) is not None:
        return f"paused ({pause.reason or 'league resume has it go on'})"
    if state.training_finished(policy) is not None:
        requested = sum(len(each.requested.matches) for each in state.evaluations.values())
        waiting = sum(len(each.waiting) for each in state.evaluations.values())
        return (
            f"training done, measuring: {requested - waiting:,} of {requested:,} games" if waiting else "training done"
        )
    spent = state.training_seconds(policy)
    if share <= 0 or spent <= 0:
        return "runs until stopped" if stop == StopConfig() else "estimating time left"
    return f"{spent * (1 - share) / share / 60:.1f} min left"


def _format_elo(rating: float | None) -> str:
    return "–" if rating is None else f"{rating:.0f}"
