"""A history made visible: one page that opens from a file or follows a run, lines in a terminal, alerts.
Leaves: they need the standard library, plotly's script for the page, and no torch; nothing imports them but
the command line and the demos. ``hdet.report.Report("run.jsonl")`` is the page in a notebook."""

from hdet.report.notebook import Report

__all__ = ["Report"]
