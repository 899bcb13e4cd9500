"""Matches as validated comparisons between seats, so that the fits need not check their input again.

Suffixes: M match, S seat, A agent, R role.
"""

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from league.ratings.arrays import Codes, Floats, Ints, MatchArrays
from schemas.errors import UsageError

Z_95 = 1.959963984540054
"""Quantile of the normal distribution for 95 % intervals."""

MAX_AGENTS = 4000
"""The analyses keep a dense matrix of agents by agents."""


@dataclass(frozen=True)
class Comparisons:
    """Matches that compare seats; the seats of a match from the best score down."""

    begin_M: Ints
    end_M: Ints
    agent_S: Codes
    """Index into ``agents``."""
    role_S: Codes
    """Index into ``roles``; 0 where none were passed."""
    rank_S: Codes
    """Place in the match from 0; seats of equal score share it."""
    agents: list[str]
    """Agents with a comparison, in the order of their first seats."""
    roles: list[str]
    games_A: Ints
    """Number of matches of each agent, however many seats it held in one."""
    passed_over: int
    """Matches without a comparison: a score that is not finite, or fewer than two different agents."""
    place_M: Ints
    """Index of each match in the input."""


def make_comparisons(matches: MatchArrays, role_S: Sequence[str] | Codes | None = None) -> Comparisons:
    """Select the matches that compare at least two agents.

    Matches that no rating system counts (a score that is not finite, a single seat, one agent in all seats) are skipped
    and counted, since history cannot be edited. All matches are of one game, none of them voided. ``role_S`` as in
    ``fit_strengths``; several seats may share one.

    Raises:
        UsageError: arrays that do not fit together, a seat in two matches, or no match that compares.
    """
    _check_shape(matches, role_S)
    listed, match_S = seats_of(matches)
    first_S = matches.agent_S[np.minimum(matches.begin_M, len(matches.agent_S) - 1)[match_S]]
    several = np.bincount(match_S, matches.agent_S[listed] != first_S, len(matches)) > 0
    broken = np.bincount(match_S, ~np.isfinite(matches.score_S[listed]), len(matches)) > 0
    counted = several & ~broken
    if not counted.any():
        raise UsageError(
            f"board: none of {len(matches)} matches compares two agents; "
            "expected a match with two different agents and finite scores"
        )
    kept = matches.select(counted)
    seats, match_S = seats_of(kept)
    order = np.lexsort((seats, -kept.score_S[seats], match_S))
    seats = seats[order]
    size_M = kept.end_M - kept.begin_M
    end_M = np.cumsum(size_M)
    # Compact codes, in the order of first seats.
    codes, first = np.unique(kept.agent_S[np.sort(seats)], return_index=True)
    codes = codes[np.argsort(first)]
    table = np.zeros(int(codes.max()) + 1, np.int32)
    table[codes] = np.arange(len(codes), dtype=np.int32)
    agent_S: Codes = table[kept.agent_S[seats]]
    if len(codes) > MAX_AGENTS:
        raise UsageError(
            f"board: {len(codes)} agents were compared; expected at most {MAX_AGENTS}: choose some of them"
        )
    roles, chosen = _roles(matches, role_S, seats)
    pairs = np.unique(match_S * len(codes) + agent_S)
    return Comparisons(
        begin_M=end_M - size_M,
        end_M=end_M,
        agent_S=agent_S,
        role_S=chosen,
        rank_S=_ranks(kept.score_S[seats], match_S),
        agents=[matches.agents[code] for code in codes.tolist()],
        roles=roles,
        games_A=np.bincount(pairs % len(codes), minlength=len(codes)).astype(np.int64),
        passed_over=len(matches) - len(kept),
        place_M=np.flatnonzero(counted),
    )


