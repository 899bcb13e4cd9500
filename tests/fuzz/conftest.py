"""Says how many cases were really drawn: what a run came to is counted, not taken from what was asked for."""

from collections import Counter

import pytest


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Take over what a test has drawn, also one that failed; a report travels to whoever runs the tests."""
    if call.when == "call" and hasattr(item, "module"):
        counted: Counter[str] = item.module.DRAWN
        item.user_properties += [("drawn", (name, count)) for name, count in sorted(counted.items())]
        counted.clear()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line of all targets."""
    total: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                for name, count in (value for key, value in report.user_properties if key == "drawn"):
                    total[name] += count
    if total:
        each = ", ".join(f"{name} {count:,}" for name, count in sorted(total.items()))
        terminalreporter.write_line(f"{total.total():,} cases drawn: {each}")
