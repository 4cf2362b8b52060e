"""What each constant of AutoLR is worth, ``python -m benchmarks.zoo.ablation``: each changed alone.

A variant is AutoLR with one constant off or, where off makes no sense, halved and doubled. All run on the
same cells, and so does AutoLR as it is. Excess is over the committed sweep with the same choice of weights,
no cell counts for more than 1, and differences are taken between runs of the same cell and seed. The constant
as it is pays where the variant is worse by 0.3 % or loses more runs.
"""

from __future__ import annotations

import argparse
import math
import shlex
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from benchmarks import machine
from benchmarks.pool import Say
from benchmarks.pretrained.plan import FACTORS
from benchmarks.rows import KeptRows, Row, six_digits
from benchmarks.zoo.analysis import analyse
from benchmarks.zoo.catalogue import TASKS, cells
from benchmarks.zoo.command import can_run, in_words, run_missing, write_table
from benchmarks.zoo.families import PARTS
from benchmarks.zoo.plan import Cell, Plan, Run, run_of
from benchmarks.zoo.prior import ROWS as SWEPT
from benchmarks.zoo.runs import execute
from hdet.autolr import best, policy
from hdet.autolr.rule import HorizonController

__all__ = ["AS_IT_IS", "ROWS", "VARIANTS", "compare", "execute_variant", "main", "run"]

ROWS = Path("runs/zoo-ablation.jsonl")
#: The name of a variant, and one of its runs.
Job = tuple[str, Run]

AS_IT_IS = "as it is"
_OFF = 1e9
#: What constants of the rule become; those that are not here are halved and doubled.
_INSTEAD: Mapping[str, Sequence[float]] = {
    "pull": (0.0, 1.6),
    "memory": (0.0, 0.75),
    "thrown": (math.sqrt(2.0), 4.0, _OFF),
    "lost": (0.05, 0.2, _OFF),
    "slower": (math.sqrt(3.0), 9.0),
    "least": (_OFF,),
}
#: Likewise those of :mod:`hdet.autolr.best`, but for one that is read only where the steps are not known.
_INSTEAD_OF_BEST: Mapping[str, Sequence[float]] = {
    "_MAX_RESTARTS": (0,),
    "_BEHIND": (1, 3),
    "_RESTART": (best._RESTART / 2, 2 * best._RESTART),
    "_YOUTH": (best._YOUTH / 2, 2 * best._YOUTH),
}
#: So much worse, as a share, must a variant be.
_PAYS = 0.003


def _rules() -> Iterator[tuple[str, HorizonController]]:
    for name, usual in asdict(HorizonController()).items():
        for value in _INSTEAD.get(name, (usual / 2, 2 * usual)):
            yield f"{name} {value:.3g}", HorizonController(**{name: value})


def _always(share: float) -> Callable[..., float]:
    return lambda *_: share


#: Arguments of AutoLR or its probe, and what stands for a name of a module.
_Variant = tuple[dict[str, Any], dict[tuple[ModuleType, str], Any]]
VARIANTS: Mapping[str, _Variant] = {
    AS_IT_IS: ({}, {}),
    **{name: ({"rule": rule}, {}) for name, rule in _rules()},
    "patience None": ({"patience": None}, {}),
    **{
        f"{name.strip('_').lower()} {value:.3g}": ({}, {(best, name): value})
        for name, values in _INSTEAD_OF_BEST.items()
        for value in values
    },
    **{f"trained × {share:g}": ({}, {(policy, "fine_tuning"): _always(share)}) for share in FACTORS},
    "all batches": ({}, {(best, "_AGREE"): -1.0}),
}


def execute_variant(job: Job, steps: int | None = None) -> Row:
    """The row of the zoo, with the name of the variant."""
    name, one = job
    given, constants = VARIANTS[name]
    with ExitStack() as stack:
        for (module, constant), value in constants.items():
            stack.enter_context(patch.object(module, constant, value))
        return {**execute(one, steps, **given), "variant": name}


