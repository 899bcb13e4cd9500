"""Writes a release: a folder with one trained version, everything needed to play it, and its provenance.

``league import FOLDER`` makes a run of it. The folder appears whole or not at all.
"""

import io
import json
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from league.history.registry_import import REGISTRY_FILE, SETTINGS_FILE
from league.integrity.snapshots import load_state_at
from league.log.jetstream import JetStreamLog
from league.queries.match_text import print_match, read_transcript
from league.queries.matches import read_match_events
from league.queries.tables import open_tables
from league.queries.terminal import Console
from league.run import Run
from league.state import LeagueState
from lifecycle.branch import make_new_folder
from lifecycle.config_checks import check_config
from lifecycle.import_registry import BASE_FOLDER
from lifecycle.model_card import ReleaseContents, render_card
from lifecycle.reconfigure import render_settings
from lifecycle.release_query import ReleaseVersion, choose_version, gather_facts
from lifecycle.trust import find_reaches, trusted_settings
from models import adapters
from models.adapter_bundle import unpack_folder
from models.decoder import Decoder
from schemas.codec import SCHEMA_VERSION
from schemas.config import AlarmsConfig, LeagueConfig, TrackerConfig
from schemas.errors import ConfigError, ModelError, UsageError, escape_unprintable
from workers.progress import ProgressReporter

_OF_MACHINES = (
    *("agents.", "alarms.", "blobs.", "history.", "inference.host", "inference.urls", "model.adapter", "plugins"),
    *("tracker.", "trainer.dump"),
)
"""Beginnings of keys whose values belong to machines and persons, where they reach beyond the run's folder."""
_MAX_GAMES = 3
_GAME_WIDTH = 110
MatchRenderer = Callable[[Run, JetStreamLog, Sequence[str]], Awaitable[list[str]]]
"""Renders matches, by their ids, as HTML pages."""


class ReleaseResult(msgspec.Struct, frozen=True):
    """Summary of a finished release."""

    agent: str
    folder: str
    sequence: int
    """Sequence of the newest event that the release describes."""
    bytes: dict[str, int]
    """Size of each file, by its path in the folder."""


async def write_release(
    run: Run, version: str | None, target: Path, report: ProgressReporter, render: MatchRenderer
) -> ReleaseResult:
    """Write a release.

    ``version`` is a version of the league's main policy; by default the newest benchmarked one, else its newest
    checkpoint. The folder ``target`` must not exist.

    Raises:
        ArtifactError: the model or the adapter is missing or damaged.
        ModelError: they do not fit each other.
    """
    with make_new_folder(target, "--to") as draft:
        async with run.open_log("release") as history:
            artifacts = run.open_blob_store(history.client)
            report("reading the history", 0.0)
            async with open_tables(run, history) as tables:
                [(position,)] = await tables.query("SELECT sequence FROM position")
                state = await load_state_at(history, artifacts, position)
                chosen, config = choose_version(state, version), _released_settings(state)
                report(f"tracing where {chosen.agent} comes from", 0.2)
                facts = await gather_facts(tables, state, chosen)
            report("writing the release", 0.7)
            unpack_folder(await artifacts.get(chosen.adapter), draft / "adapters" / chosen.agent)
            kind, _, base = state.model.partition(":")
            is_made = kind == "artifact"
            if is_made:
                unpack_folder(await artifacts.get(base), draft / BASE_FOLDER)
            games = await _write_games(run, history, facts, draft, render)
        parts = _release_contents(draft, target, chosen, config, games)
        settings = (
            f"# Every setting of league {facts['league']!r} at event {facts['sequence']:,}. `league import` takes them "
            "with the\n# agents of league.json; `league up --config` trains with them from the beginning.\n"
            f"{render_settings(config)}"
        )
        _write(draft / SETTINGS_FILE, settings)
        _write_json(draft / REGISTRY_FILE, _registry_dict(facts, config, base if is_made else None))
        lineage = {"agent": chosen.agent, "opponents": facts["opponents"], "stations": facts["segments"]}
        _write_json(draft / "lineage.json", lineage)
        _write(draft / "README.md", render_card(facts, config, parts))
        files = (path for path in sorted(draft.rglob("*")) if path.is_file())
        sizes = {path.relative_to(draft).as_posix(): path.stat().st_size for path in files}
    return ReleaseResult(chosen.agent, str(target), facts["sequence"], sizes)


