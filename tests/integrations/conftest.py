"""Helpers import their framework: they hold no tests, and are not looked into where it is not installed."""

collect_ignore = ["lightning_runs.py", "llama.py"]
