"""What became of the runs: R² and RMSE of each arm, beside the authors' own and as a difference to it; of
texts and pictures, loss and accuracy beside the sweep's."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from benchmarks.pretrained.plan import (
    AS_IT_RAN,
    FACTORS,
    FITTED,
    IMAGES,
    RECIPE,
    TEXTS,
    YIELDS,
    Run,
    factor_arm,
    planned,
)
from benchmarks.regret.analysis import interval
from benchmarks.rows import Row, six_digits

__all__ = ["CLASSIFIED", "THEIRS", "analyse", "classified", "markdown"]

#: R² and RMSE of the authors' own models on the first five splits, as notebooks 03 and 04 of rxn_yields print
#: them.
THEIRS = {
    "buchwald-hartwig": ([0.95, 0.94, 0.94, 0.96, 0.95], [6.2, 6.5, 6.5, 5.8, 6.0]),
    "suzuki": ([0.8078, 0.8311, 0.8394, 0.8208, 0.8171], [12.193, 11.561, 11.267, 11.852, 11.943]),
}
_PUBLISHED = f"published{AS_IT_RAN}"
#: The parts that are told by loss and accuracy.
CLASSIFIED = {"fit": FITTED, "texts": TEXTS, "images": IMAGES}
_PARTS = ("given", "autolr", "autotune", *CLASSIFIED)


def analyse(rows: Mapping[Run, Row]) -> dict[str, Any]:
    """By task and arm; differences are to the published setting as it ran, on the splits that both have."""
    arms: dict[str, dict[str, dict[int, Row]]] = {}
    for run, row in rows.items():
        if run.task in YIELDS and not run.held:
            arms.setdefault(run.task, {}).setdefault(run.arm, {})[run.seed] = row
    device = next(iter(rows)).device
    plans = {part: planned(rows, [part], device) for part in _PARTS}
    return {
        "settings": RECIPE,
        "yields": {
            task: {arm: _told(by_seed, of_task.get(_PUBLISHED, {})) for arm, by_seed in of_task.items()}
            for task, of_task in arms.items()
        },
        **{part: _cells(rows, tasks) for part, tasks in CLASSIFIED.items()},
        "theirs": {task: {"r2": r2, "rmse": rmse} for task, (r2, rmse) in THEIRS.items()},
        "done": {part: [sum(run in rows for run in plan), len(plan)] for part, plan in plans.items()},
        "rows": [six_digits(row) for row in rows.values()],
    }


def _told(by_seed: Mapping[int, Row], published: Mapping[int, Row]) -> dict[str, Any]:
    splits = sorted(by_seed)
    told: dict[str, Any] = {"splits": splits}
    for name in ("r2", "rmse"):
        values = [by_seed[split][name] for split in splits]
        told[name] = statistics.fmean(values)
        told[f"{name}_deviation"] = statistics.stdev(values) if len(values) > 1 else None
    both = [split for split in splits if split in published]
    if both and by_seed is not published:
        differences = [by_seed[split]["rmse"] - published[split]["rmse"] for split in both]
        told["rmse_difference"], told["rmse_half_width"] = interval(differences)
        told["on"] = both
    return six_digits(told)  # type: ignore[no-any-return]


def _cells(rows: Mapping[Run, Row], tasks: Collection[str]) -> dict[str, Any]:
    """Every cell by itself, and all together against the sweep."""
    found: dict[tuple[str, int, bool], dict[str, dict[int, Row]]] = {}
    for run, row in rows.items():
        if run.task in tasks and not run.held:
            of_cell = found.setdefault((run.task, run.samples, run.lora), {})
            of_cell.setdefault(run.arm, {})[run.seed] = row
    cells: list[dict[str, Any]] = [
        {
            **{"task": task, "samples": samples, "lora": lora},
            "arms": {arm: _by_loss(by_seed, arms.get("swept", {})) for arm, by_seed in arms.items()},
        }
        for (task, samples, lora), arms in found.items()
    ]
    told: dict[str, dict[str, list[Mapping[str, Any]]]] = {}
    for cell in cells:
        for group in ("all", "LoRA" if cell["lora"] else "whole"):
            for arm, of_arm in cell["arms"].items():
                told.setdefault(group, {}).setdefault(arm, []).append(of_arm)
    together = {
        group: {arm: _together(all_of) for arm, all_of in arms.items()} for group, arms in told.items()
    }
    return {"cells": cells, "together": together}


def _by_loss(by_seed: Mapping[int, Row], swept: Mapping[int, Row]) -> dict[str, Any]:
    """Means over seeds; the comparison is on the seeds that both have. A loss that is not finite is None."""
    seeds = sorted(by_seed)
    told: dict[str, Any] = {"seeds": seeds, "rates": [by_seed[seed]["found"] for seed in seeds]}
    for name in ("loss", "accuracy"):
        told[name] = _mean(by_seed, seeds, name)
        values = [_value(by_seed[seed], name) for seed in seeds]
        spread = len(values) > 1 and math.isfinite(told[name])
        told[f"{name}_deviation"] = statistics.stdev(values) if spread else None
    both = [seed for seed in seeds if seed in swept]
    if both and by_seed is not swept:
        told["log_ratio"] = math.log(_mean(by_seed, both, "loss") / _mean(swept, both, "loss"))
        told["accuracy_difference"] = _mean(by_seed, both, "accuracy") - _mean(swept, both, "accuracy")
    finite = {name: None if value in (math.inf, -math.inf) else value for name, value in told.items()}
    return six_digits(finite)  # type: ignore[no-any-return]


def _together(told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``mean`` and ``median`` of the loss over the sweep's, of logarithms, less one."""
    together: dict[str, Any] = {
        "cells": len(told),
        "accuracy": six_digits(statistics.fmean(one["accuracy"] for one in told)),
    }
    against = [one for one in told if "log_ratio" in one]
    if against:
        ratios = [one["log_ratio"] for one in against if one["log_ratio"] is not None]
        together |= {
            "diverged": len(against) - len(ratios),
            "mean": six_digits(math.expm1(statistics.fmean(ratios))) if ratios else None,
            "median": six_digits(math.expm1(statistics.median(ratios))) if ratios else None,
            "ahead": sum(ratio < 0 for ratio in ratios),
            "ahead_in_accuracy": sum(one["accuracy_difference"] > 0 for one in against),
        }
    return together


