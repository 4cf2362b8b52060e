"""``python -m benchmarks NAME``: measure one claim of the package, from a checkout."""

from __future__ import annotations

from benchmarks.cli import app

if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
