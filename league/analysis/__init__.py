"""Statistics over a whole history of matches, for reports only: no decision depends on them.

- ``leaderboard``     ratings under any system or likelihood model, with intervals; ``roster`` loads its inputs
- ``comparisons``     matches as validated comparisons between seats, ordered for the likelihood
- ``likelihood``      compiled pairwise and rank-order likelihoods, with gradients and curvatures
- ``posterior``       the likelihood under a Gaussian prior, and Newton's method on it
- ``bradley_terry``   maximum-likelihood strengths with intervals by a bootstrap clustered by match
- ``history_rating``  strengths that move over gradient steps: learning curves with intervals
- ``payoff``          pairwise shares of points with intervals, and a report of them
- ``population``      Nash average and the cyclic part of pairwise results
- ``summary``         win shares with intervals, benchmarks and rating curves from a league's state

All but ``summary`` are pure functions of ``league.ratings.arrays.MatchArrays``. numba is loaded with the first fit:
import these modules where an analysis is requested, not where a worker starts.
"""
