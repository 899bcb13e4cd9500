"""SmolLM2 as a league uses it: what it is asked and says, what it learns from, and what comes out of a league."""

import asyncio
import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

import arena.games
import league as league_package
from arena.constraints.token_walk import ListConstraint
from arena.enumerable import find_mentioned_move
from arena.exploitability import GameTree, PolicyTable
from arena.games import game_names, make_game
from benchmarks.exploitability import make_policy, sample_policy
from inference.base import Generation, Request, SamplingParameters
from inference.local import LocalBackend, LocalConfig
from league.run import Run
from lifecycle.league_models import export_adapter, export_merged_model
from models import Tokenizer
from models.adapters import WEIGHTS_FILE, read_matrices
from models.decoder import Decoder
from models.gguf import import_gguf
from models.hf import merge_adapter
from players.policy import BackendClient, PolicyPlayer
from players.prompt_builder import make_prompter
from players.word_replies import CORRECTIONS
from schemas.config import BufferConfig, Plugin, PromptsConfig, TrainerConfig, convert
from schemas.episodes import Message
from schemas.errors import ConfigError, ModelError
from schemas.metrics import REPLY_FAULTS
from schemas.trajectories import ModelCall, Trajectory
from tests.docs.test_tutorial import FILES as TUTORIAL_FILES
from tests.llm.conftest import NAME
from trainer.backends import AdapterSpec, load_backend
from trainer.batch import flatten, microbatches
from trainer.buffer.buffer import TrajectoryBuffer
from trainer.learner import Learner
from trainer.learner_config import LearnerConfig
from trainer.loss_inputs import recompute_logprobs
from ui.cli import app

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "openspiel": {"game": "tic_tac_toe"},
    "pettingzoo": {"env": "classic/connect_four-v3"},
    "textarena": {"env": "KuhnPoker-v0-train"},
}
TUTORIAL = "thirteen"
GROUP = 8


@pytest.fixture(scope="session")
def tokenizer(smollm2: Path) -> Tokenizer:
    return Tokenizer(smollm2)


@pytest.fixture
def backend(smollm2: Path) -> LocalBackend:
    return LocalBackend(smollm2, LocalConfig())


def test_the_converted_model_knows_the_capital_of_france(backend: LocalBackend, tokenizer: Tokenizer) -> None:
    async def ask() -> str:
        client = BackendClient(backend, tokenizer)
        reply = await client.complete([Message("user", "What is the capital of France?")], temperature=0.01)
        await backend.close()
        return reply.text

    assert "Paris" in asyncio.run(ask())


def test_prompts_are_those_of_its_own_chat_template(smollm2: Path, tokenizer: Tokenizer) -> None:
    game = make_game("kuhn_poker", {})
    table = game.new(3)
    (seat,) = table.to_move()
    prompt = make_prompter(tokenizer, game, PromptsConfig()).make_prompt(table, seat)
    words = game.words()
    messages = [{"role": "system", "content": words.rules()}, {"role": "user", "content": words.question(table, seat)}]
    own = AutoTokenizer.from_pretrained(smollm2)
    expected = own.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert prompt.prompt_ids == list(expected)
    text = tokenizer.decode(prompt.prompt_ids)
    assert text.startswith("<|im_start|>system\nYou are playing Kuhn poker.")
    assert "Legal moves: bet, check" in text


