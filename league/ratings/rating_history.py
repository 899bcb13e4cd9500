"""Rating histories, the fold of ``arrays`` with intermediate states; and intervals, the fold over resampled histories.

An interrupted and continued fold gives the same bits, so a history ends where ``fold_arrays`` ends.
"""

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from league.ratings.arrays import (
    Floats,
    GameFold,
    Ints,
    MatchArrays,
    RatingRule,
    fold_arrays,
    is_worth_compiling,
    rated_mask,
    rule_spans,
)
from league.ratings.base import make_rating_system
from league.ratings.compiled import has_compiler
from schemas.ids import derive_seed

StopSelector = Callable[[Ints], Ints]
"""Selects stops among an agent's rated matches: takes their ascending sequences, returns ascending indices."""


@dataclass(frozen=True)
class RatingHistory:
    """An agent's states after some of its rated matches; P stops, W numbers of a state."""

    agent: str
    sequence_P: Ints
    """Sequences of the matches."""
    games_P: Ints
    """Number of the agent's rated matches up to and including each."""
    state_PW: Floats
    """Rating, deviation where the system has one, and the rest."""


def rating_histories(
    matches: MatchArrays, game: str, rules: Sequence[RatingRule], agents: Sequence[str], choose: StopSelector
) -> list[RatingHistory]:
    """Rating histories of some agents of a game, at the stops that ``choose`` selects; one never rated has none.

    The matches are without voided ones. The first system of each rule counts, and must be the same in all.
    """
    rated = matches.select(rated_mask(matches, game, rules))
    known = {name: code for code, name in enumerate(rated.agents)}
    matches_of = {name: places for name in agents if len(places := _agent_matches(rated, known.get(name, -1)))}
    chosen = {name: choose(rated.sequence_M[places]) for name, places in matches_of.items()}
    stops = np.unique(np.concatenate([np.zeros(0, np.int64), *(matches_of[name][at] for name, at in chosen.items())]))
    states_PCW = _states(rated, game, rules, stops.astype(np.int64), [known[name] for name in matches_of])
    return [
        RatingHistory(
            agent=name,
            sequence_P=rated.sequence_M[matches_of[name][at]],
            games_P=at + 1,
            state_PW=states_PCW[np.searchsorted(stops, matches_of[name][at]), column],
        )
        for column, (name, at) in enumerate(chosen.items())
    ]


def number_keys(keys: Iterable[Hashable]) -> Ints:
    """Number keys from 0 in the order of first occurrence; equal keys share a number."""
    codes: dict[Hashable, int] = {}
    return np.array([codes.setdefault(key, len(codes)) for key in keys], np.int64)


def _agent_matches(rated: MatchArrays, code: int) -> Ints:
    seats = np.flatnonzero(rated.agent_S == code)
    place = np.searchsorted(rated.begin_M, seats, "right") - 1
    held = (place >= 0) & (seats < np.append(rated.end_M, 0)[place])
    indices: Ints = np.unique(place[held])
    return indices


def _states(rated: MatchArrays, game: str, rules: Sequence[RatingRule], stops: Ints, codes: Sequence[int]) -> Floats:
    """States of some agents after each of the matches ``stops``."""
    spans = rule_spans(rated, rules)
    if not spans or not len(stops):
        return np.zeros((0, len(codes), 1))
    fold = GameFold(rated, game, spans, make_rating_system(spans[0].ratings.system))
    states = np.zeros((len(stops), len(codes), fold.state_AW.shape[1]))
    for span in spans:
        system = make_rating_system(span.ratings.system)
        begin = span.first
        for at in range(*np.searchsorted(stops, [span.first, span.stop]).tolist()):
            end = int(stops[at]) + 1
            fold.run(slice(begin, end), system)
            states[at] = fold.state_AW[codes]
            begin = end
        if begin < span.stop <= stops[-1]:
            fold.run(slice(begin, span.stop), system)
    return states


DEFAULT_DRAWS = 200
MIN_DRAWS = 40
"""With fewer, the ends of an interval are single draws and mostly noise."""
MIN_GAMES = 5
"""Agents with fewer rated matches have no interval: a lucky match is in nearly every draw, or in none."""
MAX_FOLDED_SEATS = 20_000_000
"""Maximum number of seats folded for one table: seconds under Elo, half a minute under TrueSkill, on one core."""

Interval = tuple[float, float]

_PYTHON_COST_RATIO = 40
"""A seat costs at most this many times more where folds are not compiled."""


def affordable_draws(matches: int, seats: int) -> int:
    """Number of draws affordable for a history's length; 0 when too few to be useful."""
    limit = MAX_FOLDED_SEATS if has_compiler() else MAX_FOLDED_SEATS // _PYTHON_COST_RATIO
    draws = min(DEFAULT_DRAWS, limit // max(1, seats)) if matches else 0
    return draws if draws >= MIN_DRAWS else 0


def bootstrap_intervals(
    matches: MatchArrays,
    game: str,
    system: str,
    rules: Sequence[RatingRule],
    draws: int = DEFAULT_DRAWS,
    seed: int = 0,
    cluster_M: Sequence[Hashable] | None = None,
) -> dict[str, Interval]:
    """Compute 95 % intervals of the ratings of ``fold_arrays``, for agents with ``MIN_GAMES`` rated matches or more.

    Each of the rules' systems costs a fold of its own. Every match is its own cluster unless ``cluster_M`` says which
    it is of, such as its seed. Equal arguments give equal intervals, on any number of cores.
    """
    counted_M = rated_mask(matches, game, rules)
    rated = matches.select(counted_M)
    if not len(rated) or draws < 1:
        return {}
    enough = [one.agent for one in fold_arrays(rated, rules).get((game, system), []) if one.games >= MIN_GAMES]
    place = {name: code for code, name in enumerate(rated.agents)}
    keys = range(len(matches)) if cluster_M is None else cluster_M
    cluster_R = number_keys(keys[at] for at in np.flatnonzero(counted_M).tolist())
    clusters = int(cluster_R.max()) + 1
    rating_DA = np.full((draws, len(rated.agents)), np.nan)

    def draw(number: int) -> None:
        rng = np.random.default_rng(derive_seed(seed, "resampled history", number))
        times_C = np.bincount(rng.integers(0, clusters, clusters), minlength=clusters)
        again = rated.select(np.repeat(np.arange(len(rated)), times_C[cluster_R]))
        for one in fold_arrays(again, rules).get((game, system), []):
            rating_DA[number, place[one.agent]] = one.rating

    # Threads that interpret their folds would only wait for each other, and take half as much time again.
    threads = (os.cpu_count() or 1) if is_worth_compiling(draws * len(rated.agent_S)) else 1
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(draw, range(draws)))
    # A draw without matches of the agent carries no information about its rating.
    ends = {name: np.nanquantile(rating_DA[:, place[name]], [0.025, 0.975]).tolist() for name in enough}
    return {name: (low, high) for name, (low, high) in ends.items()}
