"""Payoff matrix: the share of points that each agent takes from each other agent, and a report of it.

In a match, every seat of one agent is compared with every seat of another: 1, ½ or 0 by score. The mean over those
pairs of seats is the match's share, so a match counts once however many seats the two held. Intervals are Wilson's
(JASA 22, 1927) with matches for trials: where shares lie between 0 and 1 they are wider than necessary, never narrower.
"""

from collections.abc import Collection

import msgspec
import numpy as np

from league.analysis.comparisons import Z_95, make_comparisons, seats_of
from league.analysis.population import HodgeDecomposition, NashAverage, decompose, nash_average
from league.ratings.arrays import Floats, MatchArrays
from schemas.errors import LeagueError, UsageError, format_choices

_SMOOTHING = 0.5
"""Pseudo-matches added to each side before taking logarithms: Jeffreys' prior."""


class PayoffMatrix(msgspec.Struct, frozen=True):
    """Rows against columns, both in the order of ``agents``; None on the diagonal and for agents that never met."""

    agents: list[str]
    share: list[list[float | None]]
    """Share of the points between the two taken by the row's agent, 0 to 1."""
    low: list[list[float | None]]
    """95 % interval."""
    high: list[list[float | None]]
    matches: list[list[int]]
    """Number of matches with both agents."""
    passed_over: int
    """Matches without a comparison."""

    def counts(self) -> Floats:
        """``matches`` as an array."""
        return np.array(self.matches, np.float64)

    def points(self) -> Floats:
        """Points taken by the row's agent, in matches."""
        share = [[value or 0.0 for value in row] for row in self.share]
        return np.array(share) * self.counts()

    def log_odds(self, unmet_even: bool = False) -> Floats:
        """Antisymmetric matrix of log-odds of the row's agent, smoothed by half a match won and half a match lost.

        Raises ``UsageError`` where two agents never met, unless ``unmet_even`` takes them for even.
        """
        counts, points = self.counts(), self.points()
        unmet = (counts == 0) & ~np.eye(len(counts), dtype=bool)
        if unmet.any() and not unmet_even:
            row, column = np.argwhere(unmet)[0]
            raise UsageError(
                f"payoff: {self.agents[row]!r} and {self.agents[column]!r} never met, nor did {int(unmet.sum()) // 2} "
                "pairs in all; expected matches between all, or --unmet-even"
            )
        odds = np.log((points + _SMOOTHING) / (counts - points + _SMOOTHING))
        return 0.5 * (odds - odds.T)


def make_payoff_matrix(matches: MatchArrays) -> PayoffMatrix:
    """Make the payoff matrix of matches of one game, none of them voided; raises as ``make_comparisons`` does."""
    compared = make_comparisons(matches)
    agents = len(compared.agents)
    counts_AA, points_AA = np.zeros((2, agents, agents))
    size_M = compared.end_M - compared.begin_M
    for seats in np.unique(size_M).tolist():
        begin_M = compared.begin_M[size_M == seats]
        agent_MN = compared.agent_S[begin_M[:, None] + np.arange(seats)].astype(np.int64)
        rank_MN = compared.rank_S[begin_M[:, None] + np.arange(seats)]
        held_MN = (agent_MN[:, :, None] == agent_MN[:, None, :]).sum(2)
        for i in range(seats):
            for j in range(seats):
                different = agent_MN[:, i] != agent_MN[:, j]
                weight = different / (held_MN[:, i] * held_MN[:, j])
                taken = 0.5 + 0.5 * np.sign(rank_MN[:, j] - rank_MN[:, i])
                place = agent_MN[:, i] * agents + agent_MN[:, j]
                counts_AA += np.bincount(place, weight, agents**2).reshape(agents, agents)
                points_AA += np.bincount(place, weight * taken, agents**2).reshape(agents, agents)
    counts_AA = np.rint(counts_AA)
    low_AA, high_AA = wilson_intervals(points_AA, counts_AA)
    met_AA = counts_AA > 0
    return PayoffMatrix(
        agents=compared.agents,
        share=_to_lists(points_AA / np.maximum(counts_AA, 1), met_AA),
        low=_to_lists(low_AA, met_AA),
        high=_to_lists(high_AA, met_AA),
        matches=counts_AA.astype(int).tolist(),
        passed_over=compared.passed_over,
    )


