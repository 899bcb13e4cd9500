"""A league's status: from its state and the heartbeats, as a table, and in Prometheus's format."""

import io
import math
import re
from typing import NamedTuple

import msgspec
import pytest
from rich.console import Console

from inference.http_server import Metric, Sample, render_metrics
from league.queries.status import LeagueStatus, build_status
from schemas import events as e
from schemas.config import EvaluationConfig, LeagueConfig, StopConfig
from schemas.metrics import (
    SILENCE_TIMEOUT_S,
    Heartbeat,
    InferenceMetrics,
    MatchMetrics,
    TrainingMetrics,
    WorkerHeartbeat,
)
from tests.simulated_history import Simulation
from ui.terminal.status import print_status
from workers.monitoring.exposition import league_metrics
from workers.monitoring.live_table import Dashboard
from workers.monitoring.metrics import make_training_metrics


def joined(worker: str, role: str, incarnation: str = "a1") -> e.WorkerJoined:
    return e.WorkerJoined(worker=worker, role=role, incarnation=incarnation, host='box "7"', pid=7, version="1")


def beat(worker: str, role: str, age_s: float = 1.0, incarnation: str = "a1", **parts: object) -> WorkerHeartbeat:
    beat = Heartbeat(worker, role, incarnation, "box", 7, 61.0, 90 * 2**20, 0.25, 9, 40, 2, **parts)  # type: ignore[arg-type]
    return WorkerHeartbeat(beat, age_s)


def simulated() -> Simulation:
    simulation = Simulation(LeagueConfig(evaluation=EvaluationConfig(every=2, gatekeeper_games=7)))
    simulation.run(4, 3)
    for event in (
        joined("rollout-1", "rollout"),
        joined("trainer-1", "trainer"),
        joined("gone", "rater"),
        e.WorkerLeft(worker="gone", incarnation="a1", reason="done"),
        joined("dumb", "rater"),
        joined("late", "evaluator"),
        joined("again", "evaluator", "b2"),
    ):
        simulation.append(event)
    return simulation


HEARD = {
    "rollout-1": beat(
        "rollout-1",
        "rollout",
        inference=InferenceMetrics(
            "local", queued=3, running=12, tokens_s=1234.5, adapters=3, most_adapters=16, published=2
        ),
        play=MatchMetrics(70, 400, 1, 3.25),
    ),
    "trainer-1": beat("trainer-1", "trainer", training=TrainingMetrics("main", 4, 0.25, 900.0)),
    "late": beat("late", "evaluator", SILENCE_TIMEOUT_S + 6.2),
    "again": beat("again", "evaluator", incarnation="a1"),
    "stranger": beat("stranger", "rollout"),
}


def status(include_left: bool = False) -> LeagueStatus:
    return build_status(simulated().state, HEARD, {"main": 5}, 2, include_left)


def test_workers_that_serve_are_well_or_silent() -> None:
    found = status()
    assert {worker.worker: worker.health for worker in found.workers} == {
        "again": "silent",
        "dumb": "silent",
        "late": "silent",
        "rollout-1": "ok",
        "trainer-1": "ok",
    }
    assert [worker.worker for worker in found.silent_workers] == ["again", "dumb", "late"]
    ages = {worker.worker: worker.silent_s for worker in found.workers}
    # What the process before it said is not its own.
    assert (ages["again"], ages["dumb"], ages["late"], ages["rollout-1"]) == (None, None, SILENCE_TIMEOUT_S + 6.2, 1.0)
    assert next(worker for worker in status(include_left=True).workers if worker.worker == "gone").left == "done"


def test_what_the_league_is_at_is_what_the_history_says() -> None:
    simulation, found = simulated(), status()
    assert (found.league, found.game, found.sequence) == ("league", "diplomacy", len(simulation.history))
    played = [r.event for r in simulation.history if isinstance(r.event, e.MatchFinished)]
    assert sum(found.games.values()) == len(played)
    main = found.policies[0]
    assert (main.policy, main.step, main.pending, main.finished) == ("main", 5, 5, "steps")
    assert main.rating == simulation.state.standings().live["main"].rating
    assert found.dead_letters == 2


def test_a_trainer_is_told_by_its_newest_step() -> None:
    simulation = Simulation(LeagueConfig())
    simulation.open()
    assert make_training_metrics(simulation.state, "main") == TrainingMetrics("main")
    step = e.GradientStepTaken("main", 7, "", [], 1, 2, 0, 0, 0, "", metrics={"wall_s": 8.0, "wait_s": 2.0})
    simulation.append(msgspec.structs.replace(step, metrics={**step.metrics, "tokens_per_s": 99.0}))
    told = make_training_metrics(simulation.state, "main")
    assert (told.step, told.wait_share, told.tokens_s) == (7, 0.25, 99.0)


def test_the_table_says_who_does_what_and_who_is_silent() -> None:
    output = io.StringIO()
    print_status(Console(file=output, width=200), status())
    text = output.getvalue()
    for part in (
        "league 'league' (diplomacy) at event",
        "2 dead letters",
        "70 games, 3.2/s, 1 failed; 3 + 12 requests, 1,234 tokens/s, adapters 3/16, swap 0.00 s",
        "main step 4, waits 25 %",
        'late on box "7" (process 7) sent its last heartbeat 21 s ago',
        'dumb on box "7" (process 7) sent no heartbeat in the last minute',
        "90 MiB",
    ):
        assert part in text
    assert "gone" not in text
    assert "stranger" not in text


