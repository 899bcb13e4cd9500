"""Import of another program's registry into a new run, which appears whole or not at all."""

import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from arena.bots import bot_names
from arena.environments import ArenaSpec
from league.blobs import open_blobs
from league.history.registry_import import ImportedRegistry, imported_events, merge_baselines
from league.log.base import RecordedEvent
from league.log.jetstream import JetStreamLog
from league.run import Run
from lifecycle.branch import make_new_folder
from lifecycle.config_checks import check_config, check_tokenizer
from lifecycle.open import open_league
from lifecycle.trust import trusted_settings
from models import MODEL_FILES, BaseModel, adapters, load_base
from models.adapter_bundle import pack_folder, unpack_folder
from models.adapter_checks import check_base_name, has_effect
from models.adapters import CONFIG_FILE, WEIGHTS_FILE
from models.decoder import Decoder
from schemas.codec import encode_event
from schemas.config import LeagueConfig
from schemas.errors import ModelError, UsageError
from schemas.events import Event, MatchFinished
from schemas.files import check_file
from schemas.ids import digest
from schemas.subjects import event_subject
from workers.progress import ProgressReporter

PRODUCER = "import"
BASE_FOLDER = "base"
"""Folder beside a registry with the base model of its adapters, used where the settings would have one made."""
_BATCH_SIZE = 1_000
_MAX_TEXT_BYTES = 256 * 1024 * 1024
"""Most bytes of a file beside the weights; the largest tokenizers have 40 MB."""
_NO_MODEL = "no base model fits it; expected model.base in --config, or a folder 'base' beside the file"


class ImportResult(msgspec.Struct):
    """Summary of a finished import."""

    league: str
    agents: int
    checkpoints: int
    adapters: int
    """Number of checkpoints whose adapter was found and stored."""
    matches: int
    without: dict[str, str]
    """Checkpoints that will never be drawn, with the reason why their adapter could not be stored."""
    notes: dict[str, list[str]]
    """What is odd about adapters that were stored, by checkpoint."""
    left_off: dict[str, str]
    """What the settings would have reached, by their keys, and was left off."""


async def import_registry(
    registry: ImportedRegistry,
    folder: Path,
    config: LeagueConfig,
    target: Path,
    report: ProgressReporter,
    trusted: Collection[str] | None = None,
) -> ImportResult:
    """Make a run whose league starts with a registry's agents and matches.

    Adapters' paths are relative to ``folder``; a base model in its folder ``base`` becomes the new run's
    where the configuration would have one made. Without that folder ``league up`` makes it later. The registry's
    baselines go before the configured agents. ``target`` must not exist. With ``trusted``, the settings came from
    elsewhere too, and what they reach beyond the run's folder is left off, but for these keys.

    Raises:
        UsageError: the registry names files outside its folder, or the league cannot do without a setting that is not
            trusted.
        ModelError: the base model cannot be used, or the digest of a model or adapter is not the registry's.
    """
    left_off: dict[str, str] = {}
    _check_inside(registry, folder)
    if trusted is not None:
        config, reaches = trusted_settings(config, trusted)
        left_off = dict(reaches)
    registry = msgspec.structs.replace(registry, outsiders=_unknown_bots(registry, config))
    config = merge_baselines(config, registry)
    check_config(config)
    with make_new_folder(target) as draft:
        run = Run(draft)
        # A base model made for the league would be one that the imported adapters do not fit.
        if config.model.base == "made" and ((folder / BASE_FOLDER).is_dir() or registry.base_digest is not None):
            _copy_base_model(folder / BASE_FOLDER, run.model, registry.base_digest, config)
        async with run.connect(PRODUCER) as client:
            history = await open_league(run, client, config, report, make_model=False)
            adapters, without = _read_usable_adapters(registry, folder, config, run)
            blobs = open_blobs(client, config.name)
            stored = {name: await blobs.put(adapter.data, "adapter") for name, adapter in adapters.items()}
            events = imported_events(registry, config, stored, trusted or (), left_off)
            await _append_history(history, events, len(registry.history), report)
    return ImportResult(
        league=config.name,
        agents=len(registry.baselines) + len(registry.checkpoints),
        checkpoints=len(registry.checkpoints),
        adapters=len(stored),
        matches=len(registry.history),
        without=without,
        notes={
            **{name: list(adapter.notes) for name, adapter in adapters.items() if adapter.notes},
            **{name: [f"no bot here plays it; its results are those of {name}@0"] for name in registry.outsiders},
        },
        left_off=left_off,
    )


