"""What the pages of training, lineage, matchmaking, workers and problems are answered."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import msgspec
import pytest

from league.log.dead_letters import DeadLetter, DeadLetters
from league.log.metrics import MetricsStream
from league.matchmaking.audit import audit_sampling
from league.queries.pages import RequestParams
from schemas import events as e
from schemas.config import CheckpointScheduleConfig, LeagueConfig
from schemas.errors import UsageError
from schemas.metrics import Heartbeat, MatchMetrics
from tests.builders import gradient_step, policy_published
from tests.simulated_history import Simulation
from tests.web.conftest import Site

HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b[31m"


def _step(policy: str, step: int, **metrics: float) -> e.GradientStepTaken:
    return gradient_step(step, policy=policy, accepted=step % 3, stale=1, metrics=metrics)


def test_a_range_that_ends_at_the_first_step_is_not_the_whole_history() -> None:
    assert RequestParams({"to": "0"}, {}).span() == (0, 0)
    assert RequestParams({"from": "3"}, {}).span() == (3, 2**62)


def test_there_is_no_event_zero_that_would_be_shown_as_now() -> None:
    assert RequestParams({}, {}).at() is None
    with pytest.raises(UsageError, match="'0': expected a whole number from 1 to"):
        RequestParams({"at": "0"}, {}).at()


def test_a_short_curve_has_every_step_and_what_happened_on_the_way_says_where(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    for step in range(8, 14):
        simulated.append(_step("main", step, loss=1 / step, wait_s=1.0, wall_s=4.0))
    simulated.append(e.LeaguePaused(policy="main", reason=HOSTILE))
    simulated.append(e.PolicyReset(policy="main", version=13, reason="stuck"))

    async def body(site: Site) -> None:
        known = await site.get("/training")
        assert known["policies"][0]["last_step"] == 13
        said = [(mark["what"], mark["step"], mark["reason"]) for mark in known["marks"]]
        assert said == [("began anew", 13, "stuck"), ("paused", 13, HOSTILE), ("finished", 7, "steps")]
        assert {"loss", "wait_share", "accepted"} <= set(known["names"])
        loss, share, accepted = await site.get("/training/curves?policy=main&names=loss,wait_share,accepted&from=8")
        assert loss["points"] == [[step, 1 / step, None, None] for step in range(8, 14)]
        assert [point[1] for point in share["points"]] == [0.25] * 6
        assert [point[1] for point in accepted["points"]] == [step % 3 for step in range(8, 14)]

    on_site(simulated.history, body)


def test_a_long_curve_is_made_shorter_and_keeps_its_extremes(on_site: Callable[..., None]) -> None:
    simulation = Simulation(LeagueConfig())
    simulation.open()
    for step in range(1, 1302):
        simulation.append(_step("main", step, loss=100.0 if step == 700 else float(step % 2)))

    async def body(site: Site) -> None:
        (loss,) = await site.get("/training/curves?policy=main&names=loss")
        steps = [point[0] for point in loss["points"]]
        assert 250 < len(steps) <= 500
        assert all(left < right for left, right in pairwise(steps))
        assert max(point[3] for point in loss["points"]) == 100.0
        (finer,) = await site.get("/training/curves?policy=main&names=loss&from=690&to=710")
        assert [point[0] for point in finer["points"]] == list(range(690, 711))

    on_site(simulation.history, body)


def test_training_is_shown_as_it_was(simulated: Simulation, on_site: Callable[..., None]) -> None:
    third = next(
        r.sequence for r in simulated.history if isinstance(r.event, e.GradientStepTaken) and r.event.step == 3
    )

    async def body(site: Site) -> None:
        known = await site.get(f"/training?at={third}")
        assert known["policies"][0]["last_step"] == 3
        (curve,) = await site.get(f"/training/curves?policy=main&names=accepted&at={third}")
        assert [point[0] for point in curve["points"]] == [1, 2, 3]
        newest = await site.get(f"/training/steps?policy=main&at={third}&limit=2")
        assert [step["step"] for step in newest] == [3, 2]

    on_site(simulated.history, body)


def test_checkpoints_are_told_with_their_parents_and_branches(on_site: Callable[..., None]) -> None:
    simulation = Simulation(LeagueConfig(schedule=CheckpointScheduleConfig(recent_every=1)))
    simulation.open()
    for version in (1, 2):
        simulation.publish(version)
        simulation.append(_step("main", version))
    before = len(simulation.history)
    simulation.append(e.PolicyReset(policy="main", version=2, reason="stuck"))
    simulation.publish(3)
    parents = [e.ParentAdapter("main@1", "a" * 64), e.ParentAdapter("main@3", "b" * 64)]
    simulation.append(e.PolicyReset(policy="main", version=3, reason="weak", operator="crossover", parents=parents))
    simulation.append(policy_published(4, parent="main@1"))
    simulation.publish(5)

    async def body(site: Site) -> None:
        found = {row["agent"]: row for row in await site.get("/lineage")}
        assert {name: row["parents"] for name, row in found.items() if row["operator"]} == {
            "main@5": ["main@1", "main@3"]
        }
        assert [(name, row["parent"], row["branch"], row["first_step"]) for name, row in found.items()] == [
            ("base_model", None, 0, 1),
            ("main@1", "base_model", 0, 1),
            ("main@2", "main@1", 0, 2),
            ("main@3", "base_model", 1, 3),
            ("main@5", "main@1", 2, 4),
        ]
        marks = (await site.get("/training"))["marks"]
        assert [mark["reason"] for mark in marks] == ["weak; crossover of main@1 and main@3", "stuck"]
        then = {row["agent"] for row in await site.get(f"/lineage?at={before}")}
        assert then == {"base_model", "main@1", "main@2"}

    on_site(simulation.history, body)


def test_rollouts_are_accounted_for_and_whom_they_met_is_counted(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    step = next(r.event for r in simulated.history if isinstance(r.event, e.GradientStepTaken) and r.event.step == 2)
    played = {r.event.match_id: r.event for r in simulated.history if isinstance(r.event, e.MatchFinished)}
    others = Counter(seat.agent for name in step.matches for seat in played[name].seats if not seat.trainable)

    async def body(site: Site) -> None:
        found = await site.get("/lineage/against?policy=main&from=2&to=2")
        assert {row["agent"]: row["seats"] for row in found} == others
        (account,) = await site.get("/training/ledger")
        assert (account["trained"], account["balanced"]) == (7 * 4, True)

    on_site(simulated.history, body)


def test_the_audit_of_matchmaking_is_that_of_the_command(simulated: Simulation, on_site: Callable[..., None]) -> None:
    simulated.append(e.MatchFailed(match_id="m", purpose="training", worker="rollout-0", error=f"{HOSTILE} größer"))
    at = next(r.sequence for r in simulated.history if isinstance(r.event, e.GradientStepTaken) and r.event.step == 4)

    async def body(site: Site) -> None:
        said = await site.get("/matchmaking/audit")
        assert said["audit"]["whole"] == msgspec.to_builtins((await audit_sampling(site.log, 1, 400)).whole)
        then = await site.get(f"/matchmaking/audit?at={at}")
        assert then["audit"]["whole"] == msgspec.to_builtins((await audit_sampling(site.log, 1, 400, until=at)).whole)
        known = await site.get("/matchmaking")
        assert sum(row["picks"] for row in known["opponents"]) == said["audit"]["whole"]["picks"]
        assert sum(known["now"]["agents"].values()) == pytest.approx(1.0)
        (newest,) = await site.get("/events?limit=1")
        assert "größer" in newest["text"]
        assert "no opponents were drawn" in (await site.get("/matchmaking/audit?at=1"))["why"]

    on_site(simulated.history, body)


def test_workers_are_told_with_what_they_say_of_themselves(simulated: Simulation, on_site: Callable[..., None]) -> None:
    for name in ("rollout-0", "rollout-1"):
        simulated.append(
            e.WorkerJoined(worker=name, role="rollout", incarnation="one", host=HOSTILE, pid=7, version="1")
        )
    beat = Heartbeat(
        worker="rollout-0",
        role="rollout",
        incarnation="one",
        host=HOSTILE,
        pid=7,
        uptime_s=60.0,
        memory_bytes=2**20,
        cpu_share=0.5,
        open_files=3,
        sequence=1,
        lag=2,
        play=MatchMetrics(games_in_flight=3, games_s=1.5),
    )

    async def body(site: Site) -> None:
        await MetricsStream(site.log.client, "league").publish(beat)
        found = await site.get("/workers")
        assert [(worker["worker"], worker["health"]) for worker in found["workers"]] == [
            ("rollout-0", "ok"),
            ("rollout-1", "silent"),
        ]
        assert found["workers"][0]["host"] == HOSTILE
        assert (found["rates"]["games_s"], found["rates"]["games_in_flight"], found["lag"]) == (1.5, 3, 2)

    on_site(simulated.history, body)


def test_a_league_without_problems_says_so_and_one_with_names_them(
    simulated: Simulation, on_site: Callable[..., None]
) -> None:
    kinds = ("alarms", "letters", "failures", "voids", "waited", "unreadable")
    failed = [
        e.MatchFailed(match_id=f"m-{number}", purpose="training", worker="rollout-0", error=HOSTILE)
        for number in range(3)
    ]
    played = next(r for r in simulated.history if isinstance(r.event, e.MatchFinished))

    async def body(site: Site) -> None:
        well = await site.get("/problems")
        assert {kind: well[kind] for kind in kinds if kind != "alarms"} == {kind: [] for kind in kinds[1:]}
        letters = DeadLetters(site.log.client, "league")
        await letters.publish(DeadLetter("WORK", 7, "x", HOSTILE, 5, "m-1", payload=b'{"a": "\xff<b>"}', size=13))
        for event in failed:
            await site.log.append(event)
        assert isinstance(played.event, e.MatchFinished)
        last = await site.log.append(e.MatchVoided(match=played.event, match_sequence=played.sequence, reason=HOSTILE))
        await site.league.wait_for_sequence(last)
        # Another address, since an answer stays for two seconds.
        found = await site.get("/problems?again")
        assert [(row["error"], row["matches"]) for row in found["failures"]] == [(HOSTILE, 3)]
        assert [(row["match_id"], row["reason"]) for row in found["voids"]] == [(played.event.match_id, HOSTILE)]
        assert "dead_letters" in {alarm["name"] for alarm in found["alarms"]}
        (letter,) = found["letters"]
        opened = await site.get(f"/problems/letters/{letter['number']}")
        assert (opened["error"], opened["message"], opened["bytes"]) == (HOSTILE, '{"a": "\\xff<b>"}', 13)
        assert "no such dead letter" in (await site.get("/problems/letters/99", 400))["error"]
        assert "whole number" in (await site.get("/problems/letters/x", 400))["error"]

    on_site(simulated.history, body)
