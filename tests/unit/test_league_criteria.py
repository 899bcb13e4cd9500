"""The success criteria: what they count, what fails them, and that what was not measured is not met."""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from league.analysis.summary import wilson_interval
from league.log.base import RecordedEvent
from league.success_criteria import CriteriaReport, Thresholds, judge_history
from league.success_criteria.against_baselines import (
    BaselineBeat,
    NoRegression,
    judge_baseline_beat,
    judge_no_regression,
)
from league.success_criteria.statistics import CriteriaEvidence
from league.success_criteria.training import Stability, judge_stability
from schemas import events as e
from schemas.codec import encode_event
from schemas.config import CheckpointScheduleConfig, EvaluationConfig, LeagueConfig, PromotionConfig
from schemas.ids import split_agent
from tests.memory_log import MemoryLog
from tests.simulated_history import Simulation

BASELINES = ("random_bot", "chaos_bot", "base_model")
LOOSE = Thresholds(tolerance=0.12)
"""A league of 31 steps has few draws."""


def config(**evaluation: Any) -> LeagueConfig:
    measured = EvaluationConfig(every=5, gatekeepers=BASELINES, gatekeeper_games=21, benchmark_games=210)
    return LeagueConfig(
        seed=4,
        schedule=CheckpointScheduleConfig(recent_every=5),
        promotion=PromotionConfig(rule="high_score"),
        evaluation=replace(measured, **evaluation),
    )


def learns(agent: str) -> float:
    named = split_agent(agent)
    return 0.0 if named is None else min(0.1 * named[1], 2.0)


def simulated(skill: Callable[[str], float], steps: int, settings: LeagueConfig) -> list[RecordedEvent]:
    return edited(Simulation(settings, skill=skill).run(steps, 8), with_rollouts)


def with_rollouts(event: e.Event) -> e.Event:
    """A simulated match makes no rollout, though steps say that they were trained on it."""
    is_training = isinstance(event, e.MatchFinished) and event.purpose == "training"
    return replace(event, experience="rollout") if is_training else event


def edited(records: Iterable[RecordedEvent], edit: Callable[[Any], e.Event]) -> list[RecordedEvent]:
    return [like(r, edit(r.event)) if r.event is not None else r for r in records]


def like(recorded: RecordedEvent, event: e.Event, sequence: int | None = None, after_ns: int = 0) -> RecordedEvent:
    place = recorded.sequence if sequence is None else sequence
    return RecordedEvent(place, recorded.time_ns + after_ns, recorded.subject, recorded.producer, encode_event(event))


def judged(records: Sequence[RecordedEvent], thresholds: Thresholds = LOOSE, **more: Any) -> CriteriaReport:
    async def body() -> CriteriaReport:
        log = MemoryLog("league")
        await log.copy(records)
        return await judge_history(log, thresholds, **more)

    return asyncio.run(body())


def collected(records: Sequence[RecordedEvent], opponent: str = "random_bot") -> CriteriaEvidence:
    found = CriteriaEvidence(opponent)
    for recorded in records:
        found.apply(recorded)
    return found


def beating(records: Sequence[RecordedEvent], thresholds: Thresholds = LOOSE) -> BaselineBeat:
    return judge_baseline_beat(collected(records, thresholds.opponent), thresholds)


def regressing(records: Sequence[RecordedEvent], thresholds: Thresholds = LOOSE) -> NoRegression:
    return judge_no_regression(collected(records), thresholds)


def lasting(records: Sequence[RecordedEvent], dead_letters: int | None = None) -> Stability:
    return judge_stability(collected(records), LOOSE, dead_letters)


def with_more(records: Sequence[RecordedEvent], *events: e.Event) -> list[RecordedEvent]:
    """The history with events behind it."""
    last = records[-1]
    more = [
        RecordedEvent(last.sequence + nth, last.time_ns, "league.league.test", "test", encode_event(event))
        for nth, event in enumerate(events, start=1)
    ]
    return [*records, *(RecordedEvent(r.sequence, r.time_ns, "", r.producer, r.payload) for r in more)]


def benchmark_of(records: Sequence[RecordedEvent], agent: str) -> list[e.MatchFinished]:
    ours = next(
        r.event.evaluation_id
        for r in records
        if isinstance(r.event, e.EvaluationRequested) and (r.event.agent, r.event.suite) == (agent, "benchmark")
    )
    return [r.event for r in records if isinstance(r.event, e.MatchFinished) and r.event.evaluation_id == ours]


HISTORY = simulated(learns, 30, config())
PLAYED = benchmark_of(HISTORY, "main@30")


