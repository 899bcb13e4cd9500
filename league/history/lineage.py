"""Lineage of an adapter: its ancestors back to the base model, and the matches behind each gradient step.

The offspring of an operator on adapters has several parents, and so several lines of ancestors.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from league.projections.tables import sql_literal
from schemas.errors import UsageError, format_choices, suggest
from schemas.ids import agent_name, split_agent

QueryFunction = Callable[[str], Awaitable[Sequence[tuple[Any, ...]]]]
"""Runs a statement over a projection's tables and returns its rows."""

_SHORTEST_PREFIX = 6
_MAX_LISTED = 8


class UsedMatch(msgspec.Struct, frozen=True):
    """A match that a gradient step was trained on."""

    match_id: str
    sequence: int | None
    """Sequence of its result; None when the history does not hold it."""
    roles: list[str]
    """Roles of the seats whose decisions were trained on."""
    opponents: list[str]
    """Agents of the other seats."""
    voided_sequence: int | None


class LineageStep(msgspec.Struct, frozen=True):
    """A gradient step in a lineage."""

    policy: str
    step: int
    sequence: int
    batch: str
    """Digest of the match ids, in order."""
    adapter: str | None
    """Digest of the resulting adapter; None for a skipped step, which makes none."""
    experience_from: int
    experience_to: int
    accepted: int
    stale: int
    refused: int
    voided: int
    """Trajectories left out because their matches had been voided by then."""
    skipped: bool
    matches: list[UsedMatch]

    @property
    def tainted(self) -> list[str]:
        """Matches voided after the step had used them."""
        return [m.match_id for m in self.matches if m.voided_sequence is not None and m.voided_sequence > self.sequence]

    @property
    def roles(self) -> dict[str, int]:
        """Number of seats trained on, by role."""
        return dict(sorted(Counter(role for match in self.matches for role in match.roles).items()))

    @property
    def opponents(self) -> dict[str, int]:
        """Number of other agents' seats, by agent; most frequent first."""
        return dict(Counter(agent for match in self.matches for agent in match.opponents).most_common())


class LineageNode(msgspec.Struct, frozen=True):
    """An agent in a lineage, and the steps between the previous node and it."""

    agent: str
    kind: str
    """``base``, ``bot`` or ``checkpoint`` as registered; ``version`` for one that was never admitted to the league."""
    reason: str
    """Reason for its admission."""
    adapter: str | None
    sequence: int | None
    """Sequence of its publication or registration."""
    steps: list[LineageStep]
    parents: list[str] = []
    """The nodes that it directly follows: none for the first, several for an offspring."""
    operator: str = ""
    """Operator on adapters that made it; empty for all that gradient steps made."""

    @property
    def origin(self) -> str:
        """Operator and parents of an offspring, in words; empty for other nodes."""
        return f"{self.operator} of {' and '.join(self.parents)}" if self.operator else ""

    @property
    def tainted(self) -> bool:
        """Whether a step since the previous node used matches that were voided later."""
        return any(step.tainted for step in self.steps)


class Lineage(msgspec.Struct, frozen=True):
    """Nodes from the base model to an agent, each after all of its parents."""

    agent: str
    stations: list[LineageNode]

    @property
    def steps(self) -> list[LineageStep]:
        """All steps in order."""
        return [step for station in self.stations for step in station.steps]


class _Version(msgspec.Struct, frozen=True):
    agent: str
    parent: str | None
    adapter: str | None
    sequence: int | None


class _Offspring(msgspec.Struct, frozen=True):
    operator: str
    parents: list[str]


async def resolve_agent(query: QueryFunction, name: str) -> str:
    """Resolve the name of an agent, or the beginning of an adapter's digest; UsageError if none or several match."""
    versions = await _load_versions(query)
    registered = [row[0] for row in await query("SELECT agent FROM agents")]
    if name in versions or name in registered:
        return name
    short = name.lower()
    if len(short) >= _SHORTEST_PREFIX and set(short) <= set("0123456789abcdef"):
        versions_found = [v for v in versions.values() if v.adapter is not None and v.adapter.startswith(short)]
        if len({v.adapter for v in versions_found}) == 1:
            return versions_found[0].agent
        if versions_found:
            which = format_choices(f"{v.agent}: {v.adapter}" for v in versions_found[:_MAX_LISTED])
            raise UsageError(f"adapter {name!r}: is an ambiguous prefix; expected {which}")
        raise UsageError(f"adapter {name!r}: no version in this history has an adapter of this digest")
    raise UsageError(
        f"agent {name!r}: not in this history; expected the digest of an adapter (at least {_SHORTEST_PREFIX} digits), "
        f"or an agent such as {format_choices(dict.fromkeys([*registered, *versions][-_MAX_LISTED:]))}"
        + suggest(name, [*registered, *versions])
    )


