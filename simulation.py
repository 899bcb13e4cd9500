"""The former name of ``python -m tests.simulation``, kept for one release."""

import runpy
import warnings

warnings.warn("python -m simulation is now python -m tests.simulation", DeprecationWarning, stacklevel=1)
runpy.run_module("tests.simulation", run_name="__main__", alter_sys=True)