def winning(won: set[str], agent: str = "main@30") -> Callable[[e.Event], e.Event]:
    """The agent wins these matches of its benchmark, and its neighbour the others."""
    played = {match.match_id for match in PLAYED}

    def edit(event: e.Event) -> e.Event:
        if not isinstance(event, e.MatchFinished) or event.match_id not in played:
            return event
        [hero] = [seat.seat for seat in event.seats if seat.agent == agent]
        return replace(event, winner=hero if event.match_id in won else (hero + 1) % 7)

    return edit


def test_a_run_that_learnt_meets_all_four() -> None:
    found = judged(HISTORY, dead_letters=0)
    assert found.passed
    assert (found.policy, found.game, found.sequence) == ("main", "diplomacy", len(HISTORY))
    beat = found.baseline_beat
    assert (beat.agent, beat.wins, beat.games, beat.failed) == ("main@30", 210, 210, 0)
    assert [seat.games for seat in beat.seats] == [30] * 7
    assert [one.baseline for one in found.no_regression.baselines] == ["base_model", "random_bot", "chaos_bot"]
    assert all(one.below == 0 and one.versions == 6 for one in found.no_regression.baselines)
    assert found.diversity.buckets[0].configured == 0.4
    assert (found.stability.steps, found.stability.target, found.stability.balanced) == (31, 1000, True)


@pytest.mark.parametrize(("wins", "passed"), [(179, False), (180, True)])
def test_the_lower_end_of_the_interval_has_to_be_above_the_bound(wins: int, passed: bool) -> None:
    won = {match.match_id for match in PLAYED[:wins]}
    found = beating(edited(HISTORY, winning(won)))
    assert (found.wins, found.games, found.passed) == (wins, 210, passed)
    assert (found.low, found.high) == wilson_interval(wins, 210)
    assert (found.low > 0.8) is passed


def test_the_worst_seat_is_shown_first() -> None:
    lost = {match.match_id for match in PLAYED if match.seats[3].agent == "main@30"}
    won = {match.match_id for match in PLAYED} - lost
    found = beating(edited(HISTORY, winning(won)))
    assert (found.seats[0].seat, found.seats[0].wins, found.seats[0].games) == ("SEAT3", 0, 30)
    assert found.share == pytest.approx(6 / 7)


def test_ties_are_not_won() -> None:
    def tied(event: e.Event) -> e.Event:
        ours = isinstance(event, e.MatchFinished) and event.match_id in {match.match_id for match in PLAYED}
        return replace(event, winner=None) if ours else event

    assert beating(edited(HISTORY, tied)).wins == 0


def test_games_that_failed_or_were_voided_count_as_not_won() -> None:
    failing, voided = PLAYED[0].match_id, PLAYED[1]

    def fails(event: e.Event) -> e.Event:
        if isinstance(event, e.MatchFinished) and event.match_id == failing:
            return e.MatchFailed(match_id=failing, purpose="evaluation", worker="evaluator-0", error="illegal")
        return event

    place = next(r.sequence for r in HISTORY if r.event == voided)
    void = e.MatchVoided(match=voided, match_sequence=place, reason="a bad worker")
    records = with_more(edited(HISTORY, fails), void)
    found = beating(records)
    assert (found.wins, found.games, found.failed) == (208, 210, 2)
    assert regressing(records).matches == regressing(HISTORY).matches - 2


@pytest.mark.parametrize(
    ("thresholds", "problem"),
    [
        (replace(LOOSE, games=211), "210 games; expected 211"),
        (replace(LOOSE, opponent="mover"), "no version of main has a finished benchmark against mover"),
    ],
)
def test_a_benchmark_that_is_short_or_missing_is_not_measured(thresholds: Thresholds, problem: str) -> None:
    found = beating(HISTORY, thresholds)
    assert not found.passed
    assert [problem in text and "not measured" in text for text in found.problems] == [True]


def test_seats_have_to_come_up_equally_often() -> None:
    def moved(event: e.Event) -> e.Event:
        if isinstance(event, e.MatchFinished) and event.match_id == PLAYED[0].match_id:
            return replace(event, seats=[replace(seat, role="SEAT5") for seat in event.seats])
        return event

    [problem] = beating(edited(HISTORY, moved)).problems
    assert problem == "not measured: 29 games from one seat and 31 from another"