async def trace_lineage(query: QueryFunction, agent: str) -> Lineage:
    """Trace the lineage of an agent, as ``resolve_agent`` names it, back to the base model."""
    versions = await _load_versions(query)
    rows = await query("SELECT agent, kind, reason, parent, adapter, joined_sequence FROM agents")
    registered = {row[0]: row for row in rows}
    names = "list_transform(parents, lambda p: p.agent)"
    reset_rows = await query(f"SELECT policy, version, operator, {names} FROM resets WHERE len(parents) > 0")
    offspring = {agent_name(row[0], row[1] + 1): _Offspring(row[2], row[3]) for row in reset_rows}
    path = _ancestry(agent, versions, {row[0]: row[3] for row in rows}, offspring)
    steps = await _load_steps(query, path)
    crossed = {name for child in path if (made := offspring.get(child[0])) for name in (child[0], *made.parents)}
    stations: list[LineageNode] = []
    pending: list[LineageStep] = []
    nearest: dict[str, str] = {}
    for index, (name, parent) in enumerate(path):
        pending += steps.get(name, []) if parent is not None else []
        nearest[name] = nearest.get(parent or "", "")
        is_end = index in (0, len(path) - 1) or name.endswith("@0")
        if not is_end and name not in registered and name not in crossed:
            # A version between two agents: its step counts for the later one.
            continue
        _, kind, reason, _, adapter, sequence = registered.get(name, (name, "version", None, None, None, None))
        if (version := versions.get(name)) is not None:
            adapter = version.adapter
            sequence = version.sequence
        made = offspring.get(name, _GRADIENT_STEPS)
        parents = made.parents or [station for station in (nearest[name],) if station]
        stations.append(LineageNode(name, kind, reason or "", adapter, sequence, pending, parents, made.operator))
        nearest[name] = name
        pending = []
    return Lineage(agent, stations)


_GRADIENT_STEPS = _Offspring("", [])


async def _load_versions(query: QueryFunction) -> dict[str, _Version]:
    rows = await query("SELECT policy, version, parent, adapter, sequence FROM policies ORDER BY sequence")
    return {agent_name(row[0], row[1]): _Version(agent_name(row[0], row[1]), *row[2:]) for row in rows}


def _ancestry(
    agent: str, versions: dict[str, _Version], parents: dict[str, str | None], offspring: dict[str, _Offspring]
) -> list[tuple[str, str | None]]:
    """Agents and their first parents, from the oldest ancestor to ``agent``; the lines of other parents before it."""
    stations: list[tuple[str, str | None]] = []
    visited: set[str] = set()

    def line(name: str | None) -> list[tuple[str, str | None]]:
        """An agent and its first parents, the oldest last, up to one met before."""
        parts = []
        while name is not None and name not in visited:
            visited.add(name)
            parent = versions[name].parent if name in versions else parents.get(name)
            # Histories have many writers: an empty parent is none, and a cycle ends where it closes.
            parent = parent or parents.get(name) or None
            parts.append((name, parent))
            name = parent
        return parts

    lines = [line(agent)]
    while lines:
        others = offspring.get(lines[-1][-1][0], _GRADIENT_STEPS).parents if lines[-1] else []
        if other := next((name for name in others if name not in visited), None):
            lines.append(line(other))
        elif lines[-1]:
            stations.append(lines[-1].pop())
        else:
            lines.pop()
    return stations


