"""Environments of OpenEnv servers, with one seat: whatever else acts there, as an opponent, is part of the server.

An episode is a session of the server (``client``). The agent sees an observation's fields, a line each, and replies
with an action as a JSON object; where actions have only one field, its value is enough. A reply that is no action is
answered with the reason, and the episode goes on. The reward is the sum of all steps' rewards. Servers play their own
random moves, and some ignore the seed of a reset, so that episodes are recorded but not played again.
"""

import asyncio
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import Any
from urllib.parse import urlsplit

import msgspec

from arena.arena import Arena
from arena.environments import ArenaSpec, DatasetSpec, register
from arena.environments.openenv.client import Description, Result, Server, ServerError, Session
from arena.episodes import Episode
from arena.games.texts import strip_thinking
from arena.games.third_party import require_package
from arena.rubrics import Rubric
from schemas.episodes import EpisodeState, GenerateResult, Message, Rollout
from schemas.errors import ConfigError
from schemas.numbers import PositiveFloat, PositiveInt

AGENT = "agent"

_WORDS = ("apple", "bell", "boat", "bridge", "candle", "cat", "cloud", "coat")
"""Values of improvised texts."""
_FIELDS_MARK = "Each reply is one action, a JSON object with these fields: "


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The ``[game]`` settings."""

    url: str
    """Address of the server: ``http://127.0.0.1:8000``."""
    rules: str = ""
    """What the agent learns of the environment; empty for the server's own description."""
    action: dict[str, Any] = {}
    """Fields that all actions have; the agent chooses the others."""
    reset: dict[str, Any] = {}
    """Arguments of a reset beside the seed: ``{ task_id = "easy" }``."""
    legal: str = "legal_actions"
    """Field of observations that lists the legal values of an action's only field."""
    sessions: PositiveInt = 1
    """Most sessions of a process at a time. Servers allow one unless they are configured otherwise."""
    max_turns: PositiveInt = 100
    """Maximum number of replies; an episode that is not over by then ends with the reward so far."""
    timeout_s: PositiveFloat = 60.0
    """Seconds that the server has for an answer, or to have a session free."""
    max_tokens: PositiveInt = 256
    """Most tokens of a reply."""
    tasks: PositiveInt = 100
    """Number of seeds, from 0 on."""
    group_size: PositiveInt = 1
    """Attempts at a seed that are compared with each other."""
    batch_size: PositiveInt = 4
    """Seeds of a batch."""

    def __post_init__(self) -> None:
        try:
            address = urlsplit(self.url)
            is_address = address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
        except ValueError:  # such as a port that is no number
            is_address = False
        if not is_address:
            raise ConfigError(f"url: {self.url!r}; expected the address of a server, as http://127.0.0.1:8000")


