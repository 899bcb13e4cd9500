"""The progress of a run in words."""

from league.state import LeagueState
from schemas.config import EvaluationConfig, LeagueConfig, StopConfig
from schemas.events import EvaluationRequested
from tests.simulated_history import Simulation
from workers.monitoring.live_table import format_time_left


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
