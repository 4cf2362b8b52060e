"""What became of the runs: R² and RMSE of each arm, beside the authors' own and as a difference to it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.pretrained.plan import AS_IT_RAN, RECIPE, YIELDS, Run, planned
from benchmarks.regret.analysis import interval
from benchmarks.rows import Row, six_digits

__all__ = ["THEIRS", "analyse", "markdown"]

#: R² and RMSE of the authors' own models on the first five splits, as notebooks 03 and 04 of rxn_yields print
#: them.
THEIRS = {
    "buchwald-hartwig": ([0.95, 0.94, 0.94, 0.96, 0.95], [6.2, 6.5, 6.5, 5.8, 6.0]),
    "suzuki": ([0.8078, 0.8311, 0.8394, 0.8208, 0.8171], [12.193, 11.561, 11.267, 11.852, 11.943]),
}
_PUBLISHED = f"published{AS_IT_RAN}"
_PARTS = ("as-it-ran", "yields", "autotune", "texts")


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


_COST = {"autotune": "4"}
_NAMES = {
    "autolr": "AutoLR",
    "autotune": "AutoTune, 4 replicas",
    "prodigy": "Prodigy",
    "default": "5e-5, dropout 0.1",
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
                        f"{told['r2']:.3f} ± {told['r2_deviation']:.3f}",
                        f"{told['rmse']:.2f} ± {told['rmse_deviation']:.2f}",
                        _against(told),
                        _COST.get(arm, "1"),
                    ]
                )
            )
    return "\n".join(lines)


def _against(told: Mapping[str, Any]) -> str:
    if "rmse_difference" not in told:
        return "–"
    return f"{told['rmse_difference']:+.2f} ± {told['rmse_half_width']:.2f} (splits {_few(told['on'])})"


def _few(splits: Sequence[int]) -> str:
    return f"{splits[0]}–{splits[-1]}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
