"""AlphaStar's samplers: opponents by how often the policy beats them, and a main exploiter's opponents."""

from collections.abc import Callable
from typing import ClassVar, Literal

from league.samplers import SAMPLERS, Bucket, Distribution, OpponentSampler, live_hero, mix_buckets, others
from schemas.ids import agent_name, split_agent
from schemas.numbers import PositiveFloat, PositiveInt, Share
from schemas.standings import Standings, WinLoss

Weighting = Literal["variance", "linear", "linear_capped", "squared"]

# Weights by the loss rate, 1 - win rate, which keeps its precision where the win rate is near 1.
_WEIGHTS: dict[str, Callable[[float], float]] = {
    "variance": lambda lost: lost * (1.0 - lost),
    "linear": lambda lost: lost,
    "linear_capped": lambda lost: min(0.5, lost),
    "squared": lambda lost: lost * lost,
}
_NEVER_MET = WinLoss()


@SAMPLERS.register("win_rate")
class WinRate(OpponentSampler, frozen=True):
    """A share for the ``mirror``, the rest for the ``members`` by a weighting of the win rate.

    Without members the mirror is played.

    The win rate is the mean of the Beta posterior of the policy's results against the agent over its versions, seat by
    seat, a draw being half a win and half a loss: ``(wins + draws / 2 + prior_wins) / (games + prior_wins +
    prior_losses)``. So every agent can be drawn, also one never met or one that never won.

    Source: Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement learning", Methods,
    "Prioritized fictitious self-play", and its pseudocode, where records also fade with time; here they do not.
    """

    name: ClassVar[str] = "win_rate"

    weighting: Weighting = "squared"
    """Weight of an opponent that the policy beats with probability x: ``variance`` x(1-x), opponents of the same
    strength; ``linear`` 1-x; ``linear_capped`` min(0.5, 1-x); ``squared`` (1-x)², the hardest."""
    mirror: Share = 0.35
    """Share of the hero's own live version; AlphaStar's main agents play themselves in 35 % of matches."""
    prior_wins: PositiveFloat = 1.0
    """Wins added to every record: a Beta prior, with ``prior_losses``; 1 and 1 are the uniform prior."""
    prior_losses: PositiveFloat = 1.0
    """Losses added to every record."""

    def distribution(self, standings: Standings, hero_policy: str) -> Distribution:
        """Buckets ``mirror`` and ``members``, these by ``weighting`` of the hero's smoothed win rate against each."""
        hero, _ = live_hero(standings, hero_policy)
        records = standings.records.get(hero_policy, {})
        weigh = _WEIGHTS[self.weighting]
        members = {}
        for agent in others(standings, hero_policy):
            record = records.get(agent.name, _NEVER_MET)
            won = record.wins + record.draws / 2 + self.prior_wins
            lost = record.losses + record.draws / 2 + self.prior_losses
            members[agent.name] = weigh(lost / (won + lost))
        mix = {"mirror": self.mirror, "members": 1.0 - self.mirror}
        return mix_buckets(mix, {"mirror": {hero: 1.0}, "members": members})


@SAMPLERS.register("main_exploiter")
class MainExploiter(OpponentSampler, frozen=True):
    """The bucket ``live`` holds the exploited policy's newest version, ``past`` its active checkpoints.

    While the exploiter takes more than ``worth_learning`` of the points, ``live`` is played. Below that, a match would
    teach nothing, and ``past`` is played with weight ``x(1 - x)`` for the share x taken from each: mostly those of its
    own strength; x is a half for a checkpoint never met. An empty bucket is replaced by the other, and both by the
    ``mirror``.

    ``live`` names the version that is newest when the match is made, and that version plays the match to its end: the
    record names the version that played.

    Source: Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement learning", Methods
    and its pseudocode's main exploiter. There a record fades with every further match; here it is that of the newest
    versions.
    """

    name: ClassVar[str] = "main_exploiter"

    against: str = "main"
    """The policy to exploit."""
    worth_learning: Share = 0.1
    """The live version is played while the exploiter takes more than this share of the points from it."""
    results: PositiveInt = 50
    """Number of results, seat by seat, from which the share is estimated: the newest versions' that give so many."""

    def distribution(self, standings: Standings, hero_policy: str) -> Distribution:
        """One of the buckets ``live``, ``past`` and ``mirror`` alone: ``live`` as long as the hero learns from it."""
        hero, _ = live_hero(standings, hero_policy)
        newest = standings.live.get(self.against)
        name = hero if newest is None else agent_name(self.against, newest.version)
        live = {} if name == hero else {name: 1.0}
        recent = newest_record(standings, hero_policy, self.against, self.results)
        worth = points_share(recent) > self.worth_learning
        past = self._past(standings, hero_policy)
        played = "live" if live and (worth or not past) else "past" if past else "mirror"
        members = {"live": live, "past": past, "mirror": {hero: 1.0}}
        return {name: Bucket(1.0, weights) if name == played else Bucket(0.0, {}) for name, weights in members.items()}

    def _past(self, standings: Standings, hero_policy: str) -> dict[str, float]:
        records = standings.records.get(hero_policy, {})
        past = [agent.name for agent in others(standings, hero_policy) if agent.policy == self.against]
        shares = {name: points_share(records.get(name, _NEVER_MET)) for name in past}
        return {name: x * (1.0 - x) for name, x in shares.items()}


def points_share(record: WinLoss) -> float:
    """Share of the points in a record: a draw is half a point, and one win and one loss are added.

    So it is a half without results, as in AlphaStar's pseudocode, and never 0 or 1: the mean of a Beta posterior with
    the prior Beta(1, 1).
    """
    games = record.wins + record.draws + record.losses
    return (record.wins + record.draws / 2 + 1.0) / (games + 2.0)


def newest_record(standings: Standings, hero_policy: str, other: str, enough: int) -> WinLoss:
    """Record of the hero's policy against the newest versions of another one.

    Versions are added from the newest one met backward until there are ``enough`` results, seat by seat: both policies
    change, and old results describe what they were.
    """
    records = standings.records.get(hero_policy, {})
    named = (split_agent(agent) for agent in records)
    versions = sorted((name[1] for name in named if name is not None and name[0] == other), reverse=True)
    wins = draws = losses = 0
    for version in versions:
        if wins + draws + losses >= enough:
            break
        record = records[agent_name(other, version)]
        wins, draws, losses = wins + record.wins, draws + record.draws, losses + record.losses
    return WinLoss(wins, draws, losses)
