"""A league's models outside its workers: small base models cloned from a bot's play, adapters, merged agents."""

import tempfile
from collections.abc import Iterator
from itertools import chain, count, islice
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from arena.clients.improviser import ImprovisedCall, improvised_calls
from arena.environments import ArenaSpec, make_environment
from arena.games.base import GameSpec
from arena.prompts import make_template
from inference.chat_template import encode_conversation
from league.run import Run
from league.state import LeagueState
from models import BaseShape, Tokenizer, is_hub_id, make_base
from models.adapter_bundle import unpack_folder
from models.adapters import CONFIG_FILE
from models.behaviour_cloning import CloningConfig, CloningProgress, Example, ProgressCallback, clone_behaviour
from models.hf import merge_adapter
from models.make import make_text_base
from players.policy import check_writes_text, make_example
from schemas.config import LeagueConfig, PromptsConfig, convert
from schemas.errors import ModelError, UsageError, format_choices
from schemas.files import atomic_folder
from schemas.ids import derive_seed, split_agent
from workers.policy_weights import fetch_base_model, unpack_blob
from workers.progress import ProgressReporter
from workers.runtime import follow_league

_CLONING_DEFAULTS = {"sequences": 15_000, "batch": 32, "branch_weight": 5.0}
"""Cloning settings of conversational models that ``model.cloning`` overrides: replies weigh more than prompts, which
the model never has to write."""
_FAMILY = "qwen3"
_TOKENIZER_CALLS = 4_000
_SHUFFLE_BUFFER = 2_048
"""Calls from which the next one is drawn, so that an update does not see a single episode only."""


def make_conversational_model(
    folder: Path,
    spec: ArenaSpec,
    shape: BaseShape,
    cloning: CloningConfig,
    prompts: PromptsConfig,
    seed: int,
    report: ProgressCallback | None = None,
) -> Path:
    """Write a model directory that knows the form of an arena's replies and nothing else.

    Equal arguments give an equal model, on one thread of a CPU. The folder is made if missing, and must be empty. The
    model learns to write the arena's improvised play, judges' replies included; ``seed`` is that of the weights and of
    the play.

    Raises:
        EpisodeError: improvised play fails.
        ModelError: the folder is not empty, or a call is longer than the model's context.
    """
    calls = improvised_calls(spec, seed)
    first = list(islice(calls, min(_TOKENIZER_CALLS, cloning.sequences)))
    template = make_template(_FAMILY)
    texts = [text for call in first for text in (*(message.content for message in call.messages), call.reply)]
    make_text_base(folder, ["system\nuser\nassistant\n", *texts], template.marks, template.end, shape, seed)
    examples = _call_examples(folder, prompts, chain(first, calls), Random(seed), shape.max_positions)
    clone_behaviour(folder, examples, cloning, report)
    return folder


def _call_examples(
    folder: Path, prompts: PromptsConfig, calls: Iterator[ImprovisedCall], rng: Random, max_tokens: int
) -> Iterator[Example]:
    """Yield calls, mixed. Every token of a reply, the end included, is a choice among all tokens."""
    tokenizer = Tokenizer(folder)
    check_writes_text(tokenizer)
    end = [] if tokenizer.eos is None else [tokenizer.eos]
    buffer = list(islice(calls, _SHUFFLE_BUFFER))
    for following in calls:
        index = rng.randrange(len(buffer))
        call, buffer[index] = buffer[index], following
        prompt = encode_conversation(tokenizer, call.messages, prompts)
        reply = [*tokenizer.encode_text(call.reply), *end]
        if len(prompt) + len(reply) > max_tokens:
            raise ModelError(
                f"model.shape.max_positions: {max_tokens}, but a call of {call.role_id or 'a judge'} has "
                f"{len(prompt) + len(reply)} tokens; expected at least as many"
            )
        yield Example(prompt, reply, range(len(reply)), [()] * len(reply))