def test_a_version_that_falls_below_a_baseline_is_noticed_and_named() -> None:
    def falls(agent: str) -> float:
        named = split_agent(agent)
        return 0.5 if named is None else (1.5 if named[1] < 20 else 0.0)

    records = simulated(falls, 30, config())
    found = regressing(records)
    assert not found.passed
    assert found.official_below >= 1
    assert found.official_worst is not None
    assert found.official_worst < 0
    alarms = sum(isinstance(r.event, e.RegressionNoticed) for r in records)
    assert lasting(records).regressions == alarms >= 1
    for one in found.baselines:
        assert one.worst is not None
        assert one.below >= 1
        assert one.worst.version >= 20
        assert one.worst.high < 0
        assert "were below it" in one.problem


def test_before_the_warm_up_the_hero_may_be_below() -> None:
    def rises(agent: str) -> float:
        named = split_agent(agent)
        return 0.5 if named is None else (0.0 if named[1] < 10 else 1.5)

    records = simulated(rises, 30, config())
    early, late = (regressing(records, replace(LOOSE, warm_up=share)) for share in (0.0, 0.5))
    assert not early.passed
    assert late.passed
    assert (early.warm_up, late.warm_up) == (0, 16)


def test_a_hero_as_strong_as_a_baseline_is_not_below_it() -> None:
    found = regressing(simulated(lambda _: 0.0, 30, config()))
    assert found.passed
    assert all(one.worst is not None and one.worst.low < 0 < one.worst.high for one in found.baselines)


def test_a_baseline_that_nobody_met_is_not_measured() -> None:
    found = regressing(simulated(learns, 10, config(gatekeepers=("random_bot",))))
    assert not found.passed
    assert ["chaos_bot: not measured" in problem for problem in found.problems] == [True]


def test_an_interval_that_leaves_a_regression_open_measures_nothing() -> None:
    equal = simulated(lambda _: 0.0, 30, config())
    loose, strict = (regressing(equal, replace(LOOSE, margin=margin)).baselines for margin in (150.0, 5.0))
    assert not any(one.problem for one in loose)
    assert all("not measured" in one.problem and one.below == 0 for one in strict)
    # Whoever never lost is known to be above, though nobody can say by how much.
    assert regressing(HISTORY, replace(LOOSE, margin=0.0)).passed


def test_draws_that_follow_another_mix_fail() -> None:
    def only_mirror(event: e.Event) -> e.Event:
        if not isinstance(event, e.OpponentsSampled):
            return event
        return replace(event, picks=[replace(pick, bucket="mirror") for pick in event.picks])

    found = judged(edited(HISTORY, only_mirror)).diversity
    assert not found.passed
    assert any(text.startswith("mirror: 100.0 % of the picks; expected") for text in found.problems)


def test_a_mix_other_than_the_specifications_is_named_as_a_deviation() -> None:
    def only_baselines(event: e.Event) -> e.Event:
        if not isinstance(event, e.LeagueOpened):
            return event
        settings = {"mirror": 0.04, "peers": 0.0, "exploitable": 0.0, "baselines": 0.96}
        return replace(
            event, config={**event.config, "matchmaking": {"sampler": {"name": "pfsp", "settings": settings}}}
        )

    assert judged(HISTORY).diversity.deviation == ""
    found = judged(edited(HISTORY, only_baselines)).diversity
    assert found.deviation == (
        "the configured mix is not the specification's: mirror 4 %, not 30 %; peers 0 %, not 40 %; "
        "exploitable 0 %, not 20 %; baselines 96 %, not 10 %"
    )
    assert {one.bucket: one.specified for one in found.buckets} == Thresholds().mix


def test_too_few_draws_fail_rather_than_pass() -> None:
    found = judged(HISTORY, replace(LOOSE, tolerance=0.01)).diversity
    assert not found.passed
    assert any("not known to be within 1 points" in text for text in found.problems)


def test_a_bucket_interval_takes_the_picks_of_a_match_for_one_piece_of_evidence() -> None:
    def cloned(event: e.Event) -> e.Event:
        if not isinstance(event, e.OpponentsSampled):
            return event
        return replace(event, picks=[replace(pick, bucket=event.picks[0].bucket) for pick in event.picks])

    apart, together = judged(HISTORY).diversity, judged(edited(HISTORY, cloned)).diversity
    widths = [
        {one.bucket: one.high - one.low for one in found.buckets if one.bucket == "peers"}["peers"]
        for found in (apart, together)
    ]
    assert widths[1] > 1.5 * widths[0]


STEPS = [r for r in HISTORY if isinstance(r.event, e.GradientStepTaken)]
LAST = HISTORY[-1].sequence
JOINED = e.WorkerJoined(worker="rollout-1", role="rollout", incarnation="a", host="h", pid=1, version="1")


def changed_step(**fields: Any) -> list[RecordedEvent]:
    return [like(r, replace(r.event, **fields)) if r is STEPS[10] and r.event is not None else r for r in HISTORY]


