"""``trainer.backend = "tinker"``: the steps of ``native`` on a server process that speaks the Tinker API."""

import contextlib
import gc
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from msgspec.structs import replace

from arena.environments import make_environment
from models import BaseShape, make_base
from schemas.config import Plugin, TrainerConfig
from schemas.errors import ConfigError, ModelError
from schemas.events import EvaluationFinished, GradientStepTaken, WorkerJoined
from schemas.numbers import wilson_interval
from schemas.trajectories import Trajectory
from tests.builders import model_call
from tests.integration.conftest import League
from trainer.backends import AdapterSpec, LearnerBackend, load_backend
from trainer.backends import tinker as tinker_backend
from trainer.learner import Learner
from trainer.losses import LossInputs, LossValue

ROOT = Path(__file__).parents[3]
SPEC = AdapterSpec(rank=4, alpha=32.0, targets=())
pytest.importorskip("tinker", reason="the extra 'tinker'")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


NIM = {"seats": 2, "heaps": [3]}
LEAGUE = """
name = "nim"
seed = 3
game = {{ name = "nim", settings = {{ seats = 2, heaps = [3] }} }}

[agents]
base_model = {{ kind = "base", rating = 1000.0, baseline = true }}
random_bot = {{ kind = "bot", rating = 800.0, baseline = true }}

[model]
base = "{base}"
lora_rank = 8
lora_alpha = 32.0

[rollout]
games_in_flight = 16

[evaluation]
every = 50
gatekeeper_games = 4
benchmark_games = 160

[trainer]
backend = {{ name = "tinker", settings = {{ base_model = "{base}", url = "{url}" }} }}
rollouts_per_step = 24
reward = "outcome"
advantage = "leave_one_out"
learner = {{ learning_rate = 3e-2, minibatch_sequences = 40 }}

[stop]
steps = {steps}
"""
STEPS = 24


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("model") / "base", [f"w{number}" for number in range(40)])


@pytest.fixture(scope="module")
def url(base: Path) -> Iterator[str]:
    with serve(base) as address:
        yield address


