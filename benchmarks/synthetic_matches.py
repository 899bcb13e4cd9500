"""Match arrays of agents of known strength, for benchmarks and tests of ratings and statistics."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from league.ratings.arrays import Floats, MatchArrays
from schemas.ids import derive_seed

ELO_PER_LOG_UNIT = 400 / np.log(10)


def simulate_ranked_matches(
    elo: Sequence[float],
    matches: int,
    seats: int,
    seed: int,
    role_elo: Sequence[float] | None = None,
    levels: float = 0.0,
    names: Sequence[str] | None = None,
) -> MatchArrays:
    """Matches between different agents drawn uniformly; a seat's score is its strength plus Gumbel noise.

    The order of the seats is then Plackett–Luce, and every pair of them Bradley–Terry, in the strengths.

    Args:
        elo: Strength of each agent.
        matches: Number of matches.
        seats: Seats per match; at most as many as there are agents.
        seed: Equal arguments give equal matches.
        role_elo: Additional strength of the first, second, … seat.
        levels: Width of the steps to which scores are rounded, so that they tie; 0 for no ties.
        names: By default ``agent0``, ``agent1``, …
    """
    rng = np.random.default_rng(derive_seed(seed, "ranked league"))
    agent_MN = rng.random((matches, len(elo))).argpartition(seats - 1, axis=1)[:, :seats]
    rng.permuted(agent_MN, axis=1, out=agent_MN)
    role_N = np.zeros(seats) if role_elo is None else np.asarray(role_elo)
    score_MN = (np.asarray(elo)[agent_MN] + role_N) / ELO_PER_LOG_UNIT + rng.gumbel(size=agent_MN.shape)
    if levels:
        score_MN = np.round(score_MN / levels)
    return make_match_arrays(agent_MN, score_MN, names or [f"agent{number}" for number in range(len(elo))])


def simulate_payoff_matches(log_odds_AA: Floats, matches: int, seed: int) -> MatchArrays:
    """Matches of two seats between all pairs in turn, with the winning odds of a matrix, cycles included."""
    rng = np.random.default_rng(derive_seed(seed, "payoff league"))
    rows, columns = np.triu_indices(len(log_odds_AA), 1)
    pair_M = np.arange(matches) % len(rows)
    won_M = rng.random(matches) < 1 / (1 + np.exp(-log_odds_AA[rows, columns][pair_M]))
    agent_MN = np.stack([rows[pair_M], columns[pair_M]], axis=1)
    score_MN = np.stack([won_M, ~won_M], axis=1).astype(np.float64)
    return make_match_arrays(agent_MN, score_MN, [f"agent{number}" for number in range(len(log_odds_AA))])


def make_match_arrays(agent_MN: NDArray[np.int64], score_MN: Floats, names: Sequence[str]) -> MatchArrays:
    """Matches with equally many seats each, in the form of a history's."""
    matches, seats = agent_MN.shape
    return MatchArrays(
        sequence_M=np.arange(1, matches + 1),
        game_M=np.zeros(matches, np.int32),
        purpose_M=np.zeros(matches, np.int32),
        begin_M=np.arange(0, matches * seats, seats),
        end_M=np.arange(seats, (matches + 1) * seats, seats),
        agent_S=agent_MN.ravel().astype(np.int32),
        score_S=score_MN.ravel().astype(np.float64),
        agents=list(names),
        games=["simulated"],
        purposes=["evaluation"],
        starts={},
        base=None,
        rules=[],
    )
