"""A trained version leaves its league as a folder, and plays elsewhere as the player that it was."""

import asyncio
import json
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from huggingface_hub import ModelCard
from typer.testing import CliRunner, Result

from league.blobs import BrokerBlobStore
from league.log.jetstream import JetStreamLog
from league.run import Run
from lifecycle.open import open_league
from lifecycle.reconfigure import render_settings
from models import adapters, load_base
from models.adapter_bundle import pack_folder
from models.adapters import LoraConfig
from schemas.config import AlarmsConfig, LeagueConfig, load_config, to_builtins
from schemas.errors import ModelError, UsageError
from schemas.events import (
    EvaluationFinished,
    EvaluationRequested,
    Event,
    GradientStepTaken,
    LeagueConfigured,
    MatchFinished,
    PolicyPublished,
    SeatResult,
)
from schemas.ids import digest
from tests.builders import gradient_step
from ui.cli import app

CONFIG = Path(__file__).parents[2] / "configs" / "nim-tiny.toml"
SEATS = ("first", "second", "third")
HOOK = "https://alarms.example/hook"


def adapter_of(folder: Path, base: Path) -> bytes:
    lora = adapters.create(load_base(base).shape, LoraConfig(16, 32.0), seed=9)
    with torch.no_grad():
        lora.flat_P.add_(0.05 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(4)))
    adapters.save(lora, folder)
    return pack_folder(folder)


def benchmark(agent: str, wins: int, games: int) -> list[Event]:
    """Played from each seat in turn; what is not won is won by the seat after."""
    name = f"{agent}-benchmark"
    matches = [f"{name}-{n}" for n in range(games)]
    asked = {"evaluation_id": name, "agent": agent, "suite": "benchmark", "opponents": ["random_bot"]}
    events: list[Event] = [EvaluationRequested(**asked, matches=matches)]  # type: ignore[arg-type]
    for n, match_id in enumerate(matches):
        mine = n % 3
        winner = mine if n < wins else (mine + 1) % 3
        seats = [
            SeatResult(k, SEATS[k], agent if k == mine else "random_bot", float(k == winner), 1 + (k != winner))
            for k in range(3)
        ]
        events.append(
            MatchFinished(
                match_id=match_id,
                game="nim",
                purpose="evaluation",
                worker="evaluator-1",
                seed=n,
                seats=seats,
                winner=winner,
                reason="end",
                length=3,
                seconds=0.1,
                evaluation_id=name,
            )
        )
    told = {"games": games, "failed": 0, "wins": wins, "mean_score": wins / games, "mean_rank": 1.5}
    return [*events, EvaluationFinished(**asked, **told)]  # type: ignore[arg-type]


def step(number: int) -> GradientStepTaken:
    return gradient_step(
        number,
        batch="b" * 64,
        matches=["base_model-benchmark-0"],
        experience_from=1,
        experience_to=1,
        accepted=1,
        metrics={"wall_s": 30.0},
    )


async def opened(folder: Path, config: LeagueConfig) -> None:
    """A league whose second version was benchmarked; the third never was."""
    run = Run(folder)
    async with run.connect("test") as client:
        history = await open_league(run, client, config, lambda text, share: None)
        data = adapter_of(folder / "adapter", run.model)
        stored = await BrokerBlobStore(client, config.name).put(data, "adapter")
        await add(history, config, stored)


def slowed(config: LeagueConfig) -> LeagueConfig:
    """As it is from the second step on."""
    trainer = msgspec.structs.replace(config.trainer, learner={**config.trainer.learner, "learning_rate": 1e-4})
    return msgspec.structs.replace(config, trainer=trainer)


async def add(history: JetStreamLog, config: LeagueConfig, adapter: str) -> None:
    events = benchmark("base_model", 1, 6)
    events.append(PolicyPublished(policy="main", version=0, adapter=adapter, parent="base_model"))
    for number in (1, 2, 3):
        parent = f"main@{number - 1}"
        events += [PolicyPublished(policy="main", version=number, adapter=adapter, parent=parent), step(number)]
        if number == 1:
            changed = to_builtins(slowed(config))
            events.append(LeagueConfigured(config=changed, config_digest="c" * 64, after=1))
    for event in [*events, *benchmark("main@2", 5, 6)]:
        await history.append(event)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "run"
    text = CONFIG.read_text().replace("sequences = 512", "sequences = 32") + f'\n[alarms]\nwebhook = "{HOOK}"\n'
    (folder.parent / "league.toml").write_text(text)
    asyncio.run(opened(folder, load_config(folder.parent / "league.toml")))
    return folder