@contextlib.contextmanager
def serve(base: Path) -> Iterator[str]:
    """The address of a server of that base model, until the block ends."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, str(ROOT / "tests" / "tinker_server.py"), str(base)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield next(found[0] for line in process.stdout if (found := re.search(r"http://[\d.]+:\d+", line)))
        finally:
            process.kill()


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TINKER_API_KEY", "tml-test")
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    yield
    # The client leaves a connection open; it is collected here, where its warning is no error.
    gc.collect()


@pytest.mark.slow
def test_a_league_learns_on_the_server_and_goes_on_after_its_trainer_was_killed(tmp_path: Path) -> None:
    spec: Any = make_environment("nim", NIM)
    made = make_base(tmp_path / "base", spec.text().vocabulary(), BaseShape(max_positions=256), seed=1)
    with serve(made) as address, contextlib.ExitStack() as stack:
        (tmp_path / "league.toml").write_text(LEAGUE.format(base=made, url=address, steps=STEPS))
        league = League(tmp_path / "run", tmp_path / "league.toml")
        stack.callback(league.end)
        league.wait_for_steps(3)
        for process in psutil.Process(league.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if {"worker", "trainer"} <= set(process.cmdline()):
                    process.kill()
        out, _ = league.finish(3600)
    assert "identical" in out
    events = [recorded.event for recorded in league.history()]
    assert [event.step for event in events if isinstance(event, GradientStepTaken)] == list(range(1, STEPS + 1))
    assert sum(isinstance(event, WorkerJoined) and event.role == "trainer" for event in events) >= 2
    results = {
        event.agent: wilson_interval(event.wins, event.games)
        for event in events
        if isinstance(event, EvaluationFinished) and event.suite == "benchmark"
    }
    # Chance is a half: the random bot sits in the other seat.
    assert results["base_model"][0] < 0.5, results
    assert results[f"main@{STEPS}"][0] > 0.55, results


def trajectories(seed: int = 0, free: bool = False) -> list[Trajectory]:
    """Rollouts of two calls with choices over lists of several lengths, or over the whole vocabulary."""
    rng, rollouts = np.random.default_rng(seed), []
    for number in range(4):
        calls = []
        for clock in range(2):
            prompt, completion = (rng.integers(3, 40, size).tolist() for size in (int(rng.integers(3, 12)), 6))
            allowed = [sorted({completion[at], *rng.integers(3, 40, most).tolist()}) for at, most in ((1, 2), (3, 6))]
            call = model_call(
                prompt_ids=prompt,
                completion_ids=completion,
                branches=[1, 3, 5] if free else [1, 3],
                logprobs=[-1.2, -1.4, -2.6] if free else [-1.2, -1.4],
                allowed=[*allowed, []] if free else allowed,
                temperature=1.0 if free else 0.7,
                version=0,
                clock=clock,
                progress=float(number % 3),
            )
            calls.append(call)
        rollouts.append(Trajectory(f"m{number}", "game", "main", 0, "A", "A", calls, 2, float(number), number / 3, 1))
    return rollouts


def load(url: str, base: Path, **settings: Any) -> LearnerBackend:
    plugin = Plugin("tinker", {"base_model": str(base), "url": url} | settings)
    return load_backend(plugin, base, "cpu", "float32")


def learner(backend: LearnerBackend, loss: dict[str, Any]) -> Learner:
    table = {"epochs": 1, "minibatch_sequences": 4, "rectangle_tokens": 64, "warmup_updates": 3}
    config = TrainerConfig(advantage=Plugin("constant"), loss=Plugin("ppo_clip", loss), learner=table)
    return Learner(backend.new_adapter(SPEC, 7), config, seed=5)


def flat(url: str, trained: Learner) -> torch.Tensor:
    """The weights on the server."""
    with urllib.request.urlopen(f"{url}/test/flat/{trained.adapter.client.model_id}") as response:
        return torch.frombuffer(bytearray(response.read()), dtype=torch.float32)


@pytest.mark.parametrize(
    ("free", "settings"), [(False, {}), (True, {}), (True, {"wide_targets": False, "export": "archive"})]
)
def test_steps_are_those_of_the_native_decoder(
    url: str, base: Path, tmp_path: Path, free: bool, settings: dict[str, Any]
) -> None:
    loss = {"entropy": 0.0} if free else {"entropy": 0.02, "kl": {"weight": 0.1}}
    native = learner(load_backend(Plugin("native"), base, "cpu", "float32"), loss)
    remote = learner(load(url, base, **settings), loss)
    assert torch.equal(flat(url, remote), native.adapter.flat_P), "equal seeds draw equal adapters"
    for seed in range(3):
        own, other = (one.step(trajectories(seed, free)) for one in (native, remote))
        assert not own.skipped + other.skipped
        assert other.loss == pytest.approx(own.loss, abs=1e-5)
        assert other.grad_norm == pytest.approx(own.grad_norm, rel=1e-4)
        if not free:
            assert other.entropy == pytest.approx(own.entropy, abs=1e-5)
    assert (flat(url, remote) - native.adapter.flat_P).abs().max() < 1e-5
    remote.save_adapter(tmp_path / "adapter", "base")
    native.load_adapter(tmp_path / "adapter", 3)
    assert torch.equal(native.adapter.flat_P, flat(url, remote)), "what was exported is what was trained"


def test_a_resumed_learner_goes_on_bit_for_bit(url: str, base: Path, tmp_path: Path) -> None:
    whole, resumed = (learner(load(url, base), {}) for _ in range(2))
    whole.step(trajectories(1))
    whole.save_state(tmp_path)
    whole.step(trajectories(2))
    resumed.load_state(tmp_path)
    resumed.step(trajectories(2))
    assert torch.equal(flat(url, whole), flat(url, resumed))
    native = learner(load_backend(Plugin("native"), base, "cpu", "float32"), {})
    with pytest.raises(ModelError, match=r"trainer\.backend|learner state"):
        native.load_state(tmp_path)


def test_a_loss_that_is_not_a_number_leaves_the_server_as_it_was(url: str, base: Path) -> None:
    one = learner(load(url, base), {})
    one.step(trajectories(1))
    before, sound, calls = flat(url, one), one._loss, []

    def breaking(terms: LossInputs) -> LossValue:
        calls.append(terms)
        value = sound(terms)
        return value._replace(loss_W=value.loss_W * torch.nan) if len(calls) > 1 else value

    one._loss = breaking
    assert one.step(trajectories(2)).skipped == "gradient norm is nan"
    assert len(calls) == 2, "the first minibatch's update was made, and taken back"
    assert torch.equal(flat(url, one), before)


def test_adapters_continue_on_the_server_and_no_others_do(url: str, base: Path, tmp_path: Path) -> None:
    trained, again = (learner(load(url, base), {}) for _ in range(2))
    trained.step(trajectories(1))
    trained.save_adapter(tmp_path / "own", "base")
    again.load_adapter(tmp_path / "own", 1)
    assert torch.equal(flat(url, again), flat(url, trained))
    (tmp_path / "own" / "tinker.json").unlink()
    with pytest.raises(ModelError, match="takes no weights from outside"):
        again.load_adapter(tmp_path / "own", 1)


def test_an_incomplete_download_is_an_error_of_the_server(
    url: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, fetch = learner(load(url, base, export="archive", wide_targets=False), {}), tinker_backend._fetch
    for size in (0, 100):
        monkeypatch.setattr(tinker_backend, "_fetch", lambda *address, size=size: fetch(*address)[:size])
        with pytest.raises(ModelError, match=r"the Tinker server, exporting the adapter: \w+"):
            trained.save_adapter(tmp_path / "cut", "base")


def test_what_the_server_cannot_do_is_refused(url: str, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match=r"making an adapter on 'elsewhere': .*no model 'elsewhere'"):
        learner(load(url, base, base_model="elsewhere"), {})
    with pytest.raises(ConfigError, match=r"trainer\.loss\.settings\.entropy"):
        learner(load(url, base), {"entropy": 0.01}).step(trajectories(0, free=True))
    warm = [replace(r, steps=[replace(call, temperature=0.5) for call in r.steps]) for r in trajectories(0, free=True)]
    with pytest.raises(ConfigError, match=r"inference\.temperature: free text was sampled at 0.5"):
        learner(load(url, base), {"entropy": 0.0}).step(warm)
    monkeypatch.delenv("TINKER_API_KEY")
    monkeypatch.setenv("HOME", str(base))
    with pytest.raises(ConfigError, match="TINKER_API_KEY"):
        load(url, base)
    monkeypatch.setitem(sys.modules, "tinker", None)
    with pytest.raises(ConfigError, match="the extra 'tinker'"):
        load(url, base)
