"""Backend and learner agree token by token, and the report says so when they do not."""

import asyncio
import json
import shutil
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from arena.constraints.token_walk import ListConstraint
from arena.games import make_game
from inference import Generation, InferenceBackend, Request, make_backend
from league.run import Run
from lifecycle.open import open_league
from lifecycle.parity import (
    TOLERANCES,
    VARIANTS,
    ParityReport,
    ParityTolerance,
    PromptSample,
    VariantResult,
    format_summary,
    measure_parity,
    resolve_tolerance,
    sample_prompts,
)
from models import BaseShape, Tokenizer, make_base
from models.adapter_bundle import pack_folder
from models.adapters import Lora, LoraConfig, create, load, save
from models.decoder import Decoder
from schemas.config import LeagueConfig, convert
from schemas.errors import ModelError, UsageError
from schemas.events import PolicyPublished
from trainer.loss_inputs import recompute_logprobs
from ui.cli import app

# Weights as small as those of hub models, for which the bounds in half precision are made.
SHAPE = BaseShape(hidden=48, layers=3, heads=4, kv_heads=2, head_dim=16, mlp=96, init_std=0.02)
GAME = make_game("nim", {"seats": 3, "heaps": [3, 4, 5]})
DTYPES = ["float32", "bfloat16"]
LEAGUE = {
    "name": "nim",
    "game": {"name": "nim", "settings": {"seats": 3, "heaps": [3, 4, 5]}},
    "agents": {
        "base_model": {"kind": "base", "rating": 1000.0, "baseline": True},
        "random_bot": {"kind": "bot", "rating": 800.0, "baseline": True},
    },
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str | None, Path]:
    """A base model and adapters of different ranks, which move what it says by a good deal."""
    base = make_base(tmp_path_factory.mktemp("base"), GAME.text().vocabulary(), SHAPE, seed=1)
    made: dict[str | None, Path] = {None: base}
    for seed, rank in enumerate((2, 16)):
        lora = create(Decoder.load(base).shape, LoraConfig(rank=rank), seed)
        with torch.no_grad():
            lora.flat_P.add_(0.05 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(seed)))
        made[f"r{rank}"] = tmp_path_factory.mktemp(f"r{rank}")
        save(lora, made[f"r{rank}"])
    return made


