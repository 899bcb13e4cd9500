"""Turns on a GPU: processes that hold them and die at every state, and a server whose requests wait meanwhile."""

import asyncio
import contextlib
import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from inference import backend_settings
from inference.http_server import RefusedError
from inference.server.admission import AdmissionControl, ServerPhase
from inference.vllm.settings import VllmConfig
from lifecycle.config_checks import check_config
from lifecycle.resource_estimate import estimate_resources
from schemas.config import LeagueConfig, convert
from schemas.errors import ConfigError
from tests.described_models import describe_model
from trainer.backends import OffloadedBase
from workers.device_turns import DeviceTurns

PROCESS = """
import asyncio, sys
from pathlib import Path
from workers.device_turns import DeviceTurns
turns = DeviceTurns(Path(sys.argv[1]))
for line in sys.stdin:
    if line.strip() == "acquire":
        print("waits", flush=True)
        asyncio.run(turns.acquire())
    else:
        turns.release()
    print("done", flush=True)
"""


def test_a_folder_that_cannot_be_used_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "device.turn").mkdir()
    with pytest.raises(IsADirectoryError, match=r"device\.turn"):
        DeviceTurns(tmp_path)
    gc.collect()


class Participant:
    """A process with access to the turns."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROCESS, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def expect(self, line: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == line

    def acquire(self) -> None:
        self.send("acquire")
        self.expect("waits")
        self.expect("done")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def participants(tmp_path: Path) -> Iterator[tuple[Participant, Participant]]:
    with contextlib.ExitStack() as stack:
        pair = Participant(tmp_path), Participant(tmp_path)
        for one in pair:
            stack.callback(one.kill)
        yield pair


def wait_for_request(turns: DeviceTurns) -> None:
    async def wait() -> None:
        async with asyncio.timeout(300):
            while not turns.is_requested():  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.01)

    asyncio.run(wait())


def acquire(turns: DeviceTurns) -> None:
    async def wait() -> None:
        async with asyncio.timeout(300):
            assert await turns.acquire()

    asyncio.run(wait())


def test_the_next_process_goes_on_whichever_of_the_others_dies_at_whichever_state(
    participants: tuple[Participant, Participant], tmp_path: Path
) -> None:
    holder, waiter = participants
    # Sampling, draining or waking: the holder dies, and the one that waits has its turn.
    holder.acquire()
    waiter.send("acquire")
    waiter.expect("waits")
    holder.kill()
    waiter.expect("done")
    # Training: a process that starts again waits until the holder dies in its turn.
    own = DeviceTurns(tmp_path)
    other = Participant(tmp_path)
    try:
        other.send("acquire")
        other.expect("waits")
        waiter.kill()
        other.expect("done")
    finally:
        other.kill()
    # Asleep, or waiting for a turn: the holder sees the request, and that it is gone.
    acquire(own)
    assert not own.is_requested()
    third = Participant(tmp_path)
    try:
        third.send("acquire")
        wait_for_request(own)
    finally:
        third.kill()
    assert not own.is_requested()
    own.release()
    acquire(own)


def test_a_turn_is_handed_over_and_comes_back(tmp_path: Path) -> None:
    async def alternate() -> None:
        order = []
        inference, trainer = DeviceTurns(tmp_path), DeviceTurns(tmp_path)
        base = OffloadedBase(nn.Linear(2, 2), "cpu")
        await inference.acquire()

        async def train() -> None:
            for step in range(3):
                async with trainer.train(base):
                    order.append(f"step {step}")
                    # Turns alternate where the other one asks during a turn: nobody is promised one that asks later.
                    while not trainer.is_requested():  # noqa: ASYNC110 - nothing signals it
                        await asyncio.sleep(0.01)

        training = asyncio.create_task(train())
        while not training.done():
            if inference.is_requested():
                inference.release()
                await inference.acquire()
                order.append("samples")
            await asyncio.sleep(0)
        await training
        assert order == [word for step in range(3) for word in (f"step {step}", "samples")]

    asyncio.run(asyncio.wait_for(alternate(), 300))


def test_a_worker_that_is_stopped_waits_for_no_turn(tmp_path: Path) -> None:
    holder, other = DeviceTurns(tmp_path), DeviceTurns(tmp_path)
    acquire(holder)
    assert not asyncio.run(other.acquire(lambda: True))
    assert not holder.is_requested()


def test_requests_wait_while_the_server_pauses_and_those_that_have_begun_end_first() -> None:
    async def run() -> None:
        admission, order, go_on = AdmissionControl(10, 10), [], asyncio.Event()
        admission.open()

        async def request(name: str) -> None:
            async with admission.enter():
                with admission.admit():
                    order.append(name)
                    await go_on.wait()

        first = asyncio.create_task(request("first"))
        while not order:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0)
        pausing = asyncio.create_task(admission.pause())
        await asyncio.sleep(0)
        second = asyncio.create_task(request("second"))
        for _ in range(10):
            await asyncio.sleep(0)
        assert (order, pausing.done(), admission.phase) == (["first"], False, ServerPhase.PAUSING)
        go_on.set()
        await asyncio.gather(first, pausing)
        admission.show(ServerPhase.ASLEEP)
        assert order == ["first"]
        admission.resume()
        await second
        assert (order, admission.phase) == (["first", "second"], ServerPhase.SERVING)
        # A worker that ends while it sleeps refuses what waits.
        await admission.pause()
        third = asyncio.create_task(request("third"))
        await asyncio.sleep(0)
        await admission.drain()
        admission.resume()
        assert admission.phase is ServerPhase.DRAINING
        with pytest.raises(RefusedError):
            await third

    asyncio.run(asyncio.wait_for(run(), 300))


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_an_offloaded_model_computes_as_before_and_leaves_its_adapters_alone(device: str) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval().requires_grad_(False)
    input_BD = torch.ones(1, 3)
    expected, base = model(input_BD), OffloadedBase(model, device)
    adapter = nn.Parameter(torch.ones(3))
    model.register_parameter("adapter", adapter)
    for _ in range(2):
        base.load()
        assert {tensor.device.type for tensor in (*model[0].parameters(), *model[1].buffers())} == {device}
        assert torch.allclose(model(input_BD.to(device)).cpu(), expected)
        base.offload()
        assert torch.equal(model(input_BD), expected)
        assert model.adapter is adapter
    assert adapter.device.type == "cpu"


COLOCATED = {
    "inference": {"backend": "vllm", "device": "cuda", "servers": 1, "colocate": True},
    "trainer": {"device": "cuda", "backend": {"name": "peft"}},
}


def colocated(**tables: dict[str, object]) -> LeagueConfig:
    merged = {name: {**COLOCATED.get(name, {}), **tables.get(name, {})} for name in {*COLOCATED, *tables}}  # type: ignore[dict-item]
    return convert(merged, LeagueConfig, "")


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"inference": {"backend": "local"}}, "'local' cannot release what it holds on 'cuda'; expected 'vllm'"),
        ({"inference": {"servers": 2}}, "inference.servers is 2, with 0 urls; expected one process"),
        ({"trainer": {"device": "cpu"}}, "inference on 'cuda', the trainer on 'cpu'; expected the same device"),
        ({"trainer": {"ranks": 2}}, "2 processes train; expected one"),
        ({"trainer": {"backend": {"name": "peft", "settings": {"quantization": "4bit"}}}}, "cannot move"),
        ({"trainer": {"backend": "native", "advantage": "gae"}}, "has a critic"),
    ],
)
def test_what_cannot_share_a_gpu_is_refused(tables: dict[str, dict[str, object]], message: str) -> None:
    check_config(colocated())
    with pytest.raises(ConfigError, match=rf"inference\.colocate: .*{message}"):
        check_config(colocated(**tables))


def test_vllm_is_started_with_its_sleep_mode_where_there_is_memory_to_release(tmp_path: Path) -> None:
    settings = backend_settings(colocated())
    assert settings["enable_sleep_mode"]
    assert "enable_sleep_mode" not in backend_settings(colocated(inference={"backend": "local"}))
    for device, expected in (("cuda", True), ("cpu", False)):
        config = VllmConfig(device=device, enable_sleep_mode=True)
        assert config.engine_arguments(tmp_path, 512)["enable_sleep_mode"] is expected


def test_the_memory_of_a_shared_gpu_is_the_larger_turns(tmp_path: Path) -> None:
    model = {"base": describe_model(tmp_path, "Qwen3-8B"), "lora_rank": 16}
    inference = {"options": {"gpu_memory_utilization": 0.8}}
    trainer = {"dtype": "bfloat16", "learner": {"rectangle_tokens": 4096, "recompute_layers": True}}
    both = colocated(model=model, inference=inference, trainer=trainer)
    beside = colocated(model=model, inference=inference | {"colocate": False}, trainer=trainer)
    (shared,), (summed,) = (estimate_resources(config, 48.0).devices for config in (both, beside))
    assert not summed.fits
    assert shared.fits
    trained = sum(part.gb for part in shared.parts if part.turn != "inference")
    played = sum(part.gb for part in shared.parts if part.turn != "trainer")
    assert shared.taken_gb == max(trained, played)
    assert played > 0.8 * 48
    # What sleeps is in the host's memory.
    assert estimate_resources(both).memory_gb > estimate_resources(beside).memory_gb + 2 * 16
