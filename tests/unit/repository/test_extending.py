"""The files of ``docs/extending.md`` work as they stand there: each is put in its place and used."""

import asyncio
import importlib
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from arena import bots
from arena.clients import ScriptedClient
from arena.environments import ARENAS, ArenaSpec, make_environment
from arena.games import GAMES, make_game
from arena.games.base import GameSpec
from arena.games.contract import check_contract
from arena.match import BotPlayer, play
from league.ratings.base import SYSTEMS, Side, make_rating_system
from league.samplers import SAMPLERS, make_sampler
from schemas.config import LeagueConfig, Plugin
from schemas.episodes import EpisodeRequest
from schemas.plugins import FactoryRegistry
from tests.simulated_history import Simulation

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "extending.md").read_text()
FILES: dict[str, str] = dict(re.findall(r"^`([\w/]+\.py)`\n\n```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE))
PACKAGES = ("arena.environments", "arena.bots", "arena.games", "league.ratings", "league.samplers")


@pytest.fixture(autouse=True)
def placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every file in its package, and afterwards none of them."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    loss = importlib.import_module("trainer.losses").LOSSES
    operators = importlib.import_module("trainer.operators").OPERATORS
    registries: list[dict[str, Any]] = [registry._settings for registry in (SAMPLERS, SYSTEMS, loss, operators)]
    factories: list[FactoryRegistry[Any, Any]] = [GAMES, ARENAS, bots.BOTS]
    for path in FILES:
        for factory in factories:
            factory.forget(Path(path).stem)
    for name in (*PACKAGES, "trainer.losses", "trainer.operators"):
        package = importlib.import_module(name)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path / name.replace(".", "/"))])
    try:
        yield
    finally:
        for path in FILES:
            for registry in registries:
                registry.pop(Path(path).stem, None)
            for factory in factories:
                factory.forget(Path(path).stem)
            package_name, _, module = path.removesuffix(".py").replace("/", ".").rpartition(".")
            if sys.modules.pop(f"{package_name}.{module}", None):
                delattr(sys.modules[package_name], module)


def numbers(*said: int) -> ScriptedClient:
    return ScriptedClient(*[str(number) for number in said])


def test_each_is_one_file_under_sixty_lines() -> None:
    kinds = {path.rpartition("/")[0] for path in FILES}
    assert kinds >= {name.replace(".", "/") for name in PACKAGES} | {"trainer/losses"}
    assert {path: len(text.splitlines()) for path, text in FILES.items() if len(text.splitlines()) >= 60} == {}
    assert not [path for path in FILES if (ROOT / path).exists()], "what is shown is not there already"


def test_each_is_written_as_this_project_writes(tmp_path: Path) -> None:
    # Public docstrings are left out: the page says beside them what they would.
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), "--ignore", "D,I", *FILES],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_game_is_played_by_bots_and_in_words() -> None:
    spec = make_environment("race", {"target": 9})
    assert not isinstance(spec, ArenaSpec)
    assert list(spec.bots) == ["race_expert", "random_bot"]
    # 9 is no multiple of 4: whoever begins and knows how always wins.
    assert [_winner(spec, ["race_expert", "random_bot"], seed) for seed in range(20)] == [0] * 20
    assert {_winner(spec, ["random_bot", "random_bot"], seed) for seed in range(20)} == {0, 1}

    game = spec.new(1)
    asyncio.run(play(game, [BotPlayer(spec.bot("random_bot"))] * 2, 1))
    assert spec.replay(game.record()).save() == game.save()


def _winner(spec: GameSpec, names: Sequence[str], seed: int) -> int | None:
    return asyncio.run(play(spec.new(seed), [BotPlayer(spec.bot(name)) for name in names], seed)).winner


def test_the_game_keeps_the_contract_of_games() -> None:
    assert [finding for finding in check_contract(make_game("race", {})) if finding.found] == []


def test_the_arena_is_played_by_who_improvises_and_scored_by_seat() -> None:
    spec = make_environment("sealed_bids", {"worths": [10]})
    assert isinstance(spec, ArenaSpec)
    (request,) = spec.open(ScriptedClient("")).get_batch()
    assert request == EpisodeRequest("auction", {"Left": 10, "Right": 10})

    def score(*bids: int) -> tuple[float, ...]:
        (result,) = asyncio.run(spec.open(numbers(*bids)).generate_rollouts([request]))
        return spec.score(result)

    assert score(7, 4) == (3.0, 0.0)
    assert score(1, 12) == (0.0, -2.0)
    assert spec.improvise("Left", [], Random(1)).isdigit()


def test_the_arena_keeps_the_contract_of_arenas() -> None:
    contract = runpy.run_path(str(ROOT / "tests" / "contracts" / "test_arenas.py"))
    checks = [check for name, check in contract.items() if name.startswith("test_")]
    assert len(checks) > 5
    for check in checks:
        check("sealed_bids")


def test_the_sampler_draws_who_joined_last() -> None:
    league = Simulation(LeagueConfig(seed=3), seats=2)
    league.run(30, 2)
    standings = league.state.standings()
    joined = [agent.name for agent in standings.agents.values() if agent.kind == "checkpoint"]
    sampler = make_sampler(Plugin("newest", {"last": 2}))
    rng = Random(1)

    drawn = {pick.agent for _ in range(50) for pick in sampler.sample(standings, "main", [1], rng)}
    hero = f"main@{standings.live['main'].version}"
    assert drawn == set([name for name in joined if name != hero][-2:])
    assert sum(bucket.share for bucket in sampler.distribution(standings, "main").values()) == pytest.approx(1.0)


def test_the_rating_system_rates_a_match() -> None:
    system = make_rating_system(Plugin("rule_of_400", {"speed": 0.1}))
    after = system.update({"a": (1000.0,), "b": (1100.0,)}, [Side(("a",), 1.0), Side(("b",), 0.0)])
    assert after == {"a": (1050.0,), "b": (1050.0,)}, "a tenth of the way to 1100 + 400, and to 1000 - 400"


def test_the_operator_switches_off_whole_directions() -> None:
    torch = importlib.import_module("torch")
    operator = importlib.import_module("trainer.operators").OPERATORS.build(Plugin("deletion", {"share": 0.5}))
    parent = {"linear": (torch.ones(8, 3), torch.ones(5, 8))}
    a_RI, b_OR = operator.apply([parent], torch.Generator().manual_seed(0))["linear"]
    assert torch.equal(a_RI, parent["linear"][0])
    assert set(b_OR.sum(dim=0).tolist()) == {0.0, 5.0}


def test_the_loss_has_the_gradient_of_the_policy() -> None:
    torch = importlib.import_module("torch")
    losses = importlib.import_module("trainer.losses")
    loss = losses.LOSSES.build(Plugin("vanilla"))
    logprob = torch.tensor([-0.5, -1.0], requires_grad=True)
    terms = losses.LossInputs(
        logprob, torch.tensor([-0.1, -3.0]), torch.zeros(2), torch.tensor([2.0, -1.0]), torch.zeros(2).long(),
        torch.full((2,), 2),
    )  # fmt: skip

    value = loss(terms)
    loss.total(value.loss_W, terms, branches=2, sequences=1).backward()
    assert logprob.grad.tolist() == [-1.0, 0.5], "however far the weights have gone since"
    assert not value.clipped_W.any()
