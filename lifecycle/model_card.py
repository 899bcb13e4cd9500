"""The model card of a released version, as Hugging Face's hub reads it.

``model_card.md.jinja`` holds the text; ``release_query`` gathers the facts. Names and settings are untrusted: they are
rendered in code spans, with unprintable characters escaped.
"""

import json
import shlex
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from arena.environments import ArenaSpec, make_environment
from schemas.config import LeagueConfig
from schemas.errors import escape_unprintable
from schemas.ids import derive_seed

_TEMPLATE = Path(__file__).with_suffix(".md.jinja")
_MAX_OPPONENTS = 12
_MAX_AHEAD = 6
_MAX_PROMPT_CHARS = 1_500


class ReleaseContents(msgspec.Struct, frozen=True):
    """Contents of a release, as far as the card mentions them."""

    folder: str
    base_parameters: int | None
    """Parameters of the base model; None if the release does not include it."""
    adapter_parameters: int | None
    rank: int
    games: list[str]
    """Files with games, relative to the folder, without suffixes."""


def render_card(facts: Mapping[str, Any], config: LeagueConfig, parts: ReleaseContents) -> str:
    """Render the README of a release, in Markdown."""
    from huggingface_hub import ModelCard, ModelCardData  # slow to import

    spec = make_environment(config.game.name, config.game.settings)
    to_json = partial(json.dumps, ensure_ascii=False)
    base = None if config.model.base == "made" else config.model.base
    question = None
    if not isinstance(spec, ArenaSpec) and base is None:
        text, game = spec.text(), spec.new(derive_seed(config.seed, "model card"))
        prompt = escape_unprintable(" ".join(text.prompt(game, game.to_move()[0])))
        question = {"words": len(text.vocabulary()), "text": prompt[:_MAX_PROMPT_CHARS]}
    card = ModelCard.from_template(
        ModelCardData(license="apache-2.0", library_name="peft", base_model=base, tags=["self-play", "lora"]),
        template_path=str(_TEMPLATE),
        facts=facts,
        config=config,
        parts=parts,
        is_arena=isinstance(spec, ArenaSpec),
        question=question,
        seats=0 if isinstance(spec, ArenaSpec) else len(spec.seats),
        folder=shlex.quote(escape_unprintable(parts.folder)),
        agent=shlex.quote(escape_unprintable(facts["agent"])),
        before={row["opponent"]: row for row in facts["before"]},
        opponents=list(facts["opponents"].items()),
        max_opponents=_MAX_OPPONENTS,
        weak=[_code_span(row["opponent"]) for row in facts["benchmarks"] if row["high"] < 0.5],
        ahead=[
            f"{_code_span(row['opponent'])} ({row['games']:,} games, {_percent(row['share'])})"
            for row in facts["ahead"][:_MAX_AHEAD]
        ],
        exploiters=[_code_span(name) for name, policy in config.policies.items() if policy.is_exploiter],
        code=_code_span,
        setting=lambda value: "its default" if value is None else _code_span(to_json(value)),
        json=to_json,
        number="{:,}".format,
        percent=_percent,
        join=lambda names: ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1],
    )
    return f"{card}\n"


def _code_span(text: str) -> str:
    """Render untrusted text as a code span, in which nothing is markup, in tables either."""
    return "`" + (escape_unprintable(text).replace("`", "'").replace("|", "¦") or " ") + "`"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
