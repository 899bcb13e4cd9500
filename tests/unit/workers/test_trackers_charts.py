"""Charts: the history as rows of figures, the same for whoever folds it, whenever."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from league.log.base import RecordedEvent
from schemas.codec import encode_event
from schemas.config import EvaluationConfig, LeagueConfig, Plugin, PolicyConfig, TrackerConfig, to_builtins
from schemas.events import (
    EvaluationFinished,
    Event,
    GradientStepTaken,
    LeagueOpened,
    MatchFinished,
    RemoteAsked,
    SeatResult,
    TrainingFinished,
    WorkerJoined,
    WorkerLeft,
)
from schemas.metrics import REPLY_FAULTS
from tests.builders import gradient_step
from tests.simulated_history import Simulation
from workers.trackers import ChartFold, Row
from workers.trackers.gauges import RollingMeans

CONFIG = LeagueConfig(
    seed=4,
    policies={"exploiter": PolicyConfig(role="main_exploiter")},
    evaluation=EvaluationConfig(every=3, gatekeeper_games=6, benchmark_games=6),
    tracker=TrackerConfig(every_s=0.1),
)
HISTORY = Simulation(CONFIG).run(12, 4)
S = 1_000_000_000


def rows_of(history: list[RecordedEvent], charts: ChartFold | None = None) -> list[Row]:
    charts = charts or ChartFold()
    return [row for recorded in history if (row := charts.apply(recorded)) is not None]


def newest(rows: list[Row]) -> dict[str, float]:
    """The newest value of every name."""
    return {name: value for row in rows for name, value in row.values.items()}


def told(*events: tuple[float, Event]) -> list[RecordedEvent]:
    """A history of a small league: events and the seconds at which they happened."""
    config = LeagueConfig(name="small", game=Plugin(name="nim"), tracker=TrackerConfig(every_s=64.0, window=4))
    opened = (0.0, LeagueOpened(league="small", config=to_builtins(config), model="none"))
    return [
        RecordedEvent(number, int(at * S), "small", "test", encode_event(event))
        for number, (at, event) in enumerate([opened, *events], start=1)
    ]


def match(number: int, score: float = 1.0, *, purpose: str = "training", **metrics: float) -> MatchFinished:
    seats = [
        SeatResult(0, "A", "main@0", score, 1 if score > 0.5 else 2, purpose == "training", metrics),
        SeatResult(1, "B", "random_bot", 0.5, 2 if score > 0.5 else 1),
        SeatResult(2, "C", "main@0", 0.1, 3),
    ]
    return MatchFinished(
        match_id=f"rollout-{number}",
        game="nim",
        purpose=purpose,
        worker="rollout",
        seed=1,
        seats=seats,
        winner=0 if score > 0.5 else 1,
        reason="",
        length=number,
        seconds=1.0,
        tokens=100,
    )


def step(number: int, **metrics: float) -> GradientStepTaken:
    return gradient_step(number, accepted=2, stale=1, metrics=metrics)


def test_a_fold_that_begins_later_gives_the_rows_of_one_that_ran_all_along() -> None:
    live, afresh = ChartFold(), ChartFold()
    ran = [rows_of([recorded], live) for recorded in HISTORY]
    assert [row for rows in ran for row in rows] == rows_of(HISTORY, afresh)


def test_sequences_grow_with_every_row_and_steps_never_fall() -> None:
    rows = rows_of(HISTORY)
    assert len(rows) > 20
    assert [row.sequence for row in rows] == sorted({row.sequence for row in rows})
    assert [row.step for row in rows] == sorted(row.step for row in rows)


def test_what_is_delivered_twice_is_told_once() -> None:
    assert rows_of([recorded for one in HISTORY for recorded in (one, one)]) == rows_of(HISTORY)


def test_a_copy_that_was_recorded_again_is_averaged_once() -> None:
    once = rows_of(told((1, match(1)), (2, match(2, 0.0)), (70, match(3, 0.0))))
    again = rows_of(told((1, match(1)), (2, match(2, 0.0)), (3, match(1)), (70, match(3, 0.0))))
    assert once[0].values["collection-nim/reward"] == pytest.approx(1 / 3)
    assert again[0].values == once[0].values


def test_windows_close_by_the_times_of_events_and_forget_the_oldest() -> None:
    rows = rows_of(told(*[(float(10 * n), match(n, score=n / 10)) for n in range(1, 15)]))
    assert [(row.sequence, row.full) for row in rows] == [(8, True), (15, True)]
    # The newest four of the matches up to there.
    assert rows[0].values["collection-nim/game_length"] == (4 + 5 + 6 + 7) / 4
    assert rows[1].values["collection-nim/game_length"] == (11 + 12 + 13 + 14) / 4
    assert rows[0].values["play/rollout/games_s"] == 7 / 70
    assert rows[1].values["play/rollout/tokens_s"] == 700 / 70


def test_win_rates_are_by_kind_of_opponent_and_a_mirror_is_none() -> None:
    (row,) = rows_of(told((1, match(1, 1.0)), (2, match(2, 0.5)), (3, match(3, 0.0)), (65, match(4, 0.0))))
    # Nobody registered the bot, so that its kind is not known.
    assert row.values["League/Win_Rate/live"] == (1.0 + 0.5 + 0.0 + 0.0) / 4
    assert row.values["collection-nim/win_rate"] == 1 / 4
    rates = {name for name in newest(rows_of(HISTORY)) if name.startswith("League/Win_Rate/")}
    assert {"League/Win_Rate/bot", "League/Win_Rate/checkpoint", "League/Win_Rate/exploiter/live"} <= rates


def test_ratings_of_hero_baseline_and_past_best_are_those_of_the_state() -> None:
    charts, row = ChartFold(), rows_of(HISTORY)[-1]
    rows_of(HISTORY[: row.sequence], charts)
    standings = charts.state.standings()
    names = ("Hero_Elo", "Baseline_Elo", "Past_Best_Elo", "exploiter_Elo")
    hero, baseline, best, other = (row.values[f"League/Elo_Rating/{name}"] for name in names)
    assert hero == standings.live["main"].rating
    assert other == standings.live["exploiter"].rating
    assert baseline == max(agent.rating for agent in standings.agents.values() if agent.baseline)
    assert best == max(agent.rating for agent in standings.agents.values() if agent.policy == "main")


def test_targets_of_matchmaking_stand_beside_what_was_drawn() -> None:
    values = newest(rows_of(HISTORY)[-8:])
    for policy in ("", "/exploiter"):
        for what in ("target", "realised"):
            prefix = f"matchmaking{policy}/{what}/"
            assert sum(value for name, value in values.items() if name.startswith(prefix)) == pytest.approx(1.0)
    assert 0 <= values["matchmaking/distance"] < 0.3


def test_every_gradient_step_is_told_by_itself() -> None:
    rows = rows_of(told((1, step(1, loss=2.0, wall_s=4.0, wait_s=1.0)), (2, step(1, loss=9.0)), (3, step(2, loss=1.0))))
    assert [(row.sequence, row.step, row.full) for row in rows] == [(2, 1, False), (4, 2, False)]
    assert rows[0].values["learner/loss"] == 2.0
    assert rows[0].values["learner/wait_share"] == 0.25
    assert rows[1].values["learner/loss"] == 1.0
    assert rows[1].values["learner/stale"] == 1.0


def test_custom_values_are_averaged_and_keep_a_prefix_that_there_is() -> None:
    first = match(1, **{"curiosity": 2.0, "collection-nim/own": 4.0, "odd/name": 6.0})
    second = match(2, **{"curiosity": 4.0, "collection-nim/own": 8.0})
    (row,) = rows_of(
        told((1, first), (2, second), (3, step(1, **{"learner/mine": 3.0, "collection-nim/own": 0.0})), (66, match(3)))
    )[1:]
    assert row.values["collection-nim/curiosity"] == 3.0
    assert row.values["collection-nim/own"] == 4.0
    assert row.values["collection-nim/odd/name"] == 6.0
    assert row.values["learner/mine"] == 3.0


def test_format_and_invalid_moves_are_shares_of_the_replies() -> None:
    played = match(1, reply_count=8.0, reply_unformatted=2.0, reply_invalid=1.0, reply_truncated=4.0)
    (row,) = rows_of(told((1, played), (65, match(2))))
    assert row.values["collection-nim/format_success"] == 0.75
    assert row.values["collection-nim/invalid_moves"] == 0.125
    shares = {fault: row.values[f"collection-nim/{fault}_replies"] for fault in REPLY_FAULTS}
    assert shares == {"truncated": 0.5, "empty": 0.0, "unparsable": 0.0, "illegal": 0.0}


def test_unique_ngrams_of_opponents_are_summed() -> None:
    def counted(number: int, new: float) -> MatchFinished:
        played = match(number)
        seats = [msgspec.structs.replace(seat, metrics={"ngrams": 4.0, "ngrams_new": new}) for seat in played.seats]
        return msgspec.structs.replace(played, seats=seats)

    row = rows_of(told((0.0, counted(0, 4.0)), (1.0, counted(1, 1.0)), (65, match(9))))[0].values
    opponent = next(seat.agent for seat in match(0).seats if not seat.trainable)
    assert row[f"exploration/{opponent}/unique_ngrams"] == 5
    assert row["collection-nim/ngrams_new"] == 2.5


def test_costs_of_remote_agents_add_up() -> None:
    asked = [
        RemoteAsked(
            agent=agent,
            match_id="m",
            worker="rollout",
            since=0,
            number=number,
            requests=3,
            prompt_tokens=5,
            completion_tokens=5,
            tokens=10,
            uncounted=0,
            cost=0.5,
        )
        for number, agent in enumerate(("judge", "judge", "poet"))
    ]
    (row,) = rows_of(told(*[(float(n), event) for n, event in enumerate(asked)], (65, match(1))))
    assert row.values["cost/judge/total"] == 1.0
    assert row.values["cost/judge/tokens"] == 20.0
    assert row.values["cost/total"] == 1.5


def test_a_league_that_comes_to_rest_leaves_nothing_untold() -> None:
    joined = WorkerJoined(worker="rater-1", role="rater", incarnation="x", host="h", pid=1, version="1")
    measured = EvaluationFinished(
        evaluation_id="e", agent="main@2", suite="benchmark", opponents=["random_bot"], games=4, failed=0, wins=3,
        mean_score=0.5, mean_rank=1.5,
    )  # fmt: skip
    rows = rows_of(
        told(
            (1, joined),
            (2, match(1)),
            (3, TrainingFinished(policy="main", version=2, reason="steps")),
            (4, match(2)),
            (5, WorkerLeft(worker="rater-1", incarnation="x", reason="done")),
            (6, measured),
        )
    )
    assert [(row.sequence, row.full) for row in rows] == [(4, True), (6, True)]
    assert rows[1].values["collection-nim/game_length"] == 1.5


@given(
    st.lists(
        st.tuples(
            st.integers(-(2**62), 2**62),
            st.sampled_from(["reward", "a/b", "collection-nim/c", "/", "", "reply_count"]),
            st.floats(),
        ),
        max_size=8,
    )
)
def test_no_event_makes_the_fold_fail(said: list[tuple[int, str, float]]) -> None:
    charts = ChartFold()
    for number, (at, name, value) in enumerate(said, start=1):
        played = msgspec.structs.replace(match(number, **{name: value}), tokens=10**400)
        for sequence, event in ((2 * number - 1, played), (2 * number, step(number, **{name: value}))):
            recorded = RecordedEvent(sequence, at, "", "", b"")
            recorded._event, recorded._decoded = event, True
            row = charts.apply(recorded)
            assert row is None or msgspec.json.decode(msgspec.json.encode(row), type=Row) == row


def test_only_names_with_news_are_averaged_again() -> None:
    windows = RollingMeans()
    windows.add("a/x", 1.0, 4)
    windows.add("a/y", float("nan"), 4)
    assert windows.collect() == {"a/x": 1.0}
    windows.add("a/z", 3.0, 4)
    assert windows.collect() == {"a/z": 3.0}
