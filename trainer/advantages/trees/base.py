"""The registry of credit assigners; their protocol is in ``schemas.credit``, so that an arena can be handed one."""

from schemas.credit import CreditAssigner
from schemas.plugins import Registry

CREDITS: Registry[CreditAssigner] = Registry("arena.credit", "trainer.advantages.trees")
register = CREDITS.register
