"""``python -m benchmarks.pretrained fetch|run|table``."""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.pool import complete_as_given
from benchmarks.pretrained.plan import FITTED, IMAGES, TEXTS, YIELDS, Run, planned, run_of
from benchmarks.pretrained.runs import FOLDER, execute
from benchmarks.pretrained.tables import CLASSIFIED, analyse, classified, markdown
from benchmarks.rows import KeptRows, Row
from benchmarks.show import as_json, evidence_folder

__all__ = ["main"]

_ROWS = Path("runs/pretrained.jsonl")
_PARTS = ("given", "autolr", "autotune", "search", "fit", "texts", "images")


def main() -> None:
    """Fetch models and data, run what is missing, or make the tables of what there is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pretrained", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="models and data, with their licences")
    fetching.add_argument("--reactions", type=Path, help="a clone of rxn4chemistry/rxn_yields")
    running = commands.add_parser("run", help="what is not in the rows yet")
    running.add_argument("--parts", default=",".join(_PARTS), help=f"some of {_PARTS}, between commas")
    running.add_argument(
        "--tasks", default=",".join(YIELDS + FITTED + TEXTS + IMAGES), help="names, between commas"
    )
    running.add_argument("--device", default="cpu")
    running.add_argument("--processes", type=int, default=os.cpu_count(), help="runs at a time")
    running.add_argument("--minutes", type=float, default=math.inf, help="after so long none is started")
    showing = commands.add_parser("table", help="the JSON file and its tables, of the rows that there are")
    showing.add_argument("--rows", type=Path, nargs="+", default=[_ROWS])
    for one in (fetching, running):
        one.add_argument("--folder", type=Path, default=Path("runs/pretrained"), help="of models and data")
    running.add_argument("--rows", type=Path, default=_ROWS)
    given = parser.parse_args()
    if given.command == "fetch":
        from benchmarks.pretrained.fetch import fetch

        fetch(given.folder, given.reactions, print)
    elif given.command == "table":
        _table(given.rows)
    else:
        os.environ[FOLDER] = str(given.folder)
        _run(given)


def _table(files: Sequence[Path]) -> None:
    """``FILE.machine.json`` beside the first says where the rows were made."""
    done = KeptRows[Run](None, run_of)
    for file in files:
        done.merge(file)
    about = json.loads(machine.file_of(files[0]).read_text(encoding="utf-8"))
    result = {**about, "protocol": "benchmarks/pretrained/PROTOCOL.md", **analyse(done.finished)}
    path = evidence_folder() / "pretrained.json"
    path.write_text(as_json(result), encoding="utf-8")
    others = [classified(result, part) for part in CLASSIFIED if result[part]["cells"]]
    print(markdown(result), *others, f"Written to {path}", sep="\n\n")


def _run(given: argparse.Namespace) -> None:
    about = machine.about("pretrained", quick=False, device=given.device)
    about["command"] = f"python -m benchmarks.pretrained run --device {given.device}"
    given.rows.parent.mkdir(parents=True, exist_ok=True)
    machine.file_of(given.rows).write_text(as_json(about), encoding="utf-8")
    done = KeptRows(given.rows, run_of)
    parts, tasks = given.parts.split(","), given.tasks.split(",")

    def wanted() -> list[Run]:
        return [run for run in planned(done.finished, parts, given.device) if run.task in tasks]

    complete_as_given(given, wanted, done, execute, _told)


def _told(row: Row) -> str:
    run: Run = run_of(row)
    result: Mapping[str, object] = {name: row.get(name) for name in ("error", "r2", "accuracy", "loss")}
    known = {name: value for name, value in result.items() if value is not None}
    where = f"{run.task} {run.arm} seed {run.seed}, {run.samples or 'all'} samples, LoRA {run.lora}"
    return f"{where}: {known} {row.get('seconds')} s"
