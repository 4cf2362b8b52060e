"""Islands against plain data parallelism on the same samples: what is lost or won, and what travels.

Four islands train by themselves for 50 steps, on parts of the batch that plain data parallelism trains on at
once, and meet: at their mean, or by an outer optimizer's step from it, with its values given or explored, in
float32 or in fewer bits. What is run is in :mod:`hdet.bench.islands.plan`, what follows in
:mod:`hdet.bench.islands.analysis`.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hdet.bench import cores as on_cores
from hdet.bench import machine
from hdet.bench.islands.analysis import analyse
from hdet.bench.islands.plan import INNER_EVERY, ISLANDS, SYNC_EVERY, Plan, Run, planned, run_of
from hdet.bench.islands.runs import execute
from hdet.bench.pool import Say
from hdet.bench.rows import KeptRows, Row

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["COMPARED", "markdown", "run", "table"]

#: A small task without batch norm, whose runs are over before it is learned by heart.
COMPARED = ("digits-mlp",)
_ROWS = Path("runs/islands.jsonl")
_TIMEOUT_SECONDS = 300.0
_QUICK = Plan(
    ("quadratic",), seeds=1, arms={100: ("DDP", "outer explored", "outer explored, int8")}, exponents=(-4,)
)


def run(
    quick: bool = False,
    device: str = "cpu",
    on_progress: Say | None = None,
    *,
    workloads: Sequence[str] | None = None,
    seeds: int = 3,
    rows: Path | None = None,
    processes: int | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Run what is not in ``rows`` yet, and make the table of all that is; the result is plain JSON.

    Args:
        quick: one tiny task, one seed; kept in memory unless ``rows`` is given.
        workloads: names from :data:`hdet.bench.workloads.WORKLOADS`; :data:`COMPARED` if None.
        seeds: how many.
        rows: the file that finished runs are appended to, ``runs/islands.jsonl`` if None.
        processes: how many islands train at a time, as many as there are cores if None.
        minutes: after so long no further run is started.
    """
    if device != "cpu":
        raise ValueError(
            f"islands: device must be 'cpu', got {device!r}; islands are processes over gloo, and their "
            "models too small for an accelerator"
        )
    plan = _QUICK if quick else Plan(COMPARED if workloads is None else tuple(workloads), seeds)
    done: KeptRows[Run] = KeptRows(rows if quick or rows is not None else _ROWS, run_of)
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    with on_cores.kept_processes(execute, _TIMEOUT_SECONDS) as work:
        on_cores.complete(
            lambda: planned(plan),
            done,
            work,
            cores=processes or os.cpu_count() or 1,
            deadline=deadline,
            say=on_progress or (lambda _: None),
            told=_told,
        )
    about = machine.about("islands", quick=quick, device=device)
    if not quick:
        about["command"] += f" --workloads {','.join(plan.workloads)}" if plan.workloads != COMPARED else ""
        about["command"] += f" --seeds {seeds}" if seeds != 3 else ""
    settings = {
        "islands": ISLANDS,
        "sync_every": SYNC_EVERY,
        "inner_every": INNER_EVERY,
        "rates": plan.rates(),
        "seeds": plan.seeds,
    }
    return {**about, "settings": settings, **analyse(plan, done.finished), "failed": len(done.failed)}


def _told(row: Row) -> str:
    return f"{run_of(row)}: {row.get('error') or row['held_out']}"


_HEADINGS = ["task, rounds", "arm", "best rate", "held-out loss", "over DDP, %", "sent, of DDP's", "ended at"]


def _cells(line: Mapping[str, Any]) -> list[str]:
    return [
        f"{line['workload']}, {line['steps'] // SYNC_EVERY}",
        line["arm"],
        f"{line['lr']:g}",
        _between(line["held_out"], line["held_out_half_width"], ".4f"),
        _between(line["excess_percent"], line["excess_half_width"], "+.1f") if line["arm"] != "DDP" else "–",
        f"{line['sent_share']:.4f}",
        ", ".join(f"{name} {value:.2f}" for name, value in line["values"].items()) or "–",
    ]


def _between(mean: float, half: float | None, form: str) -> str:
    return f"{mean:{form}}" + ("" if half is None else f" ± {half:{form.lstrip('+')}}")


def table(result: dict[str, Any]) -> Table:
    """A line for every task and arm."""
    from rich.table import Table

    view = Table(*_HEADINGS, title="Islands against plain data parallelism on the same samples")
    for line in result["lines"]:
        view.add_row(*_cells(line))
    return view


def markdown(result: dict[str, Any]) -> str:
    """The same for a document."""
    lines = [f"| {' | '.join(_HEADINGS)} |", "|---" * len(_HEADINGS) + "|"]
    lines += [f"| {' | '.join(_cells(line))} |" for line in result["lines"]]
    s = result["settings"]
    notes = (
        f"{s['islands']} islands that meet every {s['sync_every']} steps; pairs share gradients at every "
        f"step, or weights every {s['inner_every']}. The same samples, steps and OneCycle shape for all, "
        f"AdamW, each arm at the best of {len(s['rates'])} peak rates by the mean of {s['seeds']} seeds; the "
        "excess is of each seed over DDP's of the same seed. `sent` is what a rank sends where all meet, "
        "optimizer state included, over DDP's gradients in float32."
    )
    if result["missing_runs"]:
        notes += f" {result['missing_runs']} runs are missing."
    return "\n".join([*lines, "", notes])
