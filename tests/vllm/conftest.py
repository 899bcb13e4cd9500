"""What only the ``vllm`` backend has, on the real vLLM; collected where it is installed (``make test-vllm``)."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from trainer.model import make_base

collect_ignore_glob = [] if find_spec("vllm") else ["test_*.py"]

VOCABULARY = 40


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), [f"w{i}" for i in range(VOCABULARY - 3)], seed=1)


@pytest.fixture(scope="session")
def engine(base: Path) -> Iterator[object]:
    """One vLLM with two adapter slots, for all tests: it takes half a minute to start."""
    from workers.inference.vllm_process import VllmConfig, VllmEngine

    engine = VllmEngine(base, VllmConfig(max_loras=2, max_cpu_loras=2))
    yield engine
    engine.close()
