"""From the runs to the table: what share of the gap between a wrong and the best fixed value was recovered.

``recovered`` = (L_wrong − L_hdet)/(L_wrong − L_best), in per cent, each seed against the fixed runs of the
same: 0 is as bad as to stay at the start, 100 as good as the best value of the grid from the first step on.
All of it is arithmetic on rows, so a table can be made anew from those that its JSON file keeps.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.hyperparameters.plan import FIXED, HDET, IN_TURN, wrong_start
from benchmarks.hyperparameters.tasks import FOUR, NEUTRAL, TASKS
from benchmarks.regret.analysis import interval
from benchmarks.rows import Row

__all__ = ["analyse", "best_of", "grid", "recovered", "together"]

GOAL, AT_LEAST, AT_LEAST_ON = 80.0, 50.0, 3
Start = tuple[float, ...]
#: For each start the loss of each seed.
Losses = Mapping[Start, Mapping[int, float]]


def analyse(rows: Sequence[Row], paths: Sequence[Row] = ()) -> dict[str, Any]:
    """Each hyperparameter by itself, all four together, and the goals; plain JSON."""
    by_task: dict[str, dict[str, dict[Start, dict[int, float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(dict))
    )
    for row in rows:
        loss = math.inf if row["diverged"] else float(row["held_out"])
        by_task[row["task"]][row["arm"]][row["start"]][row["seed"]] = loss
    tasks = [_task(name, arms, paths) for name, arms in by_task.items() if name != FOUR]
    four = _four(by_task[FOUR], paths) if FOUR in by_task else None
    return {"tasks": tasks, "four": four, "goals": _goals(tasks)}


def best_of(losses: Losses) -> Start | None:
    """The start with the lowest mean over the seeds; those with fewer seeds than others do not count."""
    most = max((len(by_seed) for by_seed in losses.values()), default=0)
    full = {start: by_seed for start, by_seed in losses.items() if len(by_seed) == most}
    return min(full, key=lambda start: statistics.fmean(full[start].values()), default=None)


def recovered(
    ours: Mapping[int, float], wrong: Mapping[int, float], best: Mapping[int, float]
) -> list[float]:
    """Per cent for each seed that all three have.

    A wrong value that is no worse than the best one leaves nothing to recover: no such share.

    >>> recovered({0: 1.2, 1: 1.0}, {0: 2.0, 1: 2.0}, {0: 1.0, 1: 1.0})
    [80.0, 100.0]
    """
    shares = []
    for seed in sorted(ours.keys() & wrong.keys() & best.keys()):
        gap = wrong[seed] - best[seed]
        # From a run that diverged anything finite recovers all there is; not so if ours diverged as well.
        if math.isinf(gap) and math.isfinite(ours[seed]):
            shares.append(100.0)
        elif gap > 0:
            shares.append(100 * (wrong[seed] - ours[seed]) / gap if math.isfinite(ours[seed]) else -math.inf)
    return shares


# ---------------------------------------------------------------------- one hyperparameter


def _task(name: str, arms: Mapping[str, Losses], paths: Sequence[Row]) -> dict[str, Any]:
    fixed = arms.get(FIXED, {})
    best = best_of(fixed)
    found: dict[str, Any] = {
        "task": name,
        "grid": [{"value": start[0], **_about(fixed[start])} for start in sorted(fixed)],
        "best": None if best is None else {"value": best[0], **_about(fixed[best])},
        "starts": [],
    }
    for start, ours in sorted(arms.get(HDET, {}).items()):
        wrong, target = fixed.get(start, {}), fixed.get(best, {}) if best is not None else {}
        found["starts"].append(
            {
                "start": start[0],
                "wrong": _about(wrong) if wrong else None,
                "hdet": _about(ours),
                "recovered": _share(recovered(ours, wrong, target)),
                "found": _ends(name, start, paths),
            }
        )
    return found


def _about(by_seed: Mapping[int, float]) -> dict[str, Any]:
    """The mean loss, and that of every seed; None stands for a run that diverged."""
    losses = [by_seed[seed] for seed in sorted(by_seed)]
    return {"loss": _finite(statistics.fmean(losses)), "losses": [_finite(loss) for loss in losses]}


def _share(shares: Sequence[float]) -> dict[str, Any]:
    mean, half = interval(shares) if shares else (math.nan, None)
    return {"mean": _finite(mean), "half_width": half, "seeds": len(shares)}


def _ends(task: str, start: Start, paths: Iterable[Row]) -> list[float]:
    """Where the value was at the end, for each seed."""
    return [
        path["values"][-1]
        for path in sorted(paths, key=lambda path: path["seed"])
        if (path["task"], path["arm"], path["start"]) == (task, HDET, start)
    ]


# ---------------------------------------------------------------------- all at once


def _four(arms: Mapping[str, Losses], paths: Sequence[Row]) -> dict[str, Any]:
    """All four wrong and fixed, looked for at once and in turn, and each at the best of its own grid."""
    task = TASKS[FOUR]
    wrong = wrong_start(task)
    fixed = arms.get(FIXED, {})
    alone, reference = _alone(fixed)
    found: dict[str, Any] = {"explored": list(task.explored), "alone": alone, "arms": []}
    for label, arm, start in (
        ("all wrong, fixed", FIXED, wrong),
        ("one after the other", IN_TURN, wrong),
        ("all at once", HDET, wrong),
        ("each at the best of its own grid, fixed", FIXED, reference),
    ):
        ours = arms.get(arm, {}).get(start, {}) if start is not None else {}
        if not ours:
            continue
        against = fixed.get(reference, {}) if reference is not None else {}
        shares = recovered(ours, fixed.get(wrong, {}), against)
        ends = {
            path["explored"]: path["values"][-1]
            for path in paths
            if (path["task"], path["arm"], path["start"], path["seed"]) == (FOUR, arm, start, min(ours))
        }
        found["arms"].append(
            {
                "arm": label,
                "start": list(start or ()),
                **_about(ours),
                "recovered": _share(shares),
                "found_by_first_seed": [ends.get(name) for name in task.explored] if ends else None,
            }
        )
    return found


def _alone(fixed: Losses) -> tuple[list[dict[str, Any]], Start | None]:
    """Each grid with the others neutral, and the start that has each at its best; None if one is missing."""
    names = TASKS[FOUR].explored
    grids, best = [], []
    for place, name in enumerate(names):
        others = [NEUTRAL[other] if other != name else None for other in names]
        mine = {
            start: by_seed[0]
            for start, by_seed in fixed.items()
            if 0 in by_seed and all(o is None or o == v for o, v in zip(others, start, strict=True))
        }
        # Of another hyperparameter's grid there may be one run in which this one is neutral too.
        mine = {start: loss for start, loss in mine.items() if start[place] in TASKS[FOUR].grids[name]}
        grids.append(
            {
                "explored": name,
                "values": [start[place] for start in sorted(mine)],
                "losses": [_finite(mine[start]) for start in sorted(mine)],
            }
        )
        if len(mine) == len(TASKS[FOUR].grids[name]):
            best.append(min(mine, key=lambda start: mine[start])[place])
    return grids, tuple(best) if len(best) == len(names) else None


# ---------------------------------------------------------------------- goals


def _goals(tasks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A hyperparameter counts by the worse of its two starts, and one without both does not count."""
    worst: dict[str, float] = {}
    for task in tasks:
        shares = [start["recovered"]["mean"] for start in task["starts"]]
        if len(shares) == 2 and None not in shares:
            worst[task["task"]] = min(shares)
    every = len(worst) == len(TASKS) - 1
    ordered = sorted(worst.values(), reverse=True)
    third = ordered[AT_LEAST_ON - 1] if len(ordered) >= AT_LEAST_ON else None
    return {
        "each of the four recovers at least 80 %, from its worse start": {
            "at_least": GOAL,
            "measured": ordered[-1] if every else None,
            "worst_on": min(worst, key=lambda name: worst[name], default=None),
            "met": every and ordered[-1] >= GOAL,
        },
        "at least: three of the four recover 50 %": {
            "at_least": AT_LEAST,
            "measured": third,
            "met": third is not None and third >= AT_LEAST,
        },
    }


