"""Figures of GPUs: what the driver prints, whose they are, and that nothing is said where there is none."""

import asyncio
import io
import shutil
import stat
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from rich.console import Console

from inference.http_server import render_metrics
from league.queries.pages.overview import _distinct_gpus
from league.queries.status import LeagueStatus, build_status
from league.state import LeagueState
from schemas import events as e
from schemas.config import LeagueConfig
from schemas.errors import LogUnavailableError
from schemas.metrics import GpuMetrics, Heartbeat, MatchMetrics, WorkerHeartbeat
from tests.simulated_history import Simulation
from ui.terminal.overview import WorkersView
from ui.terminal.status import print_status
from ui.terminal.views import ViewOptions
from workers.monitoring import metrics
from workers.monitoring.exposition import league_metrics
from workers.monitoring.metrics import GPUS_VARIABLE, GpuMonitor, HeartbeatPublisher, filter_visible, parse_nvidia_smi
from workers.runtime import Gauges
from workers.tracker import HeartbeatMeans

TWO = """\
0, GPU-5f8a1c2e-0000-4444-8888-aaaaaaaaaaaa, NVIDIA H100 80GB HBM3, 87, 41984, 81559
1, GPU-77b2d9f0-1111-4444-8888-bbbbbbbbbbbb, NVIDIA H100 80GB HBM3, 0, 4, 81559
"""
ODD = """\
0, GPU-aa, NVIDIA A100-SXM4-40GB, [N/A], 20113, 40960
1, GPU-bb, NVIDIA GB10, 12, [N/A], [N/A]
2, GPU-cc, Strange, Comma \x1b[31m Card, 100, 1, 2
3, GPU-dd, Broken, ERR!, [Unknown Error], [Not Supported]
"""
MIB = 2**20


def test_what_the_driver_prints_is_read() -> None:
    first, second = parse_nvidia_smi(TWO)
    assert (first.index, first.name, first.busy_share) == (0, "NVIDIA H100 80GB HBM3", 0.87)
    assert (first.used_bytes, first.memory_bytes) == (41_984 * MIB, 81_559 * MIB)
    assert first.uuid == "GPU-5f8a1c2e-0000-4444-8888-aaaaaaaaaaaa"
    assert (second.index, second.busy_share, second.used_bytes) == (1, 0.0, 4 * MIB)


def test_what_the_driver_does_not_say_is_absent_and_not_zero() -> None:
    split, unified, commas, broken = parse_nvidia_smi(ODD)
    assert (split.busy_share, split.used_bytes) == (None, 20_113 * MIB)
    assert (unified.busy_share, unified.used_bytes, unified.memory_bytes) == (0.12, None, None)
    assert (commas.name, commas.busy_share) == ("Strange, Comma \x1b[31m Card", 1.0)
    assert (broken.busy_share, broken.used_bytes, broken.memory_bytes) == (None, None, None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        "x, GPU-a, N, 1, 2, 3\n",
        "0, GPU-a, 1, 2\n",
        "٣, GPU-a, N, 1, 2, 3\n",
    ],
)
def test_other_lines_are_passed_over(text: str) -> None:
    assert parse_nvidia_smi(text) == []


@pytest.mark.parametrize(
    ("variable", "found"),
    [
        (None, [0, 1]),
        ("", []),
        ("-1", []),
        ("1", [1]),
        ("1,0", [1, 0]),
        ("1, 7, 0", [1]),
        ("GPU-77b2d9f0", [1]),
        ("GPU-", []),
        ("MIG-4f1c", []),
    ],
)
def test_only_gpus_that_the_process_may_use_are_its_own(variable: str | None, found: list[int]) -> None:
    assert [gpu.index for gpu in filter_visible(variable, parse_nvidia_smi(TWO))] == found


