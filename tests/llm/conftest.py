"""What only a real language model shows, on SmolLM2-135M-Instruct (``make test-llm``)."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from models import find_base
from models.gguf import PACKAGED_MODELS
from schemas.errors import ConfigError, ModelError

collect_ignore_glob = [] if find_spec("vllm") else ["test_vllm.py"]

NAME = "smollm2-135m-instruct"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of the model, converted from the package's file once on a machine."""
    try:
        return find_base(NAME)
    except (ConfigError, ModelError) as error:
        pytest.skip(f"{PACKAGED_MODELS[NAME].package}: {error}")
