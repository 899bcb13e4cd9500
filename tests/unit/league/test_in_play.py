"""How far play is ahead of training, through finished, failed, used and abandoned matches."""

import msgspec

from league.state import LeagueState
from schemas import events as e
from tests.builders import fold_events, gradient_step, match_finished, opponents_sampled


def sampled(n: int, worker: str = "w") -> e.OpponentsSampled:
    return opponents_sampled(f"{worker}-{n}", worker)


def finished(n: int, worker: str = "w", experience: str = "digest") -> e.MatchFinished:
    return match_finished(match_id=f"{worker}-{n}", purpose="training", worker=worker, experience=experience)


def step(number: int, accepted: int, stale: int = 0) -> e.GradientStepTaken:
    return gradient_step(number, experience_from=1, experience_to=1, accepted=accepted, stale=stale)


def joined(incarnation: str) -> e.WorkerJoined:
    return e.WorkerJoined(worker="w", role="rollout", incarnation=incarnation, host="h", pid=1, version="0")


def test_begun_matches_count_until_they_are_used():
    begun = [sampled(0), sampled(1), sampled(2)]
    assert fold_events(*begun).in_play.matches_ahead("main") == 3
    assert fold_events(*begun, finished(0), finished(1)).in_play.matches_ahead("main") == 3
    assert (
        fold_events(*begun, finished(0), finished(1), step(1, accepted=1, stale=1)).in_play.matches_ahead("main") == 1
    )
    assert fold_events(*begun).in_play.matches_ahead("other") == 0


def test_failed_matches_and_those_without_a_rollout_do_not_wait():
    failed = e.MatchFailed(match_id="w-0", purpose="training", worker="w", error="")
    assert fold_events(sampled(0), sampled(1), failed, finished(1, experience="")).in_play.matches_ahead("main") == 0


def test_copies_count_once():
    assert fold_events(sampled(0), sampled(0), finished(0), finished(0)).in_play.matches_ahead("main") == 1
    assert fold_events(sampled(0), finished(0), step(1, 1), step(1, 1), sampled(1)).in_play.matches_ahead("main") == 1


def test_what_a_worker_left_behind_is_given_up():
    assert fold_events(joined("a"), sampled(0), sampled(0, "v"), joined("b")).in_play.matches_ahead("main") == 1
    left = e.WorkerLeft(worker="w", incarnation="a", reason="killed")
    assert fold_events(joined("a"), sampled(0), left).in_play.matches_ahead("main") == 0
    assert fold_events(joined("a"), sampled(0), joined("a")).in_play.matches_ahead("main") == 1


def test_rollouts_given_up_or_late_are_in_play_no_more_and_what_only_tells_of_a_failure_never_was() -> None:
    dropped = [
        e.DroppedTrajectories(reason="given_up", sequences=[[1, 2]], matches=["w-0", "w-1"]),
        e.DroppedTrajectories(reason="late", sequences=[[3, 3]], matches=["w-2"]),
        e.DroppedTrajectories(reason="failed", sequences=[[4, 4]], matches=["w-3"]),
    ]
    taken = msgspec.structs.replace(step(1, 0), dropped=dropped)
    played = [event for n in range(5) for event in (sampled(n), finished(n))]
    assert fold_events(*played, taken).in_play.matches_ahead("main") == 2


def test_rollouts_that_are_used_before_their_match_is_recorded_are_counted_once() -> None:
    used = msgspec.structs.replace(step(1, 2, stale=1), matches=["w-0", "w-1"])
    used = msgspec.structs.replace(
        used, dropped=[e.DroppedTrajectories(reason="stale", sequences=[[3, 3]], matches=["w-2"])]
    )
    state = fold_events(*(sampled(n) for n in range(4)), finished(0), used)
    assert state.in_play.matches_ahead("main") == 3
    for n in (1, 2, 3):
        state.apply(state.sequence + 1, finished(n))
    # Of the four only the last one waits; the second and third had been used before they were recorded.
    assert state.in_play.matches_ahead("main") == 1
    assert LeagueState.from_snapshot(state.to_snapshot()).in_play.matches_ahead("main") == 1
    restored = LeagueState.from_snapshot(
        fold_events(*(sampled(n) for n in range(2)), msgspec.structs.replace(used)).to_snapshot()
    )
    for n in (0, 1):
        restored.apply(restored.sequence + 1, finished(n))
    assert restored.in_play.matches_ahead("main") == 0
