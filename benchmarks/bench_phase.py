"""Time of a Diplomacy phase with a model in every seat, by part, and what the prefix cache saves.

First 64 games side by side in the made language of small models, eight adapters over the seats. Then a few games with
``text = "egocentric"``, whose prompts of JSON are long, with and without ``reuse_tokens``.
"""

import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers

from arena.games import make_game
from arena.games.base import GameSpec
from arena.games.diplomacy.game import DiplomacyGame
from arena.match import play
from arena.prompts import Chat
from benchmarks.decision_parts import DecisionProfile
from benchmarks.inference_cases import CASES, adapter_names
from benchmarks.sizes import require_package, size
from inference import SamplingParameters
from inference import engine as engine_module
from inference.base import BackendStats
from inference.batch_layout import LayoutPlanner
from inference.engine import Engine
from inference.forward import ForwardPass
from inference.kv_cache import PrefixCache
from inference.local import LocalBackend, LocalConfig
from inference.sampler import sample_tokens
from inference.sequence import ActiveSequence
from models import BaseShape, make_base
from models.adapters import LoraConfig, create, save
from models.decoder import Decoder
from models.tokenizer import Tokenizer
from players import reply_formats
from players.policy import PolicyPlayer
from players.prompt_builder import TextPromptEncoder, make_constrained_prompter
from schemas.errors import GameError

GAMES, PHASES, ADAPTERS = size(64, 1), size(5, 1), size(8, 2)
LONG_GAMES, LONG_PHASES = size(3, 1), size(4, 1)
WARM_UP = size((8, 2), (1, 1))
"""Games and phases that are not counted."""
LONG_SHAPES = [
    msgspec.structs.replace(CASES[name].shape, max_positions=8192) for name in size(("tiny", "small"), ("tiny",))
]
TOKENS_KEPT = 65_536
WORDS = 2000


@contextmanager
def profile_decisions() -> Iterator[DecisionProfile]:
    """Parts of decisions, timed within the block."""
    parts = DecisionProfile()
    with ExitStack() as stack:
        for owner, function, part in (
            (DiplomacyGame, DiplomacyGame.apply, "adjudication"),
            (DiplomacyGame, DiplomacyGame.legal_orders, "legal orders"),
            (TextPromptEncoder, TextPromptEncoder.__call__, "prompts"),
            (reply_formats.PhrasePrompt, reply_formats.PhrasePrompt.parse_reply, "reading replies"),
            (LayoutPlanner, LayoutPlanner.__call__, "layout of passes"),
            (engine_module, sample_tokens, "drawing"),
            (ForwardPass, ForwardPass.__call__, lambda _, chunk: "prefill" if chunk.columns > 8 else "decode"),
            (ActiveSequence, ActiveSequence._follow_forced, "walking constraints"),
            (ActiveSequence, ActiveSequence.accept_token, "rows"),
            (ActiveSequence, ActiveSequence.__init__, "rows"),
            (PrefixCache, PrefixCache.copy_to_slots, "kept prefixes"),
            (PrefixCache, PrefixCache.store_prompts, "kept prefixes"),
            (PrefixCache, PrefixCache.find_prefix, "kept prefixes"),
            (engine_module, engine_module.should_wait_for_prefix, "kept prefixes"),
            (Engine, Engine.run_round, "rounds"),
        ):
            stack.enter_context(parts.profile(owner, function, part))
        yield parts


def _first_version(adapter: str) -> tuple[int, str]:
    return 0, adapter


async def play_games(backend: LocalBackend, folder: Path, spec: GameSpec, games: int, phases: int) -> None:
    """All seats of all games by the backend's adapters, for so many phases."""
    prompting = make_constrained_prompter(Tokenizer(folder), spec.text())
    names = adapter_names(ADAPTERS)

    async def one(seed: int) -> None:
        players = [
            PolicyPlayer(
                backend, prompting, partial(_first_version, names[(seed + seat) % ADAPTERS]), SamplingParameters()
            )
            for seat in range(7)
        ]
        try:
            await play(spec.new(seed), players, seed, max_turns=phases)
        except GameError as error:  # that it is not over is what was asked for
            if "not over" not in str(error):
                raise

    await asyncio.gather(*map(one, range(games)))


def run_games(
    backend: LocalBackend, folder: Path, spec: GameSpec, games: int, phases: int
) -> tuple[float, DecisionProfile, BackendStats]:
    """Clock seconds, parts and figures of some phases."""
    with profile_decisions() as parts:
        began = time.perf_counter()
        asyncio.run(play_games(backend, folder, spec, games, phases))
        seconds = time.perf_counter() - began
        parts.total()
    return seconds, parts, backend.stats()