def command(*arguments: str | Path, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, [str(part) for part in arguments], input=typed)


@pytest.fixture(scope="module")
def released(run: Path) -> Path:
    result = command("release", "--run", run, "--to", run.parent / "given")
    assert result.exit_code == 0, result.output
    return run.parent / "given"


@pytest.fixture(scope="module")
def champion(released: Path) -> Path:
    result = command("import", released, "--run", released.parent / "champion")
    assert result.exit_code == 0, result.output
    return released.parent / "champion"


def told(folder: Path) -> Any:
    return json.loads((folder / "league.json").read_text())


def test_the_newest_benchmarked_version_is_released_with_the_weights_that_the_league_stores(
    run: Path, released: Path
) -> None:
    assert told(released)["metadata"]["best_agent"] == "main@2"
    entry = told(released)["agents"]["main@2"]
    assert (
        digest(pack_folder(released / entry["path"])) == entry["adapter_digest"] == digest(pack_folder(run / "adapter"))
    )
    assert pack_folder(released / "base") == pack_folder(run / "model")


def test_the_card_has_both_shares_with_intervals_and_what_was_trained_on(released: Path) -> None:
    text = (released / "README.md").read_text()
    assert "| `random_bot` | 5 of 6 | **83.3 %** | 43.6 % to 97.0 % | `third` 1 of 2 |" in text
    assert "1 of 6, 16.7 % (3.0 % to 56.4 %)" in text
    assert "2 gradient steps on 2 trajectories, in 1.0 minutes of training" in text
    assert "league play --run champion --agents main@2" in text
    assert "`base_model` → `main@0` → `main@2`" in text


def test_the_card_has_the_metadata_that_the_hub_reads(released: Path) -> None:
    data = ModelCard.load(released / "README.md").data
    assert (data.license, data.library_name, data.base_model) == ("apache-2.0", "peft", None)


def test_the_card_tells_which_settings_were_changed_on_the_way(released: Path) -> None:
    text = (released / "README.md").read_text()
    assert "- after step 1: `trainer.learner.learning_rate` from its default to `0.0001`" in text
    assert "The settings as they were at the end and the same seed" in text


def test_settings_are_those_in_force_without_what_belongs_to_a_machine(run: Path, released: Path) -> None:
    kept, given = load_config(run.parent / "league.toml"), load_config(released / "league.toml")
    assert kept.alarms.webhook == HOOK
    assert given.alarms == AlarmsConfig()
    assert (given.game, given.trainer, given.agents, given.seed) == (
        kept.game,
        slowed(kept).trainer,
        kept.agents,
        kept.seed,
    )
    assert HOOK not in "".join(path.read_text() for path in released.glob("*.*"))
    checked = command("config", "check", released / "league.toml")
    assert checked.exit_code == 0, checked.output


def test_the_lineage_is_summed_up_by_station(released: Path) -> None:
    lineage = json.loads((released / "lineage.json").read_text())
    last = lineage["stations"][-1]
    assert (last["agent"], last["first_step"], last["last_step"], last["steps"], last["matches"]) == (
        "main@2",
        1,
        2,
        2,
        2,
    )


