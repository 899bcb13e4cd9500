"""First in, first out: what arrived first is trained on first."""

from collections.abc import Sequence
from random import Random

import msgspec

from trainer.buffer.base import Unit, register


@register("oldest")
class Oldest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """By the order of the stream."""

    def build(self) -> "Oldest":
        """Settings and implementation are one."""
        return self

    def __call__(self, units: Sequence[Unit], rng: Random) -> list[Unit]:
        """As they are."""
        return list(units)