def found(
    folders: dict[str | None, Path],
    dtype: str = "float32",
    alter: Callable[[InferenceBackend], InferenceBackend] = lambda backend: backend,
    learner: Callable[[Lora], Lora] = lambda lora: lora,
    asked: list[PromptSample] | None = None,
    **settings: object,
) -> list[VariantResult]:
    """Examine the local backend, or an altered one, against the learner with its adapters, or with altered ones."""
    base = folders[None]
    decoder = Decoder.load(base, dtype=getattr(torch, dtype))
    backend = make_backend("local", base, dtype=dtype, **settings)
    loras: dict[str | None, Lora | None] = {None: None}
    for name, folder in folders.items():
        if name is not None:
            backend.load_adapter(name, folder)
            loras[name] = learner(load(folder, decoder.shape))
    if asked is None:
        asked = list(islice(sample_prompts(GAME, Tokenizer(base), "random_bot", seed=0), 12))
    learners = {name: partial(recompute_logprobs, decoder, lora) for name, lora in loras.items()}
    return asyncio.run(measure_parity(alter(backend), learners, decoder.shape.vocab_size, asked, TOLERANCES[dtype]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_learner_and_backend_agree_at_every_temperature_constrained_and_free_and_with_a_nucleus(folders, dtype):
    cells = found(folders, dtype)
    assert [cell.way for cell in cells] == VARIANTS
    for cell in cells:
        assert cell.within, cell
        assert not cell.refused
        assert cell.tokens >= 12
        assert cell.ratio == sorted(cell.ratio)
        assert cell.ratio[2] == pytest.approx(1, abs=TOLERANCES[dtype].largest)
    # A nucleus that keeps everything would agree too.
    assert any(cell.kept < 0.99 for cell in cells if cell.way.top_p < 1)
    assert all(cell.kept == pytest.approx(1) for cell in cells if cell.way.top_p == 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_they_agree_where_prompts_are_not_read_again(folders, dtype):
    reused: list[int] = []

    def count(request: Request, generation: Generation) -> Generation:
        assert generation.timing is not None
        reused.append(generation.timing.cached_tokens)
        return generation

    shared = [3 + 5 * position % 8 for position in range(80)]
    asked = [
        PromptSample([*shared, *place.prompt_ids], place.constraint)
        for place in islice(sample_prompts(GAME, Tokenizer(folders[None]), "random_bot", seed=0), 12)
    ]
    cells = found(folders, dtype, lambda backend: Altered(backend, count), asked=asked, reuse_tokens=4096)
    assert all(cell.within for cell in cells)
    assert sum(reused) > 0


class Altered:
    """A backend whose generations are passed through a function."""

    def __init__(self, backend: InferenceBackend, change: Callable[[Request, Generation], Generation]) -> None:
        self._backend = backend
        self._change = change

    async def generate(self, request: Request) -> Generation:
        return self._change(request, await self._backend.generate(request))


def shifted(by: float) -> Callable[[Request, Generation], Generation]:
    def change(request: Request, generation: Generation) -> Generation:
        return msgspec.structs.replace(generation, logprobs=[min(each - by, 0.0) for each in generation.logprobs])

    return change


def at_temperature_one(request: Request, generation: Generation) -> Generation:
    """What a backend says that tells the model's log-probabilities instead of those it sampled by."""
    factor = request.sampling.temperature
    return msgspec.structs.replace(generation, logprobs=[each * factor for each in generation.logprobs])


def test_a_small_drift_is_found_and_is_nothing_in_half_precision(folders):
    drifted = found(folders, alter=lambda backend: Altered(backend, shifted(1e-4)))
    assert not any(cell.within for cell in drifted)
    for cell in drifted:
        if cell.way.top_p == 1:
            assert cell.mean == pytest.approx(1e-4 * min(cell.way.temperature, 1), rel=0.2)
    assert all(cell.within for cell in found(folders, "bfloat16", lambda backend: Altered(backend, shifted(1e-4))))


def test_probabilities_at_another_temperature_are_found(folders):
    for cell in found(folders, alter=lambda backend: Altered(backend, at_temperature_one)):
        assert cell.within == (cell.way.temperature == 1.0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_another_scale_of_the_adapters_is_found(folders, dtype):
    cells = found(folders, dtype, learner=lambda lora: Lora(lora.rank, 1.5 * lora.alpha, lora.sizes, lora.flat_P))
    assert not any(cell.within for cell in cells)


def test_a_mask_that_is_not_the_nucleus_is_found(folders):
    def narrow(request: Request, generation: Generation) -> Generation:
        drawn = [[generation.completion_ids[branch]] for branch in generation.branches]
        return msgspec.structs.replace(generation, allowed=drawn, logprobs=[0.0] * len(drawn))

    for cell in found(folders, alter=lambda backend: Altered(backend, narrow)):
        assert cell.largest == 0
        assert not cell.within


def test_a_choice_that_the_backend_calls_forced_is_found(folders):
    def forced(request: Request, generation: Generation) -> Generation:
        return msgspec.structs.replace(generation, branches=[], allowed=[], logprobs=[])

    for cell in found(folders, alter=lambda backend: Altered(backend, forced)):
        assert cell.tokens >= 12
        assert not cell.within


def test_a_number_that_is_none_is_beyond_every_bound(folders):
    def broken(request: Request, generation: Generation) -> Generation:
        return msgspec.structs.replace(generation, logprobs=[float("nan")] * len(generation.logprobs))

    with pytest.raises(ModelError, match=r"the learner would reject .* log-probability nan"):
        found(folders, alter=lambda backend: Altered(backend, broken))


def test_a_backend_that_refuses_nuclei_says_so_in_the_report(folders):
    def refuses(request: Request, generation: Generation) -> Generation:
        if request.sampling.top_p < 1:
            raise ModelError("inference: top_p 0.9; this backend cannot tell the nucleus")
        return generation

    cells = found(folders, alter=lambda backend: Altered(backend, refuses))
    assert [bool(cell.refused) for cell in cells] == [way.top_p < 1 for way in VARIANTS]
    assert all(cell.within for cell in cells)


def test_places_without_a_choice_are_no_evidence(folders):
    with pytest.raises(ModelError, match=r"no constrained token was sampled at 2 places"):
        found(folders, asked=[PromptSample([3, 4], ListConstraint([(5, 6)]))] * 2)


def test_types_without_bounds_are_named_and_a_summary_says_how_far():
    with pytest.raises(UsageError, match=r"'float8'; expected 'bfloat16', 'float16' or 'float32'"):
        resolve_tolerance("float8")
    cells = [VariantResult(VARIANTS[0], 7, 1e-7, 2e-7, [1.0] * 5, 1.0, True)]
    report = ParityReport("local", "float32", TOLERANCES["float32"], 2, cells)
    assert report.agrees
    assert "local and the learner agree in float32: 7 tokens, 2 adapters, at most 2.0e-07 apart" in format_summary(
        report
    )
    wrong = msgspec.structs.replace(report, cells=[msgspec.structs.replace(cells[0], within=False)])
    assert "DISAGREE" in format_summary(wrong)


def test_the_command_examines_a_small_model_where_there_is_no_league(tmp_path, monkeypatch):
    arguments = ["doctor", "--parity", "--run", str(tmp_path / "none"), "--places", "6"]
    told = CliRunner().invoke(app, [*arguments, "--json"])
    report = json.loads(told.stdout)
    assert (told.exit_code, report["agrees"], report["adapters"]) == (0, True, 2)
    assert [cell["way"]["kind"] for cell in report["cells"]] == [way.kind for way in VARIANTS]
    assert report["percentiles"] == [0, 1, 50, 99, 100]
    assert not (tmp_path / "none").exists()
    monkeypatch.setitem(TOLERANCES, "float32", ParityTolerance(1e-12, 1e-12))
    told = CliRunner().invoke(app, arguments)
    assert told.exit_code == 1
    assert "BEYOND" in told.stdout
    assert "local and the learner DISAGREE in float32" in told.stdout


def test_the_command_examines_a_leagues_model_with_its_newest_adapters_on_its_learner_backend(tmp_path, folders):
    config = convert(LEAGUE | {"trainer": {"backend": "peft"}}, LeagueConfig, "test")
    run = Run(tmp_path / "run")
    shutil.copytree(folders[None], run.model)

    async def play() -> None:
        async with run.connect("test") as client:
            history = await open_league(run, client, config, lambda *_: None)
            for version, name in enumerate(("r2", "r16")):
                digest = await run.open_blob_store(client, config.name).put(pack_folder(folders[name]))
                await history.append(PolicyPublished("main", version, digest, "base_model"))

    asyncio.run(play())
    for dtype in DTYPES:
        words = ["doctor", "--parity", "--run", str(run.folder), "--dtype", dtype, "--places", "4", "--json"]
        told = CliRunner().invoke(app, words)
        report = json.loads(told.stdout)
        assert (told.exit_code, report["agrees"], report["adapters"], report["backend"]) == (0, True, 1, "local")
        assert len(report["cells"]) == len(VARIANTS)