def _mean(by_seed: Mapping[int, Row], seeds: Sequence[int], name: str) -> float:
    return statistics.fmean(_value(by_seed[seed], name) for seed in seeds)


def _value(row: Row, name: str) -> float:
    return math.inf if row[name] is None else float(row[name])


#: Of a search, its trials and the run at what it found.
_COST = {"autotune": "4", "tpe 8": "8 + 1", "tpe 30": "30 + 1"}
_NAMES = {
    "autolr": "AutoLR",
    **{factor_arm(factor): f"AutoLR, usual rate × {factor:g}" for factor in FACTORS},
    "autotune": "AutoTune, 4 replicas",
    "default": "5e-5, dropout 0.1",
    "tpe 8": "Optuna, 8 trials",
    "tpe 30": "Optuna, 30 trials",
    "swept": "the sweep's rate",
    "usual": "the usual rate",
    "prodigy": "Prodigy",
}


def markdown(result: Mapping[str, Any]) -> str:
    """A table for each task."""
    lines = [
        "| task | arm | splits | R² | RMSE, % of yield | against *published, as it ran* | samples, in runs |"
    ]
    lines.append("|" + " --- |" * 7)
    for task, arms in result["yields"].items():
        theirs = result["theirs"][task]
        r2, rmse = (statistics.fmean(theirs[name]) for name in ("r2", "rmse"))
        lines.append(
            _line(
                [
                    task,
                    "the authors' own models",
                    str(len(theirs["r2"])),
                    f"{r2:.3f}",
                    f"{rmse:.1f}",
                    "–",
                    "a sweep",
                ]
            )
        )
        for arm, told in sorted(arms.items(), key=lambda one: one[1]["rmse"]):
            base, _, rest = arm.partition(",")
            name = _NAMES.get(base, base) + (f",{rest}" if rest else "")
            lines.append(
                _line(
                    [
                        *(task, name, str(len(told["splits"]))),
                        f"{told['r2']:.3f} ± {told['r2_deviation']:.3f}".replace("-", "−"),
                        f"{told['rmse']:.2f} ± {told['rmse_deviation']:.2f}",
                        _against(told),
                        _COST.get(arm, "1"),
                    ]
                )
            )
    return "\n".join(lines)


def classified(result: Mapping[str, Any], part: str) -> str:
    """Texts or pictures: a line for each cell, with test loss, accuracy and rates of each arm, and one for
    each kind against the sweep."""
    arms = list(dict.fromkeys(arm for cell in result[part]["cells"] for arm in cell["arms"]))
    arms.sort(key=list(_NAMES).index)
    lines = [_line(["test loss (accuracy; rate)", *(_NAMES[arm] for arm in arms)])]
    lines.append("|" + " --- |" * (1 + len(arms)))
    together = result[part]["together"]
    for group in [group for group in ("whole", "LoRA", "all") if group in together]:
        for cell in result[part]["cells"]:
            if cell["lora"] == (group == "LoRA") and group != "all":
                samples = f", {cell['samples']} samples" if cell["samples"] else ""
                name = f"{cell['task']}{samples}{', LoRA' if cell['lora'] else ''}"
                lines.append(_line([name, *(_in_cell(cell["arms"].get(arm)) for arm in arms)]))
        if group != "all" or "LoRA" in together:
            lines.append(_line([f"**{group}**", *(_of_all(together[group].get(arm)) for arm in arms)]))
    return "\n".join(lines)


def _in_cell(told: Mapping[str, Any] | None) -> str:
    if told is None:
        return "–"
    low, high = f"{min(told['rates']):.0e}", f"{max(told['rates']):.0e}"
    rates = low if low == high else f"{low} … {high}"
    loss = "diverged" if told["loss"] is None else f"{told['loss']:.3f}"
    return f"{loss} ({100 * told['accuracy']:.1f}; {rates})"


def _of_all(told: Mapping[str, Any] | None) -> str:
    if told is None:
        return "–"
    accuracy = f"accuracy {100 * told['accuracy']:.1f}"
    if "mean" not in told:
        return accuracy
    if told["mean"] is None:
        return f"diverged; {accuracy}"
    loss = f"loss {100 * told['mean']:+.0f} % (median {100 * told['median']:+.0f})".replace("-", "−")
    return f"{loss}, below the sweep's in {told['ahead']} of {told['cells']}; {accuracy}"


def _against(told: Mapping[str, Any]) -> str:
    if "rmse_difference" not in told:
        return "–"
    return f"{told['rmse_difference']:+.2f} ± {told['rmse_half_width']:.2f} (splits {_few(told['on'])})"


def _few(splits: Sequence[int]) -> str:
    return f"{splits[0]}–{splits[-1]}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
