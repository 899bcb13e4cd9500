"""What the estimator makes of the rewards. ``base.py`` states the protocol; every other file is one estimator.

Credit for trees of episodes, which an arena is handed, is in ``trees``.
"""

from trainer.advantages.base import ADVANTAGES, Advantage, Estimate

__all__ = ["ADVANTAGES", "Advantage", "Estimate"]
