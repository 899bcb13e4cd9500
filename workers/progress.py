"""Progress display for slow commands."""

import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

from league.queries.terminal import Console

ProgressReporter = Callable[[str, float | None], None]
"""Called with a description, including rate and time left, and the completed share, 0 to 1, or None if unknown."""

_LINE_EVERY_S = 10.0


@contextlib.contextmanager
def show_progress(console: Console, label: str) -> Iterator[ProgressReporter]:
    """Show progress on the status line of a terminal, elsewhere as a line every ten seconds."""
    if console.is_terminal:
        with console.status(label) as status:
            yield lambda text, share: status.update(_progress_line(text, share))
        return
    printed = time.monotonic()

    def line(text: str, share: float | None) -> None:
        nonlocal printed
        if time.monotonic() - printed >= _LINE_EVERY_S:
            printed = time.monotonic()
            console.print(_progress_line(text, share), highlight=False, soft_wrap=True)

    yield line


def _progress_line(text: str, share: float | None) -> str:
    return text if share is None else f"{text} {100 * share:.0f} %"


def progress_callback(report: ProgressReporter, verb: str, total: int, unit: str = "events") -> Callable[[int], None]:
    """Report how many events or other units are done, with rate and time left."""
    started = time.monotonic()

    def update(done: int) -> None:
        rate = done / max(time.monotonic() - started, 1e-6)
        left = timedelta(seconds=round(max(total - done, 0) / max(rate, 1.0)))
        report(f"{verb} {done:,} of {total:,} {unit}, {rate:,.0f}/s, {left} left,", min(done / max(total, 1), 1.0))

    return update