def _released_settings(state: LeagueState) -> LeagueConfig:
    """The settings in force, without those that belong to a machine or to persons."""
    config = state.config or LeagueConfig()
    is_made = state.model.startswith("artifact:")
    if not is_made and (Path(config.model.base).expanduser().is_dir() or config.model.base.startswith((".", "/", "~"))):
        raise UsageError(
            f"model.base: {config.model.base!r} is a folder of this machine; expected a model that the league made or "
            "one of the hub (league model export --merged makes a whole model of an agent)"
        )
    kept = [reach.name for reach in find_reaches(config) if not reach.name.startswith(_OF_MACHINES)]
    settled, _ = trusted_settings(config, kept)
    settled = msgspec.structs.replace(settled, tracker=TrackerConfig(), alarms=AlarmsConfig())
    try:
        check_config(settled)
    except ConfigError as error:
        raise ConfigError(f"the league's settings without hosted agents, which no release can hold: {error}") from None
    return settled


async def _write_games(
    run: Run, history: JetStreamLog, facts: dict[str, Any], draft: Path, render: MatchRenderer
) -> list[str]:
    """Write the first game of each benchmark, whatever its result; return the names of the files, without suffixes."""
    written: dict[str, str] = {}
    for benchmark in facts["benchmarks"][:_MAX_GAMES]:
        # The first by number, not the first to finish.
        match_id, sequence = min(benchmark["matches"], key=lambda match: (len(match[0]), match[0]))
        events = await read_match_events(history, match_id, {"matches": sequence})
        turns, problem = await read_transcript(run, history, events, None)
        if problem is not None:
            continue
        text = io.StringIO()
        print_match(Console(file=text, width=_GAME_WIDTH), events, turns, None)
        name = f"games/{len(written) + 1}"
        _write(draft / f"{name}.txt", escape_unprintable(text.getvalue(), lines=True))
        written[name] = match_id
    for name, page in zip(written, await render(run, history, list(written.values())), strict=True):
        _write(draft / f"{name}.html", page)
    return list(written)


def _release_contents(
    draft: Path, target: Path, chosen: ReleaseVersion, config: LeagueConfig, games: list[str]
) -> ReleaseContents:
    name = target.resolve().name
    if not (draft / BASE_FOLDER).is_dir():
        return ReleaseContents(name, None, None, config.model.lora_rank, games)
    model = Decoder.load(draft / BASE_FOLDER)
    try:
        lora = adapters.load(draft / "adapters" / chosen.agent, model.shape)
    except ModelError as error:
        raise ModelError(f"{chosen.agent}: its adapter does not fit the league's base model: {error}") from None
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return ReleaseContents(name, parameters, lora.flat_P.numel(), lora.rank, games)


def _registry_dict(facts: dict[str, Any], config: LeagueConfig, base: str | None) -> dict[str, Any]:
    agents: dict[str, Any] = {
        name: {"type": "baseline", "elo": facts["baselines"].get(name, agent.rating)}
        for name, agent in config.agents.items()
    }
    agents[facts["agent"]] = {
        "type": "checkpoint",
        "elo": facts["online"],
        "path": f"adapters/{facts['agent']}",
        "step": facts["version"],
        "parent": config.base_agent,
        "created_at": facts["published"] or None,
        "adapter_digest": facts["adapter"],
    }
    return {
        "agents": agents,
        "history": [],
        "base_digest": base,
        "metadata": {
            "best_agent": facts["agent"],
            "released_from": {
                "league": facts["league"],
                "sequence": facts["sequence"],
                "recorded": facts["last_event"],
                "state": facts["state"],
                "version": version("event-sourced-league"),
                "schema": SCHEMA_VERSION,
            },
        },
    }


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _write_json(path: Path, value: Any) -> None:
    _write(path, json.dumps(msgspec.to_builtins(value), indent=1, ensure_ascii=True) + "\n")
