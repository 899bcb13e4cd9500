"""The terms of a sequential test, as configurations and certificates carry them."""

import msgspec


class SprtConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is tested, and how sure the test must be (``league.sprt``)."""

    elo0: float = 0.0
    """H0: the candidate is no more than this above the incumbent."""
    elo1: float = 20.0
    """H1: it is at least this above."""
    alpha: float = 0.05
    """Probability of promoting under H0."""
    beta: float = 0.05
    """Probability of keeping under H1."""
    least_pairs: int = 8
    """Before these nothing is decided: the variance is not known yet."""
    most_pairs: int = 0
    """After these the incumbent stays; 0 for no limit."""
