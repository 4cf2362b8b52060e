"""Benchmarks: one folder for each claim that is measured, and the workloads they train. Leaves: they
import the library, never the reverse. ``rows`` and ``pool`` keep and hand out runs; ``machine`` says
where they were run."""
