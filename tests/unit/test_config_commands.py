"""``league config init`` writes settings that a league takes; ``league config check`` says what they would start."""

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

import arena.environments
from arena.environments import arena_names
from arena.games import game_names
from inference.base import backend_config, backend_settings
from lifecycle.config_checks import check_config
from lifecycle.hardware import CARDS_GB, HARDWARE, fit_card
from lifecycle.model_dimensions import KNOWN_MODELS, model_dimensions
from lifecycle.resource_estimate import estimate_resources, trainer_host_memory
from schemas.config import LeagueConfig, convert, load_config
from schemas.errors import ConfigError, UsageError
from ui.cli import app

PRESETS = Path(__file__).parents[2] / "configs" / "presets"


def run(*words: str, answers: str | None = None) -> str:
    result = CliRunner().invoke(app, ["config", *words], input=answers)
    if isinstance(result.exception, Exception):
        raise result.exception
    return result.stdout


def league(**tables: object) -> LeagueConfig:
    return convert(tables, LeagueConfig, "")


@pytest.mark.parametrize("hardware", HARDWARE)
def test_presets_are_what_is_written_for_their_hardware(hardware: str, tmp_path: Path) -> None:
    run("init", str(tmp_path / "new.toml"), "--yes", "--hardware", hardware)
    assert (tmp_path / "new.toml").read_text() == (PRESETS / f"{hardware}.toml").read_text()


def test_every_preset_is_of_some_hardware() -> None:
    assert sorted(path.stem for path in PRESETS.iterdir()) == sorted(HARDWARE)


@pytest.mark.parametrize("hardware", HARDWARE)
def test_presets_fit_their_gpus_with_room_to_spare(hardware: str) -> None:
    size = HARDWARE[hardware].gpu_gb
    found = estimate_resources(load_config(PRESETS / f"{hardware}.toml"), size)
    assert bool(found.devices) == (size is not None)
    assert all(device.taken_gb <= 0.92 * (size or 0.0) for device in found.devices)


@pytest.mark.parametrize("game", game_names())
@pytest.mark.parametrize("hardware", ["laptop", "gpu-24gb"])
def test_every_game_can_be_begun_with(game: str, hardware: str, tmp_path: Path) -> None:
    if game in ("openspiel", "pettingzoo"):
        pytest.importorskip("pyspiel" if game == "openspiel" else "pettingzoo")
    file = tmp_path / "new.toml"
    run("init", str(file), "--yes", "--game", game, "--hardware", hardware)
    config = load_config(file)
    check_config(config)
    assert (config.game.name, config.stop.minutes) == (game, HARDWARE[hardware].minutes)