def _roles(matches: MatchArrays, role_S: Sequence[str] | Codes | None, seats: Ints) -> tuple[list[str], Codes]:
    """Names of the roles with a comparison, sorted, and each seat's index into them."""
    if role_S is None:
        return [""], np.zeros(len(seats), np.int32)
    if isinstance(role_S, np.ndarray):
        codes, place_S = np.unique(role_S[seats], return_inverse=True)
        names = [matches.roles[code] for code in codes]
        rank_R = np.argsort(np.argsort(names)).astype(np.int32)
        return sorted(names), rank_R[place_S]
    chosen = [role_S[seat] for seat in seats.tolist()]
    place = {role: code for code, role in enumerate(sorted(set(chosen)))}
    return list(place), np.array([place[role] for role in chosen], np.int32)


def _check_shape(matches: MatchArrays, role_S: Sequence[str] | Codes | None) -> None:
    seats = len(matches.agent_S)
    if len(matches.score_S) != seats or (role_S is not None and len(role_S) != seats):
        roles = f" and {len(role_S)} roles" if role_S is not None else ""
        raise UsageError(f"board: {seats} seats have {len(matches.score_S)} scores{roles}; expected one of each a seat")
    if len(set(matches.game_M.tolist())) > 1:
        names = ", ".join(matches.games[code] for code in sorted(set(matches.game_M.tolist())))
        raise UsageError(f"board: the matches are of several games ({names}); expected those of one")
    bad = (matches.begin_M < 0) | (matches.end_M > seats) | (matches.begin_M > matches.end_M)
    if bad.any():
        where = int(matches.sequence_M[np.argmax(bad)])
        raise UsageError(f"board: the match at sequence {where} has seats outside the {seats} seats of the history")
    if seats and not (matches.agent_S.min() >= 0 and matches.agent_S.max() < len(matches.agents)):
        raise UsageError(f"board: a seat names an agent outside the {len(matches.agents)} agents of the history")
    listed, match_S = seats_of(matches)
    values, count = np.unique(listed, return_counts=True)
    if (count > 1).any():
        seat = values[np.argmax(count > 1)]
        twice = matches.sequence_M[match_S[listed == seat]][:2]
        raise UsageError(f"board: seat {seat} is listed twice, at sequences {twice[0]} and {twice[1]}; expected once")


def seats_of(matches: MatchArrays) -> tuple[Ints, Ints]:
    """Every seat of every match, and the index of its match."""
    size_M = matches.end_M - matches.begin_M
    match_S = np.repeat(np.arange(len(matches)), size_M)
    before_M = np.cumsum(size_M) - size_M
    return np.arange(len(match_S)) - np.repeat(before_M - matches.begin_M, size_M), match_S


def _ranks(score_S: Floats, match_S: Ints) -> Codes:
    """Ranks of seats that are sorted by match and falling score."""
    new_match = np.diff(match_S, prepend=-1) != 0
    new_rank = new_match | (np.diff(score_S, prepend=np.inf) != 0)
    count = np.cumsum(new_rank)
    starts = np.repeat(count[new_match], np.diff(np.append(np.flatnonzero(new_match), len(match_S))))
    ranks: Codes = (count - starts).astype(np.int32)
    return ranks


def number_keys(keys: Iterable[Hashable]) -> Ints:
    """Number keys from 0 in the order of first occurrence; equal keys share a number."""
    codes: dict[Hashable, int] = {}
    return np.array([codes.setdefault(key, len(codes)) for key in keys], np.int64)


def connected_groups(compared: Comparisons, joined: Collection[str] = ()) -> list[list[str]]:
    """Groups of agents connected by matches, largest first; those in ``joined`` share a known scale and connect."""
    parent = list(range(len(compared.agents)))

    def root(code: int) -> int:
        while parent[code] != code:
            parent[code] = parent[parent[code]]
            code = parent[code]
        return code

    first_S = np.repeat(compared.agent_S[compared.begin_M], compared.end_M - compared.begin_M)
    edges = np.unique(np.stack([first_S, compared.agent_S]), axis=1).T.tolist()
    known = [code for code, name in enumerate(compared.agents) if name in joined]
    for left, right in [*edges, *((known[0], other) for other in known[1:])]:
        parent[root(left)] = root(right)
    members: dict[int, list[str]] = {}
    for code, name in enumerate(compared.agents):
        members.setdefault(root(code), []).append(name)
    return sorted(members.values(), key=len, reverse=True)
