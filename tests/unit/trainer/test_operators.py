"""Operators on adapters: offspring of real adapters, and parents that do not fit each other."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from models import adapters
from models.adapter_bundle import pack_folder
from models.adapters import CONFIG_FILE, Lora, LoraConfig
from models.model_config import DecoderShape
from schemas.config import Plugin
from schemas.errors import ConfigError, ModelError
from trainer.operators import OPERATORS, make_offspring

SHAPE = DecoderShape(
    "qwen3", 50, 32, intermediate_size=48, layers=2, heads=4, kv_heads=2, head_dim=16, tied=True, qk_norm=True
)
RANK = 4


def write_parent(
    folder: Path, seed: int, config: LoraConfig | None = None, base: str = "", trained: bool = True
) -> Path:
    lora = adapters.create(SHAPE, config or LoraConfig(rank=RANK, alpha=8), seed)
    with torch.no_grad():
        for _, b_OR in lora.matrices().values() if trained else ():
            b_OR.normal_(generator=torch.Generator().manual_seed(seed))
    adapters.save(lora, folder, base)
    return folder


@pytest.fixture
def parents(tmp_path: Path) -> list[Path]:
    return [write_parent(tmp_path / str(seed), seed) for seed in (1, 2)]


@pytest.fixture
def cross(parents: list[Path], tmp_path: Path) -> Callable[..., Lora]:
    def run(name: str, seed: int = 0, **settings: object) -> Lora:
        plugin = Plugin(name=name, settings=settings)
        make_offspring(plugin, parents[: OPERATORS.build(plugin).parents], seed, tmp_path / "offspring")
        return adapters.load(tmp_path / "offspring", SHAPE)

    return run


def updates(lora: Lora) -> dict[str, torch.Tensor]:
    """``B A`` of every linear."""
    return {name: (b_OR @ a_RI).detach() for name, (a_RI, b_OR) in lora.matrices().items()}


def load_updates(folder: Path) -> dict[str, torch.Tensor]:
    return updates(adapters.load(folder, SHAPE))


@pytest.mark.parametrize("name", OPERATORS.names())
def test_equal_parents_settings_and_seeds_give_equal_bytes(name: str, parents: list[Path], tmp_path: Path) -> None:
    before = [pack_folder(parent) for parent in parents]
    taken = parents[: OPERATORS.build(Plugin(name=name)).parents]
    bundles = []
    for number, seed in enumerate((5, 5, 6)):
        make_offspring(Plugin(name=name), taken, seed, tmp_path / f"offspring-{number}")
        bundles.append(pack_folder(tmp_path / f"offspring-{number}"))
    assert bundles[0] == bundles[1] != bundles[2]
    assert adapters.load(tmp_path / "offspring-0", SHAPE).rank == RANK
    assert [pack_folder(parent) for parent in parents] == before


def test_a_crossover_takes_each_linear_from_one_parent(cross: Callable[..., Lora], parents: list[Path]) -> None:
    first, second = map(load_updates, parents)
    found = updates(cross("crossover", seed=3))
    origins = [torch.equal(found[name], first[name]) for name in found]
    assert all(
        torch.equal(found[name], (first if mine else second)[name]) for name, mine in zip(found, origins, strict=True)
    )
    assert 0 < sum(origins) < len(origins)
    assert all(torch.equal(update, first[name]) for name, update in updates(cross("crossover", weight=1.0)).items())


def test_an_average_is_the_nearest_update_of_the_parents_rank(cross: Callable[..., Lora], parents: list[Path]) -> None:
    first, second = map(load_updates, parents)
    for name, found in updates(cross("crossover", method="average", weight=0.25)).items():
        left, values, right = torch.linalg.svd(0.25 * first[name] + 0.75 * second[name])
        best = (left[:, :RANK] * values[:RANK]) @ right[:RANK]
        torch.testing.assert_close(found, best, atol=1e-4, rtol=1e-4)


def test_the_average_of_untrained_adapters_stays_trainable(tmp_path: Path) -> None:
    fresh = [write_parent(tmp_path / str(seed), seed, trained=False) for seed in (1, 2)]
    make_offspring(Plugin(name="crossover", settings={"method": "average"}), fresh, 0, tmp_path / "offspring")
    for a_RI, b_OR in adapters.load(tmp_path / "offspring", SHAPE).matrices().values():
        assert (a_RI.norm(dim=1) > 0.1).all()
        assert not b_OR.any()


def test_noise_is_relative_to_each_matrix(cross: Callable[..., Lora], parents: list[Path]) -> None:
    parent, found = adapters.load(parents[0], SHAPE).matrices(), cross("mutation", noise=0.1).matrices()
    for name, pair in found.items():
        for mutated, original in zip(pair, parent[name], strict=True):
            assert 0.05 < (mutated - original).norm() / original.norm() < 0.2
    assert torch.equal(cross("mutation", noise=0.0).flat_P, adapters.load(parents[0], SHAPE).flat_P)
    assert not torch.equal(cross("crossover", noise=0.1).flat_P, cross("crossover").flat_P)


@pytest.mark.parametrize(
    ("config", "base", "message"),
    [
        (LoraConfig(rank=2, alpha=8), "", "r is 2, expected 4, as in the other parent"),
        (LoraConfig(rank=RANK, alpha=16), "", "lora_alpha is 16, expected 8, as in the other parent"),
        (LoraConfig(rank=RANK, alpha=8, target_modules=("q_proj",)), "", r"target_modules is \['q_proj'\], expected"),
        (None, "another", "base_model_name_or_path is 'another', expected None, as in the other parent"),
    ],
)
def test_parents_that_do_not_fit_are_refused(
    config: LoraConfig | None, base: str, message: str, parents: list[Path], tmp_path: Path
) -> None:
    odd = write_parent(tmp_path / "odd", 3, config, base)
    with pytest.raises(ModelError, match=message):
        make_offspring(Plugin(name="crossover"), [parents[0], odd], 0, tmp_path / "offspring")
    assert not (tmp_path / "offspring").exists()


def test_parents_of_bases_with_other_sizes_are_refused(parents: list[Path], tmp_path: Path) -> None:
    wider = msgspec.structs.replace(SHAPE, hidden_size=64)
    adapters.save(adapters.create(wider, LoraConfig(rank=RANK, alpha=8), 1), tmp_path / "wide")
    with pytest.raises(ModelError, match=r"down_proj is adapted as \(64, 48\), expected \(32, 48\)"):
        make_offspring(Plugin(name="crossover"), [parents[0], tmp_path / "wide"], 0, tmp_path / "offspring")


def test_wrong_numbers_of_parents_and_wrong_settings_are_refused(parents: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'crossover' got 1 parents; expected 2"):
        make_offspring(Plugin(name="crossover"), parents[:1], 0, tmp_path / "offspring")
    for settings in ({"weight": 1.5}, {"noise": -1.0}, {"method": "sum"}):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            OPERATORS.build(Plugin(name="crossover", settings=settings))


def test_adapters_of_other_methods_are_refused(parents: list[Path], tmp_path: Path) -> None:
    config = msgspec.json.decode((parents[1] / CONFIG_FILE).read_bytes())
    (parents[1] / CONFIG_FILE).write_bytes(msgspec.json.encode(config | {"use_dora": True}))
    with pytest.raises(ModelError, match="use_dora"):
        make_offspring(Plugin(name="crossover"), parents, 0, tmp_path / "offspring")
