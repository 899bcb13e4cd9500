"""Makes ``dash.svg``: the terminal dashboard over a real run.

python docs/images/dash.py --run .league --view 1 -o docs/images/dash.svg
"""

import argparse
import asyncio
import re
from pathlib import Path

from league.queries.live_league import open_live_league
from league.run import Run
from ui.terminal.app import DashboardApp
from workers.runtime import beside

_SIZE = (80, 24)
_SETTLED_S = 5.0


async def picture(run: Run, view: int) -> str:
    """What stands on a terminal of 80 × 24, as SVG."""
    async with (
        run.open_log("picture") as history,
        open_live_league(run, history) as league,
        beside(league.follow(), league.apply_events()),
    ):
        app = DashboardApp(league)
        async with app.run_test(size=_SIZE) as pilot:
            await pilot.press(str(view))
            await pilot.pause(_SETTLED_S)
            drawn = app.export_screenshot(title="league dash")
            # Fonts from elsewhere: a picture asks nobody, and any fixed-width font does.
            return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


def main() -> None:
    """Write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, default=Path(".league"))
    parser.add_argument("--view", type=int, default=1)
    parser.add_argument("-o", type=Path, default=Path("docs/images/dash.svg"))
    asked = parser.parse_args()
    asked.o.write_text(asyncio.run(picture(Run(asked.run), asked.view)))


if __name__ == "__main__":
    main()
