"""From the runs to the table and the figures' data, in plain JSON.

All of it is arithmetic on rows. A mean over seeds stands beside half the width of its 95 % confidence
interval; a crashed run with a finite loss counts in the mean, as in the paper, and is marked with a dagger.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.machine import rounded
from benchmarks.regret.analysis import interval
from benchmarks.reproduce.order import order
from benchmarks.reproduce.plan import (
    CONFIGURATIONS,
    PLAIN,
    Block,
    Plan,
    Row,
    Run,
    blocks,
    crash_lr,
    sweep,
    tuned_lr,
)
from benchmarks.reproduce.runs import one_cycle, reduced
from benchmarks.reproduce.tasks import FEEDS
from benchmarks.rows import six_digits

__all__ = ["CURVES", "curves", "learning_rates", "table"]

Finished = Mapping[Run, Row]
#: The lines of the table whose losses Figure 2 draws.
CURVES = ("Baseline-Low", "Baseline-High", "Warm-Init", "HDET (full)")
_HEADER = (
    *("configuration", "lr", "seed"),
    *("train", "held_out", "init", "crashed", "crash_step", "seconds", "by_answer"),
)
#: Of the held-out samples, by answer. Rows written by 0.2, and those of a language model, have none.
_METRICS = ("auc", "ne")


# ---------------------------------------------------------------------- the table


def table(plan: Plan, finished: Finished) -> dict[str, Any]:
    """The sweep, both blocks line by line, and the runs they are made of."""
    tuned = tuned_lr(plan, finished)
    mine = [row for run, row in finished.items() if plan.holds(run)]
    header = [*_HEADER, *(_METRICS if mine and all(row.get("auc") for row in mine) else ())]
    mine.sort(key=lambda row: (row["configuration"], row["lr"] or 0.0, row["seed"]))
    swept = [{"lr": lr, **_over_seeds(_rows(plan, PLAIN, lr, finished))} for lr in sweep(plan, finished)]
    return {
        "sweep": {"rows": six_digits(swept), "tuned_lr": tuned, "crash_lr": crash_lr(plan, finished)},
        "blocks": [
            {
                **_about(block),
                "rows": six_digits([_line(plan, block, line, tuned, finished) for line in plan.lines]),
            }
            for block in blocks(plan, finished)
        ],
        "runs": {
            "header": header,
            "rows": six_digits([[_kept(row[name]) for name in header] for row in mine]),
        },
    }


def _line(plan: Plan, block: Block, line: str, tuned: float | None, finished: Finished) -> dict[str, Any]:
    about = CONFIGURATIONS[line]
    lr = block.lr(line, tuned)
    known = lr is not None or about.rate == "none"
    paper = {"loss": about.paper_loss, "crashed": about.paper_crashed}
    return {
        "configuration": line,
        "description": about.description,
        "lr": lr,
        "paper": paper if about.paper_loss is not None and plan.task in FEEDS else None,
        **_over_seeds(_rows(plan, about.runs, lr, finished) if known else []),
    }


def _rows(plan: Plan, configuration: str, lr: float | None, finished: Finished) -> list[Row]:
    return [row for run in plan.over_seeds(configuration, lr) if (row := finished.get(run)) is not None]


def _over_seeds(rows: Sequence[Row]) -> dict[str, Any]:
    crashes = [row["crash_step"] for row in rows if row["crashed"]]
    return {
        "seeds": len(rows),
        "train": _interval(row["train"] for row in rows),
        "held_out": _interval(row["held_out"] for row in rows),
        "crashed": len(crashes),
        "crash_step": int(statistics.median(crashes)) if crashes else None,
        "seconds": statistics.fmean(row["seconds"] for row in rows) if rows else None,
        **_metrics(rows),
    }


def _metrics(rows: Sequence[Row]) -> dict[str, Any]:
    """AUC and normalised entropy of each answer, and the mean of the answers; nothing if a row has none."""
    if not rows or not all(row.get("auc") for row in rows):
        return {}
    return {
        metric: {
            **{answer: _interval(row[metric][answer] for row in rows) for answer in rows[0][metric]},
            "mean": _interval(_mean(row[metric].values()) for row in rows),
        }
        for metric in _METRICS
    }


def _mean(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return statistics.fmean(known) if len(known) == len(found) else None


def _interval(values: Iterable[float | None]) -> dict[str, float | None]:
    """Over the seeds; None if there is no seed yet, or one of them is not finite."""
    found = list(values)
    known = [value for value in found if value is not None]
    if not known or len(known) < len(found):
        return {"mean": None, "half_width": None}
    mean, half = interval(known)
    return {"mean": mean, "half_width": half}


def _about(block: Block) -> dict[str, Any]:
    return {"name": block.name, "title": block.title, "low": block.low, "high": block.high}


def _kept(value: Any) -> Any:
    return list(value.values()) if isinstance(value, dict) else value


# ---------------------------------------------------------------------- the figures


def curves(plan: Plan, finished: Finished) -> dict[str, Any]:
    """Figure 2: training loss against steps, for each block the curves of every seed."""
    return {
        "blocks": [
            {**_about(block), "curves": [_curve(plan, block, line, finished) for line in CURVES]}
            for block in blocks(plan, finished)
        ]
    }


def _curve(plan: Plan, block: Block, line: str, finished: Finished) -> dict[str, Any]:
    lr = block.lr(line, None)
    rows = _rows(plan, CONFIGURATIONS[line].runs, lr, finished)
    over = _over_seeds(rows)
    return {
        "configuration": line,
        "lr": lr,
        **{name: over[name] for name in ("seeds", "crashed", "crash_step")},
        "runs": [
            {
                "seed": row["seed"],
                "steps": row["loss_steps"],
                "loss": rounded(row["loss"]),
                **{name: row[name] for name in ("crashed", "crash_step")},
                **six_digits({"init": row["init"], "final": row["train"]}),
            }
            for row in rows
        ],
    }


def learning_rates(plan: Plan, finished: Finished, *, steps: int, control_from: int) -> dict[str, Any]:
    """Figure 3: the learning rate of every group against plain OneCycleLR, and what order they are in.

    A group's factor is on what it would be without a vote: on OneCycleLR, or on Eq. 8 where that is chosen.
    """
    settings = plan.settings
    found = []
    for block in blocks(plan, finished):
        rows = _rows(plan, "HDET (full)", block.high, finished)
        at, lrs = reduced(one_cycle(block.high, steps, settings.final_div))
        found.append(
            {
                **_about(block),
                "plain": {"steps": at, "lr": rounded(lrs)},
                "runs": [
                    {
                        "seed": row["seed"],
                        "steps": row["lr_steps"],
                        **six_digits({"lrs": row["lrs"], "factors": row["factors"]}),
                    }
                    for row in rows
                ],
                "order": six_digits(order(rows, control_from, steps, settings.decay)),
            }
        )
    groups = next((list(run["lrs"]) for block in found for run in block["runs"]), [])
    return {"groups": groups, "control_from": control_from, "blocks": found}