def parse_action(reply: str, fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """The action of a reply: its last JSON object, or the value of the only field; None if there is none."""
    text = strip_thinking(reply)
    decoder = json.JSONDecoder()
    action = None
    start = text.find("{")
    while start >= 0:
        end = start + 1
        with suppress(ValueError, RecursionError):
            action, end = decoder.raw_decode(text, start)
        start = text.find("{", end)
    if action is not None or len(fields) != 1:
        return action
    ((name, schema),) = fields.items()
    value = _last_value(text, _first_type(schema))
    return None if value is None else {name: value}


def _last_value(text: str, kind: str) -> Any:
    """The value of a schema's type that a text ends with; None if there is none."""
    if kind in ("integer", "number"):
        numbers = re.findall(r"-?\d+(?:\.\d+)?", text)
        value = float(numbers[-1]) if numbers else math.nan
        if not math.isfinite(value):
            return None
        return value if kind == "number" else int(value)
    if kind == "boolean":
        words = re.findall(r"\b(true|false)\b", text.lower())
        return words[-1] == "true" if words else None
    return text.strip() or None if kind == "string" else None


def _first_type(schema: Mapping[str, Any]) -> str:
    """A schema's type, or its first alternative's."""
    alternatives = [schema, *schema.get("anyOf", ())]
    return next((each["type"] for each in alternatives if "type" in each), "string")


class OpenEnvEpisode(Episode):
    """One session, from reset to end."""

    episode_type = "openenv"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._server = Server(settings.url, settings.timeout_s)
        self._free_sessions = asyncio.Semaphore(settings.sessions)
        self._description: Description | None = None
        self.rubric = Rubric([reward])

    async def rollout(self, arena: Arena, artifact: Any, state: EpisodeState) -> EpisodeState:
        """Act until the environment is done, or the maximum number of turns is reached."""
        async with self._free_sessions:
            if self._description is None:
                self._description = await self._server.describe()
            reset = {**self._settings.reset, "seed": artifact["seed"]}
            async with self._server.open_session(reset) as (session, first):
                state.data = await self._play(arena, session, first, self._description)
        return state

    def get_extras(self, state: EpisodeState) -> dict[str, Any]:
        """The reward and the counts of the session."""
        return dict(state.data)

    async def _play(self, arena: Arena, session: Session, first: Result, about: Description) -> dict[str, Any]:
        result = first
        total = float(first.reward or 0.0)
        turns = invalid = 0
        fixed = self._settings.action
        fields = {name: schema for name, schema in about.fields.items() if name not in fixed}
        rules = f"{self._settings.rules or about.text}\n{_FIELDS_MARK}{json.dumps(fields, sort_keys=True)}"
        messages = [Message("user", f"{rules}\n{format_observation(first)}")]
        while not result.done and turns < self._settings.max_turns:
            reply = (await arena.call_model(messages, AGENT)).text
            turns += 1
            try:
                action = parse_action(reply, fields)
                if action is None:
                    raise ServerError("expected a JSON object", "VALIDATION_ERROR")
                result = await session.step({**action, **fixed})
                total += float(result.reward or 0.0)
                answer = format_observation(result)
            except ServerError as error:
                if error.code != "VALIDATION_ERROR":
                    raise
                invalid += 1
                answer = f"No action of this environment: {error}"
            messages += [Message("assistant", reply), Message("user", answer)]
        return {"reward": total, "turns": turns, "invalid": invalid, "is_truncated": not result.done}


def reward(rollout: Rollout, arena: Arena) -> dict[str, float]:
    """The sum of all rewards of the session."""
    return {AGENT: rollout.extras["reward"]}


def format_observation(result: Result) -> str:
    """An observation for the agent: a field a line, texts as they are and everything else in JSON."""
    values = [f"Reward: {float(result.reward):g}"] if result.reward is not None else []
    for name, value in result.observation.items():
        values.append(f"{name}: {value if isinstance(value, str) else json.dumps(value)}")
    return "\n".join(values)


class OpenEnvSpec(DatasetSpec):
    """An environment on a server, with one seat. The server is asked when the first episode begins."""

    name = "openenv"
    seats = (AGENT,)
    item = "seed"
    settings_type, episode_class = Settings, OpenEnvEpisode
    prompts: Mapping[str, str] = {AGENT: ""}

    def make_items(self) -> Iterable[Any]:
        """The seeds."""
        return ({"seed": seed} for seed in range(self.settings.tasks))

    def improvise(self, role_id: str | None, messages: Sequence[Message], rng: Random) -> str:
        """A random action: values of the fields' types, and legal ones where the observation lists them."""
        rules = next((line for line in messages[0].content.splitlines() if line.startswith(_FIELDS_MARK)), "")
        fields: dict[str, Any] = json.loads(rules.removeprefix(_FIELDS_MARK) or "{}")
        legal = re.findall(rf"^{re.escape(self.settings.legal)}: (\[.+\])$", messages[-1].content, re.MULTILINE)
        if legal and len(fields) == 1:
            with suppress(ValueError):  # a text in brackets
                return json.dumps({name: rng.choice(json.loads(legal[-1])) for name in fields})
        return json.dumps({name: _draw_value(schema, rng) for name, schema in fields.items()})

    def metrics(self, result: GenerateResult) -> Mapping[str, float]:
        """Add metrics: numbers of turns and invalid replies, and whether the maximum number of turns was reached."""
        extras = result.rollout.extras
        return {**super().metrics(result), **{name: float(extras[name]) for name in extras if name != "reward"}}


def _draw_value(schema: Mapping[str, Any], rng: Random) -> Any:
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "default" in schema and schema["default"] is not None:
        return schema["default"]
    first, last = schema.get("minimum", 0), schema.get("maximum", 9)
    values = {
        "boolean": rng.random() < 0.5,
        "integer": rng.randint(math.ceil(first), max(math.ceil(first), math.floor(last))),
        "number": rng.uniform(first, max(first, last)),
        "string": rng.choice(_WORDS),
        "array": [],
        "object": {},
    }
    return values.get(_first_type(schema))


@register("openenv")
def make(settings: Mapping[str, Any]) -> ArenaSpec:
    """Make the environment; ``ConfigError`` for a bad setting, or without the package for connections."""
    with require_package("openenv", "websockets"):
        import websockets.asyncio.client  # noqa: F401
    return OpenEnvSpec.of(settings)