def tool(folder: Path, script: str) -> str:
    path = folder / "driver-tool"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def looked(watch: GpuMonitor, times: int = 1) -> list[GpuMetrics]:
    async def body() -> None:
        for _ in range(times):
            await watch.refresh()

    asyncio.run(body())
    return watch.latest()


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv(GPUS_VARIABLE, raising=False)


def test_a_process_that_computes_on_gpus_says_what_they_are_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = tmp_path / "printed"
    printed.write_text(TWO)
    command = tool(tmp_path, f'case "$1" in --query-gpu=index,uuid,name,*) cat {printed};; esac')
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert looked(GpuMonitor(lambda: True, command)) == [
        GpuMetrics(1, "NVIDIA H100 80GB HBM3", 0.0, 4 * MIB, 81_559 * MIB)
    ]


def test_whoever_computes_on_none_does_not_ask_unless_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    command = tool(tmp_path, f"touch {asked}; echo '0, GPU-a, N, 1, 2, 3'")
    assert looked(GpuMonitor(lambda: False, command)) == []
    monkeypatch.setenv(GPUS_VARIABLE, "0")
    assert looked(GpuMonitor(lambda: True, command)) == []
    assert not asked.exists()
    monkeypatch.setenv(GPUS_VARIABLE, "1")
    assert [gpu.index for gpu in looked(GpuMonitor(lambda: False, command))] == [0]


