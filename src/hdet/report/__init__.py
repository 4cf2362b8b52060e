"""A history made visible: a page that opens from a file or follows a run, a verdict, alerts, findings. It
needs the standard library alone; only the command line imports it.
``hdet.report.Report("run.jsonl")`` is the page in a notebook."""

from hdet.report.page import Report

__all__ = ["Report"]
