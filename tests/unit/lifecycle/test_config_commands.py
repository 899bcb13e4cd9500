"""``league config init`` writes settings that a league takes; ``league config check`` says what they would start."""

import json
import tomllib
from pathlib import Path

import pytest
from msgspec import structs
from typer.testing import CliRunner

import arena.environments
from arena.environments import arena_names
from arena.games import game_names
from inference.base import backend_config, backend_settings
from lifecycle.config_checks import check_config
from lifecycle.presets import PRESETS as HARDWARE
from lifecycle.resource_estimate import estimate_resources, model_dimensions, trainer_host_memory
from schemas.config import LeagueConfig, convert, load_config
from schemas.errors import ConfigError, UsageError
from tests.described_models import describe_model
from trainer.learner_config import PRETRAINED_DEFAULTS, LearnerConfig, resolve_learner
from ui.cli import app
from ui.cli.config import _estimate_lines

PRESETS = Path(__file__).parents[3] / "configs" / "presets"


def run(*words: str, answers: str | None = None) -> str:
    result = CliRunner().invoke(app, ["config", *words], input=answers)
    if isinstance(result.exception, Exception):
        raise result.exception
    return result.stdout


def league(**tables: object) -> LeagueConfig:
    return convert(tables, LeagueConfig, "")


@pytest.mark.parametrize("hardware", HARDWARE)
def test_a_preset_with_its_own_answers_is_written_as_it_is(hardware: str, tmp_path: Path) -> None:
    run("init", str(tmp_path / "new.toml"), "--yes", "--hardware", hardware)
    assert load_config(tmp_path / "new.toml") == load_config(PRESETS / f"{hardware}.toml")


def test_every_preset_can_be_chosen() -> None:
    assert sorted(path.stem for path in PRESETS.iterdir()) == sorted(HARDWARE)


@pytest.mark.parametrize(("hardware", "size"), [("gpu-24gb", 24.0), ("gpu-80gb", 80.0), ("trainer-and-rollouts", 80.0)])
def test_presets_fit_their_gpus_with_room_to_spare(hardware: str, size: float, tmp_path: Path) -> None:
    config = load_config(PRESETS / f"{hardware}.toml")
    base = describe_model(tmp_path, config.model.base.removeprefix("Qwen/"))
    found = estimate_resources(structs.replace(config, model=structs.replace(config.model, base=base)), size)
    assert found.devices
    assert all(0.6 * size < device.taken_gb <= 0.92 * size for device in found.devices)


@pytest.mark.parametrize("game", game_names())
@pytest.mark.parametrize("hardware", ["laptop", "gpu-24gb"])
def test_every_game_can_be_begun_with(game: str, hardware: str, tmp_path: Path) -> None:
    if game in ("openspiel", "pettingzoo"):
        pytest.importorskip("pyspiel" if game == "openspiel" else "pettingzoo")
    file = tmp_path / "new.toml"
    run("init", str(file), "--yes", "--game", game, "--hardware", hardware)
    config = load_config(file)
    check_config(config)
    assert (config.game.name, config.stop.minutes) == (game, load_config(PRESETS / f"{hardware}.toml").stop.minutes)