def test_an_imported_release_has_the_same_player_at_the_same_rating(run: Path, champion: Path) -> None:
    def asked(folder: Path, statement: str) -> Any:
        result = command("sql", statement, "--run", folder, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    adapter = "SELECT adapter FROM policies WHERE policy = 'main' AND version = 2"
    assert asked(champion, adapter) == asked(run, adapter)
    assert pack_folder(champion / "model") == pack_folder(run / "model")
    [row] = asked(champion, "SELECT agent, rating FROM leaderboard WHERE kind = 'checkpoint'")
    assert row["agent"] == "main@2"
    assert row["rating"] == told(run.parent / "given")["agents"]["main@2"]["elo"]


def test_a_person_plays_against_an_imported_release(champion: Path) -> None:
    result = command("play", "--run", champion, "--agents", "main@2", typed="1\n" * 10)
    assert result.exit_code == 0, result.output
    shown = command("sql", "SELECT agent FROM match_seats ORDER BY seat", "--run", champion, "--json")
    assert [row["agent"] for row in json.loads(shown.stdout)] == ["human", "main@2", "main@2"]


def test_who_is_no_version_of_the_policy_is_refused_with_the_names_there_are(run: Path, tmp_path: Path) -> None:
    for name in ("main@9", "random_bot", "base_model"):
        error = command("release", "--run", run, "--to", tmp_path / "new", "--agent", name).exception
        assert isinstance(error, UsageError)
        assert f"--agent {name}: no version of 'main'" in str(error)
        assert "'main@2' or 'main@3'" in str(error)
    assert list(tmp_path.iterdir()) == []


def test_a_version_that_never_joined_nor_was_measured_can_be_named(run: Path, tmp_path: Path) -> None:
    result = command("release", "--run", run, "--to", tmp_path / "new", "--agent", "main@3")
    assert result.exit_code == 0, result.output
    assert "No benchmark of this version was finished" in (tmp_path / "new" / "README.md").read_text()


def test_an_existing_folder_stays_as_it_is(run: Path, tmp_path: Path) -> None:
    error = command("release", "--run", run, "--to", tmp_path).exception
    assert isinstance(error, UsageError)
    assert f"--to {tmp_path}: exists already" in str(error)


def copied(released: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(released, tmp_path / "copy"))


def refused(folder: Path) -> str:
    result = command("import", folder, "--run", folder.parent / "new")
    assert isinstance(result.exception, ModelError), result.output
    assert [path.name for path in folder.parent.iterdir()] == ["copy"]
    return str(result.exception)


def test_a_damaged_adapter_of_a_release_is_refused(released: Path, tmp_path: Path) -> None:
    folder = copied(released, tmp_path)
    weights = folder / "adapters" / "main@2" / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-100])
    assert "agents.main@2: " in refused(folder)
    # Sound to look at, and other weights.
    weights.write_bytes(whole[:-4] + bytes(4))
    assert "damaged or edited" in refused(folder)


def test_a_base_model_that_is_damaged_or_does_not_know_the_game_is_refused(released: Path, tmp_path: Path) -> None:
    folder = copied(released, tmp_path)
    weights, words = folder / "base" / "model.safetensors", folder / "base" / "tokenizer.json"
    whole, known = weights.read_bytes(), words.read_text()
    weights.write_bytes(whole[:-100])
    assert "not a base model for nim" in refused(folder)
    weights.write_bytes(whole[:-4] + bytes(4))
    assert "damaged or edited" in refused(folder)
    weights.write_bytes(whole)
    words.write_text(known.replace("<move>", "<pass>"))
    assert "<move>" in refused(folder)
    words.unlink()
    assert "tokenizer.json missing" in refused(folder)
    shutil.rmtree(folder / "base")
    assert "base: no such folder" in refused(folder)


def test_a_folder_without_a_registry_is_no_release(tmp_path: Path) -> None:
    error = command("import", tmp_path, "--run", tmp_path / "new").exception
    assert isinstance(error, UsageError)
    assert "expected a league.json" in str(error)


@pytest.mark.parametrize("name", ["diplomacy-cpu-strong", "nim-roles", "debate", "simpletak"])
def test_settings_written_as_toml_read_as_the_same(name: str) -> None:
    config = load_config(CONFIG.parent / f"{name}.toml")
    assert LeagueConfig is type(config)
    text = render_settings(config)
    assert tomllib.loads(text)["name"] == config.name


def test_hostile_names_of_settings_stay_text(tmp_path: Path) -> None:
    odd = 'a"]\n[x]\x7f\\'
    text = CONFIG.read_text() + f"\n[tracker]\nsinks = [{{ name = 'jsonl', settings = {{ {json.dumps(odd)} = 1 }} }}]\n"
    text = text.replace("\x7f", "\\u007f")
    (tmp_path / "odd.toml").write_text(text)
    config = load_config(tmp_path / "odd.toml")
    assert list(tomllib.loads(render_settings(config))["tracker"]["sinks"][0]["settings"]) == [odd]


@pytest.mark.slow
def test_a_league_that_trained_is_released_with_a_game_of_its_benchmark(
    league_up: Callable[[Path, Path], Any], tmp_path: Path
) -> None:
    league_up(tmp_path / "run", CONFIG).finish()
    result = command("release", "--run", tmp_path / "run", "--to", tmp_path / "given", "--json")
    assert result.exit_code == 0, result.output
    made = json.loads(result.stdout)
    assert made["agent"] == "main@3"
    assert sum(made["bytes"].values()) < 1_000_000
    assert "main@3" in (tmp_path / "given" / "games" / "1.txt").read_text()
    text = (tmp_path / "given" / "README.md").read_text()
    assert "3 gradient steps on 24 trajectories" in text
    assert "[`games/1.html`](games/1.html)" in text
    assert "eval-main-3-benchmark" in (tmp_path / "given" / "games" / "1.html").read_text()
    imported = command("import", tmp_path / "given", "--run", tmp_path / "champion")
    assert imported.exit_code == 0, imported.output
    assert "1 of these with their adapters" in imported.stdout


