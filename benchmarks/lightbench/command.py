"""How many of LightBench's problems one run solves: AutoLR on AdamW, which is given no learning rate.

What is run, when a problem counts as solved, and which published numbers stand beside it was fixed beforehand
in PROTOCOL.md. Every run has a process of its own, and its row is on disk before the next begins.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from benchmarks import machine
from benchmarks.lightbench.published import ADAMW_TRIALS, solved_within
from benchmarks.lightbench.runs import ARMS, Run, execute
from benchmarks.pool import Say, complete, shared_gpu
from benchmarks.rows import KeptRows, Row, environment, six_digits

if TYPE_CHECKING:
    from rich.console import Group

__all__ = ["Plan", "analyse", "planned", "run", "table"]

#: The cap of a run, and the seconds that it has.
_STEPS, _SECONDS = 20_000, 240.0
#: Beyond so many steps there is more time.
_LONG_SECONDS = 560.0
#: Of these kinds a step takes longest: they are started first.
_SLOW = ("wide_linear", "gradient_delay", "xor_", "noisy_matmul")
_QUICK = ("beale-trivial", "saddle_point-trivial")


@dataclass(frozen=True)
class Plan:
    """Which problems, by whom, and how long."""

    problems: Sequence[str]
    steps: int = _STEPS
    limit: float = _SECONDS
    device: str = "cpu"
    arms: Sequence[str] = ARMS


def run(
    quick: bool = False,
    device: str = "cpu",
    on_progress: Say | None = None,
    *,
    problems: Sequence[str] | None = None,
    steps: int | None = None,
    rows: Path | None = None,
    processes: int | None = None,
    minutes: float | None = None,
) -> dict[str, Any]:
    """Run what is not in ``rows`` yet, and make the table of all that is; the result is plain JSON.

    Args:
        quick: two problems and few steps; kept in memory unless ``rows`` is given.
        problems: names as in :data:`ADAMW_TRIALS`, all of them if None.
        steps: the cap of a run, 20,000 if None.
        rows: the file that finished runs are appended to, ``runs/lightbench-<device>.jsonl`` if None.
        processes: how many runs go on at a time, as many as there are cores if None.
        minutes: after so long no further run is started; those under way may take as long as their limit.
    """
    say = on_progress or (lambda _: None)
    steps = steps or (512 if quick else _STEPS)
    limit = _SECONDS if steps <= _STEPS else _LONG_SECONDS
    plan = Plan(_checked(_QUICK if quick and problems is None else problems), steps, limit, device)
    if rows is None and not quick:
        rows = Path("runs") / f"lightbench-{device}.jsonl"
    done: KeptRows[Run] = KeptRows(rows, _run_of)
    at_once = processes or os.cpu_count() or 1
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    with ExitStack() as stack:
        stack.enter_context(environment({"OMP_NUM_THREADS": "1"}))
        if torch.device(device).type == "cuda":
            stack.enter_context(shared_gpu(say))
        # Threads that wait, each for the process of one run.
        pool = stack.enter_context(ThreadPoolExecutor(at_once))
        complete(
            lambda: planned(plan),
            done,
            pool,
            execute,
            at_once=at_once,
            deadline=deadline,
            say=say,
            told=_told,
        )
    about = machine.about("lightbench", quick=quick, device=device)
    about["command"] += f" --steps {steps}" if steps != _STEPS and not quick else ""
    about["command"] += f" --problems {','.join(plan.problems)}" if problems is not None else ""
    return {**about, **analyse(plan, done)}


def _checked(problems: Sequence[str] | None) -> tuple[str, ...]:
    names = tuple(ADAMW_TRIALS if problems is None else problems)
    unknown = [name for name in names if name not in ADAMW_TRIALS]
    if unknown or not names:
        raise ValueError(
            f"problems must be some of the {len(ADAMW_TRIALS)} of LightBench's published table that the "
            f"package still holds, such as 'beale-trivial', got {', '.join(unknown) or 'none'}"
        )
    return names


def planned(plan: Plan) -> list[Run]:
    """Every run: AutoLR before all others, and the slow problems first."""
    slow_first = sorted(plan.problems, key=lambda name: not name.startswith(_SLOW))
    return [Run(name, arm, plan.steps, plan.limit, plan.device) for arm in plan.arms for name in slow_first]


def _run_of(row: Row) -> Run:
    return Run(**{part.name: row[part.name] for part in fields(Run)})


def _told(row: Row) -> str:
    end = row.get("error") or f"{row['outcome']} after {row['taken']} steps, {row['seconds']:.0f} s"
    return f"{row['problem']} {row['arm']}: {end}"


# ---------------------------------------------------------------------- what it comes to

_SHOWN = ("outcome", "taken", "lowest", "last", "reached", "seconds")


def analyse(plan: Plan, done: KeptRows[Run]) -> dict[str, Any]:
    """One line for each problem, with the trial in which AdamW was reported to solve it, and the counts."""
    lines = []
    for name in plan.problems:
        line: dict[str, Any] = {"problem": name, "adamw_trials": ADAMW_TRIALS[name]}
        for arm in plan.arms:
            line[arm] = _result(Run(name, arm, plan.steps, plan.limit, plan.device), done)
        lines.append(line)
    counts = {
        arm: {
            "solved": sum(line[arm] is not None and line[arm]["outcome"] == "solved" for line in lines),
            "run": sum(line[arm] is not None for line in lines),
        }
        for arm in plan.arms
    }
    whole = len(plan.problems) == len(ADAMW_TRIALS)
    trials = [line["adamw_trials"] for line in lines]
    published = {
        str(within): sum(trial is not None and trial <= within for trial in trials)
        for within in (10, 30, 1000)
    }
    return {
        "settings": {"steps": plan.steps, "limit_seconds": plan.limit, "problems": len(lines)},
        "counts": counts,
        "adamw_solved_within_trials": published,
        "adamw_of_all_148": {str(n): solved_within(n, gone=True) for n in (10, 30, 1000)} if whole else None,
        "missing_runs": sum(line[arm] is None for line in lines for arm in plan.arms),
        "rows": six_digits(lines),
    }


def _result(run: Run, done: KeptRows[Run]) -> dict[str, Any] | None:
    if (row := done.finished.get(run)) is not None:
        return {name: row[name] for name in _SHOWN}
    if (row := done.failed.get(run)) is not None:
        return {**dict.fromkeys(_SHOWN), "outcome": f"error: {row['error']}"}
    return None


def table(result: dict[str, Any]) -> Group:
    """What became of every problem, and how many were solved."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    headings = (
        "problem",
        "AdamW: solved in trial",
        "AutoLR, one run",
        "lowest loss",
        "highest LR",
        "at 1e-3",
    )
    missing = f"; {result['missing_runs']} runs are still missing" if result["missing_runs"] else ""
    view = Table(*headings, title=f"LightBench, {result['settings']['steps']:,} steps{missing}")
    for row in result["rows"]:
        auto = row["autolr"] or {}
        cells = [row["problem"], str(row["adamw_trials"] or "never"), _outcome(row["autolr"])]
        cells += [_number(auto.get("lowest")), _number(auto.get("reached")), _outcome(row["default"])]
        view.add_row(*map(Text, cells))
    counts, known = result["counts"], result["adamw_solved_within_trials"]
    return Group(
        view,
        f"AutoLR: {_count(counts['autolr'])}. AdamW at 1e-3: {_count(counts['default'])}.",
        f"Published of AdamW on these {result['settings']['problems']}, after a search: "
        + ", ".join(f"{solved} within {trials} trials" for trials, solved in known.items()),
    )


def _outcome(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "–"
    if found["outcome"] == "solved":
        return f"solved after {found['taken']:,}"
    outcome: str = found["outcome"]
    return {"steps": "not solved", "time": "out of time"}.get(outcome, outcome)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _count(found: Mapping[str, int]) -> str:
    return f"{found['solved']} of {found['run']} solved"
