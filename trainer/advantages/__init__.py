"""What the estimator makes of the rewards. ``base.py`` states the protocol; every other file is one estimator.

What estimators share with the assigners of trees is in ``formulas``.
Credit for trees of episodes, which an arena is handed, is in ``trees``.
"""

from trainer.advantages.base import ADVANTAGES, Advantage, Estimate

__all__ = ["ADVANTAGES", "Advantage", "Estimate"]
