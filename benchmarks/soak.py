"""Three thousand gradient steps of a small league, watched for what grows: memory, open files, threads, the store.

A whole league runs as ``league up`` starts it. Every few seconds each of its processes, its broker included, is looked
at from outside. Afterwards every quantity of every process gets a slope over gradient steps, from the end of the
warm-up on, and the logs are searched for faults. Exits 1 when something grows beyond its bound.

Run: ``python -m benchmarks soak``; ``--run DIR --again`` tells of a run that was watched before.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.sizes import is_miniature, size
from benchmarks.soak_figures import GROWTH_BOUNDS, Growth, SoakReport, compute_report, draw_report
from benchmarks.soak_samples import ProcessUsage, SoakSample, read_samples

_ROOT = Path(__file__).parents[1]
_SHUTDOWN_TIMEOUT_S = 180.0


class ProcessMonitor:
    """Looks at the processes of a run's league.

    Args:
        league: Process id of ``league up``.
        folder: The run's.
    """

    def __init__(self, league: int, folder: Path) -> None:
        self._league = psutil.Process(league)
        self._folder = folder

    def sample(self) -> SoakSample:
        """How everything is now; processes that have just ended are left out."""
        found: dict[str, ProcessUsage] = {}
        for name, process in self._members():
            try:
                with process.oneshot():
                    rss, threads = process.memory_info().rss, process.num_threads()
                found[name] = ProcessUsage(process.pid, rss / 1e6, process.num_fds(), threads)
            except psutil.Error:
                continue
        return SoakSample(time.time(), found, self._sizes())

    def _members(self) -> list[tuple[str, psutil.Process]]:
        members = [("supervisor", self._league)]
        try:
            for child in self._league.children(recursive=True):
                members += [(name, child) for name in _worker_name(child)]
            broker = json.loads((self._folder / "nats" / "server.json").read_text())["pid"]
            members.append(("broker", psutil.Process(broker)))
        except (psutil.Error, OSError, ValueError, KeyError):
            # Before the broker is up, and after it has gone.
            pass
        return members

    def _sizes(self) -> dict[str, float]:
        streams = self._folder / "nats" / "store" / "jetstream" / "$G" / "streams"
        parts = {entry.name: entry for entry in sorted(streams.iterdir())} if streams.is_dir() else {}
        parts |= {"artifact cache": self._folder / "artifacts", "logs": self._folder / "logs"}
        return {name: _allocated_bytes(folder) / 1e6 for name, folder in parts.items()}


def _worker_name(process: psutil.Process) -> list[str]:
    try:
        command = process.cmdline()
    except psutil.Error:
        return []
    return [command[command.index("--name") + 1]] if "--name" in command else []


def _allocated_bytes(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        for file in files:
            try:
                # What is set aside, not what is written: brokers lay out their blocks in advance.
                total += os.stat(os.path.join(place, file)).st_blocks * 512
            except OSError:
                continue
    return total


def run_and_monitor(config: Path, folder: Path, every_s: float, most_s: float) -> int:
    """Run a league to its end and write down how it was; the exit code of ``league up``."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ui", "up", "--config", str(config), "--run", str(folder)]
    with (folder / "soak.out").open("wb") as output, (folder / "soak.jsonl").open("wb") as samples:
        league = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=_ROOT)
        try:
            seen, began = ProcessMonitor(league.pid, folder), time.monotonic()
            while league.poll() is None and time.monotonic() - began < most_s:
                sample = seen.sample()
                samples.write(msgspec.json.encode(sample) + b"\n")
                samples.flush()
                time.sleep(every_s)
        finally:
            code = _stop(league)
    return code


def _stop(league: "subprocess.Popen[bytes]") -> int:
    if league.poll() is None:
        league.send_signal(signal.SIGTERM)
    try:
        return league.wait(_SHUTDOWN_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        league.kill()
        return league.wait()


def print_figures(found: SoakReport, console: Console) -> None:
    """Print what was found."""
    minutes = (found.ended - found.began) / 60
    console.print(
        f"{found.steps:,} gradient steps, {found.matches:,} matches, {found.events:,} events in {minutes:.1f} minutes; "
        f"growth is from step {found.warm_steps:,} on, Theil–Sen with its 95 % interval",
        highlight=False,
    )
    table = Table()
    for column in ("growth", "warm", "at the end", "per 1,000", "95 %", ""):
        table.add_column(column, justify="left" if column in ("growth", "") else "right", no_wrap=True)
    flat = [one for one in found.growth if one.slope == 0 and one.first == one.last]
    for one in found.growth:
        if one not in flat:
            table.add_row(*_growth_row(one))
    console.print(table)
    console.print(f"without any change: {_unchanged_text(flat)}", highlight=False)
    console.print(f"bounds: {', '.join(f'{of} {bound:g}' for of, bound in GROWTH_BOUNDS.items())}", highlight=False)
    for name, (first, second) in found.store.items():
        console.print(
            f"store: {name}: {first:.1f} kB a step in the first half, {second:.1f} in the second", highlight=False
        )
    for text in found.notes:
        console.print(text, highlight=False)
    for text in found.faults:
        console.print(f"FAULT: {text}", highlight=False, soft_wrap=True)
    console.print("nothing grows beyond its bound" if found.passed else "NOT PASSED", highlight=False)


def _growth_row(one: Growth) -> list[str]:
    name = one.process + (f" ({one.starts} starts)" if one.starts > 1 else "")
    numbers = f"{one.first:.1f}", f"{one.last:.1f}", f"{one.slope:+.1f}", f"{one.low:+.1f} to {one.high:+.1f}"
    return [f"{name} {one.of}", *numbers, "" if one.passed else "GROWS"]


def _unchanged_text(flat: list[Growth]) -> str:
    of = {one.of: [other.process for other in flat if other.of == one.of] for one in flat}
    return "; ".join(f"{name} of {', '.join(processes)}" for name, processes in of.items()) or "nothing"


def main() -> int:
    """Run, tell, draw; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--config", type=Path, default=_ROOT / "configs" / size("nim-soak.toml", "nim-tiny.toml"))
    parser.add_argument("--run", type=Path, help="the run's folder; by default one that is removed afterwards")
    parser.add_argument("--again", action="store_true", help="tell of the run in --run, without running it")
    parser.add_argument("--every", type=float, default=size(3.0, 1.0), help="seconds between looks")
    parser.add_argument("--most", type=float, default=3600.0, help="seconds after which the league is stopped")
    parser.add_argument("--plot", type=Path, help="where the picture goes; by default soak.png in the run's folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as spare:
        folder = options.run or Path(spare) / "run"
        code = 0 if options.again else run_and_monitor(options.config.resolve(), folder, options.every, options.most)
        found = asyncio.run(compute_report(folder, read_samples(folder / "soak.jsonl"), code))
        draw_report(found, options.plot or folder / "soak.png")
    print_figures(found, Console())
    if is_miniature():  # A few steps have no slopes.
        return code or int(found.steps == 0)
    return 0 if found.passed else 1


if __name__ == "__main__":
    sys.exit(main())
