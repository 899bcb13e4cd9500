"""Long histories as arrays, and their fold into ratings, equal bit for bit to ``fold.RatingFold``.

A match is a row of ``MatchArrays``; its seats are consecutive in flat arrays. The loop over matches is compiled,
together with the system's ``update`` on first use, so that every sum is formed in the order of the history. Over a
short history it runs as it is, on lists, since loading compiled code takes longer. One file, since the loop depends on
the layout of the arrays.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from league.ratings.base import DEFAULT_RATING, RatingSystem, make_rating_system
from league.ratings.compiled import compile_function, compile_loop, has_compiler, replace_globals
from schemas.config import RatingsConfig
from schemas.events import AgentRating
from schemas.ids import agent_name, split_agent

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class StartRating:
    """A registered agent's starting rating, in force after the sequence of the registration."""

    rating: float
    sequence: int


@dataclass(frozen=True)
class Reset:
    """The last version before a policy's reset, and the sequence of the reset."""

    version: int
    sequence: int


@dataclass(frozen=True)
class RatingRule:
    """The configuration of ratings from a sequence on."""

    sequence: int
    ratings: RatingsConfig


@dataclass(frozen=True)
class MatchArrays:
    """Matches in the order of the history; M matches, S seats."""

    sequence_M: Ints
    game_M: Codes
    """Index into ``games``."""
    purpose_M: Codes
    """Index into ``purposes``."""
    begin_M: Ints
    """Index of a match's first seat in the arrays of seats."""
    end_M: Ints
    """One past its last seat."""
    agent_S: Codes
    """Index into ``agents``."""
    score_S: Floats
    agents: list[str]
    games: list[str]
    purposes: list[str]
    starts: dict[str, StartRating]
    """Starting ratings of agents registered with one."""
    base: str | None
    """The first registered base agent."""
    rules: list[RatingRule]
    """Configurations in the order of the history."""
    role_S: Codes = field(default_factory=lambda: np.zeros(0, np.int32))
    """Index into ``roles``; empty where roles were not loaded."""
    roles: list[str] = field(default_factory=list)
    """Names of seats in their game, such as powers or the turn order."""
    resets: dict[str, list[Reset]] = field(default_factory=dict)
    """Resets by policy; versions after a reset inherit nothing from before."""

    def __len__(self) -> int:
        return len(self.sequence_M)

    def select(self, selection_M: Mask | Ints) -> "MatchArrays":
        """Returns the matches of a mask, or those at these indices, repeated as the indices are."""
        names = ("sequence_M", "game_M", "purpose_M", "begin_M", "end_M")
        return replace(self, **{name: getattr(self, name)[selection_M] for name in names})

    def exclude_matches(self, sequences: Collection[int]) -> "MatchArrays":
        """Returns all matches but those recorded at these sequences."""
        return self.select(~np.isin(self.sequence_M, np.fromiter(sequences, np.int64, len(sequences))))

    def until(self, sequence: int) -> "MatchArrays":
        """Returns the matches recorded up to a sequence."""
        return self.select(self.sequence_M <= sequence)

    def exclude_agents(self, names: Collection[str]) -> "MatchArrays":
        """Returns the matches without these agents' seats; comparisons between other seats remain."""
        codes = [code for code, name in enumerate(self.agents) if name in names]
        kept_S = ~np.isin(self.agent_S, codes)
        place = np.concatenate([[0], np.cumsum(kept_S)]).astype(np.int64)
        return replace(
            self,
            begin_M=place[self.begin_M],
            end_M=place[self.end_M],
            agent_S=self.agent_S[kept_S],
            score_S=self.score_S[kept_S],
            role_S=self.role_S[kept_S] if len(self.role_S) else self.role_S,
        )


def fold_arrays(
    matches: MatchArrays, rules: Sequence[RatingRule] | None = None
) -> dict[tuple[str, str], list[AgentRating]]:
    """Fold matches, none of them voided, into ratings.

    The rules are by default those of the history; before the first the default configuration holds. For each game and
    system with counted matches, the result has all rated agents in the order of their first rated match.
    """
    spans = rule_spans(matches, matches.rules if rules is None else rules)
    ratings_by_place: dict[tuple[str, str], list[AgentRating]] = {}
    for name in dict.fromkeys(plugin.name for span in spans for plugin in span.ratings.systems):
        own = [
            (span, make_rating_system(plugin))
            for span in spans
            for plugin in span.ratings.systems
            if plugin.name == name
        ]
        for game in matches.games:
            fold = GameFold(matches, game, [span for span, _ in own], own[0][1])
            for span, system in own:
                fold.run(slice(span.first, span.stop), system)
            if ratings := fold.ratings():
                ratings_by_place[game, name] = ratings
    return ratings_by_place


