"""Benchmarks: one folder for each claim that is measured, and the workloads they train. Leaves: they
import the library, never the reverse. ``rows`` and ``pool`` keep and hand out runs; ``machine`` says
where they were run."""

import os

os.environ.setdefault("HDET_QUIET", "1")  # thousands of runs, here and in processes that are started