class Read(NamedTuple):
    """A metric as a strict reader of the format understands it."""

    kind: str
    samples: dict[tuple[tuple[str, str], ...], float]


_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')

_PLAIN = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def parse(text: str) -> dict[str, Read]:
    """Read the text format; whatever Prometheus would not take is an error."""
    assert text.endswith("\n")
    found: dict[str, Read] = {}
    lines = iter(text[:-1].split("\n"))
    name = ""
    for line in lines:
        if line.startswith("# HELP "):
            _, _, name, described = line.split(" ", 3)
            assert name not in found, f"{name} is there twice"
            assert re.fullmatch(r"(?:[^\\]|\\\\|\\n)+", described)
            hash_, word, typed, kind = next(lines).split(" ")
            assert (hash_, word, typed) == ("#", "TYPE", name)
            assert kind in ("gauge", "counter")
            found[name] = Read(kind, {})
            continue
        match = _SAMPLE.fullmatch(line)
        assert match, line
        assert match[1] == name, f"{line}: not under its own HELP"
        labels = match[2] or ""
        pairs = _LABEL.findall(labels)
        assert sum(len(f'{label}="{value}"') for label, value in pairs) + len(pairs) - 1 == len(labels) or not labels
        key = tuple((label, re.sub(r"\\.", lambda m: _PLAIN[m[0]], value)) for label, value in pairs)
        assert len(dict(key)) == len(key), f"{line}: a label twice"
        assert key not in found[name].samples, f"{line}: twice"
        found[name].samples[key] = float(match[3].replace("Inf", "inf"))
    assert all(read.samples for read in found.values())
    return found


def one(read: Read, **labels: str) -> float:
    (value,) = [value for key, value in read.samples.items() if labels.items() <= dict(key).items()]
    return value


def test_prometheus_reads_every_figure() -> None:
    found, read = status(), parse(render_metrics(league_metrics(status())))
    rating = next(agent.rating for agent in found.agents if agent.agent == "base_model")
    assert one(read["league_info"], league="league", game="diplomacy") == 1
    assert one(read["league_events_total"]) == found.sequence
    assert one(read["league_policy_step"], policy="main") == 5
    assert one(read["league_experience_pending"], policy="main") == 5
    assert one(read["league_dead_letters"]) == 2
    assert one(read["league_policy_rating"], policy="main") == found.policies[0].rating
    assert one(read["league_agent_rating"], agent="base_model") == rating
    assert one(read["league_worker_up"], worker="rollout-1") == 1
    assert one(read["league_worker_up"], worker="dumb", host='box "7"') == 0
    assert one(read["league_inference_queued"], worker="rollout-1") == 3
    assert one(read["league_inference_tokens_per_second"], worker="rollout-1") == 1234.5
    assert one(read["league_play_games_total"]) == 400
    assert one(read["league_trainer_tokens_per_second"], worker="trainer-1") == 900.0
    assert all(name.endswith("_total") == (metric.kind == "counter") for name, metric in read.items())
    assert all(name.startswith("league_") for name in read)


def test_labels_and_numbers_that_are_odd_are_read_as_they_are() -> None:
    odd = 'a "b" \\ c\nd, {e}="f"'
    samples = [Sample({"x": odd}, 1.5), Sample({"x": ""}, math.inf), Sample({"x": "n"}, -math.inf)]
    text = render_metrics(
        [Metric("league_odd", "gauge", "Two\nlines \\ one.", samples), Metric("league_none", "gauge", "x", [])]
    )
    assert list(parse(text)) == ["league_odd"]
    assert parse(text)["league_odd"].samples == {(("x", odd),): 1.5, (("x", ""),): math.inf, (("x", "n"),): -math.inf}
    assert math.isnan(
        one(parse(render_metrics([Metric("league_nan", "gauge", "x", [Sample({}, math.nan)])]))["league_nan"])
    )


@pytest.mark.parametrize(
    "wrong",
    [
        "league_x 1\n",
        "# HELP league_x y\n# TYPE league_x gauge\nleague_x 1",
        '# HELP league_x y\n# TYPE league_x gauge\nleague_x{a="b"c"} 1\n',
        "# HELP league_x y\n# TYPE league_x gauge\nleague_x 1\nleague_x 2\n",
        "# HELP league_x y\n# TYPE league_x meter\nleague_x 1\n",
    ],
)
def test_the_reader_of_these_tests_is_strict(wrong: str) -> None:
    with pytest.raises(AssertionError):
        parse(wrong)


def test_a_pause_is_shown_wherever_progress_is() -> None:
    simulation = simulated()
    simulation.append(e.LeaguePaused(reason="the room is warm"))
    shown = io.StringIO()
    print_status(Console(file=shown, width=200), build_status(simulation.state, HEARD, {}, 0))
    assert "the league pauses: the room is warm" in shown.getvalue()
    line = Dashboard(simulation.state, "main").render_line(StopConfig())
    assert line.endswith("paused (the room is warm)")
    figures = {metric.name: metric.samples for metric in league_metrics(build_status(simulation.state, HEARD, {}, 0))}
    assert figures["league_paused"] == [Sample({"policy": ""}, 1)]
    assert figures["league_lag_events"] == [Sample({}, 2)]