class RuleSpan(NamedTuple):
    """Matches ``first`` to ``stop - 1``, played under the same rules."""

    first: int
    stop: int
    ratings: RatingsConfig


def rule_spans(matches: MatchArrays, rules: Sequence[RatingRule]) -> list[RuleSpan]:
    """The matches by the rules in force, without spans that have none."""
    inside = [RatingRule(0, RatingsConfig()), *rules]
    edges = [0, *(int(np.searchsorted(matches.sequence_M, rule.sequence, "right")) for rule in rules), len(matches)]
    spans = ((first, stop, rule.ratings) for rule, (first, stop) in zip(inside, pairwise(edges), strict=True))
    return [RuleSpan(*span) for span in spans if span[1] > span[0]]


def rated_mask(matches: MatchArrays, game: str, rules: Sequence[RatingRule] | None = None) -> Mask:
    """Mask of a game's matches that move ratings; ``rules`` as in ``fold_arrays``."""
    if game not in matches.games:
        return np.zeros(len(matches), np.bool_)
    spans = rule_spans(matches, matches.rules if rules is None else rules)
    return _find_rated(matches, matches.games.index(game), spans)[0]


def _find_rated(matches: MatchArrays, game: int, spans: Sequence[RuleSpan]) -> tuple[Mask, Ints, Ints]:
    """Mask of counted matches, and each agent's first seat and match among them, or -1."""
    counted_M = np.zeros(len(matches), np.bool_)
    for span in spans:
        here = slice(span.first, span.stop)
        counts_P = np.array([name in span.ratings.purposes for name in matches.purposes], np.bool_)
        counted_M[here] = (matches.game_M[here] == game) & counts_P[matches.purpose_M[here]]
    seat_A, match_A = np.full((2, len(matches.agents)), -1, np.int64)
    arrays = (matches.begin_M, matches.end_M, matches.agent_S, matches.score_S, counted_M, seat_A, match_A)
    if is_worth_compiling(len(matches.agent_S)):
        compile_function(_mark_rated)(*arrays)
        return counted_M, seat_A, match_A
    # Python reads lists several times as fast as arrays.
    lists: list[Any] = [array.tolist() for array in arrays]
    _mark_rated(*lists)
    return np.array(lists[4], np.bool_), np.array(lists[5], np.int64), np.array(lists[6], np.int64)


class GameFold:
    """The fold of one game's matches under one system, whose settings may differ between spans.

    Shape suffixes: A agent of the matches, W number of a state.
    """

    def __init__(self, matches: MatchArrays, game: str, spans: Sequence[RuleSpan], system: RatingSystem) -> None:
        self._matches = matches
        self._counted_M, self._seat_A, match_A = _find_rated(matches, matches.games.index(game), spans)
        self._source_A, self.state_AW = _initial_states(matches, system, match_A)
        self._games_A = np.zeros(len(matches.agents), np.int64)

    def ratings(self) -> list[AgentRating]:
        """All agents rated so far, in the order of their first seats."""
        order = sorted(np.flatnonzero(self._games_A).tolist(), key=self._seat_A.__getitem__)
        states, games, names = self.state_AW, self._games_A, self._matches.agents
        return [AgentRating(names[a], float(states[a, 0]), int(games[a]), states[a, 1:].tolist()) for a in order]

    def run(self, here: slice, system: RatingSystem) -> None:
        """Fold a slice of the matches."""
        global _interpreted_seats
        counted_M = self._counted_M[here]
        begin_M, end_M = self._matches.begin_M[here][counted_M], self._matches.end_M[here][counted_M]
        if not len(begin_M):
            return
        first, last, most = int(begin_M.min()), int(end_M.max()), int((end_M - begin_M).max())
        arrays = (
            begin_M - first,
            end_M - first,
            self._matches.agent_S[first:last],
            self._matches.score_S[first:last],
            self._source_A,
            self.state_AW.reshape(-1),
            self._games_A,
            np.array([rule.factor for rule in system.inheritance]),
            np.array([rule.most for rule in system.inheritance]),
            np.array(system.constants, np.float64),
            *np.zeros((3, most), np.int64),
            *np.zeros((2, most * self.state_AW.shape[1])),
            np.zeros(most * system.work_per_seat),
        )
        seats = int((end_M - begin_M).sum())
        if is_worth_compiling(seats):
            compile_loop(_fold, "_update", system.update)(*arrays)
            return
        _interpreted_seats += seats
        lists: list[Any] = [array.tolist() for array in arrays]
        replace_globals(_fold, {"_update": system.update})(*lists)
        self.state_AW[:] = np.reshape(lists[5], self.state_AW.shape)
        self._games_A[:] = lists[6]


_INTERPRETED_SEATS = 60_000
"""Most seats that a process folds in Python, in about the time that loading compiled code takes."""

_interpreted_seats = 0


