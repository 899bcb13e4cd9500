"""What several suites share: small leagues in real processes."""

import os

# Before torch is imported anywhere: threads fight over two cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