@pytest.mark.parametrize("name", arena_names())
@pytest.mark.parametrize("hardware", ["laptop", "gpu-24gb"])
def test_every_arena_can_be_begun_with(name: str, hardware: str, tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    run("init", str(file), "--yes", "--game", name, "--hardware", hardware)
    config = load_config(file)
    assert (config.game.name, config.stop.minutes) == (name, HARDWARE[hardware].minutes)
    assert (config.stop.steps, config.episodes.empty) == (None, "count")


def test_arenas_of_plugins_can_be_begun_with_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "plugins" / "arena" / "environments" / "own_arena.py"
    plugin.parent.mkdir(parents=True)
    plugin.write_text(
        "from arena.environments import register\nfrom arena.environments.negotiation import NegotiationSpec\n"
        'make = register("own_arena")(NegotiationSpec.of)\n'
    )
    monkeypatch.setattr(arena.environments, "__path__", [*arena.environments.__path__])
    monkeypatch.setenv("LEAGUE_PLUGINS", str(tmp_path / "plugins"))
    for hardware in ("laptop", "gpu-24gb"):
        file = tmp_path / f"{hardware}.toml"
        run("init", str(file), "--yes", "--game", "own_arena", "--hardware", hardware)
        config = load_config(file)
        assert (config.game.name, config.trainer.advantage.name) == ("own_arena", "rae")
    with pytest.raises(UsageError, match=r"no such game or arena.*did you mean 'own_arena'\?"):
        run("init", str(tmp_path / "new.toml"), "--yes", "--game", "own_arean")


@pytest.mark.parametrize("game", ["kuhn_poker", "leduc_poker", "textarena"])
def test_a_game_that_tells_nothing_on_the_way_is_not_learnt_from_its_progress(game: str, tmp_path: Path) -> None:
    path = tmp_path / "league.toml"
    run("init", str(path), "--yes", "--game", game, "--hardware", "laptop")
    text = path.read_text()
    assert '[trainer.reward]\nname = "outcome"' in text
    path.write_text(text.replace('name = "outcome"', 'name = "progress"'))
    with pytest.raises(ConfigError, match=rf"trainer\.reward: 'progress' .* the game '{game}' tells .* 'outcome'"):
        run("check", str(path))


def test_a_game_that_tells_how_far_seats_have_come_is_learnt_from_that(tmp_path: Path) -> None:
    run("init", str(tmp_path / "league.toml"), "--yes", "--game", "nim", "--hardware", "laptop")
    assert "reward" not in (tmp_path / "league.toml").read_text()
    run("check", str(tmp_path / "league.toml"))


def test_settings_for_a_card_fit_it_and_name_its_model(tmp_path: Path) -> None:
    file = tmp_path / "card.toml"
    run("init", str(file), "--yes", "--game", "nim", "--model", "qwen3-1.7b", "--card", "24")
    config = load_config(file)
    assert config.model.base == "Qwen/Qwen3-1.7B"
    (device,) = estimate_resources(config, 24.0).devices
    assert 0.75 * 24 < device.taken_gb <= 0.92 * 24
    assert "one GPU of 24 GB" in file.read_text()


def test_a_model_that_does_not_fit_twice_plays_and_trains_in_turns(tmp_path: Path) -> None:
    file = tmp_path / "card.toml"
    run("init", str(file), "--yes", "--game", "nim", "--model", "qwen3-4b", "--card", "24")
    config = load_config(file)
    check_config(config)
    assert config.inference.colocate
    (device,) = estimate_resources(config, 24.0).devices
    assert 0.75 * 24 < device.taken_gb <= 0.93 * 24


@pytest.mark.parametrize("model", KNOWN_MODELS)
def test_the_larger_card_holds_no_less(model: str) -> None:
    fits = [fit_card(model, gb) for gb in CARDS_GB]
    found = [fit for fit in fits if fit is not None]
    assert fits == [None] * (len(CARDS_GB) - len(found)) + found
    assert found
    assert [fit.cached_tokens // fit.max_length >= 2 for fit in found] == [True] * len(found)
    assert sorted(fit.rank for fit in found) == [fit.rank for fit in found]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--card", "24", "--hardware", "laptop"], "expected one of the two"),
        (["--card", "24", "--model", "qwen3-14b"], "--card 24: Qwen/Qwen3-14B does not fit, even where"),
        (["--card", "inf", "--model", "qwen3-4b"], "--card inf: expected GB of memory, from 1 to 10,000"),
        (["--card", "24", "--minutes", "inf"], "--minutes inf: expected a finite number above 0"),
        (["--card", "24", "--model", "qwen3-2b"], "--model qwen3-2b: its size is not known here"),
    ],
)
def test_a_card_that_cannot_be_filled_is_refused(words: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        run("init", str(tmp_path / "new.toml"), "--yes", "--game", "nim", *words)
    assert says in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_the_table_of_cards_is_the_documented_one() -> None:
    assert run("cards") in (PRESETS.parents[1] / "docs" / "4-operations.md").read_text()


def test_a_trainers_process_on_a_cpu_is_estimated_at_its_measured_peak(tmp_path: Path) -> None:
    """As ``python -m benchmarks memory`` measured it: 12 layers of width 768, 1,024 tokens at once, recomputed."""
    described = {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 6,
        "head_dim": 64,
        "intermediate_size": 2304,
        "vocab_size": 8192,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(described))
    learner = {"rectangle_tokens": 1024, "recompute_layers": True}
    parts = trainer_host_memory(league(model={"base": str(tmp_path)}, trainer={"learner": learner}))
    assert sum(part.gb for part in parts) == pytest.approx(1.65, rel=0.1)
    two = trainer_host_memory(league(model={"base": str(tmp_path)}, trainer={"learner": learner, "ranks": 2}))
    assert sum(part.gb for part in two) == pytest.approx(2 * sum(part.gb for part in parts))


def test_a_league_on_a_cpu_is_estimated_at_its_measured_memory(tmp_path: Path) -> None:
    """Resident memory of all processes of ``league up``, and of vLLM's (``docs/2-measurements.md``)."""
    for name, measured in (("diplomacy-cpu", 2.51), ("quick-start", 1.68), ("nim-soak", 1.99)):
        config = load_config(PRESETS.parent / f"{name}.toml")
        assert estimate_resources(config).memory_gb == pytest.approx(measured, rel=0.1), name
    described = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4}
    sizes = {"head_dim": 64, "intermediate_size": 1536, "vocab_size": 8003, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(described | sizes))
    tables = {"inference": {"backend": "vllm", "servers": 1}}
    both, alone = (estimate_resources(league(model={"base": str(tmp_path)}, **each)).memory_gb for each in (tables, {}))
    players = 0.34 + 0.33 + 2 * (0.03 * 4 - 0.15)
    assert both - alone + players == pytest.approx(3.30, rel=0.1)