def start_backend(folder: Path, **settings: Any) -> LocalBackend:
    """The engine with its adapters."""
    backend = LocalBackend(folder, LocalConfig(**settings))
    for name in adapter_names(ADAPTERS):
        backend.load_adapter(name, folder.parent / name)
    return backend


def add_adapters(folder: Path) -> None:
    """Adapters beside the base."""
    shape = Decoder.load(folder).shape
    for seed, name in enumerate(adapter_names(ADAPTERS)):
        lora = create(shape, LoraConfig(rank=16), seed)
        with torch.no_grad():
            lora.flat_P.add_(0.02 * torch.randn(lora.flat_P.shape, generator=torch.Generator().manual_seed(seed)))
        save(lora, folder.parent / name, str(folder))


def make_compact_model(folder: Path) -> tuple[Path, GameSpec]:
    """The demo's untrained model and game."""
    spec = make_game("diplomacy", {"max_year": 1905})
    base = make_base(folder / "base", list(spec.text().vocabulary()))
    add_adapters(base)
    return base, spec


def make_conversational_model(folder: Path, shape: BaseShape) -> tuple[Path, GameSpec]:
    """A model whose tokenizer knows sub-words, as those of large models do, and a game in JSON."""
    spec = make_game("diplomacy", {"text": "egocentric", "analysis": 0, "max_year": 1905})
    base = make_base(folder / "base", [f"word{index}" for index in range(WORDS - 3)], shape)
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    marks = ["<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<eos>", *marks],
        show_progress=False,
    )
    text, game = spec.text(), spec.new(0)
    assert isinstance(text, Chat)
    made.train_from_iterator(
        [message.content for seat in range(7) for message in text.messages(game, seat)] * 3, trainer
    )
    (base / "tokenizer.json").write_text(made.to_str())
    config = {"eos_token": "<eos>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (base / "tokenizer_config.json").write_text(json.dumps(config))
    add_adapters(base)
    return base, spec


def print_breakdown(seconds: float, parts: DecisionProfile, stats: BackendStats, games: int, phases: int) -> None:
    """Seconds a phase, by part."""
    print(f"{games} games, {ADAPTERS} adapters: {seconds / phases:.2f} s a phase; of each phase")
    counts = {
        "decisions": stats.requests,
        "prompt tokens": stats.prompt_tokens,
        "tokens sampled": stats.sampled_tokens,
        "forced": stats.forced_tokens,
        "passes": stats.passes,
    }
    print("  " + ", ".join(f"{count / phases:,.0f} {what}" for what, count in counts.items()))
    for part, spent in sorted(parts.seconds.items(), key=lambda item: -item[1]):
        print(f"  {part:24}{spent / phases:>9.3f} s{spent / seconds:>8.0%}")


def print_prefix_reuse(folder: Path, spec: GameSpec, kept: Sequence[int]) -> None:
    """The same long prompts with and without what was read before."""
    for reuse_tokens in kept:
        seconds, parts, stats = run_games(
            start_backend(folder, reuse_tokens=reuse_tokens), folder, spec, LONG_GAMES, LONG_PHASES
        )
        print(
            f"  reuse_tokens {reuse_tokens:>6}: {seconds / LONG_PHASES:.2f} s a phase, of it reading prompts "
            f"{parts.seconds['prefill'] / LONG_PHASES:.2f} s, keeping and copying "
            f"{parts.seconds['kept prefixes'] / LONG_PHASES:.2f} s"
        )
    length, share = stats.prompt_tokens / stats.requests, stats.cached_tokens / stats.prompt_tokens
    print(f"  {length:,.0f} tokens a prompt, {share:.0%} kept from others; {stats.cache_bytes / 2**20:.0f} MiB")


def main() -> None:
    """Measure everything and print it."""
    require_package("diplomacy")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder, spec = make_compact_model(Path(name))
        gc.freeze()  # as the league's workers do
        gc.set_threshold(50_000, 20, 20)
        run_games(start_backend(folder), folder, spec, *WARM_UP)
        print("made language:", end=" ")
        print_breakdown(*run_games(start_backend(folder), folder, spec, GAMES, PHASES), GAMES, PHASES)
    for shape in LONG_SHAPES:
        with tempfile.TemporaryDirectory() as name:
            folder, spec = make_conversational_model(Path(name), shape)
            print(f"egocentric JSON, {LONG_GAMES} games, a model of {shape.layers} layers, {shape.hidden} wide:")
            print_prefix_reuse(folder, spec, (0, TOKENS_KEPT))


if __name__ == "__main__":
    main()