def left(reason: str) -> list[RecordedEvent]:
    return with_more(HISTORY, JOINED, e.WorkerLeft(worker="rollout-1", incarnation="a", reason=reason))


FAULTS = {
    "a skipped step": (changed_step(skipped=True), "1 gradient steps were skipped"),
    "a missing step": ([r for r in HISTORY if r is not STEPS[10]], "1 numbers of gradient steps are missing"),
    "a late step": (
        [like(r, r.event, after_ns=3_600 * 10**9 * (r.sequence >= STEPS[10].sequence)) for r in HISTORY if r.event],
        "step 11 came after 60 minutes",
    ),
    "a crash": (left("ended with code -9"), "rollout-1: ended with code -9"),
    "a crash that nobody saw": (
        with_more(HISTORY, JOINED, replace(JOINED, incarnation="b")),
        "rollout-1: began again without having left",
    ),
    "no memory": (
        with_more(HISTORY, e.AdapterSlotsReduced(worker="rollout-1", incarnation="a", slots=1, reason="memory")),
        "1 times a process ran out of memory",
    ),
    "an unreadable event": ([*HISTORY, RecordedEvent(LAST + 1, 0, "", "test", b"{")], "1 events cannot be decoded"),
    "a rollout trained on twice": (
        changed_step(matches=STEPS[9].event.matches if isinstance(STEPS[9].event, e.GradientStepTaken) else []),
        "the ledger does not balance",
    ),
    "many failed matches": (
        with_more(
            HISTORY,
            *(
                e.MatchFailed(match_id=f"rollout-9-{n}", purpose="training", worker="rollout-9", error="illegal")
                for n in range(20)
            ),
        ),
        "20 of 835 matches failed",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_told(fault: str) -> None:
    records, problem = FAULTS[fault]
    found = lasting(records)
    assert not found.passed
    assert [text for text in found.problems if text.startswith(problem)], found.problems


def test_dead_letters_are_a_fault_where_somebody_looked() -> None:
    assert lasting(HISTORY, dead_letters=2).problems == ["2 dead letters"]
    assert lasting(HISTORY).dead_letters is None


def test_leaving_in_good_order_a_pause_and_a_restart_are_no_faults() -> None:
    later = [like(r, r.event, after_ns=3_600 * 10**9) for r in HISTORY[len(HISTORY) // 2 :] if r.event is not None]
    first = HISTORY[: len(HISTORY) // 2]
    for event in (e.LeaguePaused(), replace(JOINED, role="trainer", worker="trainer-1")):
        # In the place of a match, whose number is free then.
        place = max(nth for nth, r in enumerate(first) if isinstance(r.event, e.RatingUpdated))
        records = [
            *first[:place],
            RecordedEvent(first[place].sequence, 0, "", "", encode_event(event)),
            *first[place + 1 :],
        ]
        assert lasting([*records, *later]).stalls == 0
    assert lasting([*first, *later]).stalls == 1
    assert lasting(left("done")).passed


def test_copies_of_events_change_nothing() -> None:
    count = len(HISTORY)
    twice = [*HISTORY, *(like(r, r.event, sequence=count + r.sequence) for r in HISTORY if r.event is not None)]
    once, again = judged(HISTORY), judged(twice)
    assert again.baseline_beat == once.baseline_beat
    assert again.diversity.picks == once.diversity.picks
    assert again.no_regression.matches == once.no_regression.matches
    assert replace(again.stability, stalls=0) == replace(once.stability, stalls=0)


def test_a_place_in_the_past_is_judged_as_it_was() -> None:
    place = STEPS[15].sequence
    then, cut = judged(HISTORY, until=place), judged(HISTORY[:place])
    assert then == cut
    assert (then.sequence, then.stability.steps) == (place, 16)
    assert not then.baseline_beat.passed


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "backward"])
def test_every_type_of_event_is_taken_in_any_order(order: int) -> None:
    path = Path(__file__).parent.parent / "golden" / "events" / "v1.jsonl"
    lines = [json.dumps(json.loads(line)["event"]).encode() for line in path.read_text().splitlines()]
    records = [RecordedEvent(nth, nth, "", "test", line) for nth, line in enumerate(lines[::order] * 2, start=1)]
    found = judged(records)
    assert (found.events, found.passed) == (2 * len(lines), False)


def test_an_empty_history_meets_nothing() -> None:
    found = judged(HISTORY[:1])
    parts = (found.baseline_beat, found.no_regression, found.diversity, found.stability)
    assert not any(part.passed for part in parts)
    assert all("not measured" in part.problems[0] for part in parts)