def test_what_a_releases_settings_reach_is_shown_left_off_and_recorded(released: Path, tmp_path: Path) -> None:
    folder = copied(released, tmp_path)
    with (folder / "league.toml").open("a") as settings:
        settings.write('\n[agents.gpt]\nkind = "remote"\n[agents.gpt.remote]\nurl = "https://attacker.example/v1"\n')
        settings.write('model = "m"\nkey_variable = "SECRET"\n')
    result = command("import", folder, "--run", tmp_path / "new")
    assert "left off: agents.gpt, which sends prompts to https://attacker.example/v1" in result.output
    assert "the environment variable SECRET; to take it: --trust agents.gpt" in result.output
    shown = command("events", "--json", "--type", "HistoryImported", "--run", tmp_path / "new")
    [event] = [json.loads(line)["event"] for line in shown.stdout.splitlines()]
    assert (event["trusted"], list(event["left_off"])) == ([], ["agents.gpt"])
    assert "gpt" not in command("sql", "SELECT config->'agents' FROM configuration", "--run", tmp_path / "new").output
    trusted = command("import", folder, "--run", tmp_path / "other", "--trust", "agents.gpt", "--json")
    assert json.loads(trusted.stdout)["left_off"] == {}
    shown = command("events", "--json", "--type", "HistoryImported", "--run", tmp_path / "other")
    assert json.loads(shown.stdout)["event"]["trusted"] == ["agents.gpt"]

    # Its settings file by itself is a stranger's too; the same text elsewhere is the user's word.
    def opened(run: str, settings: Path, *trust: str) -> Result:
        return command("up", "--no-workers", "--config", settings, "--run", tmp_path / run, *trust)

    alone = opened("alone", folder / "league.toml")
    assert "left off: agents.gpt, which sends prompts to https://attacker.example/v1" in alone.output
    assert "left off" not in opened("named", folder / "league.toml", "--trust", "agents.gpt").output
    shutil.copy(folder / "league.toml", tmp_path / "mine.toml")
    assert "left off" not in opened("mine", tmp_path / "mine.toml").output
    refused = opened("mine", tmp_path / "mine.toml", "--trust", "agents.gpt")
    assert isinstance(refused.exception, UsageError)
    assert "expected it with a release's own settings" in str(refused.exception)
    taken = command("import", released, "--config", folder / "league.toml", "--run", tmp_path / "borrowed")
    assert "left off: agents.gpt, which sends prompts to https://attacker.example/v1" in taken.output
    own = command("import", released, "--config", tmp_path / "mine.toml", "--run", tmp_path / "owned")
    assert "left off" not in own.output
    for run, has in (("alone", False), ("named", True), ("mine", True), ("borrowed", False), ("owned", True)):
        found = command("sql", "SELECT config->'agents' FROM configuration", "--run", tmp_path / run).output
        assert ("gpt" in found) == has


def test_files_of_a_release_that_would_fill_disk_or_memory_or_lead_elsewhere_are_refused(
    released: Path, tmp_path: Path
) -> None:
    folder = copied(released, tmp_path)

    def why() -> str:
        result = command("import", folder, "--run", tmp_path / "new")
        assert isinstance(result.exception, ModelError | UsageError), result.output
        assert [path.name for path in tmp_path.iterdir()] == ["copy"]
        assert "/tmp/tmp" not in str(result.exception)
        return str(result.exception)

    registry, shape = folder / "league.json", folder / "base" / "config.json"
    adapter = folder / "adapters" / "main@2" / "adapter_model.safetensors"
    for path, words in ((adapter, "are on the disk"), (registry, "expected at most"), (shape, "expected at most")):
        whole = path.read_bytes()
        with path.open("r+b") as file:
            file.truncate(10**12)
        assert words in why()
        path.write_bytes(whole)
    whole = shape.read_text()
    shape.write_text(whole.replace('"num_hidden_layers": ', '"num_hidden_layers": 1000000000'))
    assert "Expected `int` <= 10000" in why()
    shape.write_text(whole)
    told = registry.read_text()
    for elsewhere in ("../../given/adapters/main@2", "/etc"):
        registry.write_text(told.replace("adapters/main@2", elsewhere))
        assert "expected a file in the folder of the registry" in why()
    registry.write_text(told)
    weights = adapter.read_bytes()
    adapter.unlink()
    (tmp_path.parent / "secret").write_bytes(weights)
    adapter.symlink_to(tmp_path.parent / "secret")
    assert "expected a file in the folder of the registry" in why()
