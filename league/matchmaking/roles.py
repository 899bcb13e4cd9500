"""Policy roles: opponents and resets by role. Pure functions.

Roles are AlphaStar's (Vinyals et al. 2019, "Grandmaster level in StarCraft II using multi-agent reinforcement
learning", Methods, and the pseudocode of its supplement):

- ``main``: trained to become the strongest; opponents by ``matchmaking.sampler``. Never reset.
- ``main_exploiter``: plays one policy to find its weaknesses; opponents by the sampler ``main_exploiter``.
- ``league_exploiter``: plays the whole league to find weaknesses that all members share; opponents by the sampler
  ``win_rate`` with the weighting ``linear_capped`` and without a mirror.

An exploiter that takes enough points from its opponents has done its work: its last version stays in the league for
others to learn from, and the policy is reset. A number of steps brings a reset in any case. A reset goes back to the
untrained adapter, or to an operator's offspring of checkpoints (``trainer.operators``); AlphaStar's league exploiters
keep their weights in three resets of four.

- ``population``: a member of a population of policies, with the opponents of ``main``. After every ``reset_steps`` it
  is compared with the others, by ratings or by mean rewards, and reset if it is the weakest: population-based training
  (Jaderberg et al. 2017, arXiv:1711.09846), whose replacement by operators on adapters is PopuLoRA's
  (arXiv:2605.16727).
"""

from math import inf
from random import Random

from league.samplers import others
from league.samplers.alphastar import newest_record, points_share
from schemas.config import LeagueConfig, Plugin, PolicyConfig
from schemas.standings import Agent, Standings, WinLoss

MIN_RESULTS = 50
"""Fewest results, seat by seat, for a reset by share of points."""


def sampler_of(config: LeagueConfig, policy: str) -> Plugin:
    """The opponent sampler of a policy: its own, else its role's; the league's for a policy without configuration."""
    role = config.policies.get(policy)
    if role is None:
        return config.matchmaking.sampler
    if role.sampler is not None:
        return role.sampler
    if role.role == "main_exploiter":
        return Plugin(name="main_exploiter", settings={"against": exploited_policy(config, role)})
    if role.role == "league_exploiter":
        return Plugin(name="win_rate", settings={"weighting": "linear_capped", "mirror": 0.0})
    return config.matchmaking.sampler


def exploited_policy(config: LeagueConfig, role: PolicyConfig) -> str:
    """The policy that a main exploiter exploits."""
    return role.against or config.trainer.policy


def reset_reason(standings: Standings, config: LeagueConfig, policy: str, steps: int) -> str | None:
    """Reason to reset a policy now; None if there is none.

    ``steps`` are the gradient steps since its training last began; the standings' records of it begin there too.
    """
    role = config.policies.get(policy)
    if role is None or role.role == "main":
        return None
    if role.role == "population":
        is_due = steps > 0 and steps % role.reset_steps == 0
        return _weakness(standings, config, policy, role) if is_due else None
    if steps >= role.reset_steps:
        return f"{steps} steps"
    least = role.reset_steps / 2 if role.reset_min_steps is None else role.reset_min_steps
    share = _decisive_share(standings, config, policy, role) if steps >= least else None
    if share is None or share[0] < role.reset_win_rate:
        return None
    return f"took {share[0]:.2f} of the points from {share[1]}"


def exploiter_points_share(standings: Standings, config: LeagueConfig, policy: str) -> float | None:
    """Share of points that decides an exploiter's reset, 0 to 1; None for other policies or with too few results."""
    role = config.policies.get(policy)
    share = _decisive_share(standings, config, policy, role) if role is not None and role.is_exploiter else None
    return None if share is None else share[0]


def select_parents(standings: Standings, config: LeagueConfig, policy: str, count: int, seed: int) -> list[Agent]:
    """Checkpoints for the operator of a policy's reset, the best first; empty where the league has too few.

    Of each policy that may give parents, the best rated checkpoint comes before all others, or where rewards decide the
    newest one, the best rewarded policy's first; with ``uniform`` selection they are drawn. Ties go to the name that
    sorts first.
    """
    role = config.policies[policy]
    givers = role.reset_parents or list(config.trained_policies)
    candidates = [agent for agent in standings.agents.values() if agent.adapter and agent.policy in givers]
    if role.reset_by == "reward":
        ranked = sorted(candidates, key=lambda a: (-standings.rewards.get(a.policy, -inf), -a.version, a.name))
    else:
        ranked = sorted(candidates, key=lambda a: (-a.rating, a.name))
    if role.reset_selection == "uniform":
        chosen = Random(seed).sample(ranked, min(count, len(ranked)))
        return sorted(chosen, key=ranked.index) if len(chosen) == count else []
    first = list({agent.policy: agent for agent in reversed(ranked)}.values())
    chosen = sorted(first, key=ranked.index) + [agent for agent in ranked if agent not in first]
    return chosen[:count] if len(chosen) >= count else []


def _weakness(standings: Standings, config: LeagueConfig, policy: str, role: PolicyConfig) -> str | None:
    """State that a member of a population is below all others; None if it is not, is alone, or is unrated."""
    members = {name for name, other in config.policies.items() if other.role == "population"}
    others = (set(role.reset_parents) or members | {config.trainer.policy}) - {policy}
    by_reward = role.reset_by == "reward"
    measures = standings.rewards if by_reward else {name: live.rating for name, live in standings.live.items()}
    measured = {name: measure for name, measure in measures.items() if name in others}
    mine = measures.get(policy)
    if mine is None or not measured or mine >= min(measured.values()):
        return None
    best = max(sorted(measured), key=measured.__getitem__)
    if by_reward:
        return f"earned {mine:.2f} a match, the least of {len(measured) + 1}; {best} earned {measured[best]:.2f}"
    return f"rated {mine:.0f}, the weakest of {len(measured) + 1}; {best} is at {measured[best]:.0f}"


def _decisive_share(
    standings: Standings, config: LeagueConfig, policy: str, role: PolicyConfig
) -> tuple[float, str] | None:
    """The share of points that decides a reset, and the opponent; None with too few results.

    For a main exploiter it is the share taken from the newest versions of the exploited policy. For a league exploiter
    it is the smallest share taken from any active member, a half for one never met: one member that withstands it is
    reason enough to continue.
    """
    records = standings.records.get(policy, {})
    if role.role == "main_exploiter":
        other = exploited_policy(config, role)
        recent = newest_record(standings, policy, other, MIN_RESULTS)
        return (points_share(recent), other) if _count_results(recent) >= MIN_RESULTS else None
    if sum(map(_count_results, records.values())) < MIN_RESULTS:
        return None
    shares = [
        (points_share(records.get(agent.name, WinLoss())), agent.name)
        for agent in others(standings, policy)
        if agent.policy != policy
    ]
    weakest = min(shares, default=None)
    return None if weakest is None else (weakest[0], f"everybody, the least from {weakest[1]}")


def _count_results(record: WinLoss) -> int:
    return record.wins + record.draws + record.losses