def _read_usable_adapters(
    registry: ImportedRegistry, folder: Path, config: LeagueConfig, run: Run
) -> tuple[dict[str, "_PackedAdapter"], dict[str, str]]:
    """Read the adapters that the league's processes can load, and the reasons for the others."""
    source = run.model if config.model.base == "made" else config.model.base
    # There may be no base model until ``league up`` makes it.
    base = None if source == run.model and not run.model.is_dir() else load_base(source)
    adapters, without = _read_adapters(registry, folder, base, None if source == run.model else str(source))
    _check_newest_adapter(adapters, config)
    largest = config.max_lora_rank
    for name in [name for name, adapter in adapters.items() if adapter.rank > largest]:
        rank = adapters.pop(name).rank
        without[name] = f"its adapter's rank is {rank}; at most {largest} is loaded (inference.max_lora_rank)"
    _check_adapters_left(registry, adapters, without)
    return adapters, without


def _unknown_bots(registry: ImportedRegistry, config: LeagueConfig) -> list[str]:
    """Baselines that neither the configuration nor a bot of the game is named after."""
    known = {*config.agents, *bot_names(config.game.name)}
    return [baseline.name for baseline in registry.baselines if baseline.name not in known]


def _check_inside(registry: ImportedRegistry, folder: Path) -> None:
    """Raise ``UsageError`` where a registry names files outside its folder, or links lead there."""
    named = {f"agents.{each.name}.path": folder / each.path for each in registry.checkpoints if each.path is not None}
    for key, path in {BASE_FOLDER: folder / BASE_FOLDER, **named}.items():
        inner = path.iterdir() if path.is_dir() else ()
        for file in (path, *inner):
            if not file.resolve().is_relative_to(folder.resolve()):
                raise UsageError(f"{key}: {file} is outside {folder}; expected a file in the folder of the registry")


def _copy_base_model(source: Path, folder: Path, expected: str | None, config: LeagueConfig) -> None:
    """Copy a base model to the place of a made one, and check that the league can use it."""
    if not source.is_dir():
        raise ModelError(f"{source}: no such folder; expected the base model that league.json names")
    folder.mkdir()
    for path in sorted(path for pattern in MODEL_FILES for path in source.glob(pattern) if path.is_file()):
        check_file(path, None if path.suffix == ".safetensors" else _MAX_TEXT_BYTES)
        shutil.copyfile(path, folder / path.name)
    try:
        base = load_base(folder)
        Decoder.load(folder)
        contest = check_tokenizer(base.tokenizer, config)
        if not isinstance(contest, ArenaSpec):
            base.tokenizer.encode(contest.text().vocabulary())
    except ModelError as error:
        reason = str(error).replace(str(folder), str(source))
        raise ModelError(f"{source}: not a base model for {config.game.name} with these settings: {reason}") from None
    _check_digest(f"{source}", pack_folder(folder), expected)


def _check_digest(place: str, data: bytes, expected: str | None) -> None:
    if expected is not None and (actual := digest(data)) != expected:
        raise ModelError(f"{place}: damaged or edited: its digest is {actual}; expected {expected}, as in league.json")


class _PackedAdapter(NamedTuple):
    data: bytes
    """Adapter bundle, as workers unpack it."""
    rank: int
    alpha: float
    notes: tuple[str, ...]


