"""Pictures of a league's history, as ``league plot`` draws them. Importing this module imports Matplotlib."""

from collections.abc import Sequence
from typing import Literal

import msgspec

from league.analysis.leaderboard import make_leaderboard
from league.analysis.payoff import make_payoff_report
from league.analysis.roster import Roster
from league.log.jetstream import JetStreamLog
from league.matchmaking.audit import audit_sampling
from league.plots.charts import payoff_picture, ratings_picture, shares_picture, throughput_picture, wins_picture
from league.plots.render import Picture
from league.plots.series import measure_throughput, policies_at, win_rates
from league.queries.tables import open_tables, resolve_sequence
from league.run import Run
from schemas.errors import UsageError, format_choices, suggest
from schemas.ids import split_agent

_MAX_PAYOFF_AGENTS = 12
_PFSP_WINDOWS = 16

PlotKind = Literal["elo", "winrate", "payoff", "pfsp", "throughput"]


async def draw_picture(
    run: Run,
    kind: PlotKind,
    at: str | None = None,
    system: str | None = None,
    agents: Sequence[str] = (),
    policy: str | None = None,
) -> Picture:
    """Draw a picture of a league.

    ``at`` is the sequence or time of the newest event to include, ``system`` a rating system, ``agents`` are names and
    ``policy`` is a trained policy: None or empty for all events, the official system, all agents and all policies.

    Raises:
        UsageError: the league has no such policy or agent, or nothing to draw.
    """
    async with run.open_log() as history:
        place = await resolve_sequence(run, history, at, "--at") if at is not None else None
        async with open_tables(run, history) as tables:
            roster = Roster(tables.connection, place or await history.last_sequence())
            policies = policies_at(tables.connection, roster.upto)
            if policy is not None and policy not in policies:
                raise UsageError(
                    f"--policy {policy}: no version of it was published; expected {format_choices(policies, policy)}"
                )
            chosen = policies if policy is None else [policy]
            for name in agents:
                if name not in roster.agents:
                    raise UsageError(
                        f"--agents {name}: not in the league at event {roster.upto:,}; `league leaderboard` lists them"
                        + suggest(name, roster.agents)
                    )
            match kind:
                case "elo":
                    return _elo_picture(roster, system, agents, chosen)
                case "winrate":
                    return _winrate_picture(roster, agents, chosen)
                case "payoff":
                    return _payoff_picture(roster, agents)
                case "pfsp":
                    return await _pfsp_picture(history, roster, policy)
                case "throughput":
                    return throughput_picture(measure_throughput(roster.connection, roster.upto, chosen), roster.upto)


def _elo_picture(roster: Roster, system: str | None, agents: Sequence[str], policies: list[str]) -> Picture:
    board = make_leaderboard(roster.connection, roster.upto, system)
    rows = []
    for row in board.rows:
        named = split_agent(row.agent)
        is_drawn = row.agent in agents if agents else named is None or named[0] in policies
        if row.rating is not None and is_drawn:
            rows.append(row)
    if not rows:
        raise UsageError(f"elo: no such agent has a rating at event {roster.upto:,}; expected rated matches")
    return ratings_picture(msgspec.structs.replace(board, rows=rows), agents)


def _winrate_picture(roster: Roster, agents: Sequence[str], policies: list[str]) -> Picture:
    rates = win_rates(roster.connection, roster.upto, roster.game, policies, agents)
    if not rates:
        raise UsageError(f"winrate: no such game of a policy's version up to event {roster.upto:,}; expected matches")
    return wins_picture(rates, roster.game, roster.upto)


def _payoff_picture(roster: Roster, agents: Sequence[str]) -> Picture:
    matches = roster.matches
    if agents:
        matches = matches.exclude_agents([name for name in matches.agents if name not in agents])
    report = make_payoff_report(matches, roster.game, most=max(len(agents), _MAX_PAYOFF_AGENTS))
    return payoff_picture(report.payoff, roster.game, roster.upto)


async def _pfsp_picture(history: JetStreamLog, roster: Roster, policy: str | None) -> Picture:
    [(last,)] = roster.query(
        "SELECT coalesce(max(step), 0) FROM gradient_steps WHERE sequence <= ? AND (? IS NULL OR policy = ?)",
        *(roster.upto, policy, policy),
    )
    audit = await audit_sampling(history, -(-(last + 1) // _PFSP_WINDOWS), policy=policy, until=roster.upto)
    return shares_picture(audit, roster.upto, policy)
