"""Minimisation of a failing seed: the fewest faults with which it still fails (delta debugging, Zeller 2002)."""

from collections.abc import Callable, Sequence

from tests.simulation.faults import Fault


def minimise(faults: Sequence[Fault], still_fails: Callable[[Sequence[Fault]], bool]) -> list[Fault]:
    """A subset of the faults that fails, from which no fault can be dropped.

    Whole kinds are dropped first, then halves, quarters and so on, then single faults.
    """
    left = list(faults)
    for kind in sorted({fault.kind for fault in left}):
        rest = [fault for fault in left if fault.kind != kind]
        if len(rest) < len(left) and still_fails(rest):
            left = rest
    size = max(len(left) // 2, 1)
    while left:
        at, dropped = 0, False
        while at < len(left):
            rest = left[:at] + left[at + size :]
            if still_fails(rest):
                left, dropped = rest, True
            else:
                at += size
        if size == 1 and not dropped:
            return left
        size = max(size // 2, 1)
    return left
