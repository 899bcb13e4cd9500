"""A promotion test in real processes: asked for, played and decided once by several workers, and checked afterwards."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from league.run import Run
from models import adapters
from models.adapter_bundle import pack_folder
from schemas import events as e
from workers.policy_weights import fetch_base_model
from workers.runtime import Context, beside
from workers.trainer import load_policy_base

# Not inferior: two agents that play alike decide it in a few pairs.
CONFIG = """
name = "nim"
seed = 3
[game]
name = "nim"
settings = { seats = 3, heaps = [2, 3] }
[agents]
base_model = { kind = "base", rating = 1000.0, baseline = true }
random_bot = { kind = "bot", rating = 1050.0, baseline = true }
[model]
cloning = { sequences = 64 }
[evaluation]
gatekeeper_games = 6
benchmark_games = 0
games_in_flight = 2
[promotion.test]
elo0 = -300.0
elo1 = -100.0
least_pairs = 4
most_pairs = 120
"""
MOST_MATCHES = 240
"""So many that evaluators cannot play them all before the raters of a busy machine have decided."""


def command(*arguments: str, run: Path) -> list[str]:
    return [sys.executable, "-m", "ui", *arguments, "--run", str(run)]


def league(*arguments: str, run: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments, run=run), capture_output=True, text=True, timeout=600, check=False)


@contextlib.contextmanager
def workers(run: Path, *roles: str) -> Iterator[None]:
    """Real processes, told to stop at the end of the block, in this order."""
    processes = [
        subprocess.Popen(
            command("worker", role, "--name", f"{role}-{number}", run=run),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for number, role in enumerate(roles, start=1)
    ]
    try:
        yield
        # One after the other: what evaluators play to its end is still rated.
        for process in processes:
            process.terminate()
            assert process.wait(300) == 0
    finally:
        for process in processes:
            process.kill()


def gatekeepers(agent: str, others: list[str], scores: list[float]) -> list[e.Event]:
    """A tournament that was played before the workers came: the agent's score in each match, 1 for everybody else."""
    slug = f"{agent.replace('@', '-')}-gatekeepers"
    names = [f"eval-{slug}-{index}" for index in range(len(scores))]
    asked = e.EvaluationRequested(evaluation_id=slug, agent=agent, suite="gatekeepers", opponents=others, matches=names)
    line_up = [agent, *(others * 2)[:2]]
    return [asked] + [
        e.MatchFinished(
            match_id=name,
            game="nim",
            purpose="evaluation",
            worker="before",
            seed=0,
            seats=[
                e.SeatResult(seat, f"S{seat}", who, score if seat == 0 else 1.0, 1) for seat, who in enumerate(line_up)
            ],
            winner=None,
            reason="",
            length=1,
            seconds=0.0,
            evaluation_id=slug,
        )
        for name, score in zip(names, scores, strict=True)
    ]


async def prepare(run: Run) -> None:
    """Two versions that play alike; the second did better among the gatekeepers, both worse than the bot."""
    async with run.open_log("test") as history:
        context = Context(run, history.client, history, "test")
        async with beside(context.follow()):
            await context.wait_for_sequence(await history.last_sequence())
            await fetch_base_model(context)
            backend = await load_policy_base(context)
            for version in (1, 2):
                lora = adapters.create(backend.shape, adapters.LoraConfig(4, 8.0), version)
                folder = run.folder / f"adapter-{version}"
                adapters.save(lora, folder)
                digest = await context.blobs.put(pack_folder(folder), "adapter")
                agent, reason = f"main@{version}", "first" if version == 1 else "recent"
                scores = [0.0] * 6 if version == 1 else [2.0] * 2 + [0.0]
                await history.append(e.PolicyPublished(policy="main", version=version, adapter=digest, parent=""))
                for event in [
                    e.CheckpointAdded(
                        agent=agent, policy="main", version=version, parent="base_model", reason=reason, adapter=digest
                    ),
                    *gatekeepers(agent, ["random_bot"] if version == 1 else ["main@1"], scores),
                ]:
                    await history.append(event)


