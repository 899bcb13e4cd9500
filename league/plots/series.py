"""Data series for charts: ratings, win shares, payoffs, opponents drawn, and the throughput of a league."""

import math
from collections.abc import Collection
from typing import Any

import msgspec

from schemas.ids import SESSION_PREFIX
from schemas.numbers import Z_95, wilson_interval

_WINDOWS = 24
_MOST_PARTS = 48
_LEAST_PARTS = 8

# A version's games are those played for it, as the learner or as the evaluated agent. Games between versions of one
# policy say nothing about the policy when one of them held every seat.
_WIN_RATES_SQL = f"""
    WITH own AS (
        SELECT m.match_id, coalesce(v.suite, m.purpose) AS purpose, s.agent,
               m.winner_agent IS NOT DISTINCT FROM s.agent AS won, count(*) AS held,
               regexp_extract(s.agent, '^(.+)@([0-9]+)$', ['policy', 'step']) AS named
        FROM matches m JOIN match_seats s USING (match_id) LEFT JOIN evaluations v USING (evaluation_id)
        WHERE m.sequence <= $upto AND coalesce(m.voided_sequence > $upto, true) AND m.game = $game
              AND (s.trainable OR s.agent = v.agent)
        GROUP BY ALL
    ), met AS (
        SELECT match_id, count(*) AS seats, list(DISTINCT agent) AS agents FROM match_seats GROUP BY match_id
    ), counted AS (
        SELECT named.policy AS policy, named.step::BIGINT AS step, won, held / seats AS chance,
               unnest(CASE WHEN len($opponents) = 0 THEN [purpose]
                      ELSE [x FOR x IN $opponents IF x <> agent AND list_contains(agents, x)] END) AS against
        FROM own JOIN met USING (match_id)
        WHERE held < seats AND named.policy <> '' AND list_contains($policies, named.policy)
    ), spread AS (
        SELECT min(step) AS first, greatest(ceil((max(step) - min(step) + 1) / {_WINDOWS}), 1)::BIGINT AS width
        FROM counted
    )
    SELECT policy, against, min(step), max(step), count(*), count(*) FILTER (won), sum(chance)
    FROM counted CROSS JOIN spread GROUP BY policy, against, (step - first) // width ORDER BY policy, against, min(step)
"""

# The parts are equal in time, from the first event to the last one considered; fewer where little happened.
_PARTS_SQL = f"""
    WITH parts AS (
        SELECT least(greatest(ceil(sqrt(count(*))), {_LEAST_PARTS}), {_MOST_PARTS})::BIGINT AS number
        FROM matches WHERE sequence <= $upto
    ), ends AS (
        SELECT any_value(number) AS number, min(time) AS began,
               greatest(epoch(max(time) - min(time)), 1) / any_value(number) AS part_s
        FROM events, parts WHERE sequence <= $upto
    )
"""
_PART_SQL = "least(floor(epoch(time - began) / part_s), number - 1)::BIGINT"
_MATCHES_SQL = f"""
    {_PARTS_SQL} SELECT purpose, {_PART_SQL} AS part, count(*), sum(tokens)::DOUBLE FROM matches, ends
    WHERE sequence <= $upto GROUP BY purpose, part
"""
_STEPS_SQL = f"""
    {_PARTS_SQL} SELECT policy, {_PART_SQL} AS part, count(*), 0::DOUBLE FROM gradient_steps, ends
    WHERE sequence <= $upto AND list_contains($policies, policy) GROUP BY policy, part
"""


_DRAWS_SQL = """
    WITH drawn AS (
        SELECT o.bucket, o.sequence FROM opponents_sampled o
        WHERE o.sequence <= $upto AND NOT starts_with(o.match_id, $session)
              AND list_contains($policies, regexp_extract(o.hero, '^(.+)@([0-9]+)$', 1))
    ), stepped AS (
        SELECT sequence, max(step) OVER (ORDER BY sequence) AS step FROM gradient_steps
        WHERE sequence <= $upto AND list_contains($policies, policy)
    ), placed AS (
        SELECT bucket, coalesce(g.step, 0) AS step FROM drawn d ASOF LEFT JOIN stepped g ON d.sequence >= g.sequence
    ), spread AS (SELECT ceil((max(step) + 1) / $windows)::BIGINT AS width FROM placed)
    SELECT step // width * width AS first, first + width - 1 AS last, bucket, count(*) AS picks
    FROM placed CROSS JOIN spread GROUP BY ALL ORDER BY ALL
"""


class DrawWindow(msgspec.Struct, frozen=True):
    """Opponents drawn in a window of gradient steps."""

    first_step: int
    last_step: int
    picks: dict[str, int]
    """Number of seats drawn for, by bucket."""