def run(
    part: str = "dev",
    seeds: int = 3,
    device: str = "cpu",
    processes: int | None = None,
    minutes: float | None = None,
    rows: Path = ROWS,
    variants: Sequence[str] = tuple(VARIANTS),
    tasks: Sequence[str] = (),
    say: Say = print,
    name: str = "zoo-ablation",
) -> dict[str, Any]:
    """Run what is not in ``rows`` yet, for so many ``minutes``, and compare all that is; plain JSON."""
    done: KeptRows[Job] = KeptRows(rows, _job_of)
    some = [cell for one in part.split("+") for cell in cells(one) if not tasks or cell[0] in tasks]
    asked = Plan(some, seeds=seeds, device=device)
    jobs = _jobs(variants, asked, asked.cells)
    if minutes != 0:
        here = _jobs(variants, asked, can_run(asked.cells, say))
        run_missing(
            lambda: here,
            done,
            execute_variant,
            lambda row: f"{row['variant']}: {in_words(row)}",
            device=device,
            processes=processes,
            minutes=minutes,
            say=say,
        )
    swept = {one: row for one, row in KeptRows(SWEPT, run_of).finished.items() if one.method == "fixed"}
    wanted = set(jobs)
    failed = {f"{job[0]}: {job[1]}: {row['error']}" for job, row in done.failed.items() if job in wanted}
    module = name.replace("-", ".")
    return {
        **machine.about(name, quick=False, device=device),
        "command": f"python -m benchmarks.{module} --part {part} --seeds {seeds} --device {device}"
        + (f" --tasks {' '.join(tasks)}" if tasks else "")
        + (f" --variants {shlex.join(variants)}" if len(variants) < len(VARIANTS) else ""),
        "settings": {"part": part, "cells": len(asked.cells), "seeds": seeds},
        "missing_runs": sum(job not in done.finished for job in jobs),
        "errors": sorted(failed),
        **compare(
            asked.cells, {job: row for job, row in done.finished.items() if job in wanted}, swept, variants
        ),
    }


def compare(
    some: Sequence[Cell],
    finished: Mapping[Job, Row],
    swept: Mapping[Run, Row],
    variants: Sequence[str] = tuple(VARIANTS),
) -> dict[str, dict[str, Any]]:
    """What each variant costs, beside the first on the same runs."""
    by_variant: dict[str, dict[Run, Row]] = {name: {} for name in variants}
    for (name, one), row in finished.items():
        by_variant[name][one] = row
    first = variants[0]
    plain, found = by_variant[first], {}
    for name, rows in by_variant.items():
        both = rows.keys() & plain.keys()
        theirs, ours = (_autolr(some, swept, [given[one] for one in both]) for given in (rows, plain))
        if not theirs:
            continue
        excess = {cell: min(told["excess_test_chosen"], 1.0) for cell, told in theirs.items()}
        worse = {cell: excess[cell] - min(ours[cell]["excess_test_chosen"], 1.0) for cell in excess}
        lost, lost_before = (sum(told["lost"] for told in of.values()) for of in (theirs, ours))
        difference = statistics.fmean(worse.values())
        found[name] = {
            "cells": len(excess),
            "runs": sum(told["seeds"] for told in theirs.values()),
            "mean_to_one": statistics.fmean(excess.values()),
            "difference": difference,
            "error": _error(worse),
            "lost": lost,
            "lost_as_it_is": lost_before,
            "pays": name != first and (difference >= _PAYS or lost > lost_before),
        }
    return {"variants": six_digits(found)}


def _autolr(some: Sequence[Cell], swept: Mapping[Run, Row], rows: Sequence[Row]) -> dict[Cell, Any]:
    """What the zoo tells of AutoLR in every cell, if these were its rows; the sweep's were made on a GPU."""
    plan = Plan(some, device="cuda")
    own = {plan.run("autolr", (row["task"], row["optimizer"]), row["seed"]): row for row in rows}
    lines = analyse(plan, {**swept, **own})["cells"]
    return {(line["task"], line["optimizer"]): line["autolr"] for line in lines if line["autolr"]}


def _error(differences: Mapping[Cell, float]) -> float | None:
    """The standard error of their mean, where cells of one family may err alike; None of one family."""
    mean, sums = statistics.fmean(differences.values()), dict[str, float]()
    for (task, _), value in differences.items():
        family = TASKS[task].family
        sums[family] = sums.get(family, 0.0) + value - mean
    if len(sums) < 2:
        return None
    squares = math.fsum(value * value for value in sums.values())
    return math.sqrt(squares * len(sums) / (len(sums) - 1)) / len(differences)


def _jobs(variants: Sequence[str], plan: Plan, some: Sequence[Cell]) -> list[Job]:
    return [
        (name, plan.run("autolr", cell, seed))
        for seed in range(plan.seeds)
        for name in variants
        for cell in some
    ]


def _job_of(row: Row) -> Job:
    return row["variant"], run_of(row)


def main() -> None:
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--part", choices=(*PARTS, "fit+dev", "fit+dev+test"), default="dev", help="which families"
    )
    parser.add_argument("--seeds", type=int, choices=(1, 2, 3), default=3, help="as many as the sweep has")
    parser.add_argument("--device", default="cpu", help="where to train")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        default=[*VARIANTS],
        metavar="NAME",
        help="all unless given",
    )
    parser.add_argument(
        "--tasks", nargs="+", default=(), metavar="NAME", help="of the part; all unless given"
    )
    write_table("zoo-ablation", parser, run, ROWS)


if __name__ == "__main__":
    main()
