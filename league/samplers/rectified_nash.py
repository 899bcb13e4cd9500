"""PSRO's rectified Nash: opponents in the equilibrium of the league's own game that the policy beats or ties."""

from collections.abc import Mapping
from functools import lru_cache
from heapq import nsmallest
from itertools import combinations
from math import isfinite
from typing import Annotated, ClassVar

from msgspec import Meta

from league.ratings.elo import expected_share
from league.samplers import SAMPLERS, Bucket, live_hero
from league.samplers.mix import MixDraws, MixSettings, by_weight, others
from schemas.numbers import PositiveFloat
from schemas.standings import Agent, LivePolicy, Standings, WinLoss

# Payoffs are hundredths of the points: small changes of a rating or a record leave the game unchanged.
_GRID = 100
# Decimals of shares: smaller ones count as 0, and rounding differences between processors do not reach the draw.
_DIGITS = 6


@SAMPLERS.register("rectified_nash")
class RectifiedNash(MixDraws, MixSettings, frozen=True):
    """The bucket ``rectified``: agents of the equilibrium that the hero beats or ties, in proportion to their shares.

    The game: two players each name an agent, and are paid the share of the points that theirs takes from the other's,
    less a half. Its equilibrium of greatest entropy (``league.analysis.population``) is unique, and clones share the
    weight that one of them would have. The hero trains only against those agents that it can beat: strengths grow, and
    weaknesses are left to others. When it beats none of them, the whole equilibrium is the bucket ``nash``; without any
    agent of finite rating, ``mirror`` is played.

    A payoff is the mean of a Beta posterior: the results of evaluation matches, seat by seat, a draw being half a win
    (``Standings.pairs``), and ``prior_games`` with the result that the ratings predict, ½ for equals. Pairs that never
    met have the prediction. Payoffs are rounded to hundredths. The hero's are its live version's, with the results of
    the newest evaluated version: the live one, else the policy's newest checkpoint with any. Its records over all
    versions would include defeats that it has long overcome.

    In leagues of more than ``most_agents``, half of the places go to the highest rated, the others to the agents that
    took most from one of those in evaluations, and then again by rating.

    Source: Balduzzi et al. 2019, "Open-ended learning in symmetric zero-sum games", algorithm 4 (PSRO_rN), in which
    the response to each agent of the equilibrium is trained against p · ⌊payoff⌋₊.
    """

    name: ClassVar[str] = "rectified_nash"
    reads = ("agents", "live", "pairs")

    most_agents: Annotated[int, Meta(ge=2, le=64)] = 32
    """Agents in the game that is solved, 2 to 64; larger leagues are cut to those that matter most."""
    prior_games: PositiveFloat = 4.0
    """Number of games that the ratings' prediction counts as, so that a few results decide little."""
    scale: PositiveFloat = 400.0
    """Rating points for odds of ten to one; 400 in Elo."""

    def distribution(self, standings: Standings, hero_policy: str) -> dict[str, Bucket]:
        """See ``OpponentSampler.distribution``."""
        hero, live = live_hero(standings, hero_policy)
        agents = self._agents(standings, hero_policy)
        points = tuple(
            self._payoff_hundredths(one, other, standings.pairs.get(one.name, {}))
            for one, other in combinations(agents, 2)
        )
        equilibrium = _solve_equilibrium(len(agents), points)
        shares = {agent.name: share for agent, share in zip(agents, equilibrium, strict=True)}
        results = _newest_results(standings, hero, live)
        beaten = {
            agent.name: shares[agent.name]
            for agent in agents
            if self._payoff_hundredths(live, agent, results) >= _GRID / 2 and shares[agent.name]
        }
        return by_weight({"rectified": beaten, "nash": {} if beaten else shares}, hero)

    def _agents(self, standings: Standings, hero_policy: str) -> list[Agent]:
        """Agents in the game, in an order independent of dictionaries."""
        most = self.most_agents
        rated = {agent.name: agent for agent in others(standings, hero_policy) if isfinite(agent.rating)}
        strongest = nsmallest(most, rated.values(), key=lambda agent: (-agent.rating, agent.name))
        if len(rated) <= most:
            return strongest
        first = strongest[: most // 2]
        taken: dict[str, int] = {}
        for top in first:
            for name in standings.pairs.get(top.name, {}):
                if name in rated:
                    points = self._payoff_hundredths(rated[name], top, standings.pairs.get(name, {}))
                    taken[name] = max(points, taken.get(name, 0))
        # For agents that took at most half of the points from all of these, the rating is more informative.
        best = nsmallest(most, taken, key=lambda name: (-taken[name], -rated[name].rating, name))
        named = [agent.name for agent in first] + [name for name in best if taken[name] > _GRID // 2]
        chosen = dict.fromkeys([*named, *(agent.name for agent in strongest)])
        return [rated[name] for name in [*chosen][:most]]

    def _payoff_hundredths(self, one: Agent | LivePolicy, other: Agent, results: Mapping[str, WinLoss]) -> int:
        """Hundredths of the points that ``one`` takes from ``other``."""
        record, prior = results.get(other.name, WinLoss()), self.prior_games
        games = record.wins + record.draws + record.losses
        gap = one.rating - other.rating
        expected = expected_share(gap, self.scale) if isfinite(gap) else 0.5
        won = record.wins + record.draws / 2 + prior * expected
        return round(won / (games + prior) * _GRID)


@lru_cache(maxsize=8)
def _solve_equilibrium(size: int, points: tuple[int, ...]) -> list[float]:
    """Equilibrium shares; ``points``: hundredths taken by the first of each pair, in the order of ``combinations``.

    Cached, since rounded payoffs seldom change from one draw to the next.
    """
    if size < 2:
        return [1.0] * size
    # Imported here: these take longer to import than other samplers to draw.
    import numpy as np

    from league.analysis.population import nash_average

    payoff_AA = np.zeros((size, size))
    for (row, column), taken in zip(combinations(range(size), 2), points, strict=True):
        payoff_AA[row, column], payoff_AA[column, row] = 2 * taken - _GRID, _GRID - 2 * taken
    return [round(share, _DIGITS) for share in nash_average(payoff_AA / _GRID).share]


def _newest_results(standings: Standings, hero: str, live: LivePolicy) -> Mapping[str, WinLoss]:
    """Evaluation results of the policy's newest version that has any."""
    if results := standings.pairs.get(hero):
        return results
    measured = (
        agent
        for agent in standings.agents.values()
        if agent.kind == "checkpoint" and agent.policy == live.policy and agent.version < live.version
        if standings.pairs.get(agent.name)
    )
    newest = max(measured, key=lambda agent: agent.version, default=None)
    return standings.pairs[newest.name] if newest is not None else {}
