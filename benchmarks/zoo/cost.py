"""What AutoLR loses by costing less, ``python -m benchmarks.zoo.cost``: docs/protocols/cost.md.

As the ablation, with other variants: fewer windows, fewer iterates in their means, fewer probe batches.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.rows import KeptRows, Row
from benchmarks.zoo.ablation import COSTS, run
from benchmarks.zoo.command import write_table
from benchmarks.zoo.plan import Cell, loss_of, run_of
from benchmarks.zoo.prior import ROWS as COMMITTED

__all__ = ["ROWS", "main", "moved"]

ROWS = Path(__file__).with_name("rows-cost.jsonl")
#: Of Student's t with two degrees of freedom, 95 %; and a new value varies beside a mean of three.
_BEYOND = 4.3 * math.sqrt(4 / 3)


def moved(rows: Iterable[Row], committed: Mapping[Cell, Sequence[float]]) -> dict[str, list[int]]:
    """By variant, in how many cells the loss lies above and below what a fourth seed of AutoLR would have, by
    the committed ones. Losses that are not positive have no logarithm, and are left out."""
    found: dict[str, list[int]] = {name: [0, 0] for name in COSTS}
    for row in rows:
        known, loss = committed.get((row["task"], row["optimizer"]), ()), loss_of(row, "test_chosen")
        if len(known) == 3 and all(math.isfinite(value) and value > 0 for value in (loss, *known)):
            logs = [math.log(value) for value in known]
            far = math.log(loss) - statistics.fmean(logs)
            if abs(far) > _BEYOND * statistics.stdev(logs):
                found[row["variant"]][far < 0] += 1
    return found


def _run(rows: Path, variants: Sequence[str], **given: Any) -> dict[str, Any]:
    first = next(iter(COSTS))  # the others are compared with it
    result = run(rows=rows, variants=[first, *(v for v in variants if v != first)], name="zoo-cost", **given)
    committed: dict[Cell, list[float]] = {}
    for one, row in KeptRows(COMMITTED, run_of).finished.items():
        if one.method == "autolr":
            committed.setdefault((one.task, one.optimizer), []).append(loss_of(row, "test_chosen"))
    done = KeptRows(rows, lambda row: (row["variant"], run_of(row))).finished.values()
    return {**result, "moved": moved(done, committed)}


def main() -> None:
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", default="fit+dev", help="which families")
    parser.add_argument("--seeds", type=int, choices=(1, 2, 3), default=1, help="as many as the sweep has")
    parser.add_argument("--device", default="cpu", help="where to train")
    parser.add_argument(
        "--variants", nargs="+", choices=COSTS, default=[*COSTS], metavar="NAME", help="all unless given"
    )
    write_table("zoo-cost", parser, _run, ROWS)


if __name__ == "__main__":
    main()