def _read_adapters(
    registry: ImportedRegistry, folder: Path, base: BaseModel | None, source: str | None
) -> tuple[dict[str, _PackedAdapter], dict[str, str]]:
    """Read adapters by the registry's checkpoint name, in its order, and the reasons for missing ones.

    They must name ``source`` as their base model, unless it is None: a base model that came with the registry.
    """
    adapters: dict[str, _PackedAdapter] = {}
    without: dict[str, str] = {}
    if base is None:
        return adapters, dict.fromkeys((checkpoint.name for checkpoint in registry.checkpoints), _NO_MODEL)
    for checkpoint in registry.checkpoints:
        if checkpoint.path is None:
            without[checkpoint.name] = "the file names no path"
            continue
        path = folder / checkpoint.path
        try:
            adapters[checkpoint.name] = _read_adapter(path, base, source)
        except (ModelError, OSError) as error:
            if checkpoint.adapter_digest is not None:
                raise ModelError(f"agents.{checkpoint.name}: {error}") from None
            without[checkpoint.name] = str(error)
            continue
        where = f"agents.{checkpoint.name}: {path}"
        _check_digest(where, adapters[checkpoint.name].data, checkpoint.adapter_digest)
    return adapters, without


def _read_adapter(path: Path, base: BaseModel, base_name: str | None) -> _PackedAdapter:
    """Read an adapter of the base model from its folder, its weights file, or an archive."""
    with tempfile.TemporaryDirectory() as workshop:
        folder = Path(workshop) / "adapter"
        source = path.parent if path.name == WEIGHTS_FILE else path
        if source.is_file():
            check_file(source)
            unpack_folder(source.read_bytes(), folder)
        elif source.is_dir():
            folder.mkdir()
            for name in (CONFIG_FILE, WEIGHTS_FILE):
                # Only these two: other files in the folder are not part of the adapter.
                if (source / name).is_file():
                    check_file(source / name, None if name == WEIGHTS_FILE else _MAX_TEXT_BYTES)
                    shutil.copyfile(source / name, folder / name)
        else:
            raise ModelError(f"{path}: does not exist")
        try:
            adapters.check(folder, base.shape)
            config = adapters.read_config(folder)
        except ModelError as error:
            raise ModelError(str(error).replace(str(folder), str(path))) from None
        if base_name is not None:
            check_base_name(path, config, base_name, base.folder)
        notes = [] if has_effect(folder) else ["its adapter has no effect, all its B are zero"]
        if base_name is not None and not config.get("base_model_name_or_path"):
            notes.append(f"its adapter names no base model and is taken as one of {base_name!r}")
        return _PackedAdapter(pack_folder(folder), config["r"], float(config["lora_alpha"]), tuple(notes))


def _check_adapters_left(
    registry: ImportedRegistry, adapters: Mapping[str, _PackedAdapter], without: Mapping[str, str]
) -> None:
    """Reject an import whose checkpoints have all lost their adapters; those without a path never had one."""
    lost = [checkpoint.name for checkpoint in registry.checkpoints if checkpoint.path is not None]
    lost = [name for name in lost if without.get(name, _NO_MODEL) != _NO_MODEL]
    if lost and not adapters:
        raise ModelError(
            f"agents.{lost[-1]}: {without[lost[-1]]}; expected its adapter, since no other checkpoint has one either"
        )


def _check_newest_adapter(adapters: Mapping[str, _PackedAdapter], config: LeagueConfig) -> None:
    """Reject a newest adapter that training could not continue from."""
    if not adapters:
        return
    name, newest = list(adapters.items())[-1]
    if (newest.rank, newest.alpha) != (config.model.lora_rank, config.model.lora_alpha):
        raise UsageError(
            f"agents.{name}: its adapter has rank {newest.rank} and alpha {newest.alpha:g}, and training goes on from "
            "it; expected model.lora_rank and model.lora_alpha to be the same in --config, found "
            f"{config.model.lora_rank} and {config.model.lora_alpha:g}"
        )


async def _append_history(
    history: JetStreamLog, events: Iterable[tuple[Event, int | None]], matches: int, report: ProgressReporter
) -> None:
    """Append a registry's events after the league's opening, with the registry's times."""
    batch: list[RecordedEvent] = []
    done = 0
    first = await history.last_sequence() + 1
    for sequence, (event, time_ns) in enumerate(events, first):
        when = time.time_ns() if time_ns is None else time_ns
        subject = event_subject(history.league, event)
        batch.append(RecordedEvent(sequence, when, subject, PRODUCER, encode_event(event)))
        done += isinstance(event, MatchFinished)
        if len(batch) == _BATCH_SIZE:
            await history.copy(batch)
            batch = []
            report(f"importing matches, {done:,} of {matches:,}", done / max(matches, 1))
    await history.copy(batch)
