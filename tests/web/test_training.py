"""What the pages of training, lineage, matchmaking, workers and problems are answered."""

from collections.abc import Callable
from itertools import pairwise

from league.simulation import Simulation
from schemas import events as e
from schemas.config import LeagueConfig
from tests.web.conftest import Site

HOSTILE = "<img src=x onerror=alert(1)>\u202e\x1b[31m"


def _step(policy: str, step: int, **metrics: float) -> e.GradientStepTaken:
    return e.GradientStepTaken(
        policy=policy,
        step=step,
        batch="",
        matches=[],
        experience_from=0,
        experience_to=0,
        accepted=step % 3,
        stale=1,
        refused=0,
        state="",
        metrics=metrics,
    )


def test_a_curve_has_every_step_where_there_are_few(simulated: Simulation, on_site: Callable[..., None]) -> None:
    for step in range(8, 14):
        simulated.append(_step("main", step, loss=1 / step, wait_s=1.0, wall_s=4.0))

    async def body(site: Site) -> None:
        known = await site.get("/training")
        assert known["policies"][0]["last_step"] == 13
        assert {"loss", "wait_share", "accepted"} <= set(known["names"])
        accepted, loss, share = await site.get("/training/curves?policy=main&names=loss,wait_share,accepted&from=8")
        assert loss["points"] == [[step, 1 / step, None, None] for step in range(8, 14)]
        assert [point[1] for point in share["points"]] == [0.25] * 6
        assert [point[1] for point in accepted["points"]] == [step % 3 for step in range(8, 14)]

    on_site(simulated.records, body)


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

    on_site(simulation.records, body)


def test_training_is_shown_as_it_was(simulated: Simulation, on_site: Callable[..., None]) -> None:
    third = next(
        r.sequence for r in simulated.records if isinstance(r.event, e.GradientStepTaken) and r.event.step == 3
    )

    async def body(site: Site) -> None:
        known = await site.get(f"/training?at={third}")
        assert known["policies"][0]["last_step"] == 3
        (curve,) = await site.get(f"/training/curves?policy=main&names=accepted&at={third}")
        assert [point[0] for point in curve["points"]] == [1, 2, 3]
        newest = await site.get(f"/training/steps?policy=main&at={third}&limit=2")
        assert [step["step"] for step in newest] == [3, 2]

    on_site(simulated.records, body)


def test_what_happened_on_the_way_says_after_which_step(simulated: Simulation, on_site: Callable[..., None]) -> None:
    simulated.append(e.LeaguePaused(policy="main", reason=HOSTILE))
    simulated.append(e.PolicyReset(policy="main", version=6, reason="stuck"))

    async def body(site: Site) -> None:
        marks = (await site.get("/training"))["marks"]
        assert [(m["what"], m["step"]) for m in marks] == [("began anew", 7), ("paused", 7), ("finished", 7)]
        assert marks[1]["reason"] == HOSTILE

    on_site(simulated.records, body)


def test_the_ledger_is_that_of_the_command(simulated: Simulation, on_site: Callable[..., None]) -> None:
    async def body(site: Site) -> None:
        (account,) = await site.get("/training/ledger")
        assert account["balanced"] is True
        assert account["trained"] == 7 * 4

    on_site(simulated.records, body)
