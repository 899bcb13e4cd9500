"""The progress of a run in words."""

import io

import msgspec
from rich.console import Console

from league.state import LeagueState
from schemas.config import EvaluationConfig, LeagueConfig, StopConfig
from schemas.events import EvaluationRequested, GradientStepTaken, MatchFinished
from tests.simulated_history import Simulation
from workers.monitoring.live_table import Dashboard, format_time_left


def test_after_training_measurements_are_counted_only_while_games_wait() -> None:
    simulation = Simulation(LeagueConfig(seed=4, evaluation=EvaluationConfig(every=2, benchmark_games=6)), seats=3)
    simulation.run(2, 2)
    state = LeagueState()
    for recorded in simulation.history:
        state.apply(recorded.sequence, recorded.event)
    assert format_time_left(state, "main", StopConfig()) == "training done"
    request = EvaluationRequested(
        evaluation_id="one-more", agent="main@2", suite="gatekeepers", opponents=["random_bot"], matches=["one-more-0"]
    )
    state.apply(state.sequence + 1, request)
    assert format_time_left(state, "main", StopConfig()) == "training done, measuring: 112 of 113 games"


def test_progress_shows_the_won_share_and_the_newest_reward_entropy_and_kl_with_their_units() -> None:
    simulation = Simulation(LeagueConfig(seed=4), seats=2)
    dashboard = Dashboard(simulation.state, "main")
    assert "won – · reward – · entropy – · KL –" in dashboard.render_line(StopConfig())
    simulation.run(3, 2)
    seats = []
    for recorded in simulation.history:
        dashboard.observe(recorded)
        if isinstance(recorded.event, MatchFinished):
            seats += [recorded.event.has_won(seat) for seat in recorded.event.seats if seat.trainable]
    newest = next(r.event for r in reversed(simulation.history) if isinstance(r.event, GradientStepTaken))
    measured = {"reward_mean": 0.523, "entropy": 0.61, "kl": 0.00123}
    step = msgspec.structs.replace(newest, step=newest.step + 1, metrics=measured)
    simulation.append(step)
    dashboard.observe(simulation.history[-1])
    expected = (
        f"won {100 * sum(seats) / len(seats):.0f} % of {len(seats)} seats · reward 0.52 progress · "
        "entropy 0.61 nats · KL 0.0012 nats"
    )
    assert expected in dashboard.render_line(StopConfig())
    for width in (80, 120):
        console = Console(file=io.StringIO(), width=width)
        console.print(dashboard.render(StopConfig()))
        drawn = console.file.getvalue()
        assert all(
            figure in drawn for figure in ("0.52 progress", "0.61 nats", "0.0012 nats", f"of {len(seats)} seats")
        )
        assert max(map(len, drawn.splitlines())) <= width