# ---------------------------------------------------------------------- the tables' cells


def grid(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and lines: each hyperparameter from each of its starts."""
    headings = [
        *("hyperparameter", "best fixed: loss", "start", "loss if it stays", "loss with HDET"),
        *("recovered, %", "found"),
    ]
    lines = []
    for task in result["tasks"]:
        best = task["best"]
        target = "–" if best is None else f"{best['value']:g}: {_loss(best)}"
        for start in task["starts"]:
            found = start["found"]
            ends = f"{min(found):.2g} … {max(found):.2g}" if len(found) > 1 else f"{found[0]:.2g}"
            lines.append(
                [
                    *(task["task"], target, f"{start['start']:g}"),
                    *(_loss(start["wrong"]), _loss(start["hdet"])),
                    *(_cell(start["recovered"]), ends if found else "–"),
                ]
            )
    return headings, lines


def together(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and lines: all four in one run, in each way."""
    four = result["four"]
    lines = []
    for arm in four["arms"]:
        ends = arm["found_by_first_seed"] or arm["start"]
        values = ["–" if value is None else f"{value:.2g}" for value in ends]
        lines.append([arm["arm"], _loss(arm), _cell(arm["recovered"]), *values])
    return ["run", "held-out loss", "recovered, %", *four["explored"]], lines


def _loss(about: Mapping[str, Any] | None) -> str:
    if about is None:
        return "–"
    if about["loss"] is None:
        return "diverged"
    half = interval([loss for loss in about["losses"] if loss is not None])[1]
    return f"{about['loss']:.3f}" + (f" ± {half:.3f}" if half is not None else "")


def _cell(share: Mapping[str, Any]) -> str:
    if share["mean"] is None:
        return "–"
    half = share["half_width"]
    return f"{share['mean']:.0f}" + (f" ± {half:.0f}" if half is not None else "")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
