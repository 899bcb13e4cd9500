"""Forms of registries that other programs write, turned into the one that ``registry_import`` reads.

| form | is recognised by |
|---|---|
| League Training's, as it is written | agents with ``mu``, the live rating; matches with ``power_agents`` |
| flat: an entry for each generation | no ``agents``, and tables with ``elo`` or ``path`` as values |
"""

import re
from collections.abc import Mapping
from typing import Any

from schemas.errors import UsageError, format_choices

_MU, _ELO, _ELO_BY_MU = 25.0, 1000.0, 40.0
"""League Training's own conversion between its ratings: 1000 is 25, and 40 points of Elo are 1."""
_FLAT_KEYS = frozenset(("elo", "path"))


FLAT, LEAGUE_TRAINING = FORMATS = ("flat", "league-training")


def to_specification(value: Mapping[str, Any], form: str = "") -> dict[str, Any]:
    """The registry in the form that ``registry_import`` reads; ``UsageError`` for one that is nearly of another.

    ``form`` is one of ``FORMATS``; empty where the file tells.
    """
    if form and form not in FORMATS:
        raise UsageError(f"--format {form}: expected {format_choices(FORMATS)}")
    if (form or _find_format(value)) == FLAT:
        return {"agents": _from_flat(value)}
    agents, history = value.get("agents"), value.get("history", [])
    if not isinstance(agents, Mapping) or not isinstance(history, list):
        return dict(value)
    rated = {name: _with_live_rating(fields) for name, fields in agents.items()}
    return {
        **value,
        "agents": rated,
        "history": [_to_seats(match, f"history[{at}]") for at, match in enumerate(history)],
    }


def _find_format(value: Mapping[str, Any]) -> str:
    is_flat = any(isinstance(one, Mapping) and _FLAT_KEYS & one.keys() for one in value.values())
    return FLAT if is_flat and "agents" not in value else LEAGUE_TRAINING


def _with_live_rating(fields: Any) -> Any:
    if not isinstance(fields, Mapping):
        return fields
    mu = fields.get("mu")
    if not isinstance(mu, int | float) or isinstance(mu, bool):
        return dict(fields)
    return {**fields, "elo": _ELO + (mu - _MU) * _ELO_BY_MU}


def _to_seats(match: Any, where: str) -> Any:
    if not isinstance(match, Mapping) or "power_agents" not in match:
        return match
    agents, scores = match["power_agents"], match.get("scores")
    if not (isinstance(agents, Mapping) and isinstance(scores, Mapping) and agents.keys() == scores.keys()):
        raise UsageError(
            f"{where}: a match of League Training; found power_agents {_names(agents)} and scores {_names(scores)}; "
            "expected an agent and a score for each power"
        )
    seats = [{"role": power, "agent": agents[power], "score": scores[power]} for power in agents]
    return {"step": match.get("step"), "seats": seats, "length": match.get("num_years", 0)}


def _names(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, Mapping) and value else repr(value)[:60]


def _from_flat(value: Mapping[str, Any]) -> dict[str, Any]:
    """Generations with a path are checkpoints, at the numbers in their names, or else in the file's order."""
    for name, fields in value.items():
        if not isinstance(fields, Mapping) or not isinstance(fields.get("elo"), int | float):
            raise UsageError(
                f"{name}: found {repr(fields)[:60]}; the file is a flat registry, with an entry for each generation: "
                "expected its elo, and the path of its adapter"
            )
    saved = [name for name in value if value[name].get("path")]
    numbers = [int(found[-1]) if (found := re.findall(r"\d+", name)) else -1 for name in saved]
    if len(set(numbers)) < len(numbers) or -1 in numbers:
        numbers = list(range(1, len(saved) + 1))
    steps = dict(zip(saved, numbers, strict=True))
    return {
        name: {**fields, "type": "checkpoint", "step": steps[name]} if name in steps else {**fields, "type": "baseline"}
        for name, fields in value.items()
    }