def make_base_model(folder: Path, config: LeagueConfig, report: ProgressReporter) -> Path:
    """Make the base model that a configuration describes; ``folder`` appears whole or not at all."""
    settings = config.model
    contest = make_environment(config.game.name, config.game.settings)
    seed = derive_seed(config.seed, "model")
    shape = convert(settings.shape, BaseShape, "model.shape")
    taught = {**_CLONING_DEFAULTS, **settings.cloning} if isinstance(contest, ArenaSpec) else settings.cloning
    cloning = convert(taught, CloningConfig, "model.cloning")

    def update(progress: CloningProgress) -> None:
        done = f"{progress.sequences:,} of {progress.total:,} examples"
        rate = f"{progress.rate:,.0f}/s, {progress.seconds_left:.0f} s left"
        report(f"teaching the base model {done} ({rate})", progress.sequences / max(progress.total, 1))

    with atomic_folder(folder) as draft:
        if isinstance(contest, ArenaSpec):
            make_conversational_model(draft, contest, shape, cloning, config.prompts, seed, update)
        else:
            make_base(draft, contest.text().vocabulary(), shape, seed)
            examples = bot_decisions(contest, Tokenizer(draft), settings.clone_bot, seed)
            clone_behaviour(draft, examples, cloning, update)
    return folder


def bot_decisions(game: GameSpec, tokenizer: Tokenizer, bot: str, seed: int) -> Iterator[Example]:
    """Yield the decisions of a bot that plays all seats, in an endless sequence of games."""
    text, player = game.text(), game.bot(bot)
    for number in count():
        play = game.new(derive_seed(seed, "cloning", number))
        rng = Random(derive_seed(seed, "cloning moves", number))
        while moving := play.to_move():
            actions = {seat: player.act(play, seat, rng) for seat in moving}
            for seat, action in actions.items():
                yield make_example(tokenizer, text, play, seat, action)
            play.apply(actions)


async def export_merged_model(run: Run, agent: str, out: Path) -> None:
    """Write an agent's adapter, merged into its base model, as a model in Hugging Face's format.

    The agent is a checkpoint or published version; the folder ``out`` is made.
    """
    async with run.open_log("merge") as history, follow_league(run, history) as context:
        adapter = _find_adapter(context.state, agent)
        base = await fetch_base_model(context)
        with tempfile.TemporaryDirectory() as temporary:
            await unpack_blob(context, adapter, Path(temporary) / "adapter")
            remote_code = bool(context.config.trainer.backend.settings.get("remote_code"))
            merge_adapter(base, Path(temporary) / "adapter", out, remote_code)


async def export_adapter(run: Run, agent: str, out: Path) -> Path:
    """Write an agent's adapter as a folder in PEFT's format, which names its base model; returns the base's folder.

    The agent is a checkpoint or published version; the folder ``out`` is made.
    """
    async with run.open_log("export") as history, follow_league(run, history) as context:
        adapter = _find_adapter(context.state, agent)
        base = await fetch_base_model(context)
        with atomic_folder(out) as draft:
            unpack_folder(await context.blobs.get(adapter), draft)
            config = msgspec.json.decode((draft / CONFIG_FILE).read_bytes(), type=dict[str, Any])
            source = context.config.model.base
            # A hub id means the same model elsewhere; a folder or a packaged model is where it lies here.
            config["base_model_name_or_path"] = source if is_hub_id(source) else str(base)
            (draft / CONFIG_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(config), indent=2))
        return base


def _find_adapter(state: LeagueState, name: str) -> str:
    agent, parsed = state.agents.get(name), split_agent(name)
    published = None if parsed is None else state.published.get(parsed[0], {}).get(parsed[1])
    adapter = agent.adapter if agent is not None else None if published is None else published.adapter
    if adapter is not None:
        return adapter
    if agent is not None:
        raise UsageError(f"{name}: an agent of kind {agent.kind!r}, without an adapter; expected a checkpoint")
    expected = format_choices(sorted(each.name for each in state.agents.values() if each.adapter is not None), name)
    raise UsageError(f"{name}: no agent or published version of that name; checkpoints are {expected}")
