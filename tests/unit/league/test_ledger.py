"""The ledger in SQL: every rollout has one fate, and what steps counted agrees with it."""

from collections import Counter
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from league.log.base import RecordedEvent
from league.projections.projection import Projection
from schemas import events as e
from schemas.codec import encode_event
from schemas.numbers import to_ranges
from tests.builders import match_finished

NAMES = ("generated", "trained", "stale", "filtered", "voided", "refused", "given_up", "late", "abandoned", "pending")


def finished(n: int, policy: str = "main") -> e.MatchFinished:
    seats = (f"{policy}@3", 1.0), ("random_bot", 0.0)
    return match_finished(*seats, match_id=f"w-{n}", purpose="training", trainable=[0], experience="digest")


def step(number: int, used: list[int], *left: tuple[str, list[int]], **fields: Any) -> e.GradientStepTaken:
    counts = Counter({reason: len(of) for reason, of in left})
    base: dict[str, Any] = {
        "policy": "main",
        "step": number,
        "batch": "",
        "matches": [f"w-{n}" for n in used],
        "experience_from": 1,
        "experience_to": 0,
        "accepted": len(used),
        "floor": 0,
        "trained": to_ranges(used),
        "dropped": [
            e.DroppedTrajectories(reason=reason, sequences=to_ranges(of), matches=[f"w-{n}" for n in of])
            for reason, of in left
        ],
        "state": "",
    } | {reason: counts[reason] for reason in ("stale", "filtered", "voided", "refused")}
    return e.GradientStepTaken(**(base | fields))


def recorded(events: list[e.Event]) -> list[RecordedEvent]:
    return [RecordedEvent(n, n * 1_000_000, "s", "w", encode_event(event)) for n, event in enumerate(events, 1)]


def ledger(events: list[e.Event]) -> dict[str, dict[str, Any]]:
    with Projection() as projection:
        projection.apply(recorded(events))
        rows = projection.query("FROM ledger")
        columns = [name for name, *_ in projection.connection.description or []]
        assert columns[1:11] == list(NAMES)
        fates = Counter(projection.query("SELECT policy, fate FROM rollout_ledger"))
        found = {row[0]: dict(zip(columns[1:], row[1:], strict=True)) for row in rows}
        for policy, row in found.items():
            if row["balanced"]:
                named = {name: fates[policy, name] for name in NAMES[1:]}
                assert named == {name: row[name] for name in NAMES[1:]}
        return found


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000))
def test_any_history_balances(seed: int) -> None:
    rng = Random(seed)
    waiting, events, steps, made = [], [], 0, 0
    for _ in range(30):
        if rng.random() < 0.7:
            made += 1
            waiting.append(made)
            events.append(finished(made))
            continue
        rng.shuffle(waiting)
        taken = [waiting[:2], waiting[2:3], waiting[3:4], waiting[4:5]]
        waiting, steps = waiting[5:], steps + 1
        left = (rng.choice(["voided", "filtered"]), taken[2]), (rng.choice(["given_up", "late"]), taken[3])
        events.append(step(steps, taken[0], ("stale", taken[1]), *left))
    row = ledger(events).get("main", dict.fromkeys(NAMES, 0) | {"balanced": True})
    assert row["balanced"]
    assert row["pending"] == len(waiting)


def test_a_rollout_trained_on_twice_shows() -> None:
    events = [finished(1), finished(2), step(1, [1]), step(2, [1, 2])]
    assert not ledger(events)["main"]["balanced"]


def test_a_rollout_counted_and_not_named_shows() -> None:
    assert not ledger([finished(1), step(1, [], accepted=1)])["main"]["balanced"]


def test_a_rollout_whose_result_was_never_recorded_counts_and_is_marked() -> None:
    row = ledger([finished(1), step(1, [1, 2], ("refused", [3]))])["main"]
    assert (row["generated"], row["trained"], row["refused"], row["unrecorded"]) == (3, 2, 1, 2)
    assert row["balanced"]


def test_a_copy_is_no_rollout() -> None:
    copy = e.DroppedTrajectories(reason="copy", sequences=[[9, 9]], matches=["w-1"])
    row = ledger([finished(1), step(1, [1], dropped=[copy])])["main"]
    assert (row["generated"], row["trained"], row["pending"], row["balanced"]) == (1, 1, 0, True)


def test_that_a_groups_member_failed_is_told_without_a_rollout() -> None:
    failed = e.DroppedTrajectories(reason="failed", sequences=[[9, 9]], matches=["w-9"])
    row = ledger([finished(1), step(1, [1], dropped=[failed])])["main"]
    assert [row[name] for name in NAMES] == [1, 1, 0, 0, 0, 0, 0, 0, 0, 0]
    assert (row["balanced"], row["unrecorded"]) == (True, 0)


def test_a_rollout_trained_on_in_parts_is_pending_until_its_last_step() -> None:
    def part(left: int) -> list[e.PartialTrajectory]:
        return [e.PartialTrajectory(sequence=1, match_id="w-1", steps=[[left, left]], left=left)]

    first = step(1, [1], accepted=0, trained=[], parts=part(1))
    assert ledger([finished(1), first])["main"]["pending"] == 1
    last = ledger([finished(1), first, step(2, [1], parts=part(0))])["main"]
    assert (last["trained"], last["pending"], last["balanced"]) == (1, 0, True)
    late = ledger([finished(1), first, step(2, [], ("stale", [1]))])["main"]
    assert (late["trained"], late["stale"], late["balanced"]) == (0, 1, True)


def test_what_waited_where_a_branch_began_was_left_behind() -> None:
    events = [finished(1), finished(2), step(1, [1]), e.LeagueBranched(origin="o", at=3, digest=""), finished(5)]
    row = ledger(events)["main"]
    assert (row["abandoned"], row["pending"], row["balanced"]) == (1, 1, True)


def test_policies_have_ledgers_of_their_own() -> None:
    found = ledger([finished(1), finished(2, "rogue"), step(1, [1])])
    assert {policy: row["pending"] for policy, row in found.items()} == {"main": 0, "rogue": 1}
