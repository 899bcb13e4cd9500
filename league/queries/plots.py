"""Pictures of a league's history, as ``league plot`` draws them. Importing this module imports Matplotlib."""

from typing import Literal

import msgspec

from league.analysis.leaderboard import LeaderboardQuery, make_leaderboard
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


class PlotOptions(msgspec.Struct, frozen=True):
    """Options of a plot."""

    kind: PlotKind
    at: str | None
    """Sequence or time of the newest event to include; None for all events."""
    system: str | None
    """Rating system; None for the official one."""
    agents: list[str]
    """Names of the agents; empty for all."""
    policy: str | None
    """A trained policy; None for all."""


async def draw_picture(run: Run, options: PlotOptions) -> Picture:
    """Draw a picture of a league.

    Raises:
        UsageError: the league has no such policy or agent, or nothing to draw.
    """
    async with run.open_log() as history:
        place = await resolve_sequence(run, history, options.at, "--at") if options.at is not None else None
        async with open_tables(run, history) as tables:
            roster = Roster(tables.connection, place or await history.last_sequence())
            policies = policies_at(tables.connection, roster.upto)
            if options.policy is not None and options.policy not in policies:
                raise UsageError(
                    f"--policy {options.policy}: no version of it was published; "
                    f"expected {format_choices(policies, options.policy)}"
                )
            chosen = policies if options.policy is None else [options.policy]
            if options.kind == "pfsp":
                return await _pfsp_picture(history, roster, options.policy)
            _check_agents(roster, options.agents)
            draw = {
                "elo": _elo_picture,
                "winrate": _winrate_picture,
                "payoff": _payoff_picture,
                "throughput": _throughput_picture,
            }
            return draw[options.kind](roster, options, chosen)


def _check_agents(roster: Roster, agents: list[str]) -> None:
    for name in agents:
        if name not in roster.agents:
            raise UsageError(
                f"--agents {name}: not in the league at event {roster.upto:,}; `league leaderboard` lists them"
                + suggest(name, roster.agents)
            )


def _elo_picture(roster: Roster, options: PlotOptions, policies: list[str]) -> Picture:
    board = make_leaderboard(roster.connection, LeaderboardQuery(roster.upto, options.system))

    def is_drawn(agent: str) -> bool:
        named = split_agent(agent)
        return agent in options.agents if options.agents else named is None or named[0] in policies

    rows = [row for row in board.rows if row.rating is not None and is_drawn(row.agent)]
    if not rows:
        raise UsageError(f"elo: no such agent has a rating at event {roster.upto:,}; expected rated matches")
    return ratings_picture(msgspec.structs.replace(board, rows=rows), options.agents)


def _winrate_picture(roster: Roster, options: PlotOptions, policies: list[str]) -> Picture:
    rates = win_rates(roster.connection, roster.upto, roster.game, policies, options.agents)
    if not rates:
        raise UsageError(f"winrate: no such game of a policy's version up to event {roster.upto:,}; expected matches")
    return wins_picture(rates, roster.game, roster.upto)


def _payoff_picture(roster: Roster, options: PlotOptions, _: list[str]) -> Picture:
    matches = roster.matches
    if options.agents:
        matches = matches.exclude_agents([name for name in matches.agents if name not in options.agents])
    report = make_payoff_report(matches, roster.game, most=max(len(options.agents), _MAX_PAYOFF_AGENTS))
    return payoff_picture(report.payoff, roster.game, roster.upto)


async def _pfsp_picture(history: JetStreamLog, roster: Roster, policy: str | None) -> Picture:
    [(last,)] = roster.query(
        "SELECT coalesce(max(step), 0) FROM gradient_steps WHERE sequence <= ? AND (? IS NULL OR policy = ?)",
        roster.upto,
        policy,
        policy,
    )
    audit = await audit_sampling(history, -(-(last + 1) // _PFSP_WINDOWS), policy=policy, until=roster.upto)
    return shares_picture(audit, roster.upto, policy)


def _throughput_picture(roster: Roster, _: PlotOptions, policies: list[str]) -> Picture:
    return throughput_picture(measure_throughput(roster.connection, roster.upto, policies), roster.upto)
