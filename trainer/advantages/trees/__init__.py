"""Credit for trees of episodes: every file but ``base`` and ``gathering`` is one assigner.

- ``base``       the registry
- ``gathering``  waits for groups whose rollouts come from different workers, by the rule of ``trainer.gathering``
"""

from trainer.advantages.trees.base import CREDITS
from trainer.advantages.trees.gathering import Gathering

__all__ = ["CREDITS", "Gathering"]
