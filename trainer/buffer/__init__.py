"""Trajectories that wait to be trained on, and the strategies that draw a batch of them.

- ``base``    the strategies (oldest first, uniform, prioritised), their protocol and registry, and drawn batches
- ``buffer``  the trajectories: bounded, filled in the order of the stream, emptied by recorded steps only
- ``groups``  trajectories that wait for the others of their group

To add a strategy, write one file with ``@register("name")``; the contract tests find it.
"""

from trainer.buffer.base import STRATEGIES, BatchAccounting, BatchItem, DroppedItem, Strategy, Unit
from trainer.buffer.buffer import BufferCapacity, TrajectoryBuffer

__all__ = [
    "STRATEGIES",
    "BatchAccounting",
    "BatchItem",
    "BufferCapacity",
    "DroppedItem",
    "Strategy",
    "TrajectoryBuffer",
    "Unit",
]
