"""What each step of a rollout earned. ``base.py`` states the protocol; every other file is one reward."""

from trainer.rewards.base import REWARDS, Reward

__all__ = ["REWARDS", "Reward"]
