"""vLLM's own server, started as for a league: adapters by digest, refusals, a server that goes away and comes back."""

import asyncio
import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from arena.constraints.token_walk import ListConstraint
from inference import Request, SamplingParameters
from inference.vllm.serve import AdapterSource
from inference.vllm.server import VllmServerBackend, VllmServerConfig
from inference.vllm.settings import VllmConfig
from league.blobs import BrokerBlobStore
from league.log.connection import connect
from league.log.jetstream import flush_and_close
from league.log.server import EmbeddedServer
from league.log.streams import ensure_streams
from models.adapter_bundle import pack_folder
from schemas.config import ExperienceConfig
from schemas.errors import ModelError
from tests.servers import run_vllm_server

CHOICE = ListConstraint([(5, 6, 7), (9, 6, 7), (21, 8, 9), (21, 8, 10)])
PROMPT = [3 + i % 30 for i in range(100)]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    async def opened(url: str) -> None:
        client = await connect(url, "test")
        await ensure_streams(client.jetstream(), ExperienceConfig())
        await flush_and_close(client)

    with EmbeddedServer(tmp_path_factory.mktemp("nats")) as server:
        asyncio.run(opened(server.url))
        yield server.url


@pytest.fixture(scope="module")
def url(base: Path, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder, log = tmp_path_factory.mktemp("served"), tmp_path_factory.mktemp("log") / "vllm.log"
    source = AdapterSource(str(folder), broker, max_rank=16)
    with run_vllm_server(VllmConfig(max_loras=2, max_cpu_loras=2, mask_places=16), base, source, log) as url:
        yield url


def stored(broker: str, folder: Path) -> str:
    """Puts an adapter into the league's store; its digest."""

    async def put() -> str:
        client = await connect(broker, "test")
        try:
            return await BrokerBlobStore(client, "nim").put(pack_folder(folder))
        finally:
            await flush_and_close(client)

    return asyncio.run(put())


def sampled(
    base: Path, url: str, adapter: str | None, folder: Path | None = None, prepared: bool = True, **settings: object
) -> list[float]:
    async def asked() -> list[float]:
        backend = VllmServerBackend(base, VllmServerConfig(urls=(url,), **settings))
        try:
            if folder is not None:
                backend.load_adapter(adapter, folder)
            elif adapter is not None and prepared:
                await backend.prepare(adapter)
            generation = await backend.generate(Request(PROMPT, adapter, CHOICE, SamplingParameters(0.9, 1)))
            assert 0 < generation.timing.first_s <= generation.timing.seconds
            return generation.logprobs
        finally:
            await backend.close()

    return asyncio.run(asked())


def test_adapters_come_from_the_leagues_store_by_digest(base, url, broker, adapter: Callable[..., Path]):
    one, other = (stored(broker, adapter(seed)) for seed in (1, 2))
    found = [sampled(base, url, digest) for digest in (one, other, None)]
    assert found[0] != pytest.approx(found[1], abs=1e-3)
    assert found[0] != pytest.approx(found[2], abs=1e-3)
    assert sampled(base, url, one) == pytest.approx(found[0], abs=1e-5)
    # As a match's opponents, which nobody prepares.
    third = stored(broker, adapter(4))
    assert sampled(base, url, third, prepared=False) == pytest.approx(sampled(base, url, third), abs=1e-5)
    with pytest.raises(ModelError, match="0000"):
        sampled(base, url, "0" * 64, prepared=False)
    # From the store it is the same as from a folder, in process and elsewhere.
    assert hashlib.sha256(pack_folder(adapter(1))).hexdigest() == one


def test_base_model_beside_as_many_adapters_as_slots_is_still_the_base_model(base, url, broker, adapter):
    alone, digests = sampled(base, url, None), [stored(broker, adapter(seed)) for seed in (1, 2)]

    async def crowd() -> list[list[float]]:
        backend = VllmServerBackend(base, VllmServerConfig(urls=(url,)))
        for digest in digests:
            await backend.prepare(digest)
        asked = [Request(PROMPT, (None, *digests)[i % 3], CHOICE, SamplingParameters(0.9, 1)) for i in range(12)]
        generations = await asyncio.gather(*map(backend.generate, asked))
        await backend.close()
        return [generation.logprobs for generation in generations[::3]]

    assert all(logprobs == pytest.approx(alone, abs=1e-5) for logprobs in asyncio.run(crowd()))


def test_adapter_that_nobody_has_and_one_that_cannot_be_used_are_refused_with_the_reason(base, url, broker, adapter):
    with pytest.raises(ModelError, match="0000"):
        sampled(base, url, "0" * 64)
    with pytest.raises(ModelError, match="does not exist"):
        sampled(base, url, "../elsewhere")
    damaged = Path(shutil.copytree(adapter(3), adapter(3).parent / "damaged"))
    (damaged / "adapter_model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ModelError, match="safetensors"):
        sampled(base, url, stored(broker, damaged))
    with pytest.raises(ModelError, match="rank is 24, at most 16"):
        sampled(base, url, stored(broker, adapter(1, rank=24)))
    assert sampled(base, url, None)


def test_adapter_that_cannot_be_used_is_refused_before_a_server_is_asked(base, adapter):
    with pytest.raises(ModelError, match="rank is 24, at most 16"):
        sampled(base, "http://127.0.0.1:9", "large", adapter(1, rank=24))


def test_server_that_is_gone_fails_the_request_and_one_of_two_does_not(base, url):
    gone = "http://127.0.0.1:9"
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:9"):
        sampled(base, gone, None, patience_s=0.5)

    async def both() -> list[float]:
        backend = VllmServerBackend(base, VllmServerConfig(urls=(gone, url)))
        try:
            return (await backend.generate(Request(PROMPT, None, CHOICE, SamplingParameters(0.9, 1)))).logprobs
        finally:
            await backend.close()

    assert asyncio.run(both()) == pytest.approx(sampled(base, url, None), abs=1e-5)


def test_server_that_tells_other_logprobs_is_refused(base, tmp_path):
    config = VllmConfig(max_loras=1, max_cpu_loras=1)

    class Raw(VllmConfig, frozen=True):
        def engine_arguments(self, folder: Path, model: int) -> dict[str, object]:
            return config.engine_arguments(folder, model) | {"logprobs_mode": "raw_logprobs"}

    with (
        run_vllm_server(Raw(), base, AdapterSource(str(tmp_path)), tmp_path / "log") as url,
        pytest.raises(ModelError, match="--logprobs-mode processed_logprobs"),
    ):
        sampled(base, url, None)
