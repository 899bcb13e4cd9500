"""The four success criteria of League Training, judged by SQL over the history.

Each ``NAME.sql`` here is one criterion: rows of figures with what was measured, what is expected, whether that is met
(NULL for information), and what to change if not. A criterion is met if all of its figures are.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from league.analysis.leaderboard import fit_seats
from league.log.base import EventLog
from league.matchmaking.audit import audit_sampling
from league.matchmaking.roles import sampler_of
from league.samplers import SAMPLERS
from schemas.codec import canonical_json
from schemas.config import LeagueConfig, convert
from schemas.errors import UsageError
from schemas.ids import SESSION_PREFIX

CRITERIA = {
    "baseline_beat": "Baseline beat",
    "no_regression": "No regression",
    "diversity": "Diversity",
    "stability": "Stability",
}
"""Titles by name, in their order."""
_RECOMPUTED_DRAWS = 400
_WHOLE_HISTORY = 1_000_000_000
_SEATS_SQL = """
    SELECT sequence, seat, side, score, 1.0 AS weight, CASE WHEN named.policy = ? AND named.step::BIGINT > 0
           THEN '#' || ((named.step::BIGINT - 1) * 10 // ?) ELSE agent END AS agent
    FROM (SELECT *, regexp_extract(agent, '^(.+)@([0-9]{1,18})$', ['policy', 'step']) AS named
          FROM rated_matches_at(?) JOIN match_seats USING (sequence))
"""
"""Seats of rated matches, with a policy's versions pooled by tenths of so many steps: ``#0`` to ``#9``."""


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds of all criteria."""

    opponent: str = "random_bot"
    """Agent in all other seats of the benchmark."""
    win_share: float = 0.8
    """Bound for the lower end of the share's 95 % interval: "beats RandomBot (>80 % win rate)"."""
    games: int = 210
    """Minimum number of benchmark games: thirty in each of Diplomacy's seats."""
    warm_up: int = 1
    """Tenths of the training in which the hero may be below a baseline: it begins as one of them."""
    margin: float = 150.0
    """Rating points below a baseline that every interval has to exclude: the margin of a test of non-inferiority."""
    tolerance: float = 0.05
    """Maximum difference between a bucket's realised and target share: half of the smallest share of the mix, so that
    no bucket can pass for another."""
    mix: dict[str, float] = msgspec.field(
        default_factory=lambda: {"mirror": 0.3, "peers": 0.4, "exploitable": 0.2, "baselines": 0.1}
    )
    """Specified mix of opponents, by bucket."""
    steps: int = 1000
    """Specified horizon."""
    failed_share: float = 0.01
    """Maximum share of matches that may fail: a failed match is data, many are a fault."""


class Figure(msgspec.Struct, frozen=True):
    """A figure of a criterion."""

    figure: str
    measured: str
    expected: str
    met: bool | None
    """Whether the criterion is met; None for a figure that is only shown."""
    advice: str
    """What to do if the figure is not met; empty if it is."""


class Criterion(msgspec.Struct, frozen=True):
    """A criterion with its figures."""

    name: str
    title: str
    passed: bool
    figures: list[Figure]


class CriteriaReport(msgspec.Struct, frozen=True):
    """Verdict on a run."""

    league: str
    game: str
    policy: str
    """Hero's policy."""
    sequence: int
    """Last sequence of the history considered."""
    passed: bool
    criteria: list[Criterion]


async def draw_targets(history: EventLog, policy: str, upto: int) -> dict[str, float] | str:
    """Recompute the mean share of each bucket that the hero's draws aim at; the reason if there is none."""
    try:
        return (await audit_sampling(history, _WHOLE_HISTORY, _RECOMPUTED_DRAWS, policy, upto)).whole.target
    except UsageError as error:
        return str(error)


def judge(
    connection: Any,
    upto: int,
    targets: Mapping[str, float] | str,
    dead_letters: int | None = None,
    thresholds: Thresholds | None = None,
) -> CriteriaReport:
    """Judge a history up to a sequence, from a DuckDB connection to its projection.

    ``targets`` are those of ``draw_targets``; ``dead_letters`` is None if unknown.
    """
    bounds = thresholds or Thresholds()
    config = config_at(connection, upto)
    policy = config.trainer.policy
    sampler = sampler_of(config, policy)
    values: dict[str, Any] = {
        **msgspec.structs.asdict(bounds),
        "upto": upto,
        "policy": policy,
        "strengths": canonical_json(_strengths(connection, policy, upto)).decode(),
        "sampler": sampler.name,
        "buckets": canonical_json(_buckets(SAMPLERS.settings(sampler), bounds, targets)).decode(),
        "problem": targets if isinstance(targets, str) else "",
        "session": SESSION_PREFIX,
        "stall_minutes": config.alarms.stall_minutes,
        "dead_letters": dead_letters,
    }
    criteria = [_judge(connection, name, values) for name in CRITERIA]
    return CriteriaReport(
        league=config.name,
        game=config.game.name,
        policy=policy,
        sequence=upto,
        passed=all(criterion.passed for criterion in criteria),
        criteria=criteria,
    )


def _judge(connection: Any, name: str, values: Mapping[str, Any]) -> Criterion:
    statement = Path(__file__).with_name(f"{name}.sql").read_text(encoding="utf-8")
    used = {parameter: values[parameter] for parameter in set(re.findall(r"\$(\w+)", statement))}
    rows = connection.execute(statement, used).fetchall()
    figures = [
        Figure(figure, measured, expected, met, advice if met is False else "")
        for figure, measured, expected, met, advice in rows
    ]
    return Criterion(name, CRITERIA[name], all(figure.met is not False for figure in figures), figures)


def config_at(connection: Any, upto: int) -> LeagueConfig:
    """The configuration in force at a sequence."""
    rows = connection.execute(
        "SELECT config FROM configurations WHERE sequence BETWEEN 1 AND ? ORDER BY sequence DESC LIMIT 1", [upto]
    ).fetchall()
    if not rows:
        raise UsageError(f"criteria: no configuration up to event {upto}; expected LeagueOpened first")
    return convert(msgspec.json.decode(rows[0][0]), LeagueConfig, "")


def _strengths(connection: Any, policy: str, upto: int) -> list[dict[str, Any]]:
    """Bradley–Terry ratings of agents, and of the policy's versions by tenths of the training."""
    [(last,)] = connection.execute(
        "SELECT coalesce(max(step), 0) FROM gradient_steps WHERE policy = ? AND sequence <= ?", [policy, upto]
    ).fetchall()
    return [
        {
            "agent": agent,
            "tenth": min(int(agent[1:]), 9) if agent.startswith("#") else None,
            "rating": strength.rating,
            "half": (strength.high - strength.low) / 2,
        }
        for agent, strength in fit_seats(connection, _SEATS_SQL, [policy, last, upto]).items()
    ]


def _buckets(settings: Any, bounds: Thresholds, targets: Mapping[str, float] | str) -> list[dict[str, Any]]:
    """Each bucket's mean target, and its share in the configured and in the specified mix."""
    if isinstance(targets, str) or not targets:
        return []
    return [
        {
            "bucket": bucket,
            "target": targets.get(bucket, 0.0),
            "configured": float(share) if isinstance(share := getattr(settings, bucket, None), int | float) else None,
            "specified": bounds.mix.get(bucket),
        }
        for bucket in dict.fromkeys([*targets, *bounds.mix])
    ]
