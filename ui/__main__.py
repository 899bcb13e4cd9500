"""``python -m ui`` is the ``league`` command."""

import os
import sys

# Nothing is imported from the working directory, neither here nor in processes that this one starts: files of other
# people and packages of other projects lie there. Only the league's own checkout may be it.
os.environ["PYTHONSAFEPATH"] = "1"
if __name__ == "__main__" and not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):
    del sys.path[0]

import signal

# While the command is imported there is nothing to clean up: Ctrl-C ends the process at once, without a traceback.
signal.signal(signal.SIGINT, signal.SIG_DFL)

from ui.cli.main import main  # noqa: E402

if __name__ == "__main__":
    main()
