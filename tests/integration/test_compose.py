"""The compose files' command lines, in their order, on this machine: processes for containers, a CPU for the GPU."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from league.log.server import find_nats_server, free_port
from league.run import Run
from schemas.config import load_config
from schemas.events import EvaluationFinished, Event, InferenceServing, TrainingFinished

ROOT = Path(__file__).parents[2]
TINY = ROOT / "configs" / "nim-tiny.toml"
TOKEN = "0123456789abcdef"
BROKERS = ("broker-1", "broker-2", "broker-3")


def merge(base: dict[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """What compose makes of two files, for the keys that these have."""
    for key, value in over.items():
        base[key] = merge(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
    return base


def compose(*files: str) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for file in files:
        text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (ROOT / file).read_text())  # defaults of variables
        merged = merge(merged, yaml.safe_load(text))
    return merged


class Machine:
    """This machine in place of the containers: paths, ports and addresses of each service."""

    def __init__(self, folder: Path, file: dict[str, Any]) -> None:
        self.folder = folder
        self.services = file["services"]
        self.broker_config = file["configs"]["broker"]["content"].replace("$$", "$")
        self.ports = {(name, port): free_port() for name in BROKERS for port in (4222, 6222, 8222)}
        self.ports |= {("dashboard", 8080): free_port(), ("metrics", 9464): free_port()}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def nats(self) -> str:
        return self.address(self.services["rater"]["environment"]["LEAGUE_NATS"])

    def address(self, text: str) -> str:
        """A text with the addresses of this machine in place of the containers'."""
        for (name, port), own in self.ports.items():
            text = text.replace(f"{name}:{port}", f"127.0.0.1:{own}")
        return text

    def own_ports(self, name: str, text: str) -> str:
        """A text in which a service listens on loopback."""
        for (owner, port), own in self.ports.items():
            if owner == name:
                text = text.replace(f"0.0.0.0:{port}", f"127.0.0.1:{own}").replace(
                    f"127.0.0.1:{port}", f"127.0.0.1:{own}"
                )
        return text.replace("0.0.0.0", "127.0.0.1")

    def command(self, name: str) -> list[str]:
        """A service's command line."""
        service, own = self.services[name], self.folder / name
        own.mkdir(exist_ok=True)
        if name in BROKERS:
            (own / "nats.conf").write_text(
                self.own_ports(name, self.address(self.broker_config)).replace("/data", str(own))
            )
            shell, flag, line = service["entrypoint"]
            line = line.replace("/data", str(own)).replace("/etc/nats/nats.conf", str(own / "nats.conf"))
            return [shell, flag, line.replace("exec nats-server", f"exec {shlex.quote(find_nats_server())}")]
        league, *words = service["command"]
        assert league == "league"
        words = [self.own_ports(name, word).replace("/run/league", str(own)) for word in words]
        if "--config" in words:
            at = words.index("--config") + 1
            words[at] = str(self.tiny(ROOT / words[at]))
        return [sys.executable, "-m", "ui", *words]

    def tiny(self, deployed: Path) -> Path:
        """The smallest league, with inference processes where the deployed one has them."""
        servers = load_config(deployed).inference.servers
        text = TINY.read_text() + f"\n[inference]\nservers = {servers}\n"
        path = self.folder / "tiny.toml"
        path.write_text(text)
        return path

    def start(self, name: str) -> None:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("LEAGUE_")}
        given = {"LEAGUE_NATS": self.nats, "LEAGUE_INFERENCE_TOKEN": TOKEN, "HOSTNAME": name}
        wanted = {*self.services[name].get("environment", {}), "HOSTNAME"}
        environment |= {key: value for key, value in given.items() if key in wanted}
        environment["PYTHONPATH"] = str(ROOT)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                self.command(name), env=environment, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
            )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-2000:]

    def stop(self) -> dict[str, int]:
        """End all services, the brokers last, and return their exit codes."""
        codes = {}
        for are_brokers in (False, True):
            ending = {name: each for name, each in self.processes.items() if (name in BROKERS) is are_brokers}
            for process in ending.values():
                process.terminate()
            for name, process in ending.items():
                try:
                    codes[name] = process.wait(timeout=300)
                except subprocess.TimeoutExpired:
                    process.kill()
                    codes[name] = process.wait()
        return codes


def answer(url: str) -> str:
    """Body of a page; empty while nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            body: str = response.read().decode()
            return body
    except OSError:
        return ""


async def wait_for(condition: Callable[[], bool]) -> None:
    """Wait for a condition, with patience for a loaded machine."""
    async with asyncio.timeout(900):
        while not condition():  # noqa: ASYNC110  (a process has no event to wait for)
            await asyncio.sleep(0.2)


async def restart(machine: Machine) -> None:
    """Start services again that failed, as their policy says; runs until cancelled."""
    restarts = 0
    while True:
        for name, process in list(machine.processes.items()):
            if process.poll() not in (None, 0):
                assert machine.services[name]["restart"] in ("on-failure", "unless-stopped")
                restarts += 1
                assert restarts < 20, f"{name} ended with {process.poll()}: {machine.log(name)}"
                machine.start(name)
        await asyncio.sleep(0.2)


async def follow(machine: Machine) -> list[Event]:
    """The league's events until training has finished and its last version is evaluated."""
    events: list[Event] = []
    async with Run(machine.folder / "reader", nats=machine.nats).open_log("test") as history:
        async for recorded in history.follow():
            events.append(recorded.event)
            if {TrainingFinished, EvaluationFinished} <= {type(event) for event in events}:
                return events
    return events


async def play(machine: Machine) -> list[Event]:
    """Start all services in the order that they depend on each other, and follow the league to its end."""
    for name in BROKERS:
        machine.start(name)
    for name in BROKERS:
        health = f"http://127.0.0.1:{machine.ports[name, 8222]}/healthz?js-enabled-only=true"
        await wait_for(lambda: '"ok"' in answer(health))  # noqa: B023  (awaited in this round)
    machine.start("open")
    opened = machine.processes["open"]
    await wait_for(lambda: opened.poll() is not None)
    assert opened.returncode == 0, machine.log("open")
    for name in machine.services:
        if name not in machine.processes:
            assert set(machine.services[name]["depends_on"]) == {"open"}
            machine.start(name)
    watching = asyncio.create_task(restart(machine))
    try:
        following = asyncio.create_task(follow(machine))
        async with asyncio.timeout(1800):
            await asyncio.wait({watching, following}, return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            await watching
        page = f"http://127.0.0.1:{machine.ports['metrics', 9464]}/metrics"
        await wait_for(lambda: "league_worker_up" in answer(page))
        await wait_for(lambda: "<html" in answer(f"http://127.0.0.1:{machine.ports['dashboard', 8080]}/"))
        return await following
    finally:
        watching.cancel()


@pytest.mark.slow
@pytest.mark.parametrize(
    "files", [["docker-compose.yml"], ["docker-compose.yml", "docker-compose.gpu.yml"]], ids=["cpu", "gpu"]
)
def test_every_service_runs_and_the_league_trains(tmp_path: Path, files: list[str]) -> None:
    machine = Machine(tmp_path, compose(*files))
    try:
        events = asyncio.run(play(machine))
    finally:
        codes = machine.stop()
    # Ended by SIGTERM before or after a worker handles it: those that had finished are on their way out.
    assert {name: code for name, code in codes.items() if code not in (0, 143, -15)} == {}
    serving = [event for event in events if isinstance(event, InferenceServing)]
    assert len(serving) == ("docker-compose.gpu.yml" in files)
    assert codes.keys() == machine.services.keys()
