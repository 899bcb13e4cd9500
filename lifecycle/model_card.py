"""The facts about a released version, and its model card, as Hugging Face's hub reads it.

``model_card.md.jinja`` holds the text. Names and settings are untrusted: they are rendered in code spans, with
unprintable characters escaped.
"""

import json
import shlex
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


class ReleaseVersion(msgspec.Struct, frozen=True):
    """The version to release."""

    agent: str
    version: int
    adapter: str
    """SHA-256 digest of the adapter, as the league stores it."""


class SeatShare(msgspec.Struct, frozen=True):
    """Games won from one seat."""

    seat: str
    wins: int
    games: int


class Benchmark(msgspec.Struct, frozen=True):
    """Games of an agent in one seat against one opponent in all others, each seat equally often."""

    agent: str
    opponent: str
    wins: int
    games: int
    """Number requested: a failed or voided game counts as not won."""
    failed: int
    share: float
    low: float
    """Ends of the share's 95 % Wilson interval."""
    high: float
    mean_rank: float
    worst: SeatShare | None
    matches: list[tuple[str, int]]
    """Id and sequence of the result of each match that was finished."""


class LineageSegment(msgspec.Struct, frozen=True):
    """A segment of the lineage, with totals of the gradient steps that made it."""

    agent: str
    kind: str
    reason: str
    adapter: str | None
    sequence: int | None
    first_step: int | None
    last_step: int | None
    steps: int
    skipped: int
    matches: int
    """Number of matches whose trajectories were trained on."""
    accepted: int
    stale: int
    refused: int
    voided: int
    tainted: int
    roles: dict[str, int]
    """Seats that were trained on, by role."""
    opponents: dict[str, int]
    """Seats of the most frequent other agents; those of the rest together, as ``others``."""
    origin: str = ""
    """Operator on adapters and parents that it was made of; empty for all that gradient steps made."""


class OpponentShare(msgspec.Struct, frozen=True):
    """An opponent of the released version, over all matches of the history."""

    agent: str
    games: int
    share: float
    """Share of the points between their seats, compared by score, that the released version took."""


class SettingChange(msgspec.Struct, frozen=True):
    """A setting that was changed while the policy was trained."""

    step: int
    """Number of gradient steps that the policy had taken before."""
    key: str
    before: Any
    after: Any


class ReleaseFacts(msgspec.Struct, frozen=True):
    """Input of a model card."""

    league: str
    sequence: int
    """Sequence of the newest event considered."""
    state: str
    """Digest of the league's state at ``sequence``."""
    last_event: str
    """Time of the newest event, UTC."""
    published: str
    """Time of the version's publication, UTC; empty where the history does not record it."""
    chosen: ReleaseVersion
    rating: float | None
    """Bradley–Terry rating; None without a rated match."""
    low: float | None
    """Lower end of the rating's 95 % interval."""
    high: float | None
    online: float
    """Official online rating."""
    system: str
    """Official rating system."""
    rated_games: int
    baselines: dict[str, float]
    """Official online ratings of the agents that are not versions of a policy, best first."""
    benchmarks: list[Benchmark]
    before: list[Benchmark]
    """Benchmarks of the base model."""
    segments: list[LineageSegment]
    opponents: dict[str, int]
    """Seats of other agents in the matches of all steps of the lineage, the most frequent first."""
    training_s: float
    changes: list[SettingChange]
    """Changes during the version's training, the oldest first."""
    ahead: list[OpponentShare]
    """Opponents that took more than half of the points from it, the worst first."""


class ReleaseContents(msgspec.Struct, frozen=True):
    """Contents of a release, as far as the card mentions them."""

    folder: str
    base_parameters: int | None
    """None where the release does not include the base model."""
    adapter_parameters: int | None
    rank: int
    games: list[str]
    """Files with games, relative to the folder, without suffixes."""


def render_card(facts: ReleaseFacts, config: LeagueConfig, parts: ReleaseContents) -> str:
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
        agent=shlex.quote(escape_unprintable(facts.chosen.agent)),
        before={one.opponent: one for one in facts.before},
        opponents=list(facts.opponents.items()),
        max_opponents=_MAX_OPPONENTS,
        weak=[_code_span(one.opponent) for one in facts.benchmarks if one.high < 0.5],
        ahead=[
            f"{_code_span(one.agent)} ({one.games:,} games, {_percent(one.share)})" for one in facts.ahead[:_MAX_AHEAD]
        ],
        exploiters=[_code_span(name) for name, one in config.policies.items() if one.is_exploiter],
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