def wilson_intervals(points: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """95 % score intervals of shares; 0 to 1 where nothing was counted."""
    trials = np.where(counts > 0, counts, 1.0)
    share = points / trials
    scale = 1 / (1 + Z_95**2 / trials)
    middle = scale * (share + Z_95**2 / (2 * trials))
    half = scale * Z_95 * np.sqrt(np.maximum(share * (1 - share), 0) / trials + (Z_95 / (2 * trials)) ** 2)
    none = counts == 0
    return np.where(none, 0.0, np.maximum(middle - half, 0.0)), np.where(none, 1.0, np.minimum(middle + half, 1.0))


def _to_lists(values_AA: Floats, met_AA: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> list[list[float | None]]:
    values = values_AA.astype(object)
    values[~met_AA] = None
    lists: list[list[float | None]] = values.tolist()
    return lists


def decompose_payoff(payoff: PayoffMatrix) -> HodgeDecomposition:
    """Decompose measured results, weighting each pair by the inverse variance of its log-odds.

    The decisions of matches with more than two seats depend on each other, and a match's share may be less than a
    whole decision; so the variance, and with it the p-value, is exact for two-seat matches without ties only.
    """
    counts = payoff.counts()
    share = (payoff.points() + 0.5) / (counts + 1.0)
    weight = np.where(counts > 0, (counts + 1.0) * share * (1.0 - share), 0.0)
    return decompose(payoff.log_odds(unmet_even=True), 0.5 * (weight + weight.T))


class PayoffReport(msgspec.Struct, frozen=True):
    """Pairwise results among some agents. All lists are in the order of ``payoff.agents``: strongest first."""

    game: str
    purposes: list[str]
    payoff: PayoffMatrix
    agents: int
    """Number of agents in these matches; only those with the most matches are shown."""
    unmet: int
    """Pairs of shown agents that never met."""
    seats: int
    """Maximum number of seats of a match: with more than two, the p-value is an approximation."""
    circularity: HodgeDecomposition
    nash: NashAverage | None
    """None when it cannot be computed."""
    problem: str = ""


def make_payoff_report(
    matches: MatchArrays, game: str, purposes: Collection[str] = (), most: int = 12, unmet_even: bool = False
) -> PayoffReport:
    """Report on the pairwise results of a game's agents, from matches that are not voided, for ``purposes`` or for all.

    The ``most`` agents with the most matches are still compared in those with others. Agents that never met leave the
    Nash average undefined, unless ``unmet_even`` takes them for even.

    Raises:
        UsageError: an unknown game or purpose, or no match that compares two agents.
    """
    chosen = _select_matches(matches, game, purposes)
    seat_S, match_S = seats_of(chosen)
    pairs = np.unique(match_S * len(chosen.agents) + chosen.agent_S[seat_S])
    games_A = np.bincount(pairs % len(chosen.agents), minlength=len(chosen.agents))
    # Older agents first among equals.
    rare = np.argsort(-games_A, kind="stable")[most:].tolist()
    matrix = make_payoff_matrix(chosen.exclude_agents([chosen.agents[code] for code in sorted(rare)]))
    order = np.argsort(-np.array(decompose_payoff(matrix).potential), kind="stable").tolist()
    tables = {
        name: [[getattr(matrix, name)[i][j] for j in order] for i in order]
        for name in ("share", "low", "high", "matches")
    }
    matrix = msgspec.structs.replace(matrix, agents=[matrix.agents[i] for i in order], **tables)
    try:
        nash, problem = nash_average(matrix.log_odds(unmet_even)), ""
    except LeagueError as error:
        # The matrix is useful without the average, so neither unmet pairs nor a failed solver ends the command.
        nash, problem = None, str(error)
    return PayoffReport(
        game=game,
        purposes=[chosen.purposes[code] for code in np.unique(chosen.purpose_M)],
        payoff=matrix,
        agents=int((games_A > 0).sum()),
        unmet=int((matrix.counts() == 0).sum() - len(matrix.agents)) // 2,
        seats=int((chosen.end_M - chosen.begin_M).max()),
        circularity=decompose_payoff(matrix),
        nash=nash,
        problem=problem,
    )


def _select_matches(matches: MatchArrays, game: str, purposes: Collection[str]) -> MatchArrays:
    if not len(matches):
        raise UsageError("payoff: no match is in the history that was not voided; expected played matches")
    if game not in matches.games:
        raise UsageError(f"payoff: no match of the game {game!r}; expected {format_choices(matches.games)}")
    for purpose in purposes:
        if purpose not in matches.purposes:
            expected = format_choices(matches.purposes)
            raise UsageError(f"payoff: no match has the purpose {purpose!r}; expected {expected}")
    codes = [code for code, name in enumerate(matches.purposes) if name in purposes or not purposes]
    chosen = matches.select((matches.game_M == matches.games.index(game)) & np.isin(matches.purpose_M, codes))
    if not len(chosen):
        raise UsageError(f"payoff: no match of {game} has a purpose among {', '.join(purposes)}; expected others")
    return chosen