async def read(run: Run) -> list[e.Event]:
    async with run.open_log("test") as history:
        return [recorded.event async for recorded in history.read() if recorded.event is not None]


async def settled(run: Run, joined: int) -> None:
    """Until main@2 is elite, its test has its result, and so many workers have come: who starts cannot stop well."""
    open_ends: list[type[e.Event]] = [e.CheckpointPromoted, e.EvaluationFinished, *[e.WorkerJoined] * joined]
    async with run.open_log("test") as history, asyncio.timeout(300):
        async for recorded in history.follow():
            event = recorded.event
            if type(event) in open_ends and getattr(event, "suite", "promotion") == "promotion":
                open_ends.remove(type(event))
            if not open_ends:
                return


async def rated(run: Run, matches: int) -> None:
    """Until so many matches have moved ratings."""
    async with run.open_log("test") as history, asyncio.timeout(300):
        async for recorded in history.follow():
            matches -= isinstance(recorded.event, e.RatingUpdated)
            if not matches:
                return


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("promotion")
    (folder / "nim.toml").write_text(CONFIG)
    run = Run(folder / "run")
    assert league("up", "--no-workers", "--config", str(folder / "nim.toml"), run=run.folder).returncode == 0
    asyncio.run(prepare(run))
    with workers(run.folder, "rater", "rater"):
        # First, since a checkpoint whose tournament ends while no other is rated has none to be compared with.
        asyncio.run(rated(run, matches=9))
        with workers(run.folder, "evaluator", "evaluator"):
            asyncio.run(settled(run, joined=4))
    return run.folder


@pytest.fixture(scope="module")
def history(played: Path) -> list[e.Event]:
    return asyncio.run(read(Run(played)))


def of(history: list[e.Event], kind: type[e.Event]) -> list:
    return [event for event in history if isinstance(event, kind)]


def test_two_raters_and_two_evaluators_record_every_decision_once(history: list[e.Event]) -> None:
    assert [event.agent for event in of(history, e.CheckpointPromoted)] == ["main@2"]
    assert [event.verdict for event in of(history, e.PromotionDecided)] == ["promote"]
    asked = [event for event in of(history, e.EvaluationRequested) if event.suite == "promotion"]
    assert [(event.agent, event.opponents, len(event.matches)) for event in asked] == [
        ("main@2", ["main@1"], MOST_MATCHES)
    ]
    ended = [event for event in of(history, e.EvaluationFinished) if event.suite == "promotion"]
    (verdict,) = of(history, e.PromotionDecided)
    assert [event.decided for event in ended] == [f"promote after {len(verdict.scores)} pairs"]


def test_matches_that_the_verdict_made_needless_are_not_played(history: list[e.Event]) -> None:
    (verdict,) = of(history, e.PromotionDecided)
    matches = [match for match in of(history, e.MatchFinished) if match.evaluation_id == verdict.evaluation_id]
    assert 2 * len(verdict.scores) <= len(matches) < MOST_MATCHES
    assert len({match.match_id for match in matches}) == len(matches)
    rated = {update.match_id for update in of(history, e.RatingUpdated)}
    assert {match.match_id for match in matches} <= rated, "those in play when it was decided count for ratings"


def test_agents_that_play_alike_tie_in_every_pair_since_luck_and_seats_cancel(history: list[e.Event]) -> None:
    (verdict,) = of(history, e.PromotionDecided)
    assert set(verdict.scores) == {0.5}
    found = {match.match_id: match for match in of(history, e.MatchFinished)}
    for first, second in verdict.pairs:
        assert [seat.score for seat in found[first].seats] == [seat.score for seat in found[second].seats]
        assert {seat.agent for seat in found[first].seats} == {"main@1", "main@2"}