async def _load_steps(query: QueryFunction, stations: Sequence[tuple[str, str | None]]) -> dict[str, list[LineageStep]]:
    """Steps between each agent's parent and the agent."""
    resets = await query("SELECT policy, version FROM resets")
    ranges = {name: found for name, parent in stations if (found := _step_range(name, parent, resets)) is not None}
    if not ranges:
        return {}
    # One range a policy, with steps between its parts that are of no ancestor.
    whole: dict[str, tuple[int, int]] = {}
    for policy, first, last in ranges.values():
        low, high = whole.get(policy, (first, last))
        whole[policy] = (min(low, first), max(high, last))
    condition = " OR ".join(
        f"(policy = {sql_literal(policy)} AND step BETWEEN {first} AND {last})"
        for policy, (first, last) in whole.items()
    )
    matches = await _load_matches(query, condition)
    rows = await query(
        f"""SELECT g.policy, g.step, g.sequence, g.batch, p.adapter, experience_from, experience_to, accepted, stale,
                   refused, voided, skipped
            FROM (FROM gradient_steps WHERE {condition}) g
                 LEFT JOIN policies p ON p.policy = g.policy AND p.version = g.step AND NOT g.skipped
            ORDER BY g.policy, g.step"""
    )
    steps = [LineageStep(*[*row, matches.get((row[0], row[1]), [])]) for row in rows]
    return {
        name: [step for step in steps if step.policy == policy and first <= step.step <= last]
        for name, (policy, first, last) in ranges.items()
    }


def _step_range(agent: str, parent: str | None, resets: Sequence[Sequence[Any]]) -> tuple[str, int, int] | None:
    """Policy, first and last step between a version's parent and the version."""
    named, before = split_agent(agent), split_agent(parent or "")
    if named is None or parent is None:
        return None
    start = max((version for policy, version in resets if policy == named[0] and version < named[1]), default=0)
    first = before[1] + 1 if before is not None and before[0] == named[0] else start + 1
    return (named[0], first, named[1]) if first <= named[1] else None


async def _load_matches(query: QueryFunction, condition: str) -> dict[tuple[str, int], list[UsedMatch]]:
    rows = await query(
        f"""
        WITH used AS (
            SELECT policy, step, unnest(matches) AS match_id, generate_subscripts(matches, 1) AS place
            FROM gradient_steps WHERE {condition}
        ), heroes AS (SELECT DISTINCT match_id, hero_seat FROM opponents_sampled SEMI JOIN used USING (match_id)),
        seats AS (
            SELECT s.match_id, list(s.role ORDER BY s.seat) FILTER (s.trainable OR s.seat = h.hero_seat) AS roles,
                   list(s.agent ORDER BY s.seat) FILTER (NOT (s.trainable OR s.seat = h.hero_seat)) AS opponents
            FROM match_seats s SEMI JOIN used u USING (match_id) LEFT JOIN heroes h USING (match_id)
            GROUP BY s.match_id
        )
        SELECT u.policy, u.step, u.match_id, m.sequence, s.roles, s.opponents, m.voided_sequence
        FROM used u LEFT JOIN matches m USING (match_id) LEFT JOIN seats s USING (match_id)
        ORDER BY u.policy, u.step, u.place
        """
    )
    matches_of: dict[tuple[str, int], list[UsedMatch]] = {}
    for policy, step, name, sequence, roles, opponents, voided in rows:
        match = UsedMatch(name, sequence, roles or [], opponents or [], voided)
        matches_of.setdefault((policy, step), []).append(match)
    return matches_of


def render_mermaid(lineage: Lineage) -> str:
    """Render a lineage as a Mermaid flowchart: a box per agent, and the steps between two on the arrow."""
    lines = ["flowchart TD"]
    numbers = {station.agent: number for number, station in enumerate(lineage.stations)}
    for number, station in enumerate(lineage.stations):
        about = " ".join(filter(None, (station.kind, station.reason)))
        adapter = f"<br/>adapter {station.adapter[:12]}" if station.adapter else ""
        lines.append(f'    n{number}["{_escape_label(station.agent)}<br/>{_escape_label(about)}{adapter}"]')
        text, steps = station.operator, station.steps
        if steps and not text:
            text = f"step {steps[0].step}" if len(steps) == 1 else f"steps {steps[0].step} to {steps[-1].step}"
            text += f", {sum(len(step.matches) for step in steps)} matches"
            tainted = sum(bool(step.tainted) for step in steps)
            text += f", {tainted} tainted" if tainted else ""
        label = f'|"{_escape_label(text)}"|' if text else ""
        lines += [f"    n{numbers[name]} -->{label} n{number}" for name in station.parents if name in numbers]
        if station.tainted:
            lines.append(f"    style n{number} stroke:#c00,stroke-width:3px")
    return "\n".join(lines) + "\n"


def _escape_label(text: str) -> str:
    return text.replace("&", "#amp;").replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")
