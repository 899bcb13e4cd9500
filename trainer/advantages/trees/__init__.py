"""Credit for trees of episodes: every file but ``base`` and ``gathering`` is one assigner.

- ``base``       the registry
- ``gathering``  waits for groups whose rollouts come from different workers
"""

from trainer.advantages.trees.base import CREDITS
from trainer.advantages.trees.gathering import Gathering, Outcome

__all__ = ["CREDITS", "Gathering", "Outcome"]
