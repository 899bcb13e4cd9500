"""Advantage estimators; ``base`` holds the protocol and the shared formulas.

- ``total_reward``  of a sample's total reward; they also credit trees of episodes
- ``per_step``      of the reward of each step: as it is, with a learned critic, or to go along the game's clock
"""

from trainer.advantages.base import ADVANTAGES, Advantage, Estimate

__all__ = ["ADVANTAGES", "Advantage", "Estimate"]