def test_a_tool_that_hangs_is_ended_and_does_not_hold_the_loop_up(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    watch = GpuMonitor(lambda: True, tool(tmp_path, f"echo $$ > {pid}; exec sleep 600"), timeout_s=0.5)

    async def body() -> int:
        turns, looking = 0, asyncio.create_task(watch.refresh())
        while not looking.done():
            await asyncio.sleep(0.01)
            turns += 1
        return turns

    begun = time.monotonic()
    assert asyncio.run(body()) > 1
    assert time.monotonic() - begun < 500
    assert watch.latest() == []
    deadline = time.monotonic() + 300
    # A slow machine may not have come to writing it.
    while pid.exists() and runs(int(pid.read_text() or 0)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def runs(pid: int) -> bool:
    """Whether a process runs; 0 is none."""
    try:
        return pid > 0 and b"Z" not in Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2][:3]
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_tool_that_fails_is_left_alone_for_a_while(tmp_path: Path) -> None:
    count = tmp_path / "count"
    watch = GpuMonitor(lambda: True, tool(tmp_path, f"echo x >> {count}; exit 9"))
    assert looked(watch, times=3) == []
    assert count.read_text() == "x\n"


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has a GPU's driver")
def test_where_there_is_no_gpu_nothing_is_said_at_all() -> None:
    pytest.importorskip("torch")
    assert looked(GpuMonitor(lambda: True)) == []


def test_a_torch_that_another_thread_is_importing_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    assert looked(GpuMonitor(lambda: False, "no-such-tool")) == []


def test_gauges_that_raise_are_left_out_of_the_heartbeat_and_end_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[Heartbeat] = []

    class Stream:
        def __init__(self, *_: object) -> None:
            pass

        async def publish(self, heartbeat: Heartbeat) -> None:
            published.append(heartbeat)
            raise LogUnavailableError("the broker is away")

    def broken() -> Any:
        raise ZeroDivisionError

    class NoUse(Gauges):
        uses_gpus = property(lambda _: broken(), lambda *_: None)  # type: ignore[assignment]

    async def body() -> None:
        history = SimpleNamespace(league="cup", follow_lag=0)
        client, gauges = SimpleNamespace(is_connected=True), NoUse(inference=broken, play=lambda: MatchMetrics(2))
        context = SimpleNamespace(
            name="w", incarnation="a", client=client, log=history, state=LeagueState(), gauges=gauges
        )
        publisher = HeartbeatPublisher(cast(Any, context), "rollout")
        running = asyncio.create_task(publisher.run())
        while len(published) < 2:
            await asyncio.sleep(0.01)
            assert not running.done()
        running.cancel()

    monkeypatch.setattr(metrics, "MetricsStream", Stream)
    monkeypatch.setattr(metrics, "HEARTBEAT_S", 0.01)
    asyncio.run(asyncio.wait_for(body(), 300))
    beat = published[-1]
    assert (beat.worker, beat.inference, beat.play, beat.gpus) == ("w", None, MatchMetrics(2), [])


HERE = [GpuMetrics(0, "H100", 0.875, 41 * 2**30, 80 * 2**30), GpuMetrics(1, "GB10", 0.12)]


def status(gpus: list[GpuMetrics]) -> LeagueStatus:
    simulation = Simulation(LeagueConfig())
    heard = {}
    for name in ("inference-1", "rollout-1"):
        joined = e.WorkerJoined(worker=name, role="inference", incarnation="a", host="box", pid=7, version="1")
        simulation.append(joined)
        of_it = gpus if name == "inference-1" else gpus[:1]
        beat = Heartbeat(name, "inference", "a", "box", 7, 1.0, 5, 0.5, 3, 7, 0, gpus=of_it)
        heard[name] = WorkerHeartbeat(msgspec.json.decode(msgspec.json.encode(beat), type=Heartbeat), 1.0)
    return build_status(simulation.state, heard, {}, 0)


def told(found: LeagueStatus) -> dict[str, Any]:
    """Everything that people and programs are shown."""
    text = io.StringIO()
    print_status(Console(file=text, width=200), found)
    live = HeartbeatMeans()
    live.add(found.workers[0].heartbeat or pytest.fail("no heartbeat"))
    return {"text": text.getvalue(), "metrics": render_metrics(league_metrics(found)), "live": live.collect()}


def test_status_metrics_and_charts_show_them() -> None:
    shown = told(status(HERE))
    assert "GPU 0 88 %, 41 of 80 GiB; GPU 1 12 %" in shown["text"]
    labels = 'worker="inference-1",role="inference",host="box"'
    assert f'league_gpu_busy_share{{{labels},gpu="0"}} 0.875' in shown["metrics"]
    assert f'league_gpu_memory_used_bytes{{{labels},gpu="0"}} {41 * 2**30}' in shown["metrics"]
    assert f'league_gpu_busy_share{{{labels},gpu="1"}} 0.12' in shown["metrics"]
    assert f'league_gpu_memory_bytes{{{labels},gpu="1"}}' not in shown["metrics"]
    assert shown["live"]["gpus/inference-1/0/busy_share"] == 0.875
    assert "gpus/inference-1/1/used_bytes" not in shown["live"]


def test_where_there_is_none_no_word_no_metric_and_no_chart_speaks_of_gpus() -> None:
    shown = told(status([]))
    assert "GPU" not in shown["text"]
    assert "gpu" not in shown["metrics"]
    assert not [name for name in shown["live"] if name.startswith("gpus/")]
    assert _distinct_gpus(status([]).workers) == []


def drawn(gpus: list[GpuMetrics]) -> str:
    """The workers of ``league dash``."""
    found = status(gpus)
    answer = {
        "workers": msgspec.to_builtins(found.workers),
        "gpus": _distinct_gpus(found.workers),
        "rates": {"queued": 0},
        **dict.fromkeys(("jobs", "dead_letters"), 0),
        **{"policies": [], "paused": {}, "store_share": None, "past": False},
    }
    text = io.StringIO()
    Console(file=text, width=80).print(WorkersView().draw(answer, ViewOptions(80, 24)))
    return text.getvalue()


def test_the_dashboard_of_the_terminal_shows_all_of_them_together_in_80_columns() -> None:
    assert "GPUs: 2, 50 % busy, 41 of 80 GiB" in drawn(HERE)
    assert "GPU" not in drawn([])


def test_a_gpu_that_two_processes_compute_on_is_one_gpu() -> None:
    found = _distinct_gpus(status(HERE).workers)
    assert [(gpu["host"], gpu["index"]) for gpu in found] == [("box", 0), ("box", 1)]
