"""How long a temperature takes to show what it is worth: why rounds of 25 steps are led away from it.

A model is trained at the low end of the temperature's grid; from there copies of it train on at other
values, all on the same batches. What is told is their held-out loss minus that of the copy that stays, at
once and after so many steps. A policy that compares replicas after a round sees the sign of the column that
is as long as the round.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from benchmarks import machine
from benchmarks.hyperparameters.tasks import TASKS, TEMPERATURE, Setup, put, set_up, workload
from benchmarks.regret.analysis import interval
from benchmarks.regret.trainer import wsd
from benchmarks.rows import six_digits
from benchmarks.workloads import Batch, Workload
from benchmarks.workloads.base import seeded

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["grid", "run", "table"]

#: One spread of the benchmark from the start, two, four, six, and the usual value.
_VALUES = (0.016, 0.027, 0.074, 0.2, 1.0)
_SHARE, _AFTER, _SEEDS = 0.25, (0, 25, 50, 100, 200), 3
_QUICK_AFTER, _QUICK_BEFORE = (0, 5), 5


def run(
    quick: bool = False, device: str = "cpu", on_progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Train, branch and compare; the result is plain JSON."""
    if device != "cpu":
        raise ValueError(f"delay: device must be 'cpu', got {device!r}; its model is too small for another")
    say = on_progress or (lambda _: None)
    data = workload(TEMPERATURE)
    before = _QUICK_BEFORE if quick else round(_SHARE * data.steps)
    after: Sequence[int] = _QUICK_AFTER if quick else _AFTER
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        losses = [_of_seed(data, seed, before, after, say) for seed in range(1 if quick else _SEEDS)]
    finally:
        torch.set_num_threads(threads)
    start = TASKS[TEMPERATURE].grids[TEMPERATURE][0]
    rows = [
        _row(value, after, [[k - s for k, s in zip(one[value], one[start], strict=True)] for one in losses])
        for value in _VALUES
    ]
    about = machine.about("delay", quick=quick, device=device)
    settings = {"task": TEMPERATURE, "start": start, "trained_before": before, "steps": data.steps}
    result: dict[str, Any] = six_digits(
        {
            **about,
            **settings,
            "seeds": len(losses),
            "caveats": [data.caveat] if data.caveat else [],
            "rows": rows,
        }
    )
    return result


def _row(value: float, after: Sequence[int], by_seed: list[list[float]]) -> dict[str, Any]:
    """What one value lost or gained by each number of steps, over seeds."""
    differences = [list(one) for one in zip(*by_seed, strict=True)]
    told = [interval(one) for one in differences]
    even = next((steps for steps, (mean, _) in zip(after, told, strict=True) if mean < 0), None)
    return {
        "value": value,
        "after": list(after),
        "difference": differences,
        "mean": [mean for mean, _ in told],
        "half_width": [half for _, half in told],
        "breaks_even_after": even,
    }


def _of_seed(
    data: Workload, seed: int, before: int, after: Sequence[int], say: Callable[[str], None]
) -> dict[float, list[float]]:
    """The held-out losses of every value after each number of steps, the start's own among them."""
    task = TASKS[TEMPERATURE]
    start = task.grids[TEMPERATURE][0]
    batches = list(islice(data.batches(seed), before + after[-1]))
    with seeded(seed):
        first = set_up(task, data.build(seed).train())
        put(first, TEMPERATURE, start)
        _train(first, data, batches[:before], begun=0)
        found: dict[float, list[float]] = {}
        for value in (start, *_VALUES):
            say(f"seed {seed}, temperature {value:g}")
            branch = copy.deepcopy(first)
            put(branch, TEMPERATURE, value)
            found[value] = []
            for begin, end in zip((0, *after), after, strict=False):
                _train(branch, data, batches[before + begin : before + end], begun=before + begin)
                found[value].append(data.evaluate(branch.model))
                branch.model.train()
    return found


def _train(setup: Setup, data: Workload, batches: list[Batch], *, begun: int) -> None:
    """On the plain schedule of the benchmark's runs, from the step at which it has ``begun``."""
    task = TASKS[TEMPERATURE]
    for group in setup.optimizer.param_groups:
        group["lr"] = group["initial_lr"] = task.lr
    schedule = LambdaLR(setup.optimizer, lambda step: wsd(begun + step, data.steps))
    for batch in batches:
        setup.optimizer.zero_grad()
        setup.criterion(*task.outputs(setup.model, batch)).backward()
        setup.optimizer.step()
        schedule.step()


def grid(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headings and lines of the table."""
    first = result["rows"][0]
    headings = [
        "to",
        *("at once" if steps == 0 else f"{steps} steps" for steps in first["after"]),
        "better after",
    ]
    lines = []
    for row in result["rows"]:
        told = zip(row["mean"], row["half_width"], strict=True)
        cells = [f"{mean:+.3f}" + ("" if half is None else f" ± {half:.3f}") for mean, half in told]
        even = row["breaks_even_after"]
        lines.append([f"{row['value']:g}", *cells, "never" if even is None else f"{even} steps"])
    return headings, lines


def table(result: dict[str, Any]) -> Table:
    """A line for each value that was gone to."""
    from rich.table import Table

    title = (
        f"Held-out loss minus that of staying at {result['start']:g}, after {result['trained_before']} of "
        f"{result['steps']:,} steps"
    )
    headings, lines = grid(result)
    view = Table(*headings, title=title)
    for line in lines:
        view.add_row(*line)
    return view
