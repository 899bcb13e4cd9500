"""What a person is told to look at, once, until it is over; and how it is posted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from league.queries.status import LeagueStatus, build_status, detect_alarms
from league.state import LeagueState
from schemas import events as e
from schemas.config import AlarmsConfig, LeagueConfig, StopConfig, StopCriterion, load_config
from schemas.errors import ConfigError
from schemas.standings import Alarm
from tests.builders import gradient_step
from tests.simulated_history import Simulation
from trainer.report import count_still_steps
from workers.monitoring import alarms
from workers.monitoring.alarms import AlarmWatcher, Webhook, resolve_webhook_url
from workers.runtime import beside

TINY = load_config(Path(__file__).parents[3] / "configs" / "nim-tiny.toml")
JOINED = e.WorkerJoined(worker="trainer-1", role="trainer", incarnation="a", host="box", pid=7, version="1")
NO_STEP = Alarm("no_step", "no gradient step of main for 20 minutes")


def simulated(config: LeagueConfig = TINY) -> Simulation:
    simulation = Simulation(config, seats=3)
    simulation.open()
    simulation.publish(0)
    return simulation


def step(number: int, skipped: bool = False, **metrics: float) -> e.GradientStepTaken:
    return gradient_step(number, skipped=skipped, metrics=metrics)


def status(state: LeagueState, dead: int = 0, **more: Any) -> LeagueStatus:
    return msgspec.structs.replace(build_status(state, {}, {}, dead), **more)


def names(found: list[Alarm]) -> list[str]:
    return [alarm.name for alarm in found]


def test_a_league_that_is_well_raises_none() -> None:
    simulation = simulated()
    simulation.append(step(1))
    assert detect_alarms(status(simulation.state, since_step_s=10.0, store_share=0.5), simulation.state) == []


def test_a_skipped_step_and_strange_samples_last_until_the_next_step() -> None:
    simulation = simulated()
    simulation.append(step(1, skipped=True, alarms=1.0))
    assert names(detect_alarms(status(simulation.state), simulation.state)) == [
        "samples_differ:main",
        "step_skipped:main",
    ]
    simulation.append(step(2))
    assert detect_alarms(status(simulation.state), simulation.state) == []


def test_a_step_whose_advantages_are_mostly_zero_is_named() -> None:
    simulation = simulated()
    simulation.append(step(1, zero_advantage_share=0.5))
    assert detect_alarms(status(simulation.state), simulation.state) == []
    simulation.append(step(2, zero_advantage_share=0.75))
    (alarm,) = detect_alarms(status(simulation.state), simulation.state)
    assert alarm.name == "zero_advantages:main"
    assert alarm.text == "step 2 of main: 75 % of the advantages are 0 (rollout.group_size)"


def test_a_policy_that_stands_still_for_thirty_steps_is_named() -> None:
    simulation = simulated()
    counted: dict[str, float] = {}
    for number in range(1, 32):
        metrics = {"entropy": 1.8 + 0.05 * (number % 3), "kl": 1e-5}
        counted = count_still_steps(counted, metrics)
        simulation.append(step(number, **metrics, **counted))
        found = names(detect_alarms(status(simulation.state), simulation.state))
        assert found == (["stands_still:main"] if number >= 30 else [])
    moved = count_still_steps(counted, {"entropy": 1.8, "kl": 1e-3})
    assert moved == {"still_steps": 0.0, "still_entropy": 1.8}
    assert count_still_steps(counted, {"entropy": 1.4, "kl": 1e-5}) == {"still_steps": 0.0, "still_entropy": 1.4}


@pytest.mark.parametrize(
    ("figures", "text"),
    [
        ({"reply_opening": 0.97}, "97 % of the replies are the same"),
        ({"reply_opening": 0.5, "reply_turn_opening": 0.97}, "at each turn 97 % of the replies are the same, whatever"),
        ({"reply_opening": 0.5, "reply_free_tokens": 1.2}, "free replies have 1.2 tokens on average"),
    ],
)
def test_replies_that_have_collapsed_are_named(figures: dict[str, float], text: str) -> None:
    simulation = simulated()
    simulation.append(step(1, sequences=10, **figures))
    assert detect_alarms(status(simulation.state), simulation.state) == [], "too few to say"
    simulation.append(step(2, sequences=100, **figures))
    (alarm,) = detect_alarms(status(simulation.state), simulation.state)
    assert alarm.name == "replies_collapsed:main"
    assert text in alarm.text
    fine = {"reply_opening": 0.9, "reply_turn_opening": 0.9, "reply_free_tokens": 2.0}
    simulation.append(step(3, sequences=100, **fine))
    assert detect_alarms(status(simulation.state), simulation.state) == []


def test_a_skipped_step_gives_its_recorded_reason() -> None:
    simulation = simulated()
    simulation.append(gradient_step(1, skipped=True, skip_reason="no trajectory has an advantage"))
    found = detect_alarms(status(simulation.state), simulation.state)
    assert [alarm.text for alarm in found] == ["step 1 of main was skipped: no trajectory has an advantage"]
    simulation.append(gradient_step(2, skipped=True))
    found = detect_alarms(status(simulation.state), simulation.state)
    assert [alarm.text for alarm in found] == ["step 2 of main was skipped: see the trainer's log"]


def test_a_trainer_that_takes_no_step_is_noticed_unless_it_pauses_or_nobody_trains() -> None:
    simulation = simulated()
    late = {"since_step_s": 20 * 60.0, "workers": []}
    assert detect_alarms(status(simulation.state, **late), simulation.state) == []
    simulation.append(JOINED)
    served = status(simulation.state, since_step_s=20 * 60.0)
    assert detect_alarms(served, simulation.state)[0] == NO_STEP
    assert names(detect_alarms(served, simulation.state)) == ["no_step", "worker_silent:trainer-1"]
    simulation.append(e.LeaguePaused())
    assert names(detect_alarms(served, simulation.state)) == ["worker_silent:trainer-1"]


def test_dead_letters_and_a_full_store_are_named() -> None:
    state = simulated().state
    assert names(detect_alarms(status(state, dead=3, store_share=0.97), state)) == ["dead_letters", "store_full"]


def test_training_that_ends_before_its_criterion_is_met_is_named() -> None:
    config = msgspec.structs.replace(TINY, stop=StopConfig(steps=3, criterion=StopCriterion("random_bot", 0.5)))
    for met, expected in ((False, ["criterion_unmet:main"]), (True, [])):
        simulation = simulated(config)
        end = e.TrainingFinished(policy="main", version=0, reason="any", configured=1, criterion_met=met)
        simulation.append(end)
        assert names(detect_alarms(status(simulation.state), simulation.state)) == expected


def test_a_regression_lasts_until_a_newer_version_is_measured_without_one() -> None:
    def skill(agent: str) -> float:
        return {"main@1": -50.0, "main@2": -50.0, "main@3": 5.0}.get(agent, 0.0)

    evaluation = msgspec.structs.replace(TINY.evaluation, every=1, gatekeeper_games=60)
    simulation = Simulation(msgspec.structs.replace(TINY, evaluation=evaluation), seats=3, skill=skill)
    simulation.open()
    # Nothing was before the first version, so it can have lost nothing.
    for version, expected in ((0, []), (1, []), (2, ["regression:main"]), (3, [])):
        simulation.publish(version)
        simulation.evaluate()
        assert names(detect_alarms(status(simulation.state), simulation.state)) == expected


def test_a_rating_below_a_baseline_within_its_interval_is_no_alarm() -> None:
    simulation = Simulation(TINY, seats=3)
    simulation.run(2, 6)
    newest = max(simulation.state.evaluations.values(), key=lambda one: (one.verdict is not None, one.agent))
    assert newest.verdict is not None
    assert 0 < newest.verdict.below["base_model"] - newest.verdict.rating < 40
    assert detect_alarms(status(simulation.state), simulation.state) == []


def test_each_alarm_is_told_once_until_it_clears() -> None:
    told: list[tuple[str, str]] = []
    watch = AlarmWatcher(lambda state, alarm: told.append((state, alarm.name)))
    for found in ([NO_STEP], [NO_STEP], [], [NO_STEP]):
        watch.update(found)
    assert told == [("began", "no_step"), ("over", "no_step"), ("began", "no_step")]


@asynccontextmanager
async def server(answers: list[int]) -> AsyncIterator[tuple[str, asyncio.Queue[Any]]]:
    """Answers with these codes in turn, the last one for ever; its address, and what it was sent."""
    sent: asyncio.Queue[Any] = asyncio.Queue()
    left = list(answers)

    async def answer(request: web.Request) -> web.Response:
        sent.put_nowait(await request.json())
        return web.Response(status=left.pop(0) if len(left) > 1 else left[0])

    app = web.Application()
    app.router.add_post("/secret", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/secret", sent
    finally:
        await runner.cleanup()


def test_a_notice_is_posted_again_until_the_server_takes_it() -> None:
    async def body() -> list[Any]:
        async with server([503, 500, 200]) as (url, sent):
            hook = Webhook(url, "nim", first_pause_s=0.01)
            sending = asyncio.create_task(hook.run())
            hook.enqueue("began", NO_STEP)
            async with asyncio.timeout(300):
                found = [await sent.get() for _ in range(3)]
            sending.cancel()
            return found

    notice = {"league": "nim", "state": "began", "alarm": "no_step", "text": f"nim: {NO_STEP.text}"}
    assert asyncio.run(body()) == [notice] * 3


def test_a_server_that_is_away_holds_up_nobody_and_its_address_is_not_logged() -> None:
    async def body() -> None:
        hook = Webhook("http://127.0.0.1:9/secret", "nim", tries=2, first_pause_s=0.01)
        for _ in range(200):
            hook.enqueue("began", NO_STEP)
        sending = asyncio.create_task(hook.run())
        for _ in range(30_000):
            await asyncio.sleep(0.01)
            if any("could not be posted" in line["event"] for line in lines):
                break
        sending.cancel()

    with capture_logs() as lines:
        asyncio.run(body())
    assert any("could not be posted" in line["event"] for line in lines)
    assert sum("too many wait" in line["event"] for line in lines) == 100
    assert "secret" not in str(lines)


def test_an_address_with_a_secret_comes_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("https://u:p@host/x", "https://host/x?key=1", "ftp://host", "host"):
        with pytest.raises(ConfigError, match=r"alarms\.webhook: expected an address"):
            AlarmsConfig(webhook=url)
    config = AlarmsConfig(webhook_variable="HOOK")
    monkeypatch.setenv("HOOK", "https://host/secret")
    assert resolve_webhook_url(config) == "https://host/secret"
    for url in ("secret", "https://[secret", "https:///secret", "https://host:secret/"):
        monkeypatch.setenv("HOOK", url)
        with pytest.raises(ConfigError, match=r"HOOK holds no address") as raised:
            resolve_webhook_url(config)
        assert "secret" not in str(raised.value).replace("a secret", "")


def test_a_status_that_cannot_be_measured_does_not_end_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    state, reads = simulated().state, list[int]()

    async def read_status(*_: Any, **__: Any) -> LeagueStatus:
        reads.append(1)
        if len(reads) <= 3:
            raise AttributeError("partially initialized module 'torch' has no attribute 'cuda'")
        return status(state, dead=1)

    monkeypatch.setattr(alarms, "read_status", read_status)
    monkeypatch.setattr(alarms, "HEARTBEAT_S", 0.001)

    async def body() -> str:
        announced: asyncio.Queue[str] = asyncio.Queue()
        client = SimpleNamespace(subscribe=AsyncMock())
        context: Any = SimpleNamespace(config=LeagueConfig(), client=client, log=None, state=state, run=None)
        async with asyncio.timeout(300), beside(alarms.watch_alarms(context, announced.put_nowait)):
            return await announced.get()

    with capture_logs() as logs:
        assert "dead_letters" in asyncio.run(body())
    assert [line["event"] for line in logs].count("alarms are not checked") == 1