def test_simpletak_fits_the_card_that_it_is_for() -> None:
    (device,) = estimate_resources(load_config(PRESETS.parent / "simpletak.toml"), 80.0).devices
    assert device.taken_gb <= 0.92 * 80


def test_a_model_spread_over_several_gpus_takes_its_share_of_each(tmp_path: Path) -> None:
    options = {"tensor_parallel_size": 4, "gpu_memory_utilization": 0.5, "max_loras": 8}
    inference = {"backend": "vllm", "device": "cuda", "servers": 1, "options": options}
    config = league(model={"base": "Qwen/Qwen3-14B"}, inference=inference, trainer={"device": "cpu"})
    devices = estimate_resources(config, 24.0).devices
    assert [(device.name, device.taken_gb) for device in devices] == [(f"cuda:{rank}", 12.0) for rank in range(4)]
    assert "0.5 of each of 4 GPUs, all together: 29.5 weights" in devices[0].parts[0].of
    shared = league(
        model={"base": "Qwen/Qwen3-14B"}, inference=inference | {"colocate": True}, trainer={"device": "cuda"}
    )
    with pytest.raises(ConfigError, match=r"colocate: inference\.tensor_parallel_size is 4; expected 1"):
        check_config(shared)


def test_vllm_follows_constraints_by_itself_in_every_configuration_for_a_gpu(tmp_path: Path) -> None:
    run("init", str(tmp_path / "card.toml"), "--yes", "--game", "nim", "--model", "Qwen3-8B", "--card", "141")
    deployed = PRESETS.parents[1] / "deploy"
    files = [*PRESETS.rglob("*.toml"), *PRESETS.parent.glob("*.toml"), *deployed.rglob("*.toml"), *tmp_path.glob("*")]
    on_gpus = {file.name: config for file in files if (config := load_config(file)).inference.backend == "vllm"}
    assert {"gpu-24gb.toml", "gpu-80gb.toml", "trainer-and-rollouts.toml", "simpletak.toml", "card.toml"} <= {*on_gpus}
    for config in on_gpus.values():
        assert backend_config(config.inference.backend, backend_settings(config)).mask_places > 0  # type: ignore[attr-defined]


def test_enter_takes_the_default_and_answers_are_taken(tmp_path: Path) -> None:
    run("init", str(tmp_path / "new.toml"), answers="gpu-80gb\nnim\n\n90\n")
    config = load_config(tmp_path / "new.toml")
    assert (config.game.name, config.model.base, config.stop.minutes) == ("nim", "Qwen/Qwen3-8B", 90.0)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--game", "chess"],
            "--game chess: no such game or arena, nor one in a folder that LEAGUE_PLUGINS names; expected",
        ),
        (["--game", "openenv"], "--game openenv: it needs settings that name an environment"),
        (["--hardware", "tpu"], "--hardware tpu: no such preset; expected 'gpu-24gb'"),
        (["--hardware", "gpu-24gb", "--model", "made"], "too small to keep a GPU busy"),
        (["--minutes", "0"], "--minutes 0: expected a finite number above 0"),
        (["--minutes", "nan"], "--minutes nan: expected a finite number above 0"),
        (["--model", "a\x1b[2Jb"], "--model: expected 'made', a folder or a hub id"),
    ],
)
def test_a_wrong_answer_is_refused_and_nothing_written(words: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        run("init", str(tmp_path / "new.toml"), "--yes", *words)
    assert says in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "new.toml").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        run("init", str(tmp_path / "new.toml"), "--yes")
    assert (tmp_path / "new.toml").read_text() == "mine"


