"""``python -m benchmarks.paper STUDY``: one study, into its part of docs/evidence/paper.json."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.paper.studies import STUDIES, Cell
from benchmarks.rows import six_digits
from benchmarks.show import as_json, evidence_folder

__all__ = ["main", "put"]


def put(result: dict[str, Any], name: str, cells: Sequence[Cell]) -> dict[str, Any]:
    """The result with these cells instead of those that the study had of the same courses."""
    new = {cell["course"] for cell in cells}
    kept = [cell for cell in result.get(name, {}).get("cells", []) if cell["course"] not in new]
    every = [*kept, *cells]
    return {**result, name: {**STUDIES[name].told(every), "cells": every}}


def main() -> None:
    """Run the study, and write down what came of each course when it is done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=STUDIES, help="what to settle")
    parser.add_argument("--course", help="of it, one course alone")
    parser.add_argument("--device", default="cpu", help="where to train; without a GPU take --quick")
    parser.add_argument("--quick", action="store_true", help="tiny runs, to see that it works; tells nothing")
    parser.add_argument("--output", type=Path, help="the file to write to")
    chosen = parser.parse_args()
    study = STUDIES[chosen.study]
    if chosen.course not in (None, *study.courses):
        parser.error(f"--course must be one of {', '.join(study.courses)}, got {chosen.course}")
    file = chosen.output or (Path("runs/paper.json") if chosen.quick else evidence_folder() / "paper.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.set_float32_matmul_precision("high")
    for course in study.courses if chosen.course is None else [chosen.course]:
        began = time.perf_counter()
        cells = study.run(course, chosen.device, chosen.quick)
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        about = machine.about("paper", quick=chosen.quick, device=chosen.device)
        about["command"] = f"python -m benchmarks.paper STUDY --device {chosen.device}"
        found = put(known, chosen.study, cells)
        file.write_text(as_json(six_digits({**about, **found, **about})), encoding="utf-8")
        print(f"{chosen.study}, {course}: {time.perf_counter() - began:.0f} s, written to {file}")


if __name__ == "__main__":
    main()
