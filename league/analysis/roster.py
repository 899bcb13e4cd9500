"""Inputs of a leaderboard: entrants, the matches between them, and their results."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import msgspec
import numpy as np

from league.history.counterfactual import Counterfactual, amend_rules
from league.ratings.arrays import Ints, MatchArrays, RatingRule, rated_mask
from league.ratings.load import load_matches, load_rules
from schemas.ids import split_agent

_SEPARATOR = "\x1f"
"""Between role and agent: no name contains it, and the text after the last ``@`` is still the version."""


def relabel_by_role(matches: MatchArrays) -> MatchArrays:
    """Make each agent one entrant per role that it played; see ``split_entrant`` for the inverse.

    An agent starts in each role with its registered rating, and a version inherits from the version before it in the
    same role; one that would inherit from the base agent starts with that one's registered rating. An agent in several
    seats of a match meets itself there.
    """
    roles = max(1, len(matches.roles))
    pair_S = matches.agent_S.astype(np.int64) * roles + matches.role_S
    distinct, code_S = np.unique(pair_S, return_inverse=True)
    entrants = [(matches.agents[pair // roles], matches.roles[pair % roles]) for pair in distinct.tolist()]
    names = [f"{role}{_SEPARATOR}{agent}" for agent, role in entrants]
    known = ((name, agent) for name, (agent, _) in zip(names, entrants, strict=True) if agent in matches.starts)
    starts = {name: matches.starts[agent] for name, agent in known}
    if matches.base is not None:
        starts[matches.base] = matches.starts[matches.base]
    resets = {
        f"{role}{_SEPARATOR}{policy}": list(steps) for policy, steps in matches.resets.items() for role in matches.roles
    }
    return replace(matches, agent_S=code_S.astype(np.int32), agents=names, starts=starts, resets=resets)


def split_entrant(name: str) -> tuple[str, str]:
    """Agent and role of an entrant of ``relabel_by_role``."""
    role, _, agent = name.partition(_SEPARATOR)
    return agent, role


def relabel_by_kind(matches: MatchArrays, kinds: Mapping[str, str]) -> MatchArrays:
    """Merge all agents of a kind into one entrant: all start equal, and seats of one kind are not compared."""
    of_agent = [kind_of(name, kinds) for name in matches.agents]
    names = sorted(set(of_agent))
    table = np.array([names.index(kind) for kind in of_agent], np.int32)
    return replace(matches, agent_S=table[matches.agent_S], agents=names, starts={}, base=None, resets={})


def kind_of(agent: str, kinds: Mapping[str, str]) -> str:
    """An agent's kind; a policy version that was never admitted counts as a checkpoint."""
    return kinds.get(agent) or ("checkpoint" if split_agent(agent) is not None else "unknown")


Grouping = Literal["agent", "seat", "kind"]


class LeaderboardEntry(msgspec.Struct, frozen=True):
    """An entrant on a leaderboard: an agent, an agent in one seat, or a kind of agents."""

    rank: int | None
    """None where nothing is known."""
    agent: str
    """Empty for a kind."""
    seat: str
    """Its role in the game; empty for all roles together."""
    kind: str
    rating: float | None = None
    low: float | None = None
    """95 % interval; None with too few matches for one."""
    high: float | None = None
    deviation: float | None = None
    """Standard deviation of the rating, where the system has one."""
    rated_games: int = 0
    wins: int = 0
    """Rated matches in which its seat was strictly first."""
    mean_rank: float | None = None
    """Over its seats in rated matches."""
    active: bool = True
    reason: str = ""
    one_sided: bool = False
    """It won, or lost, every comparison: the prior alone determines its distance from the others."""


