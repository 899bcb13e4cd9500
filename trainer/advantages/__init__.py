"""What the estimator makes of the rewards. ``base.py`` states the protocol; every other file is one estimator."""

from trainer.advantages.base import ADVANTAGES, Advantage, Estimate

__all__ = ["ADVANTAGES", "Advantage", "Estimate"]
