"""Version checks between the processes of a league, for rolling upgrades, and the settings that need new processes.

All processes read events of older schemas (``schemas.codec``). Deciders stop at an event of a newer schema, and a
worker may not connect if it would write events that a decider cannot read: deciders are upgraded first. Game rules
are fixed: a league plays by the rules that it was opened with, and players with other rules may not connect.
"""

from collections.abc import Sequence
from operator import attrgetter

from arena.environments import make_environment
from league.matchmaking.roles import exploited_policy, sampler_of
from league.state import LeagueState
from schemas.codec import SCHEMA_VERSION
from schemas.config import LeagueConfig
from schemas.errors import ConfigError, UsageError, VersionError, format_choices
from schemas.events import WorkerJoined

DECIDERS = ("rater", "trainer", "archivist")
"""Roles whose fold of the history determines later events: they must be able to decode every event."""
POLICY_ROLES = ("rollout", "trainer")
"""Roles of which each worker works for one policy, and ends with its training."""
PLAYERS = ("rollout", "evaluator")
"""Roles that play matches, and so need the league's game rules."""

RESTART_KEYS: dict[str, tuple[str, ...]] = {
    "inference": ("evaluator", "inference", "rollout"),
    "prompts": ("evaluator", "inference", "rollout"),
    "rollout.games_in_flight": ("rollout",),
    "episodes": ("evaluator", "rollout"),
    "experience": ("trainer",),
    "trainer": ("trainer",),
    "policies": ("league up", "rollout", "trainer"),
    "history": ("archivist",),
    "blobs": ("evaluator", "rollout", "trainer"),
    "tracker": ("tracker",),
    "alarms.webhook": ("league up",),
    "alarms.webhook_variable": ("league up",),
}
"""Keys that processes of these roles read at their start only; all others are read at every decision."""


def restart_keys(old: LeagueConfig, new: LeagueConfig) -> dict[str, tuple[str, ...]]:
    """Changed keys that running processes ignore until they are restarted, with the roles of these processes."""
    return {key: roles for key, roles in RESTART_KEYS.items() if attrgetter(key)(old) != attrgetter(key)(new)}


def older_deciders(state: LeagueState, name: str) -> list[WorkerJoined]:
    """Connected deciders that cannot read this worker's events, except for an earlier process of its ``name``."""
    others = (worker for other, worker in sorted(state.workers.items()) if other != name)
    running = (worker.joined for worker in others if worker.left is None)
    return [joined for joined in running if joined.role in DECIDERS and joined.schema < SCHEMA_VERSION]


def check_versions(name: str, deciders: Sequence[WorkerJoined]) -> None:
    """Raise ``VersionError`` if there are older deciders."""
    if deciders:
        old = deciders[0]
        raise VersionError(
            f"{name} writes events of schema version {SCHEMA_VERSION}, and {old.worker} (package {old.version}, on "
            f"{old.host}) reads up to {old.schema}: upgrade {old.worker} first"
        )


def check_rules(state: LeagueState, role: str, name: str) -> None:
    """Raise ``VersionError`` if a worker that plays matches has other game rules installed than the league's."""
    if role not in PLAYERS or state.config is None:
        return
    game = state.config.game
    try:
        ours = make_environment(game.name, game.settings).rules_version
    except ConfigError:
        # Not installed here: reported where it is played.
        return
    if ours != state.rules:
        other = "open another league to play by them, or start the older package here"
        side = f"upgrade {name}" if ours < state.rules else other
        raise VersionError(
            f"{name} plays {game.name} by version {ours} of its rules, and the league {state.league} by version "
            f"{state.rules}: results would not be comparable; {side}"
        )


def resolve_policy(config: LeagueConfig, policy: str | None) -> str:
    """The policy to serve, ``trainer.policy`` for None; ``UsageError`` if the league trains none of that name."""
    name = policy or config.trainer.policy
    if name not in config.trained_policies:
        expected = format_choices(config.trained_policies)
        raise UsageError(f"--policy {name}: not trained in this league; expected {expected}")
    return name


def required_policies(config: LeagueConfig, policy: str) -> set[str]:
    """The policies that need a version before a policy can play: itself, and those that its sampler names."""
    role = config.trained_policies[policy]
    sampler = sampler_of(config, policy)
    named = {exploited_policy(config, role)} if role.role == "main_exploiter" else set()
    return {policy, *named, *(sampler.settings.get("policies", ()) if sampler.name == "policies" else ())}
