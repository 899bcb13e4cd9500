"""The success criteria: what they count, what fails them, and that what was not measured is not met."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from league.log.base import RecordedEvent
from league.projections.projection import Projection
from league.success_criteria import Criterion, Figure, Thresholds, draw_targets, judge
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


def judged(
    records: Sequence[RecordedEvent],
    thresholds: Thresholds = LOOSE,
    upto: int | None = None,
    dead_letters: int | None = None,
) -> dict[str, Criterion]:
    async def targets(last: int) -> dict[str, float] | str:
        log = MemoryLog("league")
        await log.copy(records)
        return await draw_targets(log, "main", last)

    with Projection() as projection:
        projection.apply(records)
        last = projection.position if upto is None else upto
        report = judge(projection.connection, last, asyncio.run(targets(last)), dead_letters, thresholds)
    assert report.passed is all(criterion.passed for criterion in report.criteria)
    assert (report.policy, report.game, report.sequence) == ("main", "diplomacy", last)
    return {criterion.name: criterion for criterion in report.criteria}


def criterion(name: str, records: Sequence[RecordedEvent], thresholds: Thresholds = LOOSE, **more: Any) -> Criterion:
    """A criterion of a history; the targets of draws are left out, since they need a fold of it."""
    with Projection() as projection:
        projection.apply(records)
        report = judge(projection.connection, projection.position, "not asked for", thresholds=thresholds, **more)
    return next(criterion for criterion in report.criteria if criterion.name == name)


def figure(found: Criterion, name: str) -> Figure:
    [figure] = [figure for figure in found.figures if figure.figure == name]
    return figure


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
    assert [name for name, criterion in found.items() if not criterion.passed] == []
    beat = found["baseline_beat"]
    assert figure(beat, "version").measured == "main@30"
    assert figure(beat, "games won").measured == "210 of 210 = 100.0 % (98.2 to 100.0)"
    assert figure(beat, "difference between seats").measured == "0 games"
    assert [one.figure for one in found["no_regression"].figures[:3]] == ["base_model", "random_bot", "chaos_bot"]
    assert all(one.measured.startswith("0 of ") for one in found["no_regression"].figures[:3])
    assert {one.figure for one in found["diversity"].figures[1:]} == {"mirror", "peers", "exploitable", "baselines"}
    assert figure(found["stability"], "gradient steps").measured == "31"
    assert not any(one.advice for criterion in found.values() for one in criterion.figures)


@pytest.mark.parametrize(("wins", "passed"), [(179, False), (180, True)])
def test_the_lower_end_of_the_interval_has_to_be_above_the_bound(wins: int, passed: bool) -> None:
    won = {match.match_id for match in PLAYED[:wins]}
    found = criterion("baseline_beat", edited(HISTORY, winning(won)))
    assert figure(found, "games won").measured.startswith(f"{wins} of 210")
    assert found.passed is figure(found, "games won").met is passed
    assert bool(figure(found, "games won").advice) is not passed


def test_the_worst_seat_is_shown() -> None:
    lost = {match.match_id for match in PLAYED if match.seats[3].agent == "main@30"}
    won = {match.match_id for match in PLAYED} - lost
    found = criterion("baseline_beat", edited(HISTORY, winning(won)))
    assert figure(found, "worst seat").measured == "SEAT3: 0 of 30"


def test_ties_are_not_won() -> None:
    def tied(event: e.Event) -> e.Event:
        ours = isinstance(event, e.MatchFinished) and event.match_id in {match.match_id for match in PLAYED}
        return replace(event, winner=None) if ours else event

    assert figure(criterion("baseline_beat", edited(HISTORY, tied)), "games won").measured.startswith("0 of 210")


def test_games_that_failed_or_were_voided_count_as_not_won() -> None:
    failing, voided = PLAYED[0].match_id, PLAYED[1]

    def fails(event: e.Event) -> e.Event:
        if isinstance(event, e.MatchFinished) and event.match_id == failing:
            return e.MatchFailed(match_id=failing, purpose="evaluation", worker="evaluator-0", error="illegal")
        return event

    place = next(r.sequence for r in HISTORY if r.event == voided)
    void = e.MatchVoided(match=voided, match_sequence=place, reason="a bad worker")
    found = criterion("baseline_beat", with_more(edited(HISTORY, fails), void))
    assert figure(found, "games won").measured.startswith("208 of 210")
    assert figure(found, "games failed or voided").measured == "2"
    assert figure(found, "difference between seats").met


@pytest.mark.parametrize(
    ("thresholds", "name", "advice"),
    [
        (replace(LOOSE, games=211), "games", "set evaluation.benchmark_games to 211"),
        (replace(LOOSE, opponent="mover"), "version", "evaluation.benchmark_opponents"),
    ],
)
def test_a_benchmark_that_is_short_or_missing_says_what_to_set(thresholds: Thresholds, name: str, advice: str) -> None:
    found = criterion("baseline_beat", HISTORY, thresholds)
    assert not found.passed
    assert advice in figure(found, name).advice


def test_seats_have_to_come_up_equally_often() -> None:
    def moved(event: e.Event) -> e.Event:
        if isinstance(event, e.MatchFinished) and event.match_id == PLAYED[0].match_id:
            return replace(event, seats=[replace(seat, role="SEAT5") for seat in event.seats])
        return event

    found = criterion("baseline_beat", edited(HISTORY, moved))
    assert figure(found, "difference between seats").measured == "2 games"
    assert not found.passed


def test_a_hero_that_falls_below_a_baseline_is_noticed() -> None:
    def falls(agent: str) -> float:
        named = split_agent(agent)
        return 0.5 if named is None else (1.5 if named[1] < 20 else 0.0)

    found = criterion("no_regression", simulated(falls, 30, config()))
    assert not found.passed
    for name in ("base_model", "random_bot", "chaos_bot"):
        assert figure(found, name).met is False
        assert not figure(found, name).measured.startswith("0 of")
    assert "versions below the best baseline" in figure(found, "official rating, by chance too").measured


def test_the_first_evaluated_version_has_not_fallen_below_anybody() -> None:
    def weak(agent: str) -> float:
        return 0.0 if split_agent(agent) is None else -1.5

    first, second = (criterion("no_regression", simulated(weak, steps, config(every=1))) for steps in (1, 2))
    assert not [one for one in first.figures if one.figure == "official rating, by chance too"]
    assert figure(first, "random_bot").measured == "not measured: no version has a rated match after the warm-up"
    assert "stop.steps" in figure(first, "random_bot").advice
    assert figure(second, "official rating, by chance too").measured.startswith("1 of 1 evaluated versions below")


def test_before_the_warm_up_the_hero_may_be_below() -> None:
    def rises(agent: str) -> float:
        named = split_agent(agent)
        return 0.5 if named is None else (0.0 if named[1] < 10 else 1.5)

    records = simulated(rises, 30, config())
    early, late = (criterion("no_regression", records, replace(LOOSE, warm_up=tenths)) for tenths in (0, 4))
    assert not early.passed
    assert late.passed


def test_a_hero_as_strong_as_a_baseline_is_not_below_it() -> None:
    equal = simulated(lambda _: 0.0, 30, config(gatekeeper_games=42))
    found = criterion("no_regression", equal)
    assert found.passed
    strict = criterion("no_regression", equal, replace(LOOSE, margin=5.0))
    assert not strict.passed
    assert "evaluation.gatekeeper_games" in figure(strict, "random_bot").advice


def test_a_baseline_that_nobody_met_is_not_measured() -> None:
    found = criterion("no_regression", simulated(learns, 10, config(gatekeepers=("random_bot",))))
    assert figure(found, "chaos_bot").measured.startswith("not measured")
    assert "evaluation.gatekeepers" in figure(found, "chaos_bot").advice


def test_draws_that_follow_another_mix_fail() -> None:
    def only_mirror(event: e.Event) -> e.Event:
        if not isinstance(event, e.OpponentsSampled):
            return event
        return replace(event, picks=[replace(pick, bucket="mirror") for pick in event.picks])

    found = judged(edited(HISTORY, only_mirror))["diversity"]
    assert figure(found, "mirror").measured == "100.0 % (100.0 to 100.0)" or not figure(found, "mirror").met
    assert not found.passed


def test_a_mix_other_than_the_specifications_is_named() -> None:
    def only_baselines(event: e.Event) -> e.Event:
        if not isinstance(event, e.LeagueOpened):
            return event
        settings = {"mirror": 0.04, "peers": 0.0, "exploitable": 0.0, "baselines": 0.96}
        return replace(
            event, config={**event.config, "matchmaking": {"sampler": {"name": "pfsp", "settings": settings}}}
        )

    found = figure(judged(edited(HISTORY, only_baselines))["diversity"], "configured mix")
    assert found.met is None
    assert found.measured == "peers 0 %, mirror 4 %, exploitable 0 %, baselines 96 %"
    assert found.expected == "the specification has peers 40 %, mirror 30 %, exploitable 20 %, baselines 10 %"


def test_too_few_draws_fail_rather_than_pass() -> None:
    found = judged(HISTORY, replace(LOOSE, tolerance=0.01))["diversity"]
    assert not found.passed
    assert any(one.advice == "train longer (stop.steps)" for one in found.figures)


def test_a_bucket_interval_takes_the_picks_of_a_match_for_one_piece_of_evidence() -> None:
    def cloned(event: e.Event) -> e.Event:
        if not isinstance(event, e.OpponentsSampled):
            return event
        return replace(event, picks=[replace(pick, bucket=event.picks[0].bucket) for pick in event.picks])

    def width(records: Sequence[RecordedEvent]) -> float:
        low, high = figure(judged(records)["diversity"], "peers").measured.partition("(")[2].strip(")").split(" to ")
        return float(high) - float(low)

    assert width(edited(HISTORY, cloned)) > 1.5 * width(HISTORY)


STEPS = [r for r in HISTORY if isinstance(r.event, e.GradientStepTaken)]
LAST = HISTORY[-1].sequence
JOINED = e.WorkerJoined(worker="rollout-1", role="rollout", incarnation="a", host="h", pid=1, version="1")


def changed_step(**fields: Any) -> list[RecordedEvent]:
    return [like(r, replace(r.event, **fields)) if r is STEPS[10] and r.event is not None else r for r in HISTORY]


def left(reason: str) -> list[RecordedEvent]:
    return with_more(HISTORY, JOINED, e.WorkerLeft(worker="rollout-1", incarnation="a", reason=reason))


FAULTS = {
    "a skipped step": (changed_step(skipped=True), "steps skipped"),
    "a missing step": ([r for r in HISTORY if r is not STEPS[10]], "steps missing"),
    "a late step": (
        [like(r, r.event, after_ns=3_600 * 10**9 * (r.sequence >= STEPS[10].sequence)) for r in HISTORY if r.event],
        "stalls",
    ),
    "a crash": (left("ended with code -9"), "worker crashes"),
    "a crash that nobody saw": (with_more(HISTORY, JOINED, replace(JOINED, incarnation="b")), "worker crashes"),
    "no memory": (
        with_more(HISTORY, e.AdapterSlotsReduced(worker="rollout-1", incarnation="a", slots=1, reason="memory")),
        "out of memory",
    ),
    "an unreadable event": ([*HISTORY, RecordedEvent(LAST + 1, 0, "", "test", b"{")], "events unreadable"),
    "a rollout trained on twice": (
        changed_step(matches=STEPS[9].event.matches if isinstance(STEPS[9].event, e.GradientStepTaken) else []),
        "ledger",
    ),
    "many failed matches": (
        with_more(
            HISTORY,
            *(
                e.MatchFailed(match_id=f"rollout-9-{n}", purpose="training", worker="rollout-9", error="illegal")
                for n in range(20)
            ),
        ),
        "matches failed",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_told(fault: str) -> None:
    records, name = FAULTS[fault]
    found = criterion("stability", records)
    assert not found.passed
    assert figure(found, name).met is False


def test_dead_letters_are_a_fault_where_somebody_looked() -> None:
    assert figure(criterion("stability", HISTORY, dead_letters=2), "dead letters").met is False
    unknown = criterion("stability", HISTORY)
    assert unknown.passed
    assert figure(unknown, "dead letters").met is None


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
        assert figure(criterion("stability", [*records, *later]), "stalls").met
    assert figure(criterion("stability", [*first, *later]), "stalls").measured.startswith("1; step")
    assert criterion("stability", left("done")).passed


def test_copies_of_events_change_nothing() -> None:
    count = len(HISTORY)
    twice = [*HISTORY, *(like(r, r.event, sequence=count + r.sequence) for r in HISTORY if r.event is not None)]
    once, again = judged(HISTORY), judged(twice)
    assert again == once


def test_a_place_in_the_past_is_judged_as_it_was() -> None:
    place = STEPS[15].sequence
    then, cut = judged(HISTORY, upto=place), judged(HISTORY[:place])
    assert [then[name] for name in ("baseline_beat", "no_regression", "diversity")] == [
        cut[name] for name in ("baseline_beat", "no_regression", "diversity")
    ]
    assert figure(then["stability"], "gradient steps").measured == "16"
    assert not then["baseline_beat"].passed


def test_an_empty_history_meets_nothing() -> None:
    found = judged(HISTORY[:1])
    assert not any(criterion.passed for criterion in found.values())