def test_a_models_name_cannot_add_settings(tmp_path: Path) -> None:
    name = 'a" # \\ [stop]'
    run("init", str(tmp_path / "new.toml"), "--yes", "--game", "nim", "--model", name)
    assert tomllib.loads((tmp_path / "new.toml").read_text())["model"]["base"] == name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name = ", "not TOML"),
        ("[rollout]\nworker = 3", "rollout.worker: unknown key; expected"),
        ("[trainer]\nloss = { name = 'ppo' }", "trainer.loss"),
    ],
)
def test_checking_says_what_is_wrong_in_which_file(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        run("check", str(file))
    assert str(refused.value).startswith(f"{file}: ")
    assert says in str(refused.value)


def test_checking_tells_what_would_be_started_and_what_comes_next() -> None:
    out = run("check", str(PRESETS / "gpu-24gb.toml"), "--gpu-gb", "24")
    assert "1 archivist, 1 rater, 1 inference, 1 trainer, 1 evaluator, 1 rollout" in out
    assert "0.5 of the GPU: 3.4 weights (1.72 billion in bfloat16)" in " ".join(out.split())
    assert out.splitlines()[-1] == f"next: league up --config {PRESETS / 'gpu-24gb.toml'}"
    assert "DOES NOT FIT" not in out


def test_checking_warns_of_a_gpu_that_is_too_small() -> None:
    file = str(PRESETS / "gpu-80gb.toml")
    assert "of 40.0: DOES NOT FIT" in run("check", file, "--gpu-gb", "40")
    found = json.loads(run("check", file, "--gpu-gb", "40", "--json"))
    assert sum(part["gb"] for part in found["devices"][0]["parts"]) > 40


def test_every_player_with_a_vllm_of_its_own_is_counted() -> None:
    tables = {"inference": {"backend": "vllm", "device": "cuda"}, "rollout": {"workers": 2}}
    parts = estimate_resources(league(model={"base": "Qwen/Qwen3-0.6B"}, **tables), 80.0).devices[0].parts
    assert sorted(part.what for part in parts) == ["evaluator: vLLM", "rollout: vLLM", "rollout: vLLM"]


def test_sizes_are_those_that_the_models_are_called_by() -> None:
    billions = {}
    for name in ("0.6B", "1.7B", "4B", "8B"):
        sizes = model_dimensions(league(model={"base": f"Qwen/Qwen3-{name}"}))
        assert sizes is not None
        billions[name] = round(sizes.parameters / 1e9, 1)
    assert billions == {"0.6B": 0.6, "1.7B": 1.7, "4B": 4.0, "8B": 8.2}


def test_an_adapter_of_rank_16_on_all_linears_has_17_million_parameters() -> None:
    sizes = model_dimensions(league(model={"base": "Qwen/Qwen3-1.7B-Base"}))
    assert sizes is not None
    assert round(sizes.adapter_parameters(16) / 1e6) == 17
    assert sizes.adapter_parameters(16, ("q_proj",)) == 28 * 16 * 4096


def test_a_folders_model_is_sized_by_its_description_and_an_odd_one_by_none(tmp_path: Path) -> None:
    described = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 10,
    }
    (tmp_path / "config.json").write_text(json.dumps(described))
    sizes = model_dimensions(league(model={"base": str(tmp_path)}))
    assert sizes is not None
    # Two embeddings of 80, four square projections of 64, three of 128.
    assert sizes.parameters == 2 * 80 + 4 * 64 + 3 * 128
    (tmp_path / "config.json").write_text("[]")
    assert model_dimensions(league(model={"base": str(tmp_path)})) is None


def test_disk_counts_every_versions_adapter_twice() -> None:
    config = league(model={"base": "Qwen/Qwen3-1.7B"}, stop={"steps": 100}, trainer={"rollouts_per_step": 10})
    sizes = model_dimensions(config)
    assert sizes is not None
    step = 2 * sizes.adapter_parameters(16) * 4 + 10 * 1100
    found = estimate_resources(config)
    assert found.disk_gb_step == pytest.approx(step / 1e9)
    assert found.disk_gb == pytest.approx(100 * step / 1e9)


def test_a_model_of_unknown_size_is_told_as_such(tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    run("init", str(file), "--yes", "--game", "nim", "--model", "somebody/something", "--hardware", "gpu-24gb")
    assert "'somebody/something': its size is not known here" in file.read_text()


def test_control_characters_of_a_file_are_shown_as_text(tmp_path: Path) -> None:
    file = tmp_path / "odd.toml"
    file.write_text(
        '[game]\nname = "nim"\n[agents]\nbase_model = { kind = "base", rating = 1 }\n'
        'random_bot = { kind = "bot", rating = 1 }\n[model]\nbase = "a\\u001b[2J\\u202eb"\n'
    )
    out = run("check", str(file))
    assert "'a\\x1b[2J\\u202eb': its size is not known here" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("arguments", [["events", "--from"], ["metrics", "--listen"]])
def test_thousands_of_digits_are_refused_in_words(arguments: list[str]) -> None:
    number = "9" * 5000
    result = CliRunner().invoke(app, [*arguments, number if arguments[0] == "events" else f"localhost:{number}"])
    assert isinstance(result.exception, SystemExit | UsageError)