def draw_windows(connection: Any, upto: int, policies: Collection[str], windows: int) -> list[DrawWindow]:
    """Count the opponents drawn for matches of these policies by bucket, in windows of gradient steps."""
    values = {"upto": upto, "policies": list(policies), "session": SESSION_PREFIX, "windows": windows}
    picks: dict[tuple[int, int], dict[str, int]] = {}
    for first, last, bucket, count in connection.execute(_DRAWS_SQL, values).fetchall():
        picks.setdefault((first, last), {})[bucket] = count
    return [DrawWindow(first, last, counts) for (first, last), counts in picks.items()]


class WinRateWindow(msgspec.Struct, frozen=True):
    """Games of consecutive versions."""

    first_step: int
    last_step: int
    games: int
    wins: int
    """Games in which a seat of the version was strictly first."""
    share: float
    low: float
    """Lower end of the 95 % Wilson interval of the share."""
    high: float


class WinRateSeries(msgspec.Struct, frozen=True):
    """Win shares of a policy: in training, in one suite of evaluations, or against one opponent."""

    policy: str
    against: str
    windows: list[WinRateWindow]
    chance: float
    """Share of the seats that it held: the expected win share by chance, but for ties."""


class FrequencySeries(msgspec.Struct, frozen=True):
    """Frequency of an event, in equal parts of the history."""

    what: str
    hours: list[float]
    """Middle of each part, in hours since the first event."""
    per_minute: list[float]
    low: list[float]
    """95 % score interval, assuming a Poisson process with a constant rate within the part."""
    high: list[float]


class Throughput(msgspec.Struct, frozen=True):
    """Throughput of a league."""

    matches: list[FrequencySeries]
    """Matches by purpose."""
    steps: list[FrequencySeries]
    """Gradient steps, by policy."""
    token_hours: list[float]
    tokens_s: list[float]
    """Tokens of finished matches per second."""


def policies_at(connection: Any, upto: int) -> list[str]:
    """Policies with a version published up to a sequence, oldest first, from a DuckDB connection to a projection."""
    statement = "SELECT policy FROM policies WHERE sequence <= ? GROUP BY policy ORDER BY min(sequence)"
    return [policy for (policy,) in connection.execute(statement, [upto]).fetchall()]


def win_rates(
    connection: Any, upto: int, game: str, policies: Collection[str], opponents: Collection[str] = ()
) -> list[WinRateSeries]:
    """Share of games won by versions of policies: by training and each suite, or by opponent.

    Voided matches do not count, nor those in which one version held every seat. ``opponents`` selects games with one of
    these in another seat, each separately; empty for all games.
    """
    parameters = {"upto": upto, "game": game, "policies": list(policies), "opponents": list(opponents)}
    lines: dict[tuple[str, str], list[tuple[WinRateWindow, float]]] = {}
    for policy, opponent, first, last, games, won, chance in connection.execute(_WIN_RATES_SQL, parameters).fetchall():
        window = WinRateWindow(first, last, games, won, won / games, *wilson_interval(won, games))
        lines.setdefault((policy, opponent), []).append((window, chance))
    series = []
    for (policy, opponent), line in lines.items():
        chance = sum(chance for _, chance in line) / sum(window.games for window, _ in line)
        series.append(WinRateSeries(policy, opponent, [window for window, _ in line], chance))
    return series


def measure_throughput(connection: Any, upto: int, policies: Collection[str]) -> Throughput:
    """Matches, tokens and gradient steps by time up to a sequence, from a DuckDB connection to a projection.

    Voided matches are included: they were played. Gradient steps are those of ``policies``.
    """
    [(parts, part_s)] = connection.execute(f"{_PARTS_SQL} SELECT number, part_s FROM ends", {"upto": upto}).fetchall()
    played = connection.execute(_MATCHES_SQL, {"upto": upto}).fetchall()
    stepped = connection.execute(_STEPS_SQL, {"upto": upto, "policies": list(policies)}).fetchall()
    hours = [(part + 0.5) * part_s / 3600 for part in range(parts)]
    tokens_s = [sum(tokens or 0.0 for _, at, _, tokens in played if at == part) / part_s for part in range(parts)]
    matches, steps = (_frequency_series(rows, hours, part_s) for rows in (played, stepped))
    return Throughput(matches, steps, hours, tokens_s)


def _frequency_series(
    rows: list[tuple[str, int, int, float]], hours: list[float], part_s: float
) -> list[FrequencySeries]:
    counts: dict[str, list[int]] = {}
    for what, part, count, _ in sorted(rows):
        counts.setdefault(what, [0] * len(hours))[part] = count
    minutes = part_s / 60
    series = []
    for what, counted in counts.items():
        ends = [(n + Z_95**2 / 2, Z_95 * math.sqrt(n + Z_95**2 / 4)) for n in counted]
        low = [max(middle - half, 0.0) / minutes for middle, half in ends]
        high = [(middle + half) / minutes for middle, half in ends]
        series.append(FrequencySeries(what, hours, [n / minutes for n in counted], low, high))
    return series
