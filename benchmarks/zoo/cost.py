"""What AutoLR loses by costing less, ``python -m benchmarks.zoo.cost``: docs/protocols/cost.md.

As the ablation, with other variants: fewer windows, fewer iterates in their means, fewer probe batches.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from benchmarks.zoo.ablation import COSTS, run
from benchmarks.zoo.command import write_table

__all__ = ["ROWS", "main"]

ROWS = Path(__file__).with_name("rows-cost.jsonl")


def main() -> None:
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="fit+dev", help="which families")
    parser.add_argument("--seeds", type=int, choices=(1, 2, 3), default=1, help="as many as the sweep has")
    parser.add_argument("--device", default="cpu", help="where to train")
    write_table("zoo-cost", parser, partial(run, variants=tuple(COSTS), name="zoo-cost"), ROWS)


if __name__ == "__main__":
    main()