@pytest.mark.parametrize("name", arena_names())
@pytest.mark.parametrize("hardware", ["laptop", "gpu-24gb"])
def test_every_arena_can_be_begun_with(name: str, hardware: str, tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    run("init", str(file), "--yes", "--game", name, "--hardware", hardware)
    config = load_config(file)
    assert (config.game.name, config.stop.minutes) == (name, load_config(PRESETS / f"{hardware}.toml").stop.minutes)
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


@pytest.mark.parametrize(
    ("game", "learnt"),
    [
        ("kuhn_poker", "smollm2-kuhn"),
        ("nim", "smollm2-nim"),
        ("tic_tac_toe", "smollm2-tic-tac-toe"),
        ("word_problems", "smollm2-word-problems"),
        ("leduc_poker", None),
    ],
)
def test_a_machine_without_a_gpu_is_offered_a_real_language_model_with_settings_that_it_was_seen_to_learn_from(
    game: str, learnt: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The problems' file is the package's own.
    monkeypatch.chdir(tmp_path)
    file, minutes = tmp_path / "league.toml", "" if learnt else "60"
    answers = f"laptop\n{game}\nsmollm2-135m-instruct\n{minutes}\n"
    asked = CliRunner().invoke(app, ["config", "init", str(file)], input=answers)
    assert asked.exit_code == 0, asked.output
    assert "Model (made, smollm2-135m-instruct, a folder or a hub id)" in asked.output
    config = load_config(file)
    check_config(config)
    assert (config.model.base, config.stop.minutes) == ("smollm2-135m-instruct", 60.0)
    if learnt is None:
        assert resolve_learner(config) == convert(PRETRAINED_DEFAULTS, LearnerConfig, "")
    else:
        published = load_config(PRESETS.parent / f"{learnt}.toml")
        assert config == structs.replace(published, stop=structs.replace(published.stop, minutes=60.0))
        assert f"from configs/{learnt}.toml." in file.read_text().splitlines()[0]
    gpu = CliRunner().invoke(app, ["config", "init", str(tmp_path / "gpu.toml")], input="gpu-24gb\n\n\n\n")
    assert "Model (Qwen/Qwen3-1.7B, a folder or a hub id)" in gpu.output


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
    """Resident memory of all processes of ``league up``, and of vLLM's (``docs/results.md``)."""
    for name, measured in (("diplomacy-cpu", 2.51), ("quick-start", 1.68)):
        config = load_config(PRESETS.parent / f"{name}.toml")
        assert estimate_resources(config).memory_gb == pytest.approx(measured, rel=0.1), name
    smollm2 = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    smollm2 |= {"intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(smollm2))
    config = load_config(PRESETS.parent / "smollm2-nim.toml")
    config = structs.replace(config, model=structs.replace(config.model, base=str(tmp_path)))
    assert estimate_resources(config).memory_gb == pytest.approx(10, rel=0.1)
    described = {"hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4}
    sizes = {"head_dim": 64, "intermediate_size": 1536, "vocab_size": 8003, "tie_word_embeddings": True}
    (tmp_path / "config.json").write_text(json.dumps(described | sizes))
    vllm, local = {"backend": "vllm", "servers": 1}, {"options": {"reuse_tokens": 0}}
    both, alone = (
        estimate_resources(league(model={"base": str(tmp_path)}, inference=inference)).memory_gb
        for inference in (vllm, local)
    )
    players = 0.34 + 0.33 + 2 * (0.03 * 4 - 0.15)
    assert both - alone + players == pytest.approx(3.30, rel=0.1)


def test_a_model_spread_over_several_gpus_takes_its_share_of_each(tmp_path: Path) -> None:
    options = {"tensor_parallel_size": 4, "gpu_memory_utilization": 0.5, "max_loras": 8}
    inference = {"backend": "vllm", "device": "cuda", "servers": 1, "options": options}
    base = describe_model(tmp_path, "Qwen3-14B")
    config = league(model={"base": base}, inference=inference, trainer={"device": "cpu"})
    devices = estimate_resources(config, 24.0).devices
    assert [(device.name, device.taken_gb) for device in devices] == [(f"cuda:{rank}", 12.0) for rank in range(4)]
    assert "0.5 of each of 4 GPUs, all together: 29.5 weights" in devices[0].parts[0].explanation
    shared = league(model={"base": base}, inference=inference | {"colocate": True}, trainer={"device": "cuda"})
    with pytest.raises(ConfigError, match=r"colocate: inference\.tensor_parallel_size is 4; expected 1"):
        check_config(shared)


def test_vllm_follows_constraints_by_itself_in_every_configuration_for_a_gpu() -> None:
    deployed = PRESETS.parents[1] / "deploy"
    files = [*PRESETS.rglob("*.toml"), *PRESETS.parent.glob("*.toml"), *deployed.rglob("*.toml")]
    on_gpus = {file.name: config for file in files if (config := load_config(file)).inference.backend == "vllm"}
    assert {"gpu-24gb.toml", "gpu-80gb.toml", "trainer-and-rollouts.toml", "simpletak.toml"} <= {*on_gpus}
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
        (["--model", "a\x1b[2Jb"], "--model: expected 'made' or 'smollm2-135m-instruct', a folder or a hub id"),
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
        (
            "[trainer]\nrollouts_per_step = 512\n[experience]\nmax_messages = 280",
            "trainer.rollouts_per_step: 512 trajectories would have to wait for a step; expected at most "
            "experience.max_messages, 280",
        ),
    ],
)
def test_checking_says_what_is_wrong_in_which_file(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        run("check", str(file))
    assert str(refused.value).startswith(f"{file}: ")
    assert says in str(refused.value)


def preset_of_a_folder(folder: Path, hardware: str, model: str) -> str:
    """A preset for a model whose description is on this machine."""
    text = (PRESETS / f"{hardware}.toml").read_text()
    base = describe_model(folder, model)
    (folder / "preset.toml").write_text(text.replace(f'base = "Qwen/{model}"', f'base = "{base}"'))
    return str(folder / "preset.toml")


def explained(file: str, gpu_gb: float) -> str:
    config = load_config(Path(file))
    return " ".join(" ".join(_estimate_lines(config, estimate_resources(config, gpu_gb))).split())


def test_an_estimate_tells_what_would_be_started_and_what_it_takes(tmp_path: Path) -> None:
    out = explained(preset_of_a_folder(tmp_path, "gpu-24gb", "Qwen3-1.7B"), 24.0)
    assert "1 archivist, 1 rater, 1 inference, 1 trainer, 1 evaluator, 1 rollout" in out
    assert "0.5 of the GPU: 3.4 weights (1.72 billion in bfloat16)" in out
    assert "DOES NOT FIT" not in out


def test_an_estimate_warns_of_a_gpu_that_is_too_small(tmp_path: Path) -> None:
    file = preset_of_a_folder(tmp_path, "gpu-80gb", "Qwen3-8B")
    assert "of 40.0: DOES NOT FIT" in explained(file, 40.0)
    assert estimate_resources(load_config(Path(file)), 40.0).devices[0].problems == [
        "cuda:0: 48.1 GB needed; 40.0 GB found"
    ]


def test_checking_a_preset_says_what_comes_next() -> None:
    out = run("check", str(PRESETS / "gpu-24gb.toml"), "--gpu-gb", "24")
    assert "'Qwen/Qwen3-1.7B': not on this machine" in out
    assert out.splitlines()[-1] == f"next: league up --config {PRESETS / 'gpu-24gb.toml'}"


def test_every_player_with_a_vllm_of_its_own_is_counted() -> None:
    tables = {"inference": {"backend": "vllm", "device": "cuda"}, "rollout": {"workers": 2}}
    parts = estimate_resources(league(model={"base": "Qwen/Qwen3-0.6B"}, **tables), 80.0).devices[0].parts
    assert sorted(part.what for part in parts) == ["evaluator: vLLM", "rollout: vLLM", "rollout: vLLM"]


def test_sizes_are_those_that_the_models_are_called_by(tmp_path: Path) -> None:
    billions = {}
    for name in ("0.6B", "1.7B", "4B", "8B"):
        sizes = model_dimensions(league(model={"base": describe_model(tmp_path, f"Qwen3-{name}")}))
        assert sizes is not None
        billions[name] = round(sizes.parameters / 1e9, 1)
    assert billions == {"0.6B": 0.6, "1.7B": 1.7, "4B": 4.0, "8B": 8.2}


def test_an_adapter_of_rank_16_on_all_linears_has_17_million_parameters(tmp_path: Path) -> None:
    sizes = model_dimensions(league(model={"base": describe_model(tmp_path, "Qwen3-1.7B")}))
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


def test_disk_counts_every_versions_adapter_and_the_kept_states_twice(tmp_path: Path) -> None:
    base = describe_model(tmp_path, "Qwen3-1.7B")
    tables = {"stop": {"steps": 100}, "trainer": {"rollouts_per_step": 10}, "schedule": {"recent_every": 5}}
    config = league(model={"base": base}, **tables)
    sizes = model_dimensions(config)
    assert sizes is not None
    # Every fifth version joins: its adapter and two moments are kept.
    step = 2 * sizes.adapter_parameters(16) * 4 * (1 + 3 / 5) + 10 * 1100
    found = estimate_resources(config)
    assert found.disk_gb_step == pytest.approx(step / 1e9)
    assert found.disk_gb == pytest.approx(100 * step / 1e9)


def test_a_model_of_unknown_size_is_told_as_such(tmp_path: Path) -> None:
    file = tmp_path / "new.toml"
    run("init", str(file), "--yes", "--game", "nim", "--model", "somebody/something", "--hardware", "gpu-24gb")
    assert "'somebody/something': not on this machine" in file.read_text()


def test_control_characters_of_a_file_are_shown_as_text(tmp_path: Path) -> None:
    file = tmp_path / "odd.toml"
    file.write_text(
        '[game]\nname = "nim"\n[agents]\nbase_model = { kind = "base", rating = 1 }\n'
        'random_bot = { kind = "bot", rating = 1 }\n[model]\nbase = "a\\u001b[2J\\u202eb"\n'
    )
    out = run("check", str(file))
    assert "'a\\x1b[2J\\u202eb': not on this machine" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("arguments", [["events", "--from"], ["metrics", "--listen"]])
def test_thousands_of_digits_are_refused_in_words(arguments: list[str]) -> None:
    number = "9" * 5000
    result = CliRunner().invoke(app, [*arguments, number if arguments[0] == "events" else f"localhost:{number}"])
    assert isinstance(result.exception, SystemExit | UsageError)