def is_worth_compiling(seats: int) -> bool:
    """Whether to use compiled code for so many seats more; both ways give the same bits."""
    return has_compiler() and _interpreted_seats + seats > _INTERPRETED_SEATS


def _initial_states(matches: MatchArrays, system: RatingSystem, match_A: Ints) -> tuple[Codes, Floats]:
    """Per agent, at its first rated match: the agent from which it inherits or -1, and its own starting state."""
    source_A = np.full(len(match_A), -1, np.int32)
    state_AW = np.zeros((len(match_A), len(system.start(DEFAULT_RATING))), np.float64)
    code_of = {name: code for code, name in enumerate(matches.agents)}
    versions: dict[str, list[int]] = {}
    rated = sorted(np.flatnonzero(match_A >= 0).tolist(), key=match_A.__getitem__)
    for match, together in groupby(rated, key=match_A.__getitem__):
        codes, at = list(together), int(matches.sequence_M[match])
        for code in codes:
            origin = _initial_source(matches, matches.agents[code], at, versions)
            if isinstance(origin, str) and 0 <= match_A[code_of.get(origin, code)] < match:
                source_A[code] = code_of[origin]
            else:
                state_AW[code] = system.start(matches.starts[origin].rating if isinstance(origin, str) else origin)
        # Agents first rated in the same match do not inherit from each other.
        for named in filter(None, (split_agent(matches.agents[code]) for code in codes)):
            insort(versions.setdefault(named[0], []), named[1])
    return source_A, state_AW


def _initial_source(matches: MatchArrays, agent: str, at: int, versions: dict[str, list[int]]) -> str | float:
    """The agent from which an agent inherits when it is first rated, or its own starting rating."""
    start = matches.starts.get(agent)
    if start is not None and start.sequence < at:
        return start.rating
    named = split_agent(agent)
    if named is not None and (place := bisect_left(versions.get(named[0], []), named[1])):
        policy, version = named
        resets = matches.resets.get(policy, [])
        first = max((r.version + 1 for r in resets if r.version < version and r.sequence < at), default=0)
        if versions[policy][place - 1] >= first:
            return agent_name(policy, versions[policy][place - 1])
    known = matches.base is not None and matches.starts[matches.base].sequence < at
    return matches.base if matches.base is not None and known else DEFAULT_RATING


def _mark_rated(
    begin_M: Ints, end_M: Ints, agent_S: Codes, score_S: Floats, counted_M: Mask, seat_A: Ints, match_A: Ints
) -> None:
    """Unmark matches that cannot be rated, and record each agent's first rated seat and match."""
    for match in range(len(begin_M)):
        if not counted_M[match]:
            continue
        several, finite = False, True
        for seat in range(begin_M[match], end_M[match]):
            several = several or agent_S[seat] != agent_S[begin_M[match]]
            finite = finite and isfinite(score_S[seat])
        counted_M[match] = several and finite
        if several and finite:
            for seat in range(begin_M[match], end_M[match]):
                if seat_A[agent_S[seat]] < 0:
                    seat_A[agent_S[seat]], match_A[agent_S[seat]] = seat, match


def _update(*_: Any) -> None:
    """Placeholder for the ``update`` of the system."""
    raise NotImplementedError


def _fold(
    begin_M: Ints,
    end_M: Ints,
    agent_S: Codes,
    score_S: Floats,
    source_A: Codes,
    states: Floats,
    games_A: Ints,
    factor_W: Floats,
    most_W: Floats,
    constants: Floats,
    code_B: Ints,
    games_B: Ints,
    place_S: Ints,
    before: Floats,
    after: Floats,
    work: Floats,
) -> None:
    """Fold all matches in order; an agent's state is set at its first match, when its ``games_A`` is 0.

    ``states[agent * W + number]`` are the states; the arguments after ``constants`` are scratch space for the largest
    match.
    """
    width = len(factor_W)
    for match in range(len(begin_M)):
        first, seats, agents = begin_M[match], end_M[match] - begin_M[match], 0
        for seat in range(seats):
            agent, place = agent_S[first + seat], 0
            while place < agents and code_B[place] != agent:
                place += 1
            place_S[seat] = place
            if place == agents:
                code_B[place] = agent
                games_B[place] = games_A[agent]
                origin = source_A[agent] if games_A[agent] == 0 else -1
                for number in range(width):
                    if origin >= 0:
                        x = states[origin * width + number] * factor_W[number]
                        states[agent * width + number] = x if x < most_W[number] else most_W[number]
                    before[place * width + number] = states[agent * width + number]
                    after[place * width + number] = states[agent * width + number]
                agents += 1
        _update(seats, agents, place_S, score_S[first : first + seats], before, after, games_B, constants, work)
        for place in range(agents):
            games_A[code_B[place]] += 1
            for number in range(width):
                states[code_B[place] * width + number] = after[place * width + number]