@pytest.mark.parametrize("name", [*(name for name in game_names() if name != "diplomacy"), TUTORIAL])
def test_every_listed_game_is_asked_and_answered_in_words(
    name: str, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "pettingzoo":
        pytest.importorskip("pettingzoo")
    if name == TUTORIAL:
        file = tmp_path / "arena" / "games" / "thirteen.py"
        file.parent.mkdir(parents=True)
        file.write_text(TUTORIAL_FILES["plugins/arena/games/thirteen.py"])
        monkeypatch.setattr(arena.games, "__path__", [*arena.games.__path__])
        monkeypatch.setenv("LEAGUE_PLUGINS", str(tmp_path))
    game = make_game(name, SETTINGS.get(name, {}))
    table, rng = game.new(1), Random(1)
    while (moving := table.to_move()) and table.clock < 3:
        for seat in moving:
            prompt = make_prompter(tokenizer, game, PromptsConfig()).make_prompt(table, seat)
            asked = [f"system\n{game.words().rules()}", f"user\n{game.words().question(table, seat)}", "assistant\n"]
            assert tokenizer.decode(prompt.prompt_ids) == "<|im_end|>\n".join(f"<|im_start|>{part}" for part in asked)
            action = table.random_action(seat, rng)
            reply = prompt.encode_action(action)
            assert prompt.parse_reply(reply, True, rng).action == action
            place = prompt.constraint
            assert place is not None
            for token in reply:
                place = place.advance(token)
            assert not place.allowed(), "nothing follows the end of the turn"
        table.apply({seat: table.random_action(seat, rng) for seat in moving})


@pytest.mark.parametrize(
    ("reply", "move", "fault", "formatted"),
    [
        ("I hold the king. MOVE: bet", ("bet",), "", True),
        ("I bet", ("bet",), "", False),
        ("MOVE: call", None, "illegal", True),
        ("I cannot decide.", None, "unparsable", False),
        (" ", None, "empty", False),
        # It has no mark that ends a thought; those that it writes are text.
        ("<think>MOVE: check?</think> MOVE: bet", ("bet",), "", True),
        ("<think>MOVE: bet", None, "empty", False),
    ],
)
def test_each_fault_of_a_free_reply_is_told_from_the_others(
    reply: str, move: tuple[str] | None, fault: str, formatted: bool, tokenizer: Tokenizer
) -> None:
    game = make_game("kuhn_poker", {"shuffle": False})
    question = make_prompter(tokenizer, game, convert({"reply": "free"}, PromptsConfig, "")).make_prompt(game.new(0), 0)
    found = question.parse_reply(tokenizer.encode_text(f"{reply}<|im_end|>"), True, Random(0))
    assert (found.fault, found.formatted) == (fault, formatted)
    assert move is None or found.action == move
    cut = question.parse_reply(tokenizer.encode_text(reply), False, Random(0))
    assert (cut.fault, cut.formatted) == ("" if formatted and not fault else "truncated", False)


def test_thinking_is_refused_for_a_model_that_cannot_end_a_thought(tokenizer: Tokenizer) -> None:
    with pytest.raises(ModelError, match="has no token '</think>', and its chat template has no switch"):
        make_prompter(tokenizer, make_game("nim", {}), convert({"thinking": True, "reply": "free"}, PromptsConfig, ""))


def play_kuhn(backend: LocalBackend, tokenizer: Tokenizer, config: PromptsConfig, games: int) -> list[PolicyPlayer]:
    game = make_game("kuhn_poker", {})
    prompter = make_prompter(tokenizer, game, config)

    async def play(seed: int) -> list[PolicyPlayer]:
        table = game.new(seed)
        players = [PolicyPlayer(backend, prompter, lambda: (0, None), SamplingParameters()) for _ in range(2)]
        while moving := table.to_move():
            table.apply({seat: await players[seat].act(table, seat, seed * 10 + table.clock) for seat in moving})
        return players

    async def play_all() -> list[PolicyPlayer]:
        pairs = await asyncio.gather(*(play(seed) for seed in range(games)))
        await backend.close()
        return [player for pair in pairs for player in pair]

    return asyncio.run(play_all())


def in_order(players: list[PolicyPlayer]) -> list[ModelCall]:
    """All model calls by their clock, as in one trajectory."""
    return sorted((call for player in players for call in player.model_calls), key=lambda call: call.clock)


@pytest.mark.parametrize("reply", ["constrained", "free"])
def test_sampler_and_learner_agree(reply: str, backend: LocalBackend, tokenizer: Tokenizer, smollm2: Path) -> None:
    config = convert({"reply": reply, "reply_tokens": 12, "invalid": "random"}, PromptsConfig, "prompts")
    players = play_kuhn(backend, tokenizer, config, 3)
    calls = in_order(players)
    learner_W, recorded_W = recompute_logprobs(Decoder.load(smollm2), None, calls)
    np.testing.assert_allclose(learner_W, recorded_W, atol=1e-4)
    if reply == "free":
        for player in players:
            faults = Counter(call.fault for call in player.model_calls)
            assert all(player.metrics()[f"reply_{fault}"] == faults[fault] for fault in REPLY_FAULTS)
            assert all(call.truncated for call in player.model_calls if call.fault == "truncated")
            assert all(bool(call.fault) == call.invalid for call in player.model_calls)


class Helped(LocalBackend):
    """A real backend that keeps its completions by prompt; those of long prompts are, every other time, legal moves."""

    def __init__(self, folder: Path, choices: ListConstraint, longest: int) -> None:
        super().__init__(folder, LocalConfig())
        self.choices, self.longest = choices, longest
        self.completed: list[tuple[list[int], list[int]]] = []

    async def generate(self, request: Request) -> Generation:
        if len(request.prompt_ids) > self.longest and len(self.completed) % 2:
            request = msgspec.structs.replace(request, constraint=self.choices)
        self.completed.append((list(request.prompt_ids), reply := []))
        generation = await super().generate(request)
        reply += generation.completion_ids
        return generation


def test_a_second_question_says_what_was_wrong_and_its_move_is_played(smollm2: Path, tokenizer: Tokenizer) -> None:
    game = make_game("kuhn_poker", {"shuffle": False})
    table = game.new(0)
    settings = {"reply": "free", "reply_tokens": 8, "invalid": "random", "second_question": True}
    prompter = make_prompter(tokenizer, game, convert(settings, PromptsConfig, "prompts"))
    first = prompter.make_prompt(table, 0).prompt_ids
    choices = [tokenizer.encode_text(f"{reply}<|im_end|>") for reply in game.words().replies(table, 0)]
    backend = Helped(smollm2, ListConstraint(choices), len(first))
    players = [PolicyPlayer(backend, prompter, lambda: (0, None), SamplingParameters()) for _ in range(12)]

    async def decide() -> None:
        await asyncio.gather(*(player.act(table, 0, seed) for seed, player in enumerate(players)))
        await backend.close()

    asyncio.run(decide())
    asked = [pair for player in players for pair in zip(player.model_calls, player.notes, strict=True) if pair[0].fault]
    assert len(backend.completed) == len(players) + len(asked)
    helped = 0
    for call, note in asked:
        assert call.prompt_ids == first
        said = tokenizer.decode(call.completion_ids).removesuffix("<|im_end|>").strip()
        again = f"{tokenizer.decode(first)}{said}<|im_end|>\n<|im_start|>user\n{CORRECTIONS[call.fault]}\nYou are P1."
        prompts = [tokenizer.decode(prompt) for prompt, reply in backend.completed if reply == note.second_ids]
        assert any(prompt.startswith(again) for prompt in prompts)
        # Of a reply that was cut off, a mere mention of a move is not the answer.
        ended = note.second_ids[-1] in tokenizer.ends
        move = find_mentioned_move(tokenizer.decode(note.second_ids), note.legal) if ended else None
        assert note.move == move if move else note.move in note.legal
        helped += move is not None
    assert 0 < helped < len(asked)
    assert sum(player.metrics()["reply_filled"] for player in players) == len(asked) - helped
    # What is trained on are the first replies, as they were sampled.
    learner_W, recorded_W = recompute_logprobs(Decoder.load(smollm2), None, in_order(players))
    np.testing.assert_allclose(learner_W, recorded_W, atol=1e-4)


def test_a_game_whose_calls_are_trained_on_in_two_batches_counts_once_in_the_baselines(
    backend: LocalBackend, tokenizer: Tokenizer, smollm2: Path
) -> None:
    calls = in_order(play_kuhn(backend, tokenizer, PromptsConfig(), 2))[:4]
    buffer = BufferConfig(level="step", steps_per_batch=2)
    config = TrainerConfig(
        rollouts_per_step=1, buffer=buffer, reward=Plugin("outcome"), advantage=Plugin("rae"), loss=Plugin("reinforce")
    )
    waiting = TrajectoryBuffer(config, seed=1)
    waiting.add(1, Trajectory("m", "kuhn_poker", "main", 0, "P1", "P1", calls, calls[-1].clock, 1.0, 1.0, 1), [])
    adapter = load_backend(Plugin("native"), smollm2, "cpu", "float32").new_adapter(AdapterSpec(4, 8.0, ()), seed=1)
    learner, remembered = Learner(adapter, config, seed=5), []
    for number in (1, 2):
        drawn = waiting.draw_batch(number, number - 1)
        assert learner.step([one.trainable_trajectory for one in drawn]).sequences == 2
        waiting.settle_batch(drawn, [], [])
        remembered.append(learner.memory.baselines)
    assert remembered[0]
    assert remembered[1] == remembered[0]


def test_config_check_says_with_which_settings_it_learns(smollm2: Path, tmp_path: Path) -> None:
    file = tmp_path / "league.toml"
    file.write_text(f'game = {{ name = "kuhn_poker" }}\nmodel = {{ base = "{NAME}" }}\n[trainer]\nreward = "outcome"')
    checked = CliRunner().invoke(app, ["config", "check", str(file)])
    assert "learning rate 0.0001, 1 epoch, one update per epoch: pretrained model" in checked.output


@pytest.mark.parametrize("backend_name", ["native", "peft"])
def test_shared_beginnings_change_no_loss_and_no_gradient(
    backend_name: str, backend: LocalBackend, tokenizer: Tokenizer, smollm2: Path
) -> None:
    players = play_kuhn(backend, tokenizer, PromptsConfig(), 6)
    calls = in_order(players)
    rollout = Trajectory("m", "kuhn_poker", "main", 0, "P1", "P1", calls, calls[-1].clock, 1.0, 1.0, 1)
    batch = flatten([rollout], [np.linspace(-1, 1, len(calls))])
    loaded = load_backend(Plugin(backend_name), smollm2, "cpu", "float32")
    found = {}
    for layout in ("prefix_tree", "rectangles"):
        adapter = loaded.new_adapter(AdapterSpec(4, 8.0, ("q_proj", "down_proj")), seed=1)
        (parameters,) = adapter.make_optimizer(LearnerConfig()).weights
        with torch.no_grad():
            parameters += 0.01 * torch.randn(parameters.shape, generator=torch.Generator().manual_seed(3))
        forward, logprob_W, cells = adapter.begin(LearnerConfig(layout=layout)), torch.zeros(len(batch.position_W)), 0
        for chunk in microbatches(batch, np.arange(len(batch)), 2048, torch.device("cpu"), layout):
            terms = forward.loss_inputs(chunk)
            torch.autograd.backward((terms.logprob_W * chunk.advantage_W).sum())
            logprob_W[torch.from_numpy(chunk.branch_W)] = terms.logprob_W.detach()
            cells += chunk.ids_BL.numel()
        forward.backward()
        found[layout] = logprob_W, parameters.grad.clone(), cells
    for shared, separate in zip(found["prefix_tree"][:2], found["rectangles"][:2], strict=True):
        torch.testing.assert_close(shared, separate, atol=1e-5, rtol=0)
    assert float(found["rectangles"][1].abs().max()) > 0.1, "gradients of which that is little"
    assert found["prefix_tree"][2] * 3 < found["rectangles"][2]


@pytest.fixture(scope="module")
def run(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two gradient steps of a league of SmolLM2 on groups of matches, with a checkpoint."""
    folder = tmp_path_factory.mktemp("llm")
    text = (ROOT / "configs" / "smollm2-kuhn.toml").read_text()
    for old, new in (
        ("steps = 50", "steps = 2"),
        ("rollouts_per_step = 512", "rollouts_per_step = 16"),
        ("benchmark_games = 210", "benchmark_games = 8"),
        ("gatekeeper_games = 10", "gatekeeper_games = 2"),
        ("recent_every = 5", "recent_every = 1"),
        ("games_in_flight = 256", f"games_in_flight = 256\ngroup_size = {GROUP}"),
        ('"anchor_state"', '"group_relative"'),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "league.toml").write_text(text)
    league_package.up(folder / "league.toml", folder / "run")
    return Run(folder / "run")


def test_a_league_of_it_trains_and_replays_identically(run: Run) -> None:
    command = [sys.executable, "-m", "ui", "replay", "--verify", "--run", str(run.folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    reader = league_package.open(run.folder)
    rows = reader.sql("SELECT step, metrics['sampler_gap'] AS gap FROM gradient_steps ORDER BY step")
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["gap"] < 1e-4 for row in rows)


def test_matches_of_one_start_seat_and_line_up_are_compared_and_have_advantages(run: Run) -> None:
    rows = league_package.open(run.folder).sql(
        "SELECT match_id, step, seat, opponents, prompt, advantage FROM decisions "
        "WHERE outcome = 'trained' AND call = 0"
    )
    groups: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        worker, _, index = row["match_id"].rpartition("-")
        groups[worker, int(index) // GROUP].append(row)
    assert [len(members) for members in groups.values()] == [GROUP] * 4
    for members in groups.values():
        assert len({(row["step"], row["seat"], *row["opponents"]) for row in members}) == 1
        # Whoever answers a move may be asked two ways.
        assert len({row["prompt"] for row in members}) <= 1 + members[0]["seat"]
        assert sum(row["advantage"] for row in members) == pytest.approx(0, abs=1e-5)
    assert any(row["advantage"] for row in rows)


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_its_adapter_works_in_plain_peft_and_merged(run: Run, smollm2: Path, tmp_path: Path) -> None:
    from peft import AutoPeftModelForCausalLM

    asyncio.run(export_adapter(run, "main@2", tmp_path / "adapter"))
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert Path(config["base_model_name_or_path"]) == smollm2
    asyncio.run(export_merged_model(run, "main@2", tmp_path / "exported"))
    # Two steps move the weights by less than bfloat16 rounds most of them: this many would not.
    weights = load_file(tmp_path / "adapter" / WEIGHTS_FILE)
    save_file({n: w * (50 if "lora_B" in n else 1) for n, w in weights.items()}, tmp_path / "adapter" / WEIGHTS_FILE)
    merge_adapter(smollm2, tmp_path / "adapter", tmp_path / "merged")
    before, after = (load_file(folder / "model.safetensors") for folder in (smollm2, tmp_path / "exported"))
    changed = {name for name, weight in before.items() if not torch.equal(weight, after[name])}
    assert changed == {
        f"{name.removeprefix('base_model.model.')}.weight" for name in read_matrices(tmp_path / "adapter")
    }
    ids = torch.tensor([AutoTokenizer.from_pretrained(smollm2).encode("The king bets and the jack")])
    with torch.no_grad():
        base = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)(ids).logits
        adapted = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter", dtype=torch.float32)(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)(ids).logits
    # The merged weights are rounded to the base's bfloat16.
    assert float((merged - adapted).norm()) < 0.2 * float((adapted - base).norm())


def test_files_that_are_no_readable_gguf_are_refused(smollm2: Path, tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "cut.gguf").write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(ModelError, match="not a GGUF file: it begins with b'hell'"):
        import_gguf(tmp_path / "text.gguf", tmp_path / "out")
    with pytest.raises(ModelError, match="transformers cannot read it"):
        import_gguf(tmp_path / "cut.gguf", tmp_path / "out")
    with pytest.raises(ModelError, match="no such file"):
        import_gguf(tmp_path / "none.gguf", tmp_path / "out")
    with pytest.raises(ModelError, match="exists already"):
        import_gguf(tmp_path / "text.gguf", smollm2)
    assert not (tmp_path / "out").exists()


def test_what_diplomacy_needs_of_a_language_model_is_said(tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=r"cannot list its legal replies in words.*egocentric"):
        make_prompter(tokenizer, make_game("diplomacy", {}), PromptsConfig())


def test_sampled_replies_are_as_exploitable_as_their_probabilities(
    smollm2: Path, backend: LocalBackend, tokenizer: Tokenizer
) -> None:
    game = make_game("kuhn_poker", {"shuffle": False})
    prompter, tree = make_prompter(tokenizer, game, PromptsConfig()), GameTree(game)

    async def sample() -> tuple[PolicyTable, str]:
        sampled = await sample_policy(backend, None, prompter, tree, samples=100)
        await backend.close()
        return sampled

    exact = make_policy(Decoder.load(smollm2), None, prompter, tree)
    sampled, described = asyncio.run(sample())
    assert "legal 100.0%  well formed 100.0%" in described
    # Five standard errors of a share of one half.
    assert all(abs(np.subtract(sampled[key], exact[key])).max() < 0.25 for key in exact)
    assert tree.exploitability(sampled) == pytest.approx(tree.exploitability(exact), abs=0.1)
