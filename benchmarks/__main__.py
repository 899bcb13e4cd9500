"""Runs every benchmark, each in its own process so that none warms or crowds another."""

import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run all benchmarks, or those named on the command line (``python -m benchmarks log trainer``)."""
    here = Path(__file__).parent
    known = sorted(path.stem.removeprefix("bench_") for path in here.glob("bench_*.py"))
    wanted = sys.argv[1:] or known
    if unknown := sorted(set(wanted) - set(known)):
        print(f"no benchmark called {', '.join(unknown)}; expected some of {', '.join(known)}", file=sys.stderr)
        return 2
    codes = []
    for name in wanted:
        print(f"── {name} " + "─" * (70 - len(name)), flush=True)
        codes.append(subprocess.run([sys.executable, "-m", f"benchmarks.bench_{name}"], check=False).returncode)
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
