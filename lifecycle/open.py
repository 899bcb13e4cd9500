"""Opens a league: streams, base model, first events. Opening an open league changes nothing but its settings."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from nats.aio.client import Client

from arena.environments import make_environment
from league.integrity.snapshots import load_state_at
from league.log.jetstream import JetStreamLog, find_league
from league.log.queues import WorkQueue
from league.log.streams import ensure_streams, raise_experience_limits
from league.matchmaking.schedule import initial_agent_events
from league.run import Run
from lifecycle.config_checks import check_tokenizer
from lifecycle.league_models import make_base_model
from lifecycle.reconfigure import check_change, configuration_event, with_later_agents
from models import load_base
from models.adapter_bundle import pack_folder
from schemas.config import LeagueConfig, to_builtins
from schemas.errors import ConflictError, UsageError
from schemas.events import Event, HistoryImported, LeagueOpened
from schemas.loggers import get_logger
from schemas.subjects import event_type_filter
from workers.progress import ProgressReporter

log = get_logger()

Model = TypeVar("Model")


async def open_league(
    run: Run, client: Client, config: LeagueConfig | None, report: ProgressReporter, *, make_model: bool = True
) -> JetStreamLog:
    """Open the league of a run, or connect to it if it is open.

    Without a ``config`` an open league keeps its settings. Where the base model is to be made, ``make_model`` makes
    it now; otherwise it is made when the league is next opened to run.

    Raises:
        UsageError: no league and no configuration, or an immutable setting is changed.
        ModelError, ConfigError: the base model cannot be used, or cannot be prompted as configured.
    """
    if config is not None:
        run.record_plugins(config.plugins)
    if run.nats is None or config is None:
        existing = run.name or await find_league(client)
    else:
        # A run's own broker holds one league, another broker may hold many.
        existing = await find_league(client, config.name)
    if existing is not None:
        history = JetStreamLog(client, existing, "supervisor")
        # The broker may have become a cluster.
        await ensure_streams(client.jetstream(), None)
        await WorkQueue(client, existing).create_consumer()
        if config is not None:
            await _reconfigure(run, history, config)
        opening = await history.newest(LeagueOpened) if make_model else None
        if opening is not None and isinstance(opening.event, LeagueOpened) and not opening.event.model:
            # It was opened without a base model, as imports are.
            state = await load_state_at(history, run.open_blob_store(client, existing))
            if not state.model and state.config is not None:
                model = await _locate_base_model(run, client, state.config, report, make_model=True)
                await history.append(configuration_event(state, state.config, model))
        return history
    run.check_for_lost_history()
    if config is None:
        raise UsageError(
            f"{run.folder}: no league was opened here; expected --config FILE to open one "
            "(`league config init` writes such a file)"
        )
    await ensure_streams(client.jetstream(), config.experience)
    await WorkQueue(client, config.name).create_consumer()
    history = JetStreamLog(client, config.name, "supervisor")
    model = await _locate_base_model(run, client, config, report, make_model)
    rules = make_environment(config.game.name, config.game.settings).rules_version
    opened = LeagueOpened(league=config.name, config=to_builtins(config), model=model, rules=rules)
    if not await _append_opening(history, [opened, *initial_agent_events(config)]):
        # Another process has opened it meanwhile.
        await _reconfigure(run, history, config)
    return history


async def _append_opening(history: JetStreamLog, events: Sequence[Event]) -> bool:
    """Append the first events, unless there is an opening; messages on its subject that are none are passed over."""
    while True:
        newest = await history.last_sequence(event_type_filter(history.league, LeagueOpened))
        if await history.newest(LeagueOpened) is not None:
            return False
        with contextlib.suppress(ConflictError):
            await history.append_batch(events, expected=newest)
            return True


async def _locate_base_model(
    run: Run, client: Client, config: LeagueConfig, report: ProgressReporter, make_model: bool
) -> str:
    """Locate or make the base model; workers fetch a made model from the blob store."""
    if config.model.base != "made":
        base = await _report_from_thread(partial(load_base, config.model.base), report)
        # Checked here rather than by the first workers: the game's words may be missing in the model's vocabulary.
        check_tokenizer(base.tokenizer, config)
        return config.model.base
    if not (run.model / "config.json").exists():
        if not make_model:
            return ""
        await _report_from_thread(partial(make_base_model, run.model, config), report)
    return "artifact:" + await run.open_blob_store(client, config.name).put(pack_folder(run.model))


async def _report_from_thread(get_model: Callable[[ProgressReporter], Model], report: ProgressReporter) -> Model:
    """Get a base model in a thread: it takes minutes, after which the broker would drop a silent connection."""
    is_stopped = False

    def on_progress(text: str, share: float | None) -> None:
        # A thread cannot be killed, and stopping the program would wait for it.
        if is_stopped:
            raise UsageError("stopped before the base model was ready")
        report(text, share)

    try:
        return await asyncio.to_thread(get_model, on_progress)
    except asyncio.CancelledError:
        is_stopped = True
        raise


async def _reconfigure(run: Run, history: JetStreamLog, config: LeagueConfig) -> None:
    state = await load_state_at(history, run.open_blob_store(history.client, history.league))
    assert state.config is not None
    if await history.newest(HistoryImported) is not None:
        # The first agents of an imported league come from the import, not from a settings file.
        config = msgspec.structs.replace(config, agents=state.config.agents)
    opened = await history.newest(LeagueOpened)
    if opened is not None and isinstance(opened.event, LeagueOpened):
        config = with_later_agents(opened.event.config, state.config, config)
    if changed := check_change(history.league, state.config, config):
        await raise_experience_limits(history.client.jetstream(), config.experience)
        await history.append(configuration_event(state, config))
        log.info("settings changed", keys=changed)