class Roster:
    """Entrants, matches and rules of a leaderboard, loaded on demand from a projection of the history.

    ``connection`` is to DuckDB, ``upto`` the last sequence considered; without a ``game`` it is the configured one.
    """

    def __init__(self, connection: Any, upto: int, game: str | None = None, by: Grouping = "agent") -> None:
        self.connection = connection
        self.upto = upto
        self.by = by
        [(self.configured_game, self.official_system, self.systems)] = self.query(
            "SELECT game, system, systems FROM configurations WHERE sequence <= ? ORDER BY sequence DESC LIMIT 1", upto
        )
        self.game: str = game or self.configured_game

    def query(self, statement: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Rows of a statement."""
        rows: list[tuple[Any, ...]] = self.connection.execute(statement, parameters).fetchall()
        return rows

    @cached_property
    def games(self) -> list[str]:
        """Names of the games played."""
        rows = self.query("SELECT DISTINCT game FROM matches WHERE sequence <= ? ORDER BY game", self.upto)
        return [name for (name,) in rows]

    @cached_property
    def agents(self) -> dict[str, LeaderboardEntry]:
        """Entries of all admitted agents in the order of admission, then of newest versions that are not."""
        columns = "SELECT agent, kind, active, reason FROM"
        rows = self.query(f"{columns} entrants_at({self.upto})")
        rows += self.query(f"{columns} unadmitted_versions_at({self.upto}, playing := ?)", self.game)
        return {
            agent: LeaderboardEntry(None, agent, "", kind, active=on, reason=reason) for agent, kind, on, reason in rows
        }

    @cached_property
    def matches(self) -> MatchArrays:
        """The game's matches that are not voided, between the entrants."""
        holding = f"sequence <= {self.upto} AND coalesce(voided_sequence > {self.upto}, true)"
        loaded = load_matches(self.connection, holding, with_roles=True)
        place = loaded.games.index(self.game) if self.game in loaded.games else -1
        matches = loaded.select(loaded.game_M == place)
        if self.by == "seat":
            return relabel_by_role(matches)
        return relabel_by_kind(matches, self._kinds) if self.by == "kind" else matches

    def rules(self, system: str) -> list[RatingRule]:
        """The history's rules for one system alone: as configured, or with its defaults."""
        recorded = [rule for rule in load_rules(self.connection) if rule.sequence <= self.upto]
        return amend_rules(recorded, Counterfactual(system=system))

    def rated_matches(self, rules: Sequence[RatingRule]) -> MatchArrays:
        """The matches that count under these rules."""
        return self.matches.select(rated_mask(self.matches, self.game, rules))

    def entry_for(self, name: str) -> LeaderboardEntry | None:
        """Entry of an entrant by its name in ``matches``; None for a policy version that was never admitted."""
        if self.by == "kind":
            return LeaderboardEntry(None, "", "", name)
        if self.by == "agent":
            return self.agents.get(name)
        agent, role = split_entrant(name)
        return msgspec.structs.replace(self.agents[agent], seat=role) if agent in self.agents else None

    def add_results(self, rows: Sequence[LeaderboardEntry], sequences: Ints) -> list[LeaderboardEntry]:
        """Add wins and mean ranks in the matches at these sequences."""
        results: dict[tuple[str, str], tuple[int, int, int]] = {}
        statement = """
            SELECT s.agent, s.role, count(*) FILTER (s.seat = m.winner), sum(s.rank)::BIGINT, count(*)
            FROM match_seats s JOIN matches m USING (sequence)
            WHERE sequence IN (FROM rated) GROUP BY s.agent, s.role
            """
        for agent, role, *counts in self._query_matches(sequences, statement):
            key = self._key(agent, role, kind_of(agent, self._kinds))
            before = results.get(key, (0, 0, 0))
            results[key] = before[0] + counts[0], before[1] + counts[1], before[2] + counts[2]
        completed = []
        for row in rows:
            wins, ranks, seats = results.get(self._key(row.agent, row.seat, row.kind), (0, 0, 0))
            completed.append(msgspec.structs.replace(row, wins=wins, mean_rank=ranks / seats if seats else None))
        return completed

    def match_seeds(self, sequences: Ints) -> list[int]:
        """Seed of each match at these ascending sequences."""
        statement = "SELECT seed FROM matches WHERE sequence IN (FROM rated) ORDER BY sequence"
        return [seed for (seed,) in self._query_matches(sequences, statement)]

    def _query_matches(self, sequences: Ints, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement that has these sequences as a table ``rated``."""
        # Not as an Arrow table: making one imports pandas where it is installed, half of the time of a leaderboard.
        self.connection.register("rated", {"sequence": np.asarray(sequences, np.int64)})
        try:
            return self.query(statement)
        finally:
            self.connection.unregister("rated")

    def _key(self, agent: str, role: str, kind: str) -> tuple[str, str]:
        return ("", kind) if self.by == "kind" else (agent, role if self.by == "seat" else "")

    @cached_property
    def _kinds(self) -> dict[str, str]:
        return {name: row.kind for name, row in self.agents.items() if row.kind != "version"}
